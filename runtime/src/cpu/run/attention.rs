//! Attention.

use super::wide::Wide;
use super::{Io, input_number, required_input};
use crate::bind::BoundOperand;
use crate::cpu::kernels::attention::{Mask, Scores, Sizes, View, attention};
use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::AttentionAttrs;
use graphene_fusion::program::Step;

pub(crate) fn run_attention(step: &Step, mut io: Io<'_>, attrs: &AttentionAttrs) -> Result<()> {
    let operand = |place| {
        let (elements, shape) = io.reals(required_input(step, place)?)?;
        Ok::<_, Error>((elements, four(shape)?))
    };
    let ((q, q_shape), (k, k_shape), (v, v_shape)) = (operand(0)?, operand(1)?, operand(2)?);
    let [batch, heads, queries, depth] = q_shape;
    let [_, groups, keys, _] = k_shape;
    let value_depth = v_shape[3];
    let scores_shape = [batch, heads, queries, keys];
    for (what, shape, expected) in [
        ("shape of attention's keys", k_shape, [batch, groups, keys, depth]),
        ("shape of attention's values", v_shape, [batch, groups, keys, value_depth]),
    ] {
        for (found, expected) in shape.into_iter().zip(expected) {
            if found != expected {
                return Err(Error::Mismatch { what, expected, found });
            }
        }
    }
    let mask = match input_number(step, 3)? {
        None => None,
        Some(number) => {
            let (_, operand, dtype) = io.input(number)?;
            let strides = broadcast(operand, scores_shape)?;
            Some(match dtype {
                DType::Bool => (None, Some(io.dense::<u8>(number)?.0), strides),
                _ => (Some(io.reals(number)?.0), None, strides),
            })
        }
    };
    let mask = mask.as_ref().and_then(|(floats, bools, strides)| {
        let float = floats.as_deref();
        let float = float.map(|data| Mask::Float(View { data, offset: 0, strides: *strides }));
        float.or(bools.map(|data| Mask::Bool(View { data, offset: 0, strides: *strides })))
    });
    let &AttentionAttrs { scale, causal, softcap, guarded } = attrs;
    let scores = Scores { scale, softcap, causal, mask, guarded };
    let sizes = Sizes { batch, heads, groups, queries, keys, depth, value_depth };
    let mut y = Wide::new(&mut io.outputs[0])?;
    attention(
        y.elements(),
        sizes,
        dense(&q, q_shape),
        dense(&k, k_shape),
        dense(&v, v_shape),
        scores,
    )?;
    y.finish();
    Ok(())
}

fn four(shape: &[usize]) -> Result<[usize; 4]> {
    let found = shape.len();
    shape.try_into().map_err(|_| Error::Mismatch { what: "rank of attention", expected: 4, found })
}

fn dense(data: &[f32], shape: [usize; 4]) -> View<'_, f32> {
    let mut strides = [1; 4];
    for axis in (1..4).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as isize;
    }
    View { data, offset: 0, strides }
}

/// The strides of a row-major mask seen under the shape of the scores.
fn broadcast(mask: &BoundOperand, to: [usize; 4]) -> Result<[isize; 4]> {
    let what = "shape of attention's mask";
    let missing = 4_usize.checked_sub(mask.shape.len());
    let missing = missing.ok_or(Error::Mismatch { what, expected: 4, found: mask.shape.len() })?;
    let (mut strides, mut stride) = ([0; 4], 1);
    for (axis, &found) in mask.shape.iter().enumerate().rev() {
        let expected = to[missing + axis];
        if found != 1 && found != expected {
            return Err(Error::Mismatch { what, expected, found });
        }
        if found != 1 {
            strides[missing + axis] = stride;
        }
        stride *= found as isize;
    }
    Ok(strides)
}
