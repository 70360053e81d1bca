//! Recurrent cells from the operations that exporters spell them with: one step of a layer each.
//!
//! A cell is found from its new state inwards. What a gate takes is a sum of matmuls with constant weights,
//! however they are cut and joined; its share of them is sliced out, and all gates are joined in ONNX's order.
//! All that is made of constants is computed once.

use crate::rewrite::language::add_operation;
use crate::rewrite::rule::{Rule, Site, law, rule};
use egg::Id;
use graphene_frontend::dim::Dim;
use graphene_frontend::op::{Binary, Op, RnnAttrs, RnnCell, RnnDirection, SliceAxis, Unary};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    rule("lstm-cell", "(Mul~ ?o (Tanh ?c))", &[], lstm_cell),
    rule("gru-cell",  "(Add~ ?n (Mul~ ?z (Sub ?h ?n))) | (Add~ (Mul~ (Sub ?one ?z) ?n) (Mul~ ?z ?h))", &[], gru_cell),
];

/// A recurrent layer's own.
pub(super) const LAYERS: &[Rule] = &[law("zero-state", zero_state)];

/// Classes that are looked at for one gate.
const VISITS: usize = 48;

/// Columns `start..start + len` of a matrix.
#[derive(Clone, Copy)]
struct Columns {
    start: i64,
    len: i64,
}

/// `Σ value·weight + Σ bias`.
struct Sum {
    matmuls: Vec<(Id, Id)>,
    biases: Vec<Id>,
}

/// The elements of a class's rows, if it is a matrix whose rows are of a known length.
fn width(s: &Site<'_>, id: Id) -> Option<i64> {
    let [_, width] = &s.ty(id)?.shape[..] else { return None };
    width.known()
}

/// What a class says that these columns of it are the sum of.
fn sum(s: &mut Site<'_>, id: Id, columns: Columns, visits: &mut usize) -> Option<Sum> {
    let Some(left) = visits.checked_sub(1) else {
        s.terms.analysis.searches_cut += 1;
        return None;
    };
    *visits = left;
    // Matmuls of a state of zeros are constants too.
    if s.is_constant(id) && s.ty(id)?.rank() < 2 {
        let bias = bias(s, id, columns)?;
        return Some(Sum { matmuls: Vec::new(), biases: vec![bias] });
    }
    for [x, w] in s.operands(id, "MatMul") {
        if let Some(matmuls) = matmuls(s, x, w, columns) {
            return Some(Sum { matmuls, biases: Vec::new() });
        }
    }
    for [a, b] in s.operands(id, "Add") {
        let Some(mut a) = sum(s, a, columns, visits) else { continue };
        let Some(b) = sum(s, b, columns, visits) else { continue };
        a.matmuls.extend(b.matmuls);
        a.biases.extend(b.biases);
        return Some(a);
    }
    let (source, columns) = cut(s, id, columns)?;
    sum(s, source, columns, visits)
}

/// A row of constants, or one number for all of the row.
fn bias(s: &mut Site<'_>, id: Id, columns: Columns) -> Option<Id> {
    if s.ty(id)?.elements() == 1 {
        let one = s.reshape(id, Vec::new())?;
        return s.add(Op::Expand(vec![Dim::from(columns.len)]), &[one]);
    }
    if s.ty(id)?.rank() == 1 { slice(s, id, 0, columns) } else { None }
}

/// The matmuls of `x·w`, one for each part that x is joined of.
fn matmuls(s: &mut Site<'_>, x: Id, w: Id, columns: Columns) -> Option<Vec<(Id, Id)>> {
    if !s.is_constant(w) || s.ty(w)?.rank() != 2 || s.ty(x)?.rank() != 2 {
        return None;
    }
    let w = slice(s, w, 1, columns)?;
    let parts = s.operations(x, "Concat").into_iter().find(|(op, _)| *op == Op::Concat { axis: 1 });
    let Some((_, parts)) = parts else { return Some(vec![(x, w)]) };
    let mut matmuls = Vec::with_capacity(parts.len());
    let mut start = 0;
    for part in parts.into_iter().flatten() {
        let len = width(s, part)?;
        matmuls.push((part, slice(s, w, 0, Columns { start, len })?));
        start += len;
    }
    Some(matmuls)
}

fn slice(s: &mut Site<'_>, x: Id, axis: usize, Columns { start, len }: Columns) -> Option<Id> {
    if s.ty(x)?.shape[axis] == len {
        return Some(x);
    }
    let range = SliceAxis { axis, start: Dim::from(start), len: Dim::from(len), step: 1 };
    s.add(Op::Slice(vec![range]), &[x])
}

/// The matrix that a class is columns of, and which.
fn cut(s: &Site<'_>, id: Id, columns: Columns) -> Option<(Id, Columns)> {
    let own = width(s, id)?;
    if let Some(&(whole, start)) = sliced(s, id, own).first() {
        return Some((whole, Columns { start: start + columns.start, ..columns }));
    }
    // A gate of gates that have a dim of their own.
    let gates = s.operands(id, "Reshape").into_iter().flat_map(|[gate]| sliced(s, gate, 1));
    for (gates, start) in gates {
        let [_, _, width] = s.shape(gates)?.try_into().ok()?;
        if width.known()? != own {
            continue;
        }
        for [whole] in s.operands(gates, "Reshape") {
            let rows = s.shape(whole)?;
            if rows.len() == 2 && rows[0] == s.shape(id)?[0] {
                let start = start * own + columns.start;
                return Some((whole, Columns { start, ..columns }));
            }
        }
    }
    None
}

/// What a class is so many places of along the second dim, and from which on.
fn sliced(s: &Site<'_>, id: Id, len: i64) -> Vec<(Id, i64)> {
    let slice = |(op, inputs): (Op, Vec<Option<Id>>)| {
        let Op::Slice(axes) = op else { return None };
        let [SliceAxis { axis: 1, start, len: own, step: 1 }] = &axes[..] else { return None };
        Some((inputs[0]?, start.known().filter(|_| *own == len)?))
    };
    s.operations(id, "Slice").into_iter().filter_map(slice).collect()
}

/// What a function of a gate takes: behind the function, or behind a cut of it.
fn gate(s: &mut Site<'_>, id: Id, function: &str) -> Option<Sum> {
    let columns = Columns { start: 0, len: width(s, id)? };
    for [x] in s.operands(id, function) {
        if let Some(found) = sum(s, x, columns, &mut VISITS.clone()) {
            return Some(found);
        }
    }
    let (source, columns) = cut(s, id, columns)?;
    let [x] = *s.operands(source, function).first()?;
    sum(s, x, columns, &mut VISITS.clone())
}

/// What all gates read: the input and the state.
fn operands(s: &Site<'_>, gates: &[Sum], hidden: i64) -> Option<(Id, Id)> {
    let [(a, _), (b, _)] = *gates[0].matmuls.as_slice() else { return None };
    let fits = |id: Id| width(s, id) == Some(hidden);
    // Either order is right where both fit; the one that was made by a cell is the state.
    let state = |id: Id| fits(id) && (is_zero(s, id) || !s.operations(id, "Mul").is_empty());
    match (state(a), fits(a), fits(b)) {
        (false, _, true) | (_, false, true) => Some((a, b)),
        (_, true, _) => Some((b, a)),
        (_, false, false) => None,
    }
}

/// The weights of all gates with one operand, as `[1, gates · hidden, size]`.
fn weights(s: &mut Site<'_>, gates: &[Sum], of: Id) -> Option<Id> {
    let mut all = Vec::with_capacity(gates.len());
    for gate in gates {
        let mut own = gate.matmuls.iter().filter(|(x, _)| *x == of);
        all.push(own.next()?.1);
        if own.next().is_some() {
            return None;
        }
    }
    let joined = s.add(Op::Concat { axis: 1 }, &all)?;
    let rows = s.transpose(joined, vec![1, 0])?;
    single(s, rows)
}

fn total(s: &mut Site<'_>, biases: &[Id], like: Id, hidden: i64) -> Option<Id> {
    let Some((first, rest)) = biases.split_first() else { return s.zeros(like, hidden) };
    rest.iter().try_fold(*first, |sum, &bias| s.binary(Binary::Add, sum, bias))
}

/// A matrix as one step, or as the state or the weights of one direction.
fn single(s: &mut Site<'_>, x: Id) -> Option<Id> {
    s.reshape(x, [vec![Dim::from(1)], s.shape(x)?].concat())
}

/// `h' = o·tanh(c')`, `c' = f·c + i·tanh(g)`.
fn lstm_cell(s: &mut Site<'_>) -> Option<Id> {
    let (output, next, hidden) = (s.var("o"), s.var("c"), width(s, s.root)?);
    let (gates, c) = lstm_gates(s, output, next)?;
    let (x, h) = operands(s, &gates, hidden)?;
    let biases = gates.iter().map(|gate| &gate.biases[..]).chain([&[][..]; 4]);
    let biases = biases.map(|own| total(s, own, x, hidden)).collect::<Option<Vec<_>>>()?;
    let cell = RnnCell::Lstm { input_forget: false };
    let functions = vec![Unary::Sigmoid, Unary::Tanh, Unary::Tanh];
    let outputs = step(s, cell, functions, &gates, (x, h, Some(c)), &biases)?;
    s.equate_reshaped(next, *outputs.get(2)?)?;
    s.equate_reshaped(s.root, outputs[1])
}

/// The gates i, o, f and c of an LSTM by its output gate and its new state, and the old state.
fn lstm_gates(s: &mut Site<'_>, output: Id, next: Id) -> Option<(Vec<Sum>, Id)> {
    let output = gate(s, output, "Sigmoid")?;
    for (kept, added) in s.pairs(next, "Add") {
        for (input, candidate) in s.pairs(added, "Mul") {
            let Some(candidate) = gate(s, candidate, "Tanh") else { continue };
            let Some(input) = gate(s, input, "Sigmoid") else { continue };
            for (forget, c) in s.pairs(kept, "Mul") {
                if s.ty(c) != s.ty(next) {
                    continue;
                }
                if let Some(forget) = gate(s, forget, "Sigmoid") {
                    return Some((vec![input, output, forget, candidate], c));
                }
            }
        }
    }
    None
}

/// One step of a layer: its outputs.
fn step(
    s: &mut Site<'_>,
    cell: RnnCell,
    activations: Vec<Unary>,
    gates: &[Sum],
    (x, h, c): (Id, Id, Option<Id>),
    biases: &[Id],
) -> Option<Vec<Id>> {
    if gates.iter().any(|gate| gate.matmuls.len() != 2) {
        return None;
    }
    let hidden = usize::try_from(width(s, h)?).ok()?;
    let (w, r) = (weights(s, gates, x)?, weights(s, gates, h)?);
    let bias = s.add(Op::Concat { axis: 0 }, biases)?;
    let bias = single(s, bias)?;
    let (x, h) = (single(s, x)?, single(s, h)?);
    let mut inputs = vec![Some(x), Some(w), Some(r), Some(bias), None, Some(h)];
    if let Some(c) = c {
        inputs.push(Some(single(s, c)?));
    }
    let direction = RnnDirection::Forward;
    let op = Op::Rnn(RnnAttrs { cell, direction, hidden, activations, clip: None });
    add_operation(s.terms, &op, &inputs)
}

/// `h' = (1 - z)·n + z·h` or `n + z·(h - n)`, `n = tanh(xₙ + r·hₙ)`.
fn gru_cell(s: &mut Site<'_>) -> Option<Id> {
    let (update, candidate, h, hidden) = (s.var("z"), s.var("n"), s.var("h"), width(s, s.root)?);
    if s.bound("one").is_some_and(|one| !s.is(one, 1.0)) {
        return None;
    }
    for [inner] in s.operands(candidate, "Tanh") {
        for (of_x, reset) in s.pairs(inner, "Add") {
            for (reset, of_h) in s.pairs(reset, "Mul") {
                let parts = gru_gates(s, [update, reset, of_x, of_h], hidden);
                let Some((gates, x, biases)) = parts.filter(|(gates, ..)| reads(gates, h)) else {
                    continue;
                };
                let cell = RnnCell::Gru { linear_before_reset: true };
                let functions = vec![Unary::Sigmoid, Unary::Tanh];
                let outputs = step(s, cell, functions, &gates, (x, h, None), &biases)?;
                return s.equate_reshaped(s.root, outputs[1]);
            }
        }
    }
    None
}

fn reads(gates: &[Sum], h: Id) -> bool {
    gates.iter().all(|gate| gate.matmuls.iter().any(|(x, _)| *x == h))
}

/// The gates z, r and n, the input, and the biases of its matmuls and of those of the state.
fn gru_gates(
    s: &mut Site<'_>,
    [z, r, of_x, of_h]: [Id; 4],
    hidden: i64,
) -> Option<(Vec<Sum>, Id, Vec<Id>)> {
    let (z, r) = (gate(s, z, "Sigmoid")?, gate(s, r, "Sigmoid")?);
    let columns = Columns { start: 0, len: hidden };
    let of_x = sum(s, of_x, columns, &mut VISITS.clone())?;
    let of_h = sum(s, of_h, columns, &mut VISITS.clone())?;
    let (&[(x, wx)], &[(h, wh)]) = (&of_x.matmuls[..], &of_h.matmuls[..]) else { return None };
    if x == h {
        return None;
    }
    let own = [&z.biases, &r.biases, &of_x.biases, &Vec::new(), &Vec::new(), &of_h.biases];
    let biases = own.map(|own| total(s, own, x, hidden)).into_iter().collect::<Option<_>>()?;
    let n = Sum { matmuls: vec![(x, wx), (h, wh)], biases: Vec::new() };
    Some((vec![z, r, n], x, biases))
}

impl Site<'_> {
    /// Says that a value equals another one under its shape.
    fn equate_reshaped(&mut self, known: Id, made: Id) -> Option<Id> {
        let made = self.reshape(made, self.shape(known)?)?;
        self.equate(known, made);
        Some(made)
    }
}

/// The place of the first initial state among a recurrent layer's inputs; the second follows.
const STATE: usize = 5;

/// An initial state of zeros is none.
fn zero_state(s: &mut Site<'_>) -> Option<Id> {
    let op = s.op.clone().filter(|op| matches!(op, Op::Rnn(_)))?;
    let mut inputs = s.inputs.clone();
    for state in inputs.iter_mut().skip(STATE).take(2) {
        if state.is_some_and(|id| is_zero(s, id)) {
            *state = None;
        }
    }
    if inputs == s.inputs { None } else { s.add_node(op, &inputs) }
}

/// Zeros, perhaps seen in another shape.
fn is_zero(s: &Site<'_>, id: Id) -> bool {
    let expanded =
        |id: Id| s.is(id, 0.0) || s.operands(id, "Expand").into_iter().any(|[x]| s.is(x, 0.0));
    expanded(id) || s.operands(id, "Reshape").into_iter().any(|[x]| expanded(x))
}
