//! What becomes of sums of integers before they are stored: a chain of operations on numbers in registers.
//!
//! Sums of some rows and 16 columns are taken as numbers in single precision, go through all steps, and are stored once, as
//! bytes or as they are. Each step is exactly the operation of a loop that it stands for.

use super::units::Vectors;
use super::{LANES, Rows};
use crate::cpu::kernels::table::Table;
use crate::cpu::kernels::tile::TileMut;
use bytemuck::Pod;
use smallvec::SmallVec;

/// A step on the number at hand; operands `Y` stand on the right, and `T` is a table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Step<Y, T> {
    Add(Y),
    Sub(Y),
    Mul(Y),
    Div(Y),
    /// `low` where the number is less, then `high` where it is more; what is no number stays none.
    Clamp {
        low: f32,
        high: f32,
    },
    /// The same, but `low` for what is no number.
    Within {
        low: f32,
        high: f32,
    },
    /// To the nearest whole number, of two the even one.
    Round,
    /// The whole number nearest to the quotient by this one, as by `Div` and `Round`: where quotients are less than
    /// [`QUOTIENT_LIMIT`], by a divisor that [`is_divisor`] takes.
    Quotient(f32),
    /// Zero for what is no number.
    Number,
    /// What a table has for the number, which is a byte.
    Lookup(T),
    /// Puts the number aside and goes on with another one.
    Aside(Y),
    /// Of the number that was put aside and the one at hand.
    AddAside,
    SubAside,
    MulAside,
}

/// Quotients less than this are rounded by way of a reciprocal.
pub(crate) const QUOTIENT_LIMIT: f32 = (1 << 20) as f32;

/// Whether quotients by a number are found by way of its reciprocal, which must be as exact as numbers are.
pub(crate) fn is_divisor(by: f32) -> bool {
    let size = by.abs().log2();
    (-60.0..60.0).contains(&size)
}

/// The most steps that a chain has.
pub(crate) const STEPS: usize = 24;

/// The steps of a chain, without memory of their own.
pub(crate) type Steps<'a> = SmallVec<[KernelStep<'a>; STEPS]>;

/// A step of which all is known.
pub(crate) type KernelStep<'a> = Step<Operand<'a>, &'a Table>;

/// What a step reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Operand<'a> {
    /// The same for all.
    Same(f32),
    /// A number for each column of the result.
    Columns(&'a [f32]),
    /// One for each element of the result, row-major.
    Reals(&'a [f32]),
    Bytes(&'a [u8]),
    SignedBytes(&'a [u8]),
}

impl<Y, T> Step<Y, T> {
    /// The same step with what its operand stands for, if there is that, or its table.
    pub(crate) fn bind<'a>(
        &self,
        operand: impl Fn(&Y) -> Option<Operand<'a>>,
        table: impl Fn(&T) -> &'a Table,
    ) -> Option<KernelStep<'a>> {
        Some(match self {
            Self::Add(y) => Step::Add(operand(y)?),
            Self::Sub(y) => Step::Sub(operand(y)?),
            Self::Mul(y) => Step::Mul(operand(y)?),
            Self::Div(y) => Step::Div(operand(y)?),
            Self::Aside(y) => Step::Aside(operand(y)?),
            &Self::Clamp { low, high } => Step::Clamp { low, high },
            &Self::Within { low, high } => Step::Within { low, high },
            Self::Round => Step::Round,
            &Self::Quotient(by) => Step::Quotient(by),
            Self::Number => Step::Number,
            Self::Lookup(of) => Step::Lookup(table(of)),
            Self::AddAside => Step::AddAside,
            Self::SubAside => Step::SubAside,
            Self::MulAside => Step::MulAside,
        })
    }
}

/// Where a tile of results goes, and what is done to its sums before.
pub(crate) struct Finish<'a> {
    /// Added to the sums of each column of the result.
    pub(crate) bias: Option<&'a [i32]>,
    pub(crate) steps: &'a [KernelStep<'a>],
    /// Row and column of the tile's first result.
    pub(crate) first: [usize; 2],
    /// Columns of the result.
    pub(crate) columns: usize,
    pub(crate) to: Results<'a>,
}

/// The memory of a tile's results.
pub(crate) enum Results<'a> {
    /// The last bits of numbers of -128 to 255.
    Bytes(TileMut<'a, u8>),
    Reals(TileMut<'a, f32>),
}

impl Results<'_> {
    /// Rows and columns.
    pub(super) fn sizes(&self) -> (usize, usize) {
        match self {
            Self::Bytes(tile) => tile.sizes(),
            Self::Reals(tile) => tile.sizes(),
        }
    }
}

/// Dot products of some rows and of columns from one of a tile on, so many vectors a row.
pub(super) struct Sums<'a> {
    pub(super) dots: &'a [[i32; LANES]],
    pub(super) across: usize,
    /// The first row and column in the tile.
    pub(super) row: usize,
    pub(super) column: usize,
    /// What was multiplied, from the first row on; sums of the columns, from the first one of the matrix on.
    pub(super) left: (Rows<'a>, usize),
    pub(super) sums: &'a [i32],
    /// What the unit subtracted from each byte of A.
    pub(super) zero_point: i32,
}

impl Finish<'_> {
    /// Finishes dot products and stores them: those that the tile has place for.
    #[inline(always)]
    pub(super) fn store<U: Vectors>(&mut self, unit: U, sums: &Sums<'_>) {
        let (_, width) = self.to.sizes();
        for vector in 0..sums.across {
            let column = sums.column + vector * LANES;
            if column >= width {
                break;
            }
            let (mut row, rows) = (0, sums.dots.len() / sums.across);
            while row < rows {
                row += match rows - row {
                    8.. => self.some::<U, 8>(unit, sums, row, vector),
                    4.. => self.some::<U, 4>(unit, sums, row, vector),
                    2.. => self.some::<U, 2>(unit, sums, row, vector),
                    _ => self.some::<U, 1>(unit, sums, row, vector),
                };
            }
        }
    }

    /// The same for a vector of each of some rows; gives their number.
    #[inline(always)]
    fn some<U: Vectors, const N: usize>(
        &mut self,
        unit: U,
        of: &Sums<'_>,
        row: usize,
        vector: usize,
    ) -> usize {
        let in_tile = [of.row + row, of.column + vector * LANES];
        let [first, column] = [self.first[0] + in_tile[0], self.first[1] + in_tile[1]];
        let sums = chunk(of.sums, column);
        let bias = self.bias.map_or([0; LANES], |bias| chunk(bias, column));
        let mut x = [unit.same(0.0); N];
        for (i, x) in x.iter_mut().enumerate() {
            let [offset, _] = of.left.0.of_row(of.left.1 + row + i);
            let offset = offset.wrapping_add(of.zero_point);
            *x = unit.of_sums(&of.dots[(row + i) * of.across + vector], offset, &sums, &bias);
        }
        let place = first * self.columns + column;
        let own = Own { unit, place, columns: self.columns, column };
        let mut aside = x;
        for step in self.steps {
            match *step {
                Step::Add(y) => own.with(&mut x, y, U::add),
                Step::Sub(y) => own.with(&mut x, y, U::sub),
                Step::Mul(y) => own.with(&mut x, y, U::mul),
                Step::Div(y) => own.with(&mut x, y, U::div),
                Step::Clamp { low, high } => {
                    let (low, high) = (unit.same(low), unit.same(high));
                    x.iter_mut().for_each(|x| *x = unit.at_most(unit.at_least(*x, low), high));
                }
                Step::Within { low, high } => {
                    let (low, high) = (unit.same(low), unit.same(high));
                    x.iter_mut().for_each(|x| *x = unit.at_most(unit.number_from(*x, low), high));
                }
                Step::Round => x.iter_mut().for_each(|x| *x = unit.round(*x)),
                Step::Quotient(by) => {
                    let (by, reciprocal) = (unit.same(by), unit.same(by.recip()));
                    x.iter_mut().for_each(|x| *x = unit.quotient(*x, by, reciprocal));
                }
                Step::Number => x.iter_mut().for_each(|x| *x = unit.number(*x)),
                Step::Lookup(table) => x.iter_mut().for_each(|x| *x = unit.lookup(*x, table)),
                Step::Aside(y) => {
                    aside = x;
                    own.with(&mut x, y, |_, _, y| y);
                }
                Step::AddAside => both(unit, &aside, &mut x, U::add),
                Step::SubAside => both(unit, &aside, &mut x, U::sub),
                Step::MulAside => both(unit, &aside, &mut x, U::mul),
            }
        }
        for (x, row) in x.into_iter().zip(in_tile[0]..) {
            match &mut self.to {
                Results::Bytes(tile) => keep(&mut tile.row(row)[in_tile[1]..], unit.bytes(x)),
                Results::Reals(tile) => keep(&mut tile.row(row)[in_tile[1]..], unit.reals(x)),
            }
        }
        N
    }
}

/// Where numbers of some rows belong.
#[derive(Clone, Copy)]
struct Own<U> {
    unit: U,
    /// The first element in the result, and the distance of rows.
    place: usize,
    columns: usize,
    column: usize,
}

impl<U: Vectors> Own<U> {
    #[inline(always)]
    fn with<const N: usize>(
        self,
        x: &mut [U::Vector; N],
        y: Operand<'_>,
        function: impl Fn(U, U::Vector, U::Vector) -> U::Vector,
    ) {
        let Self { unit, place, columns, column } = self;
        let mut all = |y: U::Vector| x.iter_mut().for_each(|x| *x = function(unit, *x, y));
        match y {
            Operand::Same(y) => all(unit.same(y)),
            Operand::Columns(y) => all(unit.load(&chunk(y, column))),
            Operand::Reals(y) => {
                for (i, x) in x.iter_mut().enumerate() {
                    *x = function(unit, *x, unit.load(&chunk(y, place + i * columns)));
                }
            }
            Operand::Bytes(y) => {
                for (i, x) in x.iter_mut().enumerate() {
                    *x = function(unit, *x, unit.of_bytes(&chunk(y, place + i * columns)));
                }
            }
            Operand::SignedBytes(y) => {
                for (i, x) in x.iter_mut().enumerate() {
                    *x = function(unit, *x, unit.of_signed(&chunk(y, place + i * columns)));
                }
            }
        }
    }
}

#[inline(always)]
fn both<U: Vectors, const N: usize>(
    unit: U,
    aside: &[U::Vector; N],
    x: &mut [U::Vector; N],
    function: impl Fn(U, U::Vector, U::Vector) -> U::Vector,
) {
    x.iter_mut().zip(aside).for_each(|(x, &aside)| *x = function(unit, aside, *x));
}

/// Elements from one on, with zeros behind the last.
#[inline(always)]
fn chunk<T: Pod>(all: &[T], at: usize) -> [T; LANES] {
    match all.get(at..at + LANES).and_then(|own| own.first_chunk()) {
        Some(own) => *own,
        None => rest(all.get(at..).unwrap_or_default()),
    }
}

#[cold]
#[inline(never)]
fn rest<T: Pod>(all: &[T]) -> [T; LANES] {
    let mut own = [T::zeroed(); LANES];
    own[..all.len()].copy_from_slice(all);
    own
}

/// Stores those that there is place for.
#[inline(always)]
fn keep<T: Pod>(to: &mut [T], from: [T; LANES]) {
    match to.first_chunk_mut() {
        Some(to) => *to = from,
        None => to.copy_from_slice(&from[..to.len()]),
    }
}
