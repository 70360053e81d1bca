//! Rendezvous: threads that wait for each other.

use super::machine::Machine;
use super::program::Task;
use super::runner::Gathered;
use crate::atom::{Fault, Progress, Step};

/// Which threads of which blocks meet: of both the first, the last and their number.
pub(super) type Meeting = [(i64, i64, usize); 2];

/// Warps that wait for others.
#[derive(Debug)]
pub(super) struct Gathering {
    /// The warps and their lanes.
    expected: Vec<(usize, u32)>,
    arrived: usize,
}

/// A warp waits for all threads and blocks of its task.
pub(super) fn rendezvous(machine: &mut Machine<'_, '_>, warp: usize, task: &Task<'_>) -> Step {
    match machine.runners[warp].gathering {
        Gathered::All => {
            machine.runners[warp].gathering = Gathered::No;
            return Ok(Progress::Done);
        }
        Gathered::Waits => return Ok(Progress::Blocked),
        Gathered::No => {}
    }
    let runner = &machine.runners[warp];
    let lane = runner.mask.trailing_zeros() as usize;
    let start = task.threads.start.value(&runner.slots, lane);
    let blocks: (i64, &[i64]) = if task.site.across_blocks() {
        (task.blocks.start.value(&runner.slots, lane), &task.blocks.offsets)
    } else {
        (machine.blocks[runner.block].number, &[0])
    };
    let all: [(i64, &[i64]); 2] = [blocks, (start, &task.threads.offsets)];
    let meeting = all.map(|(first, of)| (first, of.last().copied().unwrap_or(0), of.len()));
    if !machine.gatherings.contains_key(&meeting) {
        let gathering = Gathering { expected: members(machine, all)?, arrived: 0 };
        machine.gatherings.insert(meeting, gathering);
    }
    let gathering = machine.gatherings.get_mut(&meeting).expect("it was just made");
    if !gathering.expected.iter().any(|row| row.0 == warp) {
        return Err(Fault::Divergence("a thread waits for a meeting of others".to_owned()));
    }
    gathering.arrived += 1;
    if gathering.arrived < gathering.expected.len() {
        machine.runners[warp].gathering = Gathered::Waits;
        return Ok(Progress::Blocked);
    }
    let gathering = machine.gatherings.remove(&meeting).expect("it is there");
    let mut known = machine.ignorance();
    for &(warp, lanes) in &gathering.expected {
        machine.runners[warp].publish(lanes, &mut known);
    }
    for &(warp, lanes) in &gathering.expected {
        machine.runners[warp].agree(lanes, &known);
        machine.runners[warp].gathering = Gathered::All;
    }
    machine.runners[warp].gathering = Gathered::No;
    machine.events += 1;
    Ok(Progress::Done)
}

/// The warps that take part, with their lanes.
fn members(
    machine: &Machine<'_, '_>,
    [(first_block, blocks), (start, threads)]: [(i64, &[i64]); 2],
) -> Result<Vec<(usize, u32)>, Fault> {
    let warps = i64::from(machine.units.1);
    let first = machine.blocks[0].number;
    let mut expected: Vec<(usize, u32)> = Vec::new();
    for block in blocks.iter().map(|offset| first_block + offset - first) {
        if block < 0 || block >= machine.blocks.len() as i64 {
            return Err(Fault::Invalid("blocks of different clusters cannot wait".to_owned()));
        }
        for thread in threads.iter().map(|offset| start + offset) {
            if thread < 0 || thread >= machine.program.threads {
                return Err(Fault::Divergence(format!("there is no thread {thread}")));
            }
            let (warp, bit) = ((block * warps + thread / 32) as usize, 1 << (thread % 32));
            match expected.iter_mut().rev().find(|row| row.0 == warp) {
                Some(row) => row.1 |= bit,
                None => expected.push((warp, bit)),
            }
        }
    }
    Ok(expected)
}
