//! Linear attention: a state that every token changes and reads.

use super::attention::{merge_heads, split_heads};
use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::{Graph, ValueId};
use crate::import::{Context, OpError};
use crate::infer::InferError;
use crate::op::{Binary, Op, ScanAttrs, Unary};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[row("LinearAttention", 1, linear_attention)];

/// The axis of tokens in `[b, h, s, d]`.
const TOKENS: usize = 2;

/// `S ← exp(g)·S + k ⊗ v` and `y = scale·qᵀS` token by token, in f32; with a correction, v becomes
/// `beta·(v - Sᵀk)` first. One scan over the tokens.
fn linear_attention(c: &mut Context<'_, '_>) -> Outputs {
    let missing = || c.invalid("`q_num_heads` and `kv_num_heads` are required");
    let query_heads = c.int("q_num_heads").filter(|&n| n > 0).ok_or_else(missing)?;
    let heads = c.int("kv_num_heads").filter(|&n| n > 0).ok_or_else(missing)?;
    if query_heads % heads != 0 {
        return Err(c.invalid("`kv_num_heads` must divide `q_num_heads`"));
    }
    let (gated, corrected) = match c.string("update_rule") {
        None | Some("gated_delta") => (true, true),
        Some("delta") => (false, true),
        Some("gated") => (true, false),
        Some("linear") => (false, false),
        Some(_) => return Err(c.invalid("`update_rule` is none of the known ones")),
    };
    let own = c.dtype(c.input(0)?);
    let mut scanned = Vec::new();
    for (i, heads) in [query_heads, heads, heads].into_iter().enumerate() {
        let x = c.input(i)?;
        let x = split_heads(c, x, heads)?;
        scanned.push(c.cast_to(x, DType::F32)?);
    }
    for (i, used) in [(4, gated), (5, corrected)] {
        if used {
            let x = c.input(i)?;
            let last = c.shape(x).last().and_then(Dim::known).unwrap_or(0);
            let x = split_heads(c, x, if last == 1 { 1 } else { heads })?;
            scanned.push(c.cast_to(x, DType::F32)?);
        }
    }
    let (keys, values) = (c.shape(scanned[1]), c.shape(scanned[2]));
    let shape = vec![keys[0].clone(), Dim::from(heads), keys[3].clone(), values[3].clone()];
    let (state, state_type) = match c.optional(3) {
        Some(state) if c.rank(state) != 4 => {
            return Err(c.invalid("a state must have 4 dims"));
        }
        Some(state) => (c.cast_to(state, DType::F32)?, c.dtype(state)),
        None => {
            let zero = c.scalar(DType::F32, 0.0)?;
            (c.expand(zero, shape)?, own)
        }
    };
    let scale = match c.float("scale") {
        Some(scale) if scale != 0.0 => scale,
        _ => super::attention::default_scale(c, scanned[0])?,
    };
    let slice = |v: &ValueId| {
        let mut ty = c.ty(*v);
        ty.shape.remove(TOKENS);
        ty
    };
    let types: Vec<TensorType> = scanned.iter().map(slice).collect();
    let body = body(c.ty(state), &types, gated, corrected, scale)?;
    let inputs: Vec<Option<ValueId>> =
        std::iter::once(state).chain(scanned.iter().copied()).map(Some).collect();
    let walk = vec![(TOKENS, false); scanned.len()];
    let attrs = ScanAttrs { body, carried: 1, inputs: walk, outputs: vec![(TOKENS, false)] };
    let outputs = c.add_optional(Op::Scan(Box::new(attrs)), &inputs)?;
    let y = merge_heads(c, outputs[1])?;
    Ok(vec![c.cast_to(y, own)?, c.cast_to(outputs[0], state_type)?])
}

/// One token: `state, q, k, v, decay?, beta? → state, y`.
fn body(
    state: TensorType,
    slices: &[TensorType],
    gated: bool,
    corrected: bool,
    scale: f32,
) -> Result<Graph, OpError> {
    let mut b = Body(Graph::new());
    let mut state = b.0.add_input("state", state)?;
    let mut inputs = Vec::new();
    for (i, ty) in slices.iter().enumerate() {
        inputs.push(b.0.add_input(&format!("slice_{i}"), ty.clone())?);
    }
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().ok_or(InferError::Missing { input: 0 });
    let (q, k, mut v) = (next()?, next()?, next()?);
    if gated {
        let decay = next()?;
        let decay = b.add(Op::Unary(Unary::Exp), &[decay])?;
        let decay = b.unsqueeze(decay, 3)?;
        state = b.binary(Binary::Mul, state, decay)?;
    }
    if corrected {
        let beta = next()?;
        let row = b.unsqueeze(k, 2)?;
        let read = b.add(Op::MatMul, &[row, state])?;
        let read = b.drop_axis(read, 2)?;
        let difference = b.binary(Binary::Sub, v, read)?;
        v = b.binary(Binary::Mul, beta, difference)?;
    }
    let (column, row) = (b.unsqueeze(k, 3)?, b.unsqueeze(v, 2)?);
    let written = b.binary(Binary::Mul, column, row)?;
    let state = b.binary(Binary::Add, state, written)?;
    let read = b.repeat_heads(state, q)?;
    let query = b.unsqueeze(q, 2)?;
    let y = b.add(Op::MatMul, &[query, read])?;
    let y = b.drop_axis(y, 2)?;
    let scale = b.0.add_constant("scale", Tensor::scalar(scale));
    let y = b.binary(Binary::Mul, y, scale)?;
    b.0.add_output("state", state);
    b.0.add_output("y", y);
    Ok(b.0)
}

/// A body under construction.
struct Body(Graph);

impl Body {
    fn add(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, InferError> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.0.add("token", op, &inputs)?.value())
    }

    fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, InferError> {
        self.add(Op::Binary(op), &[a, b])
    }

    fn unsqueeze(&mut self, v: ValueId, axis: usize) -> Result<ValueId, InferError> {
        let mut shape = self.0.ty(v).shape.clone();
        shape.insert(axis.min(shape.len()), Dim::from(1));
        self.add(Op::Reshape(shape), &[v])
    }

    fn drop_axis(&mut self, v: ValueId, axis: usize) -> Result<ValueId, InferError> {
        let mut shape = self.0.ty(v).shape.clone();
        shape.remove(axis);
        self.add(Op::Reshape(shape), &[v])
    }

    /// `[b, g, d, e] → [b, h, d, e]` for queries `[b, h, d]`.
    fn repeat_heads(&mut self, v: ValueId, q: ValueId) -> Result<ValueId, InferError> {
        let shape = self.0.ty(v).shape.clone();
        let heads = self.0.ty(q).shape[1].clone();
        let times = match heads.exact_div(&shape[1]) {
            Some(times) if times != 1 => times,
            _ => return Ok(v),
        };
        let apart = self.unsqueeze(v, 2)?;
        let mut wide = self.0.ty(apart).shape.clone();
        wide[2] = times;
        let wide = self.add(Op::Expand(wide), &[apart])?;
        let whole = vec![shape[0].clone(), heads, shape[2].clone(), shape[3].clone()];
        self.add(Op::Reshape(whole), &[wide])
    }
}
