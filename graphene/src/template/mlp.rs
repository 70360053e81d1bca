//! A chain of layers `y ← f(y·W, …)` in one kernel (Graphene, Figure 11), for Ampere and newer.
//!
//! A block takes some rows through all layers. They stay in shared memory, while the layers' weights come in stages:
//! those of the next layer begin to come before this one has finished. A layer's result takes the place of its input,
//! so its sums must all be in registers: that is what limits widths, besides shared memory.
//!
//! Layers that are alike may be one [`Layer`] of several `times`: a loop, whose weights lie one after the other.
//!
//! Levels:
//!
//! - kernel: all results, of X, weights and what epilogues meet
//!   - tile by a block: a block's rows of them
//!     - load by a block: the rows of X, and the first stages of weights
//!     - layer by a block: its result, of its input in shared memory, whose place it takes
//!       - load by a block: a stage of weights, the next layer's among them
//!       - stage by a block: adds a matmul of the rows and a stage of weights to the sums
//!       - registers by a thread: what becomes of a run of sums, of a layer whose result stays
//!       - reduction by a block: the last layer's sums, of the rows and its weights
//!         - load by a block: a stage of weights
//!         - stage by a block: adds a matmul of the rows and a stage of weights to the sums
//!       - epilogue by a block: the last layer's results, of its sums
//!         - registers by a thread: what becomes of a run of sums

mod layers;
mod sizes;
mod warpgroups;

pub use self::warpgroups::Warpgroups;
use super::access::{Stride, launch};
use super::epilogue::{Epilogue, Operands, Span};
use super::matmul::{Edges, leaf, tile_of};
use super::{stage::Movers, tiled_mma::By};
use crate::{
    Arch, Builder, Expr, Header, Kernel, Layout, Result, Scalar, TensorId, ThreadsId, Tiler, Unary,
    Var, needs,
};

parameters! {
    /// The parameters of a chain of layers. One layer by default.
    pub struct Mlp {
        /// The type of rows and weights, and of operands and results that say nothing else; sums are in single precision.
        pub scalar: Scalar = Scalar::F16,
        /// Whether matmuls of single precision are of TF32, rather than IEEE's.
        pub tf32: bool = false,
        /// What the kernel is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// The type of `X`, which is that of rows, or single precision, which is rounded to it; none: that of rows.
        pub x: Option<Scalar> = None,
        /// Columns of `X`.
        pub width: i64 = 128,
        /// From one row of `X` to the next: packed, or the symbol `X_stride0`.
        pub stride: Stride = Stride::Packed,
        /// The layers, from the first on; the last one is there once.
        pub layers: Vec<Layer> = vec![Layer::default()],
        /// How operands and results move. Several elements at a time move only where rows begin at a multiple of 16 bytes.
        pub edges: Edges = Edges::Bulk,
        /// Rows of a block: a multiple of 16.
        pub rows: i64 = 64,
        /// The depth of a stage: a multiple of 16.
        pub depth: i64 = 32,
        /// Warps of a block.
        pub warps: i64 = 4,
        /// Stages in shared memory.
        pub stages: i64 = 4,
    }
}

parameters! {
    /// A layer, or several that are alike and follow each other. By default ReLU of sums and biases.
    pub struct Layer {
        /// Columns of the result.
        pub width: i64 = 128,
        /// Whether weights are row-major `[in,out]`, that is, the output's column is contiguous; otherwise
        /// the input's is, as in a linear layer's weights.
        pub transposed: bool = false,
        /// How many such layers there are. If several, they have as many columns as their input, no
        /// operands but rows, and one result.
        pub times: i64 = 1,
        /// Whether the function has the layer's input as its last input: a skip connection.
        pub skip: bool = false,
        /// What becomes of the sums. The first output is the next layer's input, the others are results;
        /// of the last layer, all are.
        pub epilogue: Epilogue = Epilogue::layer(true, Some(Unary::Relu), false),
    }
}

/// Rows of the smallest block that is worth it: it reads its weights for so many.
const LEAST_ROWS: i64 = 32;

/// Sums of a thread, at most, so that the compiler keeps them and their operands in registers.
const SUMS: i64 = 64;

/// A layer's tensors.
struct Given {
    weights: TensorId,
    /// In tiles of a stage's depth and all columns, one layer after the other.
    tiles: TensorId,
    operands: Operands,
    results: Vec<TensorId>,
}

struct Context<'a> {
    mlp: &'a Mlp,
    given: Vec<Given>,
    block: ThreadsId,
    thread: Var,
    /// Which of the blocks' rows are the own ones.
    m: Expr,
    /// The rows: a layer's input, then its result.
    near: TensorId,
    /// Stages of weights whose input's column is contiguous, and of those whose output's is.
    shared: [Option<TensorId>; 2],
}

impl Mlp {
    /// The kernel, with the symbol M, the number of rows, and maybe that of X's stride. It reads `X[M,width]`, and of
    /// each layer the weights `W[times,in,out]` and its operands, rows as `[times,out]`; it writes each layer's
    /// results. Parameters are in this order, each layer's results after its operands.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("mlp", self.arch);
        let (m, x, mut given) = self.parameters(&mut k)?;
        let threads = 32 * self.warps;
        let (block, m) = launch(&mut k, m.ceil_div(self.rows), threads, "m")?;
        let [thread] = k.indices(block, ["thread"])?;
        let near = self.near().allocate(&mut k, "sY", 1)?;
        let near = k.index(near, "sY", [0])?;
        let mut stages = |transposed: bool| {
            self.stage(transposed).map(|side| side.allocate(&mut k, "sW", self.stages)).transpose()
        };
        let shared = [stages(false)?, stages(true)?];
        let first = self.sides(0)[0];
        let tiles = first.tiled(&mut k, x)?;
        let rows = k.index(tiles, "rows", [m.clone(), Expr::from(0)])?;
        let edges = if self.rounds_x() { Edges::Moves } else { self.edges(self.width) };
        for (l, given) in given.iter_mut().enumerate() {
            given.tiles = self.sides(l)[1].tiled(&mut k, given.weights)?;
        }
        let context = Context { mlp: self, given, block, thread, m, near, shared };
        let given = (x, &context.given[..]);
        let header = self.header(given, block, |of, _| Ok(of))?;
        let own = (self.rows, &context.m);
        let tile = self.header(given, block, |of, name| rows_of(&mut k, of, name, own))?;
        let movers = Movers { threads, block, thread: &context.thread, edges };
        k.decompose(tile, |k| {
            // The rows come with the first stage.
            first.fill(k, rows, near, movers)?;
            context.layers(k)
        })?;
        k.finish_as(header)
    }

    /// Declares the number of rows, X, and what belongs to layers.
    fn parameters(&self, k: &mut Builder) -> Result<(Expr, TensorId, Vec<Given>)> {
        let m = Expr::from(k.symbol("M")?);
        let stride = match self.stride {
            Stride::Symbol => Expr::from(k.symbol("X_stride0")?),
            Stride::Packed | Stride::Broadcast => Expr::from(self.width),
        };
        let rows = [Layout::of(m.clone(), stride), leaf(self.width, 1)];
        let x = k.param("X", rows, self.x.unwrap_or(self.scalar))?;
        let given = (0..self.layers.len()).map(|l| self.declare(k, &m, l)).collect::<Result<_>>();
        Ok((m, x, given?))
    }

    /// All results, of all that is given: the kernel's, or those of some rows, which `part` says of each tensor.
    fn header(
        &self,
        (x, given): (TensorId, &[Given]),
        threads: ThreadsId,
        mut part: impl FnMut(TensorId, &str) -> Result<TensorId>,
    ) -> Result<Header> {
        let (mut outs, mut ins) = (Vec::new(), vec![part(x, "X_tile")?]);
        for given in given {
            ins.push(given.weights);
            for &(span, of) in &given.operands {
                ins.push(if span == Span::Row { of } else { part(of, "R_tile")? });
            }
            for &of in &given.results {
                outs.push(part(of, "Y_tile")?);
            }
        }
        Ok(Header::new(self.kind(), outs, ins, threads))
    }

    fn declare(&self, k: &mut Builder, m: &Expr, l: usize) -> Result<Given> {
        let Layer { width, transposed, times, epilogue, .. } = &self.layers[l];
        let from = self.input(l);
        let (row, column) = if *transposed { (*width, 1) } else { (1, from) };
        let shape = [leaf(*times, from * width), leaf(from, row), leaf(*width, column)];
        let weights = k.param("W", shape, self.scalar)?;
        let whole = Layout::rows([m, &Expr::from(*width)]);
        let kept = usize::from(l + 1 < self.layers.len());
        let shape = |span| match span {
            Some(Span::Row) => (Span::Row.name(), Layout::rows([*times, *width]).into()),
            Some(span @ (Span::Column | Span::Number)) => (span.name(), span.of_rows(m)),
            Some(Span::Whole) => (Span::Whole.name(), whole.clone().into()),
            None => ("Y", whole.clone().into()),
        };
        let (operands, results) = epilogue.declare(k, self.scalar, kept, shape)?;
        Ok(Given { weights, tiles: weights, operands, results })
    }

    /// So many like layers of one width: all but the last in a loop.
    pub fn alike(count: i64, layer: Layer) -> Mlp {
        let last = Layer { times: 1, ..layer.clone() };
        let first = Layer { times: count - 1, ..layer };
        let width = last.width;
        let layers = if count > 1 { vec![first, last] } else { vec![last] };
        Mlp { width, layers, ..Mlp::default() }
    }

    /// With as many warps, stages and so on as these layers want, and as many rows, from `rows` down, as registers and so much
    /// shared memory let a block have. Fails with [`crate::Error::Constraint`] if a block of 16 rows does not fit.
    pub fn fitting(self, rows: i64, shared: i64) -> Result<Mlp> {
        let heights = std::iter::successors(Some(rows), |rows| Some(rows / 2));
        for rows in heights.take_while(|rows| *rows >= 16) {
            // Threads that multiply would have too many operands of a deep stage at hand.
            let deepest = if By::is_threads(self.scalar, self.tf32) { 16 } else { 32 };
            let stages = [(32, 4), (32, 3), (16, 4), (16, 3), (16, 2)].into_iter();
            for (depth, stages) in stages.filter(|stage| stage.0 <= deepest) {
                // Few warps leave capacity for more blocks of a multiprocessor.
                for warps in [4, 8] {
                    let own = Mlp { rows, depth, warps, stages, ..self.clone() };
                    if own.sums() <= SUMS && own.bytes() <= shared {
                        return Ok(own);
                    }
                }
            }
        }
        needs(false, "layers whose sums and stages fit a block", &self).map(|()| self)
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
}

/// The `m`-th so many rows of a tensor in global memory.
fn rows_of(k: &mut Builder, of: TensorId, name: &str, (rows, m): (i64, &Expr)) -> Result<TensorId> {
    let columns = k.tensor_of(of)?.view.axes().len();
    let (tiles, zero) = ([Tiler::Size(rows), Tiler::Whole], Expr::from(0));
    let count = columns.min(2);
    tile_of(k, of, name, &tiles[..count], [m, &zero].into_iter().take(count))
}
