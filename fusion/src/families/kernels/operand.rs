//! How operands lie along a kernel's axes.

use super::{Dims, Refusal, ensure};
use crate::base::sizes::is_multiple;
use crate::base::view::{Mode, View, stride};
use crate::families::grids::halved;
use graphene_frontend::dim::Dim;
use graphene_ir::template::access::{Access, Stride};
use graphene_ir::tensor::Scalar;

/// Axes that several operands share, outermost first.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Axes {
    pub(super) sizes: Vec<Dim>,
    /// For each operand its stride along each axis, in elements.
    pub(super) strides: Vec<Vec<Dim>>,
}

impl Axes {
    /// The axes of some views, the first of which has the shape that the others broadcast to. Axes are in the order in
    /// which the first view lies in memory; those that all views go through as if they were one are one.
    ///
    /// # Errors
    /// [`Refusal::Layout`] if whether an axis repeats depends on a symbol, or one is gone through backwards.
    pub(super) fn of(views: &[&View]) -> Result<Self, Refusal> {
        let shape = views[0].shape();
        let order = views[0].memory_order().unwrap_or_else(|| (0..shape.len()).collect());
        let modes = views.iter().map(|view| Ok(spread(view, &shape)?.transpose(&order).modes));
        Ok(Self::merged(&modes.collect::<Result<Vec<_>, Refusal>>()?))
    }

    /// Those of operands of one shape, without axes of size 1, and with those merged that lie one within the other everywhere.
    pub(super) fn merged(modes: &[Vec<Mode>]) -> Self {
        let mut merged = Self { sizes: Vec::new(), strides: vec![Vec::new(); modes.len()] };
        let sizes = modes[0].iter().map(|mode| &mode.size);
        for (axis, size) in sizes.enumerate().filter(|(_, size)| **size != 1) {
            let strides: Vec<&Dim> = modes.iter().map(|modes| &modes[axis].stride).collect();
            let mut outer = merged.strides.iter().zip(&strides);
            let within = outer.all(|(own, stride)| own.last() == Some(&(*stride * size)));
            match merged.sizes.last_mut().filter(|_| within) {
                Some(last) => *last = &*last * size,
                None => merged.sizes.push(size.clone()),
            }
            let last = merged.sizes.len() - 1;
            for (own, stride) in merged.strides.iter_mut().zip(strides) {
                own.truncate(last);
                own.push(stride.clone());
            }
        }
        if merged.sizes.is_empty() {
            merged.sizes.push(Dim::from(1));
            merged.strides.iter_mut().for_each(|strides| strides.push(Dim::from(1)));
        }
        merged
    }

    /// These axes, in this order.
    pub(super) fn along(&self, axes: &[usize]) -> Self {
        let pick = |of: &Vec<Dim>| axes.iter().map(|&axis| of[axis].clone()).collect();
        Self { sizes: pick(&self.sizes), strides: self.strides.iter().map(pick).collect() }
    }

    /// The axes of one, and within them those of another one.
    pub(super) fn and(&self, inner: &Self) -> Self {
        let strides = self.strides.iter().zip(&inner.strides);
        let strides = strides.map(|(own, inner)| [&own[..], inner].concat());
        Self { sizes: [&self.sizes[..], &inner.sizes].concat(), strides: strides.collect() }
    }

    /// The sizes, by the names of a template's symbols.
    pub(super) fn named(&self, name: &str) -> impl Iterator<Item = (String, Dim)> {
        let sizes = self.sizes.iter().enumerate();
        sizes.map(move |(axis, size)| (format!("{name}{axis}"), size.clone()))
    }

    /// How a template is told that an operand lies so; what it does not know at compile time are dims by its symbols'
    /// names.
    pub(super) fn access(
        &self,
        operand: usize,
        name: &str,
        scalar: Scalar,
        dims: &mut Dims,
    ) -> Access {
        let mut packed = Dim::from(1);
        let mut strides = Vec::with_capacity(self.sizes.len());
        for (axis, size) in self.sizes.iter().enumerate().rev() {
            let stride = &self.strides[operand][axis];
            strides.push(if *stride == 0 {
                Stride::Broadcast
            } else if *stride == packed || *size == 1 {
                packed = &packed * size;
                Stride::Packed
            } else {
                dims.insert(format!("{name}_stride{axis}"), stride.clone());
                packed = &packed * size;
                Stride::Symbol
            });
        }
        strides.reverse();
        Access { scalar, strides }
    }

    /// The most elements, up to `most`, of which every row along the last axis is a whole number, and at a multiple of
    /// which every row of every operand begins that goes through that axis element by element.
    pub(super) fn vector(&self, offsets: &[&Dim], most: i64) -> i64 {
        let last = self.sizes.len() - 1;
        let fits = |vector: i64| {
            let whole = |dim: &Dim| is_multiple(dim, vector);
            // An axis of one element is not stepped along.
            let begins = |strides: &[Dim]| {
                let mut outer = strides.iter().zip(&self.sizes[..last]);
                outer.all(|(stride, size)| *size == 1 || whole(stride))
            };
            whole(&self.sizes[last])
                && self.strides.iter().zip(offsets).all(|(strides, offset)| {
                    strides[last] != 1 || (whole(offset) && begins(strides))
                })
        };
        halved(most, fits)
    }
}

/// Checks that no axis is gone through backwards: the symbols of strides are not negative.
///
/// # Errors
/// [`Refusal::Layout`] if one is.
pub(super) fn forward(modes: &[Mode]) -> Result<(), Refusal> {
    let backwards = |mode: &Mode| {
        mode.size != 1 && mode.stride != 0 && mode.stride.upper_bound().is_some_and(|s| s <= 0)
    };
    ensure(!modes.iter().any(backwards), Refusal::Layout("elements from the last to the first"))
}

/// A view that broadcasts to a shape.
///
/// # Errors
/// [`Refusal::Layout`] if whether an axis repeats depends on a symbol, or one is gone through backwards.
pub(super) fn spread(view: &View, shape: &[Dim]) -> Result<View, Refusal> {
    let view = view.expand(shape);
    let view = view.ok_or(Refusal::Layout("whether a dim repeats depends on a symbol"))?;
    forward(&view.modes).map(|()| view)
}

/// An operand as a matrix: all axes before one as its rows, the others as its columns.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Matrix {
    /// Elements before the first.
    pub(super) offset: Dim,
    /// From row to row.
    pub(super) row: Dim,
    /// From column to column.
    pub(super) column: Dim,
    rows: Dim,
    columns: Dim,
    /// After how many rows it begins anew, if it does.
    pub(super) period: Option<Dim>,
}

impl Matrix {
    /// A view that broadcasts to a shape, whose columns begin at `axis`.
    ///
    /// # Errors
    /// [`Refusal::Layout`] if the rows or the columns do not go on evenly, or go backwards.
    pub(super) fn of(view: &View, shape: &[Dim], axis: usize) -> Result<Self, Refusal> {
        let view = spread(view, shape)?;
        let (rows, columns) = view.modes.split_at(axis);
        let even =
            |modes| stride(modes).ok_or(Refusal::Layout("rows without one stride between them"));
        let size = |modes: &[Mode]| modes.iter().map(|mode| &mode.size).product::<Dim>();
        // Along outer axes that repeat, the same rows come again.
        let repeating = rows.iter().take_while(|mode| mode.stride == 0 || mode.size == 1).count();
        let (repeating, own) = rows.split_at(repeating);
        let repeats = repeating.iter().any(|mode| mode.size != 1) && !own.is_empty();
        Ok(Self {
            offset: view.offset.clone(),
            row: even(own)?,
            column: even(columns)?,
            rows: size(rows),
            columns: size(columns),
            period: repeats.then(|| size(own)),
        })
    }

    /// How a template is told.
    pub(super) fn access(&self, name: &str, scalar: Scalar, dims: &mut Dims) -> Access {
        let strides = vec![vec![self.row.clone(), self.column.clone()]];
        let axes = Axes { sizes: vec![self.rows.clone(), self.columns.clone()], strides };
        axes.access(0, name, scalar, dims)
    }

    /// Whether rows are whole numbers of so many elements and begin at multiples of them.
    pub(super) fn is_aligned(&self, elements: i64, columns: &Dim) -> bool {
        let whole = |dim: &Dim| is_multiple(dim, elements);
        whole(columns) && (self.column != 1 || (whole(&self.row) && whole(&self.offset)))
    }
}

#[cfg(test)]
mod tests;
