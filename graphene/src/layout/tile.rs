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

use super::{IntTuple, Layout, Tiler, coalesce, complement, composition};
use crate::error::{Error, Result};

/// Splits a layout into the elements that the tiler points to and the repetitions of that tile:
/// `a o (b, complement(b, size(a)))`. Where the tile does not divide `a`, the last repetition
/// over-runs it.
pub fn logical_divide(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    by_mode("logical_divide", divide, a, tiler)
}

/// [`logical_divide`] with all tile modes gathered first, and all rest modes second.
pub fn zipped_divide(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (tile, rest) = unzipped("zipped_divide", divide, a, tiler)?;
    Layout::tuple(vec![tile, rest])
}

/// [`zipped_divide`] with the rest modes side by side.
pub fn tiled_divide(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (tile, rest) = unzipped("tiled_divide", divide, a, tiler)?;
    join(&[tile], rest.modes())
}

/// [`zipped_divide`] with the tile and rest modes side by side.
pub fn flat_divide(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (tile, rest) = unzipped("flat_divide", divide, a, tiler)?;
    join(tile.modes(), rest.modes())
}

/// Repeats a layout in the order of the tiler: `(a, complement(a, size(a)*cosize(b)) o b)`.
pub fn logical_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    by_mode("logical_product", product, a, tiler)
}

/// [`logical_product`] with the layout's modes gathered first, and the repetitions second.
pub fn zipped_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (block, repeats) = unzipped("zipped_product", product, a, tiler)?;
    Layout::tuple(vec![block, repeats])
}

/// [`zipped_product`] with the repetitions side by side.
pub fn tiled_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (block, repeats) = unzipped("tiled_product", product, a, tiler)?;
    join(&[block], repeats.modes())
}

/// [`zipped_product`] with the layout's modes and the repetitions side by side.
pub fn flat_product(a: &Layout, tiler: &Tiler) -> Result<Layout> {
    let (block, repeats) = unzipped("flat_product", product, a, tiler)?;
    join(block.modes(), repeats.modes())
}

/// Arranges copies of `block` as `tiler` says, mode by mode: mode `i` of the result runs through
/// mode `i` of `block`, then of `tiler`. The lower rank is filled up with `1:0`; each mode of the
/// result is coalesced.
pub fn blocked_product(block: &Layout, tiler: &Layout) -> Result<Layout> {
    ranked_product(block, tiler, |block, repeat| vec![block, repeat])
}

/// As [`blocked_product`], with the copies interleaved: mode `i` of the result runs through mode
/// `i` of `tiler`, then of `block`.
pub fn raked_product(block: &Layout, tiler: &Layout) -> Result<Layout> {
    ranked_product(block, tiler, |block, repeat| vec![repeat, block])
}

/// Repeats `block` to fill `target`, whose mode sizes its own must divide. `order` numbers the
/// modes in the order in which copies are laid out (its values are compared, as in CuTe's `Step`);
/// without one, the first mode comes first.
pub fn tile_to_shape(
    block: &Layout,
    target: &IntTuple,
    order: Option<&IntTuple>,
) -> Result<Layout> {
    let target = target.elements();
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
        let keys: Vec<i64> =
            order.elements().iter().map(IntTuple::product).collect::<Result<_>>()?;
        if keys.len() != rank {
            return Err(Error::Rank { op: "tile_to_shape", modes: keys.len(), rank });
        }
        sequence.sort_by_key(|&mode| keys[mode]);
    }
    let mut modes = vec![(1, 0); rank];
    let mut extent = 1_i64;
    for mode in sequence {
        modes[mode] = (repeats[mode], extent);
        extent = extent.checked_mul(repeats[mode]).ok_or(Error::Overflow)?;
    }
    let repeats: Vec<Layout> =
        modes.iter().map(|&(size, stride)| Layout::mode(size, stride)).collect::<Result<_>>()?;
    blocked_product(&block, &Layout::tuple(repeats)?)
}

/// A division or product of whole layouts, which has two modes.
type Split = fn(&Layout, &Layout) -> Result<(Layout, Layout)>;

fn divide(a: &Layout, tile: &Layout) -> Result<(Layout, Layout)> {
    // Composed together: the tile and the rest must also add up.
    let rest = complement(tile, a.size())?;
    let both = composition(a, &Layout::tuple(vec![tile.clone(), rest])?)?;
    match both.modes() {
        [tile, rest] => Ok((tile.clone(), rest.clone())),
        _ => Err(Error::Empty),
    }
}

fn product(a: &Layout, repeat: &Layout) -> Result<(Layout, Layout)> {
    let cotarget = a.size().checked_mul(repeat.cosize()).ok_or(Error::Overflow)?;
    Ok((a.clone(), composition(&complement(a, cotarget)?, repeat)?))
}

fn by_mode(op: &'static str, split: Split, a: &Layout, tiler: &Tiler) -> Result<Layout> {
    match tiler {
        Tiler::Whole => Ok(a.clone()),
        Tiler::Layout(layout) => {
            let (first, second) = split(a, layout)?;
            Layout::tuple(vec![first, second])
        }
        Tiler::Modes(tilers) => {
            let modes = reached(op, a, tilers)?;
            let mut result = Vec::with_capacity(modes.len());
            for (mode, tiler) in modes.iter().zip(tilers) {
                result.push(by_mode(op, split, mode, tiler)?);
            }
            result.extend_from_slice(&modes[tilers.len()..]);
            Layout::tuple(result)
        }
    }
}

fn unzipped(op: &'static str, split: Split, a: &Layout, tiler: &Tiler) -> Result<(Layout, Layout)> {
    match tiler {
        Tiler::Whole => Err(Error::WholeMode { op }),
        Tiler::Layout(layout) => split(a, layout),
        Tiler::Modes(tilers) => {
            let modes = reached(op, a, tilers)?;
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for (mode, tiler) in modes.iter().zip(tilers) {
                let (tile, rest) = unzipped(op, split, mode, tiler)?;
                first.push(tile);
                second.push(rest);
            }
            second.extend_from_slice(&modes[tilers.len()..]);
            Ok((Layout::tuple(first)?, Layout::tuple(second)?))
        }
    }
}

fn reached<'a>(op: &'static str, a: &'a Layout, tilers: &[Tiler]) -> Result<&'a [Layout]> {
    let modes = a.modes();
    if tilers.len() > modes.len() {
        return Err(Error::Rank { op, modes: tilers.len(), rank: modes.len() });
    }
    Ok(modes)
}

fn join(first: &[Layout], second: &[Layout]) -> Result<Layout> {
    Layout::tuple(first.iter().chain(second).cloned().collect())
}

fn ranked_product(
    block: &Layout,
    tiler: &Layout,
    order: fn(Layout, Layout) -> Vec<Layout>,
) -> Result<Layout> {
    let rank = block.rank().max(tiler.rank());
    let (block, repeats) = product(&padded(block, rank)?, &padded(tiler, rank)?)?;
    let mut modes = Vec::with_capacity(rank);
    for (block, repeat) in block.modes().iter().zip(repeats.modes()) {
        modes.push(coalesce(&Layout::tuple(order(block.clone(), repeat.clone()))?)?);
    }
    Layout::tuple(modes)
}

/// The layout as a tuple of `rank` modes, filled up with `1:0`.
fn padded(layout: &Layout, rank: usize) -> Result<Layout> {
    let mut modes = layout.modes().to_vec();
    modes.resize(rank.max(modes.len()), Layout::unit());
    Layout::tuple(modes)
}
