//! onnxruntime's fused operators, as its documentation of contributed operators describes them.

use super::attention::{Heads, Mask, default_scale, frontier, merge_heads, rotary, split_heads};
use super::helpers::Outputs;
use super::quant::{centered, scaled_matmul};
use super::{Row, microsoft};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{AttentionAttrs, Binary, Op, ReduceOp, Unary};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    microsoft("Attention", 1, attention),
    microsoft("QAttention", 1, quantized_attention),
    microsoft("MultiHeadAttention", 1, multi_head_attention),
    microsoft("SkipLayerNormalization", 1, |c| skip_norm(c, false)),
    microsoft("SkipSimplifiedLayerNormalization", 1, |c| skip_norm(c, true)),
    microsoft("EmbedLayerNormalization", 1, |c| {
        let y = embed_layer_norm(c, c.optional(8), |_, v, _| Ok(v))?;
        Ok(y.to_vec())
    }),
    microsoft("QEmbedLayerNormalization", 1, quantized_embed_layer_norm),
    microsoft("Gelu", 1, |c| biased(c, Unary::Gelu)),
    microsoft("BiasGelu", 1, |c| biased(c, Unary::Gelu)),
    microsoft("FastGelu", 1, |c| biased(c, Unary::GeluTanh)),
    microsoft("QuickGelu", 1, |c| c.map(Unary::Swish { alpha: c.float_or("alpha", 1.702) })),
    microsoft("RotaryEmbedding", 1, rotary_embedding),
];

/// A function of `x`, or of `x + bias` where there is a bias.
fn biased(c: &mut Context<'_, '_>, unary: Unary) -> Outputs {
    let mut x = c.input(0)?;
    if let Some(bias) = c.optional(1) {
        x = c.plus(x, bias)?;
    }
    Ok(vec![c.unary(unary, x)?])
}

/// The norm of the sum of the input, the skip connection and a bias; that sum is the last output.
fn skip_norm(c: &mut Context<'_, '_>, simplified: bool) -> Outputs {
    let (x, skip, gamma) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (beta, bias) =
        if simplified { (None, c.optional(3)) } else { (c.optional(3), c.optional(4)) };
    if c.wants_output(1) || c.wants_output(2) {
        return Err(c.unsupported("the statistics as outputs"));
    }
    let mut sum = c.plus(x, skip)?;
    if let Some(bias) = bias {
        sum = c.plus(sum, bias)?;
    }
    let axis = last_axis(c, sum)?;
    let epsilon = c.float_or("epsilon", if simplified { 1e-6 } else { 1e-12 });
    let inputs = [Some(sum), Some(gamma), beta];
    let y = if simplified {
        c.add(Op::RmsNorm { axis, epsilon }, &[sum, gamma])?
    } else {
        c.add_optional(Op::LayerNorm { axis, epsilon }, &inputs)?[0]
    };
    Ok(vec![y, sum, sum, sum])
}

fn last_axis(c: &Context<'_, '_>, x: ValueId) -> Result<usize, OpError> {
    c.rank(x).checked_sub(1).ok_or_else(|| c.invalid("an input has no dims"))
}

/// Word, position and segment embeddings added and normalised; the number of valid tokens of each row; the sum.
/// `decoded` makes floats of what input `i` holds.
fn embed_layer_norm(
    c: &mut Context<'_, '_>,
    positions: Option<ValueId>,
    decoded: impl Fn(&mut Context<'_, '_>, ValueId, usize) -> Result<ValueId, OpError>,
) -> Result<[ValueId; 3], OpError> {
    let ids = c.input(0)?;
    let (word_table, position_table) = (c.input(2)?, c.input(3)?);
    let (gamma, beta, mask) = (c.input(5)?, c.input(6)?, c.optional(7));
    let shape = c.shape(ids);
    let [batch, sequence] = shape.as_slice() else {
        return Err(c.invalid("token ids must have a batch and a sequence"));
    };
    let positions = match positions {
        Some(positions) => positions,
        None => c.iota(sequence.clone(), 0, 1)?,
    };
    let words = c.add(Op::Gather { axis: 0 }, &[word_table, ids])?;
    let words = decoded(c, words, 2)?;
    let places = c.add(Op::Gather { axis: 0 }, &[position_table, positions])?;
    let places = decoded(c, places, 3)?;
    let mut sum = c.plus(words, places)?;
    if let (Some(segments), Some(table)) = (c.optional(1), c.optional(4)) {
        let segments = c.add(Op::Gather { axis: 0 }, &[table, segments])?;
        let segments = decoded(c, segments, 4)?;
        sum = c.plus(sum, segments)?;
    }
    let axis = last_axis(c, sum)?;
    let op = Op::LayerNorm { axis, epsilon: c.float_or("epsilon", 1e-12) };
    let (gamma, beta) = (decoded(c, gamma, 5)?, decoded(c, beta, 6)?);
    let y = c.add_optional(op, &[Some(sum), Some(gamma), Some(beta)])?[0];
    let count = match mask {
        Some(mask) => {
            let mask = c.cast_to(mask, DType::I32)?;
            c.reduce(ReduceOp::Sum, mask, vec![1], false)?
        }
        None => {
            let zero = c.scalar(DType::I32, 0.0)?;
            c.expand(zero, vec![batch.clone()])?
        }
    };
    Ok([y, count, sum])
}

/// The same with tables and weights as integers: after the mask, inputs 8 to 12 are their scales, 13 to 17 their zero
/// points.
fn quantized_embed_layer_norm(c: &mut Context<'_, '_>) -> Outputs {
    const FIRST: usize = 2;
    let decoded = |c: &mut Context<'_, '_>, v: ValueId, i: usize| {
        // Words, positions, segments, gamma, beta.
        let scale = c.input(8 + i - FIRST)?;
        let zero_point = c.input(13 + i - FIRST)?;
        let zero_point = c.reshape(zero_point, Vec::new())?;
        let whole = centered(c, v, Some(zero_point), 1)?;
        let whole = c.cast(whole, DType::F32)?;
        let scale = c.reshape(scale, Vec::new())?;
        c.times(whole, scale)
    };
    let [y, count, _] = embed_layer_norm(c, None, decoded)?;
    Ok(vec![y, count])
}

fn rotary_embedding(c: &mut Context<'_, '_>) -> Outputs {
    let (x, mut positions, cos, sin) = (c.input(0)?, c.input(1)?, c.input(2)?, c.input(3)?);
    if c.float_or("scale", 1.0) != 1.0 || c.int_or("is_packed_batching", 0) != 0 {
        return Err(c.unsupported("`scale` and `is_packed_batching`"));
    }
    let shape = c.shape(x);
    let sequence_axis = match shape.len() {
        3 => 1,
        4 => 2,
        _ => return Err(c.invalid("the input must have 3 or 4 dims")),
    };
    if c.rank(positions) < 2 {
        // One number is the position of the first token.
        let (batch, sequence) = (shape[0].clone(), shape[sequence_axis].clone());
        let steps = c.iota(sequence.clone(), 0, 1)?;
        let offset = c.cast_to(positions, DType::I64)?;
        let row = c.plus(steps, offset)?;
        positions = c.expand(row, vec![batch, sequence])?;
    }
    if shape.len() == 3 && c.int_or("num_heads", 0) == 0 {
        // The caches tell the size of a head.
        let half = c.known_size(cos, 1)?;
        let heads = c.known_size(x, 2)? / (2 * half).max(1);
        let split = split_heads(c, x, heads)?;
        let y = rotary(c, split, cos, sin, Some(positions))?;
        return Ok(vec![merge_heads(c, y)?]);
    }
    Ok(vec![rotary(c, x, cos, sin, Some(positions))?])
}

/// Attention from one packed projection of the input.
fn attention(c: &mut Context<'_, '_>) -> Outputs {
    let (x, weights) = (c.input(0)?, c.input(1)?);
    if c.int_or("do_rotary", 0) != 0 || c.int_or("past_present_share_buffer", 0) != 0 {
        return Err(c.unsupported("rotary embeddings and shared buffers within attention"));
    }
    let mut packed = c.mat_mul(x, weights)?;
    if let Some(bias) = c.optional(2) {
        packed = c.plus(packed, bias)?;
    }
    packed_attention(c, packed, c.optional(4), c.optional(3), c.optional(5))
}

/// The same with an input and weights of integers: input 3 is the scale of one, 4 of the other, 6 and 7 their zero
/// points.
fn quantized_attention(c: &mut Context<'_, '_>) -> Outputs {
    if c.int_or("do_rotary", 0) != 0 {
        return Err(c.unsupported("`do_rotary`: export RotaryEmbedding before the attention"));
    }
    if c.int_or("past_present_share_buffer", 0) != 0 {
        return Err(c.unsupported("`past_present_share_buffer`: export a past of its own"));
    }
    let (operands, scales) = ([c.input(0)?, c.input(1)?], [c.input(3)?, c.input(4)?]);
    let (zeros, bias) = ([c.optional(6), c.optional(7)], c.input(2)?);
    let packed = scaled_matmul(c, operands, zeros, scales, Some(bias))?;
    packed_attention(c, packed, c.optional(8), c.optional(5), None)
}

/// Attention from queries, keys and values side by side: `[b, s, q + k + v]`.
fn packed_attention(
    c: &mut Context<'_, '_>,
    packed: ValueId,
    past: Option<ValueId>,
    mask: Option<ValueId>,
    bias: Option<ValueId>,
) -> Outputs {
    let heads = heads(c)?;
    let width = c.known_size(packed, 2)?;
    let widths = match c.ints("qkv_hidden_sizes") {
        Some(&[q, k, v]) => [q, k, v],
        Some(_) => return Err(c.invalid("`qkv_hidden_sizes` must be three numbers")),
        None => [width / 3; 3],
    };
    let total = widths.iter().try_fold(0_i64, |total, &width| total.checked_add(width));
    if widths.iter().any(|&width| width <= 0) || total != Some(width) {
        return Err(c.invalid("the weights do not fit queries, keys and values"));
    }
    let mut parts = Vec::with_capacity(3);
    let mut start = 0;
    for width in widths {
        let part = c.narrow(packed, 2, Dim::from(start), Dim::from(width))?;
        parts.push(split_heads(c, part, heads)?);
        start += width;
    }
    let past = match past {
        Some(past) => {
            let mut halves = [past; 2];
            for (i, half) in halves.iter_mut().enumerate() {
                let one = c.narrow(past, 0, Dim::from(i), Dim::from(1))?;
                *half = c.squeeze(one, 0)?;
            }
            Some(halves)
        }
        None => None,
    };
    let (y, [k, v]) = attend(c, [parts[0], parts[1], parts[2]], past, mask, bias)?;
    if !c.wants_output(1) {
        return Ok(vec![y]);
    }
    let (k, v) = (c.unsqueeze(k, &[0])?, c.unsqueeze(v, &[0])?);
    Ok(vec![y, c.concat(0, &[k, v])?])
}

fn heads(c: &Context<'_, '_>) -> Result<i64, OpError> {
    let heads = c.int("num_heads").filter(|&heads| heads > 0);
    heads.ok_or_else(|| c.invalid("`num_heads` must be positive"))
}

/// Attention from queries, keys and values of their own, packed in one way or another.
fn multi_head_attention(c: &mut Context<'_, '_>) -> Outputs {
    let heads = heads(c)?;
    if c.optional(8).is_some() || c.wants_output(3) {
        return Err(c.unsupported("shared buffers, and the scores of queries and keys as output"));
    }
    let query = c.input(0)?;
    let (key, value) = (c.optional(1), c.optional(2));
    let bias = c.optional(3);
    // Of several tensors packed along dim 3 of `[b, s, h, n, d]`, one as `[b, h, s, d]`.
    let unpacked = |c: &mut Context<'_, '_>, packed: ValueId, i: usize| {
        let one = c.narrow(packed, 3, Dim::from(i), Dim::from(1))?;
        let one = c.squeeze(one, 3)?;
        c.transpose(one, vec![0, 2, 1, 3])
    };
    let mut parts = match (key, value) {
        (None, None) if c.rank(query) == 5 => {
            [unpacked(c, query, 0)?, unpacked(c, query, 1)?, unpacked(c, query, 2)?]
        }
        (Some(key), None) if c.rank(key) == 5 => {
            [split_heads(c, query, heads)?, unpacked(c, key, 0)?, unpacked(c, key, 1)?]
        }
        (Some(key), Some(value)) => {
            let query = split_heads(c, query, heads)?;
            let split = |c: &mut Context<'_, '_>, x: ValueId| match c.rank(x) {
                4 => Ok(x),
                _ => split_heads(c, x, heads),
            };
            [query, split(c, key)?, split(c, value)?]
        }
        _ => return Err(c.invalid("keys and values must be given, or packed with the queries")),
    };
    if let Some(bias) = bias {
        let mut start = Dim::from(0);
        for part in &mut parts {
            let shape = c.shape(*part);
            let width = &shape[1] * &shape[3];
            let own = c.narrow(bias, 0, start.clone(), width.clone())?;
            let own = c.reshape(own, vec![shape[1].clone(), Dim::from(1), shape[3].clone()])?;
            *part = c.plus(*part, own)?;
            start = start + width;
        }
    }
    let past = c.optional(6).zip(c.optional(7)).map(|(key, value)| [key, value]);
    let (y, [k, v]) = attend(c, parts, past, c.optional(4), c.optional(5))?;
    Ok(vec![y, k, v])
}

/// Attention of heads `[b,h,s,d]` with what both operators have: a past, a mask, a bias of the scores. The
/// result is `[b, s, h·e]`; keys and values with their past come along.
fn attend(
    c: &mut Context<'_, '_>,
    [q, mut k, mut v]: [ValueId; 3],
    past: Option<[ValueId; 2]>,
    mask: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<(ValueId, [ValueId; 2]), OpError> {
    let mut before = Dim::from(0);
    if let Some([key, value]) = past {
        before = c.shape(key).get(2).cloned().unwrap_or(before);
        k = c.concat(2, &[key, k])?;
        v = c.concat(2, &[value, v])?;
    }
    let scale = match c.float("scale") {
        Some(scale) if scale != 0.0 => scale,
        _ => default_scale(c, q)?,
    };
    let heads = Heads { q, k, v, scale, softcap: 0.0 };
    let causal = c.int_or("unidirectional", 0) != 0;
    let mut bias = bias;
    let allowed = mask.map(|mask| valid_keys(c, &heads, mask)).transpose()?;
    if let Some(allowed) = allowed {
        // A masked score is lowered by a finite amount, not removed.
        let dtype = c.dtype(q);
        let lowered = f64::from(c.float_or("mask_filter_value", -10000.0));
        let (zero, lowered) = (c.scalar(dtype, 0.0)?, c.scalar(dtype, lowered)?);
        let added = c.select(allowed, zero, lowered)?;
        bias = Some(match bias {
            Some(bias) => c.plus(bias, added)?,
            None => added,
        });
    }
    let mut masks = Mask { bias, allowed: None };
    let shifted = causal && before != 0;
    if shifted {
        let allowed = frontier(c, &heads, None, before, [-1, 0])?;
        masks.restrict(c, allowed)?;
    }
    let joined = masks.joined(c)?;
    let attrs = AttentionAttrs {
        scale,
        causal: causal && !shifted,
        softcap: 0.0,
        guarded: false,
        fill: f32::NEG_INFINITY,
    };
    let y = c.add_optional(Op::Attention(attrs), &[Some(q), Some(k), Some(v), joined])?[0];
    Ok((merge_heads(c, y)?, [k, v]))
}

/// Which keys are no padding, as bool that broadcasts to `[b,h,s,t]`. The mask has a number a key, `[b,t]` or
/// `[b,s,t]`; or gives the number of keys of each row, `[b]`; or that, then where each row starts, `[2·b]`.
fn valid_keys(c: &mut Context<'_, '_>, heads: &Heads, mask: ValueId) -> Result<ValueId, OpError> {
    let shape = c.shape(mask);
    let (batch, keys) = (c.shape(heads.k)[0].clone(), c.shape(heads.k)[2].clone());
    let one = Dim::from(1);
    let zero = c.scalar_like(mask, 0.0)?;
    match shape.as_slice() {
        [length] => {
            let places = c.iota(keys, 3, 4)?;
            let row = vec![batch.clone(), one.clone(), one.clone(), one];
            let ends = c.narrow(mask, 0, Dim::from(0), batch.clone())?;
            let ends = c.reshape(ends, row.clone())?;
            let ends = c.cast_to(ends, DType::I64)?;
            let inside = c.binary(Binary::Less, places, ends)?;
            if *length == batch {
                return Ok(inside);
            }
            let twice = &batch * &Dim::from(2);
            if *length != twice && length.known().and(twice.known()).is_none() {
                return Err(c.unknown_dim(&(length - &twice)));
            }
            if *length != twice {
                return Err(c.unsupported("a mask of cumulated lengths"));
            }
            let starts = c.narrow(mask, 0, batch.clone(), batch)?;
            let starts = c.reshape(starts, row)?;
            let starts = c.cast_to(starts, DType::I64)?;
            let begun = c.binary(Binary::GreaterOrEqual, places, starts)?;
            c.binary(Binary::And, inside, begun)
        }
        [batch, keys] => {
            let wide = c.reshape(mask, vec![batch.clone(), one.clone(), one, keys.clone()])?;
            c.binary(Binary::Greater, wide, zero)
        }
        [_, _, _] => {
            let wide = c.unsqueeze(mask, &[1])?;
            c.binary(Binary::Greater, wide, zero)
        }
        _ => Err(c.unsupported("a mask of this rank")),
    }
}
