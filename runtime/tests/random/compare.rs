//! How far results may be apart: as far as roundings carry them.
//!
//! Executors add in another order than the reference, keep single precision where it rounds to half precision, and have
//! functions of their own, so that each operation may be off by some units in the last place of what it computes with.
//! What that does to an output is measured, not guessed: the reference runs again and again with every result of a real
//! type changed by such amounts at random, and an output may be off by as much as it moved. Where a truth value, an
//! integer or a choice flips on the way, an element moves by what that makes of it, and so it is seen that a tie was
//! near.
//!
//! Elements that do not move must agree exactly.

use crate::build::{Case, Random, from_reals, reals};
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate_op;
use graphene_frontend::graph::Node;
use graphene_frontend::op::{Binary, CumulativeOp, Op, PoolKind, ReduceOp, ResizeMode, Unary};
use graphene_frontend::tensor::Tensor;

/// Units in the last place by which results are changed in every other run; what executors are off by is less.
const UNITS: f64 = 8.0;

/// And in those between: as executors do round, so that numbers are equal there as they may be.
const FEW_UNITS: f64 = 2.0;

/// Runs with changed results: more where fewer do not explain a difference. That a tie is near may show in few of them.
const RUNS: [u64; 3] = [4, 24, 240];

/// An element may be off by this many times what it moved.
const MOVES: f64 = 3.0;

/// What a comparison found.
#[derive(Default, Clone, Copy)]
pub(crate) struct Seen {
    /// Elements compared.
    pub(crate) elements: usize,
    /// Those that differ, and moved as far when results were changed.
    pub(crate) rounded: usize,
    /// Those among these that moved by a part of a hundred or more, were no number in some runs, or are no real numbers.
    pub(crate) near_ties: usize,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.rounded += other.rounded;
        self.near_ties += other.near_ties;
    }
}

/// What there is to compare with: the outputs, and how far they move, once that is asked for.
pub(crate) struct Expected<'a> {
    case: &'a Case,
    outputs: &'a [Tensor],
    moves: Moves,
}

impl<'a> Expected<'a> {
    pub(crate) fn new(case: &'a Case, outputs: &'a [Tensor]) -> Self {
        Self { case, outputs, moves: Moves::Measured { runs: 0, by: Vec::new() } }
    }

    /// Compares outputs with those expected, or says where they differ. `coarse` multiplies what roundings may do.
    pub(crate) fn compare(&mut self, actual: &[Tensor], coarse: f64) -> Result<Seen, String> {
        if actual.len() != self.outputs.len() {
            return Err(format!("{} outputs, not {}", actual.len(), self.outputs.len()));
        }
        let mut seen = Seen::default();
        for (number, (actual, expected)) in actual.iter().zip(self.outputs).enumerate() {
            if (actual.dtype(), actual.shape()) != (expected.dtype(), expected.shape()) {
                return Err(format!("output {number} is {actual:?}, not {expected:?}"));
            }
            seen.elements += expected.len();
            if actual.bytes() == expected.bytes() {
                continue;
            }
            let (real, size) = (expected.dtype().is_float(), expected.dtype().size());
            let (a, e) = (reals(actual), reals(expected));
            for (i, (a, e)) in a.into_iter().zip(e).enumerate() {
                let range = i * size..(i + 1) * size;
                let same = match real {
                    true => a == e || a.is_nan() && e.is_nan(),
                    false => actual.bytes()[range.clone()] == expected.bytes()[range],
                };
                if same {
                    continue;
                }
                let explains = |moved: f64| moved.is_infinite() || (a - e).abs() <= MOVES * moved;
                let mut runs = RUNS.iter().map(|&runs| self.moved(runs, coarse, [number, i]));
                let mut moved = 0.0;
                let explained = runs.any(|found| {
                    moved = found;
                    explains(found)
                });
                if !explained {
                    let moved = format!("it moves by {moved:e} where results are rounded");
                    return Err(format!("output {number}[{i}] is {a:e}, not {e:e}; {moved}"));
                }
                seen.rounded += 1;
                let tie = !real || moved > 0.01 * e.abs().max(1e-3);
                seen.near_ties += usize::from(tie);
            }
        }
        Ok(seen)
    }
}

/// The largest relative change by which a number becomes one of this type.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2_f64.powi(-11),
        DType::BF16 => 2_f64.powi(-8),
        DType::F32 => 2_f64.powi(-24),
        DType::F64 => 2_f64.powi(-53),
        _ => 0.0,
    }
}

/// The distance of the smallest numbers of a type.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2_f64.powi(-24),
        DType::BF16 | DType::F32 => 2_f64.powi(-126),
        _ => 0.0,
    }
}

/// How far outputs move in runs with changed results.
enum Moves {
    /// Each element of each output in so many runs.
    Measured { runs: u64, by: Vec<Vec<f64>> },
    /// A run failed, as it may where an index flips.
    Anywhere,
}

impl Expected<'_> {
    /// How far an element of an output moves in so many runs at least.
    fn moved(&mut self, least: u64, coarse: f64, [output, element]: [usize; 2]) -> f64 {
        while let Moves::Measured { runs, by } = &mut self.moves
            && *runs < least
        {
            let units = if runs.is_multiple_of(2) { UNITS } else { FEW_UNITS } * coarse;
            let mut change = Change { random: Random(*runs), together: *runs % 8 == 6, units };
            *runs += 1;
            match run(self.case, &mut change) {
                Some(changed) => note(by, self.outputs, &changed),
                None => self.moves = Moves::Anywhere,
            }
        }
        match &self.moves {
            Moves::Measured { by, .. } => by[output][element],
            Moves::Anywhere => f64::INFINITY,
        }
    }
}

/// Notes how far outputs are from those of the reference; without end where they stop being numbers.
fn note(moves: &mut Vec<Vec<f64>>, outputs: &[Tensor], changed: &[Tensor]) {
    moves.resize(outputs.len(), Vec::new());
    for ((moves, output), changed) in moves.iter_mut().zip(outputs).zip(changed) {
        moves.resize(output.len(), 0.0);
        let both = reals(output).into_iter().zip(reals(changed));
        for (moved, (base, changed)) in moves.iter_mut().zip(both) {
            let by = match (base.is_finite(), changed.is_finite()) {
                (true, true) => (base - changed).abs(),
                (false, false) if base == changed || base.is_nan() && changed.is_nan() => 0.0,
                _ => f64::INFINITY,
            };
            *moved = moved.max(by);
        }
    }
}

/// How results are changed.
struct Change {
    random: Random,
    /// All elements of a result in the same direction.
    together: bool,
    /// By how many units at most.
    units: f64,
}

/// The outputs, with the results of operations changed; `None` if an operation fails.
fn run(case: &Case, change: &mut Change) -> Option<Vec<Tensor>> {
    let mut inputs = case.inputs.iter();
    let mut values: Vec<Vec<Tensor>> = Vec::new();
    for (_, node) in case.graph.nodes() {
        if *node.op() == Op::Input {
            values.push(vec![inputs.next()?.clone()]);
            continue;
        }
        let value =
            |v: &graphene_frontend::graph::ValueId| &values[v.node.index()][v.output as usize];
        let operands: Vec<Option<&Tensor>> =
            node.inputs().iter().map(|input| input.as_ref().map(value)).collect();
        let mut results = evaluate_op(node.op(), &operands, &case.sizes).ok()?;
        for number in 0..results.len() {
            if results[number].dtype().is_float() {
                let amounts = amounts(node, &operands, &results, number, &case.sizes);
                results[number] = changed(&results[number], amounts, change);
            }
        }
        values.push(results);
    }
    let outputs = case.graph.outputs().iter();
    outputs.map(|(_, v)| values[v.node.index()].get(v.output as usize).cloned()).collect()
}

/// A result with its elements changed by up to so many units of these amounts.
fn changed(result: &Tensor, amounts: Option<Vec<f64>>, change: &mut Change) -> Tensor {
    let Some(amounts) = amounts else { return result.clone() };
    let dtype = result.dtype();
    let (unit, least) = (unit(dtype) * change.units, smallest(dtype));
    let direction = change.random.unit() * 2.0 - 1.0;
    let each = reals(result).into_iter().zip(amounts).map(|(x, amount)| {
        let part = if change.together { direction } else { change.random.unit() * 2.0 - 1.0 };
        let most = unit * amount + if x == 0.0 { 0.0 } else { least };
        match most.is_finite() {
            // What cancels may do so entirely.
            true if x.abs() <= most && change.random.chance(25) => 0.0,
            true => x + part * most,
            false => x,
        }
    });
    from_reals(dtype, result.shape().to_vec(), &each.collect::<Vec<_>>())
}

/// What a result's roundings are relative to, an element each: its own size and that of what was added up for it. `None`
/// where nothing is rounded.
fn amounts(
    node: &Node,
    operands: &[Option<&Tensor>],
    results: &[Tensor],
    number: usize,
    sizes: &Bindings,
) -> Option<Vec<f64>> {
    let result = &results[number];
    let own: Vec<f64> = reals(result).into_iter().map(f64::abs).collect();
    let n = operands.iter().flatten().map(|tensor| tensor.len()).max().unwrap_or(1) as f64;
    let largest = |i: usize| operands.get(i).copied().flatten().map_or(0.0, largest);
    let plus = |by: f64| Some(own.iter().map(|x| x + by).collect::<Vec<_>>());
    let times = |by: f64| Some(own.iter().map(|x| x * by).collect::<Vec<_>>());
    // The same of operands without signs: what was added up.
    let summed = |op: &Op| {
        let without: Vec<_> = operands.iter().map(|operand| operand.map(unsigned)).collect();
        let without: Vec<_> = without.iter().map(Option::as_ref).collect();
        let sums = evaluate_op(op, &without, sizes).ok()?;
        Some(own.iter().zip(reals(&sums[number])).map(|(a, b)| a + b.abs()).collect())
    };
    match node.op() {
        Op::Unary(unary) => match unary {
            Unary::Abs
            | Unary::Neg
            | Unary::Sign
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::Relu
            | Unary::ThresholdedRelu { .. } => None,
            _ => nudged(node.op(), operands, result, number, sizes),
        },
        Op::Binary(Binary::Add | Binary::Sub) => summed(&Op::Binary(Binary::Add)),
        Op::Binary(Binary::Min | Binary::Max) => None,
        Op::Binary(Binary::Pow) => nudged(node.op(), operands, result, number, sizes),
        Op::Binary(Binary::Mod | Binary::Rem) => plus(largest(0)),
        Op::Binary(_) => Some(own),
        Op::Cast { .. } => Some(own),
        Op::Reduce { op, .. } => match op {
            ReduceOp::Max | ReduceOp::Min => None,
            ReduceOp::Sum | ReduceOp::Mean => summed(node.op()),
            ReduceOp::LogSum => plus(largest(0) + n.ln()),
            ReduceOp::LogSumExp => plus(largest(0) + n.ln()),
            ReduceOp::Prod => times(n),
            ReduceOp::L1 | ReduceOp::L2 | ReduceOp::SumSquare => times(2.0),
        },
        Op::Cumulative { op: CumulativeOp::Prod, .. } => times(n),
        Op::Cumulative { op: CumulativeOp::Sum, .. }
        | Op::MatMul
        | Op::Conv(_)
        | Op::ConvTranspose { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. } => summed(node.op()),
        Op::Pool(attrs) => match attrs.kind {
            PoolKind::Max { .. } => None,
            PoolKind::Average { .. } => summed(node.op()),
            PoolKind::Lp { .. } => times(8.0),
        },
        Op::Softmax { log: true, .. } => plus(2.0 * largest(0) + n.ln()),
        Op::Softmax { log: false, .. } => times(1.0 + 2.0 * largest(0)),
        Op::LayerNorm { .. } => {
            let scale = if operands.get(1).copied().flatten().is_some() { largest(1) } else { 1.0 };
            let narrow = largest(0) * results.get(2).map_or(1.0, self::largest);
            let normed = scale * narrow;
            match number {
                0 => Some(own.iter().map(|x| x * (1.0 + narrow * narrow) + normed).collect()),
                1 => plus(largest(0)),
                _ => times(1.0 + narrow * narrow),
            }
        }
        Op::RmsNorm { .. } => times(2.0),
        Op::Attention(attrs) => {
            let deep = operands[0].and_then(|q| q.shape().last().copied()).unwrap_or(1) as f64;
            let scores = largest(0) * largest(1) * deep * f64::from(attrs.scale).abs();
            plus(largest(2) * (1.0 + scores + largest(3).min(100.0)))
        }
        Op::Rnn(_) => {
            let steps = operands[0].map_or(1, |x| x.shape()[0]) as f64;
            let width = |i: usize| operands[i].and_then(|w| w.shape().last().copied()).unwrap_or(1);
            let gates = largest(0) * largest(1) * width(1) as f64 + largest(2) * width(2) as f64;
            // A step's roundings grow in all those after it, as operands' do.
            let grown = nudged(node.op(), operands, result, number, sizes)?;
            Some(grown.iter().map(|x| 1.0 + steps * (1.0 + gates + x)).collect())
        }
        Op::Resize(attrs) => match attrs.mode {
            ResizeMode::Nearest(_) => None,
            ResizeMode::Linear | ResizeMode::Cubic { .. } => plus(4.0 * largest(0)),
        },
        Op::If { .. } | Op::Loop { .. } | Op::Scan(_) => plus(4.0 * (1.0 + largest(1) + n)),
        _ => None,
    }
}

/// The element furthest from zero that is finite.
fn largest(tensor: &Tensor) -> f64 {
    reals(tensor).into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// A tensor without signs; truth values have none.
fn unsigned(tensor: &Tensor) -> Tensor {
    match tensor.dtype().is_float() {
        true => {
            let all: Vec<f64> = reals(tensor).into_iter().map(f64::abs).collect();
            from_reals(tensor.dtype(), tensor.shape().to_vec(), &all)
        }
        false => tensor.clone(),
    }
}

/// How a function moves where its operands do by a unit or two, beside its own size and a unit of one.
fn nudged(
    op: &Op,
    operands: &[Option<&Tensor>],
    result: &Tensor,
    number: usize,
    sizes: &Bindings,
) -> Option<Vec<f64>> {
    let unit = unit(result.dtype());
    let mut amounts: Vec<f64> = reals(result).into_iter().map(|x| x.abs() + 1.0).collect();
    for by in [1.0 + 2.0 * unit, 1.0 - 2.0 * unit] {
        let nudge = |tensor: &Tensor| match tensor.dtype().is_float() {
            true => {
                let all: Vec<f64> = reals(tensor).into_iter().map(|x| x * by).collect();
                from_reals(tensor.dtype(), tensor.shape().to_vec(), &all)
            }
            false => tensor.clone(),
        };
        let moved: Vec<_> = operands.iter().map(|operand| operand.map(nudge)).collect();
        let moved: Vec<_> = moved.iter().map(Option::as_ref).collect();
        let moved = evaluate_op(op, &moved, sizes).ok()?;
        for ((amount, x), y) in amounts.iter_mut().zip(reals(result)).zip(reals(&moved[number])) {
            // Beside a place without a value there is nothing to be told from.
            let by = (x - y).abs() / unit;
            *amount += if by.is_finite() { by } else { 0.0 };
        }
    }
    Some(amounts)
}
