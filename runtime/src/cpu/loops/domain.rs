//! The index space of a loop, and how its inputs walk through it.

use crate::bind::BoundOperand;
use crate::cpu::kernels::view::{Axes, row_major};
use crate::error::{Error, Result};
use std::ops::Range;

/// The index space of a loop: dims in the order of the outputs' memory, neighbours merged where every
/// operand allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Domain {
    /// Elements in all.
    pub(crate) len: usize,
    sizes: Vec<usize>,
    /// For each input: its offset, and a stride for each dim.
    inputs: Vec<(usize, Vec<isize>)>,
}

/// A part of a domain: `rows` rows of `width` elements, `pitch` elements apart, from element `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tile {
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) pitch: usize,
}

/// The places of a tile's elements in an input through which the tile moves evenly.
#[derive(Clone, Copy)]
pub(super) struct Even {
    start: isize,
    row: isize,
    column: isize,
}

impl Even {
    /// The place of an element of the tile, and the stride of those after it in its row.
    pub(super) fn at(self, row: usize, column: usize) -> (usize, isize) {
        let place = self.start + row as isize * self.row + column as isize * self.column;
        (place as usize, self.column)
    }
}

/// How an input lies under a domain of rows of some columns, from a place on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lies {
    /// One element for all.
    Same(usize),
    /// One for each column.
    Columns(usize),
    /// One for each element, in the domain's order.
    Elements(usize),
}

/// A walk of one input through consecutive elements of the domain.
pub(crate) struct Walk<'a> {
    domain: &'a Domain,
    strides: &'a [isize],
    /// Index along each dim but the last.
    index: Axes<usize>,
    /// Index along the last dim.
    column: usize,
    /// Where the current row starts in the input.
    row: isize,
    left: usize,
}

impl Tile {
    /// Consecutive elements.
    pub(crate) fn range(elements: Range<usize>) -> Self {
        let width = elements.len();
        Self { first: elements.start, rows: 1, width, pitch: width }
    }

    /// The same elements as rows of this length, if they are such rows and these are not short.
    pub(super) fn by_rows(self, row: usize, short: usize) -> Self {
        let whole = row >= short && self.rows == 1;
        if whole && self.first.is_multiple_of(row) && self.width.is_multiple_of(row) {
            Self { rows: self.width / row, width: row, pitch: row, ..self }
        } else {
            self
        }
    }
}

impl Domain {
    /// The domain of a loop over a shape, its elements numbered with the axes in this order, the last
    /// one fastest. Inputs broadcast to the shape; those without an operand are given with each tile.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if an input does not broadcast to the shape.
    pub(crate) fn over(
        shape: &[usize],
        order: &[usize],
        inputs: &[Option<&BoundOperand>],
    ) -> Result<Self> {
        let sizes: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let mut walks = Vec::with_capacity(inputs.len());
        for input in inputs {
            walks.push(match input {
                Some(input) => {
                    let strides = broadcast_strides(input, shape)?;
                    (input.offset, order.iter().map(|&axis| strides[axis]).collect())
                }
                // These stand in no one's way when dims are merged.
                None => (0, row_major(&sizes).into_vec()),
            });
        }
        Ok(Self::merged(sizes.iter().product(), &sizes, walks))
    }

    /// The domain of a loop that writes `outputs` and reads `inputs`, which broadcast.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if an input does not broadcast to the outputs' shape or the outputs differ.
    pub(crate) fn new(outputs: &[BoundOperand], inputs: &[BoundOperand]) -> Result<Self> {
        let first = &outputs[0];
        let order = memory_order(first);
        for output in outputs {
            check("shape of a loop's output", &first.shape, &output.shape)?;
            if !is_dense(output, &order) {
                return Err(Error::Unsupported { what: "outputs of one loop in different orders" });
            }
        }
        let inputs: Vec<_> = inputs.iter().map(Some).collect();
        Self::over(&first.shape, &order, &inputs)
    }

    /// Merges neighbouring dims along which every input moves evenly.
    fn merged(len: usize, sizes: &[usize], inputs: Vec<(usize, Vec<isize>)>) -> Self {
        let mut merged = Self {
            len,
            sizes: Vec::new(),
            inputs: inputs.iter().map(|(offset, _)| (*offset, Vec::new())).collect(),
        };
        for (axis, &size) in sizes.iter().enumerate() {
            // Without elements there are no rows either, and none of no length to divide by.
            if size == 1 || len == 0 {
                continue;
            }
            let even = !merged.sizes.is_empty()
                && merged.inputs.iter().zip(&inputs).all(|((_, own), (_, strides))| {
                    own.last() == Some(&(strides[axis] * size as isize))
                });
            if even {
                *merged.sizes.last_mut().expect("checked") *= size;
            } else {
                merged.sizes.push(size);
            }
            for ((_, own), (_, strides)) in merged.inputs.iter_mut().zip(&inputs) {
                if even {
                    own.pop();
                }
                own.push(strides[axis]);
            }
        }
        if merged.sizes.is_empty() {
            merged.sizes.push(1);
            merged.inputs.iter_mut().for_each(|(_, own)| own.push(0));
        }
        merged
    }

    /// Elements of a row: consecutive elements through which every input moves evenly.
    pub(crate) fn row(&self) -> usize {
        self.sizes[self.sizes.len() - 1]
    }

    /// Where the `len` elements from `start` on begin in an input, and their stride, if they lie in
    /// one row.
    pub(crate) fn run(&self, input: usize, start: usize, len: usize) -> Option<(usize, isize)> {
        let (offset, strides) = &self.inputs[input];
        let (mut row, column) = (start / self.row(), start % self.row());
        if column + len > self.row() {
            return None;
        }
        let (stride, outer) = strides.split_last()?;
        let mut at = *offset as isize + column as isize * stride;
        for (&size, stride) in self.sizes.iter().zip(outer).rev() {
            at += (row % size) as isize * stride;
            row /= size;
        }
        Some((at as usize, *stride))
    }

    /// Whether an input is the same in all rows.
    pub(super) fn repeats(&self, input: usize) -> bool {
        let (_, strides) = &self.inputs[input];
        strides.split_last().is_some_and(|(_, outer)| outer.iter().all(|&stride| stride == 0))
    }

    /// How an input lies under rows of so many columns; `None` if it is otherwise.
    pub(crate) fn lies(&self, input: usize, columns: usize) -> Option<Lies> {
        let (at, strides) = &self.inputs[input];
        match (&self.sizes[..], &strides[..]) {
            (_, strides) if strides.iter().all(|&stride| stride == 0) => Some(Lies::Same(*at)),
            ([_], [1]) => Some(Lies::Elements(*at)),
            (&[_, own], &[0, 1]) if own == columns => Some(Lies::Columns(*at)),
            (&[_, own], &[row, 1]) if own as isize == row => Some(Lies::Elements(*at)),
            _ => None,
        }
    }

    /// The places of a tile's elements in an input, if its rows are parts of as many rows of the domain,
    /// which all differ along one dim.
    pub(super) fn even(&self, input: usize, tile: Tile) -> Option<Even> {
        let (start, column) = self.run(input, tile.first, tile.width)?;
        let outer = self.sizes.len().checked_sub(2);
        let row = match (outer, tile.rows) {
            (_, 0 | 1) => 0,
            (Some(axis), rows) if tile.pitch == self.row() => {
                let first = tile.first / self.row() % self.sizes[axis];
                if first + rows > self.sizes[axis] {
                    return None;
                }
                self.inputs[input].1[axis]
            }
            _ => return None,
        };
        Some(Even { start: start as isize, row, column })
    }

    /// The input's walk through the `len` elements from `start` on.
    pub(crate) fn walk(&self, input: usize, start: usize, len: usize) -> Walk<'_> {
        let (offset, strides) = &self.inputs[input];
        let (outer, last) = self.sizes.split_at(self.sizes.len() - 1);
        let (mut row, column) = (start / last[0], start % last[0]);
        let mut index: Axes<usize> = outer.iter().map(|_| 0).collect();
        let mut base = *offset as isize;
        for axis in (0..outer.len()).rev() {
            index[axis] = row % outer[axis];
            row /= outer[axis];
            base += index[axis] as isize * strides[axis];
        }
        Walk { domain: self, strides, index, column, row: base, left: len }
    }
}

/// Runs of elements: where the run starts, its stride, and its length.
impl Iterator for Walk<'_> {
    type Item = (usize, isize, usize);
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let (size, stride) = (*self.domain.sizes.last()?, *self.strides.last()?);
        let len = self.left.min(size - self.column);
        let start = (self.row + self.column as isize * stride) as usize;
        self.left -= len;
        self.column = 0;
        for axis in (0..self.index.len()).rev() {
            self.index[axis] += 1;
            self.row += self.strides[axis];
            if self.index[axis] < self.domain.sizes[axis] {
                break;
            }
            self.row -= self.strides[axis] * self.index[axis] as isize;
            self.index[axis] = 0;
        }
        Some((start, stride, len))
    }
}

/// The axes from the one with the largest stride to the one with the smallest.
fn memory_order(operand: &BoundOperand) -> Vec<usize> {
    let mut order: Vec<usize> = (0..operand.shape.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(operand.strides[axis]));
    order
}

/// Whether the operand fills its buffer from the start, row-major in this order of axes.
fn is_dense(operand: &BoundOperand, order: &[usize]) -> bool {
    let mut expected = 1;
    let dense = order.iter().rev().all(|&axis| {
        let fits = operand.shape[axis] == 1 || operand.strides[axis] == expected;
        expected *= operand.shape[axis] as isize;
        fits
    });
    operand.offset == 0 && (dense || operand.shape.contains(&0))
}

fn check(what: &'static str, expected: &[usize], found: &[usize]) -> Result<()> {
    let differ = expected.iter().zip(found).find(|(a, b)| a != b);
    match differ {
        Some((&expected, &found)) => Err(Error::Mismatch { what, expected, found }),
        None if expected.len() != found.len() => {
            Err(Error::Mismatch { what, expected: expected.len(), found: found.len() })
        }
        None => Ok(()),
    }
}

/// The operand's strides under a shape that it broadcasts to.
fn broadcast_strides(operand: &BoundOperand, shape: &[usize]) -> Result<Vec<isize>> {
    let rank = operand.shape.len();
    let lead = shape.len().checked_sub(rank);
    let what = "rank of a loop's input";
    let lead = lead.ok_or(Error::Mismatch { what, expected: shape.len(), found: rank })?;
    let mut strides = vec![0; shape.len()];
    for (axis, (&size, &stride)) in operand.shape.iter().zip(&operand.strides).enumerate() {
        let expected = shape[lead + axis];
        if size == expected {
            strides[lead + axis] = stride;
        } else if size != 1 {
            let what = "size of a loop's input";
            return Err(Error::Mismatch { what, expected, found: size });
        }
    }
    Ok(strides)
}
