//! Reductions: `y[o, i] = g(⊕ᵣ f(x₀[o, r, i], …))`, over the last axis or a middle one.
//!
//! Along the last axis a team of threads takes a row, each thread vectors of 16 bytes. Along a middle
//! (or the first) axis every thread has a vector of neighbouring columns, and a block several
//! strands of rows, whose totals meet in shared memory.
//!
//! Few results of long reductions are computed by several blocks each, which add their parts to the results in memory
//! in one step each (AKG); the results must be 0 before. The order of these additions is not fixed.
//!
//! A total of n elements errs by at most n·2⁻²⁴ of the sum of their absolute values, as an element
//! goes through no more than n additions.
//!
//! Levels: the kernel; a row by a team, or a vector of columns by each thread of a block; the row's total, and what is
//! made of it; atoms.
//!
//! - this file: the parameters and the kernel's outline;
//! - `own`: what a thread does: how elements come, and totals go, along rows or in strands.

mod own;

use self::own::Own;
use super::access::{Access, declare, launch, product};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Result, Within, needs};
use crate::function::Function;
use crate::index::Expr;
use crate::kernel::{Binary, Fused, Kernel, Kind, Unary};
use crate::schedule::together::ThreadGroups;
use crate::tensor::Scalar;

/// The parameters of a reduction. Its symbols are the sizes `outer`, `reduced`, and `inner` unless the last axis is
/// reduced; the number of `parts` if there are some; and strides of the operands `x0`, `x1`, …, `y`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// What it is compiled for.
    pub arch: Arch,
    /// What folds elements: one that has a neutral number.
    pub op: Binary,
    /// What is folded: input `i` is `ins[i]`.
    pub function: Function,
    /// The inputs, of axes `[outer, reduced]`, or `[outer, reduced, inner]`.
    pub ins: Vec<Access>,
    /// What is stored: input 0 is the total, input 1 the number of elements. With parts it must be
    /// linear in the total, as it is applied to each part.
    pub finish: Function,
    /// The result, of axes `[outer]`, or `[outer, inner]`.
    pub out: Access,
    /// Elements of a vector, along the last axis; 1 for any alignment.
    pub vector: i64,
    /// Threads along the last axis: those of a row's team, or of a block's columns, then a multiple of 32.
    pub threads: i64,
    /// Rows of a block, or its strands.
    pub teams: i64,
    /// Whether several blocks fold one result.
    pub parts: bool,
}

impl Default for Reduce {
    fn default() -> Reduce {
        Reduce {
            arch: Arch::Sm90a,
            op: Binary::Add,
            function: Function::identity(),
            ins: vec![Access::packed(Scalar::F16, 2)],
            finish: Function::identity(),
            out: Access::packed(Scalar::F16, 1),
            vector: 8,
            threads: 32,
            teams: 4,
            parts: false,
        }
    }
}

impl Reduce {
    /// total / number
    pub fn mean() -> Function {
        Function::input(0) / Function::input(1)
    }

    /// Whether the last axis is reduced.
    pub fn along_last(&self) -> bool {
        self.out.strides.len() == 1
    }

    /// The kernel.
    ///
    /// # Errors
    /// [`Error::Constraint`](crate::Error::Constraint) for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("reduce", self.arch);
        let mut axes = vec!["outer", "reduced", "inner"];
        axes.truncate(self.out.strides.len() + 1);
        let sizes: Vec<Expr> =
            axes.into_iter().map(|name| Ok(k.symbol(name)?.into())).collect::<Result<_>>()?;
        let parts = if self.parts { Expr::from(k.symbol("parts")?) } else { Expr::from(1) };
        let kept: Vec<Expr> = sizes.iter().take(1).chain(sizes.iter().skip(2)).cloned().collect();
        let given = self.ins.iter().enumerate().map(|(i, x)| (format!("x{i}"), x, &sizes[..]));
        let operands: Vec<_> = given.chain([("y".to_owned(), &self.out, &kept[..])]).collect();
        let mut ins = declare(&mut k, &operands)?;
        let out = ins.split_off(self.ins.len())[0];
        // Blocks along the outer and the inner axis, and parts.
        let per_block = |size: &Expr, tile: i64| size.ceil_div(&Expr::from(tile));
        let blocks = match &kept[..] {
            [outer, inner] => vec![outer.clone(), per_block(inner, self.threads * self.vector)],
            _ => vec![per_block(&sizes[0], self.teams)],
        };
        let threads = self.threads * self.teams;
        let (block, mut rest) = launch(&mut k, product(&blocks) * &parts, threads, "first")?;
        let mut part = Expr::from(0);
        if self.parts {
            part = k.let_("part", rest.rem(&parts))?.into();
            rest = k.let_("rest", rest.div(&parts))?.into();
        }
        let steps = [part, parts];
        let reduced = sizes[1].clone();
        let given = ins.clone();
        if let [_, columns] = &blocks[..] {
            let column = k.let_("column", rest.rem(columns))?;
            let outer = k.let_("outer_at", rest.div(columns))?;
            let one = k.scalar(block, "one")?;
            let own = Own { template: self, ins, out, one, reduced, steps };
            own.columns(&mut k, block, outer.into(), column.into())?;
        } else {
            let teams = ThreadGroups::new(&mut k, block, self.threads, self.teams)?;
            let own = Own { template: self, ins, out, one: teams.one, reduced, steps };
            own.rows(&mut k, &teams, rest)?;
        }
        let total = self.total(None);
        k.finish(Kind::Fused(self.result(total, &sizes[1])), out, given)
    }

    /// The total of elements that have the inputs' axes; of one of several parts, which has so many neighbours in turn, of
    /// its own: the count of the neighbours, the part's number, and the number of parts.
    fn total(&self, part: Option<[Expr; 3]>) -> Fused {
        let mut values = Fused::of(&self.function, &[]);
        if let Some([count, part, parts]) = part {
            let round = Fused::input(0).position(1).binary(Binary::Div, Fused::index(count));
            let round = round.unary(Unary::Floor).binary(Binary::Rem, Fused::index(parts));
            let neutral = Fused::number(self.op.neutral().unwrap_or(0.0));
            values = round.binary(Binary::Equal, Fused::index(part)).select(values, neutral);
        }
        let kept = [0, 2].into_iter().take(self.out.strides.len()).map(Some);
        values.folded(self.op, [1]).dims(kept.collect::<Vec<_>>())
    }

    /// What is stored of a total: several parts add to what is there.
    fn result(&self, total: Fused, reduced: &Expr) -> Fused {
        let result = Fused::of(&self.finish, &[total, Fused::index(reduced.clone())]);
        if self.parts { Fused::old(0).binary(Binary::Add, result) } else { result }
    }

    fn check(&self) -> Result<()> {
        let Reduce { function, finish, out, ins, op, .. } = self;
        let rank = out.strides.len();
        let axes = (1..=2).contains(&rank) && ins.iter().all(|x| x.strides.len() == rank + 1);
        needs(axes, "inputs of one axis more than the result, of two or three", self)?;
        let known = function.inputs() == ins.len() && function.outputs().len() == 1;
        needs(known, "a function of the inputs that gives one number", function)?;
        let known = finish.inputs() <= 2 && finish.outputs().len() == 1;
        needs(known, "a result that is made of a total and a number", finish)?;
        needs(op.neutral().is_some(), "an operation that has a neutral number", op)?;
        let adds = !self.parts || (*op == Binary::Add && out.scalar == Scalar::F32);
        needs(adds, "sums in single precision, which memory adds up", self)?;
        Within(1, 16).check("elements a vector", self.vector)?;
        let whole = self.threads % 32 == 0 && self.threads > 0 && self.teams > 0;
        let warps = rank == 1 || (whole && self.threads * self.teams <= 1024);
        needs(warps, "columns of whole warps, of a block of 1024 threads at most", self)
    }
}
