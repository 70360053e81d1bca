//! Layouts: functions from coordinates to offsets, and CuTe's algebra on them.
//!
//! A layout is a tree whose leaves are modes `size:stride`, so that a shape and its strides cannot
//! disagree. Coordinates count colexicographically: the first mode runs fastest. As a function on
//! integers a layout `L` is `L(i)`, `i` in `[0,size)`; past its size it continues along its last
//! leaf, and `L(-i) = -L(i)`, as CuTe evaluates it.
//!
//! The functions have CuTe's names and, where CuTe documents a result, its form. They differ in
//! one thing: where CuTe's conditions are unchecked and its answer would be wrong, here is an
//! error that says why. In reading order:
//!
//! - this file: [`Layout`], [`IntTuple`], sizes, evaluation, [`crd2idx`] and [`idx2crd`];
//! - `text`: the notation `((2,2),3):((24,2),8)`;
//! - `coalesce`: [`coalesce`] and [`flatten`];
//! - `compose`: [`composition`], and [`Tiler`]s for composition by mode;
//! - `complement`: [`complement`], [`left_inverse`], [`right_inverse`];
//! - `tile`: divisions and products; [`tile_to_shape`];
//! - `swizzle`: [`Swizzle`] and [`Composed`], which is `S<3,4,3> o 0 o (5,4):(4,1)`;
//! - [`expr`]: expressions over all of these.

mod coalesce;
mod complement;
mod compose;
pub mod expr;
mod swizzle;
mod text;
mod tile;

pub use coalesce::{coalesce, coalesce_by, flatten};
pub use complement::{complement, left_inverse, right_inverse};
pub use compose::{Tiler, composition, composition_by};
pub use swizzle::{Composed, Swizzle};
pub use tile::{
    blocked_product, flat_divide, flat_product, logical_divide, logical_product, raked_product,
    tile_to_shape, tiled_divide, tiled_product, zipped_divide, zipped_product,
};

use crate::error::{Error, Result};

/// The deepest nesting of a layout, so that recursion over one is bounded.
pub const MAX_DEPTH: usize = 64;

/// A layout. Its size and all of its offsets fit in an `i64`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Node {
    Leaf { size: i64, stride: i64 },
    Tuple(Vec<Layout>),
}

/// A tree of integers: a shape, a stride or a coordinate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IntTuple {
    /// One integer.
    Int(i64),
    /// A tuple of trees.
    Tuple(Vec<IntTuple>),
}

impl Layout {
    /// The mode `size:stride`. Fails if `size < 1`, or if an offset overflows.
    pub fn mode(size: i64, stride: i64) -> Result<Layout> {
        if size < 1 {
            return Err(Error::Size(size));
        }
        Layout { node: Node::Leaf { size, stride } }.checked()
    }

    /// The trivial layout `1:0`.
    pub fn unit() -> Layout {
        Layout { node: Node::Leaf { size: 1, stride: 0 } }
    }

    /// The concatenation of `modes`. Fails if there are none, or they nest too deeply, or a size
    /// or offset of the whole overflows.
    pub fn tuple(modes: Vec<Layout>) -> Result<Layout> {
        if modes.is_empty() {
            return Err(Error::Empty);
        }
        if modes.iter().any(|mode| mode.depth() >= MAX_DEPTH) {
            return Err(Error::Depth);
        }
        Layout { node: Node::Tuple(modes) }.checked()
    }

    /// Layout of flat modes `(size, stride)`: `1:0` for none, a leaf for one, else a tuple.
    pub(crate) fn flat(modes: &[(i64, i64)]) -> Result<Layout> {
        match modes {
            [] => Ok(Layout::unit()),
            [(size, stride)] => Layout::mode(*size, *stride),
            _ => Layout::tuple(
                modes
                    .iter()
                    .map(|&(size, stride)| Layout::mode(size, stride))
                    .collect::<Result<_>>()?,
            ),
        }
    }

    /// The layout with this shape and these strides, which must have the same profile.
    pub fn new(shape: &IntTuple, stride: &IntTuple) -> Result<Layout> {
        shape.check_depth()?;
        stride.check_depth()?;
        zip_shape(shape, stride)
            .ok_or_else(|| Error::Profile { left: shape.to_string(), right: stride.to_string() })?
    }

    /// The compact layout of `shape` whose first mode is contiguous.
    pub fn column_major(shape: &IntTuple) -> Result<Layout> {
        shape.check_depth()?;
        let mut extent = 1;
        compact(shape, &mut extent)
    }

    fn checked(self) -> Result<Layout> {
        let mut size: i64 = 1;
        let mut extent: i64 = 0;
        for (leaf_size, stride) in self.leaves() {
            size = size.checked_mul(leaf_size).ok_or(Error::Overflow)?;
            let reach = (leaf_size - 1)
                .checked_mul(stride)
                .and_then(i64::checked_abs)
                .ok_or(Error::Overflow)?;
            extent = extent.checked_add(reach).ok_or(Error::Overflow)?;
        }
        extent.checked_add(1).ok_or(Error::Overflow)?;
        Ok(self)
    }

    /// The number of coordinates.
    pub fn size(&self) -> i64 {
        self.leaves().iter().map(|leaf| leaf.0).product()
    }

    /// One more than the largest distance between two offsets; for strides that are not negative,
    /// one more than the largest offset.
    pub fn cosize(&self) -> i64 {
        1 + self.leaves().iter().map(|leaf| ((leaf.0 - 1) * leaf.1).abs()).sum::<i64>()
    }

    /// The number of top-level modes.
    pub fn rank(&self) -> usize {
        match &self.node {
            Node::Leaf { .. } => 1,
            Node::Tuple(modes) => modes.len(),
        }
    }

    /// The depth of nesting: 0 for a leaf.
    pub fn depth(&self) -> usize {
        match &self.node {
            Node::Leaf { .. } => 0,
            Node::Tuple(modes) => 1 + modes.iter().map(Layout::depth).max().unwrap_or(0),
        }
    }

    /// The top-level modes; a leaf is its own only mode.
    pub fn modes(&self) -> &[Layout] {
        match &self.node {
            Node::Leaf { .. } => std::slice::from_ref(self),
            Node::Tuple(modes) => modes,
        }
    }

    /// Whether this is a single `size:stride`.
    pub fn is_leaf(&self) -> bool {
        matches!(self.node, Node::Leaf { .. })
    }

    /// The leaves `(size, stride)`, fastest first.
    pub fn leaves(&self) -> Vec<(i64, i64)> {
        fn collect(layout: &Layout, leaves: &mut Vec<(i64, i64)>) {
            match &layout.node {
                Node::Leaf { size, stride } => leaves.push((*size, *stride)),
                Node::Tuple(modes) => modes.iter().for_each(|mode| collect(mode, leaves)),
            }
        }
        let mut leaves = Vec::new();
        collect(self, &mut leaves);
        leaves
    }

    /// The tree of sizes.
    pub fn shape(&self) -> IntTuple {
        self.project(|size, _| size)
    }

    /// The tree of strides.
    pub fn stride(&self) -> IntTuple {
        self.project(|_, stride| stride)
    }

    fn project(&self, pick: fn(i64, i64) -> i64) -> IntTuple {
        match &self.node {
            Node::Leaf { size, stride } => IntTuple::Int(pick(*size, *stride)),
            Node::Tuple(modes) => {
                IntTuple::Tuple(modes.iter().map(|mode| mode.project(pick)).collect())
            }
        }
    }

    /// The offset of the `index`-th coordinate. Past the size it continues along the last leaf,
    /// and `at(-i) = -at(i)`. Fails only on overflow, which no index within the size causes.
    pub fn at(&self, index: i64) -> Result<i64> {
        let leaves = self.leaves();
        let mut rest = i128::from(index);
        let mut offset: i128 = 0;
        for (i, &(size, stride)) in leaves.iter().enumerate() {
            let coordinate = if i + 1 == leaves.len() { rest } else { rest % i128::from(size) };
            rest /= i128::from(size);
            offset += coordinate * i128::from(stride);
        }
        i64::try_from(offset).map_err(|_| Error::Overflow)
    }
}

fn zip_shape(shape: &IntTuple, stride: &IntTuple) -> Option<Result<Layout>> {
    match (shape, stride) {
        (IntTuple::Int(size), IntTuple::Int(stride)) => Some(Layout::mode(*size, *stride)),
        (IntTuple::Tuple(sizes), IntTuple::Tuple(strides)) if sizes.len() == strides.len() => {
            let modes: Option<Result<Vec<_>>> =
                sizes.iter().zip(strides).map(|(size, stride)| zip_shape(size, stride)).collect();
            Some(modes?.and_then(Layout::tuple))
        }
        (IntTuple::Int(_), IntTuple::Tuple(_)) | (IntTuple::Tuple(_), _) => None,
    }
}

fn compact(shape: &IntTuple, extent: &mut i64) -> Result<Layout> {
    match shape {
        IntTuple::Int(size) => {
            let mode = Layout::mode(*size, *extent)?;
            *extent = extent.checked_mul(*size).ok_or(Error::Overflow)?;
            Ok(mode)
        }
        IntTuple::Tuple(sizes) => {
            Layout::tuple(sizes.iter().map(|size| compact(size, extent)).collect::<Result<_>>()?)
        }
    }
}

impl IntTuple {
    /// The product of all integers in the tree; fails on overflow.
    pub fn product(&self) -> Result<i64> {
        match self {
            IntTuple::Int(value) => Ok(*value),
            IntTuple::Tuple(parts) => parts.iter().try_fold(1_i64, |product, part| {
                product.checked_mul(part.product()?).ok_or(Error::Overflow)
            }),
        }
    }

    /// The top-level elements; an integer is its own only element.
    pub fn elements(&self) -> &[IntTuple] {
        match self {
            IntTuple::Int(_) => std::slice::from_ref(self),
            IntTuple::Tuple(parts) => parts,
        }
    }

    fn check_depth(&self) -> Result<()> {
        fn within(tree: &IntTuple, budget: usize) -> bool {
            match tree {
                IntTuple::Int(_) => true,
                IntTuple::Tuple(parts) => {
                    budget > 0 && parts.iter().all(|part| within(part, budget - 1))
                }
            }
        }
        if within(self, MAX_DEPTH) { Ok(()) } else { Err(Error::Depth) }
    }
}

/// The offset of a coordinate, which has the profile of `layout`, or an integer wherever the
/// layout has a tuple. Coordinates past a mode's size continue along its last leaf.
pub fn crd2idx(coord: &IntTuple, layout: &Layout) -> Result<i64> {
    match (coord, &layout.node) {
        (IntTuple::Int(index), _) => layout.at(*index),
        (IntTuple::Tuple(coords), Node::Tuple(modes)) if coords.len() == modes.len() => {
            coords.iter().zip(modes).try_fold(0_i64, |offset, (coord, mode)| {
                offset.checked_add(crd2idx(coord, mode)?).ok_or(Error::Overflow)
            })
        }
        (IntTuple::Tuple(_), _) => {
            Err(Error::Profile { left: coord.to_string(), right: layout.shape().to_string() })
        }
    }
}

/// The coordinate, with the profile of `layout`, of an index within its size.
pub fn idx2crd(index: i64, layout: &Layout) -> Result<IntTuple> {
    fn walk(layout: &Layout, rest: &mut i64) -> IntTuple {
        match &layout.node {
            Node::Leaf { size, .. } => {
                let coordinate = *rest % size;
                *rest /= size;
                IntTuple::Int(coordinate)
            }
            Node::Tuple(modes) => {
                IntTuple::Tuple(modes.iter().map(|mode| walk(mode, rest)).collect())
            }
        }
    }
    let size = layout.size();
    if !(0..size).contains(&index) {
        return Err(Error::Index { index, size });
    }
    let mut rest = index;
    Ok(walk(layout, &mut rest))
}
