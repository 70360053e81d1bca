//! Support vector machines.

use super::super::helpers::Outputs;
use super::scores::Transform;
use super::{Labels, floats, largest, list, samples, table};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Value};
use crate::op::{Binary, Op, ReduceOp, Unary};
use crate::tensor::Tensor;

/// Probabilities of more classes are refused: each is some operations.
const MAX_PROBABLE: usize = 64;

/// How a sample is compared with a support vector.
#[derive(Clone, Copy)]
enum Kernel {
    /// x·v
    Linear,
    /// (gamma·x·v + offset)^degree
    Poly,
    /// e^(-gamma·|x - v|²)
    Rbf,
    /// tanh(gamma·x·v + offset)
    Sigmoid,
}

/// `x[n, features], vectors[v, features] → [n, v]`
fn compared(c: &mut Context<'_, '_>, x: ValueId, vectors: ValueId) -> Result<ValueId, OpError> {
    let kernel = match c.string("kernel_type").unwrap_or("LINEAR") {
        "LINEAR" => Kernel::Linear,
        "POLY" => Kernel::Poly,
        "RBF" => Kernel::Rbf,
        "SIGMOID" => Kernel::Sigmoid,
        other => {
            let why = "kernel_type must be one of LINEAR, POLY, RBF, SIGMOID; got ";
            return Err(c.invalid(format!("{why}{other}")));
        }
    };
    let [gamma, offset, degree] = match c.floats("kernel_params").unwrap_or_default() {
        [] => [0.0; 3],
        &[gamma, offset, degree] => [gamma, offset, degree].map(f64::from),
        other => {
            let count = other.len();
            return Err(c.invalid(format!("needs three kernel_params or none; got {count}")));
        }
    };
    let dot = |c: &mut Context<'_, '_>| {
        let columns = c.transpose(vectors, vec![1, 0])?;
        c.mat_mul(x, columns)
    };
    let affine = |c: &mut Context<'_, '_>| {
        let y = dot(c)?;
        let y = c.scaled(y, gamma)?;
        c.shifted(y, offset)
    };
    match kernel {
        Kernel::Linear => dot(c),
        Kernel::Poly => {
            let base = affine(c)?;
            let degree = c.scalar_like(base, degree)?;
            c.binary(Binary::Pow, base, degree)
        }
        Kernel::Sigmoid => {
            let base = affine(c)?;
            c.unary(Unary::Tanh, base)
        }
        Kernel::Rbf => {
            // Not by dot products: where vectors are long and near, their difference is what counts.
            let (x, vectors) = (c.unsqueeze(x, &[1])?, c.unsqueeze(vectors, &[0])?);
            let distance = c.minus(x, vectors)?;
            let square = c.reduce(ReduceOp::SumSquare, distance, vec![2], false)?;
            let power = c.scaled(square, -gamma)?;
            c.unary(Unary::Exp, power)
        }
    }
}

/// `[n, 1]`; the attribute `post_transform` changes nothing, as in onnxruntime.
pub(super) fn regressor(c: &mut Context<'_, '_>) -> Outputs {
    let x = c.input(0)?;
    let x = samples(c, x, DType::F32)?;
    let (coefficients, rho) = (floats(c, "coefficients")?, offsets(c, 1)?);
    let compared = match c.int_or("n_supports", 0) {
        0 => x,
        count => {
            let count = usize::try_from(count).unwrap_or(0);
            let vectors = table(c, floats(c, "support_vectors")?, count)?;
            compared(c, x, vectors)?
        }
    };
    let coefficients = table(c, coefficients, coefficients.len())?;
    let y = c.mat_mul(compared, coefficients)?;
    let rho = list(c, rho)?;
    let y = c.plus(y, rho)?;
    if c.int_or("one_class", 0) == 0 {
        return Ok(vec![y]);
    }
    let zero = c.scalar_like(y, 0.0)?;
    let inside = c.binary(Binary::Greater, y, zero)?;
    let (one, minus) = (c.scalar_like(y, 1.0)?, c.scalar_like(y, -1.0)?);
    Ok(vec![c.select(inside, one, minus)?])
}

/// The first of the numbers added to scores.
fn offsets<'m>(c: &Context<'_, 'm>, count: usize) -> Result<&'m [f32], OpError> {
    let rho = floats(c, "rho")?;
    rho.get(..count).ok_or_else(|| c.invalid(format!("needs {count} of `rho`; got {}", rho.len())))
}

/// Pairs of classes in the order of scores: 0 and 1, 0 and 2, …
fn pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..classes).flat_map(move |i| (i + 1..classes).map(move |j| (i, j)))
}

/// Every pair of classes has a score, which is a vote for one of them; the class of most votes wins.
pub(super) fn classifier(c: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let x = c.input(0)?;
    let x = samples(c, x, DType::F32)?;
    let labels = Labels::of(c, "classlabels_ints")?;
    let transform = Transform::named(c)?;
    let classes = labels.len();
    let per_class = c.ints("vectors_per_class").unwrap_or_default();
    if per_class.iter().all(|&count| count == 0) {
        let coefficients = table(c, floats(c, "coefficients")?, classes)?;
        let coefficients = c.transpose(coefficients, vec![1, 0])?;
        let scores = c.mat_mul(x, coefficients)?;
        let rho = list(c, offsets(c, 1)?)?;
        let scores = c.plus(scores, rho)?;
        let class = largest(c, scores)?;
        let scores = transform.apply(c, scores, classes)?;
        return Ok(vec![labels.at(c, class)?, scores.into()]);
    }
    let scores = pair_scores(c, x, per_class, classes)?;
    let class = most_votes(c, scores, classes)?;
    let probable = !c.floats("prob_a").unwrap_or_default().is_empty();
    let scores = if probable {
        let probabilities = probabilities(c, scores, classes)?;
        transform.apply(c, probabilities, classes)?
    } else if classes == 2 {
        transform.pair(c, scores, transform != Transform::Nothing)?
    } else {
        transform.apply(c, scores, pairs(classes).count())?
    };
    Ok(vec![labels.at(c, class)?, scores.into()])
}

/// `[n, pairs]`: positive for the first of the pair.
fn pair_scores(
    c: &mut Context<'_, '_>,
    x: ValueId,
    per_class: &[i64],
    classes: usize,
) -> Result<ValueId, OpError> {
    let vectors = floats(c, "support_vectors")?;
    let coefficients = floats(c, "coefficients")?;
    if per_class.len() != classes {
        let found = per_class.len();
        return Err(c.invalid(format!("needs {classes} vectors_per_class; got {found}")));
    }
    let mut starts = Vec::with_capacity(classes + 1);
    let mut count = 0_usize;
    for &more in per_class {
        starts.push(count);
        let negative = |_| c.invalid(format!("vectors_per_class must not be negative; got {more}"));
        count = count.saturating_add(usize::try_from(more).map_err(negative)?);
    }
    starts.push(count);
    let table_of_vectors = table(c, vectors, count)?;
    if coefficients.len() / (classes - 1) != count || coefficients.len() % (classes - 1) != 0 {
        let (rows, found) = (classes - 1, coefficients.len());
        let why =
            format!("needs coefficients, {rows} rows of {count} support vectors; got {found}");
        return Err(c.invalid(why));
    }
    let count_of_pairs = classes * (classes - 1) / 2;
    let rho = list(c, offsets(c, count_of_pairs)?)?;
    c.take_bytes(count.saturating_mul(count_of_pairs).saturating_mul(4))?;
    // Of both classes of a pair, the vectors of one count by the coefficients for the other.
    let mut weights = vec![0.0_f32; count * count_of_pairs];
    for (pair, (i, j)) in pairs(classes).enumerate() {
        for (class, row) in [(i, j - 1), (j, i)] {
            for vector in starts[class]..starts[class + 1] {
                weights[vector * count_of_pairs + pair] = coefficients[row * count + vector];
            }
        }
    }
    let weights = table(c, &weights, count)?;
    let compared = compared(c, x, table_of_vectors)?;
    let scores = c.mat_mul(compared, weights)?;
    c.plus(scores, rho)
}

/// The class of most votes, the first of equals.
fn most_votes(
    c: &mut Context<'_, '_>,
    scores: ValueId,
    classes: usize,
) -> Result<ValueId, OpError> {
    // A vote for the first of a pair is none for the second.
    let count_of_pairs = classes * (classes - 1) / 2;
    c.take_bytes(count_of_pairs.saturating_mul(classes).saturating_mul(4))?;
    let mut moved = vec![0.0_f32; count_of_pairs * classes];
    let mut second = vec![0.0_f32; classes];
    for (pair, (i, j)) in pairs(classes).enumerate() {
        moved[pair * classes + i] = 1.0;
        moved[pair * classes + j] = -1.0;
        second[j] += 1.0;
    }
    let zero = c.scalar_like(scores, 0.0)?;
    let first = c.binary(Binary::Greater, scores, zero)?;
    let first = c.cast(first, DType::F32)?;
    let (moved, second) = (table(c, &moved, count_of_pairs)?, list(c, &second)?);
    let votes = c.mat_mul(first, moved)?;
    let votes = c.plus(votes, second)?;
    largest(c, votes)
}

/// `[n, pairs] → [n, classes]`: the probabilities that agree best with those of the pairs (Wu, Lin, Weng: Probability
/// Estimates for Multi-class Classification by Pairwise Coupling, JMLR 2004, algorithm 2), which Platt's sigmoids give.
fn probabilities(
    c: &mut Context<'_, '_>,
    scores: ValueId,
    classes: usize,
) -> Result<ValueId, OpError> {
    if classes > MAX_PROBABLE {
        return Err(c.unsupported(format!("probabilities of {classes} classes")));
    }
    let r = pairwise(c, scores, classes)?;
    let turned = c.transpose(r, vec![0, 2, 1])?;
    let across = c.times(r, turned)?;
    let squares = c.reduce(ReduceOp::SumSquare, turned, vec![2], true)?;
    let mut diagonal = vec![0.0_f32; classes * classes];
    diagonal.iter_mut().step_by(classes + 1).for_each(|item| *item = 1.0);
    let diagonal = table(c, &diagonal, classes)?;
    let squares = c.times(squares, diagonal)?;
    let q = c.minus(squares, across)?;
    let rows = c.shape(scores)[0].clone();
    let equal = c.scalar(DType::F32, 1.0 / classes as f64)?;
    let start = c.expand(equal, vec![rows, Dim::from(classes)])?;
    let types = [
        crate::types::TensorType::new(DType::I64, Vec::new()),
        crate::types::TensorType::new(DType::Bool, Vec::new()),
        c.ty(start),
        c.ty(q),
    ];
    let body = c.body(&types, |c, inputs| step(c, inputs[2], inputs[3], classes))?;
    let trips = c.constant(Tensor::scalar(MAX_STEPS));
    let op = Op::Loop { body: Box::new(body), carried: 1 };
    Ok(c.add_optional(op, &[Some(trips), None, Some(start), Some(q)])?[0])
}

/// The algorithm ends after so many steps, as in LIBSVM.
const MAX_STEPS: i64 = 100;

/// `[n, classes, classes]`: the probability of the row's class where only it and the column's are possible.
fn pairwise(c: &mut Context<'_, '_>, scores: ValueId, classes: usize) -> Result<ValueId, OpError> {
    let count = classes * (classes - 1) / 2;
    let (a, b) = (floats(c, "prob_a")?, floats(c, "prob_b")?);
    if a.len() != count || b.len() != count {
        return Err(c.invalid(format!("needs {count} of `prob_a` and `prob_b`")));
    }
    let (a, b) = (list(c, a)?, list(c, b)?);
    let scaled = c.times(scores, a)?;
    let scaled = c.plus(scaled, b)?;
    let scaled = c.unary(Unary::Neg, scaled)?;
    let first = c.unary(Unary::Sigmoid, scaled)?;
    let (low, high) = (c.scalar_like(first, 1e-7)?, c.scalar_like(first, 1.0 - 1e-7)?);
    let first = c.binary(Binary::Max, first, low)?;
    let first = c.binary(Binary::Min, first, high)?;
    let second = c.unary(Unary::Neg, first)?;
    let second = c.shifted(second, 1.0)?;
    let zero = c.scalar_like(first, 0.0)?;
    let zero = super::filled(c, zero, first, 1)?;
    let all = c.concat(1, &[first, second, zero])?;
    // Where each stands: first those for the first of a pair, then those for the second, then the zero.
    let mut places = vec![2 * count as i64; classes * classes];
    for (pair, (i, j)) in pairs(classes).enumerate() {
        places[i * classes + j] = pair as i64;
        places[j * classes + i] = (count + pair) as i64;
    }
    let places = Tensor::from_vec(vec![classes, classes], places)?;
    let places = c.constant(places);
    c.add(Op::Gather { axis: 1 }, &[all, places])
}

/// A step of the algorithm for all samples: whether another one is needed, and the probabilities, which stay where they
/// agree well enough.
fn step(c: &mut Context<'_, '_>, start: ValueId, q: ValueId, classes: usize) -> Outputs {
    let column = c.unsqueeze(start, &[2])?;
    let qp = c.mat_mul(q, column)?;
    let mut qp = c.squeeze(qp, 2)?;
    let pqp = c.times(start, qp)?;
    let mut pqp = c.reduce(ReduceOp::Sum, pqp, vec![1], true)?;
    let error = c.minus(qp, pqp)?;
    let error = c.unary(Unary::Abs, error)?;
    let error = c.reduce(ReduceOp::Max, error, vec![1], true)?;
    let enough = c.scalar_like(error, 0.005 / classes as f64)?;
    let done = c.binary(Binary::Less, error, enough)?;
    let mut p = start;
    for t in 0..classes {
        let row = c.narrow(q, 1, Dim::from(t), Dim::from(1))?;
        let row = c.squeeze(row, 1)?;
        let own = c.narrow(row, 1, Dim::from(t), Dim::from(1))?;
        let along = c.narrow(qp, 1, Dim::from(t), Dim::from(1))?;
        let gap = c.minus(pqp, along)?;
        let move_by = c.over(gap, own)?;
        let grown = c.shifted(move_by, 1.0)?;
        let mut unit = vec![0.0_f32; classes];
        unit[t] = 1.0;
        let unit = list(c, &unit)?;
        let moved = c.times(move_by, unit)?;
        p = c.plus(p, moved)?;
        p = c.over(p, grown)?;
        let bend = c.times(move_by, own)?;
        let twice = c.scaled(along, 2.0)?;
        let slope = c.plus(bend, twice)?;
        let change = c.times(move_by, slope)?;
        pqp = c.plus(pqp, change)?;
        pqp = c.over(pqp, grown)?;
        pqp = c.over(pqp, grown)?;
        let change = c.times(move_by, row)?;
        qp = c.plus(qp, change)?;
        qp = c.over(qp, grown)?;
    }
    let p = c.select(done, start, p)?;
    let more = c.unary(Unary::Not, done)?;
    let more = c.reduce(ReduceOp::Max, more, vec![0, 1], false)?;
    Ok(vec![more, p])
}
