//! Pooling.

use super::error::EvalError;
use super::number::{Number, elements, filled, from_bits, from_reals, reals, with_number};
use super::spatial::{Axis, Meeting, meeting, size};
use super::walk::{strides, walk, walk_indices};
use crate::dtype::DType;
use crate::op::{IndexOrder, PoolAttrs, PoolKind};
use crate::tensor::Tensor;

/// [`crate::op::Op::Pool`].
pub(super) fn pool(x: &Tensor, attrs: &PoolAttrs) -> Result<Vec<Tensor>, EvalError> {
    let windows = Windows::new(x, attrs)?;
    if x.dtype() == DType::Bool {
        return Err(EvalError::Unsupported(x.dtype()));
    }
    match &attrs.kind {
        PoolKind::Max { indices } => with_number!(x.dtype(), N => {
            max_pool(x, &windows, &N::decode(x)?, *indices)
        }),
        PoolKind::Average { include_pad } => {
            if windows.shape.contains(&0) {
                return Ok(vec![Tensor::zeros(x.dtype(), windows.shape)?]);
            }
            let divisors = windows.divisors(*include_pad)?;
            let mut sums = windows.sums(&reals(x)?, |x| x)?;
            for plane in sums.chunks_exact_mut(windows.outer.max(1)) {
                for (sum, &divisor) in plane.iter_mut().zip(&divisors) {
                    *sum /= divisor;
                }
            }
            Ok(vec![from_reals(x.dtype(), windows.shape, &sums, true)?])
        }
        PoolKind::Lp { p } => {
            if *p < 1 {
                return Err(EvalError::Attribute("the p of a norm is at least one"));
            }
            let p = *p as f64;
            let mut sums = windows.sums(&reals(x)?, |x| libm::pow(x.abs(), p))?;
            for sum in &mut sums {
                *sum = libm::pow(*sum, 1.0 / p);
            }
            Ok(vec![from_reals(x.dtype(), windows.shape, &sums, true)?])
        }
    }
}

/// Where windows meet the elements of one plane.
struct Windows {
    /// Shape of the result.
    shape: Vec<usize>,
    axes: Vec<Axis>,
    inner: usize,
    outer: usize,
    outer_strides: Vec<isize>,
    /// Of each element of the window, in row-major order.
    meetings: Vec<Meeting>,
}

impl Windows {
    fn new(x: &Tensor, attrs: &PoolAttrs) -> Result<Self, EvalError> {
        let rank = x.shape().len().saturating_sub(2);
        let entries = [&attrs.kernel, &attrs.strides, &attrs.dilations];
        let pads = [&attrs.pads_before, &attrs.pads_after];
        if x.shape().len() < 2 || entries.into_iter().chain(pads).any(|v| v.len() != rank) {
            return Err(EvalError::shape("spatial axes do not fit", &[x.shape()]));
        }
        let mut shape = x.shape()[..2].to_vec();
        let mut axes = Vec::new();
        for (i, &inner) in x.shape()[2..].iter().enumerate() {
            let pad = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let pads = (pad(attrs.pads_before[i]), pad(attrs.pads_after[i]));
            let (kernel, stride) = (attrs.kernel[i], attrs.strides[i]);
            let axis = Axis::new(inner, kernel, stride, attrs.dilations[i], pads)?;
            let axis = axis.with_windows(attrs.ceil)?;
            shape.push(size(axis.outer)?);
            axes.push(axis);
        }
        let (inner_strides, outer_strides) = (strides(&x.shape()[2..]), strides(&shape[2..]));
        elements(&shape)?;
        // Only those elements of the window that meet x anywhere: padding may make a window far larger.
        let met: Vec<Vec<usize>> = axes.iter().map(Axis::met_elements).collect();
        let counts: Vec<_> = met.iter().map(Vec::len).collect();
        let mut meetings = Vec::new();
        let mut index = vec![0; rank];
        walk_indices(&counts, |choice| {
            for ((k, met), &i) in index.iter_mut().zip(&met).zip(choice) {
                *k = met[i];
            }
            meetings.push(meeting(&axes, &index, &inner_strides, &outer_strides));
        });
        let product = |sizes: &[usize]| sizes.iter().fold(1_usize, |p, &n| p.saturating_mul(n));
        let (inner, outer) = (product(&x.shape()[2..]), product(&shape[2..]));
        Ok(Self { shape, axes, inner, outer, outer_strides, meetings })
    }

    /// Calls `visit` with the place in x and in the result for all that meet.
    fn visit(&self, mut visit: impl FnMut(usize, usize)) -> Result<(), EvalError> {
        for plane in 0..elements(&self.shape[..2])? {
            for tap in &self.meetings {
                let start = [tap.inner_start, tap.outer_start];
                walk(&tap.shape, [&tap.inner_strides, &self.outer_strides], start, |[i, o]| {
                    visit(plane * self.inner + i, plane * self.outer + o);
                });
            }
        }
        Ok(())
    }

    fn sums(&self, values: &[f64], f: impl Fn(f64) -> f64) -> Result<Vec<f64>, EvalError> {
        let mut sums = filled(&self.shape, 0.0)?;
        self.visit(|from, to| sums[to] += f(values[from]))?;
        Ok(sums)
    }

    /// Elements of each window of a plane: those inside, or those inside of the padding too.
    fn divisors(&self, include_pad: bool) -> Result<Vec<f64>, EvalError> {
        let mut counts = filled(&self.shape[2..], 1.0)?;
        for (i, axis) in self.axes.iter().enumerate() {
            let (low, high) = match include_pad {
                true => (-axis.before, axis.inner + axis.after),
                false => (0, axis.inner),
            };
            let stride = self.outer_strides[i] as usize;
            for (place, count) in counts.iter_mut().enumerate() {
                let window = (place / stride % self.shape[2 + i]) as i128;
                *count *= axis.elements_between(window, low, high) as f64;
            }
        }
        Ok(counts)
    }

    /// The number of an element of x in the order asked for.
    fn index(&self, place: usize, order: IndexOrder) -> i64 {
        if order == IndexOrder::RowMajor {
            return place as i64;
        }
        let (mut rest, mut index, mut factor) = (place % self.inner, 0, 1);
        let mut coordinates = Vec::new();
        for axis in self.axes.iter().rev() {
            coordinates.push(rest % axis.inner as usize);
            rest /= axis.inner as usize;
        }
        for (axis, coordinate) in self.axes.iter().zip(coordinates.iter().rev()) {
            index += coordinate * factor;
            factor *= axis.inner as usize;
        }
        (place / self.inner * self.inner + index) as i64
    }
}

fn max_pool<N: Number>(
    x: &Tensor,
    windows: &Windows,
    values: &[N],
    indices: Option<IndexOrder>,
) -> Result<Vec<Tensor>, EvalError> {
    let mut best = filled(&windows.shape, N::limits(x.dtype()).0)?;
    let mut places = filled(&windows.shape, usize::MAX)?;
    windows.visit(|from, to| {
        let value = values[from];
        if places[to] == usize::MAX || value > best[to] || (value.is_nan() && !best[to].is_nan()) {
            best[to] = value;
            places[to] = from;
        }
    })?;
    let mut outputs = vec![N::encode(x.dtype(), windows.shape.clone(), best)?];
    if let Some(order) = indices {
        let number = |&place: &usize| match place {
            usize::MAX => -1,
            place => windows.index(place, order),
        };
        let numbers: Vec<i64> = places.iter().map(number).collect();
        outputs.push(from_bits(DType::I64, windows.shape.clone(), numbers)?);
    }
    Ok(outputs)
}
