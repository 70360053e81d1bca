//! A chain of layers `y ← f(y·W + b)` of one width in one kernel (Graphene, Figure 11), for Ampere and
//! newer.
//!
//! A block takes some rows through all layers. They stay in shared memory, while the layers' weights
//! come in stages: those of the next layer begin to come before this one has finished.

use super::epilogue::{Attached, Span};
use super::mma::Fragments;
use super::product::{Edges, leaf, line};
use super::stage::{Movers, Side};
use crate::arch::Arch;
use crate::build::Builder;
use crate::choose::in_registers;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::index::{Cond, Expr};
use crate::kernel::{Kernel, Kind, TensorId, ThreadsId, Unary};
use crate::schedule::multistage;
use crate::schedule::pointwise::store;
use crate::tensor::{Scalar, Shape, Tile};

/// The parameters of a chain of layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mlp {
    /// The type of rows, weights and biases; sums are in single precision. If that is the type, the
    /// products are of TF32.
    pub scalar: Scalar,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// Columns of every layer's input and output: a multiple of 16, at most 256.
    pub width: i64,
    /// Whether weights are row-major `[layer, in, out]`, that is, the output's column is contiguous;
    /// otherwise the input's is, as in a linear layer's weights.
    pub transposed: bool,
    /// Of a sum and its bias: what all layers but the last compute.
    pub hidden: Function,
    /// What the last layer computes.
    pub last: Function,
    /// Rows of a block: a multiple of 16 for each warp along them.
    pub rows: i64,
    /// The depth of a stage: a multiple of 16 that divides the width.
    pub depth: i64,
    /// Warps of a block; with 64 rows of 256 columns, 8 have registers enough.
    pub warps: i64,
    /// Stages in shared memory.
    pub stages: i64,
}

impl Default for Mlp {
    /// Layers of ReLU.
    fn default() -> Mlp {
        let relu = Function::sum().unary(Unary::Relu);
        Mlp {
            scalar: Scalar::F16,
            arch: Arch::Sm80,
            width: 128,
            transposed: false,
            hidden: relu.clone(),
            last: relu,
            rows: 64,
            depth: 32,
            warps: 4,
            stages: 4,
        }
    }
}

/// The kernel's tensors.
#[derive(Debug, Clone, Copy)]
struct Tensors {
    x: TensorId,
    weights: TensorId,
    bias: TensorId,
    y: TensorId,
}

impl Mlp {
    /// The kernel, with symbols M, the number of rows, and L, that of layers, at least 1. It reads
    /// `X[M,width]`, the weights `W[L,width,width]` and `bias[L,width]`, and writes `Y[M,width]`.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("mlp", self.arch);
        let (m, layers) = (Expr::from(k.symbol("M")?), Expr::from(k.symbol("L")?));
        let tensors = self.declare(&mut k, &m, &layers)?;
        let threads = 32 * self.warps;
        let grid = k.grid("grid", line(m.ceil_div(&Expr::from(self.rows))))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let [m] = k.indices(grid, ["m"])?;
        let [thread] = k.indices(block, ["thread"])?;
        let sides = self.sides();
        let fragments = Fragments::new(&mut k, block, sides, self.warps)?;
        let near = sides[0].allocate(&mut k, "sY", 1)?;
        let near = k.index(near, "sY", [0])?;
        let shared = sides[1].allocate(&mut k, "sW", self.stages)?;
        let acc = fragments.clear(&mut k)?;
        let movers = Movers { threads, thread: &thread, one, edges: Edges::Bulk };
        // The rows come with the first stage.
        let rows = sides[0].tiled(&mut k, tensors.x, false)?;
        let rows = k.index(rows, "rows", [Expr::from(&m), Expr::from(0)])?;
        sides[0].fill(&mut k, rows, near, movers)?;
        let weights = sides[1].tiled(&mut k, tensors.weights, true)?;
        let per_layer = Expr::from(self.width / self.depth);
        let steps = layers.clone() * &per_layer;
        multistage(
            &mut k,
            self.stages,
            &steps,
            block,
            |k, step, stage| {
                k.if_(Cond::less(step, &steps), |k| {
                    let at = [step.div(&per_layer), step.rem(&per_layer), Expr::from(0)];
                    let from = k.index(weights, "tile", at)?;
                    let to = k.index(shared, "stage", [stage])?;
                    sides[1].fill(k, from, to, movers)
                })
            },
            |k, step, stage| {
                let step = Expr::from(step);
                let of_layer = step.rem(&per_layer);
                let stage = k.index(shared, "b", [stage])?;
                let skipped = of_layer.clone() * (self.depth / 16);
                fragments.multiply(k, acc, near, &skipped, stage)?;
                let complete = Cond::equal(of_layer, per_layer.clone() - 1);
                k.if_(vec![complete, Cond::less(step.clone() + 1, &steps)], |k| {
                    let layer = step.div(&per_layer);
                    let epilogue = self.epilogue(k, &self.hidden, tensors, &layer)?;
                    // All of the block have used the layer's input.
                    k.spec(Kind::Sync, (), (), block)?;
                    self.keep(k, &fragments, &epilogue, acc, near, one)?;
                    fragments.reset(k, acc)
                })
            },
        )?;
        let layer = (layers.clone() - 1).max(Expr::from(0));
        let epilogue = self.epilogue(&mut k, &self.last, tensors, &layer)?;
        let origin = [Expr::from(&m) * self.rows, Expr::from(0)];
        fragments.each_pair(&mut k, acc, &epilogue, None, &origin, |k, sums, run, across| {
            epilogue.leave(k, sums, run, across, &[0], one)
        })?;
        k.finish(tensors.y, [tensors.x, tensors.weights, tensors.bias])
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.width % 16 != 0 || !(16..=256).contains(&self.width) {
            return refuse("a layer has 16, 32, … 256 columns");
        }
        if self.depth < 16 || self.depth % 16 != 0 || self.width % self.depth != 0 {
            return refuse("a stage's depth is a multiple of 16, and divides the width");
        }
        if self.arch < Arch::Sm80 || self.stages < 2 || !(1..=32).contains(&self.warps) {
            return refuse("two stages at least, a block of 1 to 32 warps, of sm_80 or newer");
        }
        if [&self.hidden, &self.last].iter().any(|f| f.inputs() > 2 || f.outputs().len() != 1) {
            return refuse("a layer's function is of a sum and a bias");
        }
        if self.rows < 16 {
            return refuse("a block has 16 rows at least");
        }
        if !in_registers(self.rows * self.width, 32 * self.warps) {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }

    fn declare(&self, k: &mut Builder, m: &Expr, layers: &Expr) -> Result<Tensors> {
        let (width, scalar) = (Expr::from(self.width), self.scalar);
        let rows = Shape::rows([m, &width]);
        let (from, to) = if self.transposed { (self.width, 1) } else { (1, self.width) };
        let weights = [
            Shape::of(layers, self.width * self.width),
            leaf(self.width, from),
            leaf(self.width, to),
        ];
        Ok(Tensors {
            x: k.param("X", rows.clone(), scalar)?,
            weights: k.param("W", weights, scalar)?,
            bias: k.param("bias", Shape::rows([layers, &width]), scalar)?,
            y: k.param("Y", rows, scalar)?,
        })
    }

    /// The rows, and a stage of weights.
    fn sides(&self) -> [Side; 2] {
        let chunk = |transposed| Fragments::chunk(self.scalar, transposed);
        let side = |right, size, depth, transposed| Side {
            right,
            size,
            depth,
            transposed,
            scalar: self.scalar,
            chunk: chunk(transposed),
        };
        [
            side(false, self.rows, self.width, false),
            side(true, self.width, self.depth, self.transposed),
        ]
    }

    /// What a layer does with its sums.
    fn epilogue(
        &self,
        k: &mut Builder,
        function: &Function,
        tensors: Tensors,
        layer: &Expr,
    ) -> Result<Attached> {
        let bias = k.tile(tensors.bias, "biases", &[Tile::of(1), Tile::Whole])?;
        let bias = k.index(bias, "bias", [layer.clone(), Expr::from(0)])?;
        let bias = k.reshape(bias, "bias", 0, &[&[(self.width, 1)]])?;
        let operands = vec![(Span::Row, bias)];
        Ok(Attached::new(function.clone(), operands, vec![tensors.y], Edges::Bulk))
    }

    /// The layer's result takes the place of its input.
    fn keep(
        &self,
        k: &mut Builder,
        fragments: &Fragments,
        epilogue: &Attached,
        acc: TensorId,
        near: TensorId,
        one: ThreadsId,
    ) -> Result<()> {
        let pairs = k.tile(near, "pairs", &[Tile::of(1), Tile::of(2)])?;
        let origin = [0, 0].map(Expr::from);
        fragments.each_pair(k, acc, epilogue, None, &origin, |k, sums, run, across| {
            let outs = epilogue.finished(k, sums, run, across, &[0], one)?;
            let to = k.index(pairs, "to", [&run.row, &run.column])?;
            let to = k.reshape(to, "to", 0, &[&[(2, 1)]])?;
            store(k, to, outs[0], 2, true, one)
        })
    }
}
