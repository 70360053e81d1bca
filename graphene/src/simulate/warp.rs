//! What an atom's meaning asks of the machine.

use super::clock::lanes_of;
use super::gather::rendezvous;
use super::issue::Issue;
use super::runner::State;
use crate::atom::{At, Fault, Progress, Step, Tried, Warp};
use crate::{Expr, Fence, Group, Scope};

impl Warp for Issue<'_, '_, '_> {
    fn lanes(&self) -> Vec<usize> {
        lanes_of(self.mask).collect()
    }

    fn rank(&self, lane: usize) -> i64 {
        let (team, runner) = (&self.task.threads, &self.machine.runners[self.warp]);
        let thread = (32 * runner.index + lane) as i64 - team.start.value(&runner.slots, lane);
        team.rank(thread) as i64
    }

    fn read(&mut self, at: At<'_>) -> Tried<f64> {
        let spot = self.inner_spot(at)?;
        self.load(spot)
    }

    fn read_or_zero(&mut self, at: At<'_>) -> Tried<f64> {
        self.spot(at)?.map_or(Ok(0.0), |spot| self.load(spot))
    }

    fn read_all(&mut self, lane: usize, operand: usize, values: &mut Vec<f64>) -> Tried {
        values.clear();
        let (base, size) = (self.base_of(lane, operand), self.task.places[operand].size());
        for element in 0..size as usize {
            let spot = self.inner_spot_from(base, (lane, operand, element))?;
            values.push(self.load(spot)?);
        }
        Ok(())
    }

    fn write(&mut self, at: At<'_>, value: f64) -> Tried {
        let spot = self.inner_spot(at)?;
        self.store(spot, value)
    }

    fn write_all(&mut self, lane: usize, operand: usize, values: &[f64]) -> Tried {
        let base = self.base_of(lane, operand);
        for (element, &value) in values.iter().enumerate() {
            let spot = self.inner_spot_from(base, (lane, operand, element))?;
            self.store(spot, value)?;
        }
        Ok(())
    }

    fn write_if_inside(&mut self, at: At<'_>, value: f64) -> Tried {
        self.spot(at)?.map_or(Ok(()), |spot| self.store(spot, value))
    }

    fn init_barrier(&mut self, operand: usize, arrivals: i64) -> Step {
        for lane in lanes_of(self.mask) {
            let (block, barrier) = self.barrier_of(lane, operand)?;
            let runner = &self.machine.runners[self.warp];
            let now = runner.now(lane);
            if block != runner.block {
                return Err(self.barrier_fault(lane, operand, "is initialised by another block"));
            }
            let made = self.machine.blocks[block].barriers[barrier].init(arrivals, now);
            made.map_err(|why| self.barrier_fault(lane, operand, why))?;
        }
        Ok(Progress::Done)
    }

    fn arrive(&mut self, lane: usize, operand: usize, bytes: i64) -> Step {
        let (block, barrier) = self.barrier_of(lane, operand)?;
        let remote = block != self.machine.runners[self.warp].block;
        self.check_barrier((lane, operand), (block, barrier), remote)?;
        if remote {
            self.visit((lane, operand), block)?;
        }
        let unit = self.machine.barrier_unit(block, barrier);
        let machine = &mut *self.machine;
        let (of_block, warps) = machine.units;
        let nothing = remote.then(|| machine.ignorance());
        let target = &mut machine.blocks[block].barriers[barrier];
        if let Some(mut known) = nothing {
            // Of other blocks, only asynchronous units' accesses are ordered so.
            machine.runners[self.warp].publish(1 << lane, &mut known);
            known.forget(|unit| unit % of_block < warps);
            target.arriving.join(&known);
        } else {
            machine.runners[self.warp].publish(1 << lane, &mut target.arriving);
        }
        let arrived = target.arrive(bytes).map(|()| target.settle(unit));
        arrived.map_err(|why| self.barrier_fault(lane, operand, why))?;
        self.machine.events += 1;
        Ok(Progress::Done)
    }

    fn wait(&mut self, operand: usize, parity: i64, scope: Scope) -> Step {
        // Lanes whose barriers differ wait for all of them.
        let lanes: Vec<(usize, u32)> = if self.task.places[operand].varying {
            lanes_of(self.mask).map(|lane| (lane, 1 << lane)).collect()
        } else {
            vec![(self.mask.trailing_zeros() as usize, self.mask)]
        };
        let own = self.machine.runners[self.warp].block;
        let mut passed = true;
        for &(first, mask) in &lanes {
            let (block, barrier) = self.barrier_of(first, operand)?;
            if block != own {
                return Err(self.barrier_fault(first, operand, "of another block is waited for"));
            }
            for lane in lanes_of(mask) {
                self.check_barrier((lane, operand), (block, barrier), false)?;
            }
            let phase = self.machine.blocks[block].barriers[barrier].phase;
            passed &= i64::from(phase % 2) != parity;
        }
        if !passed {
            return Ok(Progress::Blocked);
        }
        for (lane, mask) in lanes {
            let (block, barrier) = self.barrier_of(lane, operand)?;
            let machine = &mut *self.machine;
            if scope == Scope::Block && machine.blocks[block].barriers[barrier].stored {
                let text = "who waits for stores of the cluster does so in its scope".to_owned();
                self.complain(lane, Fault::MissingFence(text), None)?;
                return Ok(Progress::Done);
            }
            let known = &machine.blocks[block].barriers[barrier].complete;
            machine.runners[self.warp].learn(mask, known);
        }
        Ok(Progress::Done)
    }

    fn count(&mut self, lane: usize, operand: usize, below: i64) -> Tried {
        let spot = self.inner_spot((lane, operand, &[]))?;
        let next = |count: f64| if count + 1.0 < below as f64 { count + 1.0 } else { 0.0 };
        self.exchange(spot, next)?;
        let (nothing, counter) = (self.machine.ignorance(), self.counter(spot));
        let machine = &mut *self.machine;
        let published = machine.counters.entry(counter).or_insert(nothing);
        machine.runners[self.warp].publish(1 << lane, published);
        machine.events += 1;
        Ok(())
    }

    fn await_count(&mut self, lane: usize, operand: usize, count: i64) -> Step {
        let spot = self.inner_spot((lane, operand, &[]))?;
        if self.observe(spot)? < count as f64 {
            return Ok(Progress::Blocked);
        }
        let counter = self.counter(spot);
        let machine = &mut *self.machine;
        if let Some(published) = machine.counters.get(&counter) {
            machine.runners[self.warp].learn(1 << lane, published);
        }
        Ok(Progress::Done)
    }

    fn rendezvous(&mut self) -> Step {
        rendezvous(self.machine, self.warp, self.task)
    }

    fn fence(&mut self, fence: Fence) -> Step {
        let runner = &mut self.machine.runners[self.warp];
        match fence {
            Fence::MatMul => runner.fences += 1,
            Fence::Proxy => {
                runner.fence(self.mask);
                self.fence_barriers();
            }
            Fence::Init => self.fence_barriers(),
        }
        Ok(Progress::Done)
    }

    fn commit(&mut self, group: Group) -> Step {
        let runner = &mut self.machine.runners[self.warp];
        match runner.groups(group) {
            None => runner.matmuls.committed += 1,
            Some(groups) => lanes_of(self.mask).for_each(|lane| groups.committed[lane] += 1),
        }
        self.machine.events += 1;
        Ok(Progress::Done)
    }

    fn wait_group(&mut self, group: Group, pending: i64, reads: bool) -> Step {
        let pending = u32::try_from(pending).unwrap_or(0);
        let runner = &mut self.machine.runners[self.warp];
        if let Some(groups) = runner.groups(group) {
            for lane in lanes_of(self.mask) {
                let done = groups.committed[lane].saturating_sub(pending);
                groups.read[lane] = done.max(groups.read[lane]);
                if !reads {
                    groups.done[lane] = done.max(groups.done[lane]);
                }
            }
            return Ok(Progress::Done);
        }
        let (block, index, used) = (runner.block, runner.index, runner.matmuls.used);
        let done = runner.matmuls.committed.saturating_sub(pending);
        // A warpgroup's matmuls are done when all of its warps have issued them.
        let behind = self.machine.runners.iter().any(|other| {
            other.block == block
                && other.index / 4 == index / 4
                && other.matmuls.committed < done
                && other.state != State::Ended
        });
        if behind && used > 0 {
            return Ok(Progress::Blocked);
        }
        let matmuls = &mut self.machine.runners[self.warp].matmuls;
        matmuls.done = done.max(matmuls.done);
        self.release_accumulators();
        Ok(Progress::Done)
    }

    fn registers(&mut self, count: i64) -> Step {
        if count % 8 != 0 || !(24..=256).contains(&count) {
            let text = format!("{count} registers: a multiple of 8 in 24..=256 is possible");
            return Err(Fault::Invalid(text));
        }
        let runner = &mut self.machine.runners[self.warp];
        let spare = &mut self.machine.blocks[runner.block].spare;
        let more = (count - runner.budget) * 32;
        if more > *spare {
            return Ok(Progress::Blocked);
        }
        *spare -= more;
        runner.budget = count;
        self.machine.events += 1;
        Ok(Progress::Done)
    }

    fn value(&self, lane: usize, expr: &Expr) -> i64 {
        let runner = &self.machine.runners[self.warp];
        if let Some((_, formula)) = self.task.value.as_ref().filter(|own| own.0 == expr) {
            return formula.value(&runner.slots, lane);
        }
        let scope = &self.machine.program.scope;
        let value = expr.value(&|var| scope.lookup(var, &runner.slots, lane));
        value.expect("every variable of a spec's expressions has been assigned")
    }
}
