//! Recurrent layers in one launch: LSTM, GRU and plain ones, with ONNX's operands and equations, for
//! Ampere and newer.
//!
//! A block has some units, all gates of them, of one direction and of some rows of the batch. It goes
//! through all steps: it adds the products of the step's input with W, waits until the blocks of the
//! same rows and direction have written the last step's h, adds the products of that with R, applies
//! the cell and writes its part of h. What it keeps stays with its threads, in single precision; its
//! parts of W and R stay in shared memory where they fit. The input's products need not wait, so that
//! they hide what the barrier takes.
//!
//! - this file: the parameters and the kernel's outline;
//! - `cell`: LSTM, GRU, plain;
//! - `steps`: what a block does in each step;
//! - `sums`: a step's products, and which thread has which sums.

mod cell;
mod steps;
mod sums;

pub use self::cell::{Cell, Own};
use self::steps::Context;
use self::sums::Sums;
use super::product::{Edges, line};
use super::stage::{Movers, Side};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::index::Expr;
use crate::kernel::{Kernel, TensorId};
use crate::tensor::{Scalar, Shape};

/// The parameters of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recurrent {
    /// The type of all operands and results; sums are in single precision. Single precision is
    /// multiplied by IEEE fused multiply-adds.
    pub scalar: Scalar,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// How operands move. By several elements at a time, `inputs` and `hidden` are multiples of 16
    /// bytes.
    pub edges: Edges,
    /// What a unit computes.
    pub cell: Cell,
    /// Which way the layer runs.
    pub direction: Direction,
    /// Elements of an input.
    pub inputs: i64,
    /// Units of a direction.
    pub hidden: i64,
    /// Whether there are biases.
    pub bias: bool,
    /// Whether h, and c of an LSTM, are given to begin with; otherwise they are 0.
    pub initial: [bool; 2],
    /// Whether h of all steps is a result, and h and c of the last.
    pub results: [bool; 3],
    /// Units of a block: a multiple of 8, of 16 if a unit has an odd number of sums.
    pub units: i64,
    /// Rows of the batch that a block has: a multiple of 16, or 8 in single precision.
    pub rows: i64,
    /// The depth of a stage: a multiple of 16.
    pub depth: i64,
    /// Warps along the rows and along the units.
    pub warps: [i64; 2],
    /// How many times as many warps there are, each of which multiplies a part of the depth.
    pub slices: i64,
    /// Stages in shared memory.
    pub stages: i64,
    /// Whether the block's part of W, and of R, stays in shared memory.
    pub resident: [bool; 2],
}

/// Which way a layer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first step.
    Forward,
    /// From the last step.
    Reverse,
    /// Both, each with its own weights.
    Both,
}

impl Default for Recurrent {
    fn default() -> Recurrent {
        Recurrent {
            scalar: Scalar::F16,
            arch: Arch::Sm80,
            edges: Edges::Bulk,
            cell: Cell::default(),
            direction: Direction::Forward,
            inputs: 512,
            hidden: 512,
            bias: true,
            initial: [false; 2],
            results: [true; 3],
            units: 8,
            rows: 32,
            depth: 64,
            warps: [2, 1],
            slices: 4,
            stages: 4,
            resident: [true; 2],
        }
    }
}

/// The symbols.
struct Sizes {
    steps: Expr,
    batch: Expr,
    parts: Expr,
}

/// The kernel's tensors.
struct Tensors {
    x: TensorId,
    /// W and R.
    weights: [TensorId; 2],
    bias: Option<TensorId>,
    first_h: Option<TensorId>,
    first_c: Option<TensorId>,
    counter: Option<TensorId>,
    /// What is read in place of h, the second time in a step.
    reset: Option<TensorId>,
    /// h of all steps, or of the last two in turn.
    y: TensorId,
    last_h: Option<TensorId>,
    last_c: Option<TensorId>,
}

impl Recurrent {
    /// The kernel, with symbols `steps` (1 at least), `batch`, and `parts`: how many tiles of rows of
    /// the batch are worked on at a time. All blocks, which are as many times the layer's
    /// [`blocks`](Recurrent::blocks), must be resident together.
    ///
    /// It reads `X[steps,batch,inputs]`, `W[direction,gate,hidden,inputs]`,
    /// `R[direction,gate,hidden,hidden]`, `bias[direction,2,gate,hidden]` (of W, of R), and `h0`, `c0`
    /// of `[direction,batch,hidden]`; it writes `Y[steps,direction,batch,hidden]` and `Y_h`, `Y_c` of
    /// `[direction,batch,hidden]`. If Y is no result it is room for `[2,direction,batch,hidden]`; if the
    /// cell resets, `reset` is room for `[direction,batch,hidden]`. The `counter`s, one for each direction
    /// and tile of rows, are 0 before and after a launch; where a block has all units there are none.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut builder = Builder::new("recurrent", self.arch);
        let k = &mut builder;
        let [steps, batch, parts] = ["steps", "batch", "parts"].map(|name| k.symbol(name));
        let sizes = Sizes { steps: steps?.into(), batch: batch?.into(), parts: parts?.into() };
        let tensors = self.declare(k, &sizes)?;
        let grid = Shape::rows([&Expr::from(self.directions()), &sizes.parts, &self.members()]);
        let grid = k.grid("grid", grid)?;
        let threads = self.threads();
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let [direction, part, units] = k.indices(grid, ["direction", "part", "units"])?;
        let [thread] = k.indices(block, ["thread"])?;
        let sides = self.sides();
        let sums = Sums::new(k, block, sides, self.sums(), self.warps, self.slices)?;
        let rows = sides[0].allocate(k, "sA", self.stages)?;
        let both = self.resident == [true; 2];
        let weights = (!both).then(|| sides[1].allocate(k, "sB", self.stages)).transpose()?;
        let mut resident = [None; 2];
        for (i, name) in ["sW", "sR"].into_iter().enumerate() {
            if self.resident[i] {
                resident[i] = Some(sides[1].allocate(k, name, self.chunks(i))?);
            }
        }
        let acc = sums.allocate(k)?;
        let own = if self.cell.own == Own::Nothing { None } else { Some(sums.state(k, "own")?) };
        let kept = self.cell.reset.is_some().then(|| sums.state(k, "kept")).transpose()?;
        let first = sums.of_columns(k, "first")?;
        let parts = sums.parts(k)?;
        let movers = Movers { threads, thread: &thread, one, edges: self.edges };
        let outs: Vec<TensorId> = tensors.outs().collect();
        let ins: Vec<TensorId> = tensors.ins().collect();
        let context = Context {
            layer: self,
            tensors,
            steps: sizes.steps.clone(),
            sums,
            sides,
            movers,
            block,
            one,
            direction: direction.into(),
            units: units.into(),
            rows,
            weights,
            resident,
            acc,
            own,
            kept,
            first,
            parts,
        };
        context.prepare(k)?;
        let tiles = sizes.batch.ceil_div(&Expr::from(self.rows));
        k.for_("tile", Expr::from(part)..tiles, sizes.parts.clone(), false, |k, tile| {
            context.tile(k, &Expr::from(tile), &thread)
        })?;
        builder.finish(outs, ins)
    }

    /// The layer with as few units a block as so many cores allow, each of which has one block; with
    /// the warps that share its rows and units, and with the weights in shared memory that so many
    /// bytes have room for: R before W, whose products need not wait. `None` if there are more units
    /// than that.
    #[must_use]
    pub fn fitting(self, cores: i64, shared: i64) -> Option<Recurrent> {
        const WARPS: i64 = 8;
        let single = self.scalar == Scalar::F32;
        // Sixteen columns share an instruction's operands.
        let group = if !single && self.sums() % 2 == 1 { 16 } else { 8 };
        let along = self.rows / if single { 8 } else { 16 };
        let mut units = group;
        while (Recurrent { units, ..self.clone() }).blocks() > cores {
            units += group;
        }
        let mut least = Vec::new();
        for resident in [[true, true], [false, true], [false, false]] {
            // Fewer warps along the units than there could be, where there are many.
            let groups = units / group;
            let columns = (1..=groups).rev().find(|n| groups % n == 0 && along * n <= WARPS);
            let warps = [along, columns.unwrap_or(1)];
            let deep = self.depth / if single { 4 } else { 16 };
            let times = |n: &i64| deep % n == 0 && n * warps[0] * warps[1] <= WARPS;
            let slices = (1..=WARPS).rev().find(times).unwrap_or(1);
            least.push(Recurrent { units, warps, slices, resident, ..self.clone() });
        }
        least.into_iter().find(|layer| layer.shared_bytes() <= shared && layer.kernel().is_ok())
    }

    /// Blocks for each part of the batch.
    pub fn blocks(&self) -> i64 {
        self.directions() * ((self.hidden + self.units - 1) / self.units)
    }

    /// Threads of a block.
    pub fn threads(&self) -> i64 {
        32 * self.warps[0] * self.warps[1] * self.slices
    }

    /// Directions.
    pub fn directions(&self) -> i64 {
        match self.direction {
            Direction::Forward | Direction::Reverse => 1,
            Direction::Both => 2,
        }
    }

    /// Shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> i64 {
        let (columns, bytes) = (self.columns(), self.scalar.bytes());
        let stages = if self.resident == [true; 2] { 0 } else { self.stages };
        let resident: i64 = (0..2).filter(|&i| self.resident[i]).map(|i| self.chunks(i)).sum();
        let tiles = self.stages * self.rows + (stages + resident) * columns;
        // A row may be longer by a chunk, and every tensor begins at a multiple.
        let operands = tiles * (self.depth * bytes + Sums::CHUNK) + 4 * 1024;
        operands + (self.slices - 1) * self.rows * columns * 4
    }

    fn members(&self) -> Expr {
        Expr::from((self.hidden + self.units - 1) / self.units)
    }

    fn sums(&self) -> i64 {
        self.cell.sums.len() as i64
    }

    fn columns(&self) -> i64 {
        self.units * self.sums()
    }

    /// Tiles of W, or of R, along the depth.
    fn chunks(&self, i: usize) -> i64 {
        let depth = [self.inputs, self.hidden][i];
        (depth + self.depth - 1) / self.depth
    }

    fn sides(&self) -> [Side; 2] {
        [(false, self.rows), (true, self.columns())].map(|(right, size)| Side {
            right,
            size,
            depth: self.depth,
            transposed: false,
            scalar: self.scalar,
            chunk: Sums::CHUNK,
        })
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        self.cell.check().or_else(refuse)?;
        if !matches!(self.scalar, Scalar::F16 | Scalar::Bf16 | Scalar::F32) {
            return refuse("layers are of floating point");
        }
        if self.inputs < 1 || self.hidden < 1 || self.units < 8 || self.units % 8 != 0 {
            return refuse("a layer has inputs and units, a block eights of units");
        }
        if self.rows < 8 || self.depth < 16 || self.depth % 16 != 0 || self.stages < 2 {
            return refuse("a block has rows, and two stages at least of a depth of 16, 32, …");
        }
        if self.edges == Edges::Bulk
            && [self.inputs, self.hidden].iter().any(|size| size * self.scalar.bytes() % 16 != 0)
        {
            return refuse("rows that are no multiple of 16 bytes");
        }
        if self.arch < Arch::Sm80 || !(1..=1024).contains(&self.threads()) {
            return refuse("a block has 1 to 32 warps, of sm_80 or newer");
        }
        if self.results[2] && self.cell.own != Own::Cell || self.results == [false; 3] {
            return refuse("a layer has a result, and an LSTM alone a cell state");
        }
        if self.initial[1] && self.cell.own != Own::Cell {
            return refuse("an LSTM alone has a cell state");
        }
        Ok(())
    }

    fn declare(&self, k: &mut Builder, sizes: &Sizes) -> Result<Tensors> {
        let Recurrent { scalar, rows, .. } = *self;
        let (steps, batch) = (&sizes.steps, &sizes.batch);
        let directions = Expr::from(self.directions());
        let [inputs, hidden, gates] = [self.inputs, self.hidden, self.cell.gates].map(Expr::from);
        let x = k.param("X", Shape::rows([steps, batch, &inputs]), scalar)?;
        let weights = |k: &mut Builder, name: &str, depth: &Expr| {
            k.param(name, Shape::rows([&directions, &gates, &hidden, depth]), scalar)
        };
        let weights = [weights(k, "W", &inputs)?, weights(k, "R", &hidden)?];
        let of_bias = Shape::rows([&directions, &Expr::from(2), &gates, &hidden]);
        let bias = self.bias.then(|| k.param("bias", of_bias, scalar)).transpose()?;
        let state = |k: &mut Builder, name: &str, wanted: bool| {
            let view = Shape::rows([&directions, batch, &hidden]);
            wanted.then(|| k.param(name, view, scalar)).transpose()
        };
        let first_h = state(k, "h0", self.initial[0])?;
        let first_c = state(k, "c0", self.initial[1])?;
        let tiles = batch.ceil_div(&Expr::from(rows));
        let alone = self.members().is(1);
        let counters = Shape::rows([&directions, &tiles]);
        let counter = (!alone).then(|| k.param("counter", counters, Scalar::U32)).transpose()?;
        let reset = state(k, "reset", self.cell.reset.is_some())?;
        let kept = if self.results[0] { steps.clone() } else { Expr::from(2) };
        let y = k.param("Y", Shape::rows([&kept, &directions, batch, &hidden]), scalar)?;
        let last_h = state(k, "Y_h", self.results[1])?;
        let last_c = state(k, "Y_c", self.results[2])?;
        Ok(Tensors { x, weights, bias, first_h, first_c, counter, reset, y, last_h, last_c })
    }
}

impl Tensors {
    fn ins(&self) -> impl Iterator<Item = TensorId> {
        let optional = [self.bias, self.first_h, self.first_c].into_iter().flatten();
        [self.x].into_iter().chain(self.weights).chain(optional)
    }

    fn outs(&self) -> impl Iterator<Item = TensorId> {
        let last = [self.last_h, self.last_c].into_iter().flatten();
        self.counter.into_iter().chain(self.reset).chain([self.y]).chain(last)
    }
}
