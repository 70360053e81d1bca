//! Attention.

use super::error::EvalError;
use super::norm::softmax_row;
use super::number::{filled, from_reals, reals};
use super::walk::broadcast_strides;
use crate::dtype::DType;
use crate::op::AttentionAttrs;
use crate::tensor::Tensor;

/// Sizes of the operands.
struct Sizes {
    batch: usize,
    heads: usize,
    /// Heads of keys and values.
    groups: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    value_depth: usize,
}

fn sizes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Sizes, EvalError> {
    let shapes = [q.shape(), k.shape(), v.shape()];
    let refuse = || EvalError::shape("queries, keys and values do not fit", &shapes);
    let [batch, heads, queries, depth] = *q.shape() else { return Err(refuse()) };
    let [key_batch, groups, keys, key_depth] = *k.shape() else { return Err(refuse()) };
    let [value_batch, value_groups, value_keys, value_depth] = *v.shape() else {
        return Err(refuse());
    };
    let fits = (key_batch, key_depth) == (batch, depth)
        && (value_batch, value_groups, value_keys) == (batch, groups, keys)
        && (heads == 0 || heads.checked_rem(groups) == Some(0));
    if !fits {
        return Err(refuse());
    }
    for x in [k, v] {
        if x.dtype() != q.dtype() {
            return Err(EvalError::Mismatch { expected: q.dtype(), actual: x.dtype() });
        }
    }
    if !q.dtype().is_float() {
        return Err(EvalError::Unsupported(q.dtype()));
    }
    Ok(Sizes { batch, heads, groups, queries, keys, depth, value_depth })
}

/// [`crate::op::Op::Attention`].
pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    attrs: &AttentionAttrs,
) -> Result<Tensor, EvalError> {
    let s = sizes(q, k, v)?;
    let shape = vec![s.batch, s.heads, s.queries, s.value_depth];
    let mut result = filled(&shape, 0.0)?;
    if result.is_empty() {
        return from_reals(q.dtype(), shape, &result, true);
    }
    let mask = mask.map(|mask| Mask::new(mask, &s, attrs.fill)).transpose()?;
    let (queries, keys, values) = (reals(q)?, reals(k)?, reals(v)?);
    let mut scores = filled(&[s.keys], 0.0)?;
    for (row, sums) in result.chunks_exact_mut(s.value_depth).enumerate() {
        let (head, query) = (row / s.queries, row % s.queries);
        let (b, h) = (head / s.heads, head % s.heads);
        let group = b * s.groups + h / (s.heads / s.groups);
        let query_row = &queries[row * s.depth..][..s.depth];
        for (t, score) in scores.iter_mut().enumerate() {
            let key_row = &keys[(group * s.keys + t) * s.depth..][..s.depth];
            let product: f64 = query_row.iter().zip(key_row).map(|(a, b)| a * b).sum();
            *score = capped(product * f64::from(attrs.scale), f64::from(attrs.softcap));
            if let Some(mask) = &mask {
                mask.apply(score, &[b, h, query, t]);
            }
            if attrs.causal && t > query {
                *score = f64::NEG_INFINITY;
            }
        }
        softmax_row(&mut scores, false);
        if attrs.guarded && scores.iter().all(|weight| weight.is_nan()) {
            sums.fill(0.0);
            continue;
        }
        for (t, &weight) in scores.iter().enumerate() {
            let value_row = &values[(group * s.keys + t) * s.value_depth..][..s.value_depth];
            for (sum, &value) in sums.iter_mut().zip(value_row) {
                *sum += weight * value;
            }
        }
    }
    from_reals(q.dtype(), shape, &result, true)
}

fn capped(score: f64, cap: f64) -> f64 {
    if cap == 0.0 { score } else { cap * libm::tanh(score / cap) }
}

/// What is added to the scores, or what is put in the place of some.
struct Mask {
    biases: Vec<f64>,
    strides: Vec<isize>,
    /// Truth values: those that do not hold give scores this number.
    fill: Option<f64>,
}

impl Mask {
    fn new(mask: &Tensor, s: &Sizes, fill: f32) -> Result<Self, EvalError> {
        let scores = [s.batch, s.heads, s.queries, s.keys];
        let refuse = || EvalError::shape("the mask does not broadcast", &[&scores, mask.shape()]);
        let strides = broadcast_strides(mask.shape(), &scores).ok_or_else(refuse)?;
        let mut biases = reals(mask)?;
        let fill = match mask.dtype() {
            DType::Bool if fill == f32::NEG_INFINITY => {
                for bias in &mut biases {
                    *bias = if *bias == 0.0 { f64::NEG_INFINITY } else { 0.0 };
                }
                None
            }
            DType::Bool => Some(f64::from(fill)),
            dtype if dtype.is_float() => None,
            dtype => return Err(EvalError::Unsupported(dtype)),
        };
        Ok(Self { biases, strides, fill })
    }

    fn apply(&self, score: &mut f64, place: &[usize; 4]) {
        let offset: usize = place.iter().zip(&self.strides).map(|(i, &s)| i * s as usize).sum();
        match self.fill {
            None => *score += self.biases[offset],
            Some(fill) if self.biases[offset] == 0.0 => *score = fill,
            Some(_) => {}
        }
    }
}
