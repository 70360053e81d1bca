//! Variables, masks and loops: what a warp does between atoms.

use super::clock::lanes_of;
use super::formula::{Check, Slot};
use super::program::Op;
use super::runner::Runner;
use crate::atom::Fault;

/// Carries out what is neither an atom nor the end; of loops, no more than so many rounds.
pub(super) fn control(runner: &mut Runner, op: &Op, rounds: u64) -> Result<(), Fault> {
    let (mask, first) = (runner.mask, runner.mask.trailing_zeros() as usize);
    // Where a variable is the same for all lanes, the first one stands for them.
    let lanes = |slot: &Slot| lanes_of(if slot.varying { mask } else { 1 << first });
    match op {
        Op::Set(slot, formula) => {
            for lane in lanes(slot) {
                runner.slots[slot.of(lane)] = formula.value(&runner.slots, lane);
            }
        }
        Op::Look(slot, register) => {
            for lane in lanes_of(mask) {
                let at = runner.register(*register, lane);
                if !runner.marks[at].valid {
                    return Err(Fault::Uninitialised("a register".to_owned()));
                }
                if runner.registers[at] < 0.0 {
                    return Err(Fault::Invalid("a variable is negative".to_owned()));
                }
                runner.slots[slot.of(lane)] = runner.registers[at] as i64;
            }
        }
        Op::Advance { stage, parity, stages } => {
            for lane in lanes(stage) {
                let next = runner.slots[stage.of(lane)] + 1;
                runner.slots[stage.of(lane)] = next % stages;
                runner.slots[parity.of(lane)] ^= i64::from(next == *stages);
            }
        }
        Op::Forget(first, count) => {
            for element in *first..first + count {
                for lane in lanes_of(mask) {
                    let at = runner.register(element, lane);
                    let mark = &mut runner.marks[at];
                    if mark.in_flight(runner.matmuls.done) {
                        return Err(Fault::InFlight("a register that is allocated".to_owned()));
                    }
                    mark.valid = false;
                }
            }
        }
        Op::Mask { checks, end } => {
            let mask = passing(runner, checks);
            if mask == 0 {
                runner.counter = *end;
            } else {
                runner.masks.push(runner.mask);
                runner.mask = mask;
            }
        }
        Op::Unmask => runner.mask = runner.masks.pop().expect("every mask has been pushed"),
        Op::Loop { counter, end, exit } => {
            let goes_on =
                |lane: usize| runner.slots[counter.of(lane)] < end.value(&runner.slots, lane);
            let all = goes_on(first);
            let varying = counter.varying || end.varying;
            if varying && lanes_of(mask).any(|lane| goes_on(lane) != all) {
                let text = "a loop ends at once for some lanes only";
                return Err(Fault::Divergence(text.to_owned()));
            }
            if !all {
                runner.counter = *exit;
            }
        }
        Op::Repeat { counter, step, head } => {
            runner.rounds += 1;
            if runner.rounds > rounds {
                let text = format!("a loop goes on: the warp's loops have had {rounds} rounds");
                return Err(Fault::Invalid(text));
            }
            for lane in lanes(counter) {
                let step = step.value(&runner.slots, lane);
                if step < 1 {
                    return Err(Fault::Invalid("a loop's step is not positive".to_owned()));
                }
                runner.slots[counter.of(lane)] += step;
            }
            runner.counter = *head;
        }
        Op::Atom(_) | Op::Enter(_) | Op::Leave | Op::Exit => {}
    }
    Ok(())
}

/// The active lanes for which all checks hold.
fn passing(runner: &Runner, checks: &[Check]) -> u32 {
    checks.iter().fold(runner.mask, |mask, check| {
        let holds = |&lane: &usize| check.holds(&runner.slots, lane);
        if check.left.varying || check.right.varying {
            lanes_of(mask).filter(holds).fold(0, |all, lane| all | 1 << lane)
        } else if lanes_of(mask).take(1).any(|first| holds(&first)) {
            mask
        } else {
            0
        }
    })
}
