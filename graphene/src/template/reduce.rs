//! Reductions: `y[o, i] = g(⊕ᵣ f(x₀[o, r, i], …))`, over the last axis or a middle one.
//!
//! Along the last axis a team of threads takes a row, each thread vectors of 16 bytes. Along a middle
//! (or the first) axis every thread has a vector of neighbouring columns, and a block several
//! strands of rows, whose totals meet in shared memory.
//!
//! Few results of long reductions are computed by several blocks each, which add their parts to the
//! results in memory in one step each (AKG); the results must be 0 before. The order of these
//! additions is not fixed.
//!
//! A total of n elements errs by at most n·2⁻²⁴ of the sum of their absolute values, as an element
//! goes through no more than n additions.

use super::access::{Access, product};
use crate::arch::Arch;
use crate::build::Builder;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::index::{Cond, Expr};
use crate::kernel::{Binary, Kernel, Kind, Number, Operand, TensorId, Test, ThreadsId};
use crate::schedule::pointwise::{each, load, number, pointwise, store, vector};
use crate::schedule::together::Teams;
use crate::tensor::{Memory, Scalar, Shape, Tile};

/// The parameters of a reduction. Its symbols are the sizes `outer`, `reduced`, and `inner` unless
/// the last axis is reduced; the number of `parts` if there are some; and strides of the operands
/// `x0`, `x1`, …, `y`.
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
    /// Threads along the last axis: those of a row's team, or of a block's columns, then a multiple
    /// of 32.
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

/// What the parts of the kernel share.
struct Context<'a> {
    template: &'a Reduce,
    ins: Vec<TensorId>,
    out: TensorId,
    one: ThreadsId,
    block: ThreadsId,
    reduced: Expr,
    /// The first step along the reduced axis, and the distance to the next.
    steps: [Expr; 2],
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
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("reduce", self.arch);
        let mut axes = vec!["outer", "reduced", "inner"];
        axes.truncate(self.out.strides.len() + 1);
        let sizes: Vec<Expr> =
            axes.into_iter().map(|name| Ok(k.symbol(name)?.into())).collect::<Result<_>>()?;
        let parts = if self.parts { Expr::from(k.symbol("parts")?) } else { Expr::from(1) };
        let names: Vec<String> = (0..self.ins.len()).map(|i| format!("x{i}")).collect();
        let mut symbols = Vec::new();
        for (name, access) in names.iter().zip(&self.ins) {
            symbols.push(access.symbols(&mut k, name)?);
        }
        let out_symbols = self.out.symbols(&mut k, "y")?;
        let mut ins = Vec::new();
        for ((name, access), symbols) in names.iter().zip(&self.ins).zip(&symbols) {
            ins.push(access.param(&mut k, name, &sizes, symbols)?);
        }
        let kept: Vec<Expr> = sizes.iter().take(1).chain(sizes.iter().skip(2)).cloned().collect();
        let out = self.out.param(&mut k, "y", &kept, &out_symbols)?;
        // Blocks along the outer and the inner axis, and parts.
        let per_block = |size: &Expr, tile: i64| size.ceil_div(&Expr::from(tile));
        let blocks = match &kept[..] {
            [outer, inner] => vec![outer.clone(), per_block(inner, self.threads * self.vector)],
            _ => vec![per_block(&sizes[0], self.teams)],
        };
        let grid = k.grid("grid", [Shape::of(product(&blocks) * &parts, 1)])?;
        let block = k.block("block", [Shape::of(self.threads * self.teams, 1)])?;
        let [first] = k.indices(grid, ["first"])?;
        let mut rest = Expr::from(first);
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
            let context = Context { template: self, ins, out, one, block, reduced, steps };
            context.columns(&mut k, outer.into(), column.into())?;
        } else {
            let teams = Teams::new(&mut k, block, self.threads, self.teams)?;
            let one = teams.one;
            let context = Context { template: self, ins, out, one, block, reduced, steps };
            context.rows(&mut k, &teams, rest)?;
        }
        k.finish(out, given)
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        let rank = self.out.strides.len();
        if !(1..=2).contains(&rank) || self.ins.iter().any(|x| x.strides.len() != rank + 1) {
            return refuse("inputs have one axis more than the result, of two or three");
        }
        if self.function.inputs() != self.ins.len() || self.function.outputs().len() != 1 {
            return refuse("the function has other inputs, or not one output");
        }
        if self.finish.inputs() > 2 || self.finish.outputs().len() != 1 {
            return refuse("a result is made of a total and a number");
        }
        if self.op.neutral().is_none() {
            return refuse("nothing is neutral to the operation");
        }
        if self.parts && (self.op != Binary::Add || self.out.scalar != Scalar::F32) {
            return refuse("memory adds up numbers in single precision");
        }
        if !(1..=16).contains(&self.vector) {
            return refuse("a vector has 1 to 16 elements");
        }
        let whole = self.threads % 32 == 0 && self.threads > 0 && self.teams > 0;
        if rank == 2 && !(whole && self.threads * self.teams <= 1024) {
            return refuse("the columns of a block are those of whole warps");
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Rows of `[outer, reduced]`: each by a team.
    fn rows(&self, k: &mut Builder, teams: &Teams, block: Expr) -> Result<()> {
        let Reduce { op, vector: n, threads, .. } = *self.template;
        let row = Expr::from(k.let_("row", block * self.template.teams + &teams.at[0])?);
        let total = self.neutral(k, 1)?;
        let steps = self.reduced.ceil_div(&Expr::from(n * threads));
        let [first, step] = self.steps.clone();
        k.for_("step", first..steps, step, false, |k, i| {
            let at = Expr::from(i) * threads + &teams.at[1];
            self.guarded(k, std::slice::from_ref(&row), &at, &self.reduced, |k, values, n| {
                each(k, n, |k, e| {
                    let total = Operand::at(total, [0]);
                    k.spec(Kind::Reduction(op), total, Operand::at(values, [e]), self.one)
                })
            })
        })?;
        let register = k.index(total, "total", [0])?;
        teams.fold(k, op, register)?;
        let out = k.tile(self.out, "result", &[Tile::of(1)])?;
        let out = k.index(out, "result", [row])?;
        k.if_(Cond::equal(teams.at[1].clone(), 0), |k| {
            k.if_(Test::Inside(out.into()), |k| self.leave(k, out, total, 1, true))
        })
    }

    /// Columns of `[outer, reduced, inner]`: a vector of neighbours by each thread, rows in strands.
    fn columns(&self, k: &mut Builder, outer: Expr, block: Expr) -> Result<()> {
        let Reduce { op, vector: n, threads, teams, .. } = *self.template;
        let [thread] = k.indices(self.block, ["thread_of_block"])?;
        let strand: Expr = k.let_("strand", Expr::from(&thread).div(&threads.into()))?.into();
        let across: Expr = k.let_("across", Expr::from(&thread).rem(&threads.into()))?.into();
        let column: Expr = k.let_("vector_at", block * threads + &across)?.into();
        let inner = k.tensor_of(self.out)?.view.axes()[1].size.clone();
        let total = self.neutral(k, n)?;
        let steps = self.reduced.ceil_div(&Expr::from(teams));
        let [first, step] = self.steps.clone();
        k.for_("step", first..steps, step, false, |k, i| {
            let row = Expr::from(i) * teams + &strand;
            self.guarded_columns(k, &[outer.clone(), row], &column, &inner, total)
        })?;
        if teams > 1 {
            let view = Shape::rows([teams, n, threads]);
            let shared = k.allocate("parts", view, Scalar::F32, Memory::Shared, None)?;
            let place = |strand: Expr, e: Expr| Operand::at(shared, [strand, e, across.clone()]);
            each(k, n, |k, e| {
                let own = Operand::at(total, [&e]);
                k.spec(Kind::Move, place(strand.clone(), e), own, self.one)
            })?;
            k.spec(Kind::Sync, (), (), self.block)?;
            k.if_(Cond::equal(strand.clone(), 0), |k| {
                k.for_("other", 1..teams, 1, false, |k, other| {
                    each(k, n, |k, e| {
                        let value = number(k, "value", Scalar::F32)?;
                        let from = place(other.into(), e.clone());
                        k.spec(Kind::Move, value, from, self.one)?;
                        k.spec(Kind::Reduction(op), Operand::at(total, [e]), value, self.one)
                    })
                })
            })?;
        }
        let view = |k: &mut Builder, n: i64, at: Expr| {
            let tiled = k.tile(self.out, "tiled", &[Tile::of(1), Tile::of(n)])?;
            let tile = k.index(tiled, "tile", [outer.clone(), at])?;
            k.reshape(tile, "result", 0, &[&[(n, 1)]])
        };
        let whole = view(k, n, column.clone())?;
        let contiguous = self.template.out.contiguous();
        k.if_(Cond::equal(strand, 0), |k| {
            k.if_(Test::Inside(whole.into()), |k| self.leave(k, whole, total, n, contiguous))?;
            if n == 1 {
                return Ok(());
            }
            k.if_(Cond::less(inner, column.clone() * n + n), |k| {
                each(k, n - 1, |k, e| {
                    let element = view(k, 1, column * n + &e)?;
                    let single = k.tile(total, "single", &[Tile::of(1)])?;
                    let single = k.index(single, "single", [e])?;
                    k.if_(Test::Inside(element.into()), |k| {
                        self.leave(k, element, single, 1, contiguous)
                    })
                })
            })
        })
    }

    /// Folds a vector of a row into the own totals.
    fn guarded_columns(
        &self,
        k: &mut Builder,
        row: &[Expr],
        column: &Expr,
        inner: &Expr,
        total: TensorId,
    ) -> Result<()> {
        let (op, n) = (self.template.op, self.template.vector);
        let fold = |k: &mut Builder, total: Operand, value: Operand| {
            k.spec(Kind::Reduction(op), total, value, self.one)
        };
        let whole = self.view(k, self.ins[0], n, row, column)?;
        k.if_(Test::Inside(whole.into()), |k| {
            let values = self.values(k, n, row, column)?;
            each(k, n, |k, e| fold(k, Operand::at(total, [&e]), Operand::at(values, [e])))
        })?;
        if n == 1 {
            return Ok(());
        }
        k.if_(Cond::less(inner.clone(), column.clone() * n + n), |k| {
            each(k, n - 1, |k, e| {
                let at = column.clone() * n + &e;
                let element = self.view(k, self.ins[0], 1, row, &at)?;
                k.if_(Test::Inside(element.into()), |k| {
                    let value = self.values(k, 1, row, &at)?;
                    fold(k, Operand::at(total, [e]), Operand::at(value, [0]))
                })
            })
        })
    }

    /// `body` for the values of a vector, or of each element of it where it is partial.
    fn guarded(
        &self,
        k: &mut Builder,
        row: &[Expr],
        at: &Expr,
        end: &Expr,
        body: impl Fn(&mut Builder, TensorId, i64) -> Result<()>,
    ) -> Result<()> {
        let n = self.template.vector;
        let whole = self.view(k, self.ins[0], n, row, at)?;
        k.if_(Test::Inside(whole.into()), |k| {
            let values = self.values(k, n, row, at)?;
            body(k, values, n)
        })?;
        if n == 1 {
            return Ok(());
        }
        k.if_(Cond::less(end.clone(), at.clone() * n + n), |k| {
            k.for_("e", 0..n - 1, 1, false, |k, e| {
                let at = at.clone() * n + Expr::from(e);
                let element = self.view(k, self.ins[0], 1, row, &at)?;
                k.if_(Test::Inside(element.into()), |k| {
                    let value = self.values(k, 1, row, &at)?;
                    body(k, value, 1)
                })
            })
        })
    }

    /// The function's values of a vector of the inputs.
    fn values(&self, k: &mut Builder, n: i64, row: &[Expr], at: &Expr) -> Result<TensorId> {
        let mut ins = Vec::new();
        for (&of, access) in self.ins.iter().zip(&self.template.ins) {
            let mut from = self.view(k, of, n, row, at)?;
            let mut count = n;
            if access.repeats() {
                from = k.tile(from, "first", &[Tile::of(1)])?;
                from = k.index(from, "first", [0])?;
                count = 1;
            }
            ins.push(load(k, from, count, access.contiguous(), self.one)?);
        }
        let values = vector(k, "values", n, Scalar::F32)?;
        pointwise(k, &self.template.function, &[values], &ins, n, self.one)?;
        Ok(values)
    }

    fn view(
        &self,
        k: &mut Builder,
        of: TensorId,
        n: i64,
        row: &[Expr],
        at: &Expr,
    ) -> Result<TensorId> {
        let mut tiles = vec![Tile::of(1); row.len()];
        tiles.push(Tile::of(n));
        let tiled = k.tile(of, "tiled", &tiles)?;
        let tile = k.index(tiled, "tile", row.iter().chain([at]).cloned())?;
        k.reshape(tile, "vector", 0, &[&[(n, 1)]])
    }

    /// Totals to begin with.
    fn neutral(&self, k: &mut Builder, n: i64) -> Result<TensorId> {
        let total = vector(k, "total", n, Scalar::F32)?;
        let neutral = Number(self.template.op.neutral().unwrap_or(0.0));
        each(k, n, |k, e| k.spec(Kind::Init(neutral), Operand::at(total, [e]), (), self.one))?;
        Ok(total)
    }

    /// Stores totals, or adds them to what is there.
    fn leave(
        &self,
        k: &mut Builder,
        to: TensorId,
        total: TensorId,
        n: i64,
        contiguous: bool,
    ) -> Result<()> {
        let mut ins = vec![total];
        if self.template.finish.inputs() > 1 {
            let count = number(k, "count", Scalar::F32)?;
            k.spec(Kind::Index(self.reduced.clone()), count, (), self.one)?;
            ins.push(count);
        }
        let result = vector(k, "result", n, Scalar::F32)?;
        pointwise(k, &self.template.finish, &[result], &ins, n, self.one)?;
        if !self.template.parts {
            return store(k, to, result, n, contiguous, self.one);
        }
        each(k, n, |k, e| {
            let (to, result) = (Operand::at(to, [&e]), Operand::at(result, [e]));
            k.spec(Kind::Reduction(Binary::Add), to, result, self.one)
        })
    }
}
