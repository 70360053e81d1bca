//! Blocks that a model repeats, as layers of a transformer.

use serde::Serialize;

/// Steps that stand several times one after the other.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// The first step of the first repeat.
    pub(super) first: usize,
    /// Steps of one repeat.
    pub(super) length: usize,
    /// How often they stand there, at least twice.
    pub(super) count: usize,
}

/// A block longer than this is not looked for.
const LONGEST: usize = 256;
/// What folding has to leave out at least.
const LEAST: usize = 2;

impl Block {
    /// The step after the last repeat.
    pub(super) fn end(&self) -> usize {
        self.first + self.length * self.count
    }
}

/// The repeated blocks of steps, in order: those that leave out most, of equal ones the shortest. `alike` are texts that
/// are equal where steps are, `sources` the steps that each one reads from.
pub(super) fn blocks(alike: &[String], sources: &[Vec<usize>]) -> Vec<Block> {
    let mut found = Vec::new();
    search(alike, sources, 0, alike.len(), &mut found);
    found.sort_by_key(|block| block.first);
    found
}

fn search(
    alike: &[String],
    sources: &[Vec<usize>],
    from: usize,
    to: usize,
    found: &mut Vec<Block>,
) {
    let mut best: Option<Block> = None;
    let saved = |block: Block| block.length * (block.count - 1);
    for length in 1..=((to - from) / 2).min(LONGEST) {
        let mut start = from;
        while start + 2 * length <= to {
            let repeats = |i: &usize| alike[*i] == alike[*i + length];
            let run = (start..to - length).take_while(repeats).count();
            // The first repeats may read from before the block as they like.
            let firsts = 0..(run % length + 1).min(run / length * length);
            for shift in firsts {
                let block = whole(
                    sources,
                    Block { first: start + shift, length, count: (run - shift) / length + 1 },
                );
                if saved(block) >= LEAST && best.is_none_or(|best| saved(best) < saved(block)) {
                    best = Some(block);
                }
            }
            start += run + 1;
        }
    }
    if let Some(block) = best {
        found.push(block);
        search(alike, sources, from, block.first, found);
        search(alike, sources, block.end(), to, found);
    }
}

/// The block with as many of its repeats as read alike: from the same step of this repeat or the one before, or from
/// the same step before the block.
fn whole(sources: &[Vec<usize>], block: Block) -> Block {
    let Block { first, length, count } = block;
    let reads = |repeat: usize, i: usize| -> Vec<(bool, usize)> {
        let step = first + repeat * length + i;
        let mut reads: Vec<_> = sources[step]
            .iter()
            .map(|&from| match from >= first {
                true => (true, step - from),
                false => (false, from),
            })
            .collect();
        reads.sort_unstable();
        reads
    };
    // What the first reads from before the block, or from the model's inputs, the second may read from the first.
    let own = |i: usize, mut reads: Vec<(bool, usize)>| {
        reads.retain(|&(within, distance)| within && distance <= i);
        reads
    };
    let alike = |&repeat: &usize| {
        (0..length).all(|i| {
            let (mine, before) = (reads(repeat, i), reads(repeat - 1, i));
            if repeat == 1 { own(i, mine) == own(i, before) } else { mine == before }
        })
    };
    Block { count: 1 + (1..count).take_while(alike).count(), ..block }
}

#[cfg(test)]
mod tests {
    use super::{Block, blocks};

    fn texts(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    /// A chain, whose steps at these places also read from the one three before.
    fn chain(length: usize, residual: &[usize]) -> Vec<Vec<usize>> {
        let reads = |i: usize| {
            let far = residual.contains(&i).then(|| i.saturating_sub(3));
            far.into_iter().chain(i.checked_sub(1)).collect()
        };
        (0..length).map(reads).collect()
    }

    #[test]
    fn layers_are_found_between_what_is_before_and_after() {
        let found = blocks(&texts("eabcabcabcabcp"), &chain(14, &[3, 6, 9, 12]));
        assert_eq!(found, [Block { first: 1, length: 3, count: 4 }]);
    }

    #[test]
    fn two_stages_are_two_blocks() {
        let found = blocks(&texts("ababab_cdecde"), &chain(13, &[]));
        let [first, second] = found[..] else { panic!("{found:?}") };
        assert_eq!(first, Block { first: 0, length: 2, count: 3 });
        assert_eq!(second, Block { first: 7, length: 3, count: 2 });
    }

    #[test]
    fn what_is_wired_otherwise_is_no_repeat() {
        let mut sources = chain(9, &[]);
        // The third repeat reads from the first.
        sources[6] = vec![2];
        let found = blocks(&texts("abcabcabc"), &sources);
        assert!(found.iter().all(|block| block.count == 2), "{found:?}");
        assert!(blocks(&texts("abcdefg"), &chain(7, &[])).is_empty());
        assert!(blocks(&[], &[]).is_empty());
    }
}
