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
use crate::schedule::{Run, Runs, computed, each, moved, neighbours, number, part, store, vector};
use crate::{
    Arch, Binary, Builder, Cond, Expr, Function, Fused, Header, Kernel, Kind, Layout, Memory,
    Operand, Result, Scalar, TensorId, ThreadsId, Within, needs,
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
    /// The function's values of a vector of the inputs.
    fn values(&self, k: &mut Builder, n: i64, row: &[Expr], at: &Expr) -> Result<TensorId> {
        let mut ins = Vec::new();
        for (&of, access) in self.ins.iter().zip(&self.template.ins) {
            let from = neighbours(k, of, row.iter().chain([at]).cloned(), n, "vector")?;
            ins.push(access.load(k, from, Scalar::F32)?);
        }
        Ok(computed(k, &self.template.function, ("values", n, Scalar::F32), &ins)?[0])
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
            let steps = self.reduced.ceil_div(strands);
            k.for_("step", Expr::from(0)..steps, 1, false, |k, i| {
                let row = [outer.clone(), Expr::from(i) * strands + &strand];
                let view = |k: &mut Builder, n: i64, at: &Expr| {
                    neighbours(k, self.ins[0], row.iter().chain([at]).cloned(), n, "vector")
                };
                runs.within(k, &column, view, |k, run| {
                    let values = self.values(k, run.n, &row, &run.at)?;
                    each(k, run.n, |k, e| {
                        let of = run.element.clone().unwrap_or(e.clone());
                        let (total, value) = (Operand::at(total, [of]), Operand::at(values, [e]));
                        k.reduce(op, total, value)
                    })
                })
            })?;
            if strands > 1 {
                self.meet(k, total, [&strand, &across])?;
            }
            let view = |k: &mut Builder, n: i64, at: &Expr| {
                neighbours(k, self.out, [outer.clone(), at.clone()], n, "result")
            };
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
