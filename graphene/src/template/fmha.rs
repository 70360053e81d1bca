//! Attention for Hopper, fused (Graphene, Figure 14): `O = softmax(scale·Q·Kᵀ + mask)·V`, row by
//! row of Q, without the scores ever leaving the registers.
//!
//! Blocks are persistent: each takes one tile of queries of one head after the other. One warpgroup
//! produces: it brings the queries, and tiles of keys and values into two rings. The others consume:
//! each has 64 queries, and goes through the keys from the last tile to the first. While the tensor
//! cores compute the sum over the values of one tile, the weights of the next are made.
//!
//! Queries, keys, values and the result have strides of their own for the batch, heads and rows;
//! elements of a row are contiguous. So a packed `[batch, row, 3, heads, dim]` is read in place.
//!
//! - this file: the parameters, the kernel's outline, and the walk over tiles;
//! - `producer`: how the rings are filled;
//! - `consumer`: the products, and what happens between them;
//! - `scores`: scale, cap and masks;
//! - `epilogue`: how the result leaves;
//! - `ampere`: the same for what came before Hopper, by `mma`, `ldmatrix` and `cp.async`, and for
//!   single precision.

mod ampere;
mod consumer;
mod epilogue;
mod producer;
mod scores;

use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::index::{Expr, Var};
use crate::kernel::{Kernel, Kind, Number, Operand, TensorId, ThreadsId};
use crate::layout::Swizzle;
use crate::schedule::{Pipeline, Units};
use crate::tensor::{Memory, Scalar, Shape, Tile, View};

/// The parameters of attention.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fmha {
    /// The type of queries, keys, values and the result: halves, or, but for Hopper's tensor cores,
    /// single precision. Scores, weights and sums are of single precision; weights are rounded to
    /// this type for their product with the values.
    pub scalar: Scalar,
    /// Elements of a query and of a key: a multiple of 16, at most 256.
    pub head_dim: i64,
    /// Elements of a value: likewise.
    pub value_dim: i64,
    /// Consumer warpgroups, 1 to 3, with 64 queries each.
    pub consumers: i64,
    /// Keys of a tile: a multiple of 16, at most 256.
    pub keys: i64,
    /// Stages of the ring of keys, and of that of values.
    pub stages: i64,
    /// Multiplies the scores.
    pub scale: Number,
    /// Scores become `softcap·tanh(score/softcap)`, before the mask.
    pub softcap: Option<Number>,
    /// What is added to the scores.
    pub mask: Mask,
    /// What the score of a key becomes that a mask of type `u8` forbids: -∞, or a finite number, so
    /// that a row all of whose keys are forbidden has the same weight for each of them. Keys beyond
    /// the last, and those that come after the query if it is `causal`, have a weight of 0 always.
    pub fill: Number,
    /// Query i attends keys 0 to i only.
    pub causal: bool,
    /// Whether a row that may attend nowhere, or has a score that is no number, gives zeros rather
    /// than NaN. A NaN among the values becomes zero as well.
    pub guarded: bool,
}

/// What is added to the scores. Of type `u8`, it says which keys may be attended: 0 forbids one,
/// which adds -∞, or makes its score [`Fmha::fill`]; otherwise it is added as it is, from the type of
/// the queries or from `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Nothing.
    None,
    /// `[batch, keys]`, keys contiguous, the batch with the stride `mask_batch`, which may be 0.
    PerKey(Scalar),
    /// `[batch, heads, queries, keys]`, keys contiguous, the others with the strides `mask_batch`,
    /// `mask_head` and `mask_row`, each of which may be 0.
    Dense(Scalar),
}

/// Rows of a warpgroup's product.
const ROWS: i64 = 64;

/// The threads of a warpgroup.
const GROUP: i64 = 128;

/// The registers of a thread that issues copies.
const PRODUCER_REGISTERS: i64 = 40;

impl Default for Fmha {
    fn default() -> Fmha {
        Fmha {
            scalar: Scalar::F16,
            head_dim: 64,
            value_dim: 64,
            consumers: 2,
            keys: 128,
            stages: 2,
            scale: Number(0.125),
            softcap: None,
            mask: Mask::None,
            fill: Number(f64::NEG_INFINITY),
            causal: false,
            guarded: false,
        }
    }
}

/// The symbols of a kernel.
struct Sizes {
    batch: Var,
    heads: Var,
    kv_heads: Var,
    queries: Var,
    keys: Var,
    /// How many blocks there are.
    blocks: Var,
}

/// What the parts of the kernel share.
struct Context<'a> {
    fmha: &'a Fmha,
    sizes: Sizes,
    /// The block's threads, each on its own.
    one: ThreadsId,
    block: ThreadsId,
    /// The block's threads as warpgroups.
    groups: ThreadsId,
    /// The block's first tile.
    first: Expr,
    /// Queries, keys and values: their barriers, and where they lie in shared memory:
    /// `[rows, dim]`, `[stages].[dim, keys]`, `[stages].[keys, dim]`.
    rings: [Pipeline; 3],
    shared: [TensorId; 3],
    /// Q, K, V and O in global memory.
    operands: [TensorId; 4],
    mask: Option<TensorId>,
}

/// A tile of queries.
struct Place {
    batch: Expr,
    head: Expr,
    /// The head of its keys and values.
    kv_head: Expr,
    /// Its number among those of its head.
    m: Expr,
    /// How many tiles of keys it attends.
    steps: Expr,
}

impl Place {
    /// The number of the tile of keys that is `step`-th from the last.
    fn tile(&self, step: impl Into<Expr>) -> Expr {
        (self.steps.clone() - 1 - step.into()).max(Expr::from(0))
    }
}

impl Fmha {
    /// Queries of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.consumers
    }

    /// The kernel, with the symbols batch, heads, kv_heads (which divides heads), queries, keys (at
    /// least 1), the number of blocks, and strides in elements: `q_batch`, `q_head`, `q_row`,
    /// likewise of k, v and o, and those of the mask.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        if self.scalar.bytes() != 2 {
            return Err(Error::Kernel(format!("operands are halves: {self:?}")));
        }
        let mut k = Builder::new("fmha", Arch::Sm90a);
        let (sizes, operands, mask) = self.declare(&mut k)?;
        let grid = k.grid("grid", line(&sizes.blocks))?;
        let block = k.block("block", line(GROUP * (self.consumers + 1)))?;
        let context = self.context(&mut k, sizes, operands, mask, [grid, block])?;
        k.role(context.groups, 0..self.consumers, |k| context.consume(k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        let [q, key, value, o] = operands;
        let ins: Vec<TensorId> = [q, key, value].into_iter().chain(mask).collect();
        k.finish(o, ins)
    }

    /// Symbols and pointers: Q, K, V and O, and the mask.
    fn declare(&self, k: &mut Builder) -> Result<(Sizes, [TensorId; 4], Option<TensorId>)> {
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

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if ![Scalar::F16, Scalar::Bf16, Scalar::F32].contains(&self.scalar) {
            return refuse("operands are halves, or of single precision");
        }
        let positive = |cap: Number| cap.0.is_finite() && cap.0 > 0.0;
        let fits = |size: i64| size % 16 == 0 && (16..=256).contains(&size);
        if ![self.head_dim, self.value_dim, self.keys].into_iter().all(fits) {
            return refuse("dimensions and keys of a tile are multiples of 16 up to 256");
        }
        if self.stages < 1 || !(1..=3).contains(&self.consumers) {
            return refuse("a ring has a stage or more, a block one to three consumers");
        }
        if !self.scale.0.is_finite() || self.softcap.is_some_and(|cap| !positive(cap)) {
            return refuse("the scale is finite, a cap positive");
        }
        let fill = self.fill.0;
        if fill != f64::NEG_INFINITY && !(fill.abs() <= f64::from(f32::MAX)) {
            return refuse("what fills scores is -∞ or a number of single precision");
        }
        match self.mask {
            Mask::PerKey(scalar) | Mask::Dense(scalar)
                if ![Scalar::F32, Scalar::U8, self.scalar].contains(&scalar) =>
            {
                refuse("a mask is of f32, of u8, or of the type of the queries")
            }
            Mask::None | Mask::PerKey(_) | Mask::Dense(_) => Ok(()),
        }
    }

    /// Whether the scores of forbidden keys become a finite number.
    fn fills(&self) -> bool {
        let selects = matches!(self.mask, Mask::PerKey(Scalar::U8) | Mask::Dense(Scalar::U8));
        selects && self.fill.0.is_finite()
    }

    /// What scores count in when weights are made of them.
    fn units(&self) -> Units {
        if self.mask == Mask::None && self.softcap.is_none() && self.scale.0 > 0.0 {
            Units::Binary(self.scale.0 * std::f64::consts::LOG2_E)
        } else {
            Units::Natural
        }
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
            Shape::of(&sizes.batch, batch),
            Shape::of(heads, head),
            Shape::of(rows, row),
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
            dims.push(Shape::of(size, k.symbol(name)?));
        }
        dims.push(Shape::of(&sizes.keys, 1));
        k.param("mask", View::buffer(&dims), scalar).map(Some)
    }

    /// Allocates the rings and their barriers.
    fn context(
        &self,
        k: &mut Builder,
        sizes: Sizes,
        operands: [TensorId; 4],
        mask: Option<TensorId>,
        [grid, block]: [ThreadsId; 2],
    ) -> Result<Context<'_>> {
        let one = k.scalar(block, "one")?;
        let [first] = k.indices(grid, ["first"])?;
        let groups = k.tile(block, "warpgroups", &[Tile::of(GROUP)])?;
        let shared = [
            self.allocate(k, "sQ", None, self.rows(), self.head_dim)?,
            self.allocate(k, "sK", Some(self.stages), self.keys, self.head_dim)?,
            self.allocate(k, "sV", Some(self.stages), self.keys, self.value_dim)?,
        ];
        // One thread fills a stage, and one lane of each consumer's warp says that it has left it.
        let mut ring = |stages: i64| Pipeline::new(k, stages, 1, 4 * self.consumers, block);
        let rings = [ring(1)?, ring(self.stages)?, ring(self.stages)?];
        k.spec(Kind::Sync, (), (), block)?;
        Ok(Context {
            fmha: self,
            sizes,
            one,
            block,
            groups,
            first: first.into(),
            rings,
            shared,
            operands,
            mask,
        })
    }

    /// Tiles of `[rows, dim]`, `stages` of them, in panels as wide as the swizzle; of keys
    /// `[dim, keys]`.
    fn allocate(
        &self,
        k: &mut Builder,
        name: &str,
        stages: Option<i64>,
        rows: i64,
        dim: i64,
    ) -> Result<TensorId> {
        let mut dims = vec![leaf(rows, self.panel(dim)), self.panels(rows, dim)];
        if name == "sK" {
            dims.swap(0, 1);
        }
        let stages = stages.map(|stages| vec![leaf(stages, rows * dim)]);
        let levels: Vec<Vec<Shape>> = stages.into_iter().chain([dims]).collect();
        let swizzle = Some(self.swizzle(dim)?);
        k.allocate(name, View::levels_of(&levels), self.scalar, Memory::Shared, swizzle)
    }
}

/// How tiles of `[rows, dim]` lie in shared memory.
impl Fmha {
    /// How wide a panel of rows of this many elements is: as a swizzle of 128, 64 or 32 bytes.
    fn panel(&self, dim: i64) -> i64 {
        let widths = [128, 64, 32].map(|width| width / self.scalar.bytes());
        widths.into_iter().find(|width| dim % width == 0).unwrap_or(dim)
    }

    /// The columns of a tile, panel by panel.
    fn panels(&self, rows: i64, dim: i64) -> Shape {
        let width = self.panel(dim);
        if dim == width {
            return leaf(width, 1);
        }
        Shape::Tuple(vec![leaf(width, 1), leaf(dim / width, rows * width)])
    }

    /// The swizzle that is as wide as a panel.
    fn swizzle(&self, dim: i64) -> Result<Swizzle> {
        let bits = match self.panel(dim) * self.scalar.bytes() {
            128 => 3,
            64 => 2,
            _ => 1,
        };
        Swizzle::new(bits, 4, 3)
    }
}

impl Fmha {
    /// Goes through a block's tiles from its first one: batch by batch, head by head.
    fn each_tile(
        &self,
        k: &mut Builder,
        sizes: &Sizes,
        first: &Expr,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        let Sizes { batch, heads, kv_heads, queries, keys, blocks } = sizes;
        let tiles = |extent: &Var, size: i64| Expr::from(extent).ceil_div(&Expr::from(size));
        let tiles_m = tiles(queries, self.rows());
        let all = tiles_m.clone() * heads * batch;
        k.for_("t", first.clone()..all, blocks, false, |k, t| {
            let (t, heads) = (Expr::from(t), Expr::from(heads));
            let of_head = Expr::from(k.let_("of_head", t.div(&tiles_m))?);
            let mut m = t.rem(&tiles_m);
            if self.causal {
                // Those that attend most come first.
                m = (tiles_m.clone() - 1 - m).max(Expr::from(0));
            }
            let m = Expr::from(k.let_("m", m)?);
            let batch = Expr::from(k.let_("b", of_head.div(&heads))?);
            let head = Expr::from(k.let_("h", of_head.rem(&heads))?);
            let kv_head = k.let_("kv", (head.clone() * kv_heads).div(&heads))?.into();
            let mut steps = tiles(keys, self.keys).max(Expr::from(1));
            if self.causal {
                let rows = (m.clone() + 1) * self.rows();
                steps = steps.min(rows.ceil_div(&Expr::from(self.keys)));
            }
            let steps = k.let_("steps", steps)?.into();
            body(k, &Place { batch, head, kv_head, m, steps })
        })
    }
}

impl Context<'_> {
    fn each_tile(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        self.fmha.each_tile(k, &self.sizes, &self.first, body)
    }

    /// The own warpgroup and its number.
    fn own(&self, k: &mut Builder) -> Result<(ThreadsId, Var)> {
        let [group, _] = k.indices(self.groups, ["group", "in_group"])?;
        Ok((k.index(self.groups, "own", [&group])?, group))
    }
}

/// Registers of an accumulator, or of operands, as products have them: of two rows eight apart, two
/// neighbouring columns of each eight.
fn fragment(k: &mut Builder, name: &str, columns: i64, scalar: Scalar) -> Result<TensorId> {
    let view = View::levels_of(&[vec![leaf(2, 2), leaf(columns / 8, 4)], vec![leaf(2, 1)]]);
    k.allocate(name, view, scalar, Memory::Registers, None)
}

/// All zeros.
fn clear(k: &mut Builder, acc: TensorId, columns: i64, one: ThreadsId) -> Result<()> {
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
fn pack(k: &mut Builder, from: TensorId, to: TensorId, columns: i64, one: ThreadsId) -> Result<()> {
    k.for_("j", 0..columns / 8, 1, true, |k, j| {
        k.for_("half", 0..2, 1, true, |k, half| {
            let (to, from) = (Operand::at(to, [half, j]), Operand::at(from, [half, j]));
            k.spec(Kind::Move, to, from, one)
        })
    })
}

fn leaf(size: i64, stride: i64) -> Shape {
    Shape::of(size, stride)
}

/// One dimension, contiguous.
fn line(size: impl Into<Expr>) -> View {
    View::buffer(&[Shape::of(size, 1)])
}
