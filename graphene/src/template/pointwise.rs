//! Functions of elements: `y[i…] = f(x₀[i…], x₁[i…], …)` over some axes, with any strides; also
//! copies, conversions and broadcasts.
//!
//! An item of work is a vector of neighbours along the last axis. Each thread of the grid takes one
//! item after the other, a grid's threads apart. The last items of a row may be partial: they are
//! computed element by element.
//!
//! Levels: the kernel; an item, by a thread; the function of its elements in registers; atoms.
//!
//! What a result may err by: every step of the function once, as it does in single precision (see
//! `atom/function.rs`), and the rounding to the output's type.

use super::access::{Access, declare};
use crate::arch::Arch;
use crate::build::{Builder, Header};
use crate::error::{Error, Result};
use crate::function::Function;
use crate::index::Expr;
use crate::kernel::{Kernel, Kind, TensorId, ThreadsId};
use crate::layout::Layout;
use crate::schedule::pointwise::{pointwise, store, vector};
use crate::schedule::vectors::{Items, neighbours};
use crate::tensor::Scalar;

/// The parameters of a pointwise kernel. Its symbols are the axes' sizes `N0`, `N1`, …, the number
/// of `blocks`, and strides of the operands `x0`, `x1`, …, `y0`, …, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pointwise {
    /// What it is compiled for.
    pub arch: Arch,
    /// The function: input `i` is `ins[i]`, output `i` is `outs[i]`.
    pub function: Function,
    /// What it computes with: single precision, or integers of 64 bits, in which all operands are
    /// integers.
    pub numbers: Scalar,
    /// The inputs; all axes of all operands have the same sizes.
    pub ins: Vec<Access>,
    /// The outputs, each of whose elements has its own place.
    pub outs: Vec<Access>,
    /// Elements of an item: where an operand is contiguous along the last axis, so many lie at a
    /// multiple of 16 bytes, or of their size if that is less. 1 for any alignment.
    pub vector: i64,
    /// Threads of a block.
    pub threads: i64,
}

impl Default for Pointwise {
    fn default() -> Pointwise {
        Pointwise {
            arch: Arch::Sm90a,
            function: Function::identity(),
            numbers: Scalar::F32,
            ins: vec![Access::packed(Scalar::F16, 1)],
            outs: vec![Access::packed(Scalar::F16, 1)],
            vector: 8,
            threads: 256,
        }
    }
}

/// What the parts of the kernel share.
struct Context<'a> {
    template: &'a Pointwise,
    sizes: Vec<Expr>,
    ins: Vec<TensorId>,
    outs: Vec<TensorId>,
    one: ThreadsId,
}

impl Pointwise {
    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.outs.first().map_or(0, |out| out.strides.len())
    }

    /// How many items of work there are, of which a block takes `threads` at a time; all operands'
    /// offsets and this number must be less than 2³¹.
    pub fn items(&self, sizes: &[i64]) -> i64 {
        let (last, outer) = sizes.split_last().unwrap_or((&1, &[]));
        outer.iter().product::<i64>() * ((last + self.vector - 1) / self.vector)
    }

    /// The kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] for parameters that no kernel has.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("pointwise", self.arch);
        let sizes: Vec<Expr> = (0..self.rank())
            .map(|axis| Ok(k.symbol(&format!("N{axis}"))?.into()))
            .collect::<Result<_>>()?;
        let blocks = k.symbol("blocks")?;
        let named = |name: char, i: usize| format!("{name}{i}");
        let ins = self.ins.iter().enumerate().map(|(i, x)| (named('x', i), x, &sizes[..]));
        let outs = self.outs.iter().enumerate().map(|(i, y)| (named('y', i), y, &sizes[..]));
        let mut params = declare(&mut k, &ins.chain(outs).collect::<Vec<_>>())?;
        let outs = params.split_off(self.ins.len());
        let grid = k.grid("grid", [Layout::of(&blocks, 1)])?;
        let block = k.block("block", [Layout::of(self.threads, 1)])?;
        let one = k.scalar(block, "one")?;
        let own = k.scalar(grid, "own")?;
        k.by(own);
        let [first] = k.indices(grid, ["first"])?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let context =
            Context { template: self, sizes, ins: params.clone(), outs: outs.clone(), one };
        let items = Items { sizes: &context.sizes, n: self.vector };
        let tiles = items.count().ceil_div(&Expr::from(self.threads));
        k.for_("tile", Expr::from(first)..tiles, Expr::from(blocks), false, |k, tile| {
            let item = Expr::from(tile) * self.threads + Expr::from(thread);
            items.within(k, context.outs[0], item, |k, n, at| context.compute(k, n, at))
        })?;
        k.finish(Kind::pointwise(&self.function), outs, params)
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Kernel(format!("{why}: {self:?}")));
        let rank = self.rank();
        let all = self.ins.iter().chain(&self.outs);
        if rank == 0 || all.clone().any(|access| access.strides.len() != rank) {
            return refuse("all operands have the same axes, at least one");
        }
        let counts = (self.function.inputs(), self.function.outputs().len());
        if counts != (self.ins.len(), self.outs.len()) {
            return refuse("the function has other numbers of inputs or outputs");
        }
        let floats = self.ins.iter().chain(&self.outs).any(|access| access.scalar.is_float());
        let whole = self.numbers == Scalar::I64 && !floats;
        if self.numbers != Scalar::F32 && !whole {
            return refuse("it computes in single precision, or in integers of 64 bits");
        }
        if !(1..=16).contains(&self.vector) || !(1..=1024).contains(&self.threads) {
            return refuse("a vector has 1 to 16 elements, a block 1 to 1024 threads");
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Views `[n]` of operands at a place that counts vectors.
    fn vectors(
        &self,
        k: &mut Builder,
        of: &[TensorId],
        n: i64,
        at: &[Expr],
    ) -> Result<Vec<TensorId>> {
        of.iter().map(|&of| neighbours(k, of, at.iter().cloned(), n, "vector")).collect()
    }

    /// The results of a vector.
    fn compute(&self, k: &mut Builder, n: i64, at: &[Expr]) -> Result<()> {
        let template = self.template;
        let outs = self.vectors(k, &self.outs, n, at)?;
        let from = self.vectors(k, &self.ins, n, at)?;
        let kind = Kind::pointwise(&template.function);
        k.decompose(Header::new(kind, outs.clone(), from.clone(), self.one), |k| {
            let mut ins = Vec::new();
            for (from, access) in from.into_iter().zip(&template.ins) {
                ins.push(access.load(k, from, n, template.numbers, self.one)?);
            }
            let mut results = Vec::new();
            for _ in &outs {
                results.push(vector(k, "result", n, template.numbers)?);
            }
            pointwise(k, &template.function, &results, &ins, n, self.one)?;
            for ((&to, access), &from) in outs.iter().zip(&template.outs).zip(&results) {
                store(k, to, from, n, access.contiguous(), self.one)?;
            }
            Ok(())
        })
    }
}
