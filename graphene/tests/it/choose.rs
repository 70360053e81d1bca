//! Decisions: each on the example of the paper or manual that it is from, and against brute force.

use graphene_ir::choose::{Banks, Warps, in_registers, swizzle, swizzle_of_pairs, warps};
use graphene_ir::layout::Swizzle;

/// The most chunks that one bank group must give when a column of eight rows is read.
fn conflicts(
    banks: Banks,
    (chunks, chunk): (i64, i64),
    column: i64,
    rows: impl Iterator<Item = i64>,
) -> i64 {
    let (pad, xor) = match banks {
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
                let (banks, rows) = (swizzle(chunks, chunk), first..first + line);
                assert_eq!(conflicts(banks, (chunks, chunk), column, rows), 1, "{chunks}");
            }
        }
    }
}

#[test]
fn swizzles_of_pairs_leave_no_conflicts_in_every_other_row() {
    for chunk in [4, 8, 16] {
        let line = 128 / chunk;
        for chunks in [line, 2 * line, 4 * line] {
            for (column, first) in [(0, 0), (chunks - 1, 1), (chunks / 2, 2 * line)] {
                let most = |banks: Banks| {
                    let rows = (first..).step_by(2).take(line as usize);
                    conflicts(banks, (chunks, chunk), column, rows)
                };
                assert_eq!(most(swizzle_of_pairs(chunks, chunk)), 1, "{chunks} of {chunk} bytes");
                assert_eq!(most(swizzle(chunks, chunk)), 2, "{chunks} of {chunk} bytes");
            }
        }
    }
    assert_eq!(swizzle_of_pairs(4, 16), swizzle(4, 16), "rows shorter than a line");
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
