//! Reductions along an axis that is not the last: `y[o, i] = g(⊕ᵣ f(x₀[o, r, i], …))`.
//!
//! Every thread has a vector of neighbouring columns, and a block several strands of rows, whose totals meet in shared
//! memory. Rows along the last axis are [`Folds`](super::folds::Folds).
//!
//! A total of n elements errs by at most n·2⁻²⁴ of the sum of their absolute values, as an element
//! goes through no more than n additions.
//!
//! Levels:
//!
//! - kernel: totals of all columns
//!   - tile by a block: those of the columns of all its threads
//!     - registers by a thread: the function of a vector of elements, which are folded then
//!     - epilogue by a thread: a vector of totals leaves
//!       - registers by a thread: what is made of them

use super::access::{Access, declare, launch, product};
use crate::schedule::{
    self, Run, Runs, computed, copy, each, moved, neighbours, number, part, store, vector, widen,
};
use crate::{
    Arch, Binary, Builder, Cond, Expr, Function, Fused, Header, Kernel, Kind, Layout, Memory,
    Operand, Result, Scalar, TensorId, Test, ThreadsId, Within, needs,
};

parameters! {
    /// The parameters of a reduction. Its symbols are the sizes `outer`, `reduced` and `inner`, and strides of the operands
    /// `x0`, `x1`, …, `y`.
    pub struct Reduce {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm90a,
        /// What folds elements: one that has a neutral number.
        pub op: Binary = Binary::Add,
        /// What is folded: input `i` is `ins[i]`.
        pub function: Function = Function::identity(),
        /// The inputs, of axes `[outer, reduced, inner]`.
        pub ins: Vec<Access> = vec![Access::packed(Scalar::F16, 3)],
        /// What is stored: input 0 is the total, input 1 the number of elements.
        pub finish: Function = Function::identity(),
        /// The result, of axes `[outer, inner]`.
        pub out: Access = Access::packed(Scalar::F16, 2),
        /// Elements of a vector, along the last axis; 1 for any alignment.
        pub vector: i64 = 8,
        /// Threads along the columns of a block, a multiple of 32.
        pub threads: i64 = 32,
        /// Strands of a block.
        pub strands: i64 = 4,
        /// Rows that a thread loads before it folds the first.
        pub ahead: i64 = 4,
    }
}

impl Reduce {
    /// total / number
    pub fn mean() -> Function {
        Function::input(0) / Function::input(1)
    }

    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("reduce", self.arch);
        let sizes = k.symbols(["outer", "reduced", "inner"])?;
        let [outer, reduced, inner] = sizes.map(Expr::from);
        let (all, kept) = ([outer.clone(), reduced.clone(), inner.clone()], [outer, inner]);
        let given = self.ins.iter().enumerate().map(|(i, x)| (format!("x{i}"), x, &all[..]));
        let operands: Vec<_> = given.chain([("y".to_owned(), &self.out, &kept[..])]).collect();
        let mut ins = declare(&mut k, &operands)?;
        let out = ins.split_off(self.ins.len())[0];
        let [outer, inner] = kept;
        let columns = inner.ceil_div(self.threads * self.vector);
        let blocks = product(&[outer, columns.clone()]);
        let (block, first) = launch(&mut k, blocks, self.threads * self.strands, "first")?;
        let column = k.let_("column", first.rem(&columns))?.into();
        let outer = k.let_("outer_at", first.div(&columns))?.into();
        let given = ins.clone();
        let kind = Kind::Fused(self.result(self.total(), &reduced));
        Own { template: self, ins, out, reduced, block }.columns(&mut k, outer, column)?;
        k.finish(kind, out, given)
    }

    /// The total of elements that have the inputs' axes.
    fn total(&self) -> Fused {
        Fused::of(&self.function, &[]).folded(self.op, [1]).dims([Some(0), Some(2)])
    }

    /// What is stored of a total.
    fn result(&self, total: Fused, reduced: &Expr) -> Fused {
        Fused::of(&self.finish, &[total, Fused::index(reduced.clone())])
    }

    fn check(&self) -> Result {
        let Reduce { function, finish, out, ins, op, .. } = self;
        let axes = out.strides.len() == 2 && ins.iter().all(|x| x.strides.len() == 3);
        needs(axes, "inputs of three axes and a result of two", self)?;
        let known = function.inputs() == ins.len() && function.outputs().len() == 1;
        needs(known, "a function of the inputs that gives one number", function)?;
        let known = finish.inputs() <= 2 && finish.outputs().len() == 1;
        needs(known, "a result that is made of a total and a number", finish)?;
        needs(op.neutral().is_some(), "an operation that has a neutral number", op)?;
        Within(1, 16).check("elements a vector", self.vector)?;
        Within(1, 16).check("rows ahead", self.ahead)?;
        let whole = self.threads % 32 == 0 && self.threads > 0 && self.strands > 0;
        let fits = whole && self.threads * self.strands <= 1024;
        needs(fits, "columns of whole warps, of a block of 1024 threads at most", self)
    }
}

/// What a thread does: vectors of rows are folded into totals, and those stored.
struct Own<'a> {
    template: &'a Reduce,
    ins: Vec<TensorId>,
    out: TensorId,
    reduced: Expr,
    block: ThreadsId,
}

impl Own<'_> {
    /// Folds a run of columns, over the rows of the own strand, into the totals. `row`: the coordinates of the strand's n-th row.
    fn fold(
        &self,
        k: &mut Builder,
        run: &Run,
        total: TensorId,
        row: impl Fn(&Expr) -> Vec<Expr>,
    ) -> Result {
        let Reduce { op, strands, ahead, ins, function, .. } = self.template;
        let chunks = self.reduced.ceil_div(strands * ahead);
        let view = |k: &mut Builder, of: TensorId, n: i64, step: &Expr| {
            let at = if n == run.n { run.at.clone() } else { run.at.clone() * run.n };
            neighbours(k, of, row(step).into_iter().chain([at]), n, "vector")
        };
        k.for_("chunk", Expr::from(0)..chunks, 1, false, |k, chunk| {
            let count = |access: &Access| if access.repeats() { 1 } else { run.n };
            let raw = |x: &Access| vector(k, "raw", ahead * count(x), x.scalar);
            let raws = ins.iter().map(raw).collect::<Result<Vec<_>>>()?;
            let each = |k: &mut Builder, body: &dyn Fn(&mut Builder, &Expr, &Expr) -> Result| {
                k.unroll("step", *ahead, |k, i| {
                    let (i, step) = (Expr::from(i), Expr::from(chunk) * *ahead + Expr::from(i));
                    let first = view(k, self.ins[0], run.n, &step)?;
                    k.if_(Test::Inside(first.into()), |k| body(k, &i, &step))
                })
            };
            each(k, &|k, i, step| {
                for ((&of, access), &raw) in self.ins.iter().zip(ins).zip(&raws) {
                    let from = view(k, of, count(access), step)?;
                    let to = neighbours(k, raw, [i.clone()], count(access), "part")?;
                    copy(k, to, from, access.contiguous())?;
                }
                Ok(())
            })?;
            each(k, &|k, i, _| {
                let part = |(access, &raw): (&Access, &TensorId)| {
                    let part = neighbours(k, raw, [i.clone()], count(access), "part")?;
                    widen(k, part)
                };
                let parts = ins.iter().zip(&raws).map(part).collect::<Result<Vec<_>>>()?;
                let values = computed(k, function, ("values", run.n, Scalar::F32), &parts)?[0];
                schedule::each(k, run.n, |k, e| {
                    let of = run.element.clone().unwrap_or(e.clone());
                    k.reduce(*op, Operand::at(total, [of]), Operand::at(values, [e]))
                })
            })
        })
    }

    /// Stores the totals of a run.
    fn leave(&self, k: &mut Builder, run: &Run, total: TensorId) -> Result {
        let kind = Kind::Fused(self.template.result(Fused::input(0), &self.reduced));
        k.decompose(Header::alone(kind, run.view, total), |k| {
            let mut ins = vec![total];
            if self.template.finish.inputs() > 1 {
                let count = number(k, "count", Scalar::F32)?;
                k.alone(Kind::Index(self.reduced.clone()), count, ())?;
                ins.push(count);
            }
            let of = ("result", run.n, Scalar::F32);
            let result = computed(k, &self.template.finish, of, &ins)?[0];
            store(k, run.view, result, self.template.out.contiguous())
        })
    }

    /// Columns of `[outer, reduced, inner]`: a vector of neighbours by each thread, rows in strands.
    fn columns(&self, k: &mut Builder, outer: Expr, columns: Expr) -> Result {
        let Reduce { op, vector: n, threads, strands, .. } = *self.template;
        let [thread] = k.indices(self.block, ["thread_of_block"])?;
        let strand: Expr = k.let_("strand", Expr::from(&thread).div(threads))?.into();
        let across: Expr = k.let_("across", Expr::from(&thread).rem(threads))?.into();
        let column: Expr = k.let_("vector_at", columns.clone() * threads + &across)?.into();
        let end = k.tensor_of(self.out)?.view.axes()[1].size.clone();
        let runs = Runs { n, end, written_out: true };
        let across_block = Some((threads * n, columns));
        let tiles = [Some((1, outer.clone())), None, across_block.clone()];
        let ins = self.ins.iter().map(|&of| part(k, of, "tile", &tiles));
        let ins = ins.collect::<Result<Vec<_>>>()?;
        let out = part(k, self.out, "y_tile", &[Some((1, outer.clone())), across_block])?;
        let kind = Kind::Fused(self.template.result(self.template.total(), &self.reduced));
        k.decompose(Header::new(kind, out, ins, self.block), |k| {
            let total = vector(k, "total", n, Scalar::F32)?;
            each(k, n, |k, e| k.init(Operand::at(total, [e]), op.neutral().unwrap_or(0.0)))?;
            let row = |step: &Expr| vec![outer.clone(), step.clone() * strands + &strand];
            let view = |k: &mut Builder, n: i64, at: &Expr| {
                neighbours(k, self.out, [outer.clone(), at.clone()], n, "result")
            };
            runs.within(k, &column, view, |k, run| self.fold(k, &run, total, row))?;
            if strands > 1 {
                self.meet(k, total, [&strand, &across])?;
            }
            k.if_(Cond::equal(strand, 0), |k| {
                runs.within(k, &column, view, |k, run| {
                    let own = match &run.element {
                        None => total,
                        Some(e) => neighbours(k, total, [e.clone()], 1, "single")?,
                    };
                    self.leave(k, &run, own)
                })
            })
        })
    }

    /// Adds the totals of all strands to those of the first, through shared memory.
    fn meet(&self, k: &mut Builder, total: TensorId, [strand, across]: [&Expr; 2]) -> Result {
        let Reduce { op, vector: n, threads, strands, .. } = *self.template;
        let view = Layout::rows([strands, n, threads]);
        let shared = k.allocate("parts", view, Scalar::F32, Memory::Shared, None)?;
        let place = |strand: Expr, e: Expr| Operand::at(shared, [strand, e, across.clone()]);
        each(k, n, |k, e| k.move_(place(strand.clone(), e.clone()), Operand::at(total, [e])))?;
        k.spec(Kind::Sync, (), (), self.block)?;
        k.if_(Cond::equal(strand.clone(), 0), |k| {
            k.for_("other", 1..strands, 1, false, |k, other| {
                each(k, n, |k, e| {
                    let from = place(other.into(), e.clone());
                    let value = moved(k, "value", Scalar::F32, from)?;
                    k.reduce(op, Operand::at(total, [e]), value)
                })
            })
        })
    }
}
