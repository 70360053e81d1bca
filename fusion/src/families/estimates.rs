//! Estimates of what kernels by warpgroups take, in nanoseconds: the tiles of matmuls and of attention are chosen by them.
//!
//! A multiprocessor has one block. A wave is one tile for each block; the last may be partial. What a tile takes is what its
//! steps take, each as long as the tensor cores or the copies of its operands, whichever is longer, and its epilogue; where
//! warpgroups ping-pong, the next tile is multiplied beside that. What all tiles of a step take alike, such as a launch, is
//! left out.
//!
//! Constants were fitted to kernels in fp16 that `--tune` timed on an H200: of 43 matmuls (those of BERT, ViT and Whisper,
//! 1 to 6000 rows, and of 1024 to 8192 columns and depth), for 38 of which the estimates choose the fastest tile, or one of at
//! most 1.05 times its time; and of 7 attentions.

use crate::base::sizes::{ceil, tiles};
use graphene_frontend::dim::Dim;

/// Bytes of a step's depth.
const DEPTH: i64 = 128;
/// Rows of an instruction.
const ROWS: i64 = 64;
/// Threads of a warpgroup.
const THREADS: f64 = 128.0;
/// Cycles in a nanosecond. In two a multiprocessor multiplies 64 rows by a column of a step's depth.
const CLOCK: f64 = 1.755;
/// A step takes so long at least: a barrier, and the latency of the instructions.
const STEP: f64 = 100.0;
/// Bandwidth of the L2 cache, in bytes a nanosecond: of one multiprocessor; of all of them; and of A alone, where both of a pair
/// of multiprocessors have a block. Blocks that run side by side have columns in common, so that they ask for the
/// same tile of B at once, which is read once.
const OWN: f64 = 156.0;
const ALL: f64 = 15_000.0;
const ROWS_OF_ALL: f64 = 5_800.0;
/// What a thread takes for a sum that it writes, and for each operation that follows.
const WRITTEN: f64 = 9.8;
const FOLLOWS: f64 = 0.48;
/// How much longer for each more warpgroup that writes at the same time; and how much longer an operation takes while another
/// warpgroup multiplies.
const BESIDE: f64 = 0.5;
const WHILE_MULTIPLYING: f64 = 2.0;
/// What a launch takes for each warpgroup, and more for warpgroups that ping-pong without a second tile.
const WARPGROUP: f64 = 150.0;
const IDLE: f64 = 200.0;

/// A tile that matmuls are cut into.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Tile {
    /// The name of its variant.
    pub(crate) name: &'static str,
    /// Rows and columns.
    pub(crate) size: [i64; 2],
    /// How many there must be.
    pub(crate) enough: i64,
    /// Of warpgroups, how many blocks of a cluster share the loads of B.
    pub(crate) cluster: i64,
    /// Whether two warpgroups ping-pong, each with a tile of its own; else each has 64 rows of one.
    pub(crate) ping_pong: bool,
}

/// The tiles that a matmul may have kernels of, the smallest last.
pub(crate) const TILES: [Tile; 13] = [
    Tile::new("ping-pong 128x192", [128, 192], true),
    Tile::new("ping-pong 128x128", [128, 128], true),
    Tile::new("ping-pong 64x192", [64, 192], true),
    Tile::new("ping-pong 64x128", [64, 128], true),
    Tile::new("192x192", [192, 192], false),
    Tile::new("128x256", [128, 256], false),
    Tile::new("128x192", [128, 192], false),
    Tile::new("128x128", [128, 128], false),
    Tile::new("128x64", [128, 64], false),
    Tile::new("64x256", [64, 256], false),
    Tile::new("64x192", [64, 192], false),
    Tile::new("64x128", [64, 128], false),
    Tile::new("64x64", [64, 64], false),
];

/// A matmul, or several of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) matrices: i64,
    pub(crate) columns: i64,
    /// Bytes of an operand's depth.
    pub(crate) depth: i64,
    /// Operations of the vector units for each element of what follows.
    pub(crate) follows: f64,
    /// Multiprocessors.
    pub(crate) cores: i64,
}

impl Tile {
    pub(crate) const fn new(name: &'static str, size: [i64; 2], ping_pong: bool) -> Self {
        Self { name, size, enough: 0, cluster: 1, ping_pong }
    }

    /// What a matmul of so many rows takes.
    pub(crate) fn nanoseconds(&self, of: &Sizes, rows: i64) -> f64 {
        let [height, width] = self.size;
        let tiles = ceil(rows, height).saturating_mul(ceil(of.columns, width));
        let tiles = tiles.saturating_mul(of.matrices).max(1);
        let waves = ceil(tiles, of.cores);
        let last = tiles - (waves - 1) * of.cores;
        let steps = ceil(of.depth, DEPTH) as f64;
        let [full, last] = [of.cores, last].map(|blocks| steps * self.step(blocks, of.cores));

        let (consumers, own) = if self.ping_pong { (2, height) } else { (height / ROWS, ROWS) };
        let (consumers, sums) = (consumers as f64, (own * width) as f64 / THREADS);
        let (written, follows) = (sums * WRITTEN, sums * FOLLOWS * of.follows);
        let before = (waves - 1) as f64;
        let launch = WARPGROUP * consumers;
        if self.ping_pong {
            // Of one tile the others do nothing.
            let (slower, idle) = if waves > 1 { (WHILE_MULTIPLYING, 0.0) } else { (1.0, IDLE) };
            let epilogue = written + slower * follows;
            let round = (consumers * full).max(full + epilogue);
            let [rounds, rest] = [before.div_euclid(consumers), before.rem_euclid(consumers)];
            rounds * round + rest * full + last + epilogue + launch + idle
        } else {
            let epilogue = (written + follows) * (1.0 + BESIDE * (consumers - 1.0));
            before * full + last + waves as f64 * epilogue + launch
        }
    }

    /// What a step of a tile takes while so many blocks of so many multiprocessors have one.
    fn step(&self, blocks: i64, cores: i64) -> f64 {
        let [height, width] = self.size;
        let multiply = (height / ROWS * width) as f64 * 2.0 / CLOCK;
        let [a, both] = [height, height + width].map(|of| (of * DEPTH) as f64);
        let pairs = if 2 * blocks > cores { blocks as f64 } else { 0.0 };
        let limits = [STEP, both / OWN, blocks as f64 * both / ALL, pairs * a / ROWS_OF_ALL];
        limits.into_iter().fold(multiply, f64::max)
    }
}

/// Where a kernel of a tile is the one to take: from some rows on, to others.
pub(crate) type Ranges = Vec<[i64; 2]>;

/// Estimates do not tell apart what differs by less.
const ALIKE: f64 = 0.01;
/// Waves of the largest tiles up to which each number of rows has the best of the kernels; beyond, one is taken for all.
const WAVES: i64 = 4;
/// The most numbers of rows that are looked at.
const MOST: i64 = 2048;

/// At most so many tiles that are best together for rows that are a multiple of `divisor`, each with those from and up to which it
/// is taken; the last for all others. Among them is the best of the rows that are planned for, unless those are beyond all ranges,
/// where the last is taken.
pub(crate) fn best_tiles(
    of: &Sizes,
    (divisor, planned): (i64, Option<i64>),
    most: usize,
) -> (Vec<(Tile, Ranges)>, Tile) {
    let [height, width] = [128, 256];
    let across = ceil(of.columns, width).saturating_mul(of.matrices).max(1);
    let far = ceil(WAVES * of.cores, across).saturating_mul(height);
    // All tiles have a multiple of 64 rows.
    let unit = divisor.max(ROWS);
    let units = ceil(far, unit).clamp(1, MOST);
    let costs: Vec<[f64; TILES.len()]> =
        (1..=units).map(|number| TILES.map(|shape| shape.nanoseconds(of, number * unit))).collect();
    let least = |all: &[f64; TILES.len()], among: &[usize]| {
        among.iter().copied().min_by(|&a, &b| all[a].total_cmp(&all[b])).unwrap_or(0)
    };
    let every: Vec<usize> = (0..TILES.len()).collect();
    let beyond = TILES.map(|shape| shape.nanoseconds(of, far.saturating_mul(WAVES)));
    let last = least(&beyond, &every);

    // What is lost by these kernels alone, most by what loses much, over sizes that are spread evenly by their logarithm.
    let lost = |among: &[usize]| -> f64 {
        let each = (1..=units).zip(&costs).map(|(number, all)| {
            let lost = all[least(all, among)] / all[least(all, &every)] - 1.0;
            lost * lost / number as f64
        });
        each.sum()
    };
    let mut among = vec![last];
    if let Some(rows) = planned.filter(|&rows| rows <= units * unit) {
        let best = best_tile(of, rows);
        among.extend(TILES.iter().position(|shape| *shape == best).filter(|&best| best != last));
    }
    while among.len() < most {
        let now = lost(&among);
        let with = |&shape: &usize| lost(&[&among[..], &[shape]].concat());
        let others = every.iter().filter(|shape| !among.contains(shape));
        match others.map(|shape| (*shape, with(shape))).min_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((shape, then)) if then < now => among.push(shape),
            _ => break,
        }
    }

    let mut ranges: Vec<Ranges> = vec![Vec::new(); TILES.len()];
    let mut current = last;
    for (place, all) in costs.iter().enumerate().rev() {
        let best = least(all, &among);
        if all[current] > all[best] * (1.0 + ALIKE) {
            current = best;
        }
        let before = place as i64 * unit;
        let [from, to] = [before + 1, before + unit];
        match ranges[current].last_mut() {
            Some(range) if range[0] == to + 1 => range[0] = from,
            _ => ranges[current].push([from, to]),
        }
    }
    let used = every.into_iter().filter(|&shape| shape != last && !ranges[shape].is_empty());
    let used = used.map(|shape| (TILES[shape], ranges[shape].iter().copied().rev().collect()));
    (used.collect(), TILES[last])
}

/// The tile that is best for so many rows.
pub(crate) fn best_tile(of: &Sizes, rows: i64) -> Tile {
    let times = TILES.map(|shape| (shape, shape.nanoseconds(of, rows)));
    let best = times.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(TILES[TILES.len() - 1], |(shape, _)| shape)
}

/// By the number of warpgroups: nanoseconds of a key of attention.
const KEY: [f64; 3] = [5.0, 7.7, 10.4];
/// What a launch of attention takes for each warpgroup beyond the first.
pub(crate) const ATTENTION_LAUNCH: i64 = 305;

/// What attention of heads of 64 elements takes for a block's queries and all keys: of so many warpgroups, and tiles of so many
/// keys. Each tile has a fixed cost, and the softmax of the first overlaps with nothing; warpgroups share the tensor cores and
/// the vector units.
pub(crate) fn attention_block([consumers, of_tile]: [i64; 2], keys: &Dim) -> Dim {
    let (others, count) = (consumers - 1, of_tile as f64);
    let first = 820 + (4.5 * count) as i64 * others;
    let each = 166 + (KEY[others.clamp(0, 2) as usize] * count) as i64;
    &(&tiles(keys, of_tile) * &Dim::from(each)) + &Dim::from(first)
}

#[cfg(test)]
mod tests {
    use super::{Sizes, TILES, best_tile, best_tiles};
    use crate::families::tiles::MOST_ESTIMATED;

    fn sizes(columns: i64, depth: i64, follows: f64) -> Sizes {
        Sizes { matrices: 1, columns, depth: 2 * depth, follows, cores: 132 }
    }

    /// Rows, columns, depth and what follows of matmuls that were timed on an H200 (fp16), and the tiles that took
    /// at most 1.05 times the fastest's time.
    #[test]
    fn timed_matmuls_have_fast_tiles() {
        let timed: [(i64, i64, i64, f64, &[&str]); 14] = [
            (128, 768, 768, 2.0, &["64x64"]),
            (128, 2304, 768, 1.0, &["64x64", "64x128"]),
            (128, 3072, 768, 17.0, &["64x64", "64x128"]),
            (197, 2304, 768, 1.0, &["64x128", "ping-pong 64x128"]),
            (197, 3072, 768, 17.0, &["64x128", "ping-pong 64x128"]),
            (788, 768, 3072, 2.0, &["64x128"]),
            (788, 2304, 768, 1.0, &["64x256"]),
            (1024, 2304, 768, 1.0, &["128x192", "ping-pong 128x192", "ping-pong 64x192"]),
            (1024, 3072, 768, 17.0, &["128x192", "ping-pong 64x192"]),
            (1500, 1152, 384, 1.0, &["128x128", "ping-pong 128x128", "ping-pong 64x128"]),
            (1500, 1536, 384, 17.0, &["ping-pong 64x192", "128x192"]),
            (3000, 384, 1536, 2.0, &["64x192"]),
            (3000, 1152, 384, 1.0, &["ping-pong 128x128"]),
            (3000, 1536, 384, 17.0, &["ping-pong 64x192", "192x192"]),
        ];
        for (rows, columns, depth, follows, fast) in timed {
            let name = best_tile(&sizes(columns, depth, follows), rows).name;
            assert!(fast.contains(&name), "{rows}x{columns}x{depth}: {name}, not {fast:?}");
        }
    }

    /// By as many tiles as a step has, beside those that split the depth: the most that a number of rows loses to the best
    /// tile's time, in this model of it.
    #[test]
    fn the_kernels_of_a_step_lose_less_than_a_third_for_any_number_of_rows() {
        for (columns, depth, follows, splits, most) in [
            (384, 384, 2.0, 0, 1.01),
            (768, 3072, 2.0, 2, 1.32),
            (2304, 768, 1.0, 0, 1.18),
            (3072, 768, 17.0, 0, 1.15),
            (4096, 4096, 1.0, 0, 1.28),
        ] {
            let of = sizes(columns, depth, follows);
            let (shapes, last) = best_tiles(&of, (1, Some(1024)), MOST_ESTIMATED - splits);
            let lost = |rows: i64| {
                let within = |[from, to]: &[i64; 2]| (*from..=*to).contains(&rows);
                let found = shapes.iter().find(|(_, ranges)| ranges.iter().any(within));
                let shape = found.map_or(last, |(shape, _)| *shape);
                shape.nanoseconds(&of, rows) / best_tile(&of, rows).nanoseconds(&of, rows)
            };
            for rows in (1..3000).step_by(61) {
                assert!(lost(rows) < most, "{rows}x{columns}x{depth}: {}", lost(rows));
            }
            assert!(lost(1024) < 1.02, "what is planned for {columns}x{depth}: {}", lost(1024));
        }
        // Rows that are planned beyond what is estimated take no place of a tile for fewer.
        let of = sizes(4096, 4096, 1.0);
        let (shapes, _) = best_tiles(&of, (1, Some(1_000_000)), MOST_ESTIMATED);
        let (all, _) = best_tiles(&of, (1, None), MOST_ESTIMATED);
        assert!(shapes.len() == all.len() && shapes.iter().all(|(_, ranges)| !ranges.is_empty()));
        // Parts of a depth are those of the smallest.
        assert_eq!(TILES[TILES.len() - 1].size, [64, 64]);
    }
}
