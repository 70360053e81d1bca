//! Arithmetic on registers: multiply-adds, functions of elements, folds, exchanges, constants.

use super::function::{binary_text, float_text, unary_text, whole_binary_text, whole_unary_text};
use super::moves::{each, same};
use super::{A, Atom, B, C, Code, D, Fault, Progress, Site, Step, Text, Warp, asm::asm, given};
use crate::{Binary, Kind, Number, Scalar, Unary, emit::Prelude};

/// Registers hold what they hold wherever it lies; only pairs of 16 bits must share one, which
/// `[2:1]` and the emitter's alignment of arrays see to.
#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    row("fma.f32", "[].fp32.RF <- MatMul+=<<<[]>>>([].fp32.RF, [].fp32.RF)", |_, c| fma("__fmaf_rn", c)),
    // As integers of 32 bits wrap (PTX, `mad.lo.s32`).
    row("mad.s32", "[].i32.RF <- MatMul+=<<<[]>>>([].i32.RF, [].i32.RF)", |_, c| {
        let [d, a, b] = [D, A, B].map(|operand| format!("(unsigned)({})", element(c, operand)));
        set(c, &format!("(int)({d} + {a} * {b})"))
    }),
    row("hfma", "[].fp16.RF <- MatMul+=<<<[]>>>([].fp16.RF, [].fp16.RF)", |_, c| fma(c.prelude(Prelude::Hfma), c)),
    row("hfma.global", "[].fp16.GL <- MatMul+=<<<[]>>>([].fp16.GL, [].fp16.GL)", |_, c| fma(c.prelude(Prelude::Hfma), c)),
    row("hfma2", "[2:1].fp16.RF <- MatMul+=<<<[]>>>([2:1].fp16.RF, [2:1].fp16.RF)",
        |_, c| {
            let [d, a, b] = [D, A, B].map(|operand| c.word(operand, &[0]));
            asm("fma.rn.f16x2 %0, %1, %2, %0;", &[("+r", d)], &[("r", a), ("r", b)])
        }),
    row("unary.f32", "[].fp32.RF <- UnaryPointwise<<<[]>>>([].fp32.RF)",
        |s, c| set(c, &unary_text(unary_of(s), &element(c, A)))),
    row("binary.f32", "[].fp32.RF <- BinaryPointwise<<<[]>>>([].fp32.RF, [].fp32.RF)",
        |s, c| set(c, &binary_text(binary_of(s), &element(c, A), &element(c, B)))),
    row("select", "[].fp32|i64.RF <- Select<<<[]>>>([].fp32|i64.RF, [].fp32|i64.RF, [].fp32|i64.RF)",
        |_, c| set(c, &format!("{} != 0 ? {} : {}", element(c, A), element(c, B), element(c, C)))),
    row("unary.i64", "[].i64.RF <- UnaryPointwise<<<[]>>>([].i64.RF)",
        |s, c| set(c, &whole_unary_text(unary_of(s), &element(c, A)).unwrap_or_default()))
        .when(|s| given(whole_unary_text(unary_of(s), "").is_some(), "integers have no such function")),
    row("binary.i64", "[].i64.RF <- BinaryPointwise<<<[]>>>([].i64.RF, [].i64.RF)",
        |s, c| set(c, &whole_binary_text(binary_of(s), &element(c, A), &element(c, B)).unwrap_or_default()))
        .when(|s| given(whole_binary_text(binary_of(s), "", "").is_some(), "integers have no such function")),
    row("fold.f32", "[].fp32.RF <- Reduction<<<[]>>>([].fp32.RF)",
        |s, c| set(c, &binary_text(binary_of(s), &element(c, D), &element(c, A)))),
    Atom::new("shfl.sync.bfly", "[].*.RF <- Shfl<<<[threads]>>>([].*.RF)", shuffle, |s, c| {
            let Kind::Shfl(bits) = s.spec.kind else { return String::new() };
            let text = format!("shfl.sync.bfly.b32 %0, %1, {bits}, 0x1f, 0xffffffff;");
            asm(&text, &[("=r", c.word(D, &[]))], &[("r", c.word(A, &[]))])
        })
        .when(|s| {
            given(s.operand(A).scalar.bytes() == 4 && same(s).is_ok(), "it exchanges words of 32 bits")?;
            let view = &s.kernel.threads(s.spec.threads).view;
            let among = |size: &i64| matches!(s.spec.kind, Kind::Shfl(bits) if (1..*size).contains(&bits));
            let aligned = |size: &i64| view.offset().terms().all(|(_, by)| by % size == 0);
            let fits = view.extent().filter(among).filter(aligned);
            given(fits.is_some_and(|size| [2, 4, 8, 16, 32].contains(&size)),
                "it exchanges among 2 to 32 neighbours, a power of two")
        }),
    row("mov.constant", "[].*.RF <- Init<<<[]>>>()", |s, c| {
        let Kind::Init(Number(number)) = s.spec.kind else { return String::new() };
        let scalar = s.operand(D).scalar;
        let value = if scalar.is_float() { float_text(number) } else { number.to_string() };
        set(c, &format!("({})({value})", scalar.c_name()))
    }),
    row("mov.index", "[].fp32|i32|i64|u32.RF <- Index<<<[]>>>()", |s, c| {
        let Kind::Index(expr) = &s.spec.kind else { return String::new() };
        set(c, &format!("({})({})", s.operand(D).scalar.c_name(), c.expr(expr)))
    }),
];

const fn row(name: &'static str, pattern: &'static str, cuda: Text) -> Atom {
    Atom::new(name, pattern, compute, cuda)
}

/// What each lane's elements become.
fn compute(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let scalar = site.operand(D).scalar;
    each(site, warp, |warp, lane, at| {
        let mut read = |operand| warp.read((lane, operand, at));
        let value = match &site.spec.kind {
            // Rounded once: fp16 numbers multiply exactly in double precision; single precision is rounded by its own
            // fused operation.
            Kind::MatMul { .. } => {
                let (a, b, d) = (read(A)?, read(B)?, read(D)?);
                match scalar {
                    Scalar::F32 => f64::from((a as f32).mul_add(b as f32, d as f32)),
                    Scalar::I32 => {
                        let [a, b, d] = [a, b, d].map(|number| number as i32);
                        f64::from(a.wrapping_mul(b).wrapping_add(d))
                    }
                    _ => a.mul_add(b, d),
                }
            }
            Kind::Unary(op) => op.value(read(A)?),
            Kind::Binary(op) => op.value(read(A)?, read(B)?),
            Kind::Select => {
                let (holds, yes, no) = (read(A)? != 0.0, read(B)?, read(C)?);
                if holds { yes } else { no }
            }
            Kind::Reduction(op) => op.value(read(D)?, read(A)?),
            Kind::Init(Number(value)) => *value,
            Kind::Index(expr) => warp.value(lane, expr) as f64,
            kind => unreachable!("no pattern here asks for {kind}"),
        };
        warp.write((lane, D, at), value)
    })
}

fn shuffle(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let Kind::Shfl(bits) = site.spec.kind else { return Ok(Progress::Done) };
    let lanes = warp.lanes();
    if lanes.len() < 32 {
        return Err(Fault::Divergence("lanes of the warp are absent".to_owned()));
    }
    let mut values = [0.0; 32];
    for &lane in &lanes {
        values[lane] = warp.read((lane, A, &[]))?;
    }
    for lane in lanes {
        warp.write((lane, D, &[]), values[(lane ^ bits as usize) & 31])?;
    }
    Ok(Progress::Done)
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

fn element(code: &Code<'_>, operand: usize) -> String {
    code.element(operand, &[])
}

fn set(code: &Code<'_>, value: &str) -> String {
    format!("{} = {value};", element(code, D))
}

fn fma(name: &str, code: &Code<'_>) -> String {
    let [d, a, b] = [D, A, B].map(|operand| element(code, operand));
    set(code, &format!("{name}({a}, {b}, {d})"))
}
