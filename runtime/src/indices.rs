//! Indices that a caller gives: which inputs of a program pick rows of tables, and whether they lie within them.
//!
//! A kernel on a GPU cannot refuse: it takes an index beyond a table for its first or last row. So what can be seen on
//! the host is checked there, when inputs are brought to the device, with the error that the CPU gives. That is every
//! input that is an index by way of changes of view and conversions between integers alone, in the step that reads the
//! table or in those before. Where an index is of several numbers (GatherND, ScatterND), it is checked if the axes that they
//! pick from are equally long. Others are not seen: those of axes of several sizes, those that are computed otherwise, and
//! those in memory of the caller's.

use crate::bind::{BoundOperand, Plan};
use crate::error::{Error, Result};
use graphene_frontend::dim::{Bindings, Dim};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::ValueId;
use graphene_frontend::op::Op;
use graphene_frontend::types::TensorType;
use graphene_fusion::program::{BufferId, BufferKind, Operand, Program, Step};

/// Elements of an input that are indices.
pub(crate) struct Indices {
    /// The program's input of this number.
    input: usize,
    /// The operand that reads it: this input of this step.
    read: (usize, usize),
    /// The types that the elements are converted to, in order.
    casts: Vec<DType>,
    /// The step that picks by them, by its place.
    step: usize,
    /// Elements of the axis that they pick from.
    extent: Dim,
}

/// All inputs of the program whose elements are indices, once for each table.
pub(crate) fn indices(program: &Program) -> Vec<Indices> {
    let mut found = Vec::new();
    for (number, step) in program.steps().iter().enumerate() {
        for (_, node) in step.body.nodes() {
            let (Some(Some(table)), Some(Some(index))) =
                (node.inputs().first(), node.inputs().get(1))
            else {
                continue;
            };
            let types = (step.body.ty(*table), step.body.ty(*index));
            let Some(extent) = extent(node.op(), types) else { continue };
            let mut source = Source { program, casts: Vec::new() };
            if let Some((input, read)) = source.of(number, *index) {
                let casts = source.casts.into_iter().rev().collect();
                found.push(Indices { input, read, casts, step: number, extent: extent.clone() });
            }
        }
    }
    found
}

/// Refuses tables without rows that something is picked from: there is no first or last row to take.
///
/// # Errors
/// [`Error::At`] around [`Error::Index`].
pub(crate) fn check_tables(program: &Program, bindings: &Bindings) -> Result<()> {
    for step in program.steps() {
        for (_, node) in step.body.nodes() {
            let &[Some(table), Some(index), ..] = node.inputs() else { continue };
            let types = (step.body.ty(table), step.body.ty(index));
            let Some(extent) = extent(node.op(), types) else { continue };
            if extent.eval(bindings)? == 0 && !types.1.bound_shape(bindings)?.contains(&0) {
                return Err(Error::Index { index: 0, size: 0 }.at(&step.name));
            }
        }
    }
    Ok(())
}

/// Elements of the axis, or of each of the axes, that an operation picks from by an index.
fn extent<'a>(op: &Op, (table, index): (&'a TensorType, &TensorType)) -> Option<&'a Dim> {
    let first = match op {
        Op::Gather { axis } | Op::GatherElements { axis } | Op::ScatterElements { axis, .. } => {
            return table.shape.get(*axis);
        }
        Op::GatherNd { batch_dims } => *batch_dims,
        Op::ScatterNd { .. } => 0,
        _ => return None,
    };
    let numbers = usize::try_from(index.shape.last()?.known()?).ok()?;
    let axes = table.shape.get(first..first.checked_add(numbers)?)?;
    axes.first().filter(|first| axes.iter().all(|axis| axis == *first))
}

/// A way back from a value to an input.
struct Source<'a> {
    program: &'a Program,
    /// Conversions met so far, the last one first.
    casts: Vec<DType>,
}

impl Source<'_> {
    /// The input that a value of a step's body is, but for order and type, and the operand that reads it.
    fn of(&mut self, step: usize, value: ValueId) -> Option<(usize, (usize, usize))> {
        let body = &self.program.steps()[step].body;
        let mut value = value;
        loop {
            let node = body.node(value.node);
            let whole_numbers = |dtype: DType| !dtype.is_float() && dtype != DType::Bool;
            match node.op() {
                Op::Input => break,
                // All elements stay, whatever their order.
                Op::Reshape(_) | Op::Transpose(_) | Op::Expand(_) => {}
                Op::Cast { to, .. } if whole_numbers(*to) => self.casts.push(*to),
                _ => return None,
            }
            value = node.inputs().first().copied().flatten()?;
            if !whole_numbers(body.ty(value).dtype) {
                return None;
            }
        }
        let number = body.inputs().iter().position(|input| *input == value.node)?;
        let read = &self.program.steps()[step].inputs[number];
        match self.program.buffer(read.buffer).kind {
            BufferKind::Input(input) => Some((input, (step, number))),
            BufferKind::Intermediate if covers(self.program, read) => {
                let (writer, output) = self.writer(step, read.buffer)?;
                self.of(writer, output)
            }
            BufferKind::Intermediate | BufferKind::Weight(_) | BufferKind::Output(_) => None,
        }
    }

    /// The step before this one that alone writes a buffer, all of it, and what it writes.
    fn writer(&self, before: usize, buffer: BufferId) -> Option<(usize, ValueId)> {
        let steps = self.program.steps();
        let outputs = |(i, step): (usize, &'_ Step)| {
            let mut writes = step.outputs.iter().zip(step.body.outputs());
            let found = writes.find(|(operand, _)| operand.buffer == buffer)?;
            Some((i, covers(self.program, found.0).then_some(found.1.1)))
        };
        let mut found = steps.iter().enumerate().filter_map(outputs);
        let (writer, value) = found.next().filter(|_| found.next().is_none())?;
        value.filter(|_| writer < before).map(|value| (writer, value))
    }
}

/// Whether a view has as many elements as its buffer.
fn covers(program: &Program, operand: &Operand) -> bool {
    let sizes = operand.view.modes.iter().map(|mode| &mode.size);
    let elements = sizes.product::<Dim>();
    elements == program.buffer(operand.buffer).elements
}

/// Whether the inputs' indices lie within their tables. `elements` gives an input's type and bytes, by its number; those that
/// it does not give are not looked at. Nothing is allocated.
///
/// # Errors
/// [`Error::At`] around [`Error::Index`] for the first step and index that do not.
pub(crate) fn check<'a>(
    indices: &[Indices],
    program: &Program,
    plan: &Plan,
    elements: impl Fn(usize) -> Option<(DType, &'a [u8])>,
) -> Result<()> {
    for row in indices {
        let (step, operand) = row.read;
        let operand = &plan.steps()[step].inputs[operand];
        let Some((dtype, bytes)) = elements(row.input) else { continue };
        let size = row.extent.eval(plan.bindings())?;
        let outside = |value: &i64| !(-size..size).contains(value);
        let values = each(operand).filter_map(|at| number(dtype, bytes, at));
        let mut index = values.map(|value| row.casts.iter().fold(value, cast));
        if let Some(index) = index.find(outside) {
            let size = usize::try_from(size).unwrap_or(0);
            let name = &program.steps()[row.step].name;
            return Err(Error::Index { index, size }.at(name));
        }
    }
    Ok(())
}

/// Where the elements lie that an operand reads, in row-major order.
fn each(operand: &BoundOperand) -> impl Iterator<Item = usize> + '_ {
    let count = operand.shape.iter().product::<usize>();
    (0..count).filter_map(|mut place| {
        let mut at = isize::try_from(operand.offset).ok()?;
        for (&size, &stride) in operand.shape.iter().zip(&operand.strides).rev() {
            at += isize::try_from(place % size).ok()? * stride;
            place /= size;
        }
        usize::try_from(at).ok()
    })
}

/// An element of a tensor of integers, by its place.
fn number(dtype: DType, bytes: &[u8], at: usize) -> Option<i64> {
    macro_rules! read {
        ($ty:ty) => {{
            let first = at.checked_mul(size_of::<$ty>())?;
            let bytes = bytes.get(first..)?.first_chunk()?;
            i64::from(<$ty>::from_le_bytes(*bytes))
        }};
    }
    Some(match dtype {
        DType::I64 => read!(i64),
        DType::I32 => read!(i32),
        DType::I16 => read!(i16),
        DType::I8 => read!(i8),
        DType::U32 => read!(u32),
        DType::U16 => read!(u16),
        DType::U8 => read!(u8),
        _ => return None,
    })
}

/// What conversion makes of a number: it is taken modulo the width.
fn cast(value: i64, to: &DType) -> i64 {
    match to {
        DType::I32 => i64::from(value as i32),
        DType::I16 => i64::from(value as i16),
        DType::I8 => i64::from(value as i8),
        DType::U32 => i64::from(value as u32),
        DType::U16 => i64::from(value as u16),
        DType::U8 => i64::from(value as u8),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::{check, check_tables, indices};
    use crate::bind::bind;
    use crate::cpu;
    use crate::error::Error;
    use graphene_frontend::dim::{Bindings, Symbol};
    use graphene_frontend::dtype::DType;
    use graphene_frontend::graph::Graph;
    use graphene_frontend::op::{Binary, Op, SliceAxis};
    use graphene_frontend::tensor::Tensor;
    use graphene_fusion::{Granularity, plan};

    /// Rows of a table of 5 by `ids[n, 2]`: by its first column as 32 bits, and by the sum of both.
    fn graph(sum: bool) -> Graph {
        let mut graph = Graph::new();
        let ids = graph.add_input("ids", "i64[n, 2]".parse().expect("a type")).expect("a type");
        let table = Tensor::from_vec(vec![5, 4], (0..20).map(|x| x as f32).collect());
        let table = graph.add_constant("table", table.expect("20 elements"));
        let mut column = |name: &str, start: i64| {
            let axis = SliceAxis { axis: 1, start: start.into(), len: 1.into(), step: 1 };
            let sliced =
                graph.add(name, Op::Slice(vec![axis]), &[Some(ids)]).expect("it is within");
            sliced.value()
        };
        let (first, second) = (column("first", 0), column("second", 1));
        let cast = Op::Cast { to: DType::I32, saturate: true };
        let index = match sum {
            false => graph.add("cast", cast, &[Some(first)]),
            true => graph.add("sum", Op::Binary(Binary::Add), &[Some(first), Some(second)]),
        };
        let index = index.expect("integers").value();
        let rows = graph.add("rows", Op::Gather { axis: 0 }, &[Some(table), Some(index)]);
        graph.add_output("y", rows.expect("a table and indices").value());
        graph
    }

    fn given<'a>(inputs: &'a [Tensor]) -> impl Fn(usize) -> Option<(DType, &'a [u8])> {
        move |number| inputs.get(number).map(|tensor| (tensor.dtype(), tensor.bytes()))
    }

    fn sized() -> Bindings {
        let mut bindings = Bindings::new();
        bindings.bind(Symbol::new("n"), 3).expect("it is new");
        bindings
    }

    #[test]
    fn indices_that_callers_give_are_checked_as_the_cpu_checks_them() {
        let rows: [([i64; 6], Option<i64>); 6] = [
            ([0, 9, 4, 9, -5, -9], None),
            ([0, 0, 5, 0, 0, 0], Some(5)),
            ([0, 0, 4, 0, -6, 0], Some(-6)),
            ([i64::from(i32::MAX), 0, 0, 0, 0, 0], Some(i64::from(i32::MAX))),
            // As 32 bits it is 1.
            ([(1 << 32) + 1, 0, 0, 0, 0, 0], None),
            ([1 << 31, 0, 0, 0, 0, 0], Some(-(1 << 31))),
        ];
        for target in ["cpu", "sm_90a"] {
            for granularity in [Granularity::Fused, Granularity::PerOp] {
                let target = target.parse().expect("a target");
                let planned = plan(&graph(false), &target, granularity, &Bindings::new());
                let program = planned.expect("it is planned").program;
                let found = indices(&program);
                assert_eq!(found.len(), 1, "{target} {granularity:?}\n{program}");
                let plan = bind(&program, &sized()).expect("it is bound");
                for (ids, wrong) in rows {
                    let input = [Tensor::from_vec(vec![3, 2], ids.to_vec()).expect("6 of them")];
                    let checked = check(&found, &program, &plan, given(&input));
                    let index = match &checked {
                        Err(Error::At { error, .. }) => match **error {
                            Error::Index { index, size: 5 } => Some(index),
                            _ => panic!("{checked:?}"),
                        },
                        Ok(()) => None,
                        Err(error) => panic!("{error}"),
                    };
                    assert_eq!(index, wrong, "{target} {granularity:?} {ids:?}");
                }
            }
        }
    }

    #[test]
    fn errors_are_those_of_the_cpu() {
        for granularity in [Granularity::Fused, Granularity::PerOp] {
            let target = "cpu".parse().expect("a target");
            let planned = plan(&graph(false), &target, granularity, &Bindings::new());
            let program = planned.expect("it is planned").program;
            let plan = bind(&program, &sized()).expect("it is bound");
            let input = [Tensor::from_vec(vec![3, 2], vec![0, 0, 7, 0, 0, 0_i64]).expect("6")];
            let ours = check(&indices(&program), &program, &plan, given(&input));
            let module = cpu::Module::compile(program).expect("it is compiled");
            let run = module.executable(&sized()).expect("it is bound").run(&input);
            assert_eq!(ours.expect_err("7 is outside"), run.expect_err("7 is outside"));
        }
    }

    /// Elements of a table by `ids[n, 2]`: of one that is square, and of one whose axes have two sizes.
    #[test]
    fn indices_of_several_numbers_are_checked_where_their_axes_are_alike() {
        for (columns, covered) in [(5, 1), (4, 0)] {
            let mut graph = Graph::new();
            let ids = graph.add_input("ids", "i64[n, 2]".parse().expect("a type")).expect("one");
            let table = Tensor::from_vec(vec![5, columns], vec![0_f32; 5 * columns]);
            let table = graph.add_constant("table", table.expect("as many elements"));
            let picked =
                graph.add("picked", Op::GatherNd { batch_dims: 0 }, &[Some(table), Some(ids)]);
            graph.add_output("y", picked.expect("a table and indices").value());
            for target in ["cpu", "sm_90a"] {
                let target = target.parse().expect("a target");
                let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new());
                let program = planned.expect("it is planned").program;
                let found = indices(&program);
                assert_eq!(found.len(), covered, "{target}\n{program}");
                let plan = bind(&program, &sized()).expect("it is bound");
                for (last, fits) in [(4, true), (-5, true), (5, false), (-6, false)] {
                    let ids = Tensor::from_vec(vec![3, 2], vec![0_i64, 1, 2, 3, 4, last]);
                    let checked = check(&found, &program, &plan, given(&[ids.expect("6 of them")]));
                    assert_eq!(checked.is_ok(), fits || covered == 0, "{target} {last}");
                }
            }
        }
    }

    #[test]
    fn tables_without_rows_give_none() {
        for (rows, n, fits) in [(0, 3, false), (0, 0, true), (5, 3, true)] {
            let mut graph = Graph::new();
            let ids = graph.add_input("ids", "i64[n]".parse().expect("a type")).expect("one");
            let table = graph.add_input("table", "f32[m, 4]".parse().expect("a type"));
            let table = table.expect("one");
            let picked = graph.add("rows", Op::Gather { axis: 0 }, &[Some(table), Some(ids)]);
            graph.add_output("y", picked.expect("a table and indices").value());
            let target = "sm_90a".parse().expect("a target");
            let planned = plan(&graph, &target, Granularity::Fused, &Bindings::new());
            let mut sizes = Bindings::new();
            sizes.fix(Symbol::new("n"), n).expect("it is new");
            sizes.fix(Symbol::new("m"), rows).expect("it is new");
            let checked = check_tables(&planned.expect("it is planned").program, &sizes);
            assert_eq!(checked.is_ok(), fits, "{rows} {n}");
        }
    }

    #[test]
    fn indices_that_are_computed_are_left_alone() {
        let target = "sm_90a".parse().expect("a target");
        let planned = plan(&graph(true), &target, Granularity::Fused, &Bindings::new());
        assert!(indices(&planned.expect("it is planned").program).is_empty());
    }
}
