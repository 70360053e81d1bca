//! Loads, stores, moves between registers, and conversions.

use super::asm::{asm, group};
use super::{A, Atom, Code, D, Fault, Fits, Progress, Site, Step, Tried, Warp, When, given};
use crate::{Expr, Feature, Memory, Scalar};

pub(super) const ATOMS: &[Atom] = &[
    vector("ld.global.128", LOAD_GLOBAL, |s| bytes(s, 16)).align(&[4, 16]),
    vector("ld.global.64", LOAD_GLOBAL, |s| bytes(s, 8)).align(&[4, 8]),
    vector("ld.global.32", LOAD_GLOBAL, |s| bytes(s, 4)).align(&[4, 4]),
    vector("st.global.128", STORE_GLOBAL, |s| bytes(s, 16)).align(&[16, 4]),
    vector("st.global.64", STORE_GLOBAL, |s| bytes(s, 8)).align(&[8, 4]),
    vector("st.global.32", STORE_GLOBAL, |s| bytes(s, 4)).align(&[4, 4]),
    vector("ld.shared.128", LOAD_SHARED, |s| bytes(s, 16)).align(&[4, 16]),
    vector("ld.shared.64", LOAD_SHARED, |s| bytes(s, 8)).align(&[4, 8]),
    vector("ld.shared.32", LOAD_SHARED, |s| bytes(s, 4)).align(&[4, 4]),
    vector("st.shared.128", STORE_SHARED, |s| bytes(s, 16)).align(&[16, 4]),
    vector("st.shared.64", STORE_SHARED, |s| bytes(s, 8)).align(&[8, 4]),
    vector("st.shared.32", STORE_SHARED, |s| bytes(s, 4)).align(&[4, 4]),
    scalar("ld.global", "[].*.RF <- Move<<<[]>>>([].*.GL)", same),
    scalar("st.global", "[].*.GL <- Move<<<[]>>>([].*.RF)", same),
    scalar("ld.shared", "[].*.RF <- Move<<<[]>>>([].*.SH)", same),
    scalar("st.shared", "[].*.SH <- Move<<<[]>>>([].*.RF)", same),
    scalar("mov", "[].*.RF <- Move<<<[]>>>([].*.RF)", same),
    scalar("cvt", "[].*.RF <- Move<<<[]>>>([].*.RF)", |s| {
        let floats = [D, A].iter().all(|&side| s.operand(side).scalar.is_float());
        given(floats, "it converts floating point only")
    }),
    scalar("cvt.from", "[].fp32.RF <- Move<<<[]>>>([].i32|i64|u32|u8|i8.RF)", |_| Ok(())),
    // Towards 0; what the type does not hold, such as NaN, becomes any of its values.
    scalar("cvt.to", "[].i32|i64|u32|u8|i8.RF <- Move<<<[]>>>([].fp32.RF)", |_| Ok(())),
    // What the type does not hold wraps.
    scalar(
        "cvt.integer",
        "[].i32|i64|u32|u8|i8.RF <- Move<<<[]>>>([].i32|i64|u32|u8|i8.RF)",
        |s| given(same(s).is_err(), "it converts"),
    ),
    Atom::new("cvt.rn.x2", "[2:1].fp16|bf16.RF <- Move<<<[]>>>([2].fp32.RF)", copy, |s, c| {
        let scalar = if s.operand(D).scalar == Scalar::F16 { "f16x2" } else { "bf16x2" };
        let pair = [("f", c.element(A, &[1])), ("f", c.element(A, &[0]))];
        let text = format!("cvt.rn.{scalar}.f32 %0, %1, %2;");
        asm(&text, &[("=r", c.word(D, &[0]))], &pair)
    })
    .needs(&[Feature::PackedCvt])
    .align(&[4]),
    cp_async("cp.async.16", NEIGHBOURS, |s| bytes(s, 16)).align(&[16, 16]),
    cp_async("cp.async.8", NEIGHBOURS, |s| bytes(s, 8)).align(&[8, 8]),
    cp_async("cp.async.4", NEIGHBOURS, |s| bytes(s, 4)).align(&[4, 4]),
    cp_async("cp.async.4.single", WORD, same).align(&[4, 4]),
];

const LOAD_GLOBAL: &str = "[n:1].*.RF <- Move<<<[]>>>([n:1].*.GL)";
const STORE_GLOBAL: &str = "[n:1].*.GL <- Move<<<[]>>>([n:1].*.RF)";
const LOAD_SHARED: &str = "[n:1].*.RF <- Move<<<[]>>>([n:1].*.SH)";
const NEIGHBOURS: &str = "[n:1].*.SH <- Move<<<[]>>>([n:1].*.GL) async";
const WORD: &str = "[].fp32|i32|u32.SH <- Move<<<[]>>>([].fp32|i32|u32.GL) async";
const STORE_SHARED: &str = "[n:1].*.SH <- Move<<<[]>>>([n:1].*.RF)";

/// An access of several elements by one thread.
const fn vector(name: &'static str, pattern: &'static str, when: When) -> Atom {
    Atom::new(name, pattern, copy, vector_text).when(when)
}

/// A move of one element by one thread.
const fn scalar(name: &'static str, pattern: &'static str, when: When) -> Atom {
    Atom::new(name, pattern, copy, scalar_text).when(when)
}

fn scalar_text(site: &Site<'_>, code: &Code<'_>) -> String {
    let (to, from) = (code.element(D, &[]), code.element(A, &[]));
    let [a, b] = [D, A].map(|operand| site.operand(operand).scalar);
    let value = match a {
        _ if a == b => return format!("{to} = {from};"),
        _ if !a.is_float() && !b.is_float() => format!("({from})"),
        // By way of a signed integer: a negative number wraps, where a conversion to an unsigned type gives 0.
        Scalar::U8 | Scalar::I8 => format!("int(float({from}))"),
        Scalar::U32 => format!("({})float({from})", Scalar::I64.c_name()),
        _ => format!("float({from})"),
    };
    format!("{to} = ({}){value};", a.c_name())
}

/// An asynchronous copy by one thread; zeros in place of what lies beyond the edge.
const fn cp_async(name: &'static str, pattern: &'static str, when: When) -> Atom {
    let meaning = |site: &Site<'_>, warp: &mut dyn Warp| {
        each(site, warp, |warp, lane, at| {
            let value = warp.read_or_zero((lane, A, at))?;
            warp.write((lane, D, at), value)
        })
    };
    Atom::new(name, pattern, meaning, cp_async_text).needs(&[Feature::CpAsync]).when(when)
}

fn cp_async_text(site: &Site<'_>, code: &Code<'_>) -> String {
    let scalar = site.operand(D).scalar.bytes();
    let bytes = count(site) * scalar;
    let first: &[i64] = if site.dims(D).is_empty() { &[] } else { &[0] };
    // Sixteen bytes may bypass the first-level cache; fewer may not.
    let cache = if bytes == 16 { "cg" } else { "ca" };
    let copy = format!("cp.async.{cache}.shared.global [%0], [%1], {bytes}");
    let mut ins = vec![("r", code.address(D, first)), ("l", code.pointer(A, first))];
    let text = match inside(site, code) {
        (conditions, _) if conditions.is_empty() => format!("{copy};"),
        (conditions, None) => {
            ins.push(("r", format!("(int)({conditions})")));
            format!("{{ .reg .pred none; setp.eq.s32 none, %2, 0; {copy}, none; }}")
        }
        (conditions, Some(count)) => {
            ins.push(("r", format!("{scalar} * ({conditions} ? {count} : 0)")));
            format!("{copy}, %2;")
        }
    };
    asm(&text, &[], &ins)
}

/// How many elements each lane has: a single one has no dimension in the pattern.
fn count(site: &Site<'_>) -> i64 {
    site.dims(D).first().and_then(|dim| dim.size().constant()).unwrap_or(1)
}

/// The conditions under which an asynchronous copy's first element lies within the source's buffer, but those that hold
/// whatever the symbols are; and how many of its elements do then, unless it is all. No address is used where none does.
fn inside(site: &Site<'_>, code: &Code<'_>) -> (String, Option<String>) {
    let view = &site.operand(A).view;
    let n = count(site);
    // The copy runs along one axis, and may end there; along the others it lies within or not.
    let along = if n == 1 { None } else { site.steps(A, &[1]) };
    let along = along.and_then(|steps| steps.iter().position(|&step| step == 1));
    let (mut conditions, mut some) = (Vec::new(), None);
    for (i, (start, axis)) in view.start().into_iter().zip(view.axes()).enumerate() {
        let size = &axis.size;
        let pieces = if Some(i) == along { n } else { 1 };
        let texts = || (code.expr(&start), code.expr(size));
        let behind = start.range().0 < Some(0);
        if size.reaches(&(start.clone() + pieces)) {
            conditions.extend(behind.then(|| format!("{} >= 0", texts().0)));
            continue;
        }
        let (first, end) = texts();
        conditions.push(match behind {
            true => format!("(unsigned)({first}) < (unsigned)({end})"),
            false => format!("{first} < {end}"),
        });
        let whole = |of: &Expr| of.rem(pieces).is(0);
        if !whole(&start) || !whole(size) {
            let left = code.expr(&(size.clone() - &start));
            some = Some(format!("({left} < {n} ? {left} : {n})"));
        }
    }
    (conditions.join(" && "), some)
}

/// Calls `body` for every lane and element, in the order of the destination; a single one has the coordinate `[]`.
pub(super) fn each(
    site: &Site<'_>,
    warp: &mut dyn Warp,
    mut body: impl FnMut(&mut dyn Warp, usize, &[i64]) -> Tried,
) -> Step {
    let n = if site.dims(D).is_empty() { None } else { Some(count(site)) };
    for lane in warp.lanes() {
        match n {
            None => body(warp, lane, &[])?,
            Some(n) => (0..n).try_for_each(|i| body(warp, lane, &[i]))?,
        }
    }
    Ok(Progress::Done)
}

pub(super) fn copy(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let mut values = Vec::with_capacity(count(site) as usize);
    for lane in warp.lanes() {
        warp.read_all(lane, A, &mut values)?;
        warp.write_all(lane, D, &values)?;
    }
    Ok(Progress::Done)
}

/// The width is `wanted` bytes, of one type.
pub(super) fn bytes(site: &Site<'_>, wanted: i64) -> Fits {
    same(site)?;
    let bytes = site.operand(D).scalar.bytes();
    given(bytes <= 4, "elements of 8 bytes move alone")?;
    given(site.size("n") * bytes == wanted, "it moves another number of bytes")
}

pub(super) fn same(site: &Site<'_>) -> Fits {
    given(site.operand(D).scalar == site.operand(A).scalar, "it does not convert")
}

/// `ld`/`st` of 4, 8 or 16 bytes as words of 32 bits.
fn vector_text(site: &Site<'_>, code: &Code<'_>) -> String {
    let per_word = 4 / site.operand(D).scalar.bytes();
    let loads = site.operand(D).memory == Memory::Registers;
    let (registers, memory) = if loads { (D, A) } else { (A, D) };
    let words = (0..site.size("n")).step_by(per_word as usize);
    let words: Vec<String> = words.map(|i| code.word(registers, &[i])).collect();
    let count = words.len();
    let vector = if count == 1 { String::new() } else { format!(".v{count}") };
    let (space, address) = match site.operand(memory).memory {
        Memory::Global => ("global", ("l", code.pointer(memory, &[0]))),
        Memory::Shared | Memory::Registers => ("shared", ("r", code.address(memory, &[0]))),
    };
    if loads {
        let outs: Vec<_> = words.into_iter().map(|word| ("=r", word)).collect();
        let text = format!("ld.{space}{vector}.u32 {}, [%{count}];", group(0, count));
        asm(&text, &outs, &[address])
    } else {
        let mut ins = vec![address];
        ins.extend(words.into_iter().map(|word| ("r", word)));
        asm(&format!("st.{space}{vector}.u32 [%0], {};", group(1, count)), &[], &ins)
    }
}

/// Used by rows that report what a lane did wrong.
pub(super) fn only_one(warp: &dyn Warp) -> Tried<usize> {
    match warp.lanes()[..] {
        [lane] => Ok(lane),
        _ => Err(Fault::Invalid("one thread alone may do this".to_owned())),
    }
}
