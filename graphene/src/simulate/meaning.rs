//! What an instance wrote, compared with what its spec's kind makes of what it read.

use super::clock::Epoch;
use super::fragment::{Fragment, coordinates};
use super::instance::{Element, Instance};
use super::level::{self, Level, Unchecked};
use super::machine::Machine;
use super::memory::Access;
use super::program::Program;
use super::report::Finding;
use crate::atom::{Fault, Proxy};
use crate::function::{Step, Value};
use crate::index::Expr;
use crate::kernel::{Array, Binary, Fused, Number, Operand, Term};
use crate::kind::near::LEAST;
use crate::tensor::{Memory, Scalar};
use crate::text::print::{joined, list};

/// An operand's elements: what they are, and where; `None` outside of its buffer.
struct Seen {
    now: Array,
    before: Array,
    at: Vec<Option<Element>>,
}

/// Checks an instance that a lane of a warp leaves as the last.
pub(super) fn check(machine: &mut Machine<'_, '_>, id: usize, who: (usize, usize)) {
    let program = machine.program;
    let Some(levels) = &machine.levels else { return };
    let instance = levels.get(id);
    let level = &program.levels[instance.level];
    let (number, block, warp) = (instance.level, instance.block, instance.warp);
    let found = match instance.unchecked {
        Some(why) => Err(why),
        None => compare(machine, level, id, who),
    };
    let levels = machine.levels.as_mut().expect("it was there above");
    match found {
        Err(why) => *levels.counts[number].unchecked.entry(why).or_default() += 1,
        Ok(Some(fault)) => {
            levels.counts[number].checked += 1;
            report(machine, level, fault, (block, warp));
        }
        Ok(None) => levels.counts[number].checked += 1,
    }
}

fn report(machine: &mut Machine<'_, '_>, level: &Level<'_>, fault: Fault, of: (usize, usize)) {
    let program = machine.program;
    let statement = program.statement_of(level);
    let block = machine.blocks.get(of.0).map_or(0, |block| block.number);
    let warp = machine.runners.get(of.1).map_or(0, |runner| runner.index);
    machine.findings.push(Finding { fault, statement, other: None, block, warp, lane: None });
    machine.stopped |= machine.findings.len() >= machine.options.findings.max(1);
}

/// What is wrong with what an instance wrote, if anything is.
fn compare(
    machine: &mut Machine<'_, '_>,
    level: &Level<'_>,
    instance: usize,
    who: (usize, usize),
) -> Result<Option<Fault>, Unchecked> {
    let levels = machine.levels.as_ref().expect("an instance is theirs");
    let instance = levels.get(instance);
    let outs = level.spec.outs.len();
    let shape = |at: usize| level.operands.get(at).map_or(&[][..], |of| &of.shape);
    let meaning = level.spec.kind.meaning(shape(0), shape(outs)).ok_or(Unchecked::Kind)?;
    let (mut seen, mut unknown) = (Vec::with_capacity(level.operands.len()), Vec::new());
    let mut starts = &instance.starts[..];
    for (number, operand) in level.operands.iter().enumerate() {
        let (own, rest) = starts.split_at(operand.place.starts.len());
        starts = rest;
        if operand.spread {
            let old = meaning.steps().contains(&Term::Old(number)) && !adds(&meaning, number);
            let old = old || level.form.is_some();
            let before = if number >= outs || old {
                match level.gathered(levels, instance, number) {
                    Err(_) if number < outs && level.form.is_some() => {
                        unknown.push(number);
                        Array { shape: Vec::new(), data: vec![f64::NAN] }
                    }
                    found => found?,
                }
            } else {
                Array { shape: Vec::new(), data: vec![0.0] }
            };
            seen.push(Seen { now: before.clone(), before, at: Vec::new() });
            continue;
        }
        // What a loop carries holds of what is there when the last comes to its head.
        let who = (number >= outs && level.form.is_none()).then_some(who);
        match elements(machine, instance, operand, own, who) {
            Ok(all) => seen.push(all),
            Err(element) => {
                let text = format!(
                    "{}: an input, {}, changes while it is read",
                    said(machine.program, level, instance),
                    name(machine.program, level, number, element)
                );
                return Ok(Some(Fault::Unstable(text)));
            }
        }
    }
    let (written, read) = seen.split_at(outs);
    let ins: Vec<Array> = read.iter().map(|of| of.before.clone()).collect();
    let olds: Vec<Array> = written.iter().map(|of| of.before.clone()).collect();
    let number = |expr: &Expr| {
        let own = level.numbers.iter().zip(&instance.numbers).find(|row| row.0.0 == expr);
        own.map(|row| *row.1).or_else(|| machine.program.scope.fixed(expr).ok())
    };
    let units = level.operands.iter().filter(|of| of.place.scalar.is_float());
    let unit = units.map(|of| of.place.scalar.unit()).fold(0.0, f64::max);
    let expected = meaning.nearly(&ins, &olds, &number, unit).map_err(|_| Unchecked::Shape)?;
    // What depends on elements outside of their buffers need not be written.
    let mut marked: Option<Vec<Array>> = None;
    let mut mark = |which: usize, element: usize| -> bool {
        let marked = marked.get_or_insert_with(|| {
            let outside = |of: &Seen| {
                let mut marked = of.before.clone();
                let all = marked.data.iter_mut().zip(&of.at);
                all.filter(|row| row.1.is_none()).for_each(|row| *row.0 = f64::NAN);
                marked
            };
            let ins: Vec<Array> = read.iter().map(outside).collect();
            let all = meaning.nearly(&ins, &olds, &number, unit).unwrap_or_default();
            let fit = |(of, operand): ((Array, Array), &level::Array)| match operand.spread
                || level.form.is_some()
            {
                true => Some(of.0),
                false => of.0.fit(&operand.shape).ok(),
            };
            all.into_iter().zip(&level.operands).map_while(fit).collect()
        });
        let marked = marked.get(which).and_then(|of| of.data.get(element));
        marked.is_some_and(|of| of.is_nan())
    };
    let outside = read.iter().any(|of| of.at.contains(&None));
    if let Some(form) = &level.form {
        // As far as it is known which elements registers hold.
        let known = expected.into_iter().enumerate().filter_map(|(which, want)| {
            let part = form.output(which);
            let known = part.used().all(|state| !unknown.contains(&state));
            let found = known.then(|| part.nearly(&olds, &[], &number, 0.0))?.ok()?.pop()?;
            Some((which, part, found, want))
        });
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return Err(Unchecked::Fragment);
        }
        for (which, part, got, (want, error)) in known {
            let more = got.0.data.len() > want.data.len();
            let shape = if more { got.0.shape.clone() } else { want.shape.clone() };
            let fit = |of: Array| of.fit(&shape).map_err(|_| Unchecked::Shape);
            let (got, off, want, error) = (fit(got.0)?, fit(got.1)?, fit(want)?, fit(error)?);
            let scalars: Vec<Scalar> =
                part.used().map(|state| level.operands[state].place.scalar).collect();
            let unit = scalars.iter().map(|scalar| scalar.unit()).fold(0.0, f64::max);
            // Nor does a half hold less than its last place.
            let least = if scalars.contains(&Scalar::F16) { unit * LEAST } else { 0.0 };
            let right = |at: usize| {
                let error = error.data[at] + off.data[at] + least;
                agree(got.data[at], want.data[at], error, unit)
            };
            let wrong = |&at: &usize| !(right(at) || outside && mark(which, at));
            if let Some(element) = (0..want.data.len()).find(wrong) {
                let at = at_text(&want.shape, element);
                let of = said(machine.program, level, instance);
                let [got, want] = [&got, &want].map(|of| Number(of.data[element]));
                let text = format!("{of}: element [{at}] of {part}: {got}, expected {want}");
                return Ok(Some(Fault::Differs(text)));
            }
        }
        return Ok(None);
    }
    let mut learnt = Vec::new();
    for (which, (of, (values, errors))) in written.iter().zip(expected).enumerate() {
        let operand = &level.operands[which];
        let place = &operand.place;
        if operand.spread {
            let adds = adds(&meaning, which);
            let mark = |element: usize| outside && mark(which, element);
            let held = (&instance.held[which][..], adds);
            match spread(machine, (level, instance, which), held, &(values, errors), mark) {
                Ok(fragment) => learnt.push((place.number, fragment)),
                Err(text) => {
                    let text = format!("{}: {text}", said(machine.program, level, instance));
                    return Ok(Some(Fault::Differs(text)));
                }
            }
            continue;
        }
        let fit = |of: Array| of.fit(&operand.shape).map_err(|_| Unchecked::Shape);
        let (values, errors) = (fit(values)?, fit(errors)?);
        for (element, at) in of.at.iter().enumerate() {
            let Some(at) = at else { continue };
            let (want, error) = (values.data[element], errors.data[element]);
            let written = instance.log.get(at);
            let (got, want) = match written.and_then(|written| written.added) {
                Some(added) => (added, want - of.before.data[element]),
                None => (written.map_or(of.now.data[element], |written| written.after), want),
            };
            let right = agree(got, place.scalar.round(want), error, place.scalar.unit());
            if !(right || written.is_none() && mark(which, element)) {
                let what = name(machine.program, level, which, element);
                let got = match written {
                    Some(_) => format!("{}", Number(got)),
                    None => format!("not written, and {}", Number(got)),
                };
                let text = format!(
                    "{}: {what}: {got}, expected {}",
                    said(machine.program, level, instance),
                    Number(place.scalar.round(want))
                );
                return Ok(Some(Fault::Differs(text)));
            }
        }
    }
    let team = (instance.from, instance.first, level.threads.size);
    let all = (0..level.agents()).map(|rank| level.lane(instance, rank));
    let warps: Vec<(i64, usize)> = all.map(|(block, warp, _)| (block, warp)).collect();
    let levels = machine.levels.as_mut().expect("an instance is theirs");
    for (root, fragment) in learnt {
        levels.teams.extend(warps.iter().map(|&(block, warp)| ((root, block, warp), team)));
        let known = levels.fragments.entry(root).or_default();
        known.retain(|known| !known.is_like(&fragment));
        known.push(fragment);
    }
    Ok(None)
}

/// Values that more elements have tell nothing of which one a register holds.
const FEW: usize = 4;

/// Whether an output is what it was, and something that is added.
fn adds(meaning: &Fused, output: usize) -> bool {
    let term = &meaning.steps()[meaning.outputs()[output].index()];
    let is_old = |x: &Value| meaning.steps()[x.index()] == Term::Old(output);
    matches!(term, Term::Step(Step::Binary(Binary::Add, x, y)) if is_old(x) || is_old(y))
}

/// Which elements the registers of several threads hold, as far as that is known after this instance; what is wrong if there
/// is no such layout, or not the one that there was before.
fn spread(
    machine: &Machine<'_, '_>,
    (level, instance, which): (&Level<'_>, &Instance, usize),
    (held, adds): (&[f64], bool),
    (values, errors): &(Array, Array),
    mut mark: impl FnMut(usize) -> bool,
) -> Result<Fragment, String> {
    let operand = &level.operands[which];
    let place = &operand.place;
    let levels = machine.levels.as_ref().expect("an instance is theirs");
    let offset = level.offset(instance, which);
    let mut fragment = Fragment::new(level, operand, offset, &values.shape);
    let mut known = levels.fragments.get(&place.number).into_iter().flatten();
    if let Some(known) = known.find(|known| known.is_like(&fragment)) {
        fragment = known.clone();
    }
    let off = errors.data.iter().copied().fold(0.0, f64::max);
    let exact = place.scalar == Scalar::F32 && off == 0.0;
    let unit = if exact { 0.0 } else { place.scalar.unit() };
    // Of each register what it got, and how much else that may be.
    let count = place.size() as usize;
    let got = |register: usize| {
        let (rank, value) = (register / count, register % count);
        let (block, warp, lane) = level.lane(instance, rank);
        let at = (place.first as i64 + offset + place.distance(value)) as usize * 32 + lane;
        let element = Element::of(Memory::Registers, unit_of(block, warp), at);
        let before = held[register];
        let after = instance.log.get(&element).map_or(before, |written| written.after);
        let size = if adds { after.abs().max(before.abs()) } else { after.abs() };
        (if adds { after - before } else { after }, 4.0 * off + 2.0 * unit * size)
    };
    let all: Vec<(f64, f64)> = (0..held.len()).map(got).collect();
    let mut sorted: Vec<(f64, usize)> = values.data.iter().copied().zip(0..).collect();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let those = |(got, most): (f64, f64)| {
        let first = sorted.partition_point(|row| row.0 < got - most);
        let end = sorted.partition_point(|row| row.0 <= got + most);
        &sorted[first..end.max(first)]
    };
    if !fragment.is_complete() {
        let few = |&of: &(f64, f64)| match those(of) {
            rows if rows.len() <= FEW => rows.iter().map(|row| row.1).collect(),
            _ => Vec::new(),
        };
        let may: Vec<Vec<usize>> = all.iter().map(few).collect();
        fragment.learn(&may);
    }
    // Nothing tells what is added to what is no number.
    let lost = |register: usize| adds && held[register].is_nan() && all[register].0.is_nan();
    let name = &place.name;
    let mut missing = vec![true; values.data.len()];
    for (register, (cell, &(got, most))) in fragment.cells().iter().zip(&all).enumerate() {
        match cell {
            Some(None) => {}
            Some(Some(element)) => {
                missing[*element] = false;
                let want = values.data[*element];
                let right = (got - want).abs() <= most || agree(got, want, 0.0, 0.0);
                if !right && !lost(register) && !mark(*element) {
                    let at = at_text(&values.shape, *element);
                    let (got, want) = (Number(got), Number(place.scalar.round(want)));
                    return Err(format!("element [{at}] of %{name}: {got}, expected {want}"));
                }
            }
            None if those((got, most)).is_empty()
                && !got.is_nan()
                && !(0..values.data.len()).any(&mut mark) =>
            {
                return Err(format!("%{name}: {}, which no element is", Number(got)));
            }
            None => {}
        }
    }
    match missing.iter().position(|missing| *missing) {
        Some(element) if fragment.is_complete() => {
            let at = at_text(&values.shape, element);
            Err(format!("element [{at}] of %{name} is in no register"))
        }
        Some(_) | None => Ok(fragment),
    }
}

/// Whether a value may be what another one, with an error that follows from how it is computed, is rounded to. Where the
/// error is 0, so is the difference. Else four times the error is allowed: a decomposition may do its steps otherwise.
fn agree(got: f64, want: f64, error: f64, unit: f64) -> bool {
    if got == want || got.is_nan() && want.is_nan() {
        return true;
    }
    error > 0.0 && (got - want).abs() <= 4.0 * error + 2.0 * unit * (want.abs() + error)
}

/// An operand's elements; the number of one that others changed in between, in no order with the one who leaves last.
fn elements(
    machine: &Machine<'_, '_>,
    instance: &Instance,
    operand: &level::Array,
    starts: &[i64],
    who: Option<(usize, usize)>,
) -> Result<Seen, usize> {
    let place = &operand.place;
    let first: i64 = starts.iter().zip(&place.axes).map(|(start, axis)| start * axis.1).sum();
    let block = &machine.blocks[instance.block];
    let access = who.map(|(warp, lane)| Access {
        runner: &machine.runners[warp],
        lane,
        transfers: &machine.transfers,
        units: machine.units,
        proxy: Proxy::Generic,
        stamp: Epoch::NONE,
        at: 0,
        update: false,
    });
    let count = operand.order.len();
    let empty = || Array { shape: operand.shape.clone(), data: Vec::with_capacity(count) };
    let mut seen = Seen { now: empty(), before: empty(), at: Vec::with_capacity(count) };
    for (element, &number) in operand.order.iter().enumerate() {
        let number = number as usize;
        let mut along = starts.iter().zip(place.steps(number)).zip(&place.axes);
        if !along.all(|((start, step), axis)| (0..axis.0).contains(&(start + step))) {
            seen.now.data.push(0.0);
            seen.before.data.push(0.0);
            seen.at.push(None);
            continue;
        }
        let at = place.first + (first + place.distance(number)) as usize;
        let (unit, at, space) = match place.memory {
            Memory::Global => (0, at, Some(&machine.global)),
            Memory::Shared => (block.number as u64, at, Some(&block.shared)),
            Memory::Registers => {
                let own = &machine.runners[instance.warp];
                (unit_of(block.number, own.index), at * 32 + instance.lane, None)
            }
        };
        let id = Element::of(place.memory, unit, at);
        let own = instance.log.get(&id);
        let now = match space {
            Some(space) => {
                let changed = space.changed(at);
                let others = changed > instance.opened && own.is_none_or(|own| own.last < changed);
                if others && access.is_some_and(|access| !space.is_ordered(at, &access)) {
                    return Err(element);
                }
                if space.is_valid(at) { space.peek(at) } else { f64::NAN }
            }
            None => {
                let own = &machine.runners[instance.warp];
                if own.marks[at].valid { own.registers[at] } else { f64::NAN }
            }
        };
        seen.now.data.push(now);
        seen.before.data.push(own.map_or(now, |own| own.before));
        seen.at.push(Some(id));
    }
    Ok(seen)
}

/// The unit of a warp's registers.
pub(super) fn unit_of(block: i64, warp: usize) -> u64 {
    (block as u64) << 5 | warp as u64
}

/// A spec, and which of its instances it is.
fn said(program: &Program<'_>, level: &Level<'_>, instance: &Instance) -> String {
    let vars: Vec<String> = level
        .vars
        .iter()
        .zip(&instance.vars)
        .map(|((var, _), value)| format!("@{} = {value}", var.name()))
        .collect();
    let of = if level.number.is_none() { &program.kernel.name } else { "" };
    let name = |state: &Operand| format!("%{}", program.kernel.tensor_name(state.tensor));
    let kind = match level.form {
        Some(_) => format!("carried {}", list(level.spec.outs.iter().map(name))),
        None => level.spec.kind.to_string(),
    };
    let all = [kind, of.to_owned(), vars.join(", ")];
    let all: Vec<String> = all.into_iter().filter(|part| !part.is_empty()).collect();
    all.join(" of ")
}

/// An operand's element.
fn name(program: &Program<'_>, level: &Level<'_>, operand: usize, element: usize) -> String {
    let operands = level.spec.outs.iter().chain(&level.spec.ins);
    let tensor =
        operands.map(|of| of.tensor).nth(operand).expect("it has an operand of this number");
    let at = at_text(&level.operands[operand].shape, element);
    format!("element [{at}] of %{}", program.kernel.tensor_name(tensor))
}

/// The coordinates of an element.
fn at_text(shape: &[usize], element: usize) -> String {
    joined(coordinates(shape, element), ",")
}
