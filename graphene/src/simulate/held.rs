//! What the threads of an instance hold of operands in registers of several of them.

use super::clock::lanes_of;
use super::fragment::Gathered;
use super::instance::{Instance, Levels};
use super::level::{Level, Unchecked};
use super::runner::Runner;
use crate::Kind;
use crate::kernel::Array;

impl Level<'_> {
    /// Where an operand begins in its buffer.
    pub(super) fn offset(&self, instance: &Instance, operand: usize) -> i64 {
        let before = self.operands[..operand].iter().map(|of| of.place.starts.len()).sum();
        let place = &self.operands[operand].place;
        let starts = instance.starts[before..].iter().zip(&place.axes);
        starts.take(place.starts.len()).map(|(start, axis)| start * axis.1).sum()
    }

    /// Where a thread's values of an operand lie among what they are a part of.
    pub(super) fn registers(&self, instance: &Instance, operand: usize) -> Vec<i64> {
        let (offset, place) = (self.offset(instance, operand), &self.operands[operand].place);
        place.distances.iter().map(|distance| offset + distance).collect()
    }

    /// Notes what lanes that come to an instance hold.
    pub(super) fn look(&self, of: &mut Instance, (runner, block): (&Runner, i64), lanes: u32) {
        for (number, operand) in self.operands.iter().enumerate().filter(|row| row.1.spread) {
            let place = &operand.place;
            let first = place.first as i64 + self.offset(of, number);
            for lane in lanes_of(lanes) {
                let thread = (32 * runner.index + lane) as i64 - of.first;
                let rank = self.rank(block - of.from, thread);
                let held = of.held[number][rank * place.distances.len()..].iter_mut();
                for (held, distance) in held.zip(&place.distances) {
                    let at = runner.register((first + distance) as usize, lane);
                    if runner.marks[at].valid {
                        *held = runner.registers[at];
                    }
                }
            }
        }
    }

    /// The block, the warp and the lane of a thread of an instance.
    pub(super) fn lane(&self, instance: &Instance, rank: usize) -> (i64, usize, usize) {
        let threads = &self.threads.offsets;
        let blocks = self.blocks.as_ref().and_then(Option::as_ref);
        let block = instance.from + blocks.map_or(0, |team| team.offsets[rank / threads.len()]);
        let thread = (instance.first + threads[rank % threads.len()]) as usize;
        (block, thread / 32, thread % 32)
    }

    /// An operand in registers of several threads, as the elements that these held: for folds and scans, the threads are
    /// its first dimension.
    pub(super) fn gathered(&self, levels: &Levels, instance: &Instance, number: usize) -> Gathered {
        let (operand, held) = (&self.operands[number], &instance.held[number]);
        let place = &operand.place;
        let count = place.size() as usize;
        if matches!(self.spec.kind, Kind::Fold(_) | Kind::Scan(_)) {
            let shape = [&[self.agents()], &operand.shape[..]].concat();
            let each = held.chunks(count.max(1));
            let data = each.flat_map(|own| operand.order.iter().map(move |&at| own[at as usize]));
            return Ok(Array { shape, data: data.collect() });
        }
        let known = levels.fragments.get(&place.number).into_iter().flatten();
        let own = self.registers(instance, number);
        let found = known.rev().find_map(|fragment| {
            let value = |at| fragment.values.iter().position(|of| of == at);
            Some((fragment, own.iter().map(value).collect::<Option<Vec<usize>>>()?))
        });
        let Some((fragment, values)) = found else {
            let first = held.first().copied().unwrap_or(f64::NAN);
            let alike = held.iter().all(|of| of.to_bits() == first.to_bits());
            let one = Array::one(first);
            return if alike { Ok(one) } else { Err(Unchecked::Fragment) };
        };
        let mut cells = Vec::with_capacity(held.len());
        for rank in 0..self.agents() {
            let (block, warp, lane) = self.lane(instance, rank);
            let team = levels.teams.get(&(place.number, block, warp));
            let (from, first, size) = team.ok_or(Unchecked::Fragment)?;
            let theirs = (block - from) * size + (32 * warp + lane) as i64 - first;
            for value in &values {
                let register = theirs as usize * fragment.values.len() + value;
                cells.push(*fragment.cells.get(register).ok_or(Unchecked::Fragment)?);
            }
        }
        fragment.fill(&cells, held)
    }
}
