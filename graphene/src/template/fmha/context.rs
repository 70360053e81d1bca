//! What the parts of a kernel for Hopper share: stages of tiles in shared memory, and their barriers.

use super::operands::Sizes;
use super::tiles::Place;
use super::{Fmha, GROUP, Mask, WARP};
use crate::build::Builder;
use crate::error::Result;
use crate::index::{Expr, Var};
use crate::kernel::{Kind, TensorId, ThreadsId};
use crate::layout::{Layout, Swizzle, Tiler};
use crate::schedule::{OrderedBarrier, Pipeline};
use crate::template::product::leaf;
use crate::tensor::{Memory, Scalar, View};

/// Barriers, and where tiles begin at multiples of 1024 bytes.
const BESIDE: i64 = 2048;

/// What the parts of the kernel share.
pub(super) struct Context<'a> {
    pub(super) fmha: &'a Fmha,
    pub(super) sizes: Sizes,
    /// The block's threads, each on its own.
    pub(super) one: ThreadsId,
    pub(super) block: ThreadsId,
    /// The block's threads as warpgroups.
    pub(super) groups: ThreadsId,
    /// The block's first tile.
    first: Expr,
    /// Queries, keys and values: their barriers, and where they lie in shared memory:
    /// `[rows, dim]`, `[stages].[dim, keys]`, `[stages].[keys, dim]`.
    pub(super) pipelines: [Pipeline; 3],
    /// In which order consumers multiply; none if there is one.
    pub(super) order: Option<OrderedBarrier>,
    pub(super) shared: [TensorId; 3],
    /// Q, K, V and O in global memory.
    pub(super) operands: [TensorId; 4],
    pub(super) mask: Option<TensorId>,
    /// Of a mask of one element a key: `[stages].[keys]`, what [`Scorer`](super::scores::Scorer)
    /// makes of it, in the stages of the keys.
    pub(super) terms: Option<TensorId>,
}

impl Fmha {
    /// Allocates the stages and their barriers.
    pub(super) fn context(
        &self,
        k: &mut Builder,
        sizes: Sizes,
        operands: [TensorId; 4],
        mask: Option<TensorId>,
        [grid, block]: [ThreadsId; 2],
    ) -> Result<Context<'_>> {
        let one = k.scalar(block, "one")?;
        let [first] = k.indices(grid, ["first"])?;
        let cta = k.index(grid, "cta", [&first])?;
        k.by(cta);
        let groups = k.tile(block, "warpgroups", &[Tiler::Size(GROUP)])?;
        let shared = [
            self.allocate(k, "sQ", None, self.rows(), self.head_width())?,
            self.allocate(k, "sK", Some(self.stages), self.keys, self.head_width())?,
            self.allocate(k, "sV", Some(self.stages), self.keys, self.value_width())?,
        ];
        let terms = match self.mask {
            Mask::PerKey(_) => Some(self.allocate_terms(k)?),
            Mask::None | Mask::Dense(_) => None,
        };
        // One thread fills a stage, and one lane of each consumer's warp says that it has left it.
        // The lanes of a warp bring the mask.
        let of_keys = if terms.is_some() { 1 + WARP } else { 1 };
        let mut pipeline =
            |stages: i64, by: i64| Pipeline::new(k, stages, by, 4 * self.consumers, block);
        let pipelines =
            [pipeline(1, 1)?, pipeline(self.stages, of_keys)?, pipeline(self.stages, 1)?];
        let several = self.consumers > 1;
        let order = several.then(|| OrderedBarrier::new(k, self.consumers, block)).transpose()?;
        k.spec(Kind::Sync, (), (), block)?;
        Ok(Context {
            fmha: self,
            sizes,
            one,
            block,
            groups,
            first: first.into(),
            pipelines,
            order,
            shared,
            operands,
            mask,
            terms,
        })
    }

    /// Bytes of shared memory that a block of the kernel for Hopper uses, with what pipelines need beside
    /// their tiles.
    pub fn bytes(&self) -> u64 {
        let (head, value) = (self.head_width(), self.value_width());
        let of_queries = self.rows() * (head + value);
        let halves = of_queries + self.stages * self.keys * (head + value);
        (halves * self.scalar.bytes() + self.stages * self.keys * 4 + BESIDE).unsigned_abs()
    }

    fn allocate_terms(&self, k: &mut Builder) -> Result<TensorId> {
        let view = View::levels_of(&[vec![leaf(self.stages, self.keys)], vec![leaf(self.keys, 1)]]);
        k.allocate("sM", view, Scalar::F32, Memory::Shared, None)
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
        let levels: Vec<Vec<Layout<Expr>>> = stages.into_iter().chain([dims]).collect();
        let swizzle = Some(self.swizzle(dim)?);
        k.allocate(name, View::levels_of(&levels), self.scalar, Memory::Shared, swizzle)
    }
}

impl Context<'_> {
    pub(super) fn each_tile(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Place) -> Result<()>,
    ) -> Result<()> {
        self.fmha.each_tile(k, &self.sizes, &self.first, body)
    }

    /// The own warpgroup and its number.
    pub(super) fn own(&self, k: &mut Builder) -> Result<(ThreadsId, Var)> {
        let [group, _] = k.indices(self.groups, ["group", "in_group"])?;
        Ok((k.index(self.groups, "own", [&group])?, group))
    }
}

/// How tiles of `[rows, dim]` lie in shared memory.
impl Fmha {
    /// How wide a panel of rows of this many elements is: as a swizzle of 128, 64 or 32 bytes.
    pub(super) fn panel(&self, dim: i64) -> i64 {
        let widths = [128, 64, 32].map(|width| width / self.scalar.bytes());
        widths.into_iter().find(|width| dim % width == 0).unwrap_or(dim)
    }

    /// The columns of a tile, panel by panel.
    pub(super) fn panels(&self, rows: i64, dim: i64) -> Layout<Expr> {
        let width = self.panel(dim);
        if dim == width {
            return leaf(width, 1);
        }
        Layout::join(vec![leaf(width, 1), leaf(dim / width, rows * width)])
    }

    /// The swizzle that is as wide as a panel.
    pub(super) fn swizzle(&self, dim: i64) -> Result<Swizzle> {
        let bits = match self.panel(dim) * self.scalar.bytes() {
            128 => 3,
            64 => 2,
            _ => 1,
        };
        Swizzle::new(bits, 4, 3)
    }
}
