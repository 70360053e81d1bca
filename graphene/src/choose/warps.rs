//! How warps share a matmul (Mirage, "How to Decide thr_layout").

use super::ceil;

/// Warps, or other groups of threads that carry out one instruction, over a matmul's tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Warps {
    /// Groups along the rows and along the columns.
    pub along: [i64; 2],
    /// Whether neighbouring groups are neighbours along the rows.
    pub rows_first: bool,
}

impl Warps {
    /// All layouts of so many groups.
    pub fn all(groups: i64) -> impl Iterator<Item = Warps> {
        (1..=groups).filter(move |rows| groups % rows == 0).flat_map(move |rows| {
            let along = [rows, groups / rows];
            let orders = if along.contains(&1) { &[true][..] } else { &[true, false] };
            orders.iter().map(move |&rows_first| Warps { along, rows_first })
        })
    }

    /// Instructions that each group carries out for a matmul of `[m, n, k]`.
    pub fn instructions(&self, shape: [i64; 3], instruction: [i64; 3]) -> i64 {
        let [m, n, k] = std::array::from_fn(|i| ceil(shape[i], instruction[i]));
        ceil(m, self.along[0]) * ceil(n, self.along[1]) * k
    }

    /// Elements that all groups read and write: each reads its rows of A and its columns of B, once, and writes its part of C.
    pub fn elements(&self, shape: [i64; 3], instruction: [i64; 3]) -> i64 {
        let along = [self.along[0], self.along[1], 1];
        let [m, n, depth] = std::array::from_fn(|i| {
            ceil(ceil(shape[i], instruction[i]), along[i]) * instruction[i] * along[i]
        });
        m * depth * self.along[1] + n * depth * self.along[0] + m * n
    }
}

/// The layout of so many groups that share a matmul of `[m, n, k]` by instructions of such a size:
/// of those with the fewest instructions a group, the one that moves the fewest elements, with more
/// groups along the rows where two are alike. K is not shared, so that sums need not be added.
pub fn warps(groups: i64, shape: [i64; 3], instruction: [i64; 3]) -> Warps {
    let cost = |warps: &Warps| {
        let elements = warps.elements(shape, instruction);
        (warps.instructions(shape, instruction), elements, -warps.along[0], !warps.rows_first)
    };
    let alone = Warps { along: [groups.max(1), 1], rows_first: true };
    Warps::all(groups).min_by_key(cost).unwrap_or(alone)
}
