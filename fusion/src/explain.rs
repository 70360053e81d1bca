//! Explanations: of every value that one step of a program stores and another one reads, why that is.

use crate::Planned;
use crate::base::cost::move_cost;
use crate::base::groups::{Boundary, GroupId, Reason};
use crate::base::program::{BufferId, Operand, Origin, StepId};
use crate::base::sizes::planning_sizes;
use graphene_frontend::{Bindings, TensorType};
use graphene_ir::target::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A value that one step of a program stores for another one, and why.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// The step that writes it.
    pub from: StepId,
    /// The step that reads it.
    pub to: StepId,
    /// The value's name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Why it is stored.
    pub reason: Reason,
    /// Seconds that one launch for both would gain, were there a template for it; below zero it would lose. `None`
    /// where nothing was weighed: every operation is a launch.
    pub gain: Option<f64>,
}

/// Why a program has more than one step: a line for each value that a step stores and for each other step that reads
/// it, in the order of the readers. `target` and `hints` are those that it was planned under.
pub fn explain(planned: &Planned, target: &Target, hints: &Bindings) -> Vec<Line> {
    let Planned { graph, groups, program, .. } = planned;
    let sizes = planning_sizes(graph, hints);
    let mut known: BTreeMap<(GroupId, GroupId), &Boundary> = BTreeMap::new();
    for boundary in groups.boundaries() {
        known.entry((boundary.from, boundary.to)).or_insert(boundary);
    }
    // Who wrote a buffer, under which shape; and whose value a copy holds.
    let mut written: BTreeMap<BufferId, (StepId, &Operand)> = BTreeMap::new();
    let mut copied: BTreeMap<BufferId, GroupId> = BTreeMap::new();
    let mut lines = Vec::new();
    for (id, step) in program.step_ids().zip(program.steps()) {
        let mut seen = BTreeSet::new();
        for buffer in step.inputs.iter().map(|operand| operand.buffer) {
            let Some(&(from, value)) = written.get(&buffer) else { continue };
            if !seen.insert(buffer) {
                continue;
            }
            let ty = TensorType::new(program.buffer(buffer).dtype, value.view.shape());
            let bytes = ty.elements().eval(&sizes).unwrap_or(1).max(0) * ty.dtype.size() as i64;
            let copy = || {
                let cost = move_cost(target, bytes as f64);
                groups.seconds_known().then(|| cost.seconds())
            };
            let maker = match program.step(from).origin {
                Origin::Group(group) => Some(group),
                Origin::Before(_) | Origin::Output(_) => copied.get(&buffer).copied(),
            };
            let (reason, gain) = match step.origin {
                Origin::Group(to) => match maker.and_then(|from| known.get(&(from, to))) {
                    Some(boundary) => (boundary.reason, boundary.gain),
                    // The copy of an input.
                    None => (Reason::Packed(groups.groups()[to.index()].family), copy()),
                },
                Origin::Before(to) => (Reason::Packed(groups.groups()[to.index()].family), copy()),
                Origin::Output(_) => (Reason::Given, copy()),
            };
            let name = program.buffer(buffer).name.clone();
            lines.push(Line { from, to: id, name, ty, reason, gain });
            if let (Origin::Before(_), Some(maker)) = (step.origin, maker) {
                copied.extend(step.outputs.iter().map(|output| (output.buffer, maker)));
            }
        }
        written.extend(step.outputs.iter().map(|operand| (operand.buffer, (id, operand))));
    }
    lines
}

/// Prints as `#0 -> #2  f32[b, 512] "matmul" is stored: …; an estimate: one launch would gain 6.4 us`.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, name, ty, reason, gain } = self;
        write!(f, "{from} -> {to}  {ty} {name:?} is stored: {reason}")?;
        let Some(gain) = gain else { return Ok(()) };
        let what = if *gain > 0.0 { "gain" } else { "lose" };
        write!(f, "; an estimate: one launch would {what} {:.1} us", gain.abs() * 1e6)
    }
}
