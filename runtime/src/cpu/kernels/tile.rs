//! Parts of row-major matrices that threads write side by side: slices in two dimensions.

#![allow(unsafe_code)]

use crate::threads::Parts;
use bytemuck::Pod;
use smallvec::SmallVec;
use std::marker::PhantomData;

/// Matrices that are cut alike, at most so many without memory of their own.
pub(crate) type Tiles<'a, T> = SmallVec<[TileMut<'a, T>; 4]>;

/// Rows and columns of a row-major matrix that nobody else reads or writes, as a mutable slice in two
/// dimensions.
pub(crate) struct TileMut<'a, T> {
    start: *mut T,
    rows: usize,
    columns: usize,
    /// From one row to the next; at least `columns`.
    stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a tile is a mutable borrow of its elements, as a slice is.
unsafe impl<T: Send> Send for TileMut<'_, T> {}
// SAFETY: as above; a shared tile gives out its sizes.
unsafe impl<T: Sync> Sync for TileMut<'_, T> {}

impl<'a, T> TileMut<'a, T> {
    /// The matrix of this many columns that the slice holds; what makes no whole row is left out.
    pub(crate) fn new(data: &'a mut [T], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self { start: data.as_mut_ptr(), rows, columns, stride: columns, life: PhantomData }
    }

    /// Rows and columns.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The rows before `row` and those from it on; all before where there are not so many.
    #[cfg(test)]
    pub(crate) fn split_rows(self, row: usize) -> [Self; 2] {
        let row = row.min(self.rows);
        // Of no rows the place is not looked at, so it may lie behind the matrix.
        let start = self.start.wrapping_add(row * self.stride);
        [Self { rows: row, ..self }, Self { start, rows: self.rows - row, ..self }]
    }

    /// The columns before `column` and those from it on; all before where there are not so many.
    pub(crate) fn split_columns(self, column: usize) -> [Self; 2] {
        let column = column.min(self.columns);
        let start = self.start.wrapping_add(column);
        [Self { columns: column, ..self }, Self { start, columns: self.columns - column, ..self }]
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "a tile has the row");
        // SAFETY: a row lies within the slice that the tile was cut from, and the tile is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.columns) }
    }

    /// Whether no other elements lie between these.
    pub(crate) fn is_dense(&self) -> bool {
        self.stride == self.columns || self.rows <= 1
    }

    /// All elements of a dense tile; none of others.
    pub(crate) fn dense(&mut self) -> &mut [T] {
        let len = if self.is_dense() { self.rows * self.columns } else { 0 };
        // SAFETY: rows without others between them are one slice, borrowed as for `row`.
        unsafe { std::slice::from_raw_parts_mut(self.start, len) }
    }

    /// The tile itself, borrowed.
    pub(crate) fn whole(&mut self) -> TileMut<'_, T> {
        TileMut { start: self.start, life: PhantomData, ..*self }
    }

    /// Where the tile begins, and the distance of its rows, for a call that writes through pointers.
    pub(super) fn raw(&mut self) -> (*mut T, usize) {
        (self.start, self.stride)
    }

    /// Some of its rows and columns, which it has.
    ///
    /// # Safety
    /// While the part is in use, neither is the tile itself nor another part of it with one of these elements.
    unsafe fn part(&self, [row, rows]: [usize; 2], [column, columns]: [usize; 2]) -> Self {
        assert!(row + rows <= self.rows && column + columns <= self.columns, "a part is within");
        let start = self.start.wrapping_add(row * self.stride + column);
        Self { start, rows, columns, ..*self }
    }
}

impl TileMut<'_, u8> {
    /// The bytes as elements; `None` if they do not stand as elements must.
    pub(crate) fn typed<T: Pod>(&mut self) -> Option<TileMut<'_, T>> {
        let size = size_of::<T>();
        let whole = self.columns.is_multiple_of(size) && self.stride.is_multiple_of(size);
        let start = self.start.cast::<T>();
        (whole && start.is_aligned()).then_some(TileMut {
            start,
            rows: self.rows,
            columns: self.columns / size,
            stride: self.stride / size,
            life: PhantomData,
        })
    }
}

/// How the matrices of a batch, one below the other, are cut into tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    /// The number of matrices.
    pub(crate) matrices: usize,
    /// Rows of a matrix.
    pub(crate) rows: usize,
    /// Rows of a tile, but for the last ones.
    pub(crate) tall: usize,
    /// Columns of a matrix and those of a tile, but for the last ones; none for tiles of whole rows.
    pub(crate) wide: Option<[usize; 2]>,
}

/// A tile's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) matrix: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
    pub(crate) column: usize,
    /// All, if none.
    pub(crate) columns: Option<usize>,
}

impl Grid {
    fn across(&self) -> usize {
        self.wide.map_or(1, |[all, wide]| all.div_ceil(wide.max(1)))
    }

    fn down(&self) -> usize {
        self.rows.div_ceil(self.tall.max(1))
    }

    fn block(&self, number: usize) -> Block {
        let (across, down) = (self.across(), self.down());
        let (row, column) = (number / across % down * self.tall, number % across);
        let first = self.wide.map_or(0, |[_, wide]| column * wide);
        Block {
            matrix: number / across / down,
            row,
            rows: self.tall.min(self.rows - row),
            column: first,
            columns: self.wide.map(|[all, wide]| wide.min(all - first)),
        }
    }
}

/// Matrices as tiles.
pub(crate) struct Cut<'a, T> {
    grid: Grid,
    /// Each with what a column of the grid is in it, in elements.
    matrices: SmallVec<[(TileMut<'a, T>, usize); 4]>,
}

impl<'a, T> Cut<'a, T> {
    /// `None` if one of the matrices has not as many rows and columns as the grid.
    pub(crate) fn new(
        grid: Grid,
        matrices: impl IntoIterator<Item = (TileMut<'a, T>, usize)>,
    ) -> Option<Self> {
        let matrices: SmallVec<[_; 4]> = matrices.into_iter().collect();
        let rows = grid.matrices * grid.rows;
        let fits = |(tile, size): &(TileMut<'a, T>, usize)| {
            let wide = grid.wide.is_none_or(|[all, _]| tile.columns == all * size);
            wide && (tile.rows == rows || tile.columns == 0)
        };
        matrices.iter().all(fits).then_some(Self { grid, matrices })
    }
}

// SAFETY: blocks of different numbers have no row and column in common.
unsafe impl<'a, T: Send + Sync> Parts for Cut<'a, T> {
    type Part = (Block, Tiles<'a, T>);

    fn len(&self) -> usize {
        self.grid.matrices * self.grid.down() * self.grid.across()
    }

    unsafe fn part(&self, number: usize) -> Self::Part {
        let block = self.grid.block(number);
        let rows = [block.matrix * self.grid.rows + block.row, block.rows];
        let tiles = self.matrices.iter().map(|(tile, size)| {
            let columns = match block.columns {
                Some(columns) => [block.column * size, columns * size],
                None => [0, tile.columns],
            };
            let rows = if tile.columns == 0 { [0, 0] } else { rows };
            // SAFETY: as the caller promises, no other part with one of these elements is in use.
            unsafe { tile.part(rows, columns) }
        });
        (block, tiles.collect())
    }
}

/// Matrices of a batch that need not lie one after the other, as blocks of rows.
pub(crate) struct Spread<'a, T> {
    start: *mut T,
    /// Sizes of the batch's two axes, and rows and columns of a matrix.
    shape: [usize; 4],
    strides: [usize; 4],
    /// Rows of a block, but for the last ones.
    tall: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: blocks are mutable borrows of their elements.
unsafe impl<T: Send> Sync for Spread<'_, T> {}

impl<'a, T> Spread<'a, T> {
    /// `None` if rows do not lie whole, reach beyond the slice, or overlap: each axis must step over all that the next
    /// ones, of smaller strides, reach.
    pub(crate) fn new(
        data: &'a mut [T],
        offset: usize,
        shape: [usize; 4],
        strides: [isize; 4],
        tall: usize,
    ) -> Option<Self> {
        if shape.contains(&0) || strides.iter().zip(shape).any(|(&stride, n)| stride < 0 && n > 1) {
            return None;
        }
        let mut strides = strides.map(|stride| usize::try_from(stride).unwrap_or(0));
        for (stride, size) in strides.iter_mut().zip(shape) {
            // An axis of one never steps.
            *stride = if size == 1 { 0 } else { *stride };
        }
        if shape[3] > 1 && strides[3] != 1 {
            return None;
        }
        let mut axes: [(usize, usize); 4] =
            std::array::from_fn(|axis| (strides[axis], shape[axis]));
        axes.sort_unstable();
        let mut reach = 0_usize;
        for (stride, size) in axes.into_iter().filter(|&(_, size)| size > 1) {
            if stride <= reach {
                return None;
            }
            reach = reach.checked_add(stride.checked_mul(size - 1)?)?;
        }
        if offset.checked_add(reach)? >= data.len() {
            return None;
        }
        // A tile's rows are apart, if they are several.
        let start = data.as_mut_ptr().wrapping_add(offset);
        let apart = shape[2] == 1 || strides[2] >= shape[3];
        apart.then_some(Self { start, shape, strides, tall: tall.max(1), life: PhantomData })
    }
}

// SAFETY: blocks of different numbers have no element in common, as `new` has found.
unsafe impl<'a, T: Send> Parts for Spread<'a, T> {
    type Part = TileMut<'a, T>;

    fn len(&self) -> usize {
        self.shape[0] * self.shape[1] * self.shape[2].div_ceil(self.tall)
    }

    unsafe fn part(&self, number: usize) -> TileMut<'a, T> {
        let [_, heads, all, columns] = self.shape;
        let down = all.div_ceil(self.tall);
        let (head, row) = (number / down, number % down * self.tall);
        let [outer, inner, stride, _] = self.strides;
        let at = head / heads * outer + head % heads * inner + row * stride;
        TileMut {
            start: self.start.wrapping_add(at),
            rows: self.tall.min(all - row),
            columns,
            stride: stride.max(columns),
            life: PhantomData,
        }
    }
}
