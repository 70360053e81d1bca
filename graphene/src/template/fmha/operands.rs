//! Operands in global memory, and the symbols of their sizes and strides.

use super::{Fmha, Mask};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::TensorId;
use crate::layout::Layout;
use crate::template::product::leaf;
use crate::tensor::View;

/// The symbols of a kernel.
pub(super) struct Sizes {
    pub(super) batch: Var,
    pub(super) heads: Var,
    pub(super) kv_heads: Var,
    pub(super) queries: Var,
    pub(super) keys: Var,
    /// How many blocks there are.
    pub(super) blocks: Var,
}

impl Fmha {
    /// Symbols and pointers: Q, K, V and O, and the mask.
    pub(super) fn declare(
        &self,
        k: &mut Builder,
    ) -> Result<(Sizes, [TensorId; 4], Option<TensorId>)> {
        let names = ["batch", "heads", "kv_heads", "queries", "keys", "blocks"];
        let [batch, heads, kv_heads, queries, keys, blocks] = names.map(|name| k.symbol(name));
        let (batch, heads, kv_heads) = (batch?, heads?, kv_heads?);
        let sizes =
            Sizes { batch, heads, kv_heads, queries: queries?, keys: keys?, blocks: blocks? };
        let of_queries = [&sizes.heads, &sizes.queries];
        let of_keys = [&sizes.kv_heads, &sizes.keys];
        let operands = [
            self.operand(k, "q", &sizes, of_queries, self.head_dim)?,
            self.operand(k, "k", &sizes, of_keys, self.head_dim)?,
            self.operand(k, "v", &sizes, of_keys, self.value_dim)?,
            self.operand(k, "o", &sizes, of_queries, self.value_dim)?,
        ];
        let mask = self.mask_operand(k, &sizes)?;
        Ok((sizes, operands, mask))
    }

    /// `[batch, heads, rows, dim]`, of keys `[batch, heads, dim, keys]`, by strides of its own.
    fn operand(
        &self,
        k: &mut Builder,
        name: &str,
        sizes: &Sizes,
        [heads, rows]: [&Var; 2],
        dim: i64,
    ) -> Result<TensorId> {
        let mut stride = |of: &str| k.symbol(&format!("{name}_{of}")).map(Expr::from);
        let [batch, head, row] = [stride("batch")?, stride("head")?, stride("row")?];
        let mut dims = [
            Layout::of(&sizes.batch, batch),
            Layout::of(heads, head),
            Layout::of(rows, row),
            leaf(dim, 1),
        ];
        if name == "k" {
            dims.swap(2, 3);
        }
        k.param(&name.to_uppercase(), View::buffer(&dims), self.scalar)
    }

    fn mask_operand(&self, k: &mut Builder, sizes: &Sizes) -> Result<Option<TensorId>> {
        let (scalar, outer) = match self.mask {
            Mask::None => return Ok(None),
            Mask::PerKey(scalar) => (scalar, vec![("mask_batch", &sizes.batch)]),
            Mask::Dense(scalar) => {
                let outer = [
                    ("mask_batch", &sizes.batch),
                    ("mask_head", &sizes.heads),
                    ("mask_row", &sizes.queries),
                ];
                (scalar, outer.to_vec())
            }
        };
        let mut dims = Vec::new();
        for (name, size) in outer {
            dims.push(Layout::of(size, k.symbol(name)?));
        }
        dims.push(Layout::of(&sizes.keys, 1));
        k.param("mask", View::buffer(&dims), scalar).map(Some)
    }
}
