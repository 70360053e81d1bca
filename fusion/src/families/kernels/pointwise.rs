//! Pointwise groups and copies: one loop over the elements.

use super::function::{function, function_of};
use super::operand::Axes;
use super::{Dims, Launch, Refusal, Site, StepOperand, TypedOperand, by_name, made, tiles};
use crate::base::sizes::is_multiple;
use crate::families::grids::{of_loop, widest};
use graphene_frontend::{DType, Dim, ValueId};
use graphene_ir::template::access::Access;
use graphene_ir::template::pointwise::Pointwise;
use graphene_ir::template::transpose::Transpose;
use graphene_ir::tensor::Scalar;

/// Rows and columns that are too short for tiles of a transpose.
const SHORT: i64 = 16;

/// The launch of a step whose body is pointwise, or empty: a copy.
pub(super) fn launch(site: &Site<'_>) -> Result<Launch, Refusal> {
    let body = &site.step.body;
    let outputs = body.given();
    let inputs: Vec<ValueId> = body.inputs().iter().map(|id| id.value()).collect();
    // Integers that are moved as they are may be more than single precision holds.
    let moved = |value: &ValueId| inputs.contains(value) && is_wide(body.ty(*value).dtype);
    let whole = || function_of(body, &outputs, &inputs, Scalar::I64);
    let (function, numbers) = match function(body, &outputs, &inputs) {
        Ok(_) if outputs.iter().all(moved) => (whole()?, Scalar::I64),
        Err(Refusal::Integers) => {
            // Of a mixture the integers are what is in the way.
            let mixed = |refusal| match refusal {
                Refusal::Elements(dtype) if dtype.is_float() => Refusal::Integers,
                other => other,
            };
            (whole().map_err(mixed)?, Scalar::I64)
        }
        made => (made?, Scalar::F32),
    };
    let outs = (0..outputs.len()).map(StepOperand::Output);
    let ins = (0..function.inputs()).map(StepOperand::Input);
    let operands = outs.chain(ins).map(|operand| site.operand(operand));
    let operands = operands.collect::<Result<Vec<_>, _>>()?;
    let axes = Axes::of(&operands.iter().map(|of| of.view).collect::<Vec<_>>())?;
    if let ([output], [to, from]) = (&outputs[..], &operands[..])
        && inputs.contains(output)
        && to.scalar == from.scalar
        && let Some(launch) = transpose(site, &axes, [*to, *from])?
    {
        return Ok(launch);
    }
    let mut dims: Dims = axes.named("N").collect();
    let mut accesses: Vec<Access> = Vec::with_capacity(operands.len());
    for (i, operand) in operands.iter().enumerate() {
        let input = i.checked_sub(outputs.len());
        let name = input.map_or_else(|| format!("y{i}"), |input| format!("x{input}"));
        accesses.push(axes.access(i, &name, operand.scalar, &mut dims));
    }
    let narrowest = operands.iter().map(|of| of.scalar.bytes()).min().unwrap_or(1);
    let offsets: Vec<&Dim> = operands.iter().map(|of| &of.view.offset).collect();
    let vector = axes.vector(&offsets, widest(narrowest));
    let ins = accesses.split_off(outputs.len());
    let threads = threads(site, &items(&axes, vector), &mut dims);
    let (arch, outs) = (site.arch, accesses);
    let template = Pointwise { arch, function, numbers, ins, outs, vector, threads };
    let (outs, ins) = operands.split_at(outputs.len());
    let pointers = ins.iter().chain(outs).map(TypedOperand::pointer).collect();
    Ok(site.launch(made!(template)?, &dims, pointers))
}

/// The launch of a copy whose contiguous axis changes, through tiles in shared memory; none where a loop reads neighbours
/// too, or rows are short.
fn transpose(
    site: &Site<'_>,
    axes: &Axes,
    [output, input]: [TypedOperand<'_>; 2],
) -> Result<Option<Launch>, Refusal> {
    let scalar = output.scalar;
    let [to, from] = &axes.strides[..] else { return Ok(None) };
    let rows = axes.sizes.len() - 1;
    let columns = (0..rows).rev().find(|&axis| from[axis] == 1 && axes.sizes[axis] != 1);
    let is_long = |axis: usize| axes.sizes[axis].known().is_none_or(|size| size >= SHORT);
    let Some(columns) = columns.filter(|&columns| is_long(rows) && is_long(columns)) else {
        return Ok(None);
    };
    if to[rows] != 1 || scalar.bytes() > 4 {
        return Ok(None);
    }
    let outer: Vec<usize> = (0..rows).filter(|&axis| axis != columns).collect();
    let mut dims: Dims = axes.along(&outer).named("N").collect();
    let of_tiles = [("rows", rows), ("columns", columns)];
    dims.extend(by_name(of_tiles.map(|(name, axis)| (name, axes.sizes[axis].clone()))));
    let mut access = |name: &str, operand: usize, last: [usize; 2]| {
        axes.along(&[&outer[..], &last].concat()).access(operand, name, scalar, &mut dims)
    };
    let (x, y) = (access("x", 1, [rows, columns]), access("y", 0, [columns, rows]));
    // The widest moves of which all places but those along the contiguous axis are multiples.
    let vector = |offset: &Dim, strides: &[Dim], contiguous: usize| {
        let others = (0..=rows).filter(|&axis| axis != contiguous).map(|axis| &strides[axis]);
        let multiples: Vec<&Dim> = others.chain([offset]).collect();
        let divides = |&v: &i64| multiples.iter().all(|dim| is_multiple(dim, v));
        let widths = [16, 8, 4].map(|width| width / scalar.bytes());
        widths.into_iter().filter(|&v| v <= 8).find(divides).unwrap_or(1)
    };
    let load = vector(&input.view.offset, from, columns);
    let store = vector(&output.view.offset, to, rows);
    let template = Transpose { arch: site.arch, x, y, load, store };
    Ok(Some(site.launch(made!(template)?, &dims, vec![input.pointer(), output.pointer()])))
}

/// Whether the type has integers that single precision does not hold, and a kernel may compute with them.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64 | DType::U32)
}

/// Threads of a block of a loop over so many vectors, whose blocks are a dim.
pub(super) fn threads(site: &Site<'_>, items: &Dim, dims: &mut Dims) -> i64 {
    let [threads, blocks] = of_loop(items.known(), site.target);
    let blocks = tiles(items, threads).minimum(&Dim::from(blocks)).maximum(&Dim::from(1));
    dims.insert("blocks".to_owned(), blocks);
    threads
}

/// Vectors of all rows.
pub(super) fn items(axes: &Axes, vector: i64) -> Dim {
    let last = axes.sizes.len() - 1;
    let outer = axes.sizes[..last].iter().product::<Dim>();
    &outer * &tiles(&axes.sizes[last], vector)
}
