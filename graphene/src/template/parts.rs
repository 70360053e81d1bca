//! Results in parts: boxes of a result, side by side, each copied from an operand, filled with one
//! number, or counted. Joined operands, surrounded ones, and ranges are made so.
//!
//! The whole grid goes through one part after the other. An item of work is a vector of neighbours along a part's last
//! axis, as in [`pointwise`](super::pointwise). Nothing is computed with elements: they are the same bits afterwards.
//!
//! Levels:
//!
//! - kernel: all parts
//!   - item by a thread: a vector of a part

use super::access::{self, Access, declare, launch};
use crate::schedule::{copy, each, each_vector, neighbours, vector};
use crate::{
    Arch, Builder, Expr, Fused, Header, Kernel, Kind, Number, Operand, Result, Scalar, TensorId,
    Within, needs,
};

parameters! {
    /// The parameters of a kernel that makes its results part by part. Its symbols are, for each part `p`,
    /// the sizes `Np_0`, `Np_1`, … of its axes; the number of `blocks`; for each part that is counted the
    /// number `firstp` that it begins with; and strides of the operands `y0`, `x0`, `y1`, …, in this order.
    pub struct Parts {
        /// What it is compiled for.
        pub arch: Arch = Arch::Sm90a,
        /// The parts, no two of which have a place in common.
        pub parts: Vec<Part> = vec![Part::default(); 2],
        /// Threads of a block.
        pub threads: i64 = 256,
    }
}

parameters! {
    /// A box of a result: the operand `yp`.
    pub struct Part {
        /// What stands there.
        pub source: Source = Source::Copied(Access::packed(Scalar::F16, 2)),
        /// Where that is.
        pub to: Access = Access::rows(Scalar::F16, 2),
        /// Elements of an item, as of [`Pointwise`](super::pointwise::Pointwise::vector).
        pub vector: i64 = 8,
    }
}

/// What stands in a part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The elements of the operand `xp`, which has the part's axes and type.
    Copied(Access),
    /// This number.
    Filled(Number),
    /// `firstp`, `firstp` + 1, … along the last axis: integers of 64 or 32 bits, one an item.
    Counted,
}

/// A part's operands in a kernel.
struct Place<'a> {
    part: &'a Part,
    sizes: &'a [Expr],
    to: TensorId,
    from: Option<TensorId>,
    /// The number that it begins with, if it is counted.
    first: Expr,
}

impl Parts {
    /// The kernel.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        let mut k = Builder::new("parts", self.arch);
        let parts = || self.parts.iter().enumerate();
        let of_part = |(p, part): (usize, &Part)| {
            access::sizes(&mut k, &format!("N{p}_"), part.to.strides.len())
        };
        let sizes = parts().map(of_part).collect::<Result<Vec<_>>>()?;
        let blocks = k.symbol("blocks")?;
        let first = |(p, part): (usize, &Part)| match part.source {
            Source::Counted => k.symbol(&format!("first{p}")).map(Expr::from),
            Source::Copied(_) | Source::Filled(_) => Ok(0.into()),
        };
        let firsts = parts().map(first).collect::<Result<Vec<_>>>()?;
        let mut operands = Vec::new();
        for ((p, part), sizes) in parts().zip(&sizes) {
            operands.push((format!("y{p}"), &part.to, &sizes[..]));
            if let Source::Copied(from) = &part.source {
                operands.push((format!("x{p}"), from, &sizes[..]));
            }
        }
        let mut params = declare(&mut k, &operands)?.into_iter();
        let (mut outs, mut ins, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for ((part, sizes), first) in self.parts.iter().zip(&sizes).zip(firsts) {
            let Some(to) = params.next() else { break };
            let copied = matches!(part.source, Source::Copied(_));
            let from = if copied { params.next() } else { None };
            outs.push(to);
            ins.extend(from);
            places.push(Place { part, sizes, to, from, first });
        }
        let (block, begin) = launch(&mut k, &blocks, self.threads, "begin")?;
        let [thread] = k.indices(block, ["thread_of_block"])?;
        for place in &places {
            let vectors = (place.sizes, place.part.vector);
            let (grid, block) = ((&begin, &blocks), (&thread, self.threads));
            each_vector(&mut k, place.to, vectors, grid, block, |k, n, at| place.make(k, n, at))?;
        }
        let mut copied = (0..).map(Fused::input);
        let results = places.iter().enumerate().map(|(p, place)| match place.part.source {
            Source::Copied(_) => copied.next().unwrap_or_else(|| Fused::old(p)),
            Source::Filled(number) => number.0.into(),
            Source::Counted => {
                let first = Fused::index(place.first.clone());
                Fused::old(p).position(place.sizes.len() - 1) + first
            }
        });
        k.finish(Kind::Fused(Fused::all(results)), outs, ins)
    }

    fn check(&self) -> Result {
        needs(!self.parts.is_empty(), "a part", self)?;
        Within(1, 1024).check("threads a block", self.threads)?;
        for part @ Part { source, to, vector } in &self.parts {
            let rank = to.strides.len();
            let counted = rank > 0 && (1..=16).contains(vector);
            needs(counted, "axes, and 1 to 16 elements a vector", part)?;
            match source {
                Source::Copied(from) => {
                    let alike = from.strides.len() == rank && from.scalar == to.scalar;
                    needs(alike, "an operand of the part's axes and type", part)?;
                }
                Source::Filled(_) => {}
                Source::Counted => {
                    let integer = matches!(to.scalar, Scalar::I32 | Scalar::I64 | Scalar::U32);
                    needs(*vector == 1 && integer, "integers that are counted one by one", part)?;
                }
            }
        }
        Ok(())
    }
}

impl Place<'_> {
    /// A vector at a place that counts vectors.
    fn make(&self, k: &mut Builder, n: i64, at: &[Expr]) -> Result {
        let Place { part: Part { source, to: access, .. }, first, .. } = self;
        let mut view = |of| neighbours(k, of, at.iter().cloned(), n, "vector");
        let (to, from) = (view(self.to)?, self.from.map(&mut view).transpose()?);
        let kind = match source {
            Source::Copied(_) => Kind::Move,
            Source::Filled(number) => Kind::Init(*number),
            Source::Counted => {
                Kind::Index(at.last().map_or(first.clone(), |at| first.clone() + at))
            }
        };
        k.decompose(Header::alone(kind.clone(), to, Vec::from_iter(from)), |k| {
            let raw = vector(k, "raw", n, access.scalar)?;
            match (source, from) {
                (Source::Copied(access), Some(from)) => copy(k, raw, from, access.contiguous())?,
                _ => each(k, n, |k, i| k.alone(kind, Operand::at(raw, [i]), ()))?,
            }
            copy(k, to, raw, access.contiguous())
        })
    }
}
