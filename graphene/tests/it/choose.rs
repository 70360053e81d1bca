//! Decisions: each on the example of the paper or manual that it is from, and against brute force.

use graphene_ir::choose::{
    Banks, Lifetime, Mapping, Operator, Order, Pair, Warps, in_registers, innermost, mapping,
    order, storage, swizzle, warps,
};
use graphene_ir::layout::Swizzle;
use graphene_ir::target::Target;

use crate::index::Random;

fn operator(reads: &[usize]) -> Operator {
    Operator { reads: reads.to_vec(), fused: false, bytes: 1 }
}

/// Mirage's example: operators 1 to 7, where 5 reads 1 and 2, 6 reads 3 and 4, 7 reads 5 and 6.
fn example() -> Vec<Operator> {
    [&[][..], &[], &[], &[], &[0, 1], &[2, 3], &[4, 5]].map(operator).to_vec()
}

fn phases(text: &str) -> Order {
    let digits = |phase: &str| phase.bytes().map(|digit| usize::from(digit - b'1')).collect();
    Order { phases: text.split(' ').map(digits).collect() }
}

#[test]
fn the_order_has_the_fewest_barriers_and_then_the_least_memory() {
    let operators = example();
    let [slow, large] = [phases("12 534 6 7"), phases("1234 56 7")];
    assert_eq!((slow.barriers(), slow.peak(&operators)), (3, 4));
    assert_eq!((large.barriers(), large.peak(&operators)), (2, 5));
    assert_eq!(order(&operators), large);
}

#[test]
fn an_operator_waits_where_that_saves_memory() {
    // 2 reads 0; 3 reads 1 and 2: operator 1 may run beside 2, when 0 is about to go.
    let mut operators = [&[][..], &[], &[0], &[1, 2]].map(operator);
    operators[0].bytes = 10;
    operators[1].bytes = 10;
    let found = order(&operators);
    assert_eq!(found.phases, [vec![0], vec![2, 1], vec![3]]);
    assert_eq!(found.peak(&operators), 12);
    assert_eq!(phases("12 3 4").peak(&operators), 21);
}

#[test]
fn a_fused_operator_needs_no_barrier() {
    let mut operators = [&[][..], &[0], &[1]].map(operator);
    operators[2].fused = true;
    assert_eq!(order(&operators).phases, [vec![0], vec![1, 2]]);
}

/// Every order that is allowed, by trying all.
fn best_of_all(operators: &[Operator]) -> (usize, u64) {
    fn extend(operators: &[Operator], order: &mut Order, best: &mut (usize, u64)) {
        let done: Vec<usize> = order.phases.iter().flatten().copied().collect();
        if done.len() == operators.len() {
            *best = (*best).min((order.barriers(), order.peak(operators)));
            return;
        }
        for number in (0..operators.len()).filter(|number| !done.contains(number)) {
            for barrier in [false, true] {
                if barrier && order.phases.last().is_none_or(Vec::is_empty) {
                    continue;
                }
                let current = match (barrier, order.phases.last()) {
                    (false, Some(phase)) => phase.clone(),
                    (true, _) | (false, None) => Vec::new(),
                };
                let fits = operators[number].reads.iter().enumerate().all(|(i, read)| {
                    let registers = operators[number].fused && i == 0;
                    done.contains(read) && (registers || !current.contains(read))
                });
                if !fits {
                    continue;
                }
                let mut next = order.clone();
                if barrier || next.phases.is_empty() {
                    next.phases.push(Vec::new());
                }
                next.phases.last_mut().unwrap().push(number);
                extend(operators, &mut next, best);
            }
        }
    }
    let mut best = (usize::MAX, u64::MAX);
    extend(operators, &mut Order { phases: Vec::new() }, &mut best);
    best
}

#[test]
fn no_order_is_better() {
    let mut random = Random::new(7);
    for _ in 0..60 {
        let operators: Vec<Operator> = (0..6)
            .map(|number| Operator {
                reads: (0..number).filter(|_| random.within(0, 3) == 0).collect(),
                fused: random.within(0, 4) == 0,
                bytes: random.within(1, 9).unsigned_abs(),
            })
            .collect();
        let found = order(&operators);
        let (barriers, peak) = best_of_all(&operators);
        assert_eq!((found.barriers(), found.peak(&operators)), (barriers, peak), "{operators:?}");
    }
}

#[test]
fn many_operators_are_ordered_by_depth() {
    let operators: Vec<Operator> = (0..40)
        .map(|n: usize| operator(&n.checked_sub(2).into_iter().collect::<Vec<_>>()))
        .collect();
    assert_eq!(order(&operators).barriers(), 19);
}

#[test]
fn innermost_dimensions_cost_the_least() {
    // A and B are read 16 bytes at a time where the copies agree; C, their product, wants its rows
    // contiguous, and a library refuses B's first dimension.
    let free = vec![Some(0), Some(0)];
    let alone = [free.clone(), vec![None, Some(0)], vec![Some(3), Some(0)]];
    let same = vec![vec![Some(0), Some(8)], vec![Some(8), Some(0)]];
    let pairs = [
        Pair { first: 0, second: 2, cost: vec![vec![Some(5), None], vec![Some(4), Some(1)]] },
        Pair { first: 0, second: 1, cost: same },
    ];
    assert_eq!(innermost(&alone, &pairs), Some(vec![1, 1, 1]));
    assert_eq!(innermost(&[vec![None, None]], &[]), None);
    assert_eq!(innermost(&[], &[]), Some(Vec::new()));
}

#[test]
fn innermost_dimensions_are_the_best_of_all() {
    let mut random = Random::new(3);
    for _ in 0..200 {
        let mut cost = || (random.within(0, 6) != 0).then(|| random.within(0, 20).unsigned_abs());
        let alone: Vec<Vec<_>> = (0..5).map(|_| (0..3).map(|_| cost()).collect()).collect();
        let mut table = || (0..3).map(|_| (0..3).map(|_| cost()).collect()).collect();
        let pairs: Vec<Pair> = [(0, 1), (1, 2), (3, 0), (2, 4), (4, 1)]
            .map(|(first, second)| Pair { first, second, cost: table() })
            .to_vec();
        let price = |chosen: &[usize]| -> Option<u64> {
            let own = chosen.iter().zip(&alone).map(|(&dim, dims)| dims[dim]);
            let both = pairs.iter().map(|pair| pair.cost[chosen[pair.first]][chosen[pair.second]]);
            own.chain(both).sum()
        };
        let all = (0..243).map(|i| (0..5).map(|t| i / 3_usize.pow(t) % 3).collect::<Vec<_>>());
        let least = all.filter_map(|chosen| price(&chosen)).min();
        assert_eq!(innermost(&alone, &pairs).and_then(|chosen| price(&chosen)), least);
    }
}

/// The most chunks that one bank group must give when a column of eight rows is read.
fn conflicts(chunks: i64, chunk: i64, column: i64, rows: std::ops::Range<i64>) -> i64 {
    let (pad, xor) = match swizzle(chunks, chunk) {
        Banks::Xor(swizzle) => (0, Some(swizzle)),
        Banks::Shift(bytes) => (bytes, None),
    };
    let mut banks = vec![0; 128 / usize::try_from(chunk).unwrap()];
    for row in rows {
        let offset = row * (chunks * chunk + pad) + column * chunk;
        let offset = xor.map_or(offset, |swizzle| swizzle.at(offset).unwrap());
        banks[usize::try_from(offset % 128 / chunk).unwrap()] += 1;
    }
    banks.into_iter().max().unwrap()
}

#[test]
fn swizzles_leave_no_conflicts() {
    for chunk in [4, 8, 16] {
        let line = 128 / chunk;
        for chunks in 1..=48 {
            for (column, first) in [(0, 0), (chunks - 1, line), (chunks / 2, 3 * line)] {
                assert_eq!(conflicts(chunks, chunk, column, first..first + line), 1, "{chunks}");
            }
        }
    }
}

#[test]
fn swizzles_are_xors_where_the_number_of_chunks_is_a_power_of_two() {
    let xor = |bits, base, shift| Banks::Xor(Swizzle::new(bits, base, shift).unwrap());
    assert_eq!(swizzle(8, 16), xor(3, 4, 3));
    assert_eq!(swizzle(4, 16), xor(2, 4, 3));
    assert_eq!(swizzle(16, 16), xor(3, 4, 4));
    // 96 and 80 bytes: the stride in chunks shall have no divisor in common with the eight of a line.
    assert_eq!(swizzle(6, 16), Banks::Shift(16));
    assert_eq!(swizzle(5, 16), Banks::Shift(0));
}

#[test]
fn tiles_in_use_together_lie_apart() {
    let mut random = Random::new(11);
    for _ in 0..100 {
        let tiles: Vec<Lifetime> = (0..12)
            .map(|_| {
                let first = random.within(0, 8);
                let last = usize::try_from(first + random.within(0, 4)).unwrap();
                let bytes = random.within(1, 5000).unsigned_abs();
                Lifetime { bytes, first: usize::try_from(first).unwrap(), last }
            })
            .collect();
        let placed = storage(&tiles, 128);
        assert!(placed.least <= placed.bytes, "{placed:?}");
        for (i, a) in tiles.iter().enumerate() {
            assert_eq!(placed.offsets[i] % 128, 0);
            assert!(placed.offsets[i] + a.bytes <= placed.bytes);
            for (j, b) in tiles.iter().enumerate().take(i) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = placed.offsets[i] + a.bytes <= placed.offsets[j]
                    || placed.offsets[j] + b.bytes <= placed.offsets[i];
                assert!(!together || apart, "{a:?} {b:?}");
            }
        }
    }
}

#[test]
fn memory_is_used_again() {
    let tile = |bytes, first, last| Lifetime { bytes, first, last };
    let tiles = [tile(256, 0, 1), tile(512, 1, 2), tile(256, 2, 3), tile(512, 3, 4)];
    let placed = storage(&tiles, 128);
    assert_eq!((placed.bytes, placed.least), (768, 768));
    assert_eq!(storage(&[], 128).bytes, 0);
}

#[test]
fn warps_share_a_product_by_what_they_move() {
    // Mirage's example: a product of 64×32×16 by four groups that multiply 16×8×16.
    let (product, instruction) = ([64, 32, 16], [16, 8, 16]);
    let all: Vec<Warps> = Warps::all(4).collect();
    assert_eq!(all.len(), 4);
    let moved = all.iter().map(|warps| (warps.along, warps.elements(product, instruction)));
    let least = [([1, 4], 6656), ([2, 2], 5120), ([2, 2], 5120), ([4, 1], 5120)];
    assert_eq!(moved.collect::<Vec<_>>(), least);
    assert_eq!(warps(4, product, instruction).along, [4, 1]);
    // A wide tile is shared along its columns.
    assert_eq!(warps(4, [16, 128, 16], instruction).along, [1, 4]);
    assert_eq!(warps(4, [128, 128, 32], instruction).along, [2, 2]);
}

#[test]
fn sums_stay_in_registers_as_long_as_there_are_enough() {
    assert!(in_registers(128 * 128, 128));
    assert!(!in_registers(192 * 128, 128));
    assert!(in_registers(191 * 128, 128));
}

#[test]
fn loops_fill_the_target() {
    let h200: Target = "sm_90a".parse().unwrap();
    // AKG's example: 8·12 elements are taken four at a time, for then no tile is partial.
    let small = mapping(8 * 12, 8, &h200);
    assert_eq!((small.tile, small.threads, small.blocks), (8, 32, 1));
    assert_eq!(mapping(12, 8, &h200).tile, 4);
    let large = mapping(32 * 128 * 768, 8, &h200);
    assert_eq!((large.tile, large.threads, large.blocks), (8, 256, 792));
    let odd = mapping(7 * 93, 8, &h200);
    assert_eq!((odd.tile, odd.threads), (1, 32));
    for elements in [1, 7, 96, 5000, 98_304, 1 << 26] {
        let Mapping { tile, threads, blocks } = mapping(elements, 8, &h200);
        assert_eq!(elements % tile, 0);
        assert!(blocks >= 1 && blocks * threads <= 132 * 1536, "{elements}");
    }
}
