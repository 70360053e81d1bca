//! The geometry that convolutions and poolings share: windows moving along up to three spatial axes.

use crate::error::{Error, Result};
use smallvec::SmallVec;

/// Elements of a window that are tabulated at most.
const MOST_TAPS: usize = 1 << 24;

/// Windows on the spatial axes of an inner side; the outer side has one place for each. One entry an
/// axis in every slice.
#[derive(Debug, Clone, Copy)]
pub struct Geometry<'a> {
    /// Sizes of the side that the windows stand on.
    pub inner: &'a [usize],
    /// Numbers of windows.
    pub outer: &'a [usize],
    /// Sizes of a window.
    pub kernel: &'a [usize],
    /// Steps from window to window.
    pub strides: &'a [usize],
    /// Steps within a window.
    pub dilations: &'a [usize],
    /// Places outside before the inner side.
    pub before: &'a [i64],
}

/// Element k of the windows along one axis: it is inside for windows `first..end`, where window o
/// meets the inner place `start + o·stride`.
#[derive(Debug, Clone, Copy, Default)]
struct Tap {
    first: usize,
    end: usize,
    start: isize,
}

/// A [`Geometry`] of three axes, the missing ones in front of size 1, and its taps tabulated.
pub(super) struct Grid {
    inner: [usize; 3],
    outer: [usize; 3],
    strides: [usize; 3],
    taps: [SmallVec<[Tap; 12]>; 3],
}

impl Grid {
    /// # Errors
    /// [`Error::Unsupported`] for more than three axes, entries that are not one an axis, or windows of
    /// nothing;
    /// [`Error::TooLarge`] for windows or planes of too many elements.
    pub(super) fn new(geometry: Geometry<'_>) -> Result<Self> {
        let Geometry { inner, outer, kernel, strides, dilations, before } = geometry;
        let rank = inner.len();
        let lens = [outer.len(), kernel.len(), strides.len(), dilations.len(), before.len()];
        if rank > 3 || lens != [rank; 5] || kernel.contains(&0) {
            return Err(Error::Unsupported { what: "windows of this rank" });
        }
        let mut grid = Self {
            inner: [1; 3],
            outer: [1; 3],
            strides: [1; 3],
            taps: std::array::from_fn(|_| SmallVec::new()),
        };
        let whole = Tap { first: 0, end: 1, start: 0 };
        grid.taps[..3 - rank].iter_mut().for_each(|taps| taps.push(whole));
        for i in 0..rank {
            let axis = 3 - rank + i;
            (grid.inner[axis], grid.outer[axis]) = (inner[i], outer[i]);
            grid.strides[axis] = strides[i];
            let taps = 0..kernel[i].min(MOST_TAPS + 1);
            let tap = |k| tap(k, inner[i], outer[i], strides[i], dilations[i], before[i]);
            grid.taps[axis] = taps.map(tap).collect();
        }
        let product = |sizes: [usize; 3]| {
            sizes.into_iter().try_fold(1_usize, |product, size| product.checked_mul(size))
        };
        let counts = grid.taps.each_ref().map(|taps| taps.len());
        let fits = product(counts).is_some_and(|taps| taps <= MOST_TAPS)
            && product(grid.inner).is_some()
            && product(grid.outer).is_some();
        if fits { Ok(grid) } else { Err(Error::TooLarge { what: "a window" }) }
    }

    /// Elements of a plane of the inner side.
    pub(super) fn inner(&self) -> usize {
        self.inner.iter().product()
    }

    /// Elements of a plane of the outer side.
    pub(super) fn outer(&self) -> usize {
        self.outer.iter().product()
    }

    /// Elements of a window.
    pub(super) fn taps(&self) -> usize {
        self.taps.iter().map(|taps| taps.len()).product()
    }

    /// The distance in the inner side between neighbours of a run.
    pub(super) fn step(&self) -> usize {
        self.strides[2]
    }

    /// Whether each window is the one inner place of the same number.
    pub(super) fn is_identity(&self) -> bool {
        let whole = |(tap, &size): (&SmallVec<[Tap; 12]>, &usize)| matches!(tap[..], [Tap { first: 0, end, start: 0 }] if end == size);
        self.inner == self.outer
            && self.taps.iter().zip(&self.inner).all(whole)
            && self.strides.iter().zip(&self.inner).all(|(&stride, &size)| stride == 1 || size == 1)
    }

    fn tap(&self, number: usize) -> [Tap; 3] {
        let [_, rows, columns] = self.taps.each_ref().map(|taps| taps.len());
        let depth = number / (rows * columns);
        [self.taps[0][depth], self.taps[1][number / columns % rows], self.taps[2][number % columns]]
    }

    /// The inner place that window `o` of an axis meets, for windows where the tap is inside.
    #[inline(always)]
    fn place(&self, axis: usize, tap: Tap, o: usize) -> usize {
        tap.start.wrapping_add_unsigned(o.wrapping_mul(self.strides[axis])) as usize
    }

    /// Runs of windows among `from..to` (numbered over the plane) that lie in one row, in order, for
    /// the element `number` of the windows: `visit(at, count, inner)` with the first window's
    /// distance to `from`, the number of windows that have the element inside, and the first one's
    /// inner place.
    #[inline(always)]
    pub(super) fn runs(
        &self,
        number: usize,
        from: usize,
        to: usize,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let taps = self.tap(number);
        let [_, rows, columns] = self.outer;
        if columns == 0 || rows == 0 {
            return;
        }
        let inside = |tap: Tap, o: usize| (tap.first..tap.end).contains(&o);
        for row in from / columns..to.div_ceil(columns) {
            let (d, h) = (row / rows, row % rows);
            if !inside(taps[0], d) || !inside(taps[1], h) {
                continue;
            }
            let base = row * columns;
            let first = taps[2].first.max(from.saturating_sub(base));
            let end = taps[2].end.min(to - base);
            if first < end {
                let line = self.place(0, taps[0], d) * self.inner[1] + self.place(1, taps[1], h);
                let inner = line * self.inner[2] + self.place(2, taps[2], first);
                visit(base + first - from, end - first, inner);
            }
        }
    }

    /// Row after row of windows, all runs of it for each element of the windows in order:
    /// `visit(window, count, inner, number)`.
    #[inline(always)]
    pub(super) fn sweep(&self, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let [depths, rows, columns] = self.outer;
        let [_, of_rows, of_columns] = self.taps.each_ref().map(|taps| taps.len());
        for d in 0..depths {
            for h in 0..rows {
                for (i, &depth) in self.taps[0].iter().enumerate() {
                    if d < depth.first || d >= depth.end {
                        continue;
                    }
                    for (j, &row) in self.taps[1].iter().enumerate() {
                        if h < row.first || h >= row.end {
                            continue;
                        }
                        let line = self.place(0, depth, d) * self.inner[1] + self.place(1, row, h);
                        for (k, &column) in self.taps[2].iter().enumerate() {
                            if column.first < column.end {
                                let inner =
                                    line * self.inner[2] + self.place(2, column, column.first);
                                let window = (d * rows + h) * columns + column.first;
                                let number = (i * of_rows + j) * of_columns + k;
                                visit(window, column.end - column.first, inner, number);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn tap(k: usize, inner: usize, outer: usize, stride: usize, dilation: usize, before: i64) -> Tap {
    let (inner, outer, stride) = (inner as i128, outer as i128, stride.max(1) as i128);
    // Neither overflows: the factors fit in 25 and 64 bits.
    let start = k as i128 * dilation as i128 - i128::from(before);
    let first = (-start + stride - 1).div_euclid(stride).max(0);
    let end = ((inner - 1 - start).div_euclid(stride) + 1).min(outer);
    if first >= end {
        return Tap::default();
    }
    Tap { first: first as usize, end: end as usize, start: start as isize }
}
