//! Operands in global memory, the symbols of their sizes and strides, and what is computed of them.

use super::{Fmha, Mask, context::Place};
use crate::kernel::{Fold, Monoid};
use crate::template::access::{Cluster, launch_clusters};
use crate::template::matmul::tile_of;
use crate::{
    Binary, Builder, Expr, Fused, Header, Kind, Layout, Result, Scalar, TensorId, ThreadsId, Tiler,
    Unary, Var, View, WARP, schedule::Softmax,
};

/// What ln Σ eˢ is not told apart below.
const NEVER: f64 = -1e30;

/// What a kernel is given: the symbols of sizes, and tensors in global memory; and its threads.
pub(super) struct Given<'a> {
    pub(super) fmha: &'a Fmha,
    pub(super) batch: Expr,
    pub(super) heads: Expr,
    pub(super) kv_heads: Expr,
    pub(super) queries: Expr,
    pub(super) keys: Expr,
    pub(super) blocks: Expr,
    /// Q, K, V and O.
    pub(super) params: [TensorId; 4],
    pub(super) mask: Option<TensorId>,
    pub(super) block: ThreadsId,
    /// The own block's first tile of queries.
    pub(super) first: Expr,
}

impl<'a> Given<'a> {
    /// Symbols and pointers: Q, K, V and O, and the mask; and as many blocks of so many threads as a symbol says.
    pub(super) fn new(k: &mut Builder, fmha: &'a Fmha, threads: i64) -> Result<Given<'a>> {
        let blocks = |k: &mut Builder, _: [&Expr; 3]| k.symbol("blocks").map(Expr::from);
        Ok(Self::launched(k, fmha, (1, threads), blocks)?.0)
    }

    /// Likewise, but a cluster of blocks for each tile of few queries.
    pub(super) fn of_clusters(k: &mut Builder, fmha: &'a Fmha) -> Result<(Given<'a>, Cluster)> {
        Self::launched(k, fmha, (fmha.parts, WARP * fmha.warps()), |_, [batch, heads, queries]| {
            Ok(queries.ceil_div(fmha.few) * heads * batch)
        })
    }

    fn launched(
        k: &mut Builder,
        fmha: &'a Fmha,
        (parts, threads): (i64, i64),
        blocks: impl FnOnce(&mut Builder, [&Expr; 3]) -> Result<Expr>,
    ) -> Result<(Given<'a>, Cluster)> {
        let names = ["batch", "heads", "kv_heads", "queries", "keys"];
        let [batch, heads, kv_heads, queries, keys] = k.symbols(names)?.map(Expr::from);
        let blocks = blocks(k, [&batch, &heads, &queries])?;
        let of_queries = [&batch, &heads, &queries];
        let of_keys = [&batch, &kv_heads, &keys];
        let Fmha { head_dim, value_dim, scalar, .. } = *fmha;
        let params = [
            param(k, "Q", &of_queries, head_dim.into(), scalar)?,
            param(k, "K", &of_keys, head_dim.into(), scalar)?,
            param(k, "V", &of_keys, value_dim.into(), scalar)?,
            param(k, "O", &of_queries, value_dim.into(), scalar)?,
        ];
        let mask = match fmha.mask {
            Mask::None => None,
            Mask::PerKey(scalar) => Some((&of_queries[..1], scalar)),
            Mask::Dense(scalar) => Some((&of_queries[..], scalar)),
        };
        let mask = mask.map(|(of, scalar)| param(k, "mask", of, keys.clone(), scalar));
        let mask = mask.transpose()?;
        let launched = (blocks.clone(), parts);
        let (block, first, cluster) = launch_clusters(k, launched, threads, "first")?;
        let given = Self {
            fmha,
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            blocks,
            params,
            mask,
            block,
            first,
        };
        Ok((given, cluster))
    }

    pub(super) fn header(&self) -> Header {
        let [q, key, value, o] = self.params;
        let ins: Vec<TensorId> = [q, key, value].into_iter().chain(self.mask).collect();
        Header::new(self.fmha.kind([&self.heads, &self.kv_heads]), o, ins, self.block)
    }
}

impl Fmha {
    /// What the kernel computes, of so many heads of queries, and of keys and values.
    fn kind(&self, [heads, kv_heads]: [&Expr; 2]) -> Kind {
        // Queries of heads that share keys and values have one more dimension.
        let group = heads.div(kv_heads.clone().max(1));
        let shared = |input| Fused::input(input).dims([Some(0), Some(1), None, Some(2), Some(3)]);
        let queries = Fused::input(0).split(1, group.clone());
        let mask = match self.mask {
            Mask::None => None,
            Mask::PerKey(_) => Some(Fused::input(3).dims([Some(0), None, None, None, Some(1)])),
            Mask::Dense(_) => Some(Fused::input(3).split(1, group)),
        };
        let scores = self.scores([queries, shared(1)], mask, [3, 4], 0.into());
        Kind::Fused(self.attention(scores, shared(2), 4).merge(1))
    }

    /// An operand of a matmul as it is multiplied.
    pub(super) fn rounded(&self, x: Fused) -> Fused {
        if self.tf32 { x.unary(Unary::Tf32) } else { x }
    }

    /// The mask of a tile's scores.
    pub(super) fn tile_mask(&self) -> Option<Fused> {
        match self.mask {
            Mask::None => None,
            Mask::PerKey(_) => Some(Fused::input(3).dims([Some(0), None, None, Some(1)])),
            Mask::Dense(_) => Some(Fused::input(3)),
        }
    }

    /// Scores that have queries and keys along these dimensions: of the first query, that many before it are not left out.
    pub(super) fn scores(
        &self,
        [queries, keys]: [Fused; 2],
        mask: Option<Fused>,
        [row, column]: [usize; 2],
        first: Expr,
    ) -> Fused {
        let mut scores = self.rounded(queries).matmul(self.rounded(keys));
        scores = match self.softcap {
            Some(cap) => (scores * (self.scale.0 / cap.0)).unary(Unary::Tanh) * cap.0,
            None => scores * self.scale.0,
        };
        let mut out = scores.clone();
        if let (Some(mask), Mask::PerKey(scalar) | Mask::Dense(scalar)) = (mask, self.mask) {
            let selects = scalar == Scalar::U8;
            out = if selects { mask.select(out, self.fill.0) } else { out + mask };
        }
        if self.causal {
            let query = scores.clone().position(row) + Fused::index(first);
            let later = query.binary(Binary::Less, scores.position(column));
            out = later.select(f64::NEG_INFINITY, out);
        }
        out
    }

    /// The values, weighted by scores that have keys along this dimension.
    fn attention(&self, scores: Fused, values: Fused, column: usize) -> Fused {
        let softmax = Fold { monoid: Monoid::Softmax, along: vec![column] };
        let [largest, sum] = [0, 1].map(|part| scores.clone().fold(&softmax, part));
        let weights = (scores - largest).unary(Unary::Exp);
        let result = match self.tf32 {
            true => self.rounded(weights).matmul(self.rounded(values)) / sum,
            false => (weights / sum).matmul(values),
        };
        self.guarded_result(result)
    }

    /// Zeros for what is no number, if it is guarded.
    pub(super) fn guarded_result(&self, result: Fused) -> Fused {
        if self.guarded { result.clone().unary(Unary::IsNan).select(0.0, result) } else { result }
    }
}

/// `[batch, heads, rows, dim]`, as many of these as there are, of keys `[batch, heads, dim, keys]`, by strides of its own.
fn param(k: &mut Builder, name: &str, of: &[&Expr], dim: Expr, scalar: Scalar) -> Result<TensorId> {
    let mut dims = Vec::new();
    for (size, stride) in of.iter().zip(["batch", "head", "row"]) {
        let stride = k.symbol(&format!("{}_{stride}", name.to_lowercase()))?;
        dims.push(Layout::of(*size, stride));
    }
    dims.push(Layout::of(dim, 1));
    if name == "K" {
        dims.swap(2, 3);
    }
    k.param(name, View::buffer(&dims), scalar)
}

impl Place<'_> {
    /// What a loop over tiles of keys carries when it has been through so many of them, from the last on: for each query ln Σ eˢ
    /// of its scores s, and the sum of their values in units of Σ eˢ. Where the last tile's `weights` have not met its values
    /// yet, the sum is without these, in units of the largest score before; and weights are in units of Σ eˢ.
    pub(super) fn carried(
        &self,
        done: &Var,
        (ins, first): (&[TensorId], Expr),
        (softmax, sums, weights): (&Softmax, TensorId, Option<TensorId>),
        threads: ThreadsId,
    ) -> (Option<Fused>, Header) {
        let fmha = self.given.fmha;
        // A row that may attend nowhere has none of these, or one that is lost in what fills it.
        let above = |x: Fused| x.binary(Binary::Max, NEVER);
        let all = |m: Fused, l: &Fused| above(above(m) + l.clone().unary(Unary::Log));
        let keys = self.given.keys.clone();
        let from = ((self.steps.clone() - done) * fmha.keys).max(0).min(keys.clone());
        let count = keys - &from;
        let ahead = weights.map_or(0.into(), |_| Expr::from(fmha.keys).min(count.clone()));
        let of_keys = |x: Fused, dim: usize| x.slice(dim, from.clone(), count.clone());
        let summed = |x: Fused, dim: usize| x.slice(dim, ahead.clone(), count.clone() - &ahead);
        let operands = [Fused::input(0), of_keys(Fused::input(1), 3)];
        let mask = fmha.tile_mask().map(|mask| of_keys(mask, 3));
        let scores = fmha.scores(operands, mask, [2, 3], first - &from);
        let largest = scores.clone().folded(Binary::Max, [3]);
        let powers = (scores - largest.clone()).unary(Unary::Exp);
        let values = fmha.rounded(summed(of_keys(Fused::input(2), 2), 2));
        let sum = powers.clone().folded(Binary::Add, [3]);
        let value = fmha.rounded(summed(powers.clone(), 3)).matmul(values);
        let mut computed = vec![all(largest, &sum), value / sum.clone()];
        let [m, l, o, factor, weight] = [0, 1, 2, 3, 4].map(Fused::input);
        let (m, l) = (m * softmax.ln(), l.folded(Binary::Add, [1]));
        let o = if fmha.value_width() > fmha.value_dim { o.slice(1, 0, fmha.value_dim) } else { o };
        let mut states = vec![softmax.largest, softmax.sums, sums];
        let mut form = vec![all(m, &l)];
        match weights {
            Some(weights) => {
                states.extend([softmax.factors, weights]);
                form.push(o * factor / l.clone());
                form.push(weight.slice(1, 0, ahead.clone()) / l);
                computed.push(powers.slice(3, 0, ahead) / sum);
            }
            None => form.push(o / l),
        }
        let kind = Kind::Fused(Fused::all(computed));
        (Some(Fused::all(form)), Header::new(kind, states, ins.to_vec(), threads))
    }

    /// So many queries' result, of them and of all keys and values of their head: views of global memory, the latter of which are
    /// given as well. `m`: which of a head's such tiles it is.
    pub(super) fn computed(
        &self,
        k: &mut Builder,
        rows: i64,
        m: &Expr,
        threads: ThreadsId,
    ) -> Result<(Header, Vec<TensorId>)> {
        let Given { fmha, params, mask, .. } = *self.given;
        let (one, zero) = (Tiler::Size(1), 0.into());
        let whole = [one.clone(), one.clone(), Tiler::Whole, Tiler::Whole];
        let of_head = [&self.batch, &self.kv_head, &zero, &zero];
        let mut ins = vec![
            self.rows(k, 0, rows, m)?,
            tile_of(k, params[1], "k_tile", &whole, of_head)?,
            tile_of(k, params[2], "v_tile", &whole, of_head)?,
        ];
        if let Some(mask) = mask {
            let of_rows = [one.clone(), one, Tiler::Size(rows), Tiler::Whole];
            let (tiles, at) = match fmha.mask {
                Mask::Dense(_) => (&of_rows[..], &self.at(0, m.clone(), zero)[..]),
                Mask::PerKey(_) | Mask::None => (&whole[1..3], &[self.batch.clone(), zero][..]),
            };
            ins.push(tile_of(k, mask, "mask_tile", tiles, at)?);
        }
        let out = self.rows(k, 3, rows, m)?;
        let [queries, keys, values] = [0, 1, 2].map(Fused::input);
        let scores = fmha.scores([queries, keys], fmha.tile_mask(), [2, 3], m.clone() * rows);
        let kind = Kind::Fused(fmha.attention(scores, values, 3));
        Ok((Header::new(kind, out, ins.clone(), threads), ins))
    }
}
