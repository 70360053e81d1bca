//! Strided views: how a logical shape reads a buffer.
//!
//! A view is the symbolic, flat case of a layout: an offset and one (size, stride) pair a dimension, all in
//! elements. Reshape, transpose, slice and expand change views and move nothing; that is how head splits and
//! merges disappear from a plan.

use graphene_frontend::{Dim, SliceAxis};
use std::fmt;

/// How a logical shape reads a buffer: element `i` lies at `offset + Σ stride·i`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// Elements before the first one.
    pub offset: Dim,
    /// The dimensions, outermost first.
    pub modes: Vec<Mode>,
}

/// One dimension of a [`View`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mode {
    /// Elements along it.
    pub size: Dim,
    /// Distance between two, in elements of the buffer; zero repeats one.
    pub stride: Dim,
}

impl View {
    /// The row-major view of a whole buffer.
    pub fn contiguous(shape: &[Dim]) -> Self {
        Self { offset: Dim::from(0), modes: row_major(shape, Dim::from(1)) }
    }

    /// The logical shape.
    pub fn shape(&self) -> Vec<Dim> {
        self.modes.iter().map(|mode| mode.size.clone()).collect()
    }

    /// Whether it reads its buffer from the start, row-major and without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.offset == 0 && self.is_packed()
    }

    /// Whether it reads its buffer from the start and without gaps, the second dim innermost: images whose channels are
    /// side by side.
    pub fn is_channels_last(&self) -> bool {
        self.modes.len() > 2 && self.transpose(&channels_last(self.modes.len())).is_contiguous()
    }

    /// The view with dim i read along dim `perm[i]`.
    pub fn transpose(&self, perm: &[usize]) -> Self {
        let modes = perm.iter().map(|&axis| self.modes[axis].clone()).collect();
        Self { offset: self.offset.clone(), modes }
    }

    /// The view of a range along each listed axis.
    pub fn slice(&self, ranges: &[SliceAxis]) -> Self {
        let mut view = self.clone();
        for range in ranges {
            let mode = &mut view.modes[range.axis];
            view.offset = &view.offset + &(&range.start * &mode.stride);
            mode.size = range.len.clone();
            mode.stride = &mode.stride * &Dim::from(range.step);
        }
        view
    }

    /// The view broadcast to `shape`; dims of size one repeat.
    ///
    /// `None` if whether a dim repeats depends on a symbol.
    pub fn expand(&self, shape: &[Dim]) -> Option<Self> {
        let lead = shape.len().checked_sub(self.modes.len())?;
        let modes = shape.iter().enumerate().map(|(axis, size)| {
            let stride = match axis.checked_sub(lead).map(|axis| &self.modes[axis]) {
                Some(mode) if mode.size == *size => mode.stride.clone(),
                Some(mode) if mode.size != 1 => return None,
                _ => Dim::from(0),
            };
            Some(Mode { size: size.clone(), stride })
        });
        Some(Self { offset: self.offset.clone(), modes: modes.collect::<Option<_>>()? })
    }

    /// The view under another shape of equally many elements, in row-major order.
    ///
    /// `None` if no strides do it without moving data, or if symbols leave it open.
    pub fn reshape(&self, shape: &[Dim]) -> Option<Self> {
        if self.is_contiguous() {
            return Some(Self::contiguous(shape));
        }
        // Runs of dims that are adjacent in memory merge; each must then split exactly into new dims.
        let mut modes: Vec<Mode> = Vec::with_capacity(shape.len());
        let mut sizes = shape.iter();
        for run in coalesced(&self.modes) {
            let (mut parts, mut product) = (Vec::new(), Dim::from(1));
            while product != run.size {
                let size = sizes.next()?;
                product = &product * size;
                parts.push(size.clone());
            }
            modes.extend(row_major(&parts, run.stride));
        }
        for size in sizes {
            if *size != 1 {
                return None;
            }
            modes.push(Mode { size: size.clone(), stride: Dim::from(1) });
        }
        Some(Self { offset: self.offset.clone(), modes })
    }

    /// The dims from the one with the largest stride to the one with the smallest, if the view visits
    /// each element of a gapless block once; then the block is row-major in that order.
    pub fn memory_order(&self) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.modes.len()).collect();
        // Selection sort: symbolic strides are ordered by divisibility only.
        for i in 0..order.len() {
            let divides_all = |&candidate: &usize| {
                let stride = &self.modes[order[candidate]].stride;
                order[i..].iter().all(|&other| {
                    let other = &self.modes[other];
                    other.size == 1 || stride.exact_div(&other.stride).is_some()
                })
            };
            let largest = (i..order.len()).find(divides_all)?;
            order[i..=largest].rotate_right(1);
        }
        self.transpose(&order).is_packed().then_some(order)
    }

    /// Whether it is row-major and without gaps, wherever it begins.
    pub(crate) fn is_packed(&self) -> bool {
        let whole = Self::contiguous(&self.shape());
        self.modes.iter().zip(&whole.modes).all(|(a, b)| a.size == 1 || a.stride == b.stride)
    }

    /// The row-major view of a new buffer whose dims lie in `order`, seen under the logical shape.
    pub fn ordered(shape: &[Dim], order: &[usize]) -> Self {
        let stored: Vec<Dim> = order.iter().map(|&axis| shape[axis].clone()).collect();
        Self::contiguous(&stored).transpose(&inverse(order))
    }
}

/// The order of an image's dims in memory, outermost first, where channels are innermost: images, pixels, channels.
pub fn channels_last(rank: usize) -> Vec<usize> {
    [0].into_iter().chain(2..rank).chain([1]).collect()
}

/// The order of dims in which output channels, the first dim, are innermost: of the weights of depthwise convolutions.
pub fn depthwise_weights(rank: usize) -> Vec<usize> {
    (1..rank).chain([0]).collect()
}

/// The order that undoes an order of axes.
pub(crate) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    for (place, &axis) in order.iter().enumerate() {
        inverse[axis] = place;
    }
    inverse
}

/// Dims of these sizes that follow each other row-major, with such a stride of the last.
fn row_major(sizes: &[Dim], mut stride: Dim) -> Vec<Mode> {
    let mut modes = Vec::with_capacity(sizes.len());
    for size in sizes.iter().rev() {
        modes.push(Mode { size: size.clone(), stride: stride.clone() });
        stride = &stride * size;
    }
    modes.reverse();
    modes
}

/// The one stride of all these modes together, the last running fastest; zero where there is but one element.
pub(crate) fn stride(modes: &[Mode]) -> Option<Dim> {
    match &coalesced(modes)[..] {
        [] => Some(Dim::from(0)),
        [all] => Some(all.stride.clone()),
        _ => None,
    }
}

/// Dims of size one dropped and neighbours that are adjacent in memory merged.
fn coalesced(modes: &[Mode]) -> Vec<Mode> {
    let mut runs: Vec<Mode> = Vec::new();
    for mode in modes.iter().filter(|mode| mode.size != 1) {
        match runs.last_mut() {
            Some(last) if last.stride == &mode.size * &mode.stride => {
                last.size = &last.size * &mode.size;
                last.stride = mode.stride.clone();
            }
            _ => runs.push(mode.clone()),
        }
    }
    runs
}

/// Prints as `+offset [size:stride, …]`, the offset only where there is one.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.offset != 0 {
            write!(f, "+{} ", self.offset)?;
        }
        f.write_str("[")?;
        for (i, mode) in self.modes.iter().enumerate() {
            write!(f, "{}{}:{}", if i > 0 { ", " } else { "" }, mode.size, mode.stride)?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::View;
    use graphene_frontend::dim::Dim;

    fn dims(text: &str) -> Vec<Dim> {
        text.split(',').map(|dim| dim.parse().unwrap()).collect()
    }

    #[test]
    fn heads_split_and_merge_without_copies() {
        let packed = View::contiguous(&dims("b,s,768"));
        let heads = packed.reshape(&dims("b,s,12,64")).unwrap().transpose(&[0, 2, 1, 3]);
        assert_eq!(heads.to_string(), "[b:768*s, 12:64, s:768, 64:1]");
        assert!(!heads.is_contiguous());
        // Merging heads of the transposed view needs data to move; merging batch and heads does not.
        assert_eq!(heads.reshape(&dims("b,12,64*s")), None);
        assert_eq!(heads.memory_order(), Some(vec![0, 2, 1, 3]));
        assert_eq!(View::ordered(&heads.shape(), &[0, 2, 1, 3]), heads);
        let back = heads.transpose(&[0, 2, 1, 3]);
        assert_eq!(back.reshape(&dims("b,s,768")), Some(packed));
    }

    #[test]
    fn a_column_reshapes_into_strided_parts() {
        let column = View::contiguous(&dims("6*s,4")).slice(&[graphene_frontend::op::SliceAxis {
            axis: 1,
            start: Dim::from(2),
            len: Dim::from(1),
            step: 1,
        }]);
        let parts = column.reshape(&dims("s,1,6")).unwrap();
        assert_eq!(parts.to_string(), "+2 [s:24, 1:24, 6:4]");
    }

    #[test]
    fn expand_repeats_known_ones_only() {
        let row = View::contiguous(&dims("1,s"));
        assert_eq!(row.expand(&dims("b,h,t,s")).unwrap().to_string(), "[b:0, h:0, t:0, s:1]");
        assert_eq!(row.expand(&dims("1,t")), None);
    }
}
