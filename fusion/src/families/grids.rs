//! Grids: the blocks that kernels have by sizes alone, for their launches and for what the planner takes groups for.

use crate::base::sizes::ceil;
use graphene_ir::choose::{Mapping, mapping};
use graphene_ir::target::Target;

/// Vectors of a loop whose size is not known yet: more than run at once, or ever.
pub(crate) const MANY: i64 = 1 << 40;

/// Threads of a block of rows at least, where a row has few.
const THREADS: i64 = 128;

/// Threads side by side along columns.
pub(crate) const COLUMNS: i64 = 32;

/// Threads of a loop's blocks, and of how many there are at most, by its vectors: few are spread over all multiprocessors, by
/// smaller blocks.
pub(crate) fn of_loop(items: Option<i64>, target: &Target) -> Mapping {
    mapping(items.unwrap_or(MANY), 1, target)
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

/// Elements of neighbouring columns that a thread reduces, of so many at most of so many bytes each: narrower columns keep more
/// cores busy.
pub(crate) fn of_columns(
    [outer, inner]: [Option<i64>; 2],
    (most, bytes): (i64, i64),
    target: &Target,
) -> i64 {
    let blocks = |vector: i64| Some(outer?.saturating_mul(ceil(inner?, COLUMNS * vector)));
    let few = |vector: i64| blocks(vector).is_some_and(|n| n < i64::from(target.cores));
    let mut vector = most;
    while vector * bytes > 4 && few(vector) {
        vector /= 2;
    }
    vector
}
