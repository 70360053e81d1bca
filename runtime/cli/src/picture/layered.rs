//! Layered drawing of an acyclic graph: boxes in rows, arrows from row to row.
//!
//! The steps of Sugiyama's method: a row for each box by the longest way to it, places for arrows that pass rows, an order
//! in each row by the means of neighbours, then the places nearest to those means that keep boxes apart.

use std::fmt::Write;

/// Between two boxes of a row.
const BESIDE: f64 = 24.0;
/// Between two rows.
const BELOW: f64 = 34.0;
/// About the whole.
const MARGIN: f64 = 16.0;
/// The width that an arrow has where it passes a row.
const PASSING: f64 = 10.0;
/// Times that orders and places follow their neighbours, down and up.
const SWEEPS: usize = 12;

/// Where everything is; y grows downwards.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// Width of the whole.
    pub(super) width: f64,
    /// Height of the whole.
    pub(super) height: f64,
    /// The upper left corner of each box.
    pub(super) corners: Vec<(f64, f64)>,
    /// Each arrow as an SVG path.
    pub(super) paths: Vec<String>,
}

/// A box, or an arrow where it passes a row.
#[derive(Clone, Copy)]
struct Item {
    row: usize,
    width: f64,
    height: f64,
    x: f64,
}

/// Places boxes of these widths and heights, with arrows from one to a later one.
pub(super) fn place(boxes: &[(f64, f64)], arrows: &[(usize, usize)]) -> Placed {
    let rows = rows(boxes.len(), arrows);
    let item =
        |(&(width, height), &row): (&(f64, f64), &usize)| Item { row, width, height, x: 0.0 };
    let mut items: Vec<Item> = boxes.iter().zip(&rows).map(item).collect();
    // The items that an arrow goes through, its ends among them.
    let mut ways: Vec<Vec<usize>> = Vec::new();
    for &(from, to) in arrows {
        let mut way = vec![from];
        for row in rows[from] + 1..rows[to] {
            way.push(items.len());
            items.push(Item { row, width: PASSING, height: 0.0, x: 0.0 });
        }
        way.push(to);
        ways.push(way);
    }
    let (mut above, mut below) = (vec![Vec::new(); items.len()], vec![Vec::new(); items.len()]);
    for pair in ways.iter().flat_map(|way| way.windows(2)) {
        above[pair[1]].push(pair[0]);
        below[pair[0]].push(pair[1]);
    }
    let mut order: Vec<Vec<usize>> = vec![Vec::new(); rows.iter().max().map_or(0, |last| last + 1)];
    for (i, item) in items.iter().enumerate() {
        order[item.row].push(i);
    }
    sort(&mut order, &above, &below);
    settle(&mut items, &order, &above, &below, boxes.len());
    finish(&mut items, &order, &ways, boxes.len())
}

/// The row of each box: below all that it reads. What reads nothing stands right above its first reader.
fn rows(boxes: usize, arrows: &[(usize, usize)]) -> Vec<usize> {
    let mut rows = vec![0; boxes];
    let mut sorted = arrows.to_vec();
    sorted.sort_unstable_by_key(|&(_, to)| to);
    for &(from, to) in &sorted {
        rows[to] = rows[to].max(rows[from] + 1);
    }
    let mut reads = vec![false; boxes];
    let mut first = vec![usize::MAX; boxes];
    for &(from, to) in arrows {
        reads[to] = true;
        first[from] = first[from].min(rows[to]);
    }
    for i in 0..boxes {
        if !reads[i] && first[i] != usize::MAX {
            rows[i] = first[i] - 1;
        }
    }
    rows
}

/// Orders each row by the mean place of neighbours in the row before, downwards and upwards alternately.
fn sort(order: &mut [Vec<usize>], above: &[Vec<usize>], below: &[Vec<usize>]) {
    let mut places = vec![0.0; above.len()];
    let number = |row: &[usize], places: &mut [f64]| {
        let middle = (row.len() as f64 - 1.0) / 2.0;
        row.iter().enumerate().for_each(|(i, &item)| places[item] = i as f64 - middle);
    };
    order.iter().for_each(|row| number(row, &mut places));
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let near = if down { above } else { below };
        let rows = order.len();
        for i in 0..rows {
            let row = &mut order[if down { i } else { rows - 1 - i }];
            let mean = |item: usize| match near[item].len() {
                0 => places[item],
                count => near[item].iter().map(|&n| places[n]).sum::<f64>() / count as f64,
            };
            row.sort_by(|&a, &b| mean(a).total_cmp(&mean(b)));
            number(row, &mut places);
        }
    }
}

/// Moves items towards their neighbours, as far as those of a row leave room. Boxes go where boxes of the next rows are, and
/// arrows that pass make way for them.
fn settle(
    items: &mut [Item],
    order: &[Vec<usize>],
    above: &[Vec<usize>],
    below: &[Vec<usize>],
    boxes: usize,
) {
    let passes = |item: usize| item >= boxes;
    // What hangs on one box alone, as an input does, goes where that is.
    let hangs = |item: usize| above[item].len() + below[item].len() == 1;
    // How much an item's place counts for its neighbour's: chains of boxes, and of one arrow's places, are straight.
    let pull = |item: usize, near: usize| match (passes(item), passes(near)) {
        (false, false) if hangs(near) => 1e-2,
        (false, false) | (true, true) => 16.0,
        (false, true) => 1e-3,
        (true, false) => 1.0,
    };
    for sweep in 0..SWEEPS {
        let (rows, down) = (order.len(), sweep % 2 == 0);
        for i in 0..rows {
            let row = &order[if down { i } else { rows - 1 - i }];
            let wish = |&item: &usize| {
                // Of one side only, so that a sweep moves a whole chain; in the end of both.
                let both = sweep + 2 >= SWEEPS;
                let sides = [(&above[item], down || both), (&below[item], !down || both)];
                let near = sides.into_iter().filter(|side| side.1).flat_map(|side| side.0);
                let (sum, all) = near.fold((0.0, 0.0), |(sum, all), &n| {
                    (sum + pull(item, n) * items[n].x, all + pull(item, n))
                });
                let x = if all > 0.0 { sum / all } else { items[item].x };
                (x, if passes(item) || hangs(item) { 1e-4 } else { 1.0 })
            };
            let wished: Vec<_> = row.iter().map(wish).collect();
            for (&item, x) in row.iter().zip(apart(items, row, &wished)) {
                items[item].x = x;
            }
        }
    }
}

/// The places nearest to those wished for, by weighted squares, at which the items of a row keep their order and distance.
fn apart(items: &[Item], row: &[usize], wished: &[(f64, f64)]) -> Vec<f64> {
    // Without the room that items need, it is the nearest ascending sequence: pools of equal values.
    let mut needed = Vec::with_capacity(row.len());
    let mut at = 0.0;
    for (i, &item) in row.iter().enumerate() {
        if i > 0 {
            at += (items[row[i - 1]].width + items[item].width) / 2.0 + BESIDE;
        }
        needed.push(at);
    }
    // The weighted sum, the weight and the number of each pool.
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for (&(wish, weight), need) in wished.iter().zip(&needed) {
        let mut pool = (weight * (wish - need), weight, 1);
        while let Some(&(sum, all, count)) = pools.last()
            && sum / all >= pool.0 / pool.1
        {
            pools.pop();
            pool = (pool.0 + sum, pool.1 + all, pool.2 + count);
        }
        pools.push(pool);
    }
    let means = pools.iter().flat_map(|&(sum, all, count)| vec![sum / all; count]);
    means.zip(&needed).map(|(mean, need)| mean + need).collect()
}

/// Corners of boxes and paths of arrows from the items' places.
fn finish(items: &mut [Item], order: &[Vec<usize>], ways: &[Vec<usize>], boxes: usize) -> Placed {
    let left = items.iter().map(|item| item.x - item.width / 2.0).fold(f64::INFINITY, f64::min);
    let left = if left.is_finite() { left - MARGIN } else { 0.0 };
    items.iter_mut().for_each(|item| item.x -= left);
    let right = items.iter().map(|item| item.x + item.width / 2.0).fold(0.0, f64::max);
    let (mut tops, mut y) = (Vec::new(), MARGIN);
    for row in order {
        let height = row.iter().map(|&item| items[item].height).fold(0.0, f64::max);
        tops.push((y, y + height));
        y += height + BELOW;
    }
    let corner = |item: &Item| {
        let (top, bottom) = tops[item.row];
        (item.x - item.width / 2.0, (top + bottom - item.height) / 2.0)
    };
    let path = |way: &Vec<usize>| {
        let mut path = String::new();
        for (i, &n) in way.iter().enumerate() {
            let item = &items[n];
            let (top, bottom) = tops[item.row];
            // Boxes end at their own edges, arrows pass the whole row.
            let (top, bottom) = match n < boxes {
                true => (corner(item).1, corner(item).1 + item.height),
                false => (top, bottom),
            };
            if i > 0 {
                let before = &items[way[i - 1]];
                let start = match way[i - 1] < boxes {
                    true => corner(before).1 + before.height,
                    false => tops[before.row].1,
                };
                let (half, x) = ((start + top) / 2.0, item.x);
                let _ = write!(path, "C{:.1} {half:.1} {x:.1} {half:.1} {x:.1} {top:.1}", before.x);
            }
            match i {
                0 => {
                    let _ = write!(path, "M{:.1} {bottom:.1}", item.x);
                }
                _ if i + 1 < way.len() => {
                    let _ = write!(path, "V{bottom:.1}");
                }
                _ => {}
            }
        }
        path
    };
    Placed {
        width: right + MARGIN,
        height: (y - BELOW).max(0.0) + MARGIN,
        corners: items[..boxes].iter().map(corner).collect(),
        paths: ways.iter().map(path).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{BESIDE, place};

    #[test]
    fn arrows_go_down_and_boxes_keep_apart() {
        let boxes: Vec<_> = (0..9).map(|i| (60.0 + f64::from(i) * 10.0, 30.0)).collect();
        let arrows =
            [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 5), (4, 6), (0, 6), (7, 8), (5, 8)];
        let placed = place(&boxes, &arrows);
        let bottom = |i: usize| placed.corners[i].1 + boxes[i].1;
        for (from, to) in arrows {
            assert!(bottom(from) < placed.corners[to].1, "{from} → {to}: {placed:?}");
        }
        for (i, a) in placed.corners.iter().enumerate() {
            assert!(a.0 >= 0.0 && a.0 + boxes[i].0 <= placed.width, "{placed:?}");
            assert!(a.1 >= 0.0 && bottom(i) <= placed.height, "{placed:?}");
            for (j, b) in placed.corners.iter().enumerate().skip(i + 1) {
                let beside = a.0 + boxes[i].0 + BESIDE <= b.0 + 1e-6;
                let other = b.0 + boxes[j].0 + BESIDE <= a.0 + 1e-6;
                let rows = bottom(i) <= b.1 || bottom(j) <= a.1;
                assert!(beside || other || rows, "{i} and {j}: {placed:?}");
            }
        }
        assert_eq!(placed.paths.len(), arrows.len());
        assert!(placed.paths.iter().all(|path| path.starts_with('M') && !path.contains("NaN")));
    }

    #[test]
    fn a_chain_is_straight_and_nothing_has_no_size() {
        let placed = place(&[(50.0, 20.0); 3], &[(0, 1), (1, 2)]);
        assert!(placed.corners.iter().all(|corner| corner.0 == placed.corners[0].0));
        let nothing = place(&[], &[]);
        assert!(nothing.corners.is_empty() && nothing.width.is_finite());
    }
}
