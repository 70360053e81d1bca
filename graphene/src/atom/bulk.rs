//! Tensor copies (TMA): one thread issues a copy of a whole tile.

use super::asm::{asm, group};
use super::moves::only_one;
use super::{A, Atom, Code, D, Fits, Progress, Proxy, Site, Step, Text, Warp, given};
use crate::{Expr, Feature, Layout, Memory, Tensor};

#[rustfmt::skip]
pub(super) const ATOMS: &[Atom] = &[
    row("cp.async.bulk.tensor.load",
        "[m,n].fp16|bf16|fp32.SH <- Move<<<[]>>>([m,n].fp16|bf16|fp32.GL) signals", load_text)
        .align(&[128])
        .when(|site| {
            let own = site.signalled().is_none_or(|barrier| barrier.peer.is_none());
            given(own, "each block that it comes to has its own barrier learn of it")?;
            fits(site, D, A)
        }),
    row("cp.async.bulk.tensor.store",
        "[m,n].fp16|bf16|fp32.GL <- Move<<<[]>>>([m,n].fp16|bf16|fp32.SH) async", |_, code| {
        let (map, coordinates) = code.tensor_map(D);
        let rank = coordinates.len();
        let operands = [("l", format!("&{map}")), ("r", code.address(A, &[0, 0]))];
        let (list, ins) = with_coordinates(operands, coordinates);
        let text = format!("cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%0, {list}], [%1];");
        asm(&text, &[], &ins)
    }).align(&[2, 128]).when(|site| fits(site, A, D)),
];

const fn row(name: &'static str, pattern: &'static str, cuda: Text) -> Atom {
    Atom { proxy: Proxy::Async, ..Atom::new(name, pattern, copy, cuda).needs(&[Feature::Tma]) }
}

/// The list of coordinates, `{%n, …}` behind `n` operands, and all operands.
fn with_coordinates<const N: usize>(
    operands: [(&'static str, String); N],
    coordinates: Vec<String>,
) -> (String, Vec<(&'static str, String)>) {
    let list = group(N, coordinates.len());
    (list, operands.into_iter().chain(coordinates.into_iter().map(|at| ("r", at))).collect())
}

fn load_text(site: &Site<'_>, code: &Code<'_>) -> String {
    let (map, coordinates) = code.tensor_map(A);
    let rank = coordinates.len();
    let (to, map) = (code.address(D, &[0, 0]), format!("&{map}"));
    let (list, mut ins) =
        with_coordinates([("r", to), ("l", map), ("r", code.signal())], coordinates);
    let head =
        format!("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes");
    if !site.across_blocks() {
        return asm(&format!("{head} [%0], [%1, {list}], [%2];"), &[], &ins);
    }
    // All blocks of the cluster receive the copy.
    let mask = (1_i64 << site.kernel.cluster_size().unwrap_or(1)) - 1;
    ins.push(("h", format!("(unsigned short){mask}")));
    let last = ins.len() - 1;
    asm(&format!("{head}.multicast::cluster [%0], [%1, {list}], [%2], %{last};"), &[], &ins)
}

/// A load reads zeros beyond the edge, a store leaves out what lies there.
fn copy(site: &Site<'_>, warp: &mut dyn Warp) -> Step {
    let lane = only_one(warp)?;
    let loads = site.operand(A).memory == Memory::Global;
    for m in 0..site.size("m") {
        for n in 0..site.size("n") {
            let at = &[m, n];
            if loads {
                let value = warp.read_or_zero((lane, A, at))?;
                warp.write((lane, D, at), value)?;
            } else {
                let value = warp.read((lane, A, at))?;
                warp.write_if_inside((lane, D, at), value)?;
            }
        }
    }
    Ok(Progress::Done)
}

/// What a tensor map can say: a box of the global tensor, packed in shared memory with the global
/// tensor's contiguous axis innermost, no wider than the swizzle.
fn fits(site: &Site<'_>, shared: usize, global: usize) -> Fits {
    let (shared_tensor, global_tensor) = (site.operand(shared), site.operand(global));
    given(shared_tensor.scalar == global_tensor.scalar, "it does not convert")?;
    let sizes = [site.size("m"), site.size("n")];
    given(sizes.iter().all(|&size| size <= 256), "a box has at most 256 elements a side")?;
    let unit = |i: usize| axis_stride(global_tensor, site.dims(global)[i]);
    let (Some(rows), Some(columns)) = (unit(0), unit(1)) else {
        return Err("each side of the tile runs along one axis, element by element");
    };
    let (inner, outer) = match (rows.is(1), columns.is(1)) {
        (_, true) => (1, 0),
        (true, false) => (0, 1),
        (false, false) => return Err("one axis of the global tensor has stride 1"),
    };
    let width = sizes[inner] * shared_tensor.scalar.bytes();
    let span = shared_tensor.swizzle.map(|swizzle| 1_i64 << (swizzle.bits() + swizzle.base()));
    let narrow = width % 16 == 0 && span.is_none_or(|span| width <= span);
    given(narrow, "the inner side is a multiple of 16 bytes, no wider than the swizzle")?;
    let place = |row: i64, column: i64| {
        let mut element = [0, 0];
        element[outer] = row;
        element[inner] = column;
        site.distance(shared, &element)
    };
    // Distances of sides add up.
    let packed = (0..sizes[outer]).all(|row| place(row, 0) == Some(row * sizes[inner]))
        && (0..sizes[inner]).all(|column| place(0, column) == Some(column));
    given(packed, "the tile is packed in shared memory, the inner side first")
}

/// The stride of the one axis along which a dimension moves by single steps.
fn axis_stride(tensor: &Tensor, dim: &Layout<Expr>) -> Option<Expr> {
    let [leaf] = dim.leaves()[..] else { return None };
    let [(axis, step)] = leaf.stride.steps().collect::<Vec<_>>()[..] else { return None };
    step.is(1).then(|| tensor.view.axes()[axis].stride.clone())
}
