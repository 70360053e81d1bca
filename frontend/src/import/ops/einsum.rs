//! Einstein's sums, as transposes and matrix products.

use super::helpers::Outputs;
use super::{Row, row};
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::{Binary, ReduceOp};

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[row("Einsum", 12, einsum)];

/// The name of an axis: a letter, or a place counted from the end of the ellipsis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Letter(char),
    Ellipsis(usize),
}

/// A value whose axes have names, all different.
struct Operand {
    value: ValueId,
    labels: Vec<Label>,
}

fn einsum(c: &mut Context<'_, '_>) -> Outputs {
    let equation: String = match c.string("equation") {
        Some(equation) => equation.chars().filter(|ch| !ch.is_whitespace()).collect(),
        None => return Err(c.invalid("`equation` is missing")),
    };
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != c.input_count() {
        return Err(c.invalid("`equation` has not as many terms as there are inputs"));
    }
    let mut operands = Vec::with_capacity(terms.len());
    for (i, term) in terms.iter().enumerate() {
        let value = c.input(i)?;
        let labels = labels(c, term, Some(c.rank(value)))?;
        operands.push(diagonal(c, Operand { value, labels })?);
    }
    let output = match right {
        Some(right) => {
            let ellipsis = operands.iter().flat_map(|o| &o.labels).filter_map(Label::place);
            let dots = ellipsis.map(|place| place + 1).max().unwrap_or(0);
            let letters = right.chars().filter(|ch| *ch != '.').count();
            let rank = right.contains("...").then_some(dots + letters);
            labels(c, right, rank)?
        }
        None => implicit_output(left, &operands),
    };
    let known = |label: &Label| operands.iter().any(|o| o.labels.contains(label));
    let unique = output.iter().enumerate().all(|(i, label)| !output[..i].contains(label));
    if !output.iter().all(known) || !unique {
        return Err(c.invalid("the result of `equation` names other axes than its terms"));
    }
    let mut operands = operands.into_iter();
    let first = operands.next().ok_or_else(|| c.invalid("there are no inputs"))?;
    let rest: Vec<Operand> = operands.collect();
    let mut result = first;
    for (i, next) in rest.iter().enumerate() {
        let later = |label: &Label| {
            output.contains(label) || rest[i + 1..].iter().any(|o| o.labels.contains(label))
        };
        result = contract(c, result, next, later)?;
    }
    let result = sum_out(c, result, |label| output.contains(label))?;
    let perm = output.iter().filter_map(|label| result.place(label)).collect();
    Ok(vec![c.permute(result.value, perm)?])
}

impl Label {
    fn place(&self) -> Option<usize> {
        match self {
            Label::Ellipsis(place) => Some(*place),
            Label::Letter(_) => None,
        }
    }
}

impl Operand {
    fn place(&self, label: &Label) -> Option<usize> {
        self.labels.iter().position(|l| l == label)
    }
}

impl Context<'_, '_> {
    /// A transpose, left out where it changes nothing.
    pub(super) fn permute(&mut self, v: ValueId, perm: Vec<usize>) -> Result<ValueId, OpError> {
        if perm.iter().copied().eq(0..self.rank(v)) {
            return Ok(v);
        }
        self.transpose(v, perm)
    }
}

/// The names in a term; an ellipsis takes what `rank` leaves for it.
fn labels(c: &Context<'_, '_>, term: &str, rank: Option<usize>) -> Result<Vec<Label>, OpError> {
    let letters = term.chars().filter(|ch| *ch != '.').count();
    let refuse = || c.invalid("`equation` does not fit its inputs");
    let mut labels = Vec::new();
    let mut rest = term;
    while let Some(ch) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            let dots = rank.and_then(|rank| rank.checked_sub(letters)).ok_or_else(refuse)?;
            labels.extend((0..dots).rev().map(Label::Ellipsis));
            rest = after;
        } else if ch.is_ascii_alphabetic() {
            labels.push(Label::Letter(ch));
            rest = &rest[1..];
        } else {
            return Err(refuse());
        }
    }
    match rank {
        Some(rank) if rank != labels.len() => Err(refuse()),
        _ => Ok(labels),
    }
}

/// Without an arrow: the ellipsis, then every letter that stands once, in alphabetical order.
fn implicit_output(left: &str, operands: &[Operand]) -> Vec<Label> {
    let ellipsis = operands.iter().flat_map(|o| &o.labels).filter_map(Label::place);
    let dots = ellipsis.map(|place| place + 1).max().unwrap_or(0);
    let mut letters: Vec<char> = left.chars().filter(char::is_ascii_alphabetic).collect();
    letters.sort_unstable();
    let once = letters.chunk_by(|a, b| a == b).filter(|run| run.len() == 1);
    (0..dots).rev().map(Label::Ellipsis).chain(once.map(|run| Label::Letter(run[0]))).collect()
}

/// Axes of one name within a term become one: all but the diagonal is zeroed, then summed away.
fn diagonal(c: &mut Context<'_, '_>, mut operand: Operand) -> Result<Operand, OpError> {
    while let Some((i, j)) = repeated(&operand.labels) {
        let shape = c.shape(operand.value);
        let rank = shape.len();
        let rows = c.iota(shape[i].clone(), i, rank)?;
        let columns = c.iota(shape[j].clone(), j, rank)?;
        let on = c.binary(Binary::Equal, rows, columns)?;
        let zero = c.scalar_like(operand.value, 0.0)?;
        let masked = c.select(on, operand.value, zero)?;
        operand.value = c.reduce(ReduceOp::Sum, masked, vec![j], false)?;
        operand.labels.remove(j);
    }
    Ok(operand)
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    let place =
        |(j, label): (usize, &Label)| Some((labels[..j].iter().position(|l| l == label)?, j));
    labels.iter().enumerate().find_map(place)
}

/// The operand summed over every axis that is not kept.
fn sum_out(
    c: &mut Context<'_, '_>,
    operand: Operand,
    keep: impl Fn(&Label) -> bool,
) -> Result<Operand, OpError> {
    let axes: Vec<usize> =
        (0..operand.labels.len()).filter(|&axis| !keep(&operand.labels[axis])).collect();
    if axes.is_empty() {
        return Ok(operand);
    }
    let value = c.reduce(ReduceOp::Sum, operand.value, axes, false)?;
    Ok(Operand { value, labels: operand.labels.into_iter().filter(|l| keep(l)).collect() })
}

/// The product of two operands, summed over what they share and nothing after them names.
fn contract(
    c: &mut Context<'_, '_>,
    a: Operand,
    b: &Operand,
    later: impl Fn(&Label) -> bool,
) -> Result<Operand, OpError> {
    let b_labels = b.labels.clone();
    let a = sum_out(c, a, |label| later(label) || b_labels.contains(label))?;
    let a_labels = a.labels.clone();
    let b = Operand { value: b.value, labels: b.labels.clone() };
    let b = sum_out(c, b, |label| later(label) || a_labels.contains(label))?;
    let pick = |from: &Operand, other: &Operand, shared: bool, kept: bool| -> Vec<Label> {
        let fits = |label: &&Label| other.labels.contains(label) == shared && later(label) == kept;
        from.labels.iter().filter(fits).copied().collect()
    };
    let batch = pick(&a, &b, true, true);
    let summed = pick(&a, &b, true, false);
    let rows = pick(&a, &b, false, true);
    let columns = pick(&b, &a, false, true);
    let left = matrix(c, &a, [&batch, &rows, &summed])?;
    let right = matrix(c, &b, [&batch, &summed, &columns])?;
    let matmul = c.mat_mul(left, right)?;
    let mut shape = c.shape(matmul);
    shape.truncate(batch.len());
    for (labels, operand) in [(&rows, &a), (&columns, &b)] {
        let own = c.shape(operand.value);
        shape.extend(labels.iter().filter_map(|l| operand.place(l)).map(|axis| own[axis].clone()));
    }
    let value = c.reshape(matmul, shape)?;
    Ok(Operand { value, labels: [batch, rows, columns].concat() })
}

/// The operand as matrices: the first group of axes as they are, the others each as one.
fn matrix(
    c: &mut Context<'_, '_>,
    operand: &Operand,
    [batch, rows, columns]: [&[Label]; 3],
) -> Result<ValueId, OpError> {
    let place = |label: &Label| operand.place(label);
    let perm: Vec<usize> = batch.iter().chain(rows).chain(columns).filter_map(place).collect();
    let value = c.permute(operand.value, perm)?;
    let shape = c.shape(value);
    let elements = |dims: &[Dim]| dims.iter().product::<Dim>();
    let (batch_dims, rest) = shape.split_at(batch.len());
    let (row_dims, column_dims) = rest.split_at(rows.len());
    let mut flat = batch_dims.to_vec();
    flat.extend([elements(row_dims), elements(column_dims)]);
    if flat == shape {
        return Ok(value);
    }
    c.reshape(value, flat)
}
