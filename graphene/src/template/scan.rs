//! Running sums and products along an axis, one block for each row.
//!
//! A block takes a chunk of the row at a time, of which each thread has a vector. The vectors' totals are combined in shared
//! memory, each with the one 1, 2, 4, … before it (Hillis and Steele, 1986), between two copies of them in turn; what all of
//! them make is carried on to the next chunk.
//!
//! Levels:
//!
//! - kernel: all running sums
//!   - tile by a block: a row's
//!     - registers by a block: those of the totals of a chunk's vectors
//!
//! What a sum of n elements may err by, in single precision: each is a sum along a tree of at most
//! vector + log₂(threads) + n/(threads · vector) levels, each of which rounds once.

use super::access::{Access, declare, launch, product, sizes};
use crate::schedule::{
    constant, coordinates, each, load_as, moved, neighbours, part, store, vector,
};
use crate::{
    Arch, Binary, Builder, Cond, Expr, Fused, Header, Kernel, Kind, Layout, Memory, Operand,
    Relation, Result, Scalar, TensorId, Test, ThreadsId, kernel, needs,
};

parameters! {
    /// The parameters of a scan. The kernel's symbols are the axes' sizes `N0`, `N1`, …, and strides of the
    /// operands `x` and `y`; it goes along the last axis.
    pub struct Scan {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm80,
        /// What elements are combined by: sum or product.
        pub op: Binary = Binary::Add,
        /// What it computes with: single precision, or integers of 64 bits, in which the operands are integers.
        pub numbers: Scalar = Scalar::F32,
        /// The input.
        pub x: Access = Access::packed(Scalar::F32, 2),
        /// The output, whose elements each have their own place.
        pub y: Access = Access::packed(Scalar::F32, 2),
        /// Whether an element's own is left out.
        pub exclusive: bool = false,
        /// Whether it goes from the end to the beginning.
        pub reverse: bool = false,
        /// Neighbours that a thread has of a chunk: a divisor of the axis and of where rows begin; 1 for any.
        pub vector: i64 = 1,
        /// Threads of a block: a power of two, at most 1024.
        pub threads: i64 = 256,
    }
}

/// A block's part: what its threads share.
struct Row<'a> {
    scan: &'a Scan,
    block: ThreadsId,
    thread: Expr,
    /// Two copies of a total of each thread.
    shared: TensorId,
}

impl Scan {
    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        let neutral = self.check()?;
        let mut k = Builder::new("scan", self.arch);
        let sizes = sizes(&mut k, "N", self.x.strides.len())?;
        let operands = [("x".to_owned(), &self.x, &sizes[..]), ("y".to_owned(), &self.y, &sizes)];
        let params = declare(&mut k, &operands)?;
        let (x, y) = (params[0], params[1]);
        let (last, outer) = sizes.split_last().expect("the check wants an axis");
        let (block, first) = launch(&mut k, product(outer), self.threads, "first")?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let mut at = match outer {
            [] => Vec::new(),
            outer => coordinates(&mut k, first, outer)?,
        };
        let view = [Layout::of(2, self.threads), Layout::of(self.threads, 1)];
        let shared = k.allocate("partial", view, self.numbers, Memory::Shared, None)?;
        let row = Row { scan: self, block, thread: thread.into(), shared };
        let tiles = at.iter().map(|at| Some((1, at.clone()))).chain([None]).collect::<Vec<_>>();
        let (from, to) = (part(&mut k, x, "x_row", &tiles)?, part(&mut k, y, "y_row", &tiles)?);
        let scan = self.of(outer.len(), self.exclusive);
        k.decompose(Header::new(Kind::Scan(scan.clone()), to, from, block), |k| {
            let carry = constant(k, "carry", self.numbers, neutral)?;
            let n = self.vector;
            let vectors = last.ceil_div(n);
            let chunks = vectors.ceil_div(self.threads);
            let carried = k.carry("chunk", (&chunks, &1.into()), |_, chunk| {
                // Those of all chunks before, and what has been written of them.
                let count = (Expr::from(chunk) * (self.threads * n)).min(last.clone());
                let rest = last.clone() - &count;
                let first = if self.reverse { rest.max(0) } else { Expr::from(0) };
                let done = |row: Fused| row.slice(outer.len(), first.clone(), count.clone());
                let all = Kind::Fused(done(Fused::input(0)).folded(self.op, [outer.len()]));
                let part = Kind::Fused(done(Fused::input(0).scan(&scan)));
                let written = Header::new(part, to, from, block);
                Ok(vec![
                    (None, Header::alone(all, carry, from)),
                    (Some(done(Fused::input(0))), written),
                ])
            })?;
            k.for_carrying("chunk", Expr::from(0)..chunks, (1, false), carried, |k, chunk| {
                let place = Expr::from(chunk) * self.threads + &row.thread;
                let mut from_end = place.clone();
                if self.reverse {
                    from_end = (vectors.clone() - 1 - &place).max(0);
                }
                at.push(from_end);
                let before_end = Cond::less(place, vectors);
                let from = neighbours(k, x, at.clone(), n, "from")?;
                let to = neighbours(k, y, at, n, "to")?;
                let values = row.values(k, from, before_end.clone(), neutral)?;
                let total = moved(k, "total", self.numbers, Operand::at(values, [n - 1]))?;
                // Of the block's threads, which are the first dimension of their registers.
                let forward = Scan { reverse: false, ..self.clone() };
                let (forward, mut done) = (Kind::Scan(forward.of(0, false)), 0);
                k.decompose(Header::new(forward, total, total, block), |k| {
                    done = row.combine(k, total)?;
                    Ok(())
                })?;
                let before = row.before(k, done, neutral)?;
                row.fold(k, before, carry)?;
                let results = row.results(k, before, values)?;
                k.if_(before_end, |k| {
                    k.if_(Test::Inside(to.into()), |k| store(k, to, results, self.y.contiguous()))
                })?;
                let last = Operand::at(shared, [done, self.threads - 1]);
                let all = moved(k, "all", self.numbers, last)?;
                row.fold(k, carry, all)?;
                // All have read what the next chunk overwrites.
                k.spec(Kind::Sync, (), (), block)
            })
        })?;
        k.finish(Kind::Scan(scan), y, x)
    }

    /// What it computes, along a dimension.
    fn of(&self, along: usize, exclusive: bool) -> kernel::Scan {
        kernel::Scan { op: self.op, along, exclusive, reverse: self.reverse }
    }

    /// What changes nothing.
    fn check(&self) -> Result<f64> {
        let rank = self.x.strides.len();
        let axes = rank > 0 && rank == self.y.strides.len();
        needs(axes, "operands of the same axes, one or more", self)?;
        let floats = self.x.scalar.is_float() || self.y.scalar.is_float();
        let numbers = self.numbers == Scalar::F32 || (self.numbers == Scalar::I64 && !floats);
        needs(numbers, "single precision, or integers of 64 bits of integers", self.numbers)?;
        let power = (32..=1024).contains(&self.threads) && self.threads.count_ones() == 1;
        needs(power, "32, 64, … 1024 threads a block", self.threads)?;
        needs(matches!(self.vector, 1 | 2 | 4 | 8), "vectors of 1, 2, 4 or 8", self.vector)?;
        needs(matches!(self.op, Binary::Add | Binary::Mul), "a sum or a product", self.op)?;
        Ok(if self.op == Binary::Add { 0.0 } else { 1.0 })
    }
}

impl Row<'_> {
    /// A vector's running sums, in the order of the scan, from global memory; beyond the row's end what changes nothing.
    fn values(
        &self,
        k: &mut Builder,
        from: TensorId,
        before_end: Cond,
        neutral: f64,
    ) -> Result<TensorId> {
        let Scan { op, numbers, vector: n, ref x, .. } = *self.scan;
        let values = vector(k, "values", n, numbers)?;
        let at = |e: Expr| Operand::at(values, [e]);
        each(k, n, |k, e| k.init(at(e), neutral))?;
        k.if_(before_end, |k| {
            k.if_(Test::Inside(from.into()), |k| {
                let given = load_as(k, (from, x.contiguous()), numbers)?;
                each(k, n, |k, e| k.move_(at(self.place(&e)), Operand::at(given, [e])))
            })
        })?;
        each(k, n - 1, |k, e| k.binary(op, at(e.clone() + 1), [at(e.clone()), at(e + 1)]))?;
        Ok(values)
    }

    /// Those of the row, with what stands before the vector, as they lie in memory.
    fn results(&self, k: &mut Builder, before: TensorId, values: TensorId) -> Result<TensorId> {
        let Scan { op, numbers, vector: n, exclusive, .. } = *self.scan;
        let results = vector(k, "results", n, numbers)?;
        let to = |e: &Expr| Operand::at(results, [self.place(e)]);
        if exclusive {
            k.move_(to(&0.into()), before)?;
        }
        let skipped = i64::from(exclusive);
        each(k, n - skipped, |k, e| {
            let value = Operand::at(values, [&e]);
            k.binary(op, to(&(e + skipped)), [before.into(), value])
        })?;
        Ok(results)
    }

    /// Where the `e`-th of a vector's elements, in the order of the scan, lies in it.
    fn place(&self, e: &Expr) -> Expr {
        if self.scan.reverse { Expr::from(self.scan.vector - 1) - e } else { e.clone() }
    }

    /// `acc` becomes `acc` and `value` together.
    fn fold(&self, k: &mut Builder, acc: TensorId, value: TensorId) -> Result {
        k.binary(self.scan.op, acc, [acc, value])
    }

    /// Every thread's value and all before it together, in one of the two copies: says which.
    fn combine(&self, k: &mut Builder, value: TensorId) -> Result<i64> {
        let (mut copy, mut distance) = (0, 1);
        let at = |copy: i64, thread: Expr| Operand::at(self.shared, [Expr::from(copy), thread]);
        k.move_(at(copy, self.thread.clone()), value)?;
        k.spec(Kind::Sync, (), (), self.block)?;
        while distance < self.scan.threads {
            let far = Cond::new(self.thread.clone(), Relation::AtLeast, distance);
            k.if_(far, |k| {
                let from = (self.thread.clone() - distance).max(0);
                let before = moved(k, "before", self.scan.numbers, at(copy, from))?;
                self.fold(k, value, before)
            })?;
            copy = 1 - copy;
            k.move_(at(copy, self.thread.clone()), value)?;
            k.spec(Kind::Sync, (), (), self.block)?;
            distance *= 2;
        }
        Ok(copy)
    }

    /// What all threads before have together, of the chunk.
    fn before(&self, k: &mut Builder, done: i64, neutral: f64) -> Result<TensorId> {
        let before = constant(k, "before", self.scan.numbers, neutral)?;
        k.if_(Cond::new(self.thread.clone(), Relation::AtLeast, 1), |k| {
            let last = (self.thread.clone() - 1).max(0);
            k.move_(before, Operand::at(self.shared, [Expr::from(done), last]))
        })?;
        Ok(before)
    }
}
