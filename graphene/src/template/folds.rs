//! Rows and their totals: `tᵢ = ⊕ fᵢ(x₀, x₁, …, t₀, …)` over the columns, one after the other, and what
//! becomes of elements and totals. Variances, softmax along any axis, quotients by sums, and several
//! reductions at once are such.
//!
//! A team of threads takes a row, and reads it again for every total and for the results; a row that was
//! read just before comes from a cache. [`rows`](super::rows) keeps rows in registers, and
//! [`reduce`](super::reduce) reads neighbouring columns side by side: they are faster at what they do.

use super::access::{Access, product};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::function::{Function, Step};
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Kernel, Kind, Number, Operand, TensorId, Test};
use crate::schedule::pointwise::{each, load, number, pointwise, store, vector};
use crate::schedule::together::Teams;
use crate::tensor::{Scalar, Shape, Tile};

/// The parameters. Symbols are the sizes `N0`, `N1`, … of the axes, and strides of the operands, which
/// are the inputs `x0`, `x1`, … and the results `y0`, `y1`, ….
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Folds {
    /// What it is compiled for.
    pub arch: Arch,
    /// How many axes rows have; the others are those of columns.
    pub kept: usize,
    /// The inputs: of all axes, or of those of rows alone. One at least is of all.
    pub ins: Vec<Access>,
    /// The totals, in their order.
    pub totals: Vec<Total>,
    /// The results.
    pub outs: Vec<Out>,
    /// Elements of a vector; the last axis must be a multiple. 1 for any number and alignment.
    pub vector: i64,
    /// Threads of a team: a power of two up to 32, or a multiple of 32.
    pub threads: i64,
    /// Rows, that is teams, of a block.
    pub teams: i64,
}

/// A total of each row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Total {
    /// What folds elements: one that has a neutral number.
    pub op: Binary,
    /// What is folded: of the inputs, and of the totals before.
    pub function: Function,
    /// What it then becomes: of the total, the number of columns, and the totals before.
    pub finish: Function,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Out {
    /// What is stored: of the inputs, and of all totals.
    pub function: Function,
    /// Where: of all axes, or of those of rows alone.
    pub access: Access,
}

impl Default for Folds {
    /// The sums of rows of halves.
    fn default() -> Folds {
        let total =
            Total { op: Binary::Add, function: Function::identity(), finish: Function::identity() };
        let out = Out { function: Function::input(1), access: Access::packed(Scalar::F16, 1) };
        Folds {
            arch: Arch::Sm80,
            kept: 1,
            ins: vec![Access::packed(Scalar::F16, 2)],
            totals: vec![total],
            outs: vec![out],
            vector: 1,
            threads: 32,
            teams: 4,
        }
    }
}

/// What the parts of the kernel share.
struct Context<'a> {
    template: &'a Folds,
    ins: Vec<TensorId>,
    outs: Vec<TensorId>,
    teams: Teams,
    /// Sizes of all axes.
    sizes: Vec<Expr>,
    row: Expr,
    columns: Expr,
    /// An input of all axes.
    whole: TensorId,
}

impl Folds {
    /// The kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        let whole = self.check()?;
        let rank = self.ins[whole].strides.len();
        let mut k = Builder::new("folds", self.arch);
        let sizes: Vec<Expr> = (0..rank)
            .map(|axis| Ok(k.symbol(&format!("N{axis}"))?.into()))
            .collect::<Result<_>>()?;
        let named = |letter: char, count: usize| (0..count).map(move |i| format!("{letter}{i}"));
        let names: Vec<String> =
            named('x', self.ins.len()).chain(named('y', self.outs.len())).collect();
        let accesses: Vec<&Access> =
            self.ins.iter().chain(self.outs.iter().map(|out| &out.access)).collect();
        let mut symbols = Vec::new();
        for (name, access) in names.iter().zip(&accesses) {
            symbols.push(access.symbols(&mut k, name)?);
        }
        let mut params = Vec::new();
        for ((name, access), symbols) in names.iter().zip(&accesses).zip(&symbols) {
            let own = &sizes[..access.strides.len()];
            params.push(access.param(&mut k, name, own, symbols)?);
        }
        let outs = params.split_off(self.ins.len());
        let (kept, reduced) = sizes.split_at(self.kept);
        let grid =
            k.grid("grid", [Shape::of(product(kept).ceil_div(&Expr::from(self.teams)), 1)])?;
        let block = k.block("block", [Shape::of(self.threads * self.teams, 1)])?;
        let [first] = k.indices(grid, ["first"])?;
        let teams = Teams::new(&mut k, block, self.threads, self.teams)?;
        let row = k.let_("row", Expr::from(first) * self.teams + &teams.at[0])?;
        let columns = product(reduced);
        let context = Context {
            template: self,
            ins: params.clone(),
            outs: outs.clone(),
            teams,
            row: row.into(),
            columns,
            whole: params[whole],
            sizes: sizes.clone(),
        };
        context.all(&mut k)?;
        k.finish(outs, params)
    }

    /// The number of an input of all axes, if there is a kernel.
    fn check(&self) -> Result<usize> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        let ranks = || self.ins.iter().map(|access| access.strides.len());
        let rank = ranks().max().unwrap_or(0);
        let Some(whole) = ranks().position(|own| own == rank) else {
            return refuse("there is an input");
        };
        if self.kept == 0 || self.kept >= rank || self.outs.is_empty() {
            return refuse("rows and columns have axes, and there is a result");
        }
        if ranks().any(|own| own != rank && own != self.kept) {
            return refuse("inputs have all axes, or those of rows");
        }
        let count = self.ins.len();
        for (i, total) in self.totals.iter().enumerate() {
            if total.op.neutral().is_none() {
                return refuse("nothing is neutral to the operation");
            }
            if total.function.inputs() > count + i || total.finish.inputs() > 2 + i {
                return refuse("a total is made of inputs and of totals before it");
            }
            if total.function.outputs().len() != 1 || total.finish.outputs().len() != 1 {
                return refuse("a total is one number");
            }
        }
        for out in &self.outs {
            let own = out.access.strides.len();
            let all = own == rank;
            let known = out.function.inputs() <= count + self.totals.len();
            if !(all || own == self.kept) || !known || out.function.outputs().len() != 1 {
                return refuse("a result is made of inputs and totals, for elements or for rows");
            }
            let of_rows = |input: usize| input >= count || self.ins[input].strides.len() < rank;
            if !all && !used(&out.function).all(of_rows) {
                return refuse("a row's result is made of what belongs to rows");
            }
        }
        if !(1..=16).contains(&self.vector) {
            return refuse("a vector has 1 to 16 elements");
        }
        Ok(whole)
    }
}

/// The inputs that a function uses.
fn used(function: &Function) -> impl Iterator<Item = usize> {
    function.steps().iter().filter_map(|step| match step {
        Step::Input(input) => Some(*input),
        Step::Constant(_)
        | Step::Unary(..)
        | Step::Binary(..)
        | Step::Select(..)
        | Step::Round(..) => None,
    })
}

impl Context<'_> {
    fn all(&self, k: &mut Builder) -> Result<()> {
        let one = self.teams.one;
        let mut count = None;
        if self.template.totals.iter().any(|total| used(&total.finish).any(|input| input == 1)) {
            let number = number(k, "count", Scalar::F32)?;
            k.spec(Kind::Index(self.columns.clone()), number, (), one)?;
            count = Some(number);
        }
        let mut totals = Vec::new();
        for total in &self.template.totals {
            let value = self.total(k, total, &totals)?;
            // Where nothing counts columns, nothing reads their number.
            let count = count.unwrap_or(value);
            let ins: Vec<TensorId> = [value, count].iter().chain(&totals).copied().collect();
            let finished = vector(k, "finished", 1, Scalar::F32)?;
            pointwise(k, &total.finish, &[finished], &ins, 1, one)?;
            totals.push(finished);
        }
        let whole = self.sizes.len();
        let is_whole = |out: &&(&Out, &TensorId)| out.0.access.strides.len() == whole;
        let outs: Vec<(&Out, &TensorId)> = self.template.outs.iter().zip(&self.outs).collect();
        if outs.iter().any(|out| is_whole(&out)) {
            self.pass(k, |k, at| {
                for (out, to) in outs.iter().filter(is_whole) {
                    self.leave(k, out, **to, &totals, at, self.template.vector)?;
                }
                Ok(())
            })?;
        }
        k.if_(Cond::equal(self.teams.at[1].clone(), 0), |k| {
            for (out, to) in outs.iter().filter(|out| !is_whole(out)) {
                let at = Expr::from(0);
                let inside = self.view(k, **to, out.access.strides.len(), &at, 1)?;
                k.if_(Test::Inside(inside.into()), |k| self.leave(k, out, **to, &totals, &at, 1))?;
            }
            Ok(())
        })
    }

    /// `body` for each of the thread's vectors, where there are such.
    fn pass(
        &self,
        k: &mut Builder,
        body: impl FnOnce(&mut Builder, &Expr) -> Result<()>,
    ) -> Result<()> {
        let n = self.template.vector;
        let steps = self.columns.ceil_div(&Expr::from(n * self.teams.size));
        k.for_("i", Expr::from(0)..steps, 1, false, |k, i| {
            let at = Expr::from(i) * self.teams.size + &self.teams.at[1];
            let inside = self.view(k, self.whole, self.sizes.len(), &at, n)?;
            k.if_(Test::Inside(inside.into()), |k| body(k, &at))
        })
    }

    fn total(&self, k: &mut Builder, total: &Total, before: &[TensorId]) -> Result<TensorId> {
        let (one, n) = (self.teams.one, self.template.vector);
        let register = number(k, "total", Scalar::F32)?;
        let neutral = Number(total.op.neutral().unwrap_or(0.0));
        k.spec(Kind::Init(neutral), register, (), one)?;
        self.pass(k, |k, at| {
            let ins = self.read(k, &total.function, before, at, n)?;
            let values = vector(k, "values", n, Scalar::F32)?;
            pointwise(k, &total.function, &[values], &ins, n, one)?;
            each(k, n, |k, e| {
                k.spec(Kind::Reduction(total.op), register, Operand::at(values, [e]), one)
            })
        })?;
        self.teams.fold(k, total.op, register)?;
        Ok(register)
    }

    /// Stores a result's vector.
    fn leave(
        &self,
        k: &mut Builder,
        out: &Out,
        to: TensorId,
        totals: &[TensorId],
        at: &Expr,
        n: i64,
    ) -> Result<()> {
        let one = self.teams.one;
        let ins = self.read(k, &out.function, totals, at, n)?;
        let values = vector(k, "values", n, Scalar::F32)?;
        pointwise(k, &out.function, &[values], &ins, n, one)?;
        let to = self.view(k, to, out.access.strides.len(), at, n)?;
        store(k, to, values, n, n > 1 && out.access.contiguous(), one)
    }

    /// A function's inputs, in registers: a vector of each input that it uses, and the totals.
    fn read(
        &self,
        k: &mut Builder,
        function: &Function,
        totals: &[TensorId],
        at: &Expr,
        n: i64,
    ) -> Result<Vec<TensorId>> {
        let mut ins = Vec::new();
        let used: Vec<usize> = used(function).collect();
        for (i, (&of, access)) in self.ins.iter().zip(&self.template.ins).enumerate() {
            if !used.contains(&i) {
                // Nothing reads it.
                ins.push(of);
                continue;
            }
            let rank = access.strides.len();
            let mut count = if rank == self.sizes.len() { n } else { 1 };
            let mut from = self.view(k, of, rank, at, count)?;
            if access.repeats() && count > 1 {
                from = k.tile(from, "first", &[Tile::of(1)])?;
                from = k.index(from, "first", [0])?;
                count = 1;
            }
            ins.push(load(k, from, count, access.contiguous(), self.teams.one)?);
        }
        ins.extend(totals);
        Ok(ins)
    }

    /// A vector `[n]` of an operand of `rank` axes, in the own row.
    fn view(
        &self,
        k: &mut Builder,
        of: TensorId,
        rank: usize,
        at: &Expr,
        n: i64,
    ) -> Result<TensorId> {
        let kept = self.template.kept;
        let mut coordinates = split(&self.row, &self.sizes[..kept]);
        let mut tiles = vec![Tile::of(1); rank];
        if rank > kept {
            let mut reduced = self.sizes[kept..].to_vec();
            if let Some(last) = reduced.last_mut() {
                *last = last.div(&Expr::from(n));
            }
            coordinates.extend(split(at, &reduced));
            tiles[rank - 1] = Tile::of(n);
        }
        let tiled = k.tile(of, "tiled", &tiles)?;
        let tile = k.index(tiled, "tile", coordinates)?;
        k.reshape(tile, "vector", 0, &[&[(n, 1)]])
    }
}

/// The coordinates of a row-major place among axes of these sizes.
fn split(place: &Expr, sizes: &[Expr]) -> Vec<Expr> {
    let mut rest = place.clone();
    let mut coordinates = Vec::new();
    for size in sizes.iter().skip(1).rev() {
        coordinates.push(rest.rem(size));
        rest = rest.div(size);
    }
    coordinates.push(rest);
    coordinates.reverse();
    coordinates
}
