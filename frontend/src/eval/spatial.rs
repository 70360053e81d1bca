//! The geometry that convolutions and poolings share: windows moving along spatial axes.

use super::error::EvalError;

/// Elements of a window along one axis.
const MAX_KERNEL: usize = 1 << 24;

/// Windows along one spatial axis: place o of the outer side and element k of the window meet place
/// `o·stride + k·dilation - before` of the inner side.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    /// Places of the padded side, without its padding.
    pub(super) inner: i128,
    /// Number of windows.
    pub(super) outer: i128,
    pub(super) kernel: i128,
    pub(super) stride: i128,
    pub(super) dilation: i128,
    pub(super) before: i128,
    pub(super) after: i128,
}

impl Axis {
    /// An axis whose `outer` is not known yet.
    ///
    /// # Errors
    /// [`EvalError::Attribute`] if the window does not move or has no elements.
    pub(super) fn new(
        inner: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
        pads: (i64, i64),
    ) -> Result<Self, EvalError> {
        if stride == 0 || dilation == 0 || kernel == 0 {
            return Err(EvalError::Attribute("kernel, strides and dilations are at least one"));
        }
        if kernel > MAX_KERNEL {
            return Err(EvalError::Attribute("the window is larger than any real one"));
        }
        let [inner, kernel, stride, dilation] =
            [inner, kernel, stride, dilation].map(|n| n.min(1 << 40) as i128);
        let (before, after) = (i128::from(pads.0), i128::from(pads.1));
        Ok(Self { inner, outer: 0, kernel, stride, dilation, before, after })
    }

    /// From the first to the last place of a window, inclusive of both.
    pub(super) fn extent(&self) -> i128 {
        (self.kernel - 1) * self.dilation + 1
    }

    /// The same, with as many windows as fit; with `ceil`, those that start inside and end outside too.
    pub(super) fn with_windows(mut self, ceil: bool) -> Result<Self, EvalError> {
        let space = self.inner + self.before + self.after - self.extent();
        let rounded_up = if ceil { self.stride - 1 } else { 0 };
        if space + rounded_up < 0 {
            return Err(EvalError::Attribute("the window is larger than the padded input"));
        }
        self.outer = (space + rounded_up) / self.stride + 1;
        if ceil && (self.outer - 1) * self.stride >= self.inner + self.before {
            self.outer -= 1;
        }
        Ok(self)
    }

    /// The number of elements of a window that lie on inner places `low..high`.
    pub(super) fn elements_between(&self, window: i128, low: i128, high: i128) -> i128 {
        let start = window * self.stride - self.before;
        let first = (low - start + self.dilation - 1).div_euclid(self.dilation).max(0);
        let end = (high - 1 - start).div_euclid(self.dilation) + 1;
        (end.min(self.kernel) - first).max(0)
    }

    /// The elements of the window that meet an inner place in some window, ascending.
    pub(super) fn met_elements(&self) -> Vec<usize> {
        let meets = |&k: &usize| {
            let (first, end) = self.windows_inside(k as i128);
            first < end
        };
        (0..self.kernel as usize).filter(meets).collect()
    }

    /// The windows whose element k meets an inner place: the first, and one past the last.
    fn windows_inside(&self, k: i128) -> (i128, i128) {
        let offset = k * self.dilation - self.before;
        let first = (-offset + self.stride - 1).div_euclid(self.stride).max(0);
        let end = (self.inner - 1 - offset).div_euclid(self.stride) + 1;
        (first, end.min(self.outer).max(first))
    }
}

/// A size as the tensor wants it.
pub(super) fn size(value: i128) -> Result<usize, EvalError> {
    usize::try_from(value).map_err(|_| EvalError::Attribute("a spatial size is below zero"))
}

/// The places where one element of the windows meets inner and outer places.
pub(super) struct Meeting {
    /// Number of places along each axis.
    pub(super) shape: Vec<usize>,
    pub(super) inner_start: isize,
    pub(super) inner_strides: Vec<isize>,
    pub(super) outer_start: isize,
}

/// All meetings of the window's element `index`, for row-major strides of both sides.
pub(super) fn meeting(
    axes: &[Axis],
    index: &[usize],
    inner_strides: &[isize],
    outer_strides: &[isize],
) -> Meeting {
    let mut meeting =
        Meeting { shape: Vec::new(), inner_start: 0, inner_strides: Vec::new(), outer_start: 0 };
    for (i, axis) in axes.iter().enumerate() {
        let k = index[i] as i128;
        let (first, end) = axis.windows_inside(k);
        let inner = first * axis.stride + k * axis.dilation - axis.before;
        meeting.shape.push((end - first) as usize);
        meeting.inner_start =
            meeting.inner_start.wrapping_add((inner as isize).wrapping_mul(inner_strides[i]));
        meeting.inner_strides.push(inner_strides[i].wrapping_mul(axis.stride as isize));
        meeting.outer_start =
            meeting.outer_start.wrapping_add((first as isize).wrapping_mul(outer_strides[i]));
    }
    meeting
}
