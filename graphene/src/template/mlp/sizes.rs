//! What a block of a chain of layers has: columns, steps, stages, sums and bytes; and whether a kernel has them.

use super::{Layer, Mlp, SUMS};
use crate::choose::{ceil, gcd};
use crate::error::AtMost;
use crate::schedule::WIDTH;
use crate::template::tiled_mma::{self, By};
use crate::template::{access::Stride, epilogue::Span, matmul::Edges, stage::Side};
use crate::{AtLeast, Function, Fused, Kind, MultipleOf, Result, Scalar, Within, needs};

impl Mlp {
    pub(super) fn check(&self) -> Result {
        self.check_layers()?;
        MultipleOf(16).check("as the depth of a stage", self.depth)?;
        self.arch.needs(tiled_mma::features(self.arch, self.scalar, self.tf32))?;
        AtLeast(2).check("stages", self.stages)?;
        Within(1, 32).check("warps", self.warps)?;
        MultipleOf(16).check("rows a block", self.rows)?;
        for (l, layer) in self.layers.iter().enumerate() {
            needs(self.padded(l) >= layer.width, "layers that warps can share", layer)?;
        }
        AtMost(SUMS).check("accumulators a thread", self.sums())
    }

    /// What is computed, however a block does it.
    pub(super) fn check_layers(&self) -> Result {
        let last = self.layers.last().is_some_and(|last| last.times == 1);
        needs(last, "a last layer that is there once", &self.layers)?;
        let float = matches!(self.scalar, Scalar::F32 | Scalar::F16 | Scalar::Bf16);
        needs(float, "fp16, bf16 or fp32 rows and weights", self.scalar)?;
        let known = !self.rounds_x() || self.x == Some(Scalar::F32);
        needs(known, "X of the rows' type or in single precision", self.x)?;
        needs(self.stride != Stride::Broadcast, "rows that do not broadcast", self.stride)?;
        let mut from = self.width;
        for layer in &self.layers {
            let Layer { width, times, skip, epilogue, .. } = layer;
            let wide = [from, *width].iter().all(|width| (1..=4096).contains(width));
            needs(wide, "1 to 4096 columns a layer", [from, *width])?;
            let inputs = 1 + epilogue.operands.len() + usize::from(*skip);
            let outputs = epilogue.function.outputs().len();
            let known = epilogue.function.inputs() <= inputs && outputs == epilogue.outputs.len();
            needs(known, "a function of the sum, the operands and the input", epilogue)?;
            needs(outputs > 0, "1 or more results a layer", outputs)?;
            needs(!skip || from == *width, "a skipped layer as wide as its input", [from, *width])?;
            let rows = epilogue.operands.iter().all(|operand| operand.span == Span::Row);
            let alike = from == *width && rows && outputs == 1;
            let times = *times == 1 || (*times > 1 && alike);
            let what = "repeated layers of one width, with rows as operands, and one result";
            needs(times, what, layer)?;
            from = *width;
        }
        Ok(())
    }

    /// What the kernel computes: of X, and of each layer's weights and operands.
    pub(super) fn kind(&self) -> Kind {
        let x = Function::identity();
        let x = if self.rounds_x() { x.rounded(self.scalar) } else { x };
        let (mut state, mut first) = (Fused::of(&x, &[Fused::input(0)]), 1);
        let mut results = Vec::new();
        for (l, Layer { epilogue, .. }) in self.layers.iter().enumerate() {
            let all = self.layer(l, state, first);
            let kept = usize::from(l + 1 < self.layers.len());
            results.extend((kept..epilogue.outputs.len()).map(|output| all.output(output)));
            (state, first) = (all.output(0), first + 1 + epilogue.operands.len());
        }
        Kind::Fused(Fused::all(results))
    }

    /// Whether X has another type than rows.
    pub(super) fn rounds_x(&self) -> bool {
        self.x.is_some_and(|x| x != self.scalar)
    }

    /// What a layer computes: its sums, all of it, and what becomes of the sums.
    pub(super) fn kinds(&self, l: usize) -> [Kind; 3] {
        let layer = &self.layers[l];
        let sums = Fused::input(0).matmul(Fused::input(1).merge(0));
        let input = Fused::input(1 + layer.epilogue.operands.len());
        let left = layer.left(Fused::input(0), 1, input, |operand| operand);
        [sums, self.layer(l, Fused::input(0), 1), left].map(Kind::Fused)
    }

    /// The results of a layer, or of several that follow each other; inputs from `first` on are its weights and operands.
    fn layer(&self, l: usize, state: Fused, first: usize) -> Fused {
        let (layer, times) = (&self.layers[l], self.layers[l].times);
        let of = |state: Fused, time: i64| {
            let own = |input: Fused| if times == 1 { input } else { input.slice(0, time, 1) };
            let weights = own(Fused::input(first)).merge(0);
            layer.left(state.clone().matmul(weights), first + 1, state, own)
        };
        (1..times).fold(of(state, 0), |all, time| of(all.output(0), time))
    }

    /// Sums that a thread has.
    pub(super) fn sums(&self) -> i64 {
        let widest = (0..self.layers.len()).map(|l| self.padded(l)).max().unwrap_or(0);
        widest * self.rows / (32 * self.warps)
    }

    /// The bytes of shared memory that a block takes.
    pub(super) fn bytes(&self) -> i64 {
        let stages = [false, true].into_iter().filter_map(|transposed| self.stage(transposed));
        self.near().bytes() + stages.map(|side| self.stages * side.bytes()).sum::<i64>()
    }

    /// Columns that a layer is computed with: those that warps can share; and, of what is an input,
    /// whole stages. Beyond the layer's own, weights and inputs are 0.
    pub(super) fn padded(&self, l: usize) -> i64 {
        let along = gcd(self.rows / 16, self.warps);
        let shared = 16 * self.warps / along;
        let last = l + 1 == self.layers.len();
        let whole = if last { shared } else { shared / gcd(shared, self.depth) * self.depth };
        ceil(self.layers[l].width, whole) * whole
    }

    /// The same of a layer's input.
    fn padded_input(&self, l: usize) -> i64 {
        let first = || ceil(self.width, self.depth) * self.depth;
        l.checked_sub(1).map_or_else(first, |before| self.padded(before))
    }

    /// Columns of a layer's input.
    pub(super) fn input(&self, l: usize) -> i64 {
        l.checked_sub(1).map_or(self.width, |before| self.layers[before].width)
    }

    /// Steps along a layer's K.
    pub(super) fn steps(&self, l: usize) -> i64 {
        ceil(self.input(l), self.depth)
    }

    /// The rows: as a layer's input, and a stage of its weights.
    pub(super) fn sides(&self, l: usize) -> [Side; 2] {
        let transposed = self.layers[l].transposed;
        let rows = self.side(false, self.rows, self.padded_input(l), false);
        [rows, self.side(true, self.padded(l), self.depth, transposed)]
    }

    fn side(&self, right: bool, size: i64, depth: i64, transposed: bool) -> Side {
        let threads = By::is_threads(self.scalar, self.tf32);
        let by = if threads { By::Threads([0; 2]) } else { By::Warps };
        let chunk = by.chunk(self.scalar, transposed);
        Side { right, size, matrices: 1, depth, transposed, scalar: self.scalar, chunk }
    }

    /// The rows where they are widest.
    pub(super) fn near(&self) -> Side {
        let widest = (0..self.layers.len()).map(|l| self.padded_input(l)).max();
        self.side(false, self.rows, widest.unwrap_or(16), false)
    }

    /// A stage of weights so arranged where they are widest, if there are any.
    pub(super) fn stage(&self, transposed: bool) -> Option<Side> {
        let like = |l: &usize| self.layers[*l].transposed == transposed;
        let widest = (0..self.layers.len()).filter(like).map(|l| self.padded(l)).max()?;
        Some(self.side(true, widest, self.depth, transposed))
    }

    /// How rows of so many elements move.
    pub(super) fn edges(&self, width: i64) -> Edges {
        if width * self.scalar.bytes() % WIDTH == 0 { self.edges } else { Edges::Moves }
    }

    /// Columns of X and of all layers where they are widest.
    pub(super) fn widest(&self) -> i64 {
        self.layers.iter().map(|layer| layer.width).fold(self.width, i64::max)
    }

    /// Whether X and the result move by tensor copies, as those of the layers' type do.
    pub(super) fn copies(&self) -> [bool; 2] {
        let result = self.layers.last().and_then(|last| *last.epilogue.outputs.first()?);
        [self.x, result].map(|own| own.is_none_or(|own| own == self.scalar))
    }

    /// Bytes of all layers' operands, each of which begins at a multiple of 128.
    pub(super) fn row_bytes(&self) -> i64 {
        let of = |layer: &Layer| {
            let operands = layer.epilogue.operands.iter();
            let bytes = operands.map(|row| row.scalar.unwrap_or(self.scalar).bytes());
            bytes.map(|bytes| ceil(bytes * layer.times * layer.width, 128) * 128).sum::<i64>()
        };
        self.layers.iter().map(of).sum()
    }
}

impl Layer {
    /// What becomes of the sums, of the operands, which `own` cuts and whose first has this number, and of the input.
    fn left(&self, sums: Fused, first: usize, input: Fused, own: impl Fn(Fused) -> Fused) -> Fused {
        let operands = self.epilogue.operands.iter().zip(first..);
        let operands = operands.map(|(operand, number)| own(operand.span.broadcast(number)));
        let input = self.skip.then_some(input);
        let parts: Vec<Fused> = std::iter::once(sums).chain(operands).chain(input).collect();
        Fused::of(&self.epilogue.function, &parts)
    }
}
