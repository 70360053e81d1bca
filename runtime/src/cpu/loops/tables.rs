//! Functions of one byte as tables: what quantised models spell as many operations between two bytes.

use super::{Class, Domain, Elements, Loop, LoopInput, LoopOutput, Tile, Workspace};
use crate::cpu::kernels::table::Table;
use crate::cpu::part::part;
use bytemuck::cast_slice_mut;
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A result is looked up where its operations take at least so many of a vector unit's.
const LEAST_WORK: f64 = 16.0;

/// Values of a body that are looked up: the byte that each is a function of, and its table.
pub(super) fn tables(
    body: &Graph,
    held: &BTreeSet<ValueId>,
) -> BTreeMap<ValueId, (ValueId, Table)> {
    let roots = roots(body, held);
    let wanted = roots.iter().filter(|&(&value, root)| {
        let real = held.contains(&value) || body.ty(value).dtype == DType::F32;
        let inside = |reader: ValueId| roots.get(&reader) == Some(root);
        let readers = body.uses(value.node);
        let is_read = readers.iter().any(|(reader, _)| !inside(reader.value()));
        value != *root && real && (is_read || body.gives(value.node))
    });
    let found = wanted.filter_map(|(&value, &root)| {
        let (function, _) = part(body, &[value], |read| read == root)?;
        let work: f64 = function.nodes().map(|(_, node)| node.op().info().work).sum();
        (work >= LEAST_WORK).then(|| Some((value, (root, table(&function)?))))?
    });
    found.collect()
}

/// For each value that is a function of one held byte and of constants alone, that byte: the first one.
fn roots(body: &Graph, held: &BTreeSet<ValueId>) -> BTreeMap<ValueId, ValueId> {
    let mut roots: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for (id, node) in body.nodes() {
        let value = id.value();
        let read = node.inputs().iter().flatten().filter(|read| body.constant(**read).is_none());
        let mut read = read.map(|read| roots.get(read).copied());
        let first = read.next().flatten().filter(|first| read.all(|root| root == Some(*first)));
        let is_byte = matches!(body.ty(value).dtype, DType::U8 | DType::I8);
        if let Some(root) = first.or_else(|| (is_byte && held.contains(&value)).then_some(value)) {
            roots.insert(value, root);
        }
    }
    roots
}

/// The results of a function of one input, a byte.
fn table(function: &Graph) -> Option<Table> {
    let program = Loop::without_tables(function)?;
    let (&[(dtype, Class::F32)], &[(to, _)]) = (&program.inputs[..], &program.outputs[..]) else {
        return None;
    };
    let byte = |byte: u8| if dtype == DType::I8 { f32::from(byte as i8) } else { byte.into() };
    let bytes: Vec<f32> = (0..=255).map(byte).collect();
    let domain = Domain::over(&[bytes.len()], &[0], &[None]).ok()?;
    let mut workspace = Workspace::default();
    workspace.fit(&program);
    let mut run = |to: &mut [u8]| {
        let input = LoopInput::Tile(Elements::F32(&bytes));
        let tile = Tile::range(0..bytes.len());
        program.run_tile(&domain, tile, &[input], &mut [LoopOutput::Bytes(to)], &mut workspace);
    };
    let (mut reals, mut whole) = ([0.0; 256], [0; 256]);
    match to {
        DType::F32 => run(cast_slice_mut(&mut reals)),
        DType::U8 => {
            run(&mut whole);
            reals = whole.map(f32::from);
        }
        DType::I8 => {
            run(&mut whole);
            reals = whole.map(|x| f32::from(x as i8));
        }
        _ => return None,
    }
    Some(Table::new(reals))
}
