//! How a kernel's operand lies in memory, where that is a parameter: its type, and its stride along each of the kernel's axes.

pub(super) use crate::schedule::vectors::product;
use crate::schedule::{load_as, neighbours};
use crate::{Builder, Expr, Layout, Result, Scalar, TensorId, ThreadsId, Var, View};

/// An operand's type and strides, one for each axis, the last axis running fastest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Access {
    /// The type of its elements.
    pub scalar: Scalar,
    /// Its strides.
    pub strides: Vec<Stride>,
}

/// A stride, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stride {
    /// 0: every coordinate is the same element.
    Broadcast,
    /// The product of the sizes of the axes after this one, broadcast ones left out.
    Packed,
    /// A symbol: `x_stride0` is that of operand `x` along the first axis.
    Symbol,
}

impl Access {
    /// All axes packed: a row-major tensor.
    pub fn packed(scalar: Scalar, rank: usize) -> Access {
        Access { scalar, strides: vec![Stride::Packed; rank] }
    }

    /// Symbols for all strides but the last, which is 1.
    pub fn rows(scalar: Scalar, rank: usize) -> Access {
        let stride = |axis| if axis + 1 == rank { Stride::Packed } else { Stride::Symbol };
        Access { scalar, strides: (0..rank).map(stride).collect() }
    }

    /// Whether neighbours along the last axis are neighbours in memory.
    pub fn contiguous(&self) -> bool {
        self.strides.last() == Some(&Stride::Packed)
    }

    /// The same elements along the last axis for every other coordinate, such as a bias.
    pub fn line(scalar: Scalar, rank: usize) -> Access {
        let stride = |axis| if axis + 1 == rank { Stride::Packed } else { Stride::Broadcast };
        Access { scalar, strides: (0..rank).map(stride).collect() }
    }

    /// Whether all elements along the last axis are one.
    pub fn repeats(&self) -> bool {
        self.strides.last() == Some(&Stride::Broadcast)
    }

    /// Neighbours along the last axis in registers, as numbers of this type; one where all are one.
    pub(super) fn load(&self, k: &mut Builder, of: TensorId, numbers: Scalar) -> Result<TensorId> {
        let from = if self.repeats() { neighbours(k, of, [0.into()], 1, "first")? } else { of };
        load_as(k, (from, self.contiguous()), numbers)
    }

    /// The symbols of an operand's strides, `None` where there are none. All operands' symbols come before the first parameter.
    pub(super) fn symbols(&self, k: &mut Builder, name: &str) -> Result<Vec<Option<Var>>> {
        let each = |(axis, stride): (usize, &Stride)| match stride {
            Stride::Symbol => k.symbol(&format!("{name}_stride{axis}")).map(Some),
            Stride::Broadcast | Stride::Packed => Ok(None),
        };
        self.strides.iter().enumerate().map(each).collect()
    }

    /// The parameter of these sizes.
    pub(super) fn param(
        &self,
        k: &mut Builder,
        name: &str,
        sizes: &[Expr],
        symbols: &[Option<Var>],
    ) -> Result<TensorId> {
        let shape = |(axis, stride): (usize, &Stride)| {
            let stride = match (stride, &symbols[axis]) {
                (Stride::Symbol, Some(symbol)) => Expr::from(symbol),
                (Stride::Broadcast, _) => Expr::from(0),
                (Stride::Packed | Stride::Symbol, _) => {
                    let after = self.strides.iter().zip(sizes).skip(axis + 1);
                    let own = after.filter(|(stride, _)| **stride != Stride::Broadcast);
                    product(own.map(|(_, size)| size))
                }
            };
            Layout::of(sizes[axis].clone(), stride)
        };
        let shapes: Vec<Layout<Expr>> = self.strides.iter().enumerate().map(shape).collect();
        k.param(name, View::buffer(&shapes), self.scalar)
    }
}

/// The symbols of sizes of so many axes: `N0`, `N1`, ….
pub(super) fn sizes(k: &mut Builder, name: &str, rank: usize) -> Result<Vec<Expr>> {
    (0..rank).map(|axis| Ok(k.symbol(&format!("{name}{axis}"))?.into())).collect()
}

/// Launches one dimension of blocks of so many threads: says the threads, and the own block's number.
pub(super) fn launch(
    k: &mut Builder,
    blocks: impl Into<Expr>,
    threads: i64,
    first: &str,
) -> Result<(ThreadsId, Expr)> {
    launch_clusters(k, (blocks.into(), 1), threads, first).map(|(block, first, _)| (block, first))
}

/// The blocks of a cluster, and which of them the own one is.
pub(super) type Cluster = Option<(ThreadsId, Expr)>;

/// Likewise of clusters of so many blocks, where that is more than one: says the threads, the own cluster's number, and its
/// blocks.
pub(super) fn launch_clusters(
    k: &mut Builder,
    (clusters, blocks): (Expr, i64),
    threads: i64,
    first: &str,
) -> Result<(ThreadsId, Expr, Cluster)> {
    let levels = [vec![Layout::of(clusters, blocks)], vec![Layout::of(blocks, 1)]];
    let levels = if blocks == 1 { &levels[..1] } else { &levels };
    let grid = k.grid("grid", View::levels_of(levels))?;
    let block = k.block("block", [Layout::of(threads, 1)])?;
    k.one()?;
    if blocks == 1 {
        let cta = k.scalar(grid, "cta")?;
        k.by(cta);
        let [first] = k.indices(grid, [first])?;
        return Ok((block, first.into(), None));
    }
    let [first, rank] = k.indices(grid, [first, "rank"])?;
    let cluster = k.index(grid, "together", [&first])?;
    let cta = k.index(cluster, "cta", [&rank])?;
    k.by(cta);
    Ok((block, first.into(), Some((cluster, rank.into()))))
}

/// Declares operands: the symbols of all their strides, then the parameters. Each is given with its name
/// and the sizes of its axes.
pub(super) fn declare(
    k: &mut Builder,
    operands: &[(String, &Access, &[Expr])],
) -> Result<Vec<TensorId>> {
    let symbols = operands.iter().map(|(name, access, _)| access.symbols(k, name));
    let symbols = symbols.collect::<Result<Vec<_>>>()?;
    let all = operands.iter().zip(&symbols);
    all.map(|((name, access, sizes), of)| access.param(k, name, sizes, of)).collect()
}
