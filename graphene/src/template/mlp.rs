//! A chain of layers `y ← f(y·W, …)` in one kernel (Graphene, Figure 11), for Ampere and newer.
//!
//! A block takes some rows through all layers. They stay in shared memory, while the layers' weights
//! come in stages: those of the next layer begin to come before this one has finished. A layer's
//! result takes the place of its input, so its sums must all be in registers: that is what limits
//! widths, besides shared memory.
//!
//! Layers that are alike may be one [`Layer`] of several `times`: a loop, whose weights lie one after
//! the other.

use super::access::Stride;
use super::epilogue::{Attached, Epilogue, Run, Span};
use super::product::{Edges, leaf, line};
use super::stage::{Movers, Side};
use super::sums::Sums;
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Relation, Var};
use crate::kernel::{Kernel, Kind, Number, Operand, TensorId, ThreadsId, Unary};
use crate::schedule::Ahead;
use crate::schedule::pointwise::{WIDTH, each, load, store};
use crate::tensor::{Scalar, Shape, Tile};

/// The parameters of a chain of layers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mlp {
    /// The type of rows and weights, and of operands and results that say nothing else; sums are in
    /// single precision.
    pub scalar: Scalar,
    /// Whether products of single precision are of TF32, rather than IEEE's.
    pub tf32: bool,
    /// What the kernel is written for; it runs on newer ones, too.
    pub arch: Arch,
    /// Columns of `X`.
    pub width: i64,
    /// From one row of `X` to the next: packed, or the symbol `X_stride0`.
    pub stride: Stride,
    /// The layers, from the first on; the last one is there once.
    pub layers: Vec<Layer>,
    /// How operands and results move. Several elements at a time move only where rows begin at a
    /// multiple of 16 bytes.
    pub edges: Edges,
    /// Rows of a block: a multiple of 16.
    pub rows: i64,
    /// The depth of a stage: a multiple of 16.
    pub depth: i64,
    /// Warps of a block.
    pub warps: i64,
    /// Stages in shared memory.
    pub stages: i64,
}

/// A layer, or several that are alike and follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layer {
    /// Columns of the result.
    pub width: i64,
    /// Whether weights are row-major `[in,out]`, that is, the output's column is contiguous; otherwise
    /// the input's is, as in a linear layer's weights.
    pub transposed: bool,
    /// How many such layers there are. If several, they have as many columns as their input, no
    /// operands but rows, and one result.
    pub times: i64,
    /// Whether the function has the layer's input as its last input: a skip connection.
    pub skip: bool,
    /// What becomes of the sums. The first output is the next layer's input, the others are results;
    /// of the last layer, all are.
    pub epilogue: Epilogue,
}

/// Sums of a thread, at most, so that the compiler keeps them and their operands in registers.
const SUMS: i64 = 64;
/// Rows of the smallest block that is worth it: it reads its weights for so many.
const LEAST_ROWS: i64 = 32;

impl Default for Mlp {
    /// One layer.
    fn default() -> Mlp {
        Mlp {
            scalar: Scalar::F16,
            tf32: false,
            arch: Arch::Sm80,
            width: 128,
            stride: Stride::Packed,
            layers: vec![Layer::default()],
            edges: Edges::Bulk,
            rows: 64,
            depth: 32,
            warps: 4,
            stages: 4,
        }
    }
}

impl Default for Layer {
    /// ReLU of sums and biases.
    fn default() -> Layer {
        Layer {
            width: 128,
            transposed: false,
            times: 1,
            skip: false,
            epilogue: Epilogue::layer(true, Some(Unary::Relu), false),
        }
    }
}

/// A layer's tensors.
struct Given {
    /// In tiles of a stage's depth and all columns, one layer after the other.
    weights: TensorId,
    operands: Vec<(Span, TensorId)>,
    results: Vec<TensorId>,
}

/// What the parts of the kernel share.
struct Context<'a> {
    mlp: &'a Mlp,
    given: Vec<Given>,
    block: ThreadsId,
    one: ThreadsId,
    thread: Var,
    /// The first row.
    origin: Expr,
    /// The rows: a layer's input, then its result.
    near: TensorId,
    /// Stages of weights whose input's column is contiguous, and of those whose output's is.
    shared: [Option<TensorId>; 2],
}

impl Mlp {
    /// So many like layers of one width: all but the last in a loop.
    pub fn alike(count: i64, layer: Layer) -> Mlp {
        let last = Layer { times: 1, ..layer.clone() };
        let first = Layer { times: count - 1, ..layer };
        let width = last.width;
        let layers = if count > 1 { vec![first, last] } else { vec![last] };
        Mlp { width, layers, ..Mlp::default() }
    }

    /// With as many warps, stages and so on as these layers want, and as many rows, from `rows` down,
    /// as registers and so much shared memory let a block have.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a block of 16 rows does not fit.
    pub fn fitting(self, rows: i64, shared: i64) -> Result<Mlp> {
        let heights = std::iter::successors(Some(rows), |rows| Some(rows / 2));
        for rows in heights.take_while(|rows| *rows >= 16) {
            // Threads that multiply would have too many operands of a deep stage at hand.
            let deepest = if Sums::of_threads(self.scalar, self.tf32) { 16 } else { 32 };
            let stages = [(32, 4), (32, 3), (16, 4), (16, 3), (16, 2)].into_iter();
            for (depth, stages) in stages.filter(|stage| stage.0 <= deepest) {
                // Few warps leave room for more blocks of a multiprocessor.
                for warps in [4, 8] {
                    let own = Mlp { rows, depth, warps, stages, ..self.clone() };
                    if own.sums() <= SUMS && own.bytes() <= shared {
                        return Ok(own);
                    }
                }
            }
        }
        Err(Error::Kernel(format!("no block has registers and memory for {self:?}")))
    }

    /// The bytes of shared memory and of sums that the smallest block takes that is worth it, and how
    /// many bytes its sums may have. `widths` are those of `X` and of all layers; `transposed` says which
    /// layouts of weights there are: `[out,in]`, and `[in,out]`.
    pub fn least(scalar: Scalar, widths: &[i64], transposed: [bool; 2]) -> [i64; 3] {
        let layer = |transposed: bool| {
            let width = widths.iter().skip(1).copied().max().unwrap_or(1);
            Layer { width, transposed, ..Layer::default() }
        };
        let of = [false, true].into_iter().filter(|&is| transposed[usize::from(is)]);
        let mlp = Mlp {
            scalar,
            width: widths.iter().copied().max().unwrap_or(1),
            layers: of.map(layer).collect(),
            rows: LEAST_ROWS,
            depth: 16,
            warps: 8,
            stages: 2,
            ..Mlp::default()
        };
        let word = 4 * 32 * mlp.warps;
        [mlp.bytes(), mlp.sums() * word, SUMS * word]
    }

    /// The kernel, with the symbol M, the number of rows, and maybe that of X's stride. It reads
    /// `X[M,width]`, and of each layer the weights `W[times,in,out]` and its operands, rows as
    /// `[times,out]`; it writes each layer's results. Parameters are in this order, each layer's
    /// results after its operands.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("mlp", self.arch);
        let m = Expr::from(k.symbol("M")?);
        let stride = match self.stride {
            Stride::Symbol => Expr::from(k.symbol("X_stride0")?),
            Stride::Packed | Stride::Broadcast => Expr::from(self.width),
        };
        let rows = [Shape::Leaf(m.clone(), stride), leaf(self.width, 1)];
        let x = k.param("X", rows, self.scalar)?;
        let mut given = Vec::new();
        for l in 0..self.layers.len() {
            given.push(self.declare(&mut k, &m, l)?);
        }
        let all = |of: fn(&Given) -> Vec<TensorId>| given.iter().flat_map(of).collect::<Vec<_>>();
        let outs = all(|given| given.results.clone());
        let ins = all(|given| {
            std::iter::once(given.weights).chain(given.operands.iter().map(|own| own.1)).collect()
        });
        let threads = 32 * self.warps;
        let grid = k.grid("grid", line(m.ceil_div(&Expr::from(self.rows))))?;
        let block = k.block("block", line(threads))?;
        let one = k.scalar(block, "one")?;
        let [m] = k.indices(grid, ["m"])?;
        let [thread] = k.indices(block, ["thread"])?;
        let near = self.near().allocate(&mut k, "sY", 1)?;
        let near = k.index(near, "sY", [0])?;
        let mut shared = [None; 2];
        for (stages, transposed) in shared.iter_mut().zip([false, true]) {
            if let Some(side) = self.stage(transposed) {
                *stages = Some(side.allocate(&mut k, "sW", self.stages)?);
            }
        }
        // The rows come with the first stage.
        let first = self.sides(0)[0];
        let tiles = first.tiled(&mut k, x, false)?;
        let tile = k.index(tiles, "rows", [Expr::from(&m), Expr::from(0)])?;
        let edges = self.edges(self.width);
        first.fill(&mut k, tile, near, Movers { threads, thread: &thread, one, edges })?;
        for (l, given) in given.iter_mut().enumerate() {
            given.weights = self.sides(l)[1].tiled(&mut k, given.weights, true)?;
        }
        let origin = Expr::from(m) * self.rows;
        let context = Context { mlp: self, given, block, one, thread, origin, near, shared };
        context.layers(&mut k)?;
        k.finish(outs, std::iter::once(x).chain(ins).collect::<Vec<_>>())
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        if self.layers.last().is_none_or(|last| last.times != 1) {
            return refuse("there is a last layer");
        }
        if !matches!(self.scalar, Scalar::F32 | Scalar::F16 | Scalar::Bf16) {
            return refuse("rows and weights are floats");
        }
        if self.depth < 16 || self.depth % 16 != 0 {
            return refuse("a stage's depth is a multiple of 16");
        }
        if self.arch < Arch::Sm80 || self.stages < 2 || !(1..=32).contains(&self.warps) {
            return refuse("two stages at least, a block of 1 to 32 warps, of sm_80 or newer");
        }
        if self.rows < 16 || self.rows % 16 != 0 {
            return refuse("a block has 16, 32, … rows");
        }
        if self.stride == Stride::Broadcast {
            return refuse("rows are not all the same");
        }
        let mut from = self.width;
        for (l, Layer { width, times, skip, epilogue, .. }) in self.layers.iter().enumerate() {
            if [from, *width].iter().any(|width| !(1..=4096).contains(width)) {
                return refuse("a layer has 1 to 4096 columns");
            }
            let inputs = 1 + epilogue.operands.len() + usize::from(*skip);
            let outputs = epilogue.function.outputs().len();
            if epilogue.function.inputs() > inputs || outputs != epilogue.outputs.len() {
                return refuse("a function has the sum, the operands and the input as inputs");
            }
            if outputs == 0 {
                return refuse("a layer has a result");
            }
            if *skip && from != *width {
                return refuse("an input that skips its layer is as wide as the result");
            }
            let rows = epilogue.operands.iter().all(|operand| operand.span == Span::Row);
            let alike = from == *width && rows && outputs == 1;
            if *times < 1 || (*times > 1 && !alike) {
                return refuse("layers of a loop have like inputs and results, and only rows");
            }
            if self.padded(l) < *width {
                return refuse("warps do not share a layer");
            }
            from = *width;
        }
        if self.sums() > SUMS {
            return refuse("a thread has too many sums");
        }
        Ok(())
    }

    /// Sums that a thread has.
    fn sums(&self) -> i64 {
        let widest = (0..self.layers.len()).map(|l| self.padded(l)).max().unwrap_or(0);
        widest * self.rows / (32 * self.warps)
    }

    /// The bytes of shared memory that a block takes.
    fn bytes(&self) -> i64 {
        let stages = [false, true].into_iter().filter_map(|transposed| self.stage(transposed));
        self.near().bytes() + stages.map(|side| self.stages * side.bytes()).sum::<i64>()
    }

    /// Columns that a layer is computed with: those that warps can share; and, of what is an input,
    /// whole stages. Beyond the layer's own, weights and inputs are 0.
    fn padded(&self, l: usize) -> i64 {
        let along = gcd(self.rows / 16, self.warps);
        let shared = 16 * self.warps / along;
        let whole = if l + 1 < self.layers.len() { lcm(shared, self.depth) } else { shared };
        round_up(self.layers[l].width, whole)
    }

    /// The same of a layer's input.
    fn padded_input(&self, l: usize) -> i64 {
        match l.checked_sub(1) {
            Some(before) => self.padded(before),
            None => round_up(self.width, self.depth),
        }
    }

    /// Columns of a layer's input.
    fn input(&self, l: usize) -> i64 {
        l.checked_sub(1).map_or(self.width, |before| self.layers[before].width)
    }

    /// Steps along a layer's K.
    fn steps(&self, l: usize) -> i64 {
        (self.input(l) + self.depth - 1) / self.depth
    }

    /// The rows: as a layer's input, and a stage of its weights.
    fn sides(&self, l: usize) -> [Side; 2] {
        let transposed = self.layers[l].transposed;
        let rows = self.side(false, self.rows, self.padded_input(l), false);
        [rows, self.side(true, self.padded(l), self.depth, transposed)]
    }

    fn side(&self, right: bool, size: i64, depth: i64, transposed: bool) -> Side {
        let chunk = Sums::chunk(self.scalar, self.tf32, transposed);
        Side { right, size, depth, transposed, scalar: self.scalar, chunk }
    }

    /// The rows where they are widest.
    fn near(&self) -> Side {
        let widest = (0..self.layers.len()).map(|l| self.padded_input(l)).max();
        self.side(false, self.rows, widest.unwrap_or(16), false)
    }

    /// A stage of weights so laid out where they are widest, if there are any.
    fn stage(&self, transposed: bool) -> Option<Side> {
        let like = |l: &usize| self.layers[*l].transposed == transposed;
        let widest = (0..self.layers.len()).filter(like).map(|l| self.padded(l)).max()?;
        Some(self.side(true, widest, self.depth, transposed))
    }

    /// How rows of so many elements move.
    fn edges(&self, width: i64) -> Edges {
        if width * self.scalar.bytes() % WIDTH == 0 { self.edges } else { Edges::Moves }
    }

    fn declare(&self, k: &mut Builder, m: &Expr, l: usize) -> Result<Given> {
        let Layer { width, transposed, times, epilogue, .. } = &self.layers[l];
        let from = self.input(l);
        let (row, column) = if *transposed { (*width, 1) } else { (1, from) };
        let shape = [leaf(*times, from * width), leaf(from, row), leaf(*width, column)];
        let weights = k.param("W", shape, self.scalar)?;
        let whole = Shape::rows([m, &Expr::from(*width)]);
        let mut operands = Vec::new();
        for input in &epilogue.operands {
            let shape = match input.span {
                Span::Row => Shape::rows([*times, *width]),
                Span::Column => Shape::rows([m.clone()]),
                Span::Whole => whole.clone(),
            };
            let scalar = input.scalar.unwrap_or(self.scalar);
            operands.push((input.span, k.param(input.span.name(), shape, scalar)?));
        }
        let mut results = Vec::new();
        let kept = usize::from(l + 1 < self.layers.len());
        for output in &epilogue.outputs[kept..] {
            results.push(k.param("Y", whole.clone(), output.unwrap_or(self.scalar))?);
        }
        Ok(Given { weights, operands, results })
    }
}

impl Context<'_> {
    /// One layer after the other.
    fn layers(&self, k: &mut Builder) -> Result<()> {
        let mlp = self.mlp;
        let ahead = Ahead::new(k, mlp.stages, self.block)?;
        for step in 0..mlp.stages - 1 {
            ahead
                .fetch(k, |k, stage| self.fetch(k, 0, step..step + 1, &Expr::from(step), stage))?;
        }
        for (l, layer) in mlp.layers.iter().enumerate() {
            let sides = mlp.sides(l);
            let sums = Sums::new(k, self.block, sides, mlp.warps, mlp.tf32)?;
            let acc = sums.clear(k)?;
            let per_layer = Expr::from(mlp.steps(l));
            let steps = mlp.steps(l) * layer.times;
            let later = mlp.stages - 1..steps + mlp.stages - 1;
            ahead.steps(
                k,
                &Expr::from(steps),
                |k, step, stage| self.fetch(k, l, later, step, stage),
                |k, step, stage| {
                    let step = Expr::from(step);
                    let stages = self.stages_of(l)?;
                    let stage = k.index(stages, "b", [stage])?;
                    let of_layer = step.rem(&per_layer);
                    let skipped = of_layer.clone() * (mlp.depth / 16);
                    sums.multiply(k, acc, self.near, &skipped, stage)?;
                    if layer.times == 1 {
                        return Ok(());
                    }
                    k.if_(Cond::equal(of_layer, per_layer.clone() - 1), |k| {
                        self.keep(k, l, &step.div(&per_layer), &sums, acc)?;
                        sums.reset(k, acc)
                    })
                },
            )?;
            if l + 1 == mlp.layers.len() {
                self.leave(k, l, &sums, acc)?;
            } else if layer.times == 1 {
                self.keep(k, l, &Expr::from(0), &sums, acc)?;
            }
        }
        Ok(())
    }

    fn stages_of(&self, l: usize) -> Result<TensorId> {
        let stages = self.shared[usize::from(self.mlp.layers[l].transposed)];
        stages.ok_or_else(|| Error::Kernel("a layer without stages".to_owned()))
    }

    /// Brings the weights of a step, counted from a layer's first, that is one of `range`: this layer's
    /// or a later one's, or none past the end.
    fn fetch(
        &self,
        k: &mut Builder,
        first: usize,
        range: std::ops::Range<i64>,
        step: &Expr,
        stage: &Var,
    ) -> Result<()> {
        let mlp = self.mlp;
        let mut begin = 0;
        for l in first..mlp.layers.len() {
            let per_layer = mlp.steps(l);
            let end = begin + per_layer * mlp.layers[l].times;
            if begin < range.end && end > range.start {
                let mut conds = Vec::new();
                if end < range.end {
                    conds.push(Cond::less(step, end));
                }
                if begin > range.start {
                    conds.push(Cond::new(step, Relation::AtLeast, begin));
                }
                let own = (step.clone() - begin).max(Expr::from(0));
                let bring = |k: &mut Builder| {
                    let side = mlp.sides(l)[1];
                    let per_layer = Expr::from(per_layer);
                    let at = [own.div(&per_layer), own.rem(&per_layer), Expr::from(0)];
                    let from = k.index(self.given[l].weights, "tile", at)?;
                    let to = k.index(self.stages_of(l)?, "stage", [stage])?;
                    let width = if side.transposed { mlp.layers[l].width } else { mlp.input(l) };
                    let (threads, edges) = (32 * mlp.warps, mlp.edges(width));
                    let movers = Movers { threads, thread: &self.thread, one: self.one, edges };
                    side.fill(k, from, to, movers)
                };
                if conds.is_empty() { bring(k)? } else { k.if_(conds, bring)? }
            }
            begin = end;
        }
        Ok(())
    }

    /// What a layer does with its sums.
    fn epilogue(&self, k: &mut Builder, l: usize, layer: &Expr) -> Result<Attached> {
        let Layer { width, epilogue, .. } = &self.mlp.layers[l];
        let mut operands = Vec::new();
        for &(span, operand) in &self.given[l].operands {
            let mut own = operand;
            if span == Span::Row {
                let rows = k.tile(operand, "rows", &[Tile::of(1), Tile::Whole])?;
                own = k.index(rows, "row", [layer.clone(), Expr::from(0)])?;
                own = k.reshape(own, "row", 0, &[&[(*width, 1)]])?;
            }
            operands.push((span, own));
        }
        let edges = self.mlp.edges(*width);
        let results = self.given[l].results.clone();
        Ok(Attached::new(epilogue.function.clone(), operands, results, edges))
    }

    /// A run's sums and what they meet, as results; `local` counts rows from the block's first.
    fn finished(
        &self,
        k: &mut Builder,
        l: usize,
        sums: TensorId,
        epilogue: &Attached,
        (local, run): (&Run, &Run),
        across: &super::epilogue::Across,
    ) -> Result<Vec<TensorId>> {
        let Layer { skip, epilogue: Epilogue { outputs, .. }, .. } = &self.mlp.layers[l];
        let all: Vec<usize> = (0..outputs.len()).collect();
        let mut more = Vec::new();
        if *skip {
            let from = self.run_of_near(k, local)?;
            more.push(load(k, from, run.n, true, self.one)?);
        }
        epilogue.finished_with(k, (sums, &more), run, across, &all, self.one)
    }

    /// The layer's result takes the place of its input; further results go.
    fn keep(
        &self,
        k: &mut Builder,
        l: usize,
        layer: &Expr,
        sums: &Sums,
        acc: TensorId,
    ) -> Result<()> {
        let epilogue = self.epilogue(k, l, layer)?;
        // All of the block have used the layer's input.
        k.spec(Kind::Sync, (), (), self.block)?;
        let width = self.mlp.layers[l].width;
        let padded = self.mlp.padded(l) > width;
        sums.each_run(k, acc, &epilogue, |k, values, local, across| {
            let run = self.global(local);
            let outs = self.finished(k, l, values, &epilogue, (local, &run), across)?;
            for (&out, &result) in outs[1..].iter().zip(&epilogue.results) {
                epilogue.put(k, result, out, &run, sums.one())?;
            }
            if padded {
                each(k, run.n, |k, i| {
                    let column = run.column.clone() * run.n + &i;
                    k.if_(Cond::new(column, Relation::AtLeast, width), |k| {
                        let value = Operand::at(outs[0], [&i]);
                        k.spec(Kind::Init(Number(0.0)), value, (), sums.one())
                    })
                })?;
            }
            let to = self.run_of_near(k, local)?;
            store(k, to, outs[0], run.n, true, sums.one())
        })
    }

    /// The last layer's results go.
    fn leave(&self, k: &mut Builder, l: usize, sums: &Sums, acc: TensorId) -> Result<()> {
        let epilogue = self.epilogue(k, l, &Expr::from(0))?;
        sums.each_run(k, acc, &epilogue, |k, values, local, across| {
            let run = self.global(local);
            let outs = self.finished(k, l, values, &epilogue, (local, &run), across)?;
            for (&out, &result) in outs.iter().zip(&epilogue.results) {
                epilogue.put(k, result, out, &run, sums.one())?;
            }
            Ok(())
        })
    }

    fn global(&self, local: &Run) -> Run {
        let row = self.origin.clone() + &local.row;
        Run { batch: None, row, column: local.column.clone(), n: local.n }
    }

    /// A run of the rows in shared memory.
    fn run_of_near(&self, k: &mut Builder, local: &Run) -> Result<TensorId> {
        let runs = k.tile(self.near, "runs", &[Tile::of(1), Tile::of(local.n)])?;
        let run = k.index(runs, "run", [&local.row, &local.column])?;
        k.reshape(run, "run", 0, &[&[(local.n, 1)]])
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: i64, b: i64) -> i64 {
    a / gcd(a, b) * b
}

fn round_up(size: i64, to: i64) -> i64 {
    (size + to - 1) / to * to
}
