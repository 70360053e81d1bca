//! What a kernel's threads ask of global memory, by its control flow alone: no data, no barriers, no order.

use std::collections::BTreeMap;

use super::clock::lanes_of;
use super::control::control;
use super::place::Place;
use super::program::{Op, Program, Task};
use super::report::Traffic;
use super::runner::{Runner, Units};
use super::{Memory, valued};
use crate::{Kernel, Kind, Result};

/// The bytes that all threads of a kernel read from and write to global memory at these sizes, each access counted: those that
/// [`simulate`](super::simulate) counts. What threads find in memory is taken for 0, which matters where it says how long a loop is.
/// `None` if that takes more than so many steps of warps. Fails with [`Error::Kernel`](crate::Error::Kernel) if a symbol has no
/// value, and as [`simulate`](super::simulate) does for what it cannot run.
pub fn requested(
    kernel: &Kernel,
    symbols: &BTreeMap<String, i64>,
    steps: u64,
) -> Result<Option<Traffic>> {
    let program = Program::of(kernel, valued(kernel, symbols)?, false)?;
    let (mut sum, mut left) = (Traffic::default(), steps);
    // Neither what is prefetched nor a flag that is waited for counts there.
    let moves = |of: &Kind| !matches!(of, Kind::Prefetch | Kind::GridWait(_));
    let global = |p: &Place| p.memory == Memory::Global;
    let global = |of: &Task<'_>| moves(&of.site.spec.kind) && of.places.iter().any(global);
    let global: Vec<bool> = program.tasks.iter().map(global).collect();
    for block in 0..program.blocks {
        for warp in 0..(program.threads as usize).div_ceil(32) {
            let begin = program.start(block, warp);
            let mut runner = Runner::new((0, warp), begin, Units::default(), 0, 0, 0);
            loop {
                let op = &program.ops[runner.counter];
                let Some(rest) = left.checked_sub(1) else { return Ok(None) };
                left = rest;
                runner.counter += 1;
                match op {
                    Op::Exit => break,
                    Op::Atom(task) if global[*task] => {
                        let task = &program.tasks[*task];
                        left = left.saturating_sub(count(task, &runner, &mut sum));
                    }
                    Op::Look(slot, _) => lanes_of(runner.mask).for_each(|lane| {
                        runner.slots[slot.of(lane)] = 0;
                    }),
                    Op::Forget(..) => {}
                    // A loop that no lane ends alike, or that never ends, is the simulator's to report.
                    _ if control(&mut runner, op, steps).is_err() => return Ok(None),
                    _ => {}
                }
            }
        }
    }
    Ok(Some(sum))
}

/// Adds what a warp's lanes ask for; returns how many elements were looked at.
fn count(task: &Task<'_>, runner: &Runner, sum: &mut Traffic) -> u64 {
    let mut looked = 0;
    let global = task.places.iter().enumerate().filter(|row| row.1.memory == Memory::Global);
    for (operand, place) in global {
        let written = operand < task.site.outs();
        let sum = if written { &mut sum.written } else { &mut sum.read };
        for lane in lanes_of(runner.mask) {
            let (within, seen) = inside(place, runner, lane);
            looked += seen;
            *sum += within * place.bytes as u64;
        }
    }
    looked
}

/// The elements of an operand, as a lane sees it, that lie inside; and how many were looked at one by one.
fn inside(place: &Place, runner: &Runner, lane: usize) -> (u64, u64) {
    let starts: Vec<i64> =
        place.starts.iter().map(|start| start.value(&runner.slots, lane)).collect();
    let all = place.size() as u64;
    if place.is_whole(&starts) {
        return (all, 1);
    }
    ((0..all as usize).filter(|&element| place.is_inside(&starts, element)).count() as u64, all)
}
