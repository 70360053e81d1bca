//! The arena over the steps of a run.

use graphene_fusion::program::Program;
use graphene_runtime::{Place, Plan};
use serde::Serialize;

/// Offsets and sizes in the arena are multiples of this many bytes.
const ALIGNMENT: u64 = 256;

/// The arena.
#[derive(Serialize, Debug)]
pub(super) struct Map {
    /// Its bytes.
    bytes: u64,
    /// No arena is smaller, in bytes.
    lower_bound: u64,
    /// The heuristic that placed it.
    heuristic: String,
    /// The buffers that lie in it.
    buffers: Vec<Buffer>,
    /// For each step the bytes that hold something, before it overwrites what it reads or after, whichever are more.
    alive: Vec<u64>,
}

/// A buffer in the arena. Where an output takes the memory of an input, the step is half the one's and half the other's.
#[derive(Serialize, Debug)]
struct Buffer {
    /// The name of the value.
    name: String,
    /// Its elements.
    dtype: String,
    /// How many.
    elements: usize,
    /// Its bytes.
    bytes: u64,
    /// The byte at which it begins.
    offset: u64,
    /// The step from which it holds something.
    from: f64,
    /// The step up to which it does.
    to: f64,
    /// The step that writes it first.
    step: usize,
}

/// The arena of a bound program.
pub(super) fn map(program: &Program, plan: &Plan) -> Map {
    let mut lives: Vec<Option<(f64, f64, usize)>> = vec![None; plan.buffers().len()];
    for (number, step) in plan.steps().iter().enumerate() {
        let at = number as f64;
        for (operand, overwritten) in step.inputs.iter().zip(&step.overwritten_by) {
            let life = lives[operand.buffer.index()].get_or_insert((at, at, number));
            life.1 = at + if overwritten.is_some() { 0.5 } else { 1.0 };
        }
        for (i, operand) in step.outputs.iter().enumerate() {
            let taken = step.overwritten_by.contains(&Some(i));
            let from = at + if taken { 0.5 } else { 0.0 };
            let life = lives[operand.buffer.index()].get_or_insert((from, from, number));
            life.1 = at + 1.0;
        }
    }
    let mut buffers = Vec::new();
    for ((bound, buffer), life) in plan.buffers().iter().zip(program.buffers()).zip(lives) {
        let (Place::Arena(offset), Some((from, to, step))) = (bound.place, life) else { continue };
        buffers.push(Buffer {
            name: buffer.name.clone(),
            dtype: bound.dtype.to_string(),
            elements: bound.elements,
            bytes: bound.bytes() as u64,
            offset: offset as u64,
            from,
            to,
            step,
        });
    }
    let alive = (0..plan.steps().len()).map(|step| alive(&buffers, step)).collect();
    Map {
        bytes: plan.arena_bytes(),
        lower_bound: plan.lower_bound_bytes(),
        heuristic: format!("{:?}", plan.heuristic()).to_lowercase(),
        buffers,
        alive,
    }
}

fn alive(buffers: &[Buffer], step: usize) -> u64 {
    let at = |moment: f64| -> u64 {
        let alive = buffers.iter().filter(|buffer| buffer.from <= moment && moment < buffer.to);
        alive.map(|buffer| buffer.bytes.next_multiple_of(ALIGNMENT)).sum()
    };
    at(step as f64 + 0.25).max(at(step as f64 + 0.75))
}
