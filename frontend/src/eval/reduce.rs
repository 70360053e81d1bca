//! Reductions, running sums and orders along axes.

use super::error::EvalError;
use super::number::{
    Number, bits, elements, filled, from_bits, from_integers, from_reals, integers, reals, reserve,
    with_bits, with_number,
};
use super::walk::{split_at_axis, strides, walk};
use crate::dtype::DType;
use crate::op::{CumulativeOp, ReduceOp};
use crate::tensor::Tensor;
use std::cmp::Ordering;

/// [`crate::op::Op::Reduce`].
pub(super) fn reduce(
    x: &Tensor,
    op: ReduceOp,
    axes: &[usize],
    keep: bool,
) -> Result<Tensor, EvalError> {
    let reduction = Reduction::new(x, axes, keep)?;
    if axes.is_empty() {
        return Ok(x.clone());
    }
    let dtype = x.dtype();
    let shape = reduction.shape.clone();
    if dtype == DType::Bool && !matches!(op, ReduceOp::Max | ReduceOp::Min) {
        return Err(EvalError::Unsupported(dtype));
    }
    let logarithmic = match op {
        ReduceOp::L2 | ReduceOp::LogSum | ReduceOp::LogSumExp => true,
        ReduceOp::Mean => dtype.is_float(),
        ReduceOp::Sum
        | ReduceOp::Prod
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::L1
        | ReduceOp::SumSquare => false,
    };
    if logarithmic {
        let values = real_reduction(&reduction, op, &reals(x)?)?;
        return from_reals(dtype, shape, &values, true);
    }
    if op == ReduceOp::Mean {
        let sums = reduction.fold(&integers(x)?, 0, i128::plus)?;
        let count = reduction.count as i128;
        let means: Vec<_> = sums.iter().map(|sum| sum.checked_div(count).unwrap_or(0)).collect();
        return from_integers(dtype, shape, &means);
    }
    with_number!(dtype, N => {
        let values = N::decode(x)?;
        let (lowest, highest) = N::limits(dtype);
        let result = match op {
            ReduceOp::Prod => reduction.fold(&values, N::ONE, Number::times)?,
            ReduceOp::Max => reduction.fold(&values, lowest, Number::larger)?,
            ReduceOp::Min => reduction.fold(&values, highest, Number::smaller)?,
            ReduceOp::L1 => reduction.fold(&values, N::ZERO, |sum, x| sum.plus(x.abs()))?,
            ReduceOp::SumSquare => reduction.fold(&values, N::ZERO, |sum, x| sum.plus(x.times(x)))?,
            _ => reduction.fold(&values, N::ZERO, Number::plus)?,
        };
        N::encode(dtype, shape, result)
    })
}

fn real_reduction(
    reduction: &Reduction,
    op: ReduceOp,
    values: &[f64],
) -> Result<Vec<f64>, EvalError> {
    let sum = |values: &[f64]| reduction.fold(values, 0.0, f64::plus);
    let mut result = match op {
        ReduceOp::L2 => reduction.fold(values, 0.0, |sum, x| sum + x * x)?,
        ReduceOp::LogSumExp => return log_sum_exp(reduction, values),
        _ => sum(values)?,
    };
    for value in &mut result {
        *value = match op {
            ReduceOp::L2 => value.sqrt(),
            ReduceOp::LogSum => libm::log(*value),
            ReduceOp::Mean => *value / reduction.count as f64,
            _ => *value,
        };
    }
    Ok(result)
}

fn log_sum_exp(reduction: &Reduction, values: &[f64]) -> Result<Vec<f64>, EvalError> {
    let largest = reduction.fold(values, f64::NEG_INFINITY, Number::larger)?;
    let shift = |place: usize| if largest[place].is_finite() { largest[place] } else { 0.0 };
    let mut sums = filled(&[largest.len()], 0.0)?;
    reduction.visit(|from, to| sums[to] += libm::exp(values[from] - shift(to)));
    Ok(sums.iter().enumerate().map(|(i, &sum)| libm::log(sum) + shift(i)).collect())
}

/// Which elements meet in which place of a result.
struct Reduction {
    from: Vec<usize>,
    /// Strides of the result, zero along the reduced axes.
    to: Vec<isize>,
    /// Shape of the result.
    shape: Vec<usize>,
    /// Elements that meet in one place.
    count: usize,
}

impl Reduction {
    fn new(x: &Tensor, axes: &[usize], keep: bool) -> Result<Self, EvalError> {
        let from = x.shape().to_vec();
        let ascending = axes.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || axes.last().is_some_and(|&axis| axis >= from.len()) {
            return Err(EvalError::shape("reduced axes are ascending axes", &[&from, axes]));
        }
        let mut kept = from.clone();
        let mut count = 1_usize;
        for &axis in axes {
            count = count.saturating_mul(from[axis]);
            kept[axis] = 1;
        }
        elements(&kept)?;
        let mut to = strides(&kept);
        for &axis in axes {
            to[axis] = 0;
        }
        let reduced = |axis: &usize| axes.binary_search(axis).is_ok();
        let shape = match keep {
            true => kept,
            false => (0..from.len()).filter(|i| !reduced(i)).map(|i| from[i]).collect(),
        };
        Ok(Self { from, to, shape, count })
    }

    fn visit(&self, mut visit: impl FnMut(usize, usize)) {
        let mut from = 0;
        walk(&self.from, [&self.to], [0], |[to]| {
            visit(from, to);
            from += 1;
        });
    }

    fn fold<T: Copy>(
        &self,
        values: &[T],
        initial: T,
        meet: impl Fn(T, T) -> T,
    ) -> Result<Vec<T>, EvalError> {
        let mut result = filled(&self.shape, initial)?;
        self.visit(|from, to| result[to] = meet(result[to], values[from]));
        Ok(result)
    }
}

fn checked_axis(x: &Tensor, axis: usize) -> Result<(), EvalError> {
    if axis >= x.shape().len() {
        return Err(EvalError::shape("there is no such axis", &[x.shape(), &[axis]]));
    }
    Ok(())
}

/// [`crate::op::Op::ArgReduce`]; a NaN counts as the largest and the smallest.
pub(super) fn arg_reduce(
    x: &Tensor,
    axis: usize,
    largest: bool,
    keep: bool,
    last: bool,
) -> Result<Tensor, EvalError> {
    checked_axis(x, axis)?;
    let mut shape = x.shape().to_vec();
    if shape[axis] == 0 {
        return Err(EvalError::shape("nothing to choose from", &[x.shape()]));
    }
    if keep {
        shape[axis] = 1;
    } else {
        shape.remove(axis);
    }
    let mut places: Vec<i64> = reserve(&shape)?;
    if x.is_empty() {
        return from_bits(DType::I64, shape, places);
    }
    let (outer, size, inner) = split_at_axis(x.shape(), axis);
    with_number!(x.dtype(), N => {
        let values = N::decode(x)?;
        let beats = |new: N, old: N| match (new.is_nan(), old.is_nan()) {
            (_, true) => last && new.is_nan(),
            (true, false) => true,
            _ if new == old => last,
            _ => (new > old) == largest,
        };
        for block in 0..outer {
            for column in 0..inner {
                let value = |i: usize| values[(block * size + i) * inner + column];
                let best = (1..size).fold(0, |best, i| if beats(value(i), value(best)) { i } else { best });
                places.push(best as i64);
            }
        }
    });
    from_bits(DType::I64, shape, places)
}

/// [`crate::op::Op::Cumulative`].
pub(super) fn cumulative(
    x: &Tensor,
    op: CumulativeOp,
    axis: usize,
    exclusive: bool,
    reverse: bool,
) -> Result<Tensor, EvalError> {
    checked_axis(x, axis)?;
    if x.dtype() == DType::Bool {
        return Err(EvalError::Unsupported(x.dtype()));
    }
    if x.is_empty() {
        return Ok(x.clone());
    }
    let (outer, size, inner) = split_at_axis(x.shape(), axis);
    with_number!(x.dtype(), N => {
        let mut values = N::decode(x)?;
        let (initial, meet): (N, fn(N, N) -> N) = match op {
            CumulativeOp::Sum => (N::ZERO, Number::plus),
            CumulativeOp::Prod => (N::ONE, Number::times),
        };
        for block in 0..outer {
            for column in 0..inner {
                let mut running = initial;
                for i in 0..size {
                    let i = if reverse { size - 1 - i } else { i };
                    let value = &mut values[(block * size + i) * inner + column];
                    let next = meet(running, *value);
                    *value = if exclusive { running } else { next };
                    running = next;
                }
            }
        }
        N::encode(x.dtype(), x.shape().to_vec(), values)
    })
}

/// [`crate::op::Op::TopK`]; a NaN counts as larger than all numbers.
pub(super) fn top_k(
    x: &Tensor,
    k: usize,
    axis: usize,
    largest: bool,
) -> Result<[Tensor; 2], EvalError> {
    checked_axis(x, axis)?;
    let (outer, size, inner) = split_at_axis(x.shape(), axis);
    if k > size {
        return Err(EvalError::shape("not as many elements along the axis", &[x.shape(), &[k]]));
    }
    let mut shape = x.shape().to_vec();
    shape[axis] = k;
    if x.is_empty() {
        return Ok([Tensor::zeros(x.dtype(), shape.clone())?, Tensor::zeros(DType::I64, shape)?]);
    }
    let mut places = filled(&shape, 0_usize)?;
    let mut indices = filled(&shape, 0_i64)?;
    with_number!(x.dtype(), N => {
        let values = N::decode(x)?;
        let mut order = Vec::new();
        for block in 0..outer {
            for column in 0..inner {
                let place = |i: usize| (block * size + i) * inner + column;
                order.clear();
                order.extend(0..size);
                order.sort_by(|&a, &b| {
                    let ordering = total_order(values[place(a)], values[place(b)]);
                    if largest { ordering.reverse() } else { ordering }
                });
                for (rank, &i) in order[..k].iter().enumerate() {
                    let to = (block * k + rank) * inner + column;
                    places[to] = place(i);
                    indices[to] = i as i64;
                }
            }
        }
    });
    let values = with_bits!(x.dtype(), B => {
        let from = bits::<B>(x);
        let chosen: Vec<B> = places.iter().map(|&place| from[place]).collect();
        from_bits(x.dtype(), shape.clone(), chosen)?
    });
    Ok([values, from_bits(DType::I64, shape, indices)?])
}

fn total_order<N: Number>(a: N, b: N) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
