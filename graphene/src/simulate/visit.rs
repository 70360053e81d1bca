//! Agents come to levels and leave them: instances open and close.

use super::clock::lanes_of;
use super::formula::{Check, Formula};
use super::instance::Instance;
use super::meaning;
use super::runner::Frame;
use super::{Machine, Unchecked};

/// Some lanes of a warp come to a spec with a body.
pub(super) fn enter(machine: &mut Machine<'_, '_>, warp: usize, number: usize) {
    let (program, every) = (machine.program, machine.options.levels);
    let level = &program.levels[number];
    let (runner, levels) = (&mut machine.runners[warp], &mut machine.levels);
    let (mask, leader) = (runner.mask, runner.mask.trailing_zeros() as usize);
    let around = runner.frames.last().map_or([Frame::NONE; 32], |frame| frame.of);
    runner.visits[number] += 1;
    let visit = runner.visits[number];
    let first = 32 * runner.index as i64;
    let within = runner.frames.last().is_some_and(|frame| frame.own);
    let at_end = |check: &Check| check.holds(&runner.slots, leader);
    let chosen = visit % every == 1 % every || within && level.ends.iter().any(at_end);
    if level.unchecked.is_some() || !chosen {
        let start = level.threads.start.value(&runner.slots, leader);
        if level.threads.size == 1 || (first..first + 32).contains(&start) {
            let count = &mut levels.counts[number];
            let lanes = u64::from(if level.threads.size == 1 { mask.count_ones() } else { 1 });
            match level.unchecked {
                Some(why) => *count.unchecked.entry(why).or_default() += lanes,
                None => count.left_out += lanes,
            }
        }
        return runner.frames.push(Frame { own: false, mask, of: around });
    }
    let mut frame = Frame { own: true, mask, of: around };
    let block = machine.blocks[runner.block].number;
    let mut groups: Vec<(i64, u32)> = Vec::with_capacity(32);
    for lane in lanes_of(mask) {
        if level.threads.size == 1 {
            groups.push((first + lane as i64, 1 << lane));
            continue;
        }
        let start = level.threads.start.value(&runner.slots, lane);
        match groups.iter_mut().find(|group| group.0 == start) {
            Some(group) => group.1 |= 1 << lane,
            None => groups.push((start, 1 << lane)),
        }
    }
    for (start, lanes) in groups {
        let lane = lanes.trailing_zeros() as usize;
        let (blocks, from) = match &level.blocks {
            None => (1, block),
            Some(None) => (program.blocks, 0),
            Some(Some(team)) => (team.size, team.start.value(&runner.slots, lane)),
        };
        let agents = level.threads.size * blocks;
        let all = agents <= i64::from(lanes.count_ones());
        let key = (!all).then_some((number, visit, start, from));
        let known = key.and_then(|key| levels.find(&key));
        let id = known.unwrap_or_else(|| {
            let starts = level.operands.iter().flat_map(|of| &of.place.starts);
            let value = |formula: &Formula| formula.value(&runner.slots, lane);
            let starts: Vec<i64> = starts.map(value).collect();
            let parent = (around[lane] != Frame::NONE).then_some(around[lane] as usize);
            let nobody = parent.is_some_and(|parent| levels.get(parent).outside);
            levels.open(Instance {
                level: number,
                parent,
                key,
                left: agents,
                opened: levels.now,
                outside: nobody || level.is_outside(&starts),
                starts,
                numbers: level.numbers.iter().map(|row| value(&row.1)).collect(),
                vars: level.vars.iter().map(|row| value(&row.1)).collect(),
                held: level.held(),
                from,
                first: start,
                warp,
                lane,
                unchecked: nobody.then_some(Unchecked::Outside),
                ..Instance::default()
            })
        });
        // All see the same operands.
        let instance = levels.get_mut(id);
        let starts = level.operands.iter().flat_map(|of| &of.place.starts);
        let varying = level.operands.iter().any(|of| of.place.varying);
        let differs = |(formula, start): (&Formula, &i64)| {
            lanes_of(lanes).any(|lane| formula.value(&runner.slots, lane) != *start)
        };
        if (known.is_some() || varying) && starts.zip(&instance.starts).any(differs) {
            instance.unchecked = Some(Unchecked::View);
        }
        level.look(instance, (runner, block), lanes);
        lanes_of(lanes).for_each(|lane| frame.of[lane] = id as u32);
    }
    runner.frames.push(frame);
}

/// The lanes that came to a spec with a body leave it.
pub(super) fn leave(machine: &mut Machine<'_, '_>, warp: usize) {
    let Some(frame) = machine.runners[warp].frames.pop() else { return };
    if !frame.own {
        return;
    }
    let mut rest = frame.mask;
    while rest != 0 {
        let id = frame.of[rest.trailing_zeros() as usize];
        let lanes = lanes_of(rest).filter(|&lane| frame.of[lane] == id);
        let lanes = lanes.fold(0_u32, |lanes, lane| lanes | 1 << lane);
        rest &= !lanes;
        let instance = machine.levels.get_mut(id as usize);
        instance.left -= i64::from(lanes.count_ones());
        if instance.left <= 0 {
            let lane = lanes.trailing_zeros() as usize;
            meaning::check(machine, id as usize, (warp, lane));
            machine.levels.close(machine.program, id as usize);
        }
    }
}

/// The kernel itself is an instance, of all threads of all blocks.
pub(super) fn begin(machine: &mut Machine<'_, '_>, first: bool) {
    let program = machine.program;
    let Some(whole) = program.levels.first() else { return };
    let lanes = [if whole.unchecked.is_some() { Frame::NONE } else { 0 }; 32];
    for runner in &mut machine.runners {
        runner.visits = vec![0; program.levels.len()];
        runner.frames = vec![Frame { own: false, mask: u32::MAX, of: lanes }];
    }
    if !first || whole.unchecked.is_some() {
        return;
    }
    let slots = &machine.runners[0].slots;
    let starts = whole.operands.iter().flat_map(|of| &of.place.starts);
    let starts = starts.map(|start| start.value(slots, 0)).collect();
    let numbers = whole.numbers.iter().map(|row| row.1.value(slots, 0)).collect();
    let instance = Instance { left: i64::MAX, starts, numbers, ..Instance::default() };
    machine.levels.open(instance);
}

/// The end of a run: the kernel's instance closes; those that some agents did not leave are counted.
pub(super) fn end(machine: &mut Machine<'_, '_>) {
    let Some(whole) = machine.program.levels.first() else { return };
    let levels = &mut machine.levels;
    if let Some(why) = whole.unchecked {
        *levels.counts[0].unchecked.entry(why).or_default() += 1;
    }
    levels.count_unfinished();
    if whole.unchecked.is_none() {
        meaning::check(machine, 0, (0, 0));
    }
}
