//! The smallest case that fails as another does: fewer outputs, values as inputs in place of what computes them, operations
//! left out, smaller sizes.

use crate::build::{Case, Numbers, Random, tensor};
use crate::execute::Failure;
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::eval::evaluate_op;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::op::{Op, SliceAxis};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;

/// Most cases tried.
const TRIES: usize = 3000;

type Check = fn(&[Case]) -> Result<crate::compare::Seen, Failure>;

/// A small case that fails alike; `check` is what failed.
pub(crate) fn shrunk(case: &Case, failure: &Failure, with: Check) -> Case {
    let mut tries = 0;
    let mut fails = |case: &Case| {
        tries += 1;
        tries <= TRIES
            && with(std::slice::from_ref(case)).is_err_and(|found| found.is_like(failure))
    };
    let mut case = case.clone();
    loop {
        let before = (case.graph.len(), case.graph.outputs().len(), elements(&case));
        for smaller in [fewer_outputs, cut, bypassed, known_sizes, smaller_sizes, plain_numbers] {
            // From the end, where the outputs are.
            let mut place = 0;
            while let Some(next) = smaller(&case, place) {
                match next.filter(|next| fails(next)) {
                    Some(next) => case = next,
                    None => place += 1,
                }
            }
        }
        let after = (case.graph.len(), case.graph.outputs().len(), elements(&case));
        if after == before {
            return case;
        }
    }
}

fn elements(case: &Case) -> usize {
    case.inputs.iter().map(Tensor::len).sum()
}

/// A way to make a case smaller: at each place there is a smaller case or none; beyond the last place nothing.
type Step = Option<Option<Case>>;

/// Without an output, and what only that needs.
fn fewer_outputs(case: &Case, place: usize) -> Step {
    let outputs = case.graph.outputs();
    if place >= outputs.len() {
        return None;
    }
    if outputs.len() == 1 {
        return Some(None);
    }
    Some(rebuilt(case, |_| None, Some(place)))
}

/// A node of which each output that is read is an input instead.
fn cut(case: &Case, place: usize) -> Step {
    let number = case.graph.len().checked_sub(place + 1)?;
    let (_, node) = case.graph.nodes().nth(number)?;
    if node.inputs().is_empty() {
        return Some(None);
    }
    Some(rebuilt(case, |at| (at == number).then_some(Instead::Input), None))
}

/// An operation left out: what reads it reads one of its operands of the same type.
fn bypassed(case: &Case, place: usize) -> Step {
    let number = case.graph.len().checked_sub(place + 1)?;
    let (id, node) = case.graph.nodes().nth(number)?;
    let ty = case.graph.ty(id.value());
    let same = node.inputs().iter().flatten().find(|value| case.graph.ty(**value) == ty);
    let Some(&value) = same else { return Some(None) };
    Some(rebuilt(case, |at| (at == number).then_some(Instead::Value(value)), None))
}

/// The sizes in place of symbols.
fn known_sizes(case: &Case, place: usize) -> Step {
    if place > 0 || case.graph.symbols().is_empty() {
        return None;
    }
    let graph = case.graph.substitute(&case.sizes).ok();
    let sizes = Bindings::new();
    Some(graph.map(|graph| Case { graph, inputs: case.inputs.clone(), sizes }))
}

/// What stands in a node's place.
enum Instead {
    Input,
    Value(ValueId),
}

/// The graph again, with something else in the place of nodes and without an output; what is not needed is left out.
/// `None` where that does not fit.
fn rebuilt(
    case: &Case,
    instead: impl Fn(usize) -> Option<Instead>,
    without: Option<usize>,
) -> Option<Case> {
    let old = &case.graph;
    let tensors = values(case)?;
    let kept = old.outputs().iter().enumerate().filter(|(i, _)| Some(*i) != without);
    let kept: Vec<_> = kept.map(|(_, (name, value))| (name.clone(), *value)).collect();
    let mut needed = vec![false; old.len()];
    kept.iter().for_each(|(_, value)| needed[value.node.index()] = true);
    for number in (0..old.len()).rev() {
        if !needed[number] {
            continue;
        }
        let (_, node) = old.nodes().nth(number)?;
        match instead(number) {
            Some(Instead::Input) => {}
            Some(Instead::Value(value)) => needed[value.node.index()] = true,
            None => node.inputs().iter().flatten().for_each(|v| needed[v.node.index()] = true),
        }
    }
    let mut graph = Graph::new();
    let mut inputs = Vec::new();
    let mut known: Vec<Vec<ValueId>> = Vec::new();
    for (id, node) in old.nodes() {
        if !needed[id.index()] {
            known.push(Vec::new());
            continue;
        }
        let number = id.index();
        let mapped = |v: &ValueId| known[v.node.index()].get(v.output as usize).copied();
        let new = match (instead(number), node.op()) {
            (Some(Instead::Value(value)), _) => vec![mapped(&value)?],
            (Some(Instead::Input), _) | (None, Op::Input) => {
                let mut new = Vec::new();
                for (output, ty) in node.outputs().iter().enumerate() {
                    let name = format!("x{number}_{output}");
                    new.push(graph.add_input(&name, ty.clone()).ok()?);
                    inputs.push(tensors[number][output].clone());
                }
                new
            }
            (None, Op::Constant(tensor)) => vec![graph.add_constant(node.name(), tensor.clone())],
            (None, op) => {
                let mut operands = Vec::new();
                for input in node.inputs() {
                    operands.push(match input {
                        Some(value) => Some(mapped(value)?),
                        None => None,
                    });
                }
                let node = graph.add(node.name(), op.clone(), &operands).ok()?;
                let count = graph.node(node).outputs().len() as u32;
                (0..count).map(|output| ValueId { node, output }).collect()
            }
        };
        known.push(new);
    }
    for (name, value) in kept {
        graph.add_output(&name, *known[value.node.index()].get(value.output as usize)?);
    }
    Some(Case { graph, inputs, sizes: case.sizes.clone() })
}

/// All values of the graph.
fn values(case: &Case) -> Option<Vec<Vec<Tensor>>> {
    let mut inputs = case.inputs.iter();
    let mut values: Vec<Vec<Tensor>> = Vec::new();
    for (_, node) in case.graph.nodes() {
        if *node.op() == Op::Input {
            values.push(vec![inputs.next()?.clone()]);
            continue;
        }
        let value = |v: &ValueId| values[v.node.index()].get(v.output as usize);
        let operands: Vec<_> =
            node.inputs().iter().map(|input| input.as_ref().and_then(value)).collect();
        values.push(evaluate_op(node.op(), &operands, &case.sizes).ok()?);
    }
    Some(values)
}

/// Sizes in place of larger ones, everywhere.
fn smaller_sizes(case: &Case, place: usize) -> Step {
    let mut sizes: Vec<usize> = Vec::new();
    for (_, node) in case.graph.nodes() {
        for dim in node.outputs().iter().flat_map(|ty| &ty.shape) {
            sizes.extend(dim.known().and_then(|size| usize::try_from(size).ok()));
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    let all: Vec<(usize, usize)> = sizes
        .into_iter()
        .rev()
        .flat_map(|from| [1, 2, from / 2, from - usize::from(from > 0)].map(|to| (from, to)))
        .filter(|(from, to)| to < from && *to > 0)
        .collect();
    let &(from, to) = all.get(place)?;
    Some(resized(case, from, to))
}

fn resized(case: &Case, from: usize, to: usize) -> Option<Case> {
    let dim = |dim: &Dim| if *dim == from as i64 { Dim::from(to) } else { dim.clone() };
    let dims = |all: &[Dim]| all.iter().map(dim).collect::<Vec<_>>();
    let smaller = |tensor: &Tensor| {
        let shape = tensor.shape().iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
        let sized = dims(&shape);
        let range = |(axis, len): (usize, &Dim)| SliceAxis {
            axis,
            start: Dim::from(0),
            len: len.clone(),
            step: 1,
        };
        let ranges = sized.iter().enumerate().map(range).collect();
        let sliced = evaluate_op(&Op::Slice(ranges), &[Some(tensor)], &Bindings::new());
        sliced.ok().map(|mut sliced| sliced.remove(0))
    };
    let mut graph = Graph::new();
    let mut inputs = Vec::new();
    let mut given = case.inputs.iter();
    for (id, node) in case.graph.nodes() {
        match node.op() {
            Op::Input => {
                let ty = case.graph.ty(id.value());
                let tensor = smaller(given.next()?)?;
                let shape = dims(&ty.shape);
                graph.add_input(node.name(), TensorType::new(ty.dtype, shape)).ok()?;
                inputs.push(tensor);
            }
            Op::Constant(tensor) => {
                graph.add_constant(node.name(), smaller(tensor)?);
            }
            op => {
                let mut op = op.clone();
                match &mut op {
                    Op::Iota(size) | Op::Size(size) | Op::TopK { k: size, .. } => *size = dim(size),
                    Op::Reshape(shape) | Op::Expand(shape) => *shape = dims(shape),
                    Op::Slice(axes) => axes.iter_mut().for_each(|axis| axis.len = dim(&axis.len)),
                    Op::Resize(attrs) => attrs.sizes = dims(&attrs.sizes),
                    _ => {}
                }
                let added = graph.add(node.name(), op, node.inputs()).ok()?;
                if graph.node(added).outputs().len() != node.outputs().len() {
                    return None;
                }
            }
        }
    }
    for (name, value) in case.graph.outputs() {
        graph.add_output(name, *value);
    }
    let sizes = case.sizes.clone();
    // A graph that has no value shows nothing.
    let case = Case { graph, inputs, sizes };
    values(&case)?;
    Some(case)
}

/// Whole numbers in an input.
fn plain_numbers(case: &Case, place: usize) -> Step {
    let old = case.inputs.get(place)?;
    let whole = crate::build::reals(old).iter().all(|x| x.fract() == 0.0);
    if !old.dtype().is_float() || whole {
        return Some(None);
    }
    let mut case = case.clone();
    let mut random = Random(place as u64);
    case.inputs[place] = tensor(&mut random, old.dtype(), old.shape().to_vec(), Numbers::Whole);
    values(&case)?;
    Some(Some(case))
}
