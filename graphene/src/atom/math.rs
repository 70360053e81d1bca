//! Arithmetic on registers: products, functions of elements, folds, exchanges, constants.

use super::asm::asm;
use super::function::{float_text, whole_binary_text, whole_unary_text};
use super::{Atom, Code, Progress, Proxy, Site, Step, Warp, When, always};
use crate::arch::Feature;
use crate::kernel::{Binary, Kind, Number, Unary};
use crate::tensor::Scalar;

/// Destination, and the operands.
const D: usize = 0;
const A: usize = 1;
const B: usize = 2;
const C: usize = 3;

pub(super) const ATOMS: &[Atom] = &[
    row(
        "fma.f32",
        "[].fp32.RF <- MatMul+=<<<[]>>>([].fp32.RF, [].fp32.RF)",
        multiply_add,
        |_, c| {
            format!(
                "{d} = __fmaf_rn({}, {}, {d});",
                c.element(A, &[]),
                c.element(B, &[]),
                d = c.element(D, &[])
            )
        },
    ),
    row("hfma", "[].fp16.RF <- MatMul+=<<<[]>>>([].fp16.RF, [].fp16.RF)", multiply_add, |_, c| {
        format!(
            "{d} = __hfma({}, {}, {d});",
            c.element(A, &[]),
            c.element(B, &[]),
            d = c.element(D, &[])
        )
    }),
    row(
        "hfma.global",
        "[].fp16.GL <- MatMul+=<<<[]>>>([].fp16.GL, [].fp16.GL)",
        multiply_add,
        |_, c| {
            format!(
                "{d} = __hfma({}, {}, {d});",
                c.element(A, &[]),
                c.element(B, &[]),
                d = c.element(D, &[])
            )
        },
    ),
    row(
        "hfma2",
        "[2:1].fp16.RF <- MatMul+=<<<[]>>>([2:1].fp16.RF, [2:1].fp16.RF)",
        multiply_add,
        |_, c| packed("fma.rn.f16x2 %0, %1, %2, %0;", "+r", c, &[A, B]),
    ),
    row("unary.f32", "[].fp32.RF <- UnaryPointwise<<<[]>>>([].fp32.RF)", unary, |s, c| {
        format!("{} = {};", c.element(D, &[]), unary_of(s).text(&c.element(A, &[])))
    }),
    row(
        "binary.f32",
        "[].fp32.RF <- BinaryPointwise<<<[]>>>([].fp32.RF, [].fp32.RF)",
        binary,
        |s, c| {
            let value = binary_of(s).text(&c.element(A, &[]), &c.element(B, &[]));
            format!("{} = {value};", c.element(D, &[]))
        },
    ),
    row(
        "select",
        "[].fp32|i64.RF <- Select<<<[]>>>([].fp32|i64.RF, [].fp32|i64.RF, [].fp32|i64.RF)",
        |s, warp| {
            each(s, warp, |warp, lane, at| {
                let holds = warp.read(lane, A, at)? != 0.0;
                let (yes, no) = (warp.read(lane, B, at)?, warp.read(lane, C, at)?);
                warp.write(lane, D, at, if holds { yes } else { no })
            })
        },
        |_, c| {
            let [d, a, b, otherwise] = [D, A, B, C].map(|operand| c.element(operand, &[]));
            format!("{d} = {a} != 0 ? {b} : {otherwise};")
        },
    ),
    row_when(
        "unary.i64",
        "[].i64.RF <- UnaryPointwise<<<[]>>>([].i64.RF)",
        |s| whole_unary_text(unary_of(s), "").map(drop).ok_or("integers have no such function"),
        unary,
        |s, c| {
            let value = whole_unary_text(unary_of(s), &c.element(A, &[]));
            format!("{} = {};", c.element(D, &[]), value.unwrap_or_default())
        },
    ),
    row_when(
        "binary.i64",
        "[].i64.RF <- BinaryPointwise<<<[]>>>([].i64.RF, [].i64.RF)",
        |s| {
            whole_binary_text(binary_of(s), "", "")
                .map(drop)
                .ok_or("integers have no such function")
        },
        binary,
        |s, c| {
            let [a, b] = [A, B].map(|operand| c.element(operand, &[]));
            let value = whole_binary_text(binary_of(s), &a, &b);
            format!("{} = {};", c.element(D, &[]), value.unwrap_or_default())
        },
    ),
    halves("binary.f16x2", PAIRS, &[], adds, pair_text),
    halves("max.f16x2", PAIRS, &[Feature::HalfMax], orders, pair_text),
    halves("binary.f16", SINGLE, &[], adds, single_text),
    halves("max.f16", SINGLE, &[Feature::HalfMax], orders, single_text),
    row("fold.f32", "[].fp32.RF <- Reduction<<<[]>>>([].fp32.RF)", fold, |s, c| {
        let d = c.element(D, &[]);
        let op = match s.spec.kind {
            Kind::Reduction(op) => op,
            _ => Binary::Add,
        };
        format!("{d} = {};", op.text(&d, &c.element(A, &[])))
    }),
    row_when(
        "red.global",
        "[].i32|u32.GL <- Reduction<<<[]>>>([].i32|u32.RF)",
        |s| {
            if s.operand(D).scalar != s.operand(A).scalar {
                return Err("it does not convert");
            }
            red_name(binary_of(s)).map(drop).ok_or("memory folds by +, max and min only")
        },
        update,
        |s, c| {
            let op = red_name(binary_of(s)).expect("the precondition refuses others");
            let t = if s.operand(D).scalar == Scalar::I32 { "s32" } else { "u32" };
            let text = format!("red.relaxed.gpu.global.{op}.{t} [%0], %1;");
            asm(&text, &[], &[("l", c.pointer(D, &[])), ("r", c.word(A, &[]))])
        },
    ),
    row_when(
        "red.global.f32",
        "[].fp32.GL <- Reduction<<<[]>>>([].fp32.RF)",
        |s| match binary_of(s) {
            Binary::Add => Ok(()),
            _ => Err("memory folds floating point by + only"),
        },
        update,
        |_, c| {
            let text = "red.relaxed.gpu.global.add.f32 [%0], %1;";
            asm(text, &[], &[("l", c.pointer(D, &[])), ("f", c.element(A, &[]))])
        },
    ),
    row_when(
        "shfl.sync.bfly",
        "[].*.RF <- Shfl<<<[32]>>>([].*.RF)",
        |s| {
            let word =
                s.operand(A).scalar.bytes() == 4 && s.operand(D).scalar == s.operand(A).scalar;
            if word { Ok(()) } else { Err("it exchanges words of 32 bits") }
        },
        shuffle,
        |s, c| {
            let Kind::Shfl(bits) = s.spec.kind else { return String::new() };
            let text = format!("shfl.sync.bfly.b32 %0, %1, {bits}, 0x1f, 0xffffffff;");
            asm(&text, &[("=r", c.word(D, &[]))], &[("r", c.word(A, &[]))])
        },
    ),
    row("mov.constant", "[].*.RF <- Init<<<[]>>>()", constant, |s, c| {
        let scalar = s.operand(D).scalar;
        let value = match scalar {
            Scalar::F16 | Scalar::Bf16 | Scalar::F32 => float_text(number(s)),
            Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::Mbar => {
                number(s).to_string()
            }
        };
        format!("{} = ({})({value});", c.element(D, &[]), scalar.c_name())
    }),
    row(
        "mov.index",
        "[].fp32|i32|i64|u32.RF <- Index<<<[]>>>()",
        |s, warp| {
            let Kind::Index(expr) = &s.spec.kind else { return Ok(Progress::Done) };
            for lane in warp.lanes() {
                let value = warp.value(lane, expr);
                warp.write(lane, D, &[], value as f64)?;
            }
            Ok(Progress::Done)
        },
        |s, c| {
            let Kind::Index(expr) = &s.spec.kind else { return String::new() };
            let scalar = s.operand(D).scalar.c_name();
            format!("{} = ({scalar})({});", c.element(D, &[]), c.expr(expr))
        },
    ),
];

type Meaning = fn(&Site<'_>, &mut dyn Warp) -> Step;
type Text = fn(&Site<'_>, &dyn Code) -> String;

const fn row(name: &'static str, pattern: &'static str, meaning: Meaning, cuda: Text) -> Atom {
    row_when(name, pattern, always, meaning, cuda)
}

const fn row_when(
    name: &'static str,
    pattern: &'static str,
    when: When,
    meaning: Meaning,
    cuda: Text,
) -> Atom {
    let proxy = Proxy::Generic;
    Atom { name, pattern, needs: &[], align: WORDS, when, proxy, meaning, cuda }
}

const PAIRS: &str = "[2:1].fp16.RF <- BinaryPointwise<<<[]>>>([2:1].fp16.RF, [2:1].fp16.RF)";
const SINGLE: &str = "[].fp16.RF <- BinaryPointwise<<<[]>>>([].fp16.RF, [].fp16.RF)";

/// A function of fp16 numbers, by an instruction of its own.
const fn halves(
    name: &'static str,
    pattern: &'static str,
    needs: &'static [Feature],
    when: When,
    cuda: Text,
) -> Atom {
    Atom { needs, ..row_when(name, pattern, when, binary, cuda) }
}

/// Registers hold what they hold wherever it lies; only pairs of 16 bits must share one, which
/// `[2:1]` and the emitter's alignment of arrays see to.
const WORDS: &[i64] = &[];

/// The number of elements that each lane has.
fn count(site: &Site<'_>) -> i64 {
    site.dims(D).first().and_then(|dim| dim.size().constant()).unwrap_or(1)
}

/// Calls `each` for every lane and element; scalars have the element `[]`.
fn each(
    site: &Site<'_>,
    warp: &mut dyn Warp,
    mut each: impl FnMut(&mut dyn Warp, usize, &[i64]) -> std::result::Result<(), super::Fault>,
) -> Step {
    for lane in warp.lanes() {
        match count(site) {
            1 => each(warp, lane, &[])?,
            n => (0..n).try_for_each(|i| each(warp, lane, &[i]))?,
        }
    }
    Ok(Progress::Done)
}

/// d + a·b, rounded once to the type of d.
fn multiply_add(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let single = site.operand(D).scalar == Scalar::F32;
    each(site, warp, |warp, lane, at| {
        let (a, b) = (warp.read(lane, A, at)?, warp.read(lane, B, at)?);
        let d = warp.read(lane, D, at)?;
        // Products of halves are exact in double precision; products and sums of singles are
        // rounded once by the fused operation on singles.
        let sum = if single {
            f64::from((a as f32).mul_add(b as f32, d as f32))
        } else {
            a.mul_add(b, d)
        };
        warp.write(lane, D, at, sum)
    })
}

fn unary(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let op = unary_of(site);
    each(site, warp, |warp, lane, at| {
        let a = warp.read(lane, A, at)?;
        warp.write(lane, D, at, op.value(a))
    })
}

fn binary(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let op = binary_of(site);
    each(site, warp, |warp, lane, at| {
        let (a, b) = (warp.read(lane, A, at)?, warp.read(lane, B, at)?);
        warp.write(lane, D, at, op.value(a, b))
    })
}

fn fold(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let op = binary_of(site);
    each(site, warp, |warp, lane, at| {
        let (d, a) = (warp.read(lane, D, at)?, warp.read(lane, A, at)?);
        warp.write(lane, D, at, op.value(d, a))
    })
}

/// Folds into memory in one step.
fn update(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let op = binary_of(site);
    each(site, warp, |warp, lane, at| {
        let a = warp.read(lane, A, at)?;
        warp.update(lane, D, at, &|d| op.value(d, a)).map(drop)
    })
}

fn shuffle(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::Shfl(bits) = site.spec.kind else { return Ok(Progress::Done) };
    let lanes = warp.lanes();
    let mut values = [0.0; 32];
    for &lane in &lanes {
        values[lane] = warp.read(lane, A, &[])?;
    }
    for lane in lanes {
        warp.write(lane, D, &[], values[(lane ^ bits as usize) & 31])?;
    }
    Ok(Progress::Done)
}

fn constant(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let value = number(site);
    for lane in warp.lanes() {
        warp.write(lane, D, &[], value)?;
    }
    Ok(Progress::Done)
}

fn number(site: &Site<'_>) -> f64 {
    match site.spec.kind {
        Kind::Init(Number(value)) => value,
        _ => 0.0,
    }
}

fn unary_of(site: &Site<'_>) -> Unary {
    match site.spec.kind {
        Kind::Unary(op) => op,
        _ => unreachable!("the pattern asks for a unary function"),
    }
}

fn binary_of(site: &Site<'_>) -> Binary {
    match site.spec.kind {
        Kind::Binary(op) | Kind::Reduction(op) => op,
        _ => unreachable!("the pattern asks for a binary function"),
    }
}

/// Functions of fp16 numbers that are one instruction everywhere.
fn adds(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    let is = matches!(binary_of(site), Binary::Add | Binary::Sub | Binary::Mul);
    if is { Ok(()) } else { Err("it adds, subtracts and multiplies") }
}

/// Likewise where numbers are compared.
fn orders(site: &Site<'_>) -> std::result::Result<(), &'static str> {
    let is = matches!(binary_of(site), Binary::Max | Binary::Min);
    if is { Ok(()) } else { Err("it is the larger or the smaller") }
}

fn half_name(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add.rn",
        Binary::Sub => "sub.rn",
        Binary::Mul => "mul.rn",
        Binary::Max => "max",
        Binary::Min => "min",
        _ => unreachable!("the precondition refuses others"),
    }
}

fn pair_text(site: &Site<'_>, code: &dyn Code) -> String {
    packed(&format!("{}.f16x2 %0, %1, %2;", half_name(binary_of(site))), "=r", code, &[A, B])
}

fn single_text(site: &Site<'_>, code: &dyn Code) -> String {
    let bits = |operand| format!("{}.bits", code.element(operand, &[]));
    let text = format!("{}.f16 %0, %1, %2;", half_name(binary_of(site)));
    asm(&text, &[("=h", bits(D))], &[("h", bits(A)), ("h", bits(B))])
}

/// Which functions memory itself folds by.
fn red_name(op: Binary) -> Option<&'static str> {
    match op {
        Binary::Add => Some("add"),
        Binary::Max => Some("max"),
        Binary::Min => Some("min"),
        Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::MaxNan
        | Binary::MinNan
        | Binary::Pow
        | Binary::Rem
        | Binary::Less
        | Binary::AtMost
        | Binary::Equal
        | Binary::Unequal => None,
    }
}

fn packed(text: &str, out: &str, code: &dyn Code, ins: &[usize]) -> String {
    let ins: Vec<_> = ins.iter().map(|&operand| ("r", code.word(operand, &[0]))).collect();
    asm(text, &[(out, code.word(D, &[0]))], &ins)
}
