//! Rows and their totals: `tᵢ = ⊕ fᵢ(x₀, x₁, …, t₀, …)` over the columns, one after the other, and what becomes of
//! elements and totals. Variances, softmax along any axis, quotients by sums, and several reductions at once are such.
//!
//! A team of threads takes a row, and reads it again for every total and for the results; a row that was
//! read just before comes from a cache. [`rows`](super::rows) keeps rows in registers, and
//! [`reduce`](super::reduce) reads neighbouring columns side by side: they are faster at what they do.
//!
//! Levels:
//!
//! - kernel: results of all rows
//!   - tile by a team: a row's
//!     - reduction by a team: one of its totals
//!       - registers by a thread: what is folded, of some elements
//!       - registers by a team: what all threads' parts make
//!     - registers by a thread: a total, finished; or results, of some elements and all totals

mod passes;

use self::passes::Row;
use super::access::{Access, declare, launch, product, sizes};
use crate::schedule::together::ThreadGroups;
use crate::{
    Arch, Binary, Builder, Expr, Function, Fused, Kernel, Kind, Result, Scalar, Within, needs,
};

parameters! {
    /// The parameters. Symbols are the sizes `N0`, `N1`, … of the axes, and strides of the operands, which
    /// are the inputs `x0`, `x1`, … and the results `y0`, `y1`, …. By default the sums of rows of fp16.
    pub struct Folds {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm80,
        /// How many axes rows have; the others are those of columns.
        pub kept: usize = 1,
        /// The inputs: of all axes, or of those of rows alone. One at least is of all.
        pub ins: Vec<Access> = vec![Access::packed(Scalar::F16, 2)],
        /// The totals, in their order.
        pub totals: Vec<Total> = vec![Total::default()],
        /// The results.
        pub outs: Vec<Out> = vec![Out::default()],
        /// Elements of a vector; the last axis must be a multiple. 1 for any number and alignment.
        pub vector: i64 = 1,
        /// Threads of a team: a power of two up to 32, or a multiple of 32.
        pub threads: i64 = 32,
        /// Rows, that is teams, of a block.
        pub teams: i64 = 4,
    }
}

parameters! {
    /// A total of each row. By default a sum.
    pub struct Total {
        /// What folds elements: one that has a neutral number.
        pub op: Binary = Binary::Add,
        /// What is folded: of the inputs, and of the totals before.
        pub function: Function = Function::identity(),
        /// What it then becomes: of the total, the number of columns, and the totals before.
        pub finish: Function = Function::identity(),
    }
}

parameters! {
    /// A result. By default a row's first total.
    pub struct Out {
        /// What is stored: of the inputs, and of all totals.
        pub function: Function = Function::input(1),
        /// Where: of all axes, or of those of rows alone.
        pub access: Access = Access::packed(Scalar::F16, 1),
    }
}

impl Folds {
    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        let whole = self.check()?;
        let rank = self.ins[whole].strides.len();
        let mut k = Builder::new("folds", self.arch);
        let sizes = sizes(&mut k, "N", rank)?;
        let ins = self.ins.iter().enumerate().map(|(i, x)| (format!("x{i}"), x));
        let outs = self.outs.iter().enumerate().map(|(i, y)| (format!("y{i}"), &y.access));
        let all = ins.chain(outs).map(|(name, of)| (name, of, &sizes[..of.strides.len()]));
        let mut params = declare(&mut k, &all.collect::<Vec<_>>())?;
        let outs = params.split_off(self.ins.len());
        let (kept, reduced) = sizes.split_at(self.kept);
        let blocks = product(kept).ceil_div(self.teams);
        let (block, first) = launch(&mut k, blocks, self.threads * self.teams, "first")?;
        let teams = ThreadGroups::new(&mut k, block, self.threads, self.teams)?;
        let row = k.let_("row", first * self.teams + &teams.at[0])?.into();
        let (columns, whole) = (product(reduced), params[whole]);
        let kind = Kind::Fused(self.meaning(rank, &columns));
        let (ins, sizes) = (&params[..], &sizes[..]);
        Row { template: self, ins, outs: &outs, teams, sizes, row, columns, whole }.all(&mut k)?;
        k.finish(kind, outs, params)
    }

    /// The inputs, as of all axes.
    fn inputs(&self, rank: usize) -> Vec<Fused> {
        let whole = (0..rank).map(|axis| (axis < self.kept).then_some(axis));
        let each = |(i, access): (usize, &Access)| match access.strides.len() == rank {
            true => Fused::input(i),
            false => Fused::input(i).dims(whole.clone().collect::<Vec<_>>()),
        };
        self.ins.iter().enumerate().map(each).collect()
    }

    /// A total of so many columns, of those before it: as it is folded, and as it then is.
    fn total(&self, total: &Total, rank: usize, columns: &Expr, before: &[Fused]) -> [Fused; 2] {
        let ins = [&self.inputs(rank)[..], before].concat();
        let along: Vec<usize> = (self.kept..rank).collect();
        let folded = Fused::of(&total.function, &ins).folded(total.op, along);
        let given = [&[folded.clone(), Fused::index(columns.clone())], before].concat();
        [folded, Fused::of(&total.finish, &given)]
    }

    /// What is computed of all rows, or of one.
    fn meaning(&self, rank: usize, columns: &Expr) -> Fused {
        let mut totals: Vec<Fused> = Vec::new();
        for total in &self.totals {
            let [_, finished] = self.total(total, rank, columns, &totals);
            totals.push(finished);
        }
        let ins = [&self.inputs(rank)[..], &totals].concat();
        Fused::all(self.outs.iter().map(|out| Fused::of(&out.function, &ins)))
    }

    /// The number of an input of all axes, if there is a kernel.
    fn check(&self) -> Result<usize> {
        let ranks = || self.ins.iter().map(|access| access.strides.len());
        let rank = ranks().max().unwrap_or(0);
        let whole = ranks().position(|own| own == rank);
        let axes = (1..rank).contains(&self.kept) && !self.outs.is_empty();
        needs(axes, "axes of rows and of columns, and a result", self)?;
        let known = ranks().all(|own| own == rank || own == self.kept);
        needs(known, "inputs of all axes, or of those of rows", &self.ins)?;
        let count = self.ins.len();
        for (i, total) in self.totals.iter().enumerate() {
            let Total { op, function, finish } = total;
            needs(op.neutral().is_some(), "an operation that has a neutral number", op)?;
            let known = function.inputs() <= count + i && finish.inputs() <= 2 + i;
            needs(known, "a total of inputs and of totals before it", total)?;
            let one = function.outputs().len() == 1 && finish.outputs().len() == 1;
            needs(one, "a total that is one number", total)?;
        }
        for out in &self.outs {
            let (own, function) = (out.access.strides.len(), &out.function);
            let known = function.inputs() <= count + self.totals.len();
            let known = known && (own == rank || own == self.kept) && function.outputs().len() == 1;
            needs(known, "a result of inputs and totals, for elements or for rows", out)?;
            let of_rows = |input: usize| input >= count || self.ins[input].strides.len() < rank;
            let rows = own == rank || function.used().all(of_rows);
            needs(rows, "a row's result of what belongs to rows", out)?;
        }
        Within(1, 16).check("elements a vector", self.vector)?;
        Ok(whole.unwrap_or(0))
    }
}
