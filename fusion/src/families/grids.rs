//! Grids: the blocks that kernels have by sizes alone, for their launches and for what the planner takes groups for.

use crate::base::sizes::ceil;
use crate::families::kernels::WIDTH;
use graphene_ir::WARP;
use graphene_ir::target::Target;
use graphene_ir::template::access::Access;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::tensor::Scalar;

/// Vectors of a loop whose size is not known yet: more than run at once, or ever.
pub(crate) const MANY: i64 = 1 << 40;

/// Threads of a block of rows at least, where a row has few.
const THREADS: i64 = 128;

/// Threads side by side along columns.
pub(crate) const COLUMNS: i64 = 32;

/// Elements of so many bytes that a thread moves at once, at most.
pub(crate) fn widest(bytes: i64) -> i64 {
    (WIDTH / bytes.max(1)).clamp(1, 8)
}

/// A number, divided by two until it fits; 1, if nothing more does.
pub(crate) fn halved(most: i64, fits: impl Fn(i64) -> bool) -> i64 {
    let smaller = std::iter::successors(Some(most), |number| Some(number / 2));
    smaller.take_while(|&number| number > 1).find(|&number| fits(number)).unwrap_or(1)
}

/// Threads of a loop's block at most: enough to hide the latency of loads with a few blocks on each multiprocessor, few
/// enough that a small loop reaches all of them.
const MOST_THREADS: i64 = 256;
/// Threads that a multiprocessor holds, on every architecture that is planned for at least.
const RESIDENT: i64 = 1536;

/// Threads of a block of a loop over so many vectors, if their number is known, and the most blocks (AKG, "Auto-Mapping"). A block
/// has 256 threads, halved while there are fewer blocks than multiprocessors; there are no more blocks than run at once. Each
/// block takes the vectors of all its threads after those of all other blocks.
pub(crate) fn of_loop(items: Option<i64>, target: &Target) -> [i64; 2] {
    let items = items.unwrap_or(MANY).max(1);
    let cores = i64::from(target.cores.max(1));
    let threads = halved(MOST_THREADS, |threads| threads <= WARP || ceil(items, threads) >= cores);
    [threads, ceil(items, threads).min(cores * (RESIDENT / threads))]
}

/// Threads that fold a row of so many vectors, and the rows of a block.
pub(crate) fn of_folds(vectors: Option<i64>) -> [i64; 2] {
    match vectors {
        Some(vectors @ ..=32) => {
            let threads = vectors.max(1).unsigned_abs().next_power_of_two() as i64;
            [threads, THREADS / threads]
        }
        Some(33..=512) => [32, THREADS / 32],
        Some(_) => [2 * THREADS, 1],
        None => [THREADS, 1],
    }
}

/// The blocks that share a row of a softmax in single precision: one, if none do.
pub(crate) fn parts_of_softmax(columns: i64, target: &Target) -> i64 {
    let Some(arch) = target.arch() else { return 1 };
    let single = || Access::packed(Scalar::F32, 2);
    let vector = halved(widest(Scalar::F32.bytes()), |vector| columns % vector == 0);
    let (ins, norm) = (vec![single()], Norm::Softmax);
    let rows = Rows { arch, norm, ins, scale: None, shift: None, out: single(), ..Rows::default() };
    Rows { vector, ..rows }.fitting(columns).parts
}

/// Elements of neighbouring columns that a thread reduces, of so many at most of so many bytes each: narrower columns keep more
/// cores busy.
pub(crate) fn of_columns(
    [outer, inner]: [Option<i64>; 2],
    (most, bytes): (i64, i64),
    target: &Target,
) -> i64 {
    let blocks = |vector: i64| Some(outer?.saturating_mul(ceil(inner?, COLUMNS * vector)));
    let few = |vector: i64| blocks(vector).is_some_and(|n| n < i64::from(target.cores));
    halved(most, |vector| vector * bytes <= 4 || !few(vector))
}

#[cfg(test)]
mod tests {
    use super::{RESIDENT, of_columns, of_loop};
    use graphene_ir::target::Target;

    #[test]
    fn loops_fill_the_target() {
        let h200: Target = "sm_90a".parse().expect("a known target");
        let of = |items| of_loop(Some(items), &h200);
        assert_eq!(of(12), [32, 1]);
        assert_eq!(of(32 * 128 * 768 / 8), [256, 792]);
        for items in [1, 7, 96, 5000, 98_304, 1 << 26] {
            let [threads, blocks] = of(items);
            assert!(blocks >= 1 && blocks * threads <= 132 * RESIDENT, "{items}");
        }
    }

    #[test]
    fn threads_have_a_column_at_least() {
        let h200: Target = "sm_90a".parse().expect("a known target");
        let of = |most, bytes| of_columns([Some(1), Some(1000)], (most, bytes), &h200);
        for most in [1, 2, 4] {
            for bytes in [1, 2, 4, 8] {
                assert!(of(most, bytes) >= 1, "{most} of {bytes} bytes");
            }
        }
        assert_eq!(of(2, 8), 1);
    }
}
