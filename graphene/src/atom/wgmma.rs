//! Asynchronous matmuls by a warpgroup (PTX `wgmma.mma_async`).

use super::asm::{asm, group};
use super::matrix::{Matrix, accumulate, gather, mma_name, seen};
use super::{A, Atom, B, Code, D, Fault, Fits, Proxy, Site, Step, Warp, given};
use crate::fragment::{WGMMA_64X16_A, wgmma_c};
use crate::{Feature, Kind, Memory, Scalar};

/// Of each two the second sets its output rather than adds to it (PTX: `scale-d` is false).
#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    row("wgmma.m64k16.shared",
        "[2,n].[2].fp32.RF <- MatMul+=<<<[128]>>>([64,16].fp16|bf16.SH, [16,w].fp16|bf16.SH) async"),
    row("wgmma.m64k16.shared.set",
        "[2,n].[2].fp32.RF <- MatMul<<<[128]>>>([64,16].fp16|bf16.SH, [16,w].fp16|bf16.SH) async"),
    row("wgmma.m64k8.tf32",
        "[2,n].[2].fp32.RF <- MatMul+=<<<[128]>>>([64,8].fp32.SH, [8,w].fp32.SH) async"),
    row("wgmma.m64k8.tf32.set",
        "[2,n].[2].fp32.RF <- MatMul<<<[128]>>>([64,8].fp32.SH, [8,w].fp32.SH) async"),
    row("wgmma.m64k16.registers",
        "[2,n].[2].fp32.RF <- MatMul+=<<<[128]>>>([2,2].[2:1].fp16|bf16.RF, [16,w].fp16|bf16.SH) async").align(&[4, 4, 16]),
    row("wgmma.m64k16.registers.set",
        "[2,n].[2].fp32.RF <- MatMul<<<[128]>>>([2,2].[2:1].fp16|bf16.RF, [16,w].fp16|bf16.SH) async").align(&[4, 4, 16]),
];

const fn row(name: &'static str, pattern: &'static str) -> Atom {
    let (needs, align, proxy) = (&[Feature::Wgmma], &[4, 16, 16], Proxy::Async);
    Atom { needs, align, when: fits, proxy, ..Atom::new(name, pattern, meaning, text) }
}

fn fits(site: &Site<'_>) -> Fits {
    let w = site.size("w");
    let widths = w == 8 * site.size("n") && w <= 256;
    given(widths, "the matmul has 8 to 256 columns, and the accumulator is of their number")?;
    let [a, b] = [A, B].map(|operand| site.operand(operand).scalar);
    given(a == b, "both operands have one type")?;
    let a_transposed = !has_registers(site) && descriptor(site, A)?.transposed;
    let transposed = descriptor(site, B)?.transposed || a_transposed;
    given(!transposed || b != Scalar::F32, "K is contiguous in both operands")
}

/// Whether it sets its output.
fn sets(site: &Site<'_>) -> bool {
    site.spec.kind == Kind::MATMUL
}

fn has_registers(site: &Site<'_>) -> bool {
    site.operand(A).memory == Memory::Registers
}

/// The elements of an accumulator of `8·n` columns, in the instruction's order of registers: a
/// lane has, of each eight columns, two neighbours in its row and two in the row eight below.
pub(super) fn accumulators(n: i64) -> impl Iterator<Item = [i64; 3]> {
    (0..n).flat_map(|j| (0..2).flat_map(move |half| (0..2).map(move |pair| [half, j, pair])))
}

/// The extent of a matmul along K: 32 bytes of either operand.
fn depth(site: &Site<'_>) -> i64 {
    32 / site.operand(B).scalar.bytes()
}

/// What a matrix descriptor says of an operand in shared memory; offsets are in bytes.
struct Descriptor {
    /// Whether the side that is not K is contiguous.
    transposed: bool,
    leading: i64,
    stride: i64,
    /// The layout's code: 1, 2, 3 for swizzles of 128, 64, 32 bytes.
    swizzle: u64,
}

/// The descriptor of an operand whose dimension `k` is K; an error if its layout is none that the
/// instruction reads (PTX, "Shared memory matrix layout").
fn descriptor(site: &Site<'_>, operand: usize) -> Result<Descriptor, &'static str> {
    let tensor = site.operand(operand);
    let bytes = tensor.scalar.bytes();
    let (swizzle, span) = match tensor.swizzle.map(|s| (s.bits(), s.base(), s.shift())) {
        Some((3, 4, 3)) => (1, 128 / bytes),
        Some((2, 4, 3)) => (2, 64 / bytes),
        Some((1, 4, 3)) => (3, 32 / bytes),
        _ => return Err("operands are swizzled by S<3,4,3>, S<2,4,3> or S<1,4,3>"),
    };
    // K is the second dimension of A, and the first of B.
    let size = if operand == A { 64 } else { site.size("w") };
    let at = |other: i64, k: i64| {
        let element = if operand == A { [other, k] } else { [k, other] };
        site.distance(operand, &element).ok_or("strides in shared memory are numbers")
    };
    let (transposed, leading, stride) = if at(0, 1)? == 1 {
        (false, 1, if size > 8 { at(8, 0)? } else { 8 * span })
    } else if at(1, 0)? == 1 {
        (true, if size > span { at(span, 0)? } else { span * 8 }, at(0, 8)?)
    } else {
        return Err("one side of an operand is contiguous");
    };
    let expected = |other: i64, k: i64| {
        if transposed {
            other % span + other / span * leading + k % 8 * span + k / 8 * stride
        } else {
            other % 8 * span + other / 8 * stride + k
        }
    };
    // Distances along both sides add up, those that are expected as well.
    for (other, k) in (0..size).map(|other| (other, 0)).chain((0..depth(site)).map(|k| (0, k))) {
        if at(other, k)? != expected(other, k) {
            return Err("an operand's rows are as wide as its swizzle, eight to a group");
        }
    }
    Ok(Descriptor { transposed, leading: leading * bytes, stride: stride * bytes, swizzle })
}

impl Descriptor {
    fn text(&self, start: &str) -> String {
        let field = |bytes: i64| ((bytes as u64) >> 4) & 0x3fff;
        let bits = field(self.leading) << 16 | field(self.stride) << 32 | self.swizzle << 62;
        format!("{bits:#x}ull | ({start})")
    }
}

fn text(site: &Site<'_>, code: &Code<'_>) -> String {
    let w = site.size("w");
    let scalar = site.operand(A).scalar;
    let (single, scalar) = (scalar == Scalar::F32, mma_name(scalar));
    let (out, add) = if sets(site) { ("=f", 0) } else { ("+f", 1) };
    let outs: Vec<_> =
        accumulators(site.size("n")).map(|element| (out, code.element(D, &element))).collect();
    let count = outs.len();
    let mut ins = Vec::new();
    let describe = |operand: usize| {
        let described = descriptor(site, operand).expect("the precondition asks for a descriptor");
        (described.text(&code.descriptor_start(operand)), i32::from(described.transposed))
    };
    let (a, a_flags) = if has_registers(site) {
        for (k, m) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            ins.push(("r", code.word(A, &[m, k, 0])));
        }
        (group(count, 4), String::new())
    } else {
        let (value, transposed) = describe(A);
        ins.push(("l", value));
        (format!("%{count}"), format!("{transposed}, "))
    };
    let (b, b_transposed) = describe(B);
    ins.push(("l", b));
    let last = count + ins.len() - 1;
    // Of TF32 no operand is transposed, and there is nothing to say of it.
    let flags = if single { String::new() } else { format!(", {a_flags}{b_transposed}") };
    let depth = depth(site);
    let text = format!(
        "wgmma.mma_async.sync.aligned.m64n{w}k{depth}.f32.{scalar}.{scalar} {}, {a}, %{last}, \
         {add}, 1, 1{flags};",
        group(0, count)
    );
    asm(&text, &outs, &ins)
}

fn meaning(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let (w, k) = (site.size("w") as usize, depth(site) as usize);
    let seen = seen(site);
    let lanes: Vec<_> =
        warp.lanes().into_iter().map(|lane| (lane, warp.rank(lane) as usize)).collect();
    let (Some(first), Some(sums)) = (lanes.first(), wgmma_c(site.size("n"))) else {
        return Err(Fault::Invalid("a matmul without lanes".to_owned()));
    };
    let mut values = Vec::new();
    warp.read_all(0, B, &mut values)?;
    values.iter_mut().for_each(|value| *value = seen(*value));
    let b = Matrix::of(B, [k, w], values);
    let a = if has_registers(site) {
        gather(warp, A, &lanes, &WGMMA_64X16_A, |x| x)?
    } else {
        let mut a = Matrix::zeros(A, [64, k]);
        // Of four warps, each has sixteen rows.
        let own = first.1 / 32 * 16;
        for (row, column) in (own..own + 16).flat_map(|row| (0..k).map(move |at| (row, at))) {
            let value = warp.read((0, A, &[row as i64, column as i64]))?;
            a.set([row, column], seen(value));
        }
        a
    };
    accumulate(warp, &lanes, sums, [&a, &b], sets(site))
}
