//! Registers as products have them, and small shapes.

use crate::build::Builder;
use crate::error::Result;
use crate::kernel::{Kind, Number, Operand, TensorId, ThreadsId};
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// Registers of an accumulator, or of operands, as products have them: of two rows eight apart, two
/// neighbouring columns of each eight.
pub(super) fn fragment(
    k: &mut Builder,
    name: &str,
    columns: i64,
    scalar: Scalar,
) -> Result<TensorId> {
    let view = View::levels_of(&[vec![leaf(2, 2), leaf(columns / 8, 4)], vec![leaf(2, 1)]]);
    k.allocate(name, view, scalar, Memory::Registers, None)
}

/// All zeros.
pub(super) fn clear(k: &mut Builder, acc: TensorId, columns: i64, one: ThreadsId) -> Result<()> {
    k.for_("j", 0..columns / 8, 1, true, |k, j| {
        k.for_("half", 0..2, 1, true, |k, half| {
            let pair = k.index(acc, "pair", [half, j])?;
            k.for_("p", 0..2, 1, true, |k, p| {
                k.spec(Kind::Init(Number(0.0)), Operand::at(pair, [p]), (), one)
            })
        })
    })
}

/// Weights become the left operand of their product with the values: fragments of accumulators are
/// fragments of operands.
pub(super) fn pack(
    k: &mut Builder,
    from: TensorId,
    to: TensorId,
    columns: i64,
    one: ThreadsId,
) -> Result<()> {
    k.for_("j", 0..columns / 8, 1, true, |k, j| {
        k.for_("half", 0..2, 1, true, |k, half| {
            let (to, from) = (Operand::at(to, [half, j]), Operand::at(from, [half, j]));
            k.spec(Kind::Move, to, from, one)
        })
    })
}
