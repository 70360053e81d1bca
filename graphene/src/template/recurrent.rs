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
//! - `sums`: a step's products, and which thread has which sums.

mod cell;
mod sums;

pub use self::cell::{Cell, Own};
use self::sums::Sums;
use super::product::{Edges, line};
use super::stage::{Movers, Side};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Var};
use crate::kernel::{Binary, Group, Kernel, Kind, Number, Operand, TensorId, ThreadsId};
use crate::schedule::pointwise::{each, load_inside, pointwise, store_inside, vector};
use crate::schedule::{GridBarrier, multistage};
use crate::tensor::{Scalar, Shape, Tile};

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
    /// h of all steps, or of the last two in turn.
    y: TensorId,
    last_h: Option<TensorId>,
    last_c: Option<TensorId>,
}

/// What the parts of the kernel share.
struct Context<'a> {
    layer: &'a Recurrent,
    tensors: Tensors,
    steps: Expr,
    sums: Sums,
    sides: [Side; 2],
    movers: Movers<'a>,
    block: ThreadsId,
    one: ThreadsId,
    /// The direction, and the block's units' number.
    direction: Expr,
    units: Expr,
    /// Stages of the input or h, and of those weights that do not stay.
    rows: TensorId,
    weights: Option<TensorId>,
    /// W and R, where they stay.
    resident: [Option<TensorId>; 2],
    acc: TensorId,
    own: Option<TensorId>,
    first: TensorId,
    parts: Option<TensorId>,
}

impl Recurrent {
    /// The kernel, with symbols `steps` (1 at least), `batch`, and `parts`: how many tiles of rows of
    /// the batch are worked on at a time. All blocks, which are as many times the layer's
    /// [`blocks`](Recurrent::blocks), must be resident together.
    ///
    /// It reads `X[steps,batch,inputs]`, `W[direction,gate,hidden,inputs]`,
    /// `R[direction,gate,hidden,hidden]`, `bias[direction,2,gate,hidden]` (of W, of R), and `h0`, `c0`
    /// of `[direction,batch,hidden]`; it writes `Y[steps,direction,batch,hidden]` and `Y_h`, `Y_c` of
    /// `[direction,batch,hidden]`. If Y is no result it is room for `[2,direction,batch,hidden]`. The
    /// `counter`s, one for each direction and tile of rows, are 0 before and after a launch.
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

    /// Blocks for each part of the batch.
    pub fn blocks(&self) -> i64 {
        self.directions() * (self.hidden + self.units - 1) / self.units
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
        let kept = if self.results[0] { steps.clone() } else { Expr::from(2) };
        let y = k.param("Y", Shape::rows([&kept, &directions, batch, &hidden]), scalar)?;
        let last_h = state(k, "Y_h", self.results[1])?;
        let last_c = state(k, "Y_c", self.results[2])?;
        Ok(Tensors { x, weights, bias, first_h, first_c, counter, y, last_h, last_c })
    }
}

impl Tensors {
    fn ins(&self) -> impl Iterator<Item = TensorId> {
        let optional = [self.bias, self.first_h, self.first_c].into_iter().flatten();
        [self.x].into_iter().chain(self.weights).chain(optional)
    }

    fn outs(&self) -> impl Iterator<Item = TensorId> {
        let last = [self.last_h, self.last_c].into_iter().flatten();
        self.counter.into_iter().chain([self.y]).chain(last)
    }
}

impl Context<'_> {
    /// Brings what stays for all steps: weights, and what the sums begin with.
    fn prepare(&self, k: &mut Builder) -> Result<()> {
        for i in 0..2 {
            let Some(resident) = self.resident[i] else { continue };
            k.for_("chunk", 0..self.layer.chunks(i), 1, false, |k, chunk| {
                let to = k.index(resident, "to", [chunk])?;
                self.bring_weights(k, i, &Expr::from(chunk), to)
            })?;
        }
        if self.resident.iter().any(Option::is_some) {
            k.spec(Kind::Commit(Group::Copy), (), (), self.one)?;
            k.spec(Kind::WaitGroup(Group::Copy, 0, false), (), (), self.one)?;
            k.spec(Kind::Sync, (), (), self.block)?;
        }
        let n = self.sums.run();
        k.for_("j", 0..self.sums.runs(), 1, true, |k, run| {
            for (sum, gates) in self.layer.cell.sums.iter().enumerate() {
                let to = k.index(self.first, "first", [Expr::from(run), Expr::from(sum as i64)])?;
                each(k, n, |k, e| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(to, [e]), (), self.one)
                })?;
                for (part, gate) in gates.iter().enumerate() {
                    let (Some(bias), Some(gate)) = (self.tensors.bias, gate) else { continue };
                    let at = [Expr::from(part as i64), Expr::from(*gate)];
                    let from = self.view(k, bias, &at, &Expr::from(run))?;
                    let value = load_inside(k, from, n, self.wide(), self.one)?;
                    each(k, n, |k, e| {
                        let (to, value) = (Operand::at(to, [&e]), Operand::at(value, [&e]));
                        k.spec(Kind::Reduction(Binary::Add), to, value, self.one)
                    })?;
                }
            }
            Ok(())
        })
    }

    /// All steps of a tile of rows of the batch.
    fn tile(&self, k: &mut Builder, tile: &Expr, thread: &Var) -> Result<()> {
        let counter = self.tensors.counter;
        let counter = counter.map(|of| Operand::at(of, [self.direction.clone(), tile.clone()]));
        let barrier = counter.map(|counter| GridBarrier {
            counter,
            members: self.layer.members(),
            meetings: self.steps.clone(),
            block: self.block,
            one: self.one,
            thread,
        });
        let first = match self.layer.cell.own {
            Own::Nothing => None,
            Own::Cell => self.tensors.first_c,
            Own::Hidden => self.tensors.first_h,
        };
        if let Some(own) = self.own {
            self.begin(k, own, first, tile)?;
        }
        k.for_("step", Expr::from(0)..self.steps.clone(), 1, false, |k, step| {
            let step = Expr::from(step);
            let now = Expr::from(k.let_("now", self.time(&step))?);
            // Of h that is no result, two steps are kept in turn.
            let (mut to, mut from) = (now.clone(), (step.clone() - 1).max(Expr::from(0)));
            if self.layer.results[0] {
                from = self.time(&from);
            } else {
                (to, from) = (step.rem(&2.into()), from.rem(&2.into()));
            }
            let before = Expr::from(k.let_("before", from)?);
            self.sums.begin(k, self.acc, self.first)?;
            let x = |row: &Expr| vec![now.clone(), self.row(tile, row)];
            self.products(k, 0, &|k, _, body| body(k, self.tensors.x, &x))?;
            self.add_state(k, barrier.as_ref(), &step, &before, tile)?;
            self.sums.complete(k, self.acc, self.parts, |k| self.leave(k, &step, &to, tile))?;
            match &barrier {
                Some(barrier) => barrier.arrive(k),
                None => k.spec(Kind::Sync, (), (), self.block),
            }
        })?;
        match (self.own, self.tensors.last_c) {
            (Some(own), Some(to)) => self.sums.of_first(k, |k| {
                self.sums.each(k, |k, at| {
                    let own = k.index(own, "own", at)?;
                    let to = self.place(k, to, &[], tile, at)?;
                    store_inside(k, to, own, self.sums.run(), self.wide(), self.one)
                })
            }),
            _ => Ok(()),
        }
    }

    /// Adds the products of the last step's h, once that is there.
    fn add_state(
        &self,
        k: &mut Builder,
        barrier: Option<&GridBarrier<'_>>,
        step: &Expr,
        before: &Expr,
        tile: &Expr,
    ) -> Result<()> {
        let later = || Cond::less(0, step);
        let row = |row: &Expr| vec![before.clone(), self.direction.clone(), self.row(tile, row)];
        let Some(given) = self.tensors.first_h else {
            return k.if_(later(), |k| {
                match barrier {
                    Some(barrier) => barrier.wait(k, step)?,
                    None => k.spec(Kind::Sync, (), (), self.block)?,
                }
                self.products(k, 1, &|k, _, body| body(k, self.tensors.y, &row))
            });
        };
        if let Some(barrier) = barrier {
            k.if_(later(), |k| barrier.wait(k, step))?;
        }
        k.spec(Kind::Sync, (), (), self.block)?;
        let first = |row: &Expr| vec![self.direction.clone(), self.row(tile, row)];
        self.products(k, 1, &|k, _, body| {
            k.if_(Cond::equal(step.clone(), 0), |k| body(k, given, &first))?;
            k.if_(later(), |k| body(k, self.tensors.y, &row))
        })
    }

    /// Adds products with W or R, of rows that `source` hands to a body.
    fn products(&self, k: &mut Builder, i: usize, source: &Source<'_>) -> Result<()> {
        let layer = self.layer;
        let chunks = Expr::from(layer.chunks(i));
        multistage(
            k,
            layer.stages,
            &chunks,
            self.block,
            |k, chunk, stage| {
                k.if_(Cond::less(chunk, &chunks), |k| {
                    let to = k.index(self.rows, "stage", [stage])?;
                    source(k, chunk, &|k, from, at| self.fill(k, 0, from, at, chunk, to))?;
                    match (self.resident[i], self.weights) {
                        (None, Some(weights)) => {
                            let to = k.index(weights, "stage", [stage])?;
                            self.bring_weights(k, i, chunk, to)
                        }
                        _ => Ok(()),
                    }
                })
            },
            |k, chunk, stage| {
                let a = k.index(self.rows, "a", [stage])?;
                let b = match (self.resident[i], self.weights) {
                    (None, Some(weights)) => k.index(weights, "b", [stage])?,
                    (Some(resident), _) => k.index(resident, "b", [chunk])?,
                    (None, None) => return Ok(()),
                };
                self.sums.multiply(k, self.acc, [a, b])
            },
        )
    }

    /// Brings a tile of W or R: zeros where a sum has no gate of it.
    fn bring_weights(&self, k: &mut Builder, i: usize, chunk: &Expr, to: TensorId) -> Result<()> {
        let layer = self.layer;
        let (eight, sums) = (Expr::from(8), Expr::from(layer.sums()));
        let units = self.units.clone() * layer.units;
        let at = |column: &Expr| {
            let sum = column.div(&eight).rem(&sums);
            let unit = column.div(&(sums.clone() * 8)) * 8 + column.rem(&eight);
            let mut gate = Expr::from(0);
            let mut beyond = Expr::from(0);
            for (number, gates) in layer.cell.sums.iter().enumerate() {
                // 1 for this sum, else 0.
                let from = |least: i64| sum.div(&Expr::from(least.max(1))).min(Expr::from(1));
                let least = number as i64;
                let above = if least + 1 < layer.sums() { from(least + 1) } else { 0.into() };
                let is = if least == 0 { Expr::from(1) - above } else { from(least) - above };
                match gates[i] {
                    Some(own) => gate = gate + is * own,
                    None => beyond = beyond + is * layer.hidden,
                }
            }
            let all = layer.cell.sums.iter().enumerate().all(|(s, g)| g[i] == Some(s as i64));
            let gate = if all { sum } else { gate };
            vec![self.direction.clone(), gate, units.clone() + unit + beyond]
        };
        self.fill(k, 1, self.tensors.weights[i], &at, chunk, to)
    }

    /// Brings a tile of rows; `at` are the coordinates of a row, by its number in the tile.
    fn fill(
        &self,
        k: &mut Builder,
        i: usize,
        from: TensorId,
        at: &dyn Fn(&Expr) -> Vec<Expr>,
        chunk: &Expr,
        to: TensorId,
    ) -> Result<()> {
        let (side, movers) = (self.sides[i], self.movers);
        let piece = side.piece(movers.edges);
        let axes = k.tensor_of(from)?.view.axes().len();
        let mut tiles = vec![Tile::of(1); axes];
        tiles[axes - 1] = Tile::of(piece);
        let from = k.tile(from, "from_pieces", &tiles)?;
        let to = k.tile(to, "to_pieces", &side.pieces(piece))?;
        let per_row = Expr::from(side.depth / piece);
        let all = side.size * side.depth / piece;
        let count = (all + movers.threads - 1) / movers.threads;
        k.for_("e", 0..count, 1, count <= 16, |k, e| {
            let linear = Expr::from(e) * movers.threads + Expr::from(movers.thread);
            let (row, place) = (linear.div(&per_row), linear.rem(&per_row));
            let body = |k: &mut Builder| {
                let along = chunk.clone() * &per_row + &place;
                let coordinates: Vec<Expr> = at(&row).into_iter().chain([along]).collect();
                let from = k.index(from, "from", coordinates)?;
                let from = k.reshape(from, "from", 0, &[&[(piece, 1)]])?;
                let to = k.index(to, "to", side.order(row.clone(), place.clone()))?;
                let to = k.reshape(to, "to", 0, &[&[(piece, 1)]])?;
                side.bring(k, from, to, piece, movers.one)
            };
            if all % movers.threads == 0 {
                body(k)
            } else {
                k.if_(Cond::less(row.clone(), side.size), body)
            }
        })
    }

    /// What a unit begins with.
    fn begin(
        &self,
        k: &mut Builder,
        own: TensorId,
        first: Option<TensorId>,
        tile: &Expr,
    ) -> Result<()> {
        let n = self.sums.run();
        self.sums.each(k, |k, at| {
            let own = k.index(own, "own", at)?;
            let Some(first) = first else {
                return each(k, n, |k, e| {
                    k.spec(Kind::Init(Number(0.0)), Operand::at(own, [e]), (), self.one)
                });
            };
            let from = self.place(k, first, &[], tile, at)?;
            let value = load_inside(k, from, n, self.wide(), self.one)?;
            each(k, n, |k, e| {
                k.spec(Kind::Move, Operand::at(own, [&e]), Operand::at(value, [&e]), self.one)
            })
        })
    }

    /// The cell of complete sums.
    fn leave(&self, k: &mut Builder, step: &Expr, now: &Expr, tile: &Expr) -> Result<()> {
        let (n, layer) = (self.sums.run(), self.layer);
        self.sums.each(k, |k, at| {
            let mut ins = Vec::new();
            for gate in 0..layer.sums() {
                ins.push(self.sums.of(k, self.acc, at, gate)?);
            }
            let h = vector(k, "h", n, Scalar::F32)?;
            let mut outs = vec![h];
            if let Some(own) = self.own {
                let own = k.index(own, "own", at)?;
                ins.push(own);
                outs.push(own);
            }
            pointwise(k, &layer.cell.function, &outs, &ins, n, self.one)?;
            let to = self.place(k, self.tensors.y, std::slice::from_ref(now), tile, at)?;
            store_inside(k, to, h, n, self.wide(), self.one)?;
            let Some(last) = self.tensors.last_h else { return Ok(()) };
            k.if_(Cond::equal(step.clone() + 1, &self.steps), |k| {
                let to = self.place(k, last, &[], tile, at)?;
                store_inside(k, to, h, n, self.wide(), self.one)
            })
        })
    }

    /// Which of the sequence's elements a step is.
    fn time(&self, step: &Expr) -> Expr {
        let back = || (self.steps.clone() - 1 - step).max(Expr::from(0));
        match self.layer.direction {
            Direction::Forward => step.clone(),
            Direction::Reverse => back(),
            Direction::Both => {
                // The second direction runs back; what is not negative must be seen to be so.
                let forward = (Expr::from(1) - &self.direction).max(Expr::from(0));
                (step.clone() * forward + back() * &self.direction).max(Expr::from(0))
            }
        }
    }

    fn row(&self, tile: &Expr, row: &Expr) -> Expr {
        tile.clone() * self.layer.rows + row
    }

    /// Whether all of a run lies within, or none.
    fn wide(&self) -> bool {
        self.layer.edges == Edges::Bulk
    }

    /// An own run of a tensor `[…, direction, batch, hidden]`.
    fn place(
        &self,
        k: &mut Builder,
        of: TensorId,
        before: &[Expr],
        tile: &Expr,
        [row, run]: [&Expr; 2],
    ) -> Result<TensorId> {
        let row = self.row(tile, &self.sums.row(row));
        let at: Vec<Expr> = before.iter().cloned().chain([self.direction.clone(), row]).collect();
        self.run_of(k, of, at, run)
    }

    /// An own run of a tensor `[direction, …, hidden]`.
    fn view(&self, k: &mut Builder, of: TensorId, at: &[Expr], run: &Expr) -> Result<TensorId> {
        let at = [std::slice::from_ref(&self.direction), at].concat();
        self.run_of(k, of, at, run)
    }

    fn run_of(
        &self,
        k: &mut Builder,
        of: TensorId,
        mut at: Vec<Expr>,
        run: &Expr,
    ) -> Result<TensorId> {
        let n = self.sums.run();
        let mut tiles = vec![Tile::of(1); at.len()];
        tiles.push(Tile::of(n));
        at.push(self.units.clone() * (self.layer.units / n) + self.sums.unit(run));
        let tiled = k.tile(of, "tiled", &tiles)?;
        let run = k.index(tiled, "run", at)?;
        k.reshape(run, "run", 0, &[&[(n, 1)]])
    }
}

/// Where rows come from: hands a tensor, and the coordinates of a row by its number, to a body.
type Source<'a> = dyn Fn(&mut Builder, &Expr, &Body<'_>) -> Result<()> + 'a;
type Body<'a> = dyn Fn(&mut Builder, TensorId, &dyn Fn(&Expr) -> Vec<Expr>) -> Result<()> + 'a;
