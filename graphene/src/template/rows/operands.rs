//! The operands of a normalisation, what is computed of them, and which kernels there are.

use super::shared_by::MOST;
use super::{Norm, Rows};
use crate::kernel::{Fold, Monoid};
use crate::schedule::together::ThreadGroups;
use crate::template::access::Access;
use crate::template::gather::Place;
use crate::{
    Binary, Builder, Expr, Feature, Function, Fused, Layout, Result, Scalar, TensorId, Unary,
    Within, needs,
};

impl Rows {
    /// The number of rows of each input that is a table, which is a symbol: `x0_rows`.
    pub(super) fn tables(&self, k: &mut Builder) -> Result<Vec<Option<Expr>>> {
        let each = |(i, place): (usize, &Place)| match place {
            Place::Same => Ok(None),
            Place::Index(_) | Place::Repeated => Ok(Some(k.symbol(&format!("x{i}_rows"))?.into())),
        };
        self.places.iter().enumerate().map(each).collect()
    }

    /// The tensor of indices of each input that has one: `i0`.
    pub(super) fn indices(&self, k: &mut Builder, rows: &Expr) -> Result<Vec<Option<TensorId>>> {
        let each = |(i, place): (usize, &Place)| match place {
            Place::Same | Place::Repeated => Ok(None),
            Place::Index(scalar) => {
                k.param(&format!("i{i}"), [Layout::of(rows.clone(), 1)], *scalar).map(Some)
            }
        };
        self.places.iter().enumerate().map(each).collect()
    }

    /// All operands with their names.
    pub(super) fn operands(&self) -> Vec<(String, Access)> {
        let line = |name: &str, scalar: Option<Scalar>| {
            scalar.map(|scalar| (name.to_owned(), Access::line(scalar, 2)))
        };
        let named = |name: &'static str, first: usize, all: &[Access]| -> Vec<(String, Access)> {
            let all = all.iter().enumerate();
            all.map(|(i, access)| (format!("{name}{}", first + i), access.clone())).collect()
        };
        let sum = self.sum.iter().map(|access| ("sum".to_owned(), access.clone()));
        named("x", 0, &self.ins)
            .into_iter()
            .chain(sum)
            .chain(line("scale", self.scale))
            .chain(line("shift", self.shift))
            .chain(named("e", 1, &self.extras))
            .chain([("y".to_owned(), self.out.clone())])
            .chain(named("y", 1, &self.more))
            .collect()
    }

    /// How many operands are read late: scale, shift, and the epilogue's.
    pub(super) fn extras_end(&self) -> usize {
        usize::from(self.scale.is_some()) + usize::from(self.shift.is_some()) + self.extras.len()
    }

    /// What becomes of a normalised value, input 0: it is scaled, shifted, and the epilogue applied.
    /// The other inputs are the scale, the shift and the epilogue's, those that there are.
    pub(super) fn finish(&self) -> Function {
        let mut inputs = (1..).map(Function::input);
        let mut next = || inputs.next().unwrap_or_else(Function::identity);
        let mut value = Function::identity();
        if self.scale.is_some() {
            value = value * next();
        }
        if self.shift.is_some() {
            value = value + next();
        }
        let extras: Vec<Function> = self.extras.iter().map(|_| next()).collect();
        self.epilogue.after(&Function::all(std::iter::once(value).chain(extras)))
    }

    /// Whether there is such a kernel.
    pub(super) fn check(&self) -> Result {
        ThreadGroups::check(self.threads, self.teams)?;
        let matrices = self.operands().iter().all(|(_, access)| access.strides.len() == 2);
        needs(matrices, "operands that are matrices", self)?;
        let Rows { prologue, epilogue, ins, places, vector, held, .. } = self;
        let known = !ins.is_empty() && prologue.inputs() == ins.len();
        needs(known && prologue.outputs().len() == 1, "a prologue of the inputs", prologue)?;
        let placed = places.is_empty() || places.len() == ins.len();
        needs(placed, "a place for each input, or for none", places)?;
        let known = epilogue.inputs() == self.extras.len() + 1;
        let known = known && epilogue.outputs().len() == 1 + self.more.len();
        needs(known, "an epilogue of its inputs that gives the results", epilogue)?;
        Within(1, 16).check("elements a vector", *vector)?;
        let (ahead, shared) = (self.ahead, self.shared);
        needs(held.unwrap_or(ahead).min(ahead) >= 1, "1 or more vectors a thread", (held, ahead))?;
        let alone = held.is_none() && self.columns.is_some() && self.teams == 1;
        let alone = alone && (*vector < 4 || vector % 4 == 0);
        needs(
            !shared || alone,
            "a team a block, of known columns, for rows in shared memory",
            self,
        )?;
        Within(1, MOST).check("blocks that share a row", self.parts)?;
        if self.parts > 1 {
            self.arch.needs(&[Feature::Cluster, Feature::CpAsync])?;
        }
        let in_parts = shared && self.norm != Norm::None && self.comes_unchanged();
        needs(self.parts == 1 || in_parts, "rows that copies bring to shared memory", self)?;
        let Some(columns) = self.columns else {
            // A launch is refused unless rows of the result start at multiples of a vector.
            let packed = |out: &Access| {
                *out == Access::packed(out.scalar, 2) && out.scalar.bytes() * vector <= 16
            };
            let divides = *vector == 1 || std::iter::once(&self.out).chain(&self.more).all(packed);
            return needs(divides, "packed rows of the result, whose columns vectors divide", self);
        };
        let divides = columns >= 1 && columns % vector == 0;
        needs(divides, "columns that vectors divide", columns)?;
        let reach = held.is_none_or(|held| held * self.threads * vector >= columns);
        needs(reach, "a team that holds a row", self)
    }

    /// What is stored: the prologue's value, if it is, and the results. Inputs are the prologue's, what is read
    /// late, and the indices. Without the sizes of tables it is that of a single row: tables are repeated already.
    pub(super) fn meaning(&self, tables: &[Option<Expr>], columns: &Expr) -> Fused {
        let late: Vec<Fused> =
            (self.ins.len()..).take(self.extras_end()).map(Fused::input).collect();
        let value = self.value(tables);
        let normal = self.normal(value.clone(), columns);
        let results = Fused::of(&self.finish(), &[&[normal], &late[..]].concat());
        Fused::all(self.sum.iter().map(|_| value.clone()).chain([results]))
    }

    /// The prologue's value.
    fn value(&self, tables: &[Option<Expr>]) -> Fused {
        let mut indices = (self.ins.len() + self.extras_end()..).map(Fused::input);
        let each = |input: usize| {
            let x = Fused::input(input);
            match (self.places.get(input), tables.get(input)) {
                (Some(Place::Index(_)), _) => match indices.next() {
                    Some(index) => x.gather(index),
                    None => x,
                },
                (Some(Place::Repeated), Some(Some(size))) => {
                    // The number of each row of the result.
                    let row = Fused::old(0).position(0).slice(1, 0, 1).merge(0);
                    x.gather(row.binary(Binary::Rem, Fused::index(size.clone())))
                }
                (Some(Place::Same | Place::Repeated) | None, _) => x,
            }
        };
        let ins: Vec<Fused> = (0..self.ins.len()).map(each).collect();
        Fused::of(&self.prologue, &ins)
    }

    /// The normalised values.
    fn normal(&self, x: Fused, columns: &Expr) -> Fused {
        let part =
            |monoid: Monoid, part: usize| x.clone().fold(&Fold { monoid, along: vec![1] }, part);
        let inverse_root = |mean: Fused| (mean + self.epsilon.0).unary(Unary::Rsqrt);
        let softmax = |which: usize| part(Monoid::Softmax, which);
        let shifted = x.clone() - softmax(0);
        match self.norm {
            Norm::None => x,
            Norm::Layer => {
                let difference = x.clone() - part(Monoid::Welford, 0);
                difference * inverse_root(part(Monoid::Welford, 1))
            }
            Norm::Rms => {
                let squares = (x.clone() * x.clone()).folded(Binary::Add, [1]);
                x * inverse_root(squares / Fused::index(columns.clone()))
            }
            Norm::Softmax => shifted.unary(Unary::Exp) / softmax(1),
            Norm::LogSoftmax => shifted - softmax(1).unary(Unary::Log),
        }
    }
}
