//! A chain of layers for Hopper: rows stay in registers, weights come by tensor copies.
//!
//! Each consumer warpgroup takes 64 rows through all layers. A layer's sums, with what becomes of them, are the next
//! layer's left operand where they are: fragments of accumulators are fragments of operands. So no activation meets
//! shared memory. One thread streams all layers' weights through the stages of a pipeline.
//!
//! A layer's columns are two parts. While the tensor cores compute one part's sums, those of the other become
//! activations; the next layer begins on the part that is there:
//!
//! | tensor cores | beside them |
//! |---|---|
//! | first part of the sums, of the input's first part | the input's second part is made |
//! | first part, of the input's second; second part, of the input's first | |
//! | second part, of the input's second | the output's first part is made |
//!
//! All is cut into panels of 64 columns: weights, rows and results move by 64×64. X and results in single precision are
//! read to registers and written from them instead.
//!
//! Levels:
//!
//! - kernel: all results, of X, weights and what epilogues meet
//!   - tile by a warpgroup: 64 rows of them, by a consumer; nothing is in flight where its loop over layers begins again
//!     - load by a warpgroup: a panel of the rows of X
//!     - stage by a warpgroup: adds a matmul of a panel and a stage of weights to the sums
//!     - registers by a warpgroup: the panel that a panel of sums becomes
//!       - registers by a thread: the epilogue's function of a run of sums
//!     - epilogue by a warpgroup: the last layer's results, of a panel of sums
//!       - registers by a thread: the epilogue's function of a run of sums

mod consumer;
mod rows;

use super::{Given, Layer, Mlp};
use crate::schedule::{Pipeline, PipelineState, WIDTH, each, neighbours};
use crate::template::fragments::{BARRIERS, GROUP, PRODUCER_REGISTERS, Panels, ROWS, own_group};
use crate::template::matmul::{Edges, leaf};
use crate::template::{access::launch, epilogue::Span};
use crate::{
    Arch, AtLeast, Builder, Cond, Expr, Group, Header, Kernel, Kind, Memory, Operand, Result,
    Scalar, TensorId, ThreadsId, Tiler, View, WARP, Within, choose::ceil, needs,
};

parameters! {
    /// How layers are computed by warpgroups.
    #[derive(Copy)]
    pub struct Warpgroups {
        /// Consumer warpgroups, 1 to 3, of 64 rows each.
        pub consumers: i64 = 1,
        /// Pipeline stages.
        pub stages: i64 = 2,
    }
}

/// Columns of a panel: 128 bytes.
const PANEL: i64 = 64;

/// Stages that are enough.
const STAGES: i64 = 24;

/// Panels of each part of so many columns, the first as large as the other or larger.
fn parts(width: i64) -> Vec<i64> {
    match width / PANEL {
        1 => vec![1],
        all => vec![(all + 1) / 2, all / 2],
    }
}

/// Columns of a stage: of the widest part of a layer.
fn part_columns(mlp: &Mlp) -> i64 {
    mlp.layers.iter().map(|layer| parts(layer.width)[0]).fold(1, i64::max) * PANEL
}

impl Warpgroups {
    /// The kernel for Hopper, with the symbols, parameters and levels of [`Mlp::kernel`]; of its parameters it takes no rows,
    /// depth, warps or stages. Columns are multiples of 64, at most 256.
    pub fn kernel(self, mlp: &Mlp) -> Result<Kernel> {
        self.check(mlp)?;
        let mut k = Builder::new("mlp", Arch::Sm90a);
        let (m, x, given) = mlp.parameters(&mut k)?;
        let blocks = m.ceil_div(ROWS * self.consumers);
        let (block, tile) = launch(&mut k, blocks, GROUP * (self.consumers + 1), "m")?;
        let groups = k.tile(block, "warpgroups", &[Tiler::Size(GROUP)])?;
        let context = Shared { mlp, by: self, given, x, block, groups, tile };
        let memory = context.memory(&mut k)?;
        k.spec(Kind::Sync, (), (), block)?;
        k.role(groups, 0..self.consumers, |k| context.consume(k, &memory))?;
        k.role(groups, self.consumers..self.consumers + 1, |k| context.produce(k, &memory))?;
        k.finish_as(mlp.header((x, &context.given), block, |of, _| Ok(of))?)
    }

    /// Blocks of so many consumers, with as many stages as there is shared memory for; whether a kernel has such layers,
    /// [`kernel`](Self::kernel) says.
    pub fn fitting(mlp: &Mlp, consumers: i64) -> Warpgroups {
        // Measured on an H100 at 20 layers of 128 columns and 1 to 16384 rows: clusters of two blocks that share weights take
        // 1.04 to 1.14 of the time of blocks alone, stages of twice the depth 1.03 to 1.10.
        let of = |stages| Warpgroups { consumers, stages };
        let fits = |&stages: &i64| of(stages).check(mlp).is_ok();
        of((2..=STAGES).rev().find(fits).unwrap_or(2))
    }

    /// Whether warpgroups take so wide an X and so wide layers.
    pub fn are_for(widths: &[i64]) -> bool {
        widths.iter().all(|width| (PANEL..=4 * PANEL).contains(width) && width % PANEL == 0)
    }

    fn check(self, mlp: &Mlp) -> Result {
        mlp.check_layers()?;
        let Warpgroups { consumers, stages } = self;
        let half = matches!(mlp.scalar, Scalar::F16 | Scalar::Bf16);
        needs(half && mlp.edges == Edges::Bulk, "aligned rows of fp16 or bf16", mlp.scalar)?;
        Within(1, if mlp.widest() > 2 * PANEL { 2 } else { 3 }).check("consumers", consumers)?;
        // No stage is released before all of a layer's matmuls have begun.
        let used = |l: usize| mlp.input(l) / PANEL * parts(mlp.layers[l].width).len() as i64;
        let most = (0..mlp.layers.len()).map(used).fold(2, i64::max);
        AtLeast(most).check("stages", stages)?;
        let one = |pair: &[Layer]| pair[0].transposed == pair[1].transposed;
        needs(mlp.layers.windows(2).all(one), "weights of one layout", &mlp.layers)?;
        Within(1, 16).check("layers that differ", mlp.layers.len() as i64)?;
        let widths = mlp.layers.iter().map(|layer| layer.width).chain([mlp.width]);
        let widths: Vec<i64> = widths.collect();
        needs(Warpgroups::are_for(&widths), "64, 128, 192 or 256 columns", &widths)?;
        for Layer { epilogue, times, .. } in &mlp.layers {
            let known = |own| [None, Some(mlp.scalar), Some(Scalar::F32)].contains(&own);
            let rows = epilogue.operands.iter().all(|op| op.span == Span::Row && known(op.scalar));
            needs(rows, "rows of the layers' type or in single precision as operands", epilogue)?;
            let one = epilogue.outputs.len() == 1 && known(epilogue.outputs[0]);
            needs(one, "one result of the layers' type or in single precision", epilogue)?;
            Within(1, 256).check("layers that are alike", *times)?;
        }
        let stages = stages * PANEL * part_columns(mlp);
        let rows = if mlp.copies().contains(&true) { ROWS * consumers * mlp.widest() } else { 0 };
        let bytes = (stages + rows) * mlp.scalar.bytes() + mlp.row_bytes();
        needs(bytes + BARRIERS <= Arch::Sm90a.shared_memory(), "stages that fit a block", bytes)
    }
}

struct Shared<'a> {
    mlp: &'a Mlp,
    by: Warpgroups,
    given: Vec<Given>,
    x: TensorId,
    block: ThreadsId,
    groups: ThreadsId,
    /// Which of the blocks' rows are the own ones.
    tile: Expr,
}

/// Shared memory, and its barriers.
struct Near {
    /// `[group, panel].[64, 64]`: X, then the last layer's result, as far as they move by tensor copies.
    rows: Option<TensorId>,
    /// `[stage].[64, columns]` of weights.
    weights: TensorId,
    /// Each layer's operands, `[times, columns]`.
    operands: Vec<Vec<TensorId>>,
    /// X and the operands are there; a stage of weights is.
    begun: Pipeline,
    pipeline: Pipeline,
}

impl Shared<'_> {
    fn memory(&self, k: &mut Builder) -> Result<Near> {
        let (mlp, Warpgroups { consumers, stages }) = (self.mlp, self.by);
        let scalar = mlp.scalar;
        let panel = Panels { rows: ROWS, columns: PANEL, scalar };
        let (copies, tiles) = (mlp.copies(), [consumers, mlp.widest() / PANEL]);
        let rows = copies.contains(&true).then(|| panel.allocate(k, "sY", &tiles, false));
        let rows = rows.transpose()?;
        let (turned, columns) = (mlp.layers[0].transposed, part_columns(mlp));
        let [rows_of, columns] = if turned { [PANEL, columns] } else { [columns, PANEL] };
        let stage = Panels { rows: rows_of, columns, scalar };
        let weights = stage.allocate(k, "sW", &[stages], !turned)?;
        let mut operands = Vec::new();
        for (layer, given) in mlp.layers.iter().zip(&self.given) {
            let view = View::buffer(&[leaf(layer.times, layer.width), leaf(layer.width, 1)]);
            let mut own = Vec::new();
            for &(_, of) in &given.operands {
                let scalar = k.tensor_of(of)?.scalar;
                own.push(k.allocate("sB", view.clone(), scalar, Memory::Shared, None)?);
            }
            operands.push(own);
        }
        let movers = WARP + i64::from(copies[0]);
        let begun = Pipeline::new(k, 1, [movers, 4 * consumers], self.block)?;
        let pipeline = Pipeline::new(k, stages, [1, 4 * consumers], self.block)?;
        Ok(Near { rows, weights, operands, begun, pipeline })
    }

    /// What the producer warpgroup does: one thread issues tensor copies.
    fn produce(&self, k: &mut Builder, near: &Near) -> Result {
        let (own, _) = own_group(k, self.groups)?;
        k.spec(Kind::Registers(PRODUCER_REGISTERS), (), (), own)?;
        self.bring_operands(k, near)?;
        let first = GROUP * self.by.consumers;
        k.role(self.block, first..first + 1, |k| {
            if let Some(rows) = near.rows.filter(|_| self.mlp.copies()[0]) {
                let begun = near.begun.begin(k, "filling_rows")?;
                self.begin(k, &begun, rows)?;
            }
            let state = near.pipeline.begin(k, "filling")?;
            for (l, layer) in self.mlp.layers.iter().enumerate() {
                let tiles = [1, PANEL, PANEL].map(Tiler::Size);
                let tiles = k.tile(self.given[l].weights, "gW", &tiles)?;
                let fill = |k: &mut Builder, time: Expr| {
                    self.fill(k, (near.weights, &state), l, (tiles, time))
                };
                match layer.times {
                    1 => fill(k, 0.into())?,
                    times => k.for_("time", 0..times, 1, false, |k, time| fill(k, time.into()))?,
                }
            }
            Ok(())
        })
    }

    /// Brings the own rows of X.
    fn begin(&self, k: &mut Builder, state: &PipelineState, rows: TensorId) -> Result {
        let (mlp, consumers) = (self.mlp, self.by.consumers);
        let from = k.tile(self.x, "gX", &[ROWS, PANEL].map(Tiler::Size))?;
        let one = k.one()?;
        state.produce(k, one, |k, full, _| {
            let bytes = consumers * ROWS * mlp.width * mlp.scalar.bytes();
            k.alone(Kind::Arrive(Some(bytes.into())), full.clone(), ())?;
            for group in 0..consumers {
                for panel in 0..mlp.width / PANEL {
                    let m = self.tile.clone() * consumers + group;
                    let to = k.index(rows, "to", [group, panel])?;
                    let from = Operand::at(from, [m, panel.into()]);
                    k.add(Header::alone(Kind::Move, to, from).signals(full.clone()))?;
                }
            }
            Ok(())
        })
    }

    /// Brings all layers' operands, 16 bytes at a time: what the warp does that follows the one of tensor copies.
    fn bring_operands(&self, k: &mut Builder, near: &Near) -> Result {
        let first = GROUP * self.by.consumers + WARP;
        k.role(self.block, first..first + WARP, |k| {
            let [thread] = k.indices(self.block, ["mover"])?;
            let lane = Expr::from(thread).rem(WARP);
            for (l, to) in near.operands.iter().enumerate() {
                for (&to, &(_, from)) in to.iter().zip(&self.given[l].operands) {
                    let Layer { times, width, .. } = self.mlp.layers[l];
                    let n = WIDTH / k.tensor_of(from)?.scalar.bytes();
                    let rounds = ceil(width / n, WARP);
                    k.for_("time", 0..times, 1, false, |k, time| {
                        each(k, rounds, |k, round| {
                            let run = Expr::from(k.let_("run", round * WARP + &lane)?);
                            k.if_(Cond::less(run.clone(), width / n), |k| {
                                let at = [Expr::from(time), run];
                                let to = neighbours(k, to, at.clone(), n, "run")?;
                                let from = neighbours(k, from, at, n, "run")?;
                                k.add(Header::alone(Kind::Move, to, from).async_())
                            })
                        })
                    })?;
                }
            }
            k.alone(Kind::Commit(Group::Copy), (), ())?;
            k.alone(Kind::WaitGroup(Group::Copy, 0, false), (), ())?;
            k.alone(Kind::Arrive(None), Operand::at(near.begun.full, [0]), ())
        })
    }

    /// Fills the stages of a layer: of each part of its columns all of K.
    fn fill(
        &self,
        k: &mut Builder,
        (stages, state): (TensorId, &PipelineState),
        l: usize,
        (tiles, time): (TensorId, Expr),
    ) -> Result {
        let (mut first, one) = (0, k.one()?);
        for panels in parts(self.mlp.layers[l].width) {
            for step in 0..self.mlp.input(l) / PANEL {
                state.produce(k, one, |k, full, stage| {
                    let bytes = panels * PANEL * PANEL * self.mlp.scalar.bytes();
                    k.alone(Kind::Arrive(Some(bytes.into())), full.clone(), ())?;
                    let to = k.index(stages, "stage", [stage])?;
                    let to = k.tile(to, "panels", &[PANEL; 2].map(Tiler::Size))?;
                    (0..panels).try_for_each(|panel| {
                        let from = [time.clone(), Expr::from(step), Expr::from(first + panel)];
                        let (to, from) = (Operand::at(to, [0, panel]), Operand::at(tiles, from));
                        k.add(Header::alone(Kind::Move, to, from).signals(full.clone()))
                    })
                })?;
            }
            first += panels;
        }
        Ok(())
    }
}
