//! What an instance wrote, compared with what its spec's kind makes of what it read.

use std::rc::Rc;

use super::clock::Epoch;
use super::element::{Element, unit_of};
use super::formula::Check;
use super::fragment::{Fragment, coordinates};
use super::instance::{Evaluated, Instance};
use super::level::{self, Level};
use super::memory::Access;
use super::{Machine, Program, Unchecked};
use crate::atom::{Fault, Proxy};
use crate::kernel::{Array, Term};
use crate::kind::near::{Given, LEAST};
use crate::text::print::{joined, list};
use crate::{Expr, Memory, Number, Operand, Scalar};

/// An operand's elements as they are now, and where; `None` outside of its buffer.
#[derive(Default)]
struct Seen {
    now: Vec<f64>,
    at: Vec<Option<Element>>,
}

/// Checks an instance that a lane of a warp leaves as the last.
pub(super) fn check(machine: &mut Machine<'_, '_>, id: usize, who: (usize, usize)) {
    let program = machine.program;
    let instance = machine.levels.get(id);
    let level = &program.levels[instance.level];
    let (number, warp) = (instance.level, instance.warp);
    // What a loop begins with was made by what is around it.
    let begins = |first: &Check| first.holds(&machine.runners[who.0].slots, who.1);
    let around = instance.parent.filter(|_| level.ends.first().is_some_and(begins));
    let around = around.map(|around| program.levels[machine.levels.get(around).level].number);
    let found = match instance.unchecked {
        Some(why) => Err(why),
        None => compare(machine, level, id, who),
    };
    let count = &mut machine.levels.counts[number];
    match &found {
        Err(why) => *count.unchecked.entry(*why).or_default() += 1,
        Ok(_) => count.checked += 1,
    }
    if let Ok(Some(fault)) = found {
        machine.record(warp, fault, level.number);
        if let (Some(finding), Some(around)) = (machine.findings.last_mut(), around) {
            finding.other = Some(program.said(around));
        }
    }
}

/// What is wrong with what an instance wrote, if anything is.
fn compare(
    machine: &mut Machine<'_, '_>,
    level: &Level<'_>,
    instance: usize,
    who: (usize, usize),
) -> Result<Option<Fault>, Unchecked> {
    let levels = &machine.levels;
    let instance = levels.get(instance);
    let found = |of: fn(String) -> Fault, text: String| {
        Ok(Some(of(format!("{}: {text}", said(machine.program, level, instance)))))
    };
    let outs = level.spec.outs.len();
    let meaning = level.meaning.as_ref().ok_or(Unchecked::Kind)?;
    let (mut olds, mut seen, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut starts = &instance.starts[..];
    for (number, operand) in level.operands.iter().enumerate() {
        let (own, rest) = starts.split_at(operand.place.starts.len());
        starts = rest;
        if operand.spread {
            let adds = level.adds.get(number) == Some(&true);
            let old = !adds && meaning.steps().contains(&Term::Old(number));
            let needed = number >= outs || old || level.form.is_some();
            olds.push(match needed.then(|| level.gathered(levels, instance, number)) {
                None => Array::one(0.0),
                Some(Err(_)) if number < outs && level.form.is_some() => {
                    unknown.push(number);
                    Array::one(f64::NAN)
                }
                Some(found) => found?,
            });
            seen.push(Seen::default());
            continue;
        }
        // What a loop carries holds of what is there when the last comes to its head.
        let who = (number >= outs && level.form.is_none()).then_some(who);
        match elements(machine, (level, instance, operand), own, who) {
            Ok((before, now)) => {
                olds.push(before);
                seen.push(now);
            }
            Err(element) => {
                let what = name(machine.program, level, number, element);
                let text = format!("an input, {what}, changes while it is read");
                return found(Fault::Unstable, text);
            }
        }
    }
    let (written, read) = seen.split_at(outs);
    let ins = olds.split_off(outs);
    let number = |expr: &Expr| {
        let own = level.numbers.iter().zip(&instance.numbers).find(|row| row.0.0 == expr);
        own.map(|row| *row.1).or_else(|| machine.program.scope.fixed(expr).ok())
    };
    let units = level.operands.iter().filter(|of| of.place.scalar.is_float());
    let unit = units.map(|of| of.place.scalar.unit()).fold(0.0, f64::max);
    let by = Given { outs: &olds, number: &number, unit };
    // Threads that carry out the same steps have the same operands.
    let mut latest = levels.latest[instance.level].borrow_mut();
    let old = meaning.steps().iter().any(|term| matches!(term, Term::Old(_)));
    let known = latest.take().filter(|of| !old && of.ins == ins && of.numbers == instance.numbers);
    let evaluated = match known {
        Some(known) => known,
        None => Rc::new(Evaluated {
            made: meaning.nearly(&ins, by).map_err(|_| Unchecked::Shape)?,
            numbers: instance.numbers.clone(),
            ins,
        }),
    };
    let (ins, expected) = (&evaluated.ins, evaluated.made.iter().cloned());
    *latest = Some(Rc::clone(&evaluated));
    drop(latest);
    // What depends on elements outside of their buffers need not be written.
    let mut marked: Option<Vec<Array>> = None;
    let mut mark = |which: usize, element: usize| -> bool {
        let marked = marked.get_or_insert_with(|| {
            let outside = |(of, seen): (&Array, &Seen)| {
                let mut marked = of.clone();
                let all = marked.data.iter_mut().zip(&seen.at);
                all.filter(|row| row.1.is_none()).for_each(|row| *row.0 = f64::NAN);
                marked
            };
            let ins: Vec<Array> = ins.iter().zip(read).map(outside).collect();
            let all = meaning.nearly(&ins, by).unwrap_or_default();
            let fit = |((of, _), operand): ((Array, _), &level::Array)| {
                let fits = operand.spread || level.form.is_some();
                if fits { Some(of) } else { of.fit(&operand.shape).ok() }
            };
            all.into_iter().zip(&level.operands).map_while(fit).collect()
        });
        let marked = marked.get(which).and_then(|of| of.data.get(element));
        marked.is_some_and(|of| of.is_nan())
    };
    let outside = read.iter().any(|of| of.at.contains(&None));
    if let Some(form) = &level.form {
        // As far as it is known which elements registers hold.
        let parts = expected.enumerate().map(|(which, want)| (which, form.output(which), want));
        let told = parts.filter(|row| row.1.used().all(|state| !unknown.contains(&state)));
        let by = Given { outs: &[], unit: 0.0, ..by };
        let known = told.filter_map(|(which, part, want)| {
            let found = part.nearly(&olds, by).ok()?.pop()?;
            Some((which, part, found, want))
        });
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return Err(Unchecked::Fragment);
        }
        for (which, part, got, (want, error)) in known {
            let more = got.0.data.len() > want.data.len();
            let shape = if more { &got.0 } else { &want }.shape.clone();
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
                let [got, want] = [&got, &want].map(|of| Number(of.data[element]));
                let text = format!("element [{at}] of {part}: {got}, expected {want}");
                return found(Fault::Differs, text);
            }
        }
        return Ok(None);
    }
    let mut learnt = Vec::new();
    for (which, (of, (values, errors))) in written.iter().zip(expected).enumerate() {
        let operand = &level.operands[which];
        let place = &operand.place;
        if operand.spread {
            let mark = |element: usize| outside && mark(which, element);
            match spread(machine, (level, instance, which), &(values, errors), mark) {
                Ok(fragment) => learnt.push((place.number, fragment)),
                Err(text) => return found(Fault::Differs, text),
            }
            continue;
        }
        let fit = |of: Array| of.fit(&operand.shape).map_err(|_| Unchecked::Shape);
        let (values, errors) = (fit(values)?, fit(errors)?);
        for (element, at) in of.at.iter().enumerate() {
            let Some(at) = at else { continue };
            let (want, error) = (place.scalar.round(values.data[element]), errors.data[element]);
            let written = instance.log.get(*at);
            let got = written.map_or(of.now[element], |written| written.after);
            let right = agree(got, want, error, place.scalar.unit());
            if !(right || written.is_none() && mark(which, element)) {
                let what = name(machine.program, level, which, element);
                let not = if written.is_none() { "not written, and " } else { "" };
                let [got, want] = [got, want].map(Number);
                let text = format!("{what}: {not}{got}, expected {want}");
                return found(Fault::Differs, text);
            }
        }
    }
    if learnt.is_empty() {
        return Ok(None);
    }
    let team = (instance.from, instance.first, level.threads.size);
    let all = (0..level.agents()).map(|rank| level.lane(instance, rank));
    let mut warps: Vec<(i64, usize)> = all.map(|(block, warp, _)| (block, warp)).collect();
    warps.dedup();
    let levels = &mut machine.levels;
    for (root, fragment) in learnt {
        levels.teams.extend(warps.iter().map(|&(block, warp)| ((root, block, warp), team)));
        let known = levels.fragments.entry(root).or_default();
        known.retain(|of| !of.is_of(&fragment.shape, fragment.threads, &fragment.values));
        known.push(fragment);
    }
    Ok(None)
}

/// Values that more elements have tell nothing of which one a register holds.
const FEW: usize = 4;

/// Which elements the registers of several threads hold, as far as that is known after this instance; what is wrong if there
/// is no such layout, or not the one that there was before.
fn spread(
    machine: &Machine<'_, '_>,
    (level, instance, which): (&Level<'_>, &Instance, usize),
    (values, errors): &(Array, Array),
    mut mark: impl FnMut(usize) -> bool,
) -> Result<Rc<Fragment>, String> {
    let (held, adds) = (&instance.held[which], level.adds[which]);
    let operand = &level.operands[which];
    let place = &operand.place;
    let (offset, registers) = (level.offset(instance, which), level.registers(instance, which));
    let mut known = machine.levels.fragments.get(&place.number).into_iter().flatten();
    let known = known.find(|known| known.is_of(&values.shape, level.agents(), &registers));
    let new = || Rc::new(Fragment::new(level, operand, registers.clone(), &values.shape));
    let mut fragment = known.cloned().unwrap_or_else(new);
    let off = errors.data.iter().copied().fold(0.0, f64::max);
    let exact = place.scalar == Scalar::F32 && off == 0.0;
    let unit = if exact { 0.0 } else { place.scalar.unit() };
    // Of each register what it got, and how much else that may be.
    let count = place.size() as usize;
    let got = |number: usize| {
        let (rank, value) = (number / count, number % count);
        let (block, warp, lane) = level.lane(instance, rank);
        let register = (place.first as i64 + offset + place.distances[value]) as usize;
        let at = lane * machine.program.registers + register;
        let element = Element::of(Memory::Registers, unit_of(block, warp), at);
        let before = held[number];
        let written = instance.log.get(element);
        let after = written.map_or(before, |written| written.after);
        let size = if adds { after.abs().max(before.abs()) } else { after.abs() };
        let got = (if adds { after - before } else { after }, 4.0 * off + 2.0 * unit * size);
        (got, written.is_some())
    };
    let (all, written): (Vec<(f64, f64)>, Vec<bool>) = (0..held.len()).map(got).unzip();
    // Of a layout that is known, no value tells more.
    let telling = if fragment.is_complete() { &[][..] } else { &values.data };
    let mut sorted: Vec<(f64, usize)> = telling.iter().copied().zip(0..).collect();
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
        Rc::make_mut(&mut fragment).learn(&may);
    }
    // Nothing tells what is added to what is no number.
    let lost = |register: usize| adds && held[register].is_nan() && all[register].0.is_nan();
    let name = &place.name;
    // Of several registers of an element, what only some are written to, the others need not hold.
    let mut renewed = vec![false; values.data.len()];
    let holders = fragment.cells.iter().zip(&written).filter(|row| *row.1);
    holders.filter_map(|row| row.0.flatten()).for_each(|element| renewed[element] = true);
    let mut missing = vec![true; values.data.len()];
    for (register, (cell, &(got, most))) in fragment.cells.iter().zip(&all).enumerate() {
        match cell {
            Some(None) => {}
            Some(Some(element)) => {
                missing[*element] = false;
                let want = values.data[*element];
                let right = (got - want).abs() <= most || agree(got, want, 0.0, 0.0);
                let stale = renewed[*element] && !written[register];
                if !(right || stale || lost(register) || mark(*element)) {
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
    (level, instance, operand): (&Level<'_>, &Instance, &level::Array),
    starts: &[i64],
    who: Option<(usize, usize)>,
) -> Result<(Array, Seen), usize> {
    let place = &operand.place;
    let first: i64 = starts.iter().zip(&place.axes).map(|(start, axis)| start * axis.1).sum();
    let own = &machine.runners[instance.warp];
    let block = &machine.blocks[own.block];
    let (unit, space) = match place.memory {
        Memory::Global => (0, Some(&machine.global)),
        Memory::Shared => (block.number as u64, Some(&block.shared)),
        Memory::Registers => (unit_of(block.number, own.index), None),
    };
    let whole = place.is_whole(starts);
    let logged = level.written.contains(&place.number);
    let access = who.map(|(warp, lane)| Access {
        runner: &machine.runners[warp],
        lane,
        transfers: &machine.transfers,
        units: machine.units,
        proxy: Proxy::Generic,
        stamp: Epoch::default(),
        at: 0,
    });
    let mut before = Vec::with_capacity(operand.order.len());
    // Where elements lie is asked of outputs, and of what lies outside.
    let (asked, mut seen) = (logged || !whole, Seen::default());
    for (element, &number) in operand.order.iter().enumerate() {
        let number = number as usize;
        if !whole && !place.is_inside(starts, number) {
            before.push(0.0);
            seen.now.push(0.0);
            seen.at.push(None);
            continue;
        }
        let counter = place.first + (first + place.distances[number]) as usize;
        let at = if space.is_none() { own.register(counter, instance.lane) } else { counter };
        let id = Element::of(place.memory, unit, at);
        let written = if logged { instance.log.get(id) } else { None };
        let (valid, now) = match space {
            Some(space) => (space.is_valid(at), space.peek(at)),
            None => (own.marks[at].valid, own.registers[at]),
        };
        if let (Some(space), Some(access)) = (space, access) {
            let changed = space.changed[at];
            let own = changed <= instance.opened || written.is_some_and(|of| of.last >= changed);
            if !own && !space.is_ordered(at, &access) {
                return Err(element);
            }
        }
        let now = if valid { now } else { f64::NAN };
        before.push(written.map_or(now, |of| of.before));
        if asked {
            seen.now.push(now);
            seen.at.push(Some(id));
        }
    }
    Ok((Array { shape: operand.shape.clone(), data: before }, seen))
}

/// A spec, and which of its instances it is.
fn said(program: &Program<'_>, level: &Level<'_>, instance: &Instance) -> String {
    let vars = level.vars.iter().zip(&instance.vars);
    let vars = list(vars.map(|((var, _), value)| format!("@{} = {value}", var.name())));
    let of = if level.number.is_none() { &program.kernel.name } else { "" };
    let name = |state: &Operand| format!("%{}", program.kernel.tensor_name(state.tensor));
    let kind = match level.form {
        Some(_) => format!("carried {}", list(level.spec.outs.iter().map(name))),
        None => level.spec.kind.to_string(),
    };
    let all = [kind, of.to_owned(), vars];
    joined(all.iter().filter(|part| !part.is_empty()), " of ")
}

/// An operand's element.
fn name(program: &Program<'_>, level: &Level<'_>, operand: usize, element: usize) -> String {
    let operands = level.spec.outs.iter().chain(&level.spec.ins);
    let tensor = operands.map(|of| program.kernel.tensor_name(of.tensor)).nth(operand);
    let at = at_text(&level.operands[operand].shape, element);
    format!("element [{at}] of %{}", tensor.expect("it has an operand of this number"))
}

/// The coordinates of an element.
fn at_text(shape: &[usize], element: usize) -> String {
    joined(coordinates(shape, element), ",")
}
