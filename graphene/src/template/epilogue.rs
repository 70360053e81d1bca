//! What becomes of a matmul's sums: a [`Function`] of each, and of elements of other tensors.
//!
//! ```
//! use graphene_ir::function::Function;
//! use graphene_ir::kernel::Unary;
//! use graphene_ir::template::epilogue::{Epilogue, Span};
//!
//! // A layer: gelu(x·W + b) + r.
//! let [sum, bias, residual] = [0, 1, 2].map(Function::input);
//! let function = (sum + bias).unary(Unary::Gelu) + residual;
//! let layer = Epilogue::new(function, [Span::Row, Span::Whole]);
//! assert_eq!(layer, Epilogue::layer(true, Some(Unary::Gelu), true));
//! ```

use super::matmul::{Edges, tile_of};
use crate::choose::ceil;
use crate::named::named;
use crate::schedule::{
    computed, each, fetch_inside, load_inside, neighbours, store_inside, vector, widen,
};
use crate::{
    Builder, Expr, Function, Fused, Layout, Operand, Result, Scalar, TensorId, Tiler, Unary, View,
    needs,
};

/// What becomes of the sums.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Of the sum, which is input 0, and of an element of each operand; of a second sum, if there is one, the last input.
    /// It has as many outputs.
    pub function: Function,
    /// The function's further inputs.
    pub operands: Vec<Input>,
    /// The type of each result `[m,n]`; none: that of A and B.
    pub outputs: Vec<Option<Scalar>>,
}

/// An operand of an epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Input {
    /// Which of its elements belongs to which sum.
    pub span: Span,
    /// The type of its elements; none: that of A and B.
    pub scalar: Option<Scalar>,
}

named! {
    /// Which elements an epilogue's operand has. Its name is the parameter's, which is followed by `_2`, `_3`, … where there
    /// are more.
    pub enum Span {
        /// A row `[n]`, the same for every row of the result, such as a bias.
        Row = "bias",
        /// A column `[m]`, the same for every column of the result.
        Column = "column",
        /// `[m,n]`, such as a residual.
        Whole = "R",
        /// One element, the same for all of the result.
        Number = "number",
    }
}

impl Span {
    /// The operand of this number, such that it is broadcast to `[m,n]`.
    pub(super) fn broadcast(self, number: usize) -> Fused {
        let operand = Fused::input(number);
        if self.is_of_rows() { operand.dims([Some(0), None]) } else { operand }
    }

    /// Whether there is one element for each row; one number is that of every row.
    pub(super) fn is_of_rows(self) -> bool {
        matches!(self, Span::Column | Span::Number)
    }

    /// How the elements for so many rows lie, of an operand that has one for each.
    pub(super) fn of_rows(self, rows: &Expr) -> View {
        View::buffer(&[Layout::of(rows, i64::from(self != Span::Number))])
    }
}

impl Epilogue {
    /// A function of the sum and of operands that have the type of A and B, as its results have.
    pub fn new(function: Function, operands: impl IntoIterator<Item = Span>) -> Epilogue {
        let operands = operands.into_iter().map(|span| Input { span, scalar: None }).collect();
        let outputs = vec![None; function.outputs().len()];
        Epilogue { function, operands, outputs }
    }

    /// In this order: a bias `[n]` is added, the activation applied, a residual `[m,n]` added.
    pub fn layer(bias: bool, activation: Option<Unary>, residual: bool) -> Epilogue {
        let mut function = Function::identity();
        if bias {
            function = function + Function::input(1);
        }
        if let Some(activation) = activation {
            function = function.unary(activation);
        }
        if residual {
            function = function + Function::input(1 + usize::from(bias));
        }
        let operands = [bias.then_some(Span::Row), residual.then_some(Span::Whole)];
        Epilogue::new(function, operands.into_iter().flatten())
    }

    /// Whether the function is one of so many sums and the operands, with the results as outputs.
    pub(super) fn check(&self, sums: usize) -> Result {
        let results = self.function.outputs().len();
        let known = self.function.inputs() <= sums + self.operands.len();
        let known = known && results == self.outputs.len() && results > 0;
        let what = "a function of the sum and the operands that gives the results, one or more";
        needs(known, what, self)
    }

    /// Declares the parameters: the operands', then the results' from the one of number `kept` on. `shape`: the name and shape
    /// of an operand, or of a result.
    pub(super) fn declare(
        &self,
        k: &mut Builder,
        scalar: Scalar,
        kept: usize,
        shape: impl Fn(Option<Span>) -> (&'static str, View),
    ) -> Result<(Operands, Vec<TensorId>)> {
        let mut param = |span: Option<Span>, own: Option<Scalar>| {
            let (name, view) = shape(span);
            k.param(name, view, own.unwrap_or(scalar))
        };
        let operand = |input: &Input| Ok((input.span, param(Some(input.span), input.scalar)?));
        let operands = self.operands.iter().map(operand).collect::<Result<_>>()?;
        let results = self.outputs[kept..].iter().map(|output| param(None, *output));
        Ok((operands, results.collect::<Result<_>>()?))
    }
}

impl Default for Epilogue {
    /// The sums themselves.
    fn default() -> Epilogue {
        Epilogue::new(Function::identity(), [])
    }
}

/// An epilogue's operands: which of their elements belong to which sums, and they.
pub(super) type Operands = Vec<(Span, TensorId)>;

/// An epilogue with its tensors.
#[derive(Clone)]
pub(super) struct Attached {
    pub(super) function: Function,
    pub(super) operands: Operands,
    pub(super) results: Vec<TensorId>,
    /// Whether neighbours move together, as rows have no partial ones.
    pub(super) wide: bool,
}

/// `n` neighbours in a row of the result, which is cut into such runs, with a thread that has their sums.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) batch: Option<Expr>,
    pub(super) row: Expr,
    /// In runs.
    pub(super) column: Expr,
    pub(super) n: i64,
    pub(super) held: Held,
}

/// Elements of operands that registers hold in single precision: as a rule, of each that is a row, those of a run's
/// columns. After them the function may have further inputs.
pub(super) type Held = Vec<Option<TensorId>>;

impl Attached {
    pub(super) fn new(
        Epilogue { function, .. }: &Epilogue,
        operands: Operands,
        results: Vec<TensorId>,
        edges: Edges,
    ) -> Attached {
        let function = function.clone();
        Attached { function, operands, results, wide: edges == Edges::Bulk }
    }

    /// What becomes of sums and of the operands, which are those from this number on.
    pub(super) fn fused(&self, sums: impl IntoIterator<Item = Fused>, first: usize) -> Fused {
        let mut sums = sums.into_iter();
        let operands = self.operands.iter().zip(first..);
        let operands = operands.map(|(operand, number)| operand.0.broadcast(number));
        let inputs = sums.next().into_iter().chain(operands).chain(sums);
        Fused::of(&self.function, &inputs.collect::<Vec<_>>())
    }

    /// What the kernel reads for it.
    pub(super) fn ins(&self) -> impl Iterator<Item = TensorId> {
        self.operands.iter().map(|operand| operand.1)
    }

    /// Loads what belongs to columns, of a run in any row, but for what registers hold already.
    pub(super) fn across(&self, k: &mut Builder, held: Held, at: (&Expr, i64)) -> Result<Held> {
        let (mut held, (column, n)) = (held, at);
        held.resize(self.operands.len(), None);
        for (held, &(span, from)) in held.iter_mut().zip(&self.operands) {
            if span == Span::Row && held.is_none() {
                let term = tile_of(k, from, "term", &[Tiler::Size(n)], [column])?;
                *held = Some(load_inside(k, term, self.wide)?);
            }
        }
        Ok(held)
    }

    /// Registers of 32 bits for the operands of a column of so many runs of `n` elements: a row's elements once, a matrix's for
    /// each run.
    pub(super) fn registers(&self, k: &Builder, n: i64, runs: i64) -> Result<i64> {
        let each = |&(span, from): &(Span, TensorId)| {
            let registers = ceil(n * k.tensor_of(from)?.scalar.bytes(), 4);
            Ok(match span {
                Span::Row => registers,
                Span::Column | Span::Number => 0,
                Span::Whole => registers * runs,
            })
        };
        self.operands.iter().map(each).sum()
    }

    /// Registers for `row` elements of each operand that is a row, and `whole` of each that is a matrix.
    pub(super) fn buffers(&self, k: &mut Builder, row: i64, whole: i64) -> Result<Held> {
        let each = |&(span, from): &(Span, TensorId)| {
            let n = match span {
                Span::Row => row,
                Span::Whole => whole,
                Span::Column | Span::Number => return Ok(None),
            };
            let scalar = k.tensor_of(from)?.scalar;
            vector(k, "met", n, scalar).map(Some)
        };
        self.operands.iter().map(each).collect()
    }

    /// Begins to load a run of the operands of this span, into the part of this number of their [`buffers`](Self::buffers).
    pub(super) fn fetch(
        &self,
        k: &mut Builder,
        buffers: &Held,
        wanted: Span,
        run: &Run,
        number: &Expr,
    ) -> Result {
        for (&(span, from), &buffer) in self.operands.iter().zip(buffers) {
            let Some(buffer) = buffer.filter(|_| span == wanted) else { continue };
            let from = match span {
                Span::Row => tile_of(k, from, "term", &[Tiler::Size(run.n)], [&run.column])?,
                Span::Whole | Span::Column | Span::Number => run.of(k, from, "term")?,
            };
            let to = neighbours(k, buffer, [number.clone()], run.n, "part")?;
            fetch_inside(k, to, from, self.wide)?;
        }
        Ok(())
    }

    /// Widens what [`fetch`](Self::fetch) loaded to single precision, for the run to hold.
    pub(super) fn hold(
        &self,
        k: &mut Builder,
        buffers: &Held,
        wanted: Span,
        run: &mut Run,
        number: &Expr,
    ) -> Result {
        run.held.resize(self.operands.len(), None);
        for ((held, &(span, _)), &buffer) in run.held.iter_mut().zip(&self.operands).zip(buffers) {
            let Some(buffer) = buffer.filter(|_| span == wanted) else { continue };
            let part = neighbours(k, buffer, [number.clone()], run.n, "part")?;
            *held = Some(widen(k, part)?);
        }
        Ok(())
    }

    /// These results of a run's sums, in registers and in single precision, but for sums of integers that are results themselves.
    pub(super) fn finished(
        &self,
        k: &mut Builder,
        sums: TensorId,
        run: &Run,
        of: &[usize],
    ) -> Result<Vec<TensorId>> {
        let n = run.n;
        let function = Function::all(of.iter().map(|&result| self.function.output(result)));
        if function == Function::identity() {
            return Ok(vec![sums]);
        }
        let mut ins = vec![widen(k, sums)?];
        for (&(span, from), held) in self.operands.iter().zip(&run.held) {
            ins.push(match (span, held) {
                (_, Some(held)) => *held,
                (Span::Column | Span::Number, None) => {
                    let term = tile_of(k, from, "term", &[Tiler::Size(1)], [&run.row])?;
                    let number = load_inside(k, term, self.wide)?;
                    let all = vector(k, "all", n, Scalar::F32)?;
                    each(k, n, |k, i| k.move_(Operand::at(all, [i]), Operand::at(number, [0])))?;
                    all
                }
                (Span::Whole | Span::Row, None) => {
                    let from = run.of(k, from, "term")?;
                    load_inside(k, from, self.wide)?
                }
            });
        }
        for &sums in run.held[self.operands.len()..].iter().flatten() {
            ins.push(widen(k, sums)?);
        }
        let mut outs = computed(k, &function, ("result", n, Scalar::F32), &ins)?;
        if ins[0] != sums {
            // Single precision does not hold all sums of integers: those that are results themselves stay as they are.
            let own = |result: &usize| self.function.output(*result) == Function::identity();
            let sums_of = outs.iter_mut().zip(of).filter(|(_, result)| own(result));
            sums_of.for_each(|(out, _)| *out = sums);
        }
        Ok(outs)
    }

    /// Finishes a run's sums, and stores all results of them.
    pub(super) fn leave(&self, k: &mut Builder, sums: TensorId, run: &Run) -> Result {
        let all: Vec<usize> = (0..self.results.len()).collect();
        let mut outs = self.finished(k, sums, run, &all)?.into_iter().enumerate();
        outs.try_for_each(|(result, out)| self.put(k, result, out, run))
    }

    /// Stores what a run's sums have become, as a result.
    pub(super) fn put(&self, k: &mut Builder, result: usize, out: TensorId, run: &Run) -> Result {
        let to = run.of(k, self.results[result], "to")?;
        store_inside(k, to, out, self.wide)
    }
}

impl Run {
    /// This run `[n]` of a tensor `[m,n]`, that may be batched.
    pub(super) fn of(&self, k: &mut Builder, tensor: TensorId, name: &str) -> Result<TensorId> {
        let at = self.batch.iter().chain([&self.row, &self.column]).cloned();
        neighbours(k, tensor, at, self.n, name)
    }
}
