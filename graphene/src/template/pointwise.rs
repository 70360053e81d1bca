//! Functions of elements: `y[i…] = f(x₀[i…], x₁[i…], …)` over some axes, with any strides; also
//! copies, conversions and broadcasts.
//!
//! An item of work is a vector of neighbours along the last axis. Each thread of the grid takes one item after the
//! other, a grid's threads apart. The last items of a row may be partial: they are computed element by element.
//!
//! Levels:
//!
//! - kernel: the function of all elements
//!   - item by a thread: of a vector, in global memory
//!     - registers by a thread: of the same vector, in registers
//!
//! What a result may err by: every step of the function once, as it does in single precision (see
//! `kind/function.rs`), and the rounding to the output's type.

use super::access::{Access, declare, launch, sizes};
use crate::schedule::{computed, each_vector, neighbours, store};
use crate::{
    Arch, Builder, Function, Header, Kernel, Kind, Result, Scalar, TensorId, Within, needs,
};

parameters! {
    /// The parameters of a pointwise kernel. Its symbols are the axes' sizes `N0`, `N1`, …, the number
    /// of `blocks`, and strides of the operands `x0`, `x1`, …, `y0`, …, in this order.
    pub struct Pointwise {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm90a,
        /// The function: input `i` is `ins[i]`, output `i` is `outs[i]`.
        pub function: Function = Function::identity(),
        /// What it computes with: single precision, or integers of 64 bits, in which all operands are integers.
        pub numbers: Scalar = Scalar::F32,
        /// The inputs; all axes of all operands have the same sizes.
        pub ins: Vec<Access> = vec![Access::packed(Scalar::F16, 1)],
        /// The outputs, each of whose elements has its own place.
        pub outs: Vec<Access> = vec![Access::packed(Scalar::F16, 1)],
        /// Elements of an item: where an operand is contiguous along the last axis, so many lie at a
        /// multiple of 16 bytes, or of their size if that is less. 1 for any alignment.
        pub vector: i64 = 8,
        /// Threads of a block.
        pub threads: i64 = 256,
    }
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
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("pointwise", self.arch);
        let sizes = sizes(&mut k, "N", self.rank())?;
        let blocks = k.symbol("blocks")?;
        let ins = self.ins.iter().enumerate().map(|(i, x)| (format!("x{i}"), x, &sizes[..]));
        let outs = self.outs.iter().enumerate().map(|(i, y)| (format!("y{i}"), y, &sizes[..]));
        let mut params = declare(&mut k, &ins.chain(outs).collect::<Vec<_>>())?;
        let outs = params.split_off(self.ins.len());
        let (block, first) = launch(&mut k, &blocks, self.threads, "first")?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        let vectors = (&sizes[..], self.vector);
        let (grid, block) = ((&first, &blocks), (&thread, self.threads));
        each_vector(&mut k, outs[0], vectors, grid, block, |k, n, at| {
            let mut view = |&of: &TensorId| neighbours(k, of, at.iter().cloned(), n, "vector");
            let to = outs.iter().map(&mut view).collect::<Result<Vec<_>>>()?;
            let from = params.iter().map(view).collect::<Result<Vec<_>>>()?;
            let header = Header::alone(Kind::pointwise(&self.function), to.clone(), from.clone());
            k.decompose(header, |k| {
                let ins = from.iter().zip(&self.ins);
                let ins = ins.map(|(&from, access)| access.load(k, from, self.numbers));
                let ins = ins.collect::<Result<Vec<_>>>()?;
                let results = computed(k, &self.function, ("result", n, self.numbers), &ins)?;
                let mut outs = to.iter().zip(&self.outs).zip(results);
                outs.try_for_each(|((&to, access), from)| store(k, to, from, access.contiguous()))
            })
        })?;
        k.finish(Kind::pointwise(&self.function), outs, params)
    }

    fn check(&self) -> Result {
        let (rank, mut all) = (self.rank(), self.ins.iter().chain(&self.outs));
        let floats = all.clone().any(|access| access.scalar.is_float());
        let axes = rank > 0 && all.all(|access| access.strides.len() == rank);
        needs(axes, "operands of the same axes, one or more", self)?;
        let counts = (self.function.inputs(), self.function.outputs().len());
        let known = counts == (self.ins.len(), self.outs.len());
        needs(known, "a function of the inputs that gives the outputs", self)?;
        let numbers = self.numbers == Scalar::F32 || (self.numbers == Scalar::I64 && !floats);
        needs(numbers, "single precision, or integers of 64 bits of integers", self.numbers)?;
        Within(1, 16).check("elements a vector", self.vector)?;
        Within(1, 1024).check("threads a block", self.threads)
    }
}
