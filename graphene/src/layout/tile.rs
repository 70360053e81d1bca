//! Divisions and products, all made of composition, complement and concatenation.
//!
//! With a layout `(M,N,L)` and a tiler `<TileM,TileN>` the variants arrange the modes so:
//!
//! | | divide | product |
//! |---|---|---|
//! | `logical` | `((TileM,RestM),(TileN,RestN),L)` | `((M,TileM),(N,TileN),L)` |
//! | `zipped` | `((TileM,TileN),(RestM,RestN,L))` | `((M,N),(TileM,TileN,L))` |
//! | `tiled` | `((TileM,TileN),RestM,RestN,L)` | `((M,N),TileM,TileN,L)` |
//! | `flat` | `(TileM,TileN,RestM,RestN,L)` | `(M,N,TileM,TileN,L)` |

use super::coalesce::reached;
use super::complement::repetitions;
use super::{Int, IntTuple, Layout, Tiler, coalesce, complement, composition};
use crate::{Error, Result};

/// Splits a layout into the elements that the tiler points to and the repetitions of that tile:
/// `a o (b, complement(b, size(a)))`. Where the tile does not divide `a`, the last repetition
/// over-runs it.
pub fn logical_divide<I: Int>(a: &Layout<I>, tiler: &Tiler) -> Result<Layout<I>> {
    by_mode(("logical_divide", divide), a, tiler)
}

/// [`logical_divide`] with all tile modes gathered first, and all rest modes second.
pub fn zipped_divide<I: Int>(a: &Layout<I>, tiler: &Tiler) -> Result<Layout<I>> {
    Layout::tuple(unzipped(("zipped_divide", divide), a, tiler)?.to_vec())
}

/// [`zipped_divide`] with the rest modes side by side.
pub fn tiled_divide<I: Int>(a: &Layout<I>, tiler: &Tiler) -> Result<Layout<I>> {
    let [tile, rest] = unzipped(("tiled_divide", divide), a, tiler)?;
    join(&[tile], spread(&rest))
}

/// [`zipped_divide`] with the tile and rest modes side by side.
pub fn flat_divide<I: Int>(a: &Layout<I>, tiler: &Tiler) -> Result<Layout<I>> {
    let [tile, rest] = unzipped(("flat_divide", divide), a, tiler)?;
    join(spread(&tile), spread(&rest))
}

/// Repeats a layout in the order of the tiler: `(a, complement(a, size(a)*cosize(b)) o b)`.
pub fn logical_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    by_mode(("logical_product", product), a, tiler)
}

/// [`logical_product`] with the layout's modes gathered first, and the repetitions second.
pub fn zipped_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    Layout::tuple(unzipped(("zipped_product", product), a, tiler)?.to_vec())
}

/// [`zipped_product`] with the repetitions side by side.
pub fn tiled_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let [block, repeats] = unzipped(("tiled_product", product), a, tiler)?;
    join(&[block], spread(&repeats))
}

/// [`zipped_product`] with the layout's modes and the repetitions side by side.
pub fn flat_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let [block, repeats] = unzipped(("flat_product", product), a, tiler)?;
    join(spread(&block), spread(&repeats))
}

/// Arranges copies of `block` as `tiler` says, mode by mode: mode `i` of the result runs through
/// mode `i` of `block`, then of `tiler`. The lower rank is filled up with `1:0`.
pub fn blocked_product(block: &Layout, tiler: &Layout) -> Result<Layout> {
    ranked_product(block, tiler, |block, repeat| vec![block, repeat])
}

/// As [`blocked_product`], with the copies interleaved: mode `i` runs through mode `i` of `tiler`, then of `block`.
pub fn raked_product(block: &Layout, tiler: &Layout) -> Result<Layout> {
    ranked_product(block, tiler, |block, repeat| vec![repeat, block])
}

/// Repeats `block` to fill `to`, whose mode sizes its own must divide. `order` numbers the
/// modes in the order in which copies follow one another (its values are compared, as in CuTe's `Step`);
/// without one, the first mode comes first.
pub fn tile_to_shape(block: &Layout, to: &IntTuple, order: Option<&IntTuple>) -> Result<Layout> {
    let target = to.elements();
    let rank = target.len();
    if block.rank() > rank {
        return Err(Error::Rank { op: "tile_to_shape", modes: block.rank(), rank });
    }
    let block = padded(block, rank)?;
    let mut repeats = Vec::with_capacity(rank);
    for (mode, (block, target)) in block.modes().iter().zip(target).enumerate() {
        let (block, target) = (block.size(), target.product()?);
        if target < 1 || target % block != 0 {
            return Err(Error::BlockShape { mode, block, target });
        }
        repeats.push(target / block);
    }
    let mut sequence: Vec<usize> = (0..rank).collect();
    if let Some(order) = order {
        let keys = order.elements().iter().map(IntTuple::product);
        let keys: Vec<i64> = keys.collect::<Result<_>>()?;
        if keys.len() != rank {
            return Err(Error::Rank { op: "tile_to_shape", modes: keys.len(), rank });
        }
        sequence.sort_by_key(|&mode| keys[mode]);
    }
    let mut modes = vec![Layout::unit(); rank];
    let mut extent = 1_i64;
    for mode in sequence {
        let size = repeats[mode];
        modes[mode] = Layout::mode(size, if size == 1 { 0 } else { extent })?;
        extent = extent.checked_mul(size).ok_or(Error::Overflow)?;
    }
    blocked_product(&block, &Layout::tuple(modes)?)
}

/// An operation's name, and the division or product of whole layouts that it is, which has two modes.
type Split<I> = (&'static str, fn(&Layout<I>, &Layout) -> Result<[Layout<I>; 2]>);

fn divide<I: Int>(a: &Layout<I>, tile: &Layout) -> Result<[Layout<I>; 2]> {
    split(a, tile, complement(tile, &a.size())?)
}

/// `a` after a tile and its repetitions; composed together, as they must also add up.
fn split<I: Int>(a: &Layout<I>, tile: &Layout, rest: Layout<I>) -> Result<[Layout<I>; 2]> {
    let both = composition(a, &Layout::tuple(vec![tile.lift(), rest])?)?;
    Ok([0, 1].map(|mode| both.modes()[mode].clone()))
}

/// A dimension's tile and its repetitions, each coalesced, as CuTe has them of sizes known only as the program runs: where
/// there is one repetition it keeps its stride. For the tile may be partial, and others lie beyond the dimension's end.
pub(crate) fn divide_dim<I: Int>(dim: &Layout<I>, tiler: &Tiler) -> Result<[Layout<I>; 2]> {
    let tile = &match tiler {
        Tiler::Whole => return Ok([dim.clone(), Layout::unit()]),
        Tiler::Size(size) => Layout::mode(*size, 1)?,
        Tiler::Layout(tile) => tile.clone(),
        Tiler::Modes(tilers) => {
            return Err(Error::Rank { op: "tile", modes: tilers.len(), rank: 1 });
        }
    };
    let [tile, rest] = split(dim, tile, repetitions(tile, &dim.size())?)?;
    let joined = coalesce(&rest)?;
    let single = rest.leaves().last().filter(|_| joined.size().equals(1)).cloned();
    let rest =
        single.map_or(Ok(joined), |last| Layout::mode(last.size.clone(), last.stride.clone()))?;
    Ok([coalesce(&tile)?, rest])
}

fn product(a: &Layout, repeat: &Layout) -> Result<[Layout; 2]> {
    let cotarget = a.size().checked_mul(repeat.cosize()).ok_or(Error::Overflow)?;
    Ok([a.clone(), composition(&complement(a, &cotarget)?, repeat)?])
}

fn by_mode<I: Int>(split: Split<I>, a: &Layout<I>, tiler: &Tiler) -> Result<Layout<I>> {
    match tiler {
        Tiler::Whole => Ok(a.clone()),
        Tiler::Size(size) => by_mode(split, a, &line(*size)?),
        Tiler::Layout(layout) => Layout::tuple(split.1(a, layout)?.to_vec()),
        Tiler::Modes(tilers) => {
            let modes = reached(split.0, a, tilers)?;
            let each = modes.iter().zip(tilers).map(|(mode, tiler)| by_mode(split, mode, tiler));
            let rest = modes[tilers.len()..].iter().cloned().map(Ok);
            Layout::tuple(each.chain(rest).collect::<Result<_>>()?)
        }
    }
}

fn unzipped<I: Int>(split: Split<I>, a: &Layout<I>, tiler: &Tiler) -> Result<[Layout<I>; 2]> {
    match tiler {
        Tiler::Whole => Err(Error::WholeMode { op: split.0 }),
        Tiler::Size(size) => unzipped(split, a, &line(*size)?),
        Tiler::Layout(layout) => split.1(a, layout),
        Tiler::Modes(tilers) => {
            let modes = reached(split.0, a, tilers)?;
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for (mode, tiler) in modes.iter().zip(tilers) {
                let [tile, rest] = unzipped(split, mode, tiler)?;
                first.push(tile);
                second.push(rest);
            }
            second.extend_from_slice(&modes[tilers.len()..]);
            Ok([Layout::tuple(first)?, Layout::tuple(second)?])
        }
    }
}

/// The layout of so many neighbours.
fn line(size: i64) -> Result<Tiler> {
    Layout::column_major(&IntTuple::Int(size)).map(Tiler::Layout)
}

/// Modes to stand side by side; a single one stays as it is.
fn spread<I: Int>(layout: &Layout<I>) -> &[Layout<I>] {
    if layout.rank() == 1 { std::slice::from_ref(layout) } else { layout.modes() }
}

fn join<I: Int>(first: &[Layout<I>], second: &[Layout<I>]) -> Result<Layout<I>> {
    Layout::tuple(first.iter().chain(second).cloned().collect())
}

fn ranked_product(
    block: &Layout,
    tiler: &Layout,
    order: fn(Layout, Layout) -> Vec<Layout>,
) -> Result<Layout> {
    let rank = block.rank().max(tiler.rank());
    let [block, repeats] = product(&padded(block, rank)?, &padded(tiler, rank)?)?;
    let both = block.modes().iter().zip(repeats.modes());
    let modes = both.map(|(block, repeat)| Layout::tuple(order(block.clone(), repeat.clone())));
    Layout::tuple(modes.collect::<Result<_>>()?)
}

/// The layout as a tuple of `rank` modes, filled up with `1:0`.
fn padded(layout: &Layout, rank: usize) -> Result<Layout> {
    let mut modes = layout.modes().to_vec();
    modes.resize(rank.max(modes.len()), Layout::unit());
    Layout::tuple(modes)
}
