//! Recurrent layers in one launch: LSTM, GRU and plain ones, with ONNX's operands and equations, for Ampere and newer.
//!
//! A block has some units, all gates of them, of one direction and of some rows of the batch. It goes through all
//! steps: it adds the matmuls of the step's input with W, waits until the blocks of the same rows and direction have
//! written the last step's h, adds the matmuls of that with R, applies the cell and writes its part of h. What it
//! keeps stays with its threads, in single precision; its parts of W and R stay in shared memory where they fit. The
//! input's matmuls need not wait, so that they hide what the barrier takes.
//!
//! Levels:
//!
//! - kernel: all results, of all operands: what so many steps make of the states to begin with
//!   - load by a block: what units begin with, where that is given
//!   - step: h, of the one before, the step's input, W, R and what else a cell has, by the blocks of the same rows and
//!     direction; states that threads keep are operands as their registers hold them
//!     - stage by a block: adds a matmul of rows of the input or of h and of weights to the sums
//!     - registers by a thread: the cell's function of a run of units
//!
//! The loop over steps carries h of the step before and the states: what the steps so far make of the first ones.

mod cell;
mod meaning;
mod operands;
mod slices;
mod steps;
mod sums;
mod units;

pub use self::cell::{Cell, Own};
use self::operands::Tensors;
use self::slices::Totals;
use self::steps::Context;
use self::sums::Sums;
use self::units::Ragged;
use super::matmul::{Edges, MatMul, line};
use super::stage::{Movers, Side};
use super::tiled_mma::{self, By};
use crate::{
    Arch, AtLeast, Builder, Expr, Kernel, Layout, MultipleOf, Result, Scalar, TensorId, Tiler,
    Within, choose::ceil, needs,
};

parameters! {
    /// The parameters of a layer.
    pub struct Recurrent {
        /// The type of all operands and results; sums are in single precision. Single precision is
        /// multiplied by IEEE fused multiply-adds.
        pub scalar: Scalar = Scalar::F16,
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// How operands move. By several elements at a time, `inputs` and `hidden` are multiples of 16 bytes.
        pub edges: Edges = Edges::Bulk,
        /// What a unit computes.
        pub cell: Cell = Cell::default(),
        /// Which way the layer runs.
        pub direction: Direction = Direction::Forward,
        /// Elements of an input.
        pub inputs: i64 = 512,
        /// Units of a direction.
        pub hidden: i64 = 512,
        /// Whether there are biases.
        pub bias: bool = true,
        /// Whether h, and c of an LSTM, are given to begin with; otherwise they are 0.
        pub initial: [bool; 2] = [false; 2],
        /// Whether sequences have lengths of their own: of steps beyond, Y is 0, and states stay as they are.
        pub ragged: bool = false,
        /// Whether h of all steps is a result, and h and c of the last.
        pub results: [bool; 3] = [true; 3],
        /// Units of a block: a multiple of 8, of 16 if a unit has an odd number of sums.
        pub units: i64 = 8,
        /// Rows of the batch that a block has: a multiple of 16, or 8 in single precision.
        pub rows: i64 = 32,
        /// The depth of a stage: a multiple of 16.
        pub depth: i64 = 64,
        /// Warps along the rows and along the units.
        pub warps: [i64; 2] = [2, 1],
        /// How many times as many warps there are, each of which multiplies a part of the depth.
        pub slices: i64 = 4,
        /// Stages in shared memory.
        pub stages: i64 = 4,
        /// Whether the block's part of W, and of R, stays in shared memory.
        pub resident: [bool; 2] = [true; 2],
    }
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

impl Recurrent {
    /// The kernel, with symbols `steps` (1 at least), `batch`, and `parts`: how many tiles of rows of the batch are worked on at
    /// a time. All blocks, which are as many times the layer's [`blocks`](Recurrent::blocks), must be resident together.
    ///
    /// It reads `X[steps,batch,inputs]`, `W[direction,gate,hidden,inputs]`, `R[direction,gate,hidden,hidden]`,
    /// `bias[direction,2,gate,hidden]` (of W, of R), and `h0`, `c0` of `[direction,batch,hidden]`,
    /// `P[direction,constant,hidden]` if the cell has constants, and `lengths[batch]`, in 32 bits, of ragged sequences;
    /// it writes `Y[steps,direction,batch,hidden]` and `Y_h`, `Y_c` of `[direction,batch,hidden]`. If Y is no result it
    /// is scratch of `[2,direction,batch,hidden]`, which ragged sequences have as `h` in any case, and without a result
    /// no Y; if the cell resets, `reset` is scratch of `[direction,batch,hidden]`. The `counter`s, one for each direction
    /// and tile of rows, are 0 before and after a launch; where a block has all units there are none.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut builder = Builder::new("recurrent", self.arch);
        let k = &mut builder;
        let [steps, batch, parts] = k.symbols(["steps", "batch", "parts"])?.map(Expr::from);
        let tensors = Tensors::declare(k, self, [&steps, &batch])?;
        let grid = Layout::rows([&Expr::from(self.directions()), &parts, &self.members()]);
        let grid = k.grid("grid", grid)?;
        let threads = self.threads();
        let block = k.block("block", line(threads))?;
        k.one()?;
        let [direction, part, units] = k.indices(grid, ["direction", "part", "units"])?;
        let (one_of, zero) = (Tiler::Size(1), Expr::from(0));
        let members = k.tile(grid, "members", &[one_of.clone(), one_of, Tiler::Whole])?;
        let at = [Expr::from(&direction), Expr::from(&part), zero];
        let members = k.index(members, "members", at)?;
        let cta = k.index(grid, "cta", [&direction, &part, &units])?;
        k.by(cta);
        let [thread] = k.indices(block, ["thread"])?;
        let sides = self.sides();
        let sums = Sums::new(k, block, self)?;
        let rows = sides[0].allocate(k, "sA", self.stages)?;
        let both = self.resident == [true; 2];
        let weights = (!both).then(|| sides[1].allocate(k, "sB", self.stages)).transpose()?;
        let mut stays = |i: usize, name| {
            self.resident[i].then(|| sides[1].allocate(k, name, self.chunks(i))).transpose()
        };
        let resident = [stays(0, "sW")?, stays(1, "sR")?];
        let every = self.results[0].then(|| tensors.given.unwrap_or(tensors.y));
        let outs = [every, tensors.last_h, tensors.last_c].into_iter().flatten();
        let outs: Vec<TensorId> = outs.collect();
        let (kind, ins) = meaning::whole(self, &tensors, &steps)?;
        let count = self.cell.constants as i64;
        let acc = sums.allocate(k)?;
        let own = (self.cell.own != Own::Nothing).then(|| sums.state(k, "own")).transpose()?;
        let kept = self.cell.reset.is_some().then(|| sums.state(k, "kept")).transpose()?;
        let ragged = self.ragged.then(|| Ragged::new(k, self, &sums)).transpose()?;
        let first = sums.of_columns(k, "first", self.sums())?;
        let constants = (count > 0).then(|| sums.of_columns(k, "constants", count)).transpose()?;
        let totals = Totals { acc, first, parts: sums.parts(k)?, sums };
        let mut context = Context {
            layer: self,
            tensors,
            steps,
            sides,
            movers: Movers { threads, block, thread: &thread, edges: self.edges },
            members,
            block,
            direction: direction.into(),
            units: units.into(),
            tile: Expr::from(&part),
            rows,
            weights,
            resident,
            own,
            kept,
            ragged,
            constants,
            totals,
        };
        context.bring_resident(k)?;
        context.biases(k)?;
        context.constants(k)?;
        let tiles = batch.ceil_div(self.rows);
        k.for_("tile", Expr::from(part)..tiles, parts, false, |k, tile| {
            context.tile = tile.into();
            context.all_steps(k)
        })?;
        builder.finish(kind, outs, ins)
    }

    /// The layer with as few units a block as so many cores allow, each of which has one block; with the warps that
    /// share its rows and units, and with the weights in shared memory that fit into so many bytes: R before W,
    /// whose matmuls need not wait. `None` if there are more units than that.
    #[must_use]
    pub fn fitting(self, cores: i64, shared: i64) -> Option<Recurrent> {
        const WARPS: i64 = 8;
        let single = self.scalar == Scalar::F32;
        let (along, spread) = (self.rows / if single { 8 } else { 16 }, self.spread(cores));
        let units = spread.units;
        // Fewer warps along the units than there could be, where there are many.
        let groups = units / spread.group();
        let columns = (1..=groups).rev().find(|n| groups % n == 0 && along * n <= WARPS);
        let warps = [along, columns.unwrap_or(1)];
        let deep = spread.depth / if single { 4 } else { 16 };
        let times = |n: &i64| deep % n == 0 && n * warps[0] * warps[1] <= WARPS;
        let slices = (1..=WARPS).rev().find(times).unwrap_or(1);
        let of = |resident| Recurrent { warps, slices, resident, ..spread.clone() };
        let fits = |layer: &Recurrent| layer.shared_bytes() <= shared && layer.kernel().is_ok();
        [[true, true], [false, true], [false, false]].into_iter().map(of).find(fits)
    }

    /// The layer with as few units a block as so many cores allow, each of which has one block.
    #[must_use]
    pub fn spread(mut self, cores: i64) -> Recurrent {
        self.units = self.group();
        while self.blocks() > cores {
            self.units += self.group();
        }
        self
    }

    /// Units that a warp takes together: sixteen columns share an instruction's operands.
    fn group(&self) -> i64 {
        if self.scalar != Scalar::F32 && self.sums() % 2 == 1 { 16 } else { 8 }
    }

    /// Blocks for each part of the batch.
    pub fn blocks(&self) -> i64 {
        self.directions() * ceil(self.hidden, self.units)
    }

    /// Threads of a block.
    pub fn threads(&self) -> i64 {
        32 * self.warps[0] * self.warps[1] * self.slices
    }

    /// Directions.
    pub fn directions(&self) -> i64 {
        if self.direction == Direction::Both { 2 } else { 1 }
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
        ceil(self.hidden, self.units).into()
    }

    fn sums(&self) -> i64 {
        self.cell.sums.len() as i64
    }

    fn columns(&self) -> i64 {
        self.units * self.sums()
    }

    /// Tiles of W, or of R, along the depth.
    fn chunks(&self, i: usize) -> i64 {
        ceil([self.inputs, self.hidden][i], self.depth)
    }

    fn sides(&self) -> [Side; 2] {
        let matmul = MatMul { scalar: self.scalar, ..MatMul::default() };
        Side::both(&matmul, [self.rows, self.columns()], self.depth, By::Warps)
    }

    fn check(&self) -> Result {
        self.cell.check()?;
        let float = matches!(self.scalar, Scalar::F16 | Scalar::Bf16 | Scalar::F32);
        needs(float, "fp16, bf16 or fp32 operands", self.scalar)?;
        let sizes = [self.inputs, self.hidden];
        sizes.iter().try_for_each(|&size| AtLeast(1).check("inputs and units", size))?;
        MultipleOf(8).check("units a block", self.units)?;
        AtLeast(8).check("rows a block", self.rows)?;
        MultipleOf(16).check("as the depth of a stage", self.depth)?;
        AtLeast(2).check("stages", self.stages)?;
        let aligned = sizes.iter().all(|size| size * self.scalar.bytes() % 16 == 0);
        let wide = self.edges == Edges::Moves || aligned;
        needs(wide, "rows of a multiple of 16 bytes for wide copies", sizes)?;
        self.arch.needs(tiled_mma::features(self.arch, self.scalar, false))?;
        Within(1, 1024).check("threads a block", self.threads())?;
        needs(self.results != [false; 3], "1 or more results", self.results)?;
        let state = self.cell.own == Own::Cell || !(self.results[2] || self.initial[1]);
        needs(state, "an LSTM for a cell state", &self.cell)
    }
}
