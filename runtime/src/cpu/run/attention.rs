//! Attention, in place: operands, mask and result through their views.

use super::{input_number, required_input};
use crate::bind::BoundOperand;
use crate::cpu::kernels::attention::{Mask, Scores, Sizes, View, ViewMut, attention};
use crate::cpu::kernels::real::Real;
use crate::cpu::memory::Io;
use crate::error::{Error, Result};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::AttentionAttrs;
use graphene_fusion::program::Step;
use half::{bf16, f16};

pub(crate) fn run_attention(step: &Step, io: Io<'_>, attrs: &AttentionAttrs) -> Result<()> {
    match io.outputs[0].dtype {
        DType::F16 => run::<f16>(step, io, attrs),
        DType::BF16 => run::<bf16>(step, io, attrs),
        _ => run::<f32>(step, io, attrs),
    }
}

fn run<T: Real + Pod>(step: &Step, mut io: Io<'_>, attrs: &AttentionAttrs) -> Result<()> {
    let operand = |place| {
        let (bytes, operand, _) = io.input(required_input(step, place)?)?;
        Ok::<_, Error>((view::<T>(bytes, operand)?, four(&operand.shape)?))
    };
    let ((q, q_shape), (k, k_shape), (v, v_shape)) = (operand(0)?, operand(1)?, operand(2)?);
    let [batch, heads, queries, depth] = q_shape;
    let [_, groups, keys, _] = k_shape;
    let value_depth = v_shape[3];
    for (what, shape, expected) in [
        ("shape of attention's keys", k_shape, [batch, groups, keys, depth]),
        ("shape of attention's values", v_shape, [batch, groups, keys, value_depth]),
        (
            "shape of attention",
            four(&io.outputs[0].operand.shape)?,
            [batch, heads, queries, value_depth],
        ),
    ] {
        for (found, expected) in shape.into_iter().zip(expected) {
            if found != expected {
                return Err(Error::Mismatch { what, expected, found });
            }
        }
    }
    let mask = match input_number(step, 3)? {
        None => None,
        Some(number) => Some(mask(&io, number, [batch, heads, queries, keys], attrs.fill)?),
    };
    let &AttentionAttrs { scale, causal, softcap, guarded, fill: _ } = attrs;
    let scores = Scores { scale, softcap, causal, mask, guarded };
    let sizes = Sizes { batch, heads, groups, queries, keys, depth, value_depth };
    let output = &mut io.outputs[0];
    let (offset, strides) = (output.operand.offset, strides(output.operand)?);
    let y = ViewMut { data: cast_slice_mut(output.bytes), offset, strides };
    attention(y, sizes, q, k, v, scores)
}

fn view<'a, T: Pod>(bytes: &'a [u8], operand: &BoundOperand) -> Result<View<'a, T>> {
    Ok(View { data: cast_slice(bytes), offset: operand.offset, strides: strides(operand)? })
}

fn strides(operand: &BoundOperand) -> Result<[isize; 4]> {
    let found = operand.strides.len();
    let strides = operand.strides.as_slice().try_into();
    strides.map_err(|_| Error::Mismatch { what: "rank of attention", expected: 4, found })
}

fn four(shape: &[usize]) -> Result<[usize; 4]> {
    let found = shape.len();
    shape.try_into().map_err(|_| Error::Mismatch { what: "rank of attention", expected: 4, found })
}

/// A mask seen under the shape of the scores.
fn mask<'a>(io: &Io<'a>, number: usize, scores: [usize; 4], fill: f32) -> Result<Mask<'a>> {
    let (bytes, operand, dtype) = io.input(number)?;
    let (offset, strides) = (operand.offset, broadcast(operand, scores)?);
    Ok(match dtype {
        DType::Bool => match (View { data: bytes, offset, strides }) {
            mask if fill == f32::NEG_INFINITY => Mask::Bool(mask),
            mask => Mask::Filled(mask, fill),
        },
        DType::F16 => Mask::F16(View { data: cast_slice(bytes), offset, strides }),
        DType::BF16 => Mask::BF16(View { data: cast_slice(bytes), offset, strides }),
        _ => Mask::F32(View { data: cast_slice(bytes), offset, strides }),
    })
}

/// The strides of a mask under the shape that it broadcasts to.
fn broadcast(mask: &BoundOperand, to: [usize; 4]) -> Result<[isize; 4]> {
    let what = "shape of attention's mask";
    let missing = 4_usize.checked_sub(mask.shape.len());
    let missing = missing.ok_or(Error::Mismatch { what, expected: 4, found: mask.shape.len() })?;
    let mut strides = [0; 4];
    for (axis, (&found, &stride)) in mask.shape.iter().zip(&mask.strides).enumerate() {
        let expected = to[missing + axis];
        if found == expected {
            strides[missing + axis] = stride;
        } else if found != 1 {
            return Err(Error::Mismatch { what, expected, found });
        }
    }
    Ok(strides)
}
