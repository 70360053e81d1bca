//! What an instance wrote, compared with what its spec's kind makes of what it read.

use super::clock::Epoch;
use super::instance::{Element, Instance};
use super::level::{self, Level, Unchecked};
use super::machine::Machine;
use super::memory::Access;
use super::program::Program;
use super::report::Finding;
use crate::atom::{Fault, Proxy};
use crate::index::Expr;
use crate::kernel::{Array, Kind, Number};
use crate::tensor::{Memory, Scalar};

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
    let found = match instance.unchecked {
        Some(why) => Err(why),
        None => compare(machine, level, instance, who),
    };
    let (number, block, warp) = (instance.level, instance.block, instance.warp);
    let levels = machine.levels.as_mut().expect("it was there above");
    let found = found.map(|found| match found {
        Found::Right => None,
        Found::Wrong(fault) => Some(fault),
        Found::Held(held) => {
            levels.spread.extend(held);
            None
        }
    });
    match found {
        Err(why) => *levels.counts[number].unchecked.entry(why).or_default() += 1,
        Ok(fault) => {
            levels.counts[number].checked += 1;
            if let Some(fault) = fault {
                report(machine, level, fault, (block, warp));
            }
        }
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

/// Values that more elements have tell nothing of which one a register holds.
const FEW: usize = 64;

/// What came of a comparison.
enum Found {
    Right,
    Wrong(Fault),
    /// It is right if registers hold these elements.
    Held(Vec<((u32, u64), Vec<u32>)>),
}

/// What is wrong with what an instance wrote, if anything is.
fn compare(
    machine: &Machine<'_, '_>,
    level: &Level<'_>,
    instance: &Instance,
    who: (usize, usize),
) -> Result<Found, Unchecked> {
    let outs = level.spec.outs.len();
    let mut seen = Vec::with_capacity(level.operands.len());
    let mut starts = &instance.starts[..];
    for (number, operand) in level.operands.iter().enumerate() {
        let (own, rest) = starts.split_at(operand.place.starts.len());
        starts = rest;
        if level.spread && number == 0 {
            let none = Array { shape: Vec::new(), data: vec![0.0] };
            seen.push(Seen { now: none.clone(), before: none, at: Vec::new() });
            continue;
        }
        match elements(machine, instance, operand, own, (number >= outs).then_some(who)) {
            Ok(all) => seen.push(all),
            Err(element) => {
                let text = format!(
                    "{}: an input, {}, changes while it is read",
                    said(machine.program, level, instance),
                    name(machine.program, level, number, element)
                );
                return Ok(Found::Wrong(Fault::Unstable(text)));
            }
        }
    }
    let shape = |at: usize| level.operands.get(at).map_or(&[][..], |of| &of.shape);
    let meaning = level.spec.kind.meaning(shape(0), shape(outs)).ok_or(Unchecked::Kind)?;
    let (written, read) = seen.split_at(outs);
    let ins: Vec<Array> = read.iter().map(|of| of.before.clone()).collect();
    let olds: Vec<Array> = written.iter().map(|of| of.before.clone()).collect();
    let number = |expr: &Expr| {
        let own = level.numbers.iter().zip(&instance.numbers).find(|row| row.0.0 == expr);
        own.map(|row| *row.1).or_else(|| machine.program.scope.fixed(expr).ok())
    };
    let units = level.operands.iter().filter(|of| of.place.scalar.is_float());
    let unit = units.map(|of| of.place.scalar.unit()).fold(0.0, f64::max);
    if level.spread {
        let expected = meaning.nearly(&ins, &olds, &number, unit).map_err(|_| Unchecked::Shape)?;
        return spread(machine, level, instance, &expected[0]);
    }
    let expected = meaning.bounds(&ins, &olds, &number, unit).map_err(|_| Unchecked::Shape)?;
    // What depends on elements outside of their buffers need not be written.
    let mut marked: Option<Vec<Array>> = None;
    let mut mark = |which: usize, element: usize| -> bool {
        let marked = marked.get_or_insert_with(|| {
            let outside = |of: &Seen| {
                let all = of.before.data.iter().zip(&of.at);
                let data = all.map(|(x, at)| at.map_or(f64::NAN, |_| *x)).collect();
                Array { shape: of.before.shape.clone(), data }
            };
            let ins: Vec<Array> = read.iter().map(outside).collect();
            meaning.values(&ins, &olds, &number).unwrap_or_default()
        });
        marked.get(which).is_some_and(|of| of.data[element].is_nan())
    };
    for (which, (of, (values, errors))) in written.iter().zip(&expected).enumerate() {
        let place = &level.operands[which].place;
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
                return Ok(Found::Wrong(Fault::Differs(text)));
            }
        }
    }
    Ok(Found::Right)
}

/// Whether there are elements that the registers of several threads may hold, in this instance as in those before: which
/// element each register has is the same in all of them.
fn spread(
    machine: &Machine<'_, '_>,
    level: &Level<'_>,
    instance: &Instance,
    (values, errors): &(Array, Array),
) -> Result<Found, Unchecked> {
    let adds = level.spec.kind == Kind::MATMUL_ADD;
    let place = &level.operands[0].place;
    let levels = machine.levels.as_ref().expect("an instance is theirs");
    let mut sorted: Vec<(f64, u32)> = values.data.iter().copied().zip(0..).collect();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let off = errors.data.iter().copied().fold(0.0, f64::max);
    let mut registers: Vec<_> = instance.log.iter().collect();
    registers.sort_unstable_by_key(|(element, _)| element.register());
    // Tiles of instructions may be wider than what is computed.
    if registers.len() != values.data.len() {
        return Err(Unchecked::Fragment);
    }
    let mut all = Vec::with_capacity(registers.len());
    for (element, written) in registers {
        let got = if adds { written.after - written.before } else { written.after };
        let unit =
            if place.scalar == Scalar::F32 && off == 0.0 { 0.0 } else { place.scalar.unit() };
        let size = written.after.abs().max(written.before.abs());
        let most = 4.0 * off + 2.0 * unit * size;
        let key = (written.root, element.register());
        let may: Vec<u32> = match levels.spread.get(&key) {
            Some(known) => {
                let fits = |element: &u32| (values.data[*element as usize] - got).abs() <= most;
                known.iter().copied().filter(fits).collect()
            }
            None => {
                let first = sorted.partition_point(|row| row.0 < got - most);
                let end = sorted.partition_point(|row| row.0 <= got + most);
                if end - first > FEW {
                    continue;
                }
                sorted[first..end.max(first)].iter().map(|row| row.1).collect()
            }
        };
        if may.is_empty() {
            let name = &place.name;
            let (what, got) = (said(machine.program, level, instance), Number(got));
            let known = levels.spread.get(&key).and_then(|known| known.first());
            let which = known.map(|&element| {
                let at = coordinates(&values.shape, element as usize);
                let want = Number(place.scalar.round(values.data[element as usize]));
                format!("element [{at}] of %{name}: {got}, expected {want}")
            });
            let which = which.unwrap_or_else(|| format!("%{name}: {got}, which no element is"));
            return Ok(Found::Wrong(Fault::Differs(format!("{what}: {which}"))));
        }
        all.push((key, may));
    }
    Ok(Found::Held(all))
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
    let kind = level.spec.kind.to_string();
    let all = [kind, of.to_owned(), vars.join(", ")];
    let all: Vec<String> = all.into_iter().filter(|part| !part.is_empty()).collect();
    all.join(" of ")
}

/// An operand's element.
fn name(program: &Program<'_>, level: &Level<'_>, operand: usize, element: usize) -> String {
    let operands = level.spec.outs.iter().chain(&level.spec.ins);
    let tensor =
        operands.map(|of| of.tensor).nth(operand).expect("it has an operand of this number");
    let at = coordinates(&level.operands[operand].shape, element);
    format!("element [{at}] of %{}", program.kernel.tensor_name(tensor))
}

/// The coordinates of an element, the last one fastest.
fn coordinates(shape: &[usize], element: usize) -> String {
    let mut rest = element;
    let mut at: Vec<String> = Vec::new();
    for size in shape.iter().rev() {
        at.insert(0, (rest % size).to_string());
        rest /= size;
    }
    at.join(",")
}
