//! What a kernel needs of its host, from what its text uses.

use super::{Uses, refuse};
use crate::launch::{Condition, Launch, Param, TensorMap};
use crate::{Error, Expr, Kernel, Memory, Result, Tensor, TensorId, atom::Site, tensor::Axis};

/// Tensor maps want addresses and strides that are multiples of so many bytes.
const MAP_ALIGN: i64 = 16;

const MAP_RANK: usize = 5;

/// The description of a kernel's launch. Parameters are pointers, tensor maps, symbols.
pub(super) fn describe(kernel: &Kernel, entry: &str, shared: i64, uses: &Uses) -> Result<Launch> {
    let pointers = kernel.params.iter().filter(|param| uses.elements.contains(param));
    let reach = |axis: &Axis| (axis.size.clone() - 1) * &axis.stride;
    let pointer = |&param: &TensorId| Param::Pointer {
        tensor: kernel.tensor_name(param).to_owned(),
        scalar: kernel.tensor(param).scalar,
        len: kernel.tensor(param).view.axes().iter().map(reach).sum::<Expr>() + 1,
        written: uses.written.contains(&param),
    };
    let params = pointers
        .map(pointer)
        .chain(uses.maps.iter().map(|map| Param::TensorMap(map.map.clone())))
        .chain(kernel.symbols.iter().cloned().map(Param::Symbol))
        .collect();
    Ok(Launch {
        entry: entry.to_owned(),
        arch: kernel.arch,
        symbols: kernel.symbols.clone(),
        params,
        grid: kernel.threads(kernel.grid).view.size(),
        cluster: number(kernel.cluster_size()?)?,
        block: number(kernel.block_size()?)?,
        shared_bytes: number(shared)?,
        dependent: uses.dependent,
        cooperative: kernel.cooperative(),
        conditions: conditions(kernel, uses),
    })
}

fn number(value: i64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::Overflow)
}

/// What must hold: pointers' alignments, then what is asked of symbols.
fn conditions(kernel: &Kernel, uses: &Uses) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for &param in &kernel.params {
        let mapped = uses.maps.iter().any(|map| map.tensor == param);
        let asked = uses.aligned.get(&param).copied().unwrap_or(1);
        let align = if mapped { asked.max(MAP_ALIGN) } else { asked };
        if align > kernel.tensor(param).scalar.bytes() {
            conditions.push(Condition::Aligned(kernel.tensor_name(param).to_owned(), align));
        }
    }
    let strides = uses.maps.iter().flat_map(|map| &map.map.strides);
    let strides = strides
        .filter(|stride| stride.terms().any(|(_, coefficient)| coefficient % MAP_ALIGN != 0))
        .map(|stride| Condition::Multiple(stride.clone(), MAP_ALIGN));
    for condition in uses.conditions.iter().cloned().chain(strides) {
        if !conditions.contains(&condition) {
            conditions.push(condition);
        }
    }
    conditions
}

/// A part of the box that a copy moves: so many elements along a global axis, so far apart in shared memory.
struct Mode {
    axis: usize,
    size: i64,
    distance: i64,
}

/// The tensor map of a global operand, and the buffer's axes in the map's order: the fastest in
/// shared memory first, then those along which the box has one element.
pub(super) fn map_of(site: &Site<'_>, of: usize, name: &str) -> Result<(TensorMap, Vec<usize>)> {
    let tensor = site.operand(of);
    let shared = (0..site.operands.len()).find(|&i| site.operand(i).memory == Memory::Shared);
    let modes = modes(site, of, shared)?;
    let axes = tensor.view.axes();
    let mut order: Vec<usize> = modes.iter().map(|mode| mode.axis).collect();
    order.dedup();
    let start = tensor.view.start();
    for axis in (0..axes.len()).rev() {
        if !(order.contains(&axis) || axes[axis].size.is(1) && start[axis].is(0)) {
            order.push(axis);
        }
    }
    let contiguous = order.first().is_some_and(|&axis| axes[axis].stride.is(1));
    if !contiguous || order.len() > MAP_RANK {
        return refuse(format!(
            "no tensor map of %{name}: its first axis in shared memory must have stride 1, and it \
             may have {MAP_RANK} axes"
        ));
    }
    let bytes = tensor.scalar.bytes();
    let window = |axis: &usize| {
        let own = modes.iter().filter(|mode| mode.axis == *axis);
        number(own.map(|mode| mode.size).product())
    };
    let map = TensorMap {
        tensor: name.to_owned(),
        scalar: tensor.scalar,
        sizes: order.iter().map(|&axis| axes[axis].size.clone()).collect(),
        strides: order[1..].iter().map(|&axis| axes[axis].stride.clone() * bytes).collect(),
        window: order.iter().map(window).collect::<Result<_>>()?,
        swizzle: shared.map_or(Ok(0), |shared| swizzle_bytes(site.operand(shared)))?,
    };
    Ok((map, order))
}

/// The box, in the order of shared memory, where it must lie packed.
fn modes(site: &Site<'_>, operand: usize, shared: Option<usize>) -> Result<Vec<Mode>> {
    let dims = site.dims(operand);
    let mut modes = Vec::new();
    for (i, dim) in dims.iter().enumerate() {
        let mut before = 1;
        for leaf in dim.leaves() {
            let steps: Vec<_> = leaf.stride.steps().collect();
            let (Some(size), [(axis, _)]) = (leaf.size.constant(), &steps[..]) else {
                return refuse("a tensor map's box runs along axes, by constant sizes");
            };
            let mut element = vec![0; dims.len()];
            element[i] = before;
            // Without a shared tensor, as the global one counts.
            let Some(distance) = site.distance(shared.unwrap_or(operand), &element) else {
                return refuse("a tensor map's box has constant strides in shared memory");
            };
            modes.push(Mode { axis: *axis, size, distance });
            before *= size;
        }
    }
    modes.sort_by_key(|mode| mode.distance);
    let mut packed = 1;
    let mut windows: Vec<(usize, i64)> = Vec::new();
    for mode in &modes {
        if shared.is_some() && mode.distance != packed {
            return refuse("a tensor map's box lies packed in shared memory");
        }
        packed *= mode.size;
        match windows.last_mut() {
            Some(last) if last.0 == mode.axis => last.1 *= mode.size,
            _ => windows.push((mode.axis, mode.size)),
        }
    }
    for (i, (axis, size)) in windows.iter().enumerate() {
        // The box reaches as far along an axis as it has elements there, in one run.
        let own = dims.iter().flat_map(|dim| dim.leaves()).filter_map(|leaf| {
            let step = leaf.stride.steps().find(|step| step.0 == *axis)?.1;
            Some((leaf.size.constant()? - 1) * step.constant()?)
        });
        let reach: i64 = own.sum();
        let twice = windows[..i].iter().any(|other| other.0 == *axis);
        if twice || reach + 1 != *size || *size > 256 {
            return refuse("a tensor map's box has at most 256 neighbours along an axis");
        }
    }
    Ok(modes)
}

/// The width of the swizzle that the copy applies.
fn swizzle_bytes(shared: &Tensor) -> Result<u32> {
    let Some(swizzle) = shared.swizzle else { return Ok(0) };
    match (swizzle.bits(), swizzle.base(), swizzle.shift()) {
        (3, 4, 3) => Ok(128),
        (2, 4, 3) => Ok(64),
        (1, 4, 3) => Ok(32),
        (_, _, _) => refuse("tensor copies swizzle by S<3,4,3>, S<2,4,3> or S<1,4,3>"),
    }
}
