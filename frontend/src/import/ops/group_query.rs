//! onnxruntime's attention with a cache, in which several heads of queries share one of keys and values.

use super::attention::{default_scale, lengthened, merge_heads, split_heads, turn};
use super::helpers::Outputs;
use super::{Row, microsoft};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::infer::InferError;
use crate::op::{AttentionAttrs, Binary, Combine, Op, PadMode};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[microsoft("GroupQueryAttention", 1, group_query_attention)];

/// The axis of tokens in `[b, h, s, d]`.
const TOKENS: usize = 2;

/// New keys and values are written into each sample's cache behind what it holds, and the queries attend all of it. The
/// cache has room for the longest sample, or more; what stands behind a sample's tokens means nothing.
///
/// Positions of tokens are taken as given; onnxruntime's CPU reads only the first of a prompt and counts on from there.
fn group_query_attention(c: &mut Context<'_, '_>) -> Outputs {
    refuse(c)?;
    let [q, k, v] = operands(c)?;
    let past = match (c.optional(3), c.optional(4)) {
        (Some(keys), Some(values)) if c.rank(keys) == 4 && c.rank(values) == 4 => {
            Some([keys, values]).filter(|_| c.shape(keys)[TOKENS] != 0)
        }
        (Some(_), Some(_)) => return Err(c.invalid("`past_key` and `past_value` must have 4 dims")),
        (None, None) => None,
        _ => return Err(c.invalid("`past_key` and `past_value` must both be given, or neither")),
    };
    let held = if past.is_some() { Some(held(c, q)?) } else { None };
    let (q, k) = if c.int_or("do_rotary", 0) != 0 { turned(c, q, k, held)? } else { (q, k) };
    let (k, v) = match past.zip(held) {
        Some(([keys, values], held)) => {
            let total = c.input(6)?;
            let total = c.dim(total)?;
            (written(c, keys, k, held, &total)?, written(c, values, v, held, &total)?)
        }
        None => (k, v),
    };
    let y = attend(c, [q, k, v], held)?;
    Ok(vec![merge_heads(c, y)?, k, v])
}

/// Refuses options by name.
fn refuse(c: &Context<'_, '_>) -> Result<(), OpError> {
    let quantized = ["k_quant_type", "v_quant_type"];
    let quantized = quantized.iter().any(|name| c.string(name).is_some_and(|kind| kind != "NONE"))
        || c.int_or("kv_cache_bit_width", 0) != 0
        || c.optional(12).or(c.optional(13)).is_some();
    let rows = [
        (quantized, "a quantised cache (`k_scale`, `k_quant_type`): export one of floats"),
        (
            c.optional(14).or(c.optional(15)).is_some(),
            "norms within attention (`q_norm_weight`): export SimplifiedLayerNormalization before it",
        ),
        (c.optional(16).is_some(), "`query_seqlens`: give prompts without padding, one by one"),
        (
            c.int_or("sliding_window_cache", 0) != 0,
            "`sliding_window_cache`: export a cache of the whole sequence",
        ),
        (
            c.wants_output(3) || c.int_or("qk_output", 0) != 0,
            "scores as an output (`qk_output`): leave `output_qk` out",
        ),
    ];
    match rows.into_iter().find(|(asked, _)| *asked) {
        Some((_, why)) => Err(c.unsupported(why)),
        None => Ok(()),
    }
}

/// Queries `[b,h,s,d]`, keys and values `[b,g,s,d]`, from three inputs or one.
fn operands(c: &mut Context<'_, '_>) -> Result<[ValueId; 3], OpError> {
    let count = |name: &str| {
        let heads = c.int(name).filter(|heads| (1..=1 << 20).contains(heads));
        heads.ok_or_else(|| c.invalid(format!("`{name}` must be positive")))
    };
    let (heads, groups) = (count("num_heads")?, count("kv_num_heads")?);
    if heads % groups != 0 {
        return Err(c.invalid("`kv_num_heads` must divide `num_heads`"));
    }
    let query = c.input(0)?;
    if c.rank(query) != 3 {
        return Err(c.invalid("queries must have a batch, a sequence and a hidden dim"));
    }
    let (q, k, v) = match (c.optional(1), c.optional(2)) {
        (Some(key), Some(value)) => (query, key, value),
        (None, None) => {
            let all = Dim::from(heads + 2 * groups);
            let hidden = c.shape(query)[2].clone();
            let size = c.quotient(&hidden, &all, "the heads must divide the hidden dim")?;
            let (wide, narrow) = (Dim::from(heads) * &size, Dim::from(groups) * &size);
            let values = &wide + &narrow;
            let q = c.narrow(query, 2, Dim::from(0), wide.clone())?;
            let k = c.narrow(query, 2, wide, narrow.clone())?;
            (q, k, c.narrow(query, 2, values, narrow)?)
        }
        _ => return Err(c.invalid("keys and values must both be given, or packed with queries")),
    };
    let parts = [split_heads(c, q, heads)?, split_heads(c, k, groups)?, split_heads(c, v, groups)?];
    let tokens = parts.map(|part| c.shape(part)[TOKENS].clone());
    for other in &tokens[1..] {
        match (other.known(), tokens[0].known()) {
            _ if *other == tokens[0] => {}
            (Some(_), Some(_)) => {
                return Err(c.unsupported(
                    "keys of another length than the queries: give them as the cache",
                ));
            }
            _ => {
                let (a, b) = (other.clone(), tokens[0].clone());
                return Err(InferError::Unresolved { a, b }.into());
            }
        }
    }
    Ok(parts)
}

/// The number of keys of each sample, `[b,1,1,1]`, the new ones among them.
fn lengths(c: &mut Context<'_, '_>, q: ValueId) -> Result<ValueId, OpError> {
    let one = Dim::from(1);
    let last = c.input(5)?;
    let batch = c.shape(q)[0].clone();
    let last = c.reshape(last, vec![batch, one.clone(), one.clone(), one])?;
    let last = c.cast_to(last, DType::I64)?;
    c.shifted(last, 1.0)
}

/// The number of tokens in each sample's cache before the new ones, `[b,1,1,1]`: none where all of the longest sample
/// is new, which is then a prompt, padded or not.
fn held(c: &mut Context<'_, '_>, q: ValueId) -> Result<ValueId, OpError> {
    let new = c.shape(q)[TOKENS].clone();
    let new = c.size(new)?;
    let total = c.input(6)?;
    let total = c.reshape(total, Vec::new())?;
    let total = c.cast_to(total, DType::I64)?;
    let prompt = c.binary(Binary::Equal, total, new)?;
    let lengths = lengths(c, q)?;
    let before = c.minus(lengths, new)?;
    let none = c.scalar_like(before, 0.0)?;
    c.select(prompt, none, before)
}

/// The places of new tokens in each sample, `[b,1,s,1]`, or `[1,1,s,1]` where nothing stands before them.
fn places(c: &mut Context<'_, '_>, q: ValueId, held: Option<ValueId>) -> Result<ValueId, OpError> {
    let place = c.iota(c.shape(q)[TOKENS].clone(), TOKENS, 4)?;
    match held {
        Some(held) => c.plus(place, held),
        None => Ok(place),
    }
}

/// Queries and keys turned by the angles of their positions.
fn turned(
    c: &mut Context<'_, '_>,
    q: ValueId,
    k: ValueId,
    held: Option<ValueId>,
) -> Result<(ValueId, ValueId), OpError> {
    let angles = [c.input(7)?, c.input(8)?];
    if angles.iter().any(|&angle| c.rank(angle) != 2) {
        return Err(c.invalid("`cos_cache` and `sin_cache` must have 2 dims"));
    }
    let (size, turned) = (c.known_size(q, 3)?, c.known_size(angles[0], 1)?.saturating_mul(2));
    if turned > size {
        return Err(c.invalid("`cos_cache` must have at most half as many columns as a head"));
    }
    let positions = match c.optional(9) {
        Some(positions) => positions,
        None => {
            let places = places(c, q, held)?;
            let shape = c.shape(places);
            c.reshape(places, vec![shape[0].clone(), shape[TOKENS].clone()])?
        }
    };
    let interleaved = c.int_or("rotary_interleaved", 0) != 0;
    let q = turn(c, q, angles, Some(positions), turned, interleaved)?;
    Ok((q, turn(c, k, angles, Some(positions), turned, interleaved)?))
}

/// The cache with new tokens written behind what each sample holds, grown to the longest sample.
fn written(
    c: &mut Context<'_, '_>,
    cache: ValueId,
    new: ValueId,
    held: ValueId,
    total: &Dim,
) -> Result<ValueId, OpError> {
    let capacity = c.shape(cache)[TOKENS].clone();
    let (before, mut after) = (vec![Dim::from(0); 4], vec![Dim::from(0); 4]);
    after[TOKENS] = capacity.maximum(total) - &capacity;
    let grown = if after[TOKENS] == 0 {
        cache
    } else {
        c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[cache])?
    };
    let places = places(c, new, Some(held))?;
    let places = c.expand(places, c.shape(new))?;
    let op = Op::ScatterElements { axis: TOKENS, combine: Combine::Replace };
    c.add(op, &[grown, places, new])
}

/// Attention of the queries over all keys, of which each sees those up to its own place.
fn attend(
    c: &mut Context<'_, '_>,
    [q, mut k, mut v]: [ValueId; 3],
    held: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let keys = c.shape(k)[TOKENS].clone();
    let window = c.int_or("local_window_size", -1);
    let causal = c.int_or("causal", 1) != 0;
    let simple = causal && window <= 0 && held.is_none();
    let sink = sink(c)?;
    let bias = match c.optional(10) {
        Some(bias) => Some(lengthened(c, bias, &keys)?),
        None => None,
    };
    let allowed = match simple && sink.is_none() {
        true => None,
        false => Some(allowed(c, q, keys, held, causal, window)?),
    };
    let mut mask = match (allowed, bias) {
        (Some(allowed), Some(bias)) => {
            let never = c.scalar_like(bias, f64::NEG_INFINITY)?;
            Some(c.select(allowed, bias, never)?)
        }
        (allowed, bias) => allowed.or(bias),
    };
    if let (Some(sink), Some(given)) = (sink, mask) {
        mask = Some(with_sink(c, given, sink, q)?);
        for part in [&mut k, &mut v] {
            let (before, mut after) = (vec![Dim::from(0); 4], vec![Dim::from(0); 4]);
            after[TOKENS] = Dim::from(1);
            *part = c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[*part])?;
        }
    }
    let scale = match c.float("scale") {
        Some(scale) if scale != 0.0 => scale,
        _ => default_scale(c, q)?,
    };
    let attrs = AttentionAttrs {
        scale,
        causal: simple && sink.is_none(),
        softcap: c.float_or("softcap", 0.0).max(0.0),
        guarded: false,
        fill: f32::NEG_INFINITY,
    };
    Ok(c.add_optional(Op::Attention(attrs), &[Some(q), Some(k), Some(v), mask])?[0])
}

/// Which keys a query sees, as bool that broadcasts to `[b,h,s,t]`.
fn allowed(
    c: &mut Context<'_, '_>,
    q: ValueId,
    keys: Dim,
    held: Option<ValueId>,
    causal: bool,
    window: i64,
) -> Result<ValueId, OpError> {
    let key = c.iota(keys, 3, 4)?;
    if !causal {
        if window > 0 {
            return Err(c.invalid("`local_window_size` must be -1 where `causal` is 0"));
        }
        let lengths = lengths(c, q)?;
        return c.binary(Binary::Less, key, lengths);
    }
    let place = places(c, q, held)?;
    let mut allowed = c.binary(Binary::LessOrEqual, key, place)?;
    if window > 0 {
        let first = c.shifted(place, -(window as f64))?;
        let near = c.binary(Binary::Greater, key, first)?;
        allowed = c.binary(Binary::And, allowed, near)?;
    }
    Ok(allowed)
}

/// The score of a key that every query sees and that has no value: one a head `[1,h,1,1]`, or zero.
fn sink(c: &mut Context<'_, '_>) -> Result<Option<ValueId>, OpError> {
    if let Some(sink) = c.optional(11) {
        let heads = c.shape(sink).first().cloned().unwrap_or(Dim::from(1));
        let one = Dim::from(1);
        return c.reshape(sink, vec![one.clone(), heads, one.clone(), one]).map(Some);
    }
    if c.int_or("smooth_softmax", 0) <= 0 {
        return Ok(None);
    }
    let zero = c.scalar_like(c.input(0)?, 0.0)?;
    c.reshape(zero, vec![Dim::from(1); 4]).map(Some)
}

/// A mask with a column more, which holds the score of the sink.
fn with_sink(
    c: &mut Context<'_, '_>,
    mask: ValueId,
    sink: ValueId,
    q: ValueId,
) -> Result<ValueId, OpError> {
    let bias = match c.dtype(mask) {
        DType::Bool => {
            let zero = c.scalar_like(sink, 0.0)?;
            let never = c.scalar_like(sink, f64::NEG_INFINITY)?;
            c.select(mask, zero, never)?
        }
        _ => mask,
    };
    let mut shape = c.shape(bias);
    if c.shape(sink)[1] != 1 {
        shape[1] = c.shape(q)[1].clone();
    }
    let bias = c.expand(bias, shape.clone())?;
    shape[3] = Dim::from(1);
    let sink = c.expand(sink, shape)?;
    c.concat(3, &[bias, sink])
}
