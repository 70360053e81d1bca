//! An epilogue with its tensors, and what it does to runs of sums.

use super::{Edges, Span};
use crate::build::Builder;
use crate::error::Result;
use crate::function::Function;
use crate::index::Expr;
use crate::kernel::{Fused, Kind, Operand, TensorId, ThreadsId};
use crate::layout::Tiler;
use crate::schedule::pointwise::{each, load_inside, pointwise, store_inside, vector};
use crate::tensor::Scalar;

/// An epilogue with its tensors.
pub(in crate::template) struct Attached {
    function: Function,
    operands: Vec<(Span, TensorId)>,
    /// The results.
    pub(in crate::template) results: Vec<TensorId>,
    /// Whether neighbours move together, as rows have no partial ones.
    wide: bool,
}

/// `n` neighbours in a row of the result, which is cut into such runs.
pub(in crate::template) struct Run {
    pub(in crate::template) batch: Option<Expr>,
    pub(in crate::template) row: Expr,
    /// In runs.
    pub(in crate::template) column: Expr,
    pub(in crate::template) n: i64,
}

/// Elements of operands that registers hold in single precision: as a rule, of each that is a row, those of a run's
/// columns.
pub(in crate::template) struct Across(pub(in crate::template) Vec<Option<TensorId>>);

impl Attached {
    /// A function of the sum and of operands, and where its outputs go.
    pub(in crate::template) fn new(
        function: Function,
        operands: Vec<(Span, TensorId)>,
        results: Vec<TensorId>,
        edges: Edges,
    ) -> Attached {
        Attached { function, operands, results, wide: edges == Edges::Bulk }
    }

    /// What becomes of the sums, which are the first operand.
    pub(in crate::template) fn kind(&self) -> Kind {
        if self.function == Function::identity() {
            return Kind::Move;
        }
        Kind::Fused(self.fused(Fused::input(0), 1))
    }

    /// What becomes of sums and of the operands, which are those from this number on.
    pub(in crate::template) fn fused(&self, sums: Fused, first: usize) -> Fused {
        let operands = self.operands.iter().zip(first..);
        let operands = operands.map(|(operand, number)| operand.0.broadcast(number));
        Fused::of(&self.function, &std::iter::once(sums).chain(operands).collect::<Vec<_>>())
    }

    /// Whether neighbours move together.
    pub(in crate::template) fn wide(&self) -> bool {
        self.wide
    }

    /// The function's operands.
    pub(in crate::template) fn operands(&self) -> &[(Span, TensorId)] {
        &self.operands
    }

    /// What the kernel reads for it.
    pub(in crate::template) fn ins(&self) -> impl Iterator<Item = TensorId> {
        self.operands.iter().map(|operand| operand.1)
    }

    /// Loads what belongs to columns, of a run in any row.
    pub(in crate::template) fn across(
        &self,
        k: &mut Builder,
        column: &Expr,
        n: i64,
        one: ThreadsId,
    ) -> Result<Across> {
        self.across_but(k, vec![None; self.operands.len()], column, n, one)
    }

    /// Likewise, but for what registers hold already.
    pub(in crate::template) fn across_but(
        &self,
        k: &mut Builder,
        mut held: Vec<Option<TensorId>>,
        column: &Expr,
        n: i64,
        one: ThreadsId,
    ) -> Result<Across> {
        for (held, &(span, from)) in held.iter_mut().zip(&self.operands) {
            if span == Span::Row && held.is_none() {
                let terms = k.tile(from, "terms", &[Tiler::Size(n)])?;
                let term = k.index(terms, "term", [column])?;
                *held = Some(load_inside(k, term, n, self.wide, one)?);
            }
        }
        Ok(Across(held))
    }

    /// Results of a run's sums, in registers and in single precision.
    pub(in crate::template) fn finished(
        &self,
        k: &mut Builder,
        sums: TensorId,
        run: &Run,
        across: &Across,
        results: &[usize],
        one: ThreadsId,
    ) -> Result<Vec<TensorId>> {
        self.finished_with(k, (sums, &[]), run, across, results, one)
    }

    /// Likewise, where the function has further inputs, after the operands, that registers hold.
    pub(in crate::template) fn finished_with(
        &self,
        k: &mut Builder,
        (sums, more): (TensorId, &[TensorId]),
        run: &Run,
        across: &Across,
        results: &[usize],
        one: ThreadsId,
    ) -> Result<Vec<TensorId>> {
        let function = Function::all(results.iter().map(|&result| self.function.output(result)));
        if function == Function::identity() {
            return Ok(vec![sums]);
        }
        let mut ins = vec![sums];
        for (&(span, from), held) in self.operands.iter().zip(&across.0) {
            ins.push(match (span, held) {
                (_, Some(held)) => *held,
                (Span::Column, None) => {
                    let terms = k.tile(from, "terms", &[Tiler::Size(1)])?;
                    let term = k.index(terms, "term", [&run.row])?;
                    let number = load_inside(k, term, 1, self.wide, one)?;
                    let all = vector(k, "all", run.n, Scalar::F32)?;
                    each(k, run.n, |k, i| {
                        k.spec(Kind::Move, Operand::at(all, [i]), Operand::at(number, [0]), one)
                    })?;
                    all
                }
                (Span::Whole | Span::Row, None) => {
                    let from = run.of(k, from, "term")?;
                    load_inside(k, from, run.n, self.wide, one)?
                }
            });
        }
        ins.extend(more);
        let mut outs = Vec::new();
        for _ in results {
            outs.push(vector(k, "result", run.n, Scalar::F32)?);
        }
        pointwise(k, &function, &outs, &ins, run.n, one)?;
        Ok(outs)
    }

    /// Finishes a run's sums, and stores these results of them.
    pub(in crate::template) fn leave(
        &self,
        k: &mut Builder,
        sums: TensorId,
        run: &Run,
        across: &Across,
        results: &[usize],
        one: ThreadsId,
    ) -> Result<()> {
        let outs = self.finished(k, sums, run, across, results, one)?;
        for (&result, out) in results.iter().zip(outs) {
            self.put(k, self.results[result], out, run, one)?;
        }
        Ok(())
    }

    /// Stores what a run's sums have become.
    pub(in crate::template) fn put(
        &self,
        k: &mut Builder,
        result: TensorId,
        out: TensorId,
        run: &Run,
        one: ThreadsId,
    ) -> Result<()> {
        let to = run.of(k, result, "to")?;
        store_inside(k, to, out, run.n, self.wide, one)
    }

    /// The numbers of all results.
    pub(in crate::template) fn all(&self) -> Vec<usize> {
        (0..self.results.len()).collect()
    }
}

impl Run {
    /// This run `[n]` of a tensor `[m,n]`, that may be batched.
    pub(in crate::template) fn of(
        &self,
        k: &mut Builder,
        tensor: TensorId,
        name: &str,
    ) -> Result<TensorId> {
        let batch = self.batch.is_some().then_some(Tiler::Size(1));
        let tiles: Vec<Tiler> =
            batch.into_iter().chain([Tiler::Size(1), Tiler::Size(self.n)]).collect();
        let runs = k.tile(tensor, "runs", &tiles)?;
        let at = self.batch.iter().chain([&self.row, &self.column]);
        let run = k.index(runs, "run", at)?;
        k.reshape(run, name, 0, &[&[(self.n, 1)]])
    }
}
