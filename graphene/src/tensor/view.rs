//! What views do.

use super::compose::{complement, compose};
use super::{Axis, Coord, Dim, Leaf, Tile, View, ViewOp};
use crate::error::{Error, Result};
use crate::index::{Cond, Expr, Relation};

impl View {
    /// The view of a whole buffer whose axes are the leaves of `dims`, given as trees of sizes and
    /// strides.
    pub fn buffer(dims: &[Shape]) -> View {
        fn dim(shape: &Shape, axes: &mut Vec<Axis>) -> Dim {
            match shape {
                Shape::Leaf(size, stride) => {
                    let steps = vec![(axes.len(), Expr::from(1))];
                    axes.push(Axis { size: size.clone(), stride: stride.clone() });
                    Dim::Leaf(Leaf { size: size.clone(), steps })
                }
                Shape::Tuple(shapes) => {
                    Dim::Tuple(shapes.iter().map(|shape| dim(shape, axes)).collect())
                }
            }
        }
        let mut axes = Vec::new();
        let level: Vec<Dim> = dims.iter().map(|shape| dim(shape, &mut axes)).collect();
        let start = vec![Expr::from(0); axes.len()];
        View {
            axes: axes.into(),
            start,
            levels: if level.is_empty() { vec![] } else { vec![level] },
        }
    }

    /// The view of a buffer of several levels, outermost first.
    pub fn levels_of(levels: &[Vec<Shape>]) -> View {
        let mut view = View::buffer(&levels.concat());
        let mut dims = view.levels.concat().into_iter();
        view.levels =
            levels.iter().map(|level| dims.by_ref().take(level.len()).collect()).collect();
        view
    }

    /// The buffer's axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The coordinates along the axes of the view's first element.
    pub fn start(&self) -> &[Expr] {
        &self.start
    }

    /// The levels, outermost first; none for a scalar.
    pub fn levels(&self) -> &[Vec<Dim>] {
        &self.levels
    }

    /// All leaves: outermost level first, dimension by dimension.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.levels.iter().flatten().flat_map(Dim::leaves)
    }

    /// The distance between neighbours of a leaf, in elements.
    pub fn stride(&self, leaf: &Leaf) -> Expr {
        leaf.steps
            .iter()
            .fold(Expr::from(0), |sum, (axis, step)| sum + step.clone() * &self.axes[*axis].stride)
    }

    /// The distance of the first element from the buffer's, in elements.
    pub fn offset(&self) -> Expr {
        self.start
            .iter()
            .zip(self.axes.iter())
            .fold(Expr::from(0), |sum, (start, axis)| sum + start.clone() * &axis.stride)
    }

    /// The sizes and strides of every level: what the text form says of a view.
    pub fn shapes(&self) -> Vec<Vec<Shape>> {
        let level = |dims: &Vec<Dim>| dims.iter().map(|dim| self.shape(dim)).collect();
        self.levels.iter().map(level).collect()
    }

    fn shape(&self, dim: &Dim) -> Shape {
        match dim {
            Dim::Leaf(leaf) => Shape::Leaf(leaf.size.clone(), self.stride(leaf)),
            Dim::Tuple(dims) => Shape::Tuple(dims.iter().map(|dim| self.shape(dim)).collect()),
        }
    }

    /// The number of elements.
    pub fn size(&self) -> Expr {
        self.leaves().fold(Expr::from(1), |size, leaf| size * &leaf.size)
    }

    /// One more than the buffer's largest offset, if it is known.
    pub fn cosize(&self) -> Option<i64> {
        self.axes.iter().try_fold(1_i64, |sum, axis| {
            let reach = (axis.size.constant()? - 1).checked_mul(axis.stride.constant()?)?;
            sum.checked_add(reach)
        })
    }

    /// The conditions under which all that the view reaches lies within the buffer; those that
    /// always hold are left out (section 3.4).
    pub fn inside(&self) -> Vec<Cond> {
        let mut last = self.start.clone();
        for leaf in self.leaves() {
            for (axis, step) in &leaf.steps {
                last[*axis] = last[*axis].clone() + (leaf.size.clone() - 1) * step;
            }
        }
        let zero = Expr::from(0);
        let first = self.start.iter().filter(|first| !first.reaches(&zero));
        let first = first.map(|first| Cond::new(first, Relation::AtLeast, 0));
        let last = last.into_iter().zip(self.axes.iter());
        let last = last.filter(|(last, axis)| !axis.size.exceeds(last));
        first.chain(last.map(|(last, axis)| Cond::less(last, &axis.size))).collect()
    }

    /// The view that an operation gives.
    ///
    /// # Errors
    /// [`Error::Shape`] where it does not fit.
    pub fn apply(&self, op: &ViewOp) -> Result<View> {
        match op {
            ViewOp::Tile(tiles) => self.tile(tiles),
            ViewOp::Index(coords) => self.index(coords),
            ViewOp::Reshape(depth, dims) => self.reshape(*depth, dims),
            ViewOp::Scalar => Ok(View { levels: Vec::new(), ..self.clone() }),
            ViewOp::Peer(_) => Err(Error::Shape("threads have no peers".to_owned())),
        }
    }

    fn tile(&self, tiles: &[Tile]) -> Result<View> {
        let level = self.outermost(tiles.len())?;
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for (dim, tile) in level.iter().zip(tiles) {
            match tile {
                Tile::Whole => {
                    outer.push(Dim::of(Vec::new()));
                    inner.push(dim.clone());
                }
                Tile::Modes(modes) => {
                    check_modes(modes)?;
                    let rest = complement(modes, &dim.size())?;
                    outer.push(Dim::of_tiles(take(&dim.leaves(), &rest)?));
                    let modes: Vec<_> =
                        modes.iter().map(|&(size, stride)| (Expr::from(size), stride)).collect();
                    inner.push(Dim::of(take(&dim.leaves(), &modes)?));
                }
            }
        }
        let mut levels = vec![outer, inner];
        levels.extend_from_slice(&self.levels[1..]);
        Ok(View { levels, ..self.clone() })
    }

    fn index(&self, coords: &[Coord]) -> Result<View> {
        let level = self.outermost(coords.len())?;
        let mut start = self.start.clone();
        for (dim, coord) in level.iter().zip(coords) {
            advance(&mut start, dim, coord)?;
        }
        Ok(View { axes: self.axes.clone(), start, levels: self.levels[1..].to_vec() })
    }

    fn reshape(&self, depth: usize, dims: &[Vec<(i64, i64)>]) -> Result<View> {
        let Some(level) = self.levels.get(depth) else {
            return Err(Error::Shape(format!("there is no level {depth}")));
        };
        dims.iter().try_for_each(|modes| check_modes(modes))?;
        let leaves: Vec<&Leaf> = level.iter().flat_map(Dim::leaves).collect();
        let size = leaves.iter().fold(Expr::from(1), |size, leaf| size * &leaf.size);
        if !counted_once(&dims.concat()).is_some_and(|new| size.is(new)) {
            let message = format!("the new modes do not count {size} elements once each");
            return Err(Error::Shape(message));
        }
        let mut levels = self.levels.clone();
        levels[depth] = dims
            .iter()
            .map(|modes| {
                let modes: Vec<_> =
                    modes.iter().map(|&(size, stride)| (Expr::from(size), stride)).collect();
                Ok(Dim::of(take(&leaves, &modes)?))
            })
            .collect::<Result<_>>()?;
        Ok(View { levels, ..self.clone() })
    }

    fn outermost(&self, wanted: usize) -> Result<&[Dim]> {
        let level = self.levels.first().map_or(&[][..], |level| level.as_slice());
        if level.len() == wanted && wanted > 0 {
            return Ok(level);
        }
        let rank = level.len();
        Err(Error::Shape(format!("{wanted} coordinates or tiles for {rank} dimensions")))
    }
}

/// A tree of sizes and strides: how a buffer is declared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A size and its stride.
    Leaf(Expr, Expr),
    /// A hierarchical dimension.
    Tuple(Vec<Shape>),
}

impl Shape {
    /// A size and its stride.
    pub fn of(size: impl Into<Expr>, stride: impl Into<Expr>) -> Shape {
        Shape::Leaf(size.into(), stride.into())
    }

    /// Dimensions that lie close together, the last one fastest.
    pub fn rows<E: Into<Expr>>(sizes: impl IntoIterator<Item = E>) -> Vec<Shape> {
        let sizes: Vec<Expr> = sizes.into_iter().map(E::into).collect();
        let mut shapes: Vec<Shape> = packed(sizes.into_iter().rev());
        shapes.reverse();
        shapes
    }

    /// Dimensions that lie close together, the first one fastest.
    pub fn columns<E: Into<Expr>>(sizes: impl IntoIterator<Item = E>) -> Vec<Shape> {
        packed(sizes.into_iter().map(E::into))
    }
}

fn packed(sizes: impl Iterator<Item = Expr>) -> Vec<Shape> {
    let mut stride = Expr::from(1);
    sizes
        .map(|size| {
            let next = stride.clone() * &size;
            Shape::Leaf(size, std::mem::replace(&mut stride, next))
        })
        .collect()
}

impl From<Vec<Shape>> for View {
    fn from(dims: Vec<Shape>) -> View {
        View::buffer(&dims)
    }
}

impl<const N: usize> From<[Shape; N]> for View {
    fn from(dims: [Shape; N]) -> View {
        View::buffer(&dims)
    }
}

/// Levels, outermost first.
impl<const N: usize> From<[Vec<Shape>; N]> for View {
    fn from(levels: [Vec<Shape>; N]) -> View {
        View::levels_of(&levels)
    }
}

fn check_modes(modes: &[(i64, i64)]) -> Result<()> {
    match modes.iter().find(|(size, stride)| *size < 1 || *stride < 1) {
        Some((size, stride)) => Err(Error::Shape(format!("no mode is {size}:{stride}"))),
        None if modes.is_empty() => Err(Error::Shape("a dimension without modes".to_owned())),
        None => Ok(()),
    }
}

/// The number of elements that modes count from 0 on, if they reach each once.
fn counted_once(modes: &[(i64, i64)]) -> Option<i64> {
    let mut modes: Vec<_> = modes.iter().filter(|mode| mode.0 > 1).collect();
    modes.sort_by_key(|mode| mode.1);
    modes.into_iter().try_fold(1_i64, |extent, (size, stride)| {
        if *stride == extent { extent.checked_mul(*size) } else { None }
    })
}

/// The leaves of the dimension that `modes` take from these.
fn take(leaves: &[&Leaf], modes: &[(Expr, i64)]) -> Result<Vec<Leaf>> {
    let parts: Result<Vec<_>> =
        modes.iter().map(|(size, stride)| compose(leaves, size, *stride)).collect();
    Ok(parts?.concat())
}

fn advance(start: &mut [Expr], dim: &Dim, coord: &Coord) -> Result<()> {
    match (dim, coord) {
        (Dim::Leaf(leaf), Coord::At(at)) => {
            for (axis, step) in &leaf.steps {
                start[*axis] = start[*axis].clone() + step.clone() * at;
            }
            Ok(())
        }
        (Dim::Tuple(dims), Coord::At(at)) => {
            let mut rest = at.clone();
            for (i, dim) in dims.iter().enumerate() {
                let size = dim.size();
                let last = i + 1 == dims.len();
                let own = if last { rest.clone() } else { rest.rem(&size) };
                advance(start, dim, &Coord::At(own))?;
                rest = rest.div(&size);
            }
            Ok(())
        }
        (Dim::Tuple(dims), Coord::Tuple(coords)) if dims.len() == coords.len() => {
            dims.iter().zip(coords).try_for_each(|(dim, coord)| advance(start, dim, coord))
        }
        (Dim::Leaf(_) | Dim::Tuple(_), Coord::Tuple(coords)) => Err(Error::Shape(format!(
            "a coordinate of {} parts for another dimension",
            coords.len()
        ))),
    }
}
