//! Costs of memory accesses: phases and banks of shared memory, sectors of global memory.

/// The bytes that a lane accesses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    first: i64,
    end: i64,
}

impl Span {
    pub(super) const EMPTY: Span = Span { first: i64::MAX, end: i64::MIN };

    pub(super) fn extend(&mut self, address: i64, bytes: i64) {
        self.first = self.first.min(address);
        self.end = self.end.max(address + bytes);
    }

    fn bytes(self) -> i64 {
        self.end.saturating_sub(self.first).max(0)
    }
}

const BANKS: usize = 32;
const WORD: i64 = 4;
/// The most that a lane accesses in one phase.
const WIDEST: i64 = 16;
const SECTOR: i64 = 32;

/// How many phases the lanes' accesses to shared memory need beyond the least.
///
/// A phase serves 128 bytes: all lanes' words, half of the lanes' pairs, or a quarter of the lanes' quadruples. It takes as many
/// cycles as the most words that one bank must give; lanes that ask for one word share it.
pub(super) fn conflicts(spans: &[Span]) -> u64 {
    let widest = spans.iter().map(|span| span.bytes()).max().unwrap_or(0).max(WORD);
    let width = widest.min(WIDEST);
    let lanes = (BANKS as i64 * WORD / width).clamp(1, BANKS as i64) as usize;
    let mut extra = 0;
    for chunk in 0..(widest + width - 1) / width {
        for phase in spans.chunks(lanes) {
            let mut words: Vec<i64> = Vec::with_capacity(BANKS * 2);
            for span in phase.iter().filter(|span| span.bytes() > chunk * width) {
                let first = span.first + chunk * width;
                let end = span.end.min(first + width);
                words.extend(first / WORD..=(end - 1) / WORD);
            }
            words.sort_unstable();
            words.dedup();
            let mut banks = [0_u64; BANKS];
            words.iter().for_each(|word| banks[word.rem_euclid(BANKS as i64) as usize] += 1);
            extra += banks.into_iter().max().unwrap_or(0).saturating_sub(1);
        }
    }
    extra
}

/// The sector of global memory that an operand's address lies in.
pub(super) fn sector(operand: usize, address: i64) -> (usize, i64) {
    (operand, address / SECTOR)
}

/// How many sectors there are; puts them in order.
pub(super) fn count(sectors: &mut Vec<(usize, i64)>) -> u64 {
    sectors.sort_unstable();
    sectors.dedup();
    sectors.len() as u64
}

#[cfg(test)]
#[path = "../../tests/units/tally.rs"]
mod tests;
