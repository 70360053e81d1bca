//! Attention and what models put around it: rotary embeddings, caches, short convolutions.

use super::helpers::Outputs;
use super::{Row, Run, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::eval::HalfType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Value};
use crate::onnx::GraphProto;
use crate::op::{
    AttentionAttrs, Binary, Combine, ConvAttrs, Op, PadMode, ReduceOp, SliceAxis, Unary,
};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[
    row("Attention", 23, attention),
    row("RotaryEmbedding", 23, |c| {
        let (x, cos, sin) = (c.input(0)?, c.input(1)?, c.input(2)?);
        let positions = c.optional(3);
        Ok(vec![rotary(c, x, cos, sin, positions)?])
    }),
    Row {
        domain: "ai.onnx.preview",
        op: "FlexAttention",
        since: 1,
        run: Run::Tensors(flex_attention),
    },
    row("TensorScatter", 24, tensor_scatter),
    row("CausalConvWithState", 1, causal_conv),
];

/// What attention is computed from: `[b,h,s,d]`, `[b,g,t,d]`, `[b,g,t,e]`.
pub(super) struct Heads {
    pub(super) q: ValueId,
    pub(super) k: ValueId,
    pub(super) v: ValueId,
    pub(super) scale: f32,
    pub(super) softcap: f32,
}

/// Where queries may attend.
#[derive(Default)]
pub(super) struct Mask {
    /// Added to the scores, broadcasts to `[b,h,s,t]`.
    pub(super) bias: Option<ValueId>,
    /// bool, broadcasts to `[b,h,s,t]`.
    pub(super) allowed: Option<ValueId>,
}

impl Mask {
    /// Restricts what is allowed further.
    pub(super) fn restrict(&mut self, c: &mut Context<'_, '_>, to: ValueId) -> Result<(), OpError> {
        self.allowed = Some(match self.allowed {
            Some(allowed) => c.binary(Binary::And, allowed, to)?,
            None => to,
        });
        Ok(())
    }

    /// Both parts as one: bool where only that is there, else added values, -∞ where not allowed.
    pub(super) fn joined(&self, c: &mut Context<'_, '_>) -> Result<Option<ValueId>, OpError> {
        match (self.allowed, self.bias) {
            (Some(allowed), Some(bias)) => {
                let never = c.scalar_like(bias, f64::NEG_INFINITY)?;
                Ok(Some(c.select(allowed, bias, never)?))
            }
            (allowed, bias) => Ok(allowed.or(bias)),
        }
    }
}

/// `[b, s, h·d] → [b, h, s, d]`
pub(super) fn split_heads(
    c: &mut Context<'_, '_>,
    x: ValueId,
    heads: i64,
) -> Result<ValueId, OpError> {
    let shape = c.shape(x);
    let [batch, sequence, hidden] = shape.as_slice() else {
        return Err(c.invalid("an input must have a batch, a sequence and a hidden dim"));
    };
    let heads = Dim::from(heads);
    let size = c.quotient(hidden, &heads, "the heads must divide the hidden dim")?;
    let split = c.reshape(x, vec![batch.clone(), sequence.clone(), heads, size])?;
    c.transpose(split, vec![0, 2, 1, 3])
}

/// `[b, h, s, d] → [b, s, h·d]`
pub(super) fn merge_heads(c: &mut Context<'_, '_>, x: ValueId) -> Result<ValueId, OpError> {
    let x = c.transpose(x, vec![0, 2, 1, 3])?;
    let shape = c.shape(x);
    let hidden = &shape[2] * &shape[3];
    c.reshape(x, vec![shape[0].clone(), shape[1].clone(), hidden])
}

/// `1/√d` for the last dim of `x`.
pub(super) fn default_scale(c: &Context<'_, '_>, x: ValueId) -> Result<f32, OpError> {
    let size = c.known_size(x, c.rank(x).saturating_sub(1))?;
    Ok((1.0 / (size as f64).sqrt()) as f32)
}

fn attention(c: &mut Context<'_, '_>) -> Outputs {
    let (mut q, mut k, mut v) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let flat = c.rank(q) == 3;
    if flat {
        let missing = || c.invalid("`q_num_heads` and `kv_num_heads` are required");
        let query_heads = c.int("q_num_heads").filter(|&n| n > 0).ok_or_else(missing)?;
        let heads = c.int("kv_num_heads").filter(|&n| n > 0).ok_or_else(missing)?;
        q = split_heads(c, q, query_heads)?;
        k = split_heads(c, k, heads)?;
        v = split_heads(c, v, heads)?;
    }
    let mut past = Dim::from(0);
    if let (Some(past_key), Some(past_value)) = (c.optional(4), c.optional(5)) {
        past = c.ty(past_key).shape.get(2).cloned().unwrap_or(past);
        k = c.concat(2, &[past_key, k])?;
        v = c.concat(2, &[past_value, v])?;
    }
    if [q, k, v].iter().any(|&x| c.rank(x) != 4) {
        return Err(c.invalid("queries, keys and values must have 3 or 4 dims"));
    }
    let scale = match c.float("scale") {
        Some(scale) => scale,
        None => default_scale(c, q)?,
    };
    let heads = Heads { q, k, v, scale, softcap: c.float_or("softcap", 0.0) };
    let causal = c.int_or("is_causal", 0) != 0;
    let windows = [c.int_or("left_window_size", -1), c.int_or("right_window_size", -1)];
    let bare = c.optional(3).is_none() && c.optional(6).is_none() && past == 0;
    let simple = bare && windows == [-1, -1];
    let mask = if simple { Mask::default() } else { mask(c, &heads, past, causal, windows)? };
    // One op rounds once, ONNX's function body after each step, which shows in 16 bits.
    let whole = HalfType::of(c.dtype(q)).is_none();
    let alike = c.dtype(q) == c.dtype(v) && c.dtype(q) == c.dtype(k);
    let plain = whole && alike && !c.wants_output(3);
    let (mut y, scores) = if plain {
        (fused(c, &heads, &mask, simple && causal)?, q)
    } else {
        let mut mask = mask;
        if simple && causal {
            let allowed = frontier(c, &heads, None, Dim::from(0), [-1, 0])?;
            mask.restrict(c, allowed)?;
        }
        expanded(c, &heads, &mask)?
    };
    if flat {
        y = merge_heads(c, y)?;
    }
    Ok(vec![y, k, v, scores])
}

/// The mask of every kind that the node asks for.
fn mask(
    c: &mut Context<'_, '_>,
    heads: &Heads,
    past: Dim,
    causal: bool,
    [left, right]: [i64; 2],
) -> Result<Mask, OpError> {
    let mut mask = Mask::default();
    let total = c.shape(heads.k)[2].clone();
    if let Some(given) = c.optional(3) {
        let given = lengthened(c, given, &total)?;
        match c.dtype(given) {
            DType::Bool => mask.allowed = Some(given),
            _ => mask.bias = Some(given),
        }
    }
    let lengths = match c.optional(6) {
        Some(lengths) => {
            let batch = c.shape(lengths);
            let mut shape = batch;
            shape.resize(4, Dim::from(1));
            Some(c.reshape(lengths, shape)?)
        }
        None => None,
    };
    let right = if causal { 0 } else { right };
    if causal || left >= 0 || right >= 0 {
        let allowed = frontier(c, heads, lengths, past, [left, right])?;
        mask.restrict(c, allowed)?;
    }
    if let Some(lengths) = lengths {
        let keys = c.iota(total, 3, 4)?;
        let valid = c.binary(Binary::Less, keys, lengths)?;
        mask.restrict(c, valid)?;
    }
    Ok(mask)
}

/// A mask whose last dim is shorter than the keys, lengthened by what may not be attended.
pub(super) fn lengthened(
    c: &mut Context<'_, '_>,
    mask: ValueId,
    total: &Dim,
) -> Result<ValueId, OpError> {
    let shape = c.shape(mask);
    let Some(last) = shape.last().filter(|last| *last != total) else { return Ok(mask) };
    let mut after = vec![Dim::from(0); shape.len()];
    after[shape.len() - 1] = total - last;
    let before = vec![Dim::from(0); shape.len()];
    let value = match c.dtype(mask) {
        DType::Bool => 0.0,
        _ => f64::NEG_INFINITY,
    };
    let value = c.scalar_like(mask, value)?;
    c.add(Op::Pad { mode: PadMode::Constant, before, after }, &[mask, value])
}

/// Keys within a window about a query: `p - left ≤ j ≤ p + right`, a negative bound being none. The query
/// stands at `p = i + past`, or at `i + lengths - s` if there are lengths `[b,1,1,1]` of valid keys.
pub(super) fn frontier(
    c: &mut Context<'_, '_>,
    heads: &Heads,
    lengths: Option<ValueId>,
    past: Dim,
    [left, right]: [i64; 2],
) -> Result<ValueId, OpError> {
    let (queries, keys) = (c.shape(heads.q)[2].clone(), c.shape(heads.k)[2].clone());
    let rank = if lengths.is_some() { 4 } else { 2 };
    let mut place = c.iota(queries.clone(), rank - 2, rank)?;
    let key = c.iota(keys, rank - 1, rank)?;
    if let Some(lengths) = lengths {
        let lengths = c.cast_to(lengths, DType::I64)?;
        let queries = c.size(queries)?;
        let offset = c.minus(lengths, queries)?;
        place = c.plus(place, offset)?;
    } else if past != 0 {
        let past = c.size(past)?;
        place = c.plus(place, past)?;
    }
    let mut allowed = None;
    for (bound, comparison, sign) in
        [(right, Binary::LessOrEqual, 1.0), (left, Binary::GreaterOrEqual, -1.0)]
    {
        if bound < 0 {
            continue;
        }
        let limit = c.shifted(place, sign * bound as f64)?;
        let within = c.binary(comparison, key, limit)?;
        allowed = Some(match allowed {
            Some(before) => c.binary(Binary::And, before, within)?,
            None => within,
        });
    }
    allowed.ok_or_else(|| c.invalid("a window without bounds"))
}

/// Attention as one op. ONNX gives zeros to a query that may attend nowhere.
pub(super) fn fused(
    c: &mut Context<'_, '_>,
    heads: &Heads,
    mask: &Mask,
    causal: bool,
) -> Result<ValueId, OpError> {
    let joined = mask.joined(c)?;
    let &Heads { q, k, v, scale, softcap } = heads;
    let attrs = AttentionAttrs { scale, causal, softcap, guarded: false, fill: f32::NEG_INFINITY };
    let inputs = [Some(q), Some(k), Some(v), joined];
    let y = c.add_optional(Op::Attention(attrs), &inputs)?[0];
    let Some(joined) = joined else { return Ok(y) };
    let some = attends(c, joined)?;
    let zero = c.scalar_like(y, 0.0)?;
    c.select(some, y, zero)
}

/// Whether a query may attend anywhere at all.
fn attends(c: &mut Context<'_, '_>, mask: ValueId) -> Result<ValueId, OpError> {
    let last = c.rank(mask).checked_sub(1);
    let last = last.ok_or_else(|| c.invalid("a mask needs dims"))?;
    let best = c.reduce(ReduceOp::Max, mask, vec![last], true)?;
    if c.dtype(mask) == DType::Bool {
        return Ok(best);
    }
    let never = c.scalar_like(mask, f64::NEG_INFINITY)?;
    let nowhere = c.binary(Binary::Equal, best, never)?;
    c.unary(Unary::Not, nowhere)
}

/// Attention in the steps of ONNX's function body, and the scores at the step that `qk_matmul_output_mode` names.
fn expanded(
    c: &mut Context<'_, '_>,
    heads: &Heads,
    mask: &Mask,
) -> Result<(ValueId, ValueId), OpError> {
    let &Heads { q, k, v, scale, softcap } = heads;
    let dtype = c.dtype(q);
    let mode = c.int_or("qk_matmul_output_mode", 0);
    let root = f64::from(scale.sqrt());
    let queries = c.scaled(q, root)?;
    let repeated = repeat_heads(c, k, q)?;
    let keys = c.scaled(repeated, root)?;
    let keys = c.transposed(keys)?;
    let raw = c.mat_mul(queries, keys)?;
    let mut scores = raw;
    if softcap > 0.0 {
        let cap = c.scalar_like(scores, f64::from(softcap))?;
        let small = c.over(scores, cap)?;
        let bounded = c.unary(Unary::Tanh, small)?;
        scores = c.times(bounded, cap)?;
    }
    let capped = scores;
    let joined = mask.joined(c)?;
    if let Some(joined) = joined {
        let bias = match c.dtype(joined) {
            DType::Bool => {
                let (zero, never) = (c.scalar(dtype, 0.0)?, c.scalar(dtype, f64::NEG_INFINITY)?);
                c.select(joined, zero, never)?
            }
            _ => c.cast_to(joined, dtype)?,
        };
        scores = c.plus(scores, bias)?;
    }
    let biased = scores;
    let precision = c.dtype_attr("softmax_precision")?.unwrap_or(dtype);
    let wide = c.cast_to(scores, precision)?;
    let mut weights = c.add(Op::Softmax { axis: 3, log: false }, &[wide])?;
    if let Some(joined) = joined {
        let some = attends(c, joined)?;
        let zero = c.scalar_like(weights, 0.0)?;
        weights = c.select(some, weights, zero)?;
    }
    let weights = c.cast_to(weights, dtype)?;
    let values = repeat_heads(c, v, q)?;
    let values = c.cast_to(values, dtype)?;
    let y = c.mat_mul(weights, values)?;
    let shown = match mode {
        0 => raw,
        1 => capped,
        2 => biased,
        3 => weights,
        _ => return Err(c.invalid("`qk_matmul_output_mode` must be 0, 1, 2 or 3")),
    };
    Ok((y, shown))
}

/// Attention whose scores and probabilities go through graphs that the model gives.
fn flex_attention(c: &mut Context<'_, '_>) -> Outputs {
    let (q, k, v) = (c.input(0)?, c.input(1)?, c.input(2)?);
    if [q, k, v].iter().any(|&x| c.rank(x) != 4) {
        return Err(c.invalid("queries, keys and values must have 4 dims"));
    }
    let scale = match c.float("scale") {
        Some(scale) => scale,
        None => default_scale(c, q)?,
    };
    let (of_scores, of_weights) = (c.graph_attr("score_mod"), c.graph_attr("prob_mod"));
    let own = c.dtype(v);
    if of_scores.is_none() && of_weights.is_none() && own == c.dtype(q) {
        let heads = Heads { q, k, v, scale, softcap: 0.0 };
        return Ok(vec![fused(c, &heads, &Mask::default(), false)?]);
    }
    let root = f64::from(scale).sqrt();
    let queries = c.scaled(q, root)?;
    let keys = repeat_heads(c, k, q)?;
    let keys = c.scaled(keys, root)?;
    let keys = c.transposed(keys)?;
    let mut scores = c.mat_mul(queries, keys)?;
    scores = match c.dtype_attr("softmax_precision")? {
        Some(precision) => c.cast_to(scores, precision)?,
        None => c.widen(scores)?,
    };
    let scores = modified(c, of_scores, scores)?;
    let weights = c.add(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let weights = modified(c, of_weights, weights)?;
    let values = repeat_heads(c, v, q)?;
    let values = c.cast_to(values, c.dtype(weights))?;
    let y = c.mat_mul(weights, values)?;
    Ok(vec![c.cast_to(y, own)?])
}

/// What a graph of one input and one output makes of x, or x where there is none.
fn modified<'m>(
    c: &mut Context<'_, 'm>,
    body: Option<&'m GraphProto>,
    x: ValueId,
) -> Result<ValueId, OpError> {
    let Some(body) = body else { return Ok(x) };
    let outputs = c.importer.run_body(body, &[x.into()])?;
    match Value::tensors(outputs, "what a graph makes of scores")?.as_slice() {
        &[y] => c.cast_to(y, c.dtype(x)),
        _ => Err(c.invalid("a graph that changes scores must have one output")),
    }
}

/// `[b, g, t, d] → [b, h, t, d]`: every head of keys repeated for the queries that share it.
pub(super) fn repeat_heads(
    c: &mut Context<'_, '_>,
    x: ValueId,
    q: ValueId,
) -> Result<ValueId, OpError> {
    let (heads, shape) = (c.shape(q)[1].clone(), c.shape(x));
    if shape[1] == heads {
        return Ok(x);
    }
    let times = c.quotient(&heads, &shape[1], "heads of keys must divide those of queries")?;
    let apart = c.unsqueeze(x, &[2])?;
    let mut wide = c.shape(apart);
    wide[2] = times;
    let wide = c.expand(apart, wide)?;
    c.reshape(wide, vec![shape[0].clone(), heads, shape[2].clone(), shape[3].clone()])
}

/// Pairs of elements turned by the angle of their position, as the attributes say. `x` is `[b,h,s,d]` or `[b,s,h·d]`; the
/// caches are those of [`turn`].
pub(super) fn rotary(
    c: &mut Context<'_, '_>,
    x: ValueId,
    cos: ValueId,
    sin: ValueId,
    positions: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let flat = c.rank(x) == 3;
    let split = match c.int_or("num_heads", 0) {
        0 if flat => return Err(c.invalid("`num_heads` is required for 3 dims")),
        heads if flat => split_heads(c, x, heads)?,
        _ => x,
    };
    if c.rank(split) != 4 {
        return Err(c.invalid("the input must have 3 or 4 dims"));
    }
    let size = c.known_size(split, 3)?;
    let turned = match c.int_or("rotary_embedding_dim", 0) {
        0 => size,
        turned => turned,
    };
    if turned > size || turned < 0 || turned % 2 != 0 {
        return Err(c.invalid("`rotary_embedding_dim` must be even and at most the head's size"));
    }
    let interleaved = c.int_or("interleaved", 0) != 0;
    let y = turn(c, split, [cos, sin], positions, turned, interleaved)?;
    if flat { merge_heads(c, y) } else { Ok(y) }
}

/// The first `turned` elements of every head of `x: [b,h,s,d]` turned by the angles whose cosines and sines are given:
/// `[positions, turned/2]` with position ids `[b,s]`, or `[b,s,turned/2]` without.
pub(super) fn turn(
    c: &mut Context<'_, '_>,
    x: ValueId,
    mut angles: [ValueId; 2],
    positions: Option<ValueId>,
    turned: i64,
    interleaved: bool,
) -> Result<ValueId, OpError> {
    let size = c.known_size(x, 3)?;
    for angle in &mut angles {
        if let Some(positions) = positions {
            *angle = c.add(Op::Gather { axis: 0 }, &[*angle, positions])?;
        }
        *angle = c.unsqueeze(*angle, &[1])?;
    }
    let [cos, sin] = angles;
    let half = Dim::from(turned / 2);
    let part = |c: &mut Context<'_, '_>, second: bool| {
        let (start, step) = match (second, interleaved) {
            (false, _) => (Dim::from(0), if interleaved { 2 } else { 1 }),
            (true, true) => (Dim::from(1), 2),
            (true, false) => (half.clone(), 1),
        };
        let range = SliceAxis { axis: 3, start, len: half.clone(), step };
        c.add(Op::Slice(vec![range]), &[x])
    };
    let (first, second) = (part(c, false)?, part(c, true)?);
    let (a, b) = (c.times(cos, first)?, c.times(sin, second)?);
    let real = c.minus(a, b)?;
    let (a, b) = (c.times(sin, first)?, c.times(cos, second)?);
    let imaginary = c.plus(a, b)?;
    let y = if interleaved {
        let (real, imaginary) = (c.unsqueeze(real, &[4])?, c.unsqueeze(imaginary, &[4])?);
        let pairs = c.concat(4, &[real, imaginary])?;
        let mut whole = c.shape(x);
        whole[3] = Dim::from(turned);
        c.reshape(pairs, whole)?
    } else {
        c.concat(3, &[real, imaginary])?
    };
    if turned == size {
        return Ok(y);
    }
    let rest = c.narrow(x, 3, Dim::from(turned), Dim::from(size - turned))?;
    c.concat(3, &[y, rest])
}

/// A cache with rows replaced from each sample's own place on.
fn tensor_scatter(c: &mut Context<'_, '_>) -> Outputs {
    let (cache, update) = (c.input(0)?, c.input(1)?);
    let rank = c.rank(cache);
    let axis = c.axis(rank, c.int_or("axis", -2))?;
    if axis == 0 || c.rank(update) != rank {
        return Err(c.invalid("`axis` must not be the batch, and both inputs have equal ranks"));
    }
    let (capacity, shape) = (c.shape(cache)[axis].clone(), c.shape(update));
    let mut place = c.iota(shape[axis].clone(), axis, rank)?;
    if let Some(start) = c.optional(2) {
        let mut column = c.shape(start);
        column.resize(rank, Dim::from(1));
        let start = c.reshape(start, column)?;
        let start = c.cast_to(start, DType::I64)?;
        place = c.plus(place, start)?;
    }
    match c.string("mode") {
        Some("circular") => {
            let capacity = c.size(capacity)?;
            place = c.binary(Binary::Mod, place, capacity)?;
        }
        None | Some("linear") => {}
        Some(_) => return Err(c.invalid("`mode` must be linear or circular")),
    }
    let place = c.expand(place, shape)?;
    let op = Op::ScatterElements { axis, combine: Combine::Replace };
    Ok(vec![c.add(op, &[cache, place, update])?])
}

/// A convolution of each channel with its own kernel over what came before, and the last elements as the
/// state for the next call.
fn causal_conv(c: &mut Context<'_, '_>) -> Outputs {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let shape = c.shape(x);
    if shape.len() != 3 || c.rank(w) != 3 {
        return Err(c.invalid("the input and the kernels must have 3 dims"));
    }
    let group = usize::try_from(c.known_size(x, 1)?).unwrap_or(0);
    let before = c.known_size(w, 2)? - 1;
    let padded = match c.optional(3) {
        Some(state) => c.concat(2, &[state, x])?,
        None => {
            let zero = vec![Dim::from(0); 3];
            let mut padding = zero.clone();
            padding[2] = Dim::from(before);
            let op = Op::Pad { mode: PadMode::Constant, before: padding, after: zero };
            c.add(op, &[x])?
        }
    };
    let conv = ConvAttrs {
        strides: vec![1],
        dilations: vec![1],
        pads_before: vec![0],
        pads_after: vec![0],
        group,
    };
    let inputs = [Some(padded), Some(w), c.optional(2)];
    let mut y = c.add_optional(Op::Conv(conv), &inputs)?[0];
    match c.string("activation") {
        None | Some("none") => {}
        Some("silu" | "swish") => y = c.unary(Unary::Swish { alpha: 1.0 }, y)?,
        Some(_) => return Err(c.invalid("`activation` must be none, silu or swish")),
    }
    let state = c.narrow(padded, 2, shape[2].clone(), Dim::from(before))?;
    Ok(vec![y, state])
}
