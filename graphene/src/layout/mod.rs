//! Layouts: functions from coordinates to offsets, and CuTe's algebra on them.
//!
//! A layout is a tree whose leaves are modes `size:stride`, so that a shape and its strides cannot disagree. Coordinates
//! count colexicographically: the first mode runs fastest. As a function on integers a layout `L` is `L(i)`, `i` in
//! `[0,size)`; past its size it continues along its last leaf, and `L(-i) = -L(i)`, as CuTe evaluates it.
//!
//! Sizes are constants, or expressions of a kernel's symbols: [`Int`]. A stride is a number, or moves along axes: `64@1`.
//! So this is the algebra of the notation, and of the views that tensors are ([`View`](crate::tensor::View)).
//!
//! The functions have CuTe's names, and their results the form in which CUTLASS's C++ prints those of static layouts.
//! They differ in one thing: where CuTe's conditions are unchecked and its answer would be wrong, here is an error that
//! says why. In reading order:
//!
//! - this file: [`Layout`], [`IntTuple`], sizes, evaluation, [`crd2idx`] and [`idx2crd`];
//! - `int`, `stride`: what a layout is made of;
//! - `text`: the notation `((2,2),3):((24,2),8)`;
//! - `coalesce`: [`coalesce`] and [`flatten`];
//! - `compose`: [`composition`], and [`Tiler`]s for composition by mode;
//! - `complement`: [`complement`], [`left_inverse`], [`right_inverse`];
//! - `tile`: divisions and products; [`tile_to_shape`];
//! - `swizzle`: [`Swizzle`] and [`Composed`], which is `Sw<3,4,3> o 0 o (5,4):(4,1)`.

mod coalesce;
mod complement;
mod compose;
mod int;
mod stride;
mod swizzle;
mod text;
mod tile;

use std::{collections::BTreeMap, sync::Arc};

pub use coalesce::{coalesce, coalesce_by, flatten};
pub use complement::{complement, left_inverse, right_inverse};
pub use compose::{Tiler, composition, composition_by};
pub use int::Int;
pub use stride::Stride;
pub use swizzle::{Composed, Outer, Swizzle};
pub(crate) use tile::divide_dim;
pub use tile::{
    blocked_product, flat_divide, flat_product, logical_divide, logical_product, raked_product,
    tile_to_shape, tiled_divide, tiled_product, zipped_divide, zipped_product,
};

use crate::{Error, Expr, Result};

/// The deepest nesting of a layout, so that recursion over one is bounded.
pub const MAX_DEPTH: usize = 64;

/// A layout. Its constant sizes and their offsets fit in an `i64`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout<I = i64> {
    node: Node<I>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Node<I> {
    Leaf(Leaf<I>),
    Tuple(Arc<[Layout<I>]>),
}

/// A mode that is not split further: `size:stride`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leaf<I = i64> {
    /// The number of coordinates.
    pub size: I,
    /// How far one step moves.
    pub stride: Stride<I>,
}

/// A tree of integers: a shape, a stride or a coordinate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IntTuple<I = i64> {
    /// One integer.
    Int(I),
    /// A tuple of trees.
    Tuple(Vec<IntTuple<I>>),
}

impl<I: Int> Layout<I> {
    /// The mode `size:stride`. Fails if `size < 1`, or if an offset overflows.
    pub fn mode(size: I, stride: impl Into<Stride<I>>) -> Result<Layout<I>> {
        Layout::leaf(size, stride.into()).checked()
    }

    /// The trivial layout `1:0`.
    pub fn unit() -> Layout<I> {
        Layout::leaf(I::from(1), Stride::zero())
    }

    /// The concatenation of `modes`. Fails if they nest too deeply, or a size or offset of the whole overflows.
    pub fn tuple(modes: Vec<Layout<I>>) -> Result<Layout<I>> {
        if modes.iter().any(|mode| mode.depth() >= MAX_DEPTH) {
            return Err(Error::Depth);
        }
        Layout::join(modes).checked()
    }

    fn leaf(size: I, stride: Stride<I>) -> Layout<I> {
        Layout { node: Node::Leaf(Leaf { size, stride }) }
    }

    /// The concatenation of modes of which each is well formed.
    pub(crate) fn join(modes: Vec<Layout<I>>) -> Layout<I> {
        Layout { node: Node::Tuple(modes.into()) }
    }

    /// The layout of flat modes: `1:0` for none, a leaf for one, else a tuple.
    fn flat(leaves: Vec<Leaf<I>>) -> Result<Layout<I>> {
        let mut modes: Vec<_> =
            leaves.into_iter().map(|leaf| Layout { node: Node::Leaf(leaf) }).collect();
        match modes.len() {
            0 => Ok(Layout::unit()),
            1 => modes.remove(0).checked(),
            _ => Layout::join(modes).checked(),
        }
    }

    /// The layout with this shape and these strides, which must have the same profile.
    pub fn new<S: Clone + Into<Stride<I>> + std::fmt::Display>(
        shape: &IntTuple<I>,
        stride: &IntTuple<S>,
    ) -> Result<Layout<I>> {
        shape.check_depth(MAX_DEPTH)?;
        stride.check_depth(MAX_DEPTH)?;
        zip_shape(shape, stride)
            .ok_or_else(|| Error::Profile { left: shape.to_string(), right: stride.to_string() })?
    }

    /// The compact layout of `shape` whose first mode is contiguous; modes of size 1 have stride 0.
    pub fn column_major(shape: &IntTuple<I>) -> Result<Layout<I>> {
        shape.check_depth(MAX_DEPTH)?;
        compact(shape, &mut I::from(1))
    }

    fn checked(self) -> Result<Layout<I>> {
        let (mut size, mut extent) = (1_i64, 0_i64);
        for leaf in self.leaves() {
            let Some(count) = leaf.size.constant() else { continue };
            if count < 1 {
                return Err(Error::Size(count));
            }
            size = size.checked_mul(count).ok_or(Error::Overflow)?;
            for stride in leaf.stride.terms.iter().filter_map(|term| term.1.constant()) {
                let reach = (count - 1).checked_mul(stride).and_then(i64::checked_abs);
                extent =
                    reach.and_then(|reach| extent.checked_add(reach)).ok_or(Error::Overflow)?;
            }
        }
        extent.checked_add(1).ok_or(Error::Overflow)?;
        Ok(self)
    }

    /// The number of coordinates.
    pub fn size(&self) -> I {
        self.leaves().into_iter().fold(I::from(1), |size, leaf| {
            size.times(&leaf.size).expect("a layout's size was checked when it was made")
        })
    }

    /// The number of top-level modes.
    pub fn rank(&self) -> usize {
        self.modes().len()
    }

    /// The depth of nesting: 0 for a leaf.
    pub fn depth(&self) -> usize {
        match &self.node {
            Node::Leaf(_) => 0,
            Node::Tuple(modes) => 1 + modes.iter().map(Layout::depth).max().unwrap_or(0),
        }
    }

    /// The top-level modes; a leaf is its own only mode.
    pub fn modes(&self) -> &[Layout<I>] {
        match &self.node {
            Node::Leaf(_) => std::slice::from_ref(self),
            Node::Tuple(modes) => modes,
        }
    }

    /// The single `size:stride` that this is, if it is one.
    pub fn as_leaf(&self) -> Option<&Leaf<I>> {
        match &self.node {
            Node::Leaf(leaf) => Some(leaf),
            Node::Tuple(_) => None,
        }
    }

    /// The leaves, fastest first.
    pub fn leaves(&self) -> Vec<&Leaf<I>> {
        fn collect<'a, I>(layout: &'a Layout<I>, leaves: &mut Vec<&'a Leaf<I>>) {
            match &layout.node {
                Node::Leaf(leaf) => leaves.push(leaf),
                Node::Tuple(modes) => modes.iter().for_each(|mode| collect(mode, leaves)),
            }
        }
        let mut leaves = Vec::new();
        collect(self, &mut leaves);
        leaves
    }

    /// The tree of sizes.
    pub fn shape(&self) -> IntTuple<I> {
        self.project(&mut |leaf| leaf.size.clone())
    }

    /// The tree of strides.
    pub fn stride(&self) -> IntTuple<Stride<I>> {
        self.project(&mut |leaf| leaf.stride.clone())
    }

    fn project<T>(&self, pick: &mut impl FnMut(&Leaf<I>) -> T) -> IntTuple<T> {
        match &self.node {
            Node::Leaf(leaf) => IntTuple::Int(pick(leaf)),
            Node::Tuple(modes) => {
                IntTuple::Tuple(modes.iter().map(|mode| mode.project(pick)).collect())
            }
        }
    }

    /// Where a coordinate lies that is given by its number, or by axes: the modes.
    pub(crate) fn image(&self, coordinate: &Stride<I>) -> Result<Stride<I>> {
        coordinate.terms.iter().try_fold(Stride::zero(), |image, (axis, at)| {
            image.plus(&self.domain("crd2idx", *axis)?.at(at)?)
        })
    }

    /// What a coordinate is one of: the mode of its axis, or all of the layout.
    fn domain(&self, op: &'static str, axis: Option<usize>) -> Result<&Layout<I>> {
        let Some(axis) = axis else { return Ok(self) };
        let (modes, rank) = (axis.saturating_add(1), self.rank());
        self.modes().get(axis).ok_or(Error::Rank { op, modes, rank })
    }

    /// The same tree of other leaves.
    pub(crate) fn each<J>(&self, change: &mut impl FnMut(&Leaf<I>) -> Leaf<J>) -> Layout<J> {
        self.map(&mut |leaf| Some(change(leaf))).expect("every leaf has become another")
    }

    /// The same tree of other leaves, if each becomes one.
    pub(crate) fn map<J>(
        &self,
        change: &mut impl FnMut(&Leaf<I>) -> Option<Leaf<J>>,
    ) -> Option<Layout<J>> {
        let node = match &self.node {
            Node::Leaf(leaf) => Node::Leaf(change(leaf)?),
            Node::Tuple(modes) => {
                Node::Tuple(modes.iter().map(|mode| mode.map(change)).collect::<Option<_>>()?)
            }
        };
        Some(Layout { node })
    }

    /// The same layout, said in other integers.
    pub fn lift<J: Int>(&self) -> Layout<J>
    where
        I: Into<J>,
    {
        self.each(&mut |leaf| Leaf { size: leaf.size.clone().into(), stride: leaf.stride.lift() })
    }

    /// Where the `index`-th coordinate lies. Past the size it continues along the last leaf, and `at(-i) = -at(i)`.
    /// Fails only on overflow, which no index within the size causes.
    pub fn at(&self, index: &I) -> Result<Stride<I>> {
        let leaves = self.leaves();
        let Some((last, inner)) = leaves.split_last() else { return Ok(Stride::zero()) };
        let (mut rest, mut offset) = (index.clone(), Stride::zero());
        for leaf in inner {
            offset = offset.plus(&leaf.stride.times(&rest.modulo(&leaf.size))?)?;
            rest = rest.over(&leaf.size);
        }
        offset.plus(&last.stride.times(&rest)?)
    }
}

impl Layout<Expr> {
    /// A dimension of a buffer to be declared: whether its size and stride can be is found out there.
    pub fn of(size: impl Into<Expr>, stride: impl Into<Expr>) -> Layout<Expr> {
        Layout::leaf(size.into(), Stride::from(stride.into()))
    }

    /// Dimensions that lie close together, the last one fastest.
    pub fn rows<E: Into<Expr>>(sizes: impl IntoIterator<Item = E>) -> Vec<Layout<Expr>> {
        let sizes: Vec<E> = sizes.into_iter().collect();
        let mut dims = Layout::columns(sizes.into_iter().rev());
        dims.reverse();
        dims
    }

    /// Dimensions that lie close together, the first one fastest.
    pub fn columns<E: Into<Expr>>(sizes: impl IntoIterator<Item = E>) -> Vec<Layout<Expr>> {
        let mut stride = Expr::from(1);
        let next = |size: E| {
            let size = size.into();
            let next = stride.clone() * &size;
            Layout::of(size, std::mem::replace(&mut stride, next))
        };
        sizes.into_iter().map(next).collect()
    }
}

impl IntTuple<Expr> {
    /// Coordinates from expressions.
    pub fn list<E: Into<Expr>>(coords: impl IntoIterator<Item = E>) -> Vec<IntTuple<Expr>> {
        coords.into_iter().map(|coord| IntTuple::Int(coord.into())).collect()
    }
}

impl Layout {
    /// The layout of modes `(size, stride)`: a leaf for one, else a tuple.
    pub fn of_modes(modes: &[(i64, i64)]) -> Result<Layout> {
        let leaf = |&(size, stride): &(i64, i64)| Leaf { size, stride: Stride::from(stride) };
        Layout::flat(modes.iter().map(leaf).collect())
    }

    /// The size of the smallest box that holds all offsets: along each axis, one more than the largest distance of two.
    pub fn cosize(&self) -> i64 {
        let mut reach: BTreeMap<Option<usize>, i64> = BTreeMap::new();
        for leaf in self.leaves() {
            for &(axis, step) in &leaf.stride.terms {
                *reach.entry(axis).or_default() += ((leaf.size - 1) * step).abs();
            }
        }
        reach.values().fold(1, |size, along| size.saturating_mul(1 + along))
    }
}

/// None where the profiles differ.
fn zip_shape<I: Int, S: Clone + Into<Stride<I>>>(
    shape: &IntTuple<I>,
    stride: &IntTuple<S>,
) -> Option<Result<Layout<I>>> {
    match (shape, stride) {
        (IntTuple::Int(size), IntTuple::Int(stride)) => {
            Some(Layout::mode(size.clone(), stride.clone()))
        }
        (IntTuple::Tuple(sizes), IntTuple::Tuple(strides)) if sizes.len() == strides.len() => {
            let modes = sizes.iter().zip(strides).map(|(size, stride)| zip_shape(size, stride));
            Some(modes.collect::<Option<Result<_>>>()?.and_then(Layout::tuple))
        }
        (IntTuple::Int(_), IntTuple::Tuple(_)) | (IntTuple::Tuple(_), _) => None,
    }
}

fn compact<I: Int>(shape: &IntTuple<I>, extent: &mut I) -> Result<Layout<I>> {
    match shape {
        IntTuple::Int(size) => {
            let stride = if size.equals(1) { I::from(0) } else { extent.clone() };
            *extent = extent.times(size)?;
            Layout::mode(size.clone(), stride)
        }
        IntTuple::Tuple(sizes) => {
            Layout::tuple(sizes.iter().map(|size| compact(size, extent)).collect::<Result<_>>()?)
        }
    }
}

impl<I: Int> IntTuple<I> {
    /// The product of all integers in the tree; fails on overflow.
    pub fn product(&self) -> Result<I> {
        match self {
            IntTuple::Int(value) => Ok(value.clone()),
            IntTuple::Tuple(parts) => {
                parts.iter().try_fold(I::from(1), |product, part| product.times(&part.product()?))
            }
        }
    }
}

impl<T> IntTuple<T> {
    /// The top-level elements; an integer is its own only element.
    pub fn elements(&self) -> &[IntTuple<T>] {
        match self {
            IntTuple::Int(_) => std::slice::from_ref(self),
            IntTuple::Tuple(parts) => parts,
        }
    }

    /// The same tree of other elements, if each has one.
    pub fn map<U>(&self, of: &impl Fn(&T) -> Option<U>) -> Option<IntTuple<U>> {
        match self {
            IntTuple::Int(value) => of(value).map(IntTuple::Int),
            IntTuple::Tuple(parts) => {
                parts.iter().map(|part| part.map(of)).collect::<Option<_>>().map(IntTuple::Tuple)
            }
        }
    }

    fn check_depth(&self, most: usize) -> Result {
        match self {
            IntTuple::Int(_) => Ok(()),
            IntTuple::Tuple(_) if most == 0 => Err(Error::Depth),
            IntTuple::Tuple(parts) => parts.iter().try_for_each(|part| part.check_depth(most - 1)),
        }
    }
}

/// Where a coordinate lies, which has the profile of `layout`, or an integer wherever the layout has a tuple. Coordinates
/// past a mode's size continue along its last leaf.
pub fn crd2idx<I: Int>(coord: &IntTuple<I>, layout: &Layout<I>) -> Result<Stride<I>> {
    match (coord, &layout.node) {
        (IntTuple::Int(index), _) => layout.at(index),
        (IntTuple::Tuple(coords), Node::Tuple(modes)) if coords.len() == modes.len() => coords
            .iter()
            .zip(modes.iter())
            .try_fold(Stride::zero(), |offset, (coord, mode)| offset.plus(&crd2idx(coord, mode)?)),
        (IntTuple::Tuple(_), _) => {
            Err(Error::Profile { left: coord.to_string(), right: layout.shape().to_string() })
        }
    }
}

/// The coordinate, with the profile of `layout`, of an index within its size.
pub fn idx2crd(index: i64, layout: &Layout) -> Result<IntTuple> {
    let size = layout.size();
    if !(0..size).contains(&index) {
        return Err(Error::Index { index, size });
    }
    let mut rest = index;
    Ok(layout.project(&mut |leaf| {
        let coordinate = rest % leaf.size;
        rest /= leaf.size;
        coordinate
    }))
}
