//! What views do.

use super::{Axis, View, ViewOp};
use crate::layout::{Leaf, Stride, coalesce, composition, crd2idx, divide_dim, right_inverse};
use crate::{Cond, Error, Expr, IntTuple, Layout, Relation, Result, Tiler, convert::from};

impl View {
    /// The view of a whole buffer whose axes are the leaves of `dims`, whose strides are numbers.
    pub fn buffer(dims: &[Layout<Expr>]) -> View {
        let level = dims.to_vec();
        View::levels_of(&if level.is_empty() { vec![] } else { vec![level] })
    }

    /// The view of a buffer of several levels, outermost first.
    pub fn levels_of(levels: &[Vec<Layout<Expr>>]) -> View {
        let levels = Layout::join(levels.iter().cloned().map(Layout::join).collect());
        let axis = |leaf: &Leaf<Expr>| Axis {
            size: leaf.size.clone(),
            stride: leaf.stride.number().unwrap_or_default(),
        };
        let axes: Vec<Axis> = levels.leaves().into_iter().map(axis).collect();
        let mut number = 0;
        let levels = levels.each(&mut |leaf| {
            number += 1;
            Leaf { size: leaf.size.clone(), stride: Stride::along(number - 1, Expr::from(1)) }
        });
        View { axes: axes.into(), start: Stride::zero(), levels }
    }

    /// The buffer's axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The coordinates along the axes of the view's first element.
    pub fn start(&self) -> Vec<Expr> {
        let mut start = vec![Expr::from(0); self.axes.len()];
        for (axis, at) in self.start.steps() {
            start[axis] = at.clone();
        }
        start
    }

    /// The levels, outermost first, with a mode for each dimension; none for a scalar.
    pub fn levels(&self) -> &[Layout<Expr>] {
        self.levels.modes()
    }

    /// All dimensions, outermost level first.
    pub fn dims(&self) -> impl Iterator<Item = &Layout<Expr>> {
        self.levels().iter().flat_map(Layout::modes)
    }

    /// All leaves: outermost level first, dimension by dimension.
    pub fn leaves(&self) -> Vec<&Leaf<Expr>> {
        self.levels.leaves()
    }

    /// The distance between neighbours of a leaf, in elements.
    pub fn stride(&self, leaf: &Leaf<Expr>) -> Expr {
        self.distance(&leaf.stride)
    }

    /// The distance of the first element from the buffer's, in elements.
    pub fn offset(&self) -> Expr {
        self.distance(&self.start)
    }

    fn distance(&self, steps: &Stride<Expr>) -> Expr {
        steps.steps().map(|(axis, by)| by.clone() * &self.axes[axis].stride).sum()
    }

    /// The levels with strides in elements: what the text form says of a view.
    pub fn strided(&self) -> Layout<Expr> {
        self.levels.each(&mut |leaf| Leaf {
            size: leaf.size.clone(),
            stride: Stride::from(self.stride(leaf)),
        })
    }

    /// The strided levels, if all is constant.
    fn constant(&self) -> Option<Layout> {
        self.strided().map(&mut |leaf| {
            Some(Leaf {
                size: leaf.size.constant()?,
                stride: leaf.stride.number()?.constant()?.into(),
            })
        })
    }

    /// The distances of all elements from the first, if they are constant.
    pub fn offsets(&self) -> Option<Vec<i64>> {
        let layout = self.constant()?;
        (0..layout.size()).map(|index| layout.at(&index).ok()?.number()).collect()
    }

    /// The number of elements, if they lie without gaps and their places are constant.
    pub fn extent(&self) -> Option<i64> {
        let layout = self.constant()?;
        let size = layout.size();
        (right_inverse(&layout).ok()?.size() == size).then_some(size)
    }

    /// The number of elements.
    pub fn size(&self) -> Expr {
        self.levels.size()
    }

    /// One more than the buffer's largest offset, if it is known.
    pub fn cosize(&self) -> Option<i64> {
        self.axes.iter().try_fold(1_i64, |sum, axis| {
            let reach = (axis.size.constant()? - 1).checked_mul(axis.stride.constant()?)?;
            sum.checked_add(reach)
        })
    }

    /// When all that the view reaches lies within the buffer (section 3.4), without the conditions that always hold.
    pub fn inside(&self) -> Vec<Cond> {
        let start = self.start();
        let mut last = start.clone();
        for leaf in self.leaves() {
            for (axis, step) in leaf.stride.steps() {
                last[axis] = last[axis].clone() + (leaf.size.clone() - 1) * step;
            }
        }
        let first = start.iter().filter(|first| first.range().0 < Some(0));
        let first = first.map(|first| Cond::new(first, Relation::AtLeast, 0));
        let last = last.into_iter().zip(self.axes.iter());
        let last = last.filter(|(last, axis)| !axis.size.exceeds(last));
        first.chain(last.map(|(last, axis)| Cond::less(last, &axis.size))).collect()
    }

    /// The view that an operation gives. Fails with [`Error::Shape`] where it does not fit, or as the layouts' algebra does.
    pub fn apply(&self, op: &ViewOp) -> Result<View> {
        match op {
            ViewOp::Tile(tiles) => self.tile(tiles),
            ViewOp::Index(coords) => self.index(coords),
            ViewOp::Reshape(depth, dims) => self.reshape(*depth, dims),
            ViewOp::Scalar => Ok(self.of(Vec::new())),
            ViewOp::Peer(_) => Err(Error::Shape("threads have no peers".to_owned())),
        }
    }

    /// Other levels over the same buffer, from the same start.
    fn of(&self, levels: Vec<Layout<Expr>>) -> View {
        View { levels: Layout::join(levels), ..self.clone() }
    }

    fn tile(&self, tiles: &[Tiler]) -> Result<View> {
        let level = self.outermost(tiles.len())?;
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for (dim, tile) in level.modes().iter().zip(tiles) {
            if let Tiler::Layout(tile) = tile {
                check_counts(tile)?;
            }
            let [own, rest] = divide_dim(dim, tile)?;
            outer.push(rest);
            inner.push(own);
        }
        let tiled = [Layout::join(outer), Layout::join(inner)];
        Ok(self.of(tiled.into_iter().chain(self.levels()[1..].iter().cloned()).collect()))
    }

    fn index(&self, coords: &[IntTuple<Expr>]) -> Result<View> {
        let level = self.outermost(coords.len())?;
        let steps = crd2idx(&IntTuple::Tuple(coords.to_vec()), level)?;
        let view = self.of(self.levels()[1..].to_vec());
        Ok(View { start: self.start.plus(&steps)?, ..view })
    }

    fn reshape(&self, depth: usize, dims: &[Layout]) -> Result<View> {
        let none = || Error::Shape(format!("there is no level {depth}"));
        let level = self.levels().get(depth).ok_or_else(none)?;
        dims.iter().try_for_each(check_counts)?;
        let dims = Layout::tuple(dims.to_vec())?;
        let size = level.size();
        // A layout that counts every element once has an inverse of its own size.
        if right_inverse(&dims)?.size() != dims.size() || !size.is(dims.size()) {
            let message = format!("the new modes do not count {size} elements once each");
            return Err(Error::Shape(message));
        }
        let reshaped = composition(level, &dims.lift())?;
        let mut levels = self.levels().to_vec();
        levels[depth] = Layout::join(reshaped.modes().iter().map(coalesce).collect::<Result<_>>()?);
        Ok(self.of(levels))
    }

    fn outermost(&self, wanted: usize) -> Result<&Layout<Expr>> {
        match self.levels().first() {
            Some(level) if level.rank() == wanted && wanted > 0 => Ok(level),
            level => {
                let rank = level.map_or(0, Layout::rank);
                Err(Error::Shape(format!("{wanted} coordinates or tiles for {rank} dimensions")))
            }
        }
    }
}

/// A dimension's modes, by which elements are counted, each by a step of its own.
fn check_counts(modes: &Layout) -> Result {
    let leaves = modes.leaves();
    let still = |leaf: &Leaf| leaf.size < 1 || leaf.stride.number().is_none_or(|stride| stride < 1);
    match leaves.iter().find(|leaf| still(leaf)) {
        Some(leaf) => Err(Error::Shape(format!("no mode is {}:{}", leaf.size, leaf.stride))),
        None if leaves.is_empty() => Err(Error::Shape("a dimension without modes".to_owned())),
        None => Ok(()),
    }
}

from! {
    Vec<Layout<Expr>> => View: |dims| View::buffer(&dims);
    {const N: usize} [Layout<Expr>; N] => View: |dims| View::buffer(&dims);
    // Levels, outermost first.
    {const N: usize} [Vec<Layout<Expr>>; N] => View: |levels| View::levels_of(&levels);
}
