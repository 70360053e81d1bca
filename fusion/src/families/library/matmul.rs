//! A step as one call of cuBLASLt.

use super::epilogue::{Activation, Chain, MATMUL, chain, whole_chain};
use super::optional_text;
use crate::base::elements::is_real;
use crate::base::groups::Family;
use crate::base::program::{Operand, Program, Step};
use crate::base::view::{Mode, View, stride};
use crate::families::kernels::{Pointer, StepOperand};
use graphene_frontend::{DType, Dim, Graph, NodeId, Op, TensorType, ValueId};
use graphene_ir::target::Target;
use std::fmt;

/// One call for a batch of matmuls: `result = activation(scale · a·b + addend + bias)`.
#[derive(Clone, PartialEq, Debug)]
pub struct MatMul {
    /// The elements of all operands; sums and the scale are of single precision.
    pub dtype: DType,
    /// Whether operands of single precision may be rounded to TF32.
    pub tf32: bool,
    /// How many matmuls there are.
    pub batch: Dim,
    /// Rows of A and of the result.
    pub rows: Dim,
    /// Columns of B and of the result.
    pub columns: Dim,
    /// Columns of A, and rows of B.
    pub depth: Dim,
    /// `[rows, depth]`.
    pub a: Matrix,
    /// `[depth, columns]`.
    pub b: Matrix,
    /// `[rows, columns]`.
    pub addend: Option<Matrix>,
    /// `[rows, columns]`.
    pub result: Matrix,
    /// A row of as many elements as there are columns, side by side.
    pub bias: Option<Pointer>,
    /// What matmuls are multiplied by.
    pub scale: f32,
    /// What is applied last.
    pub activation: Option<Activation>,
}

/// A batch of matrices in an operand's buffer.
#[derive(Clone, PartialEq, Debug)]
pub struct Matrix {
    /// Where its first element lies.
    pub pointer: Pointer,
    /// Elements from row to row, or from column to column where it is transposed; the others lie side by side.
    pub leading: Dim,
    /// Whether the elements of a column lie side by side.
    pub transposed: bool,
    /// Elements from one matrix to the next; zero where all are one.
    pub apart: Dim,
}

/// How matrices lie whose rows are the axes from `outer` on but for the last: the stride from row to row or column to
/// column, whether they are transposed, and the stride from matrix to matrix.
pub(super) fn lies(view: &View, outer: usize) -> Option<(Dim, bool, Dim)> {
    let [modes @ .., column] = &view.modes[..] else { return None };
    let (batch, rows) = modes.split_at(outer);
    let (apart, row) = (stride(batch)?, stride(rows)?);
    let one_row = rows.iter().all(|mode| mode.size == 1);
    let forward = |dim: &Dim| dim.lower_bound().is_some_and(|least| least >= 0);
    let usable = |dim: &Dim| dim.known() != Some(0) && forward(dim) && forward(&apart);
    if column.size == 1 || column.stride == 1 {
        // From the only row to the next it may be any distance.
        let leading = if one_row { column.size.clone() } else { row };
        return (usable(&leading)).then_some((leading, false, apart));
    }
    let transposed = (one_row || row == 1) && usable(&column.stride);
    transposed.then(|| (column.stride.clone(), true, apart))
}

/// Whether one call computes this matmul and all that follows it in a body, if operands lie as it takes them.
pub(crate) fn is_matmul_call(body: &Graph, id: NodeId) -> bool {
    whole_chain(body, id, MATMUL).is_some()
}

/// Whether one call computes these operations of a graph, a matmul among them.
pub(crate) fn are_matmul_call(graph: &Graph, operations: &[NodeId]) -> bool {
    let taken = |id| !operations.contains(&id);
    let first = operations.iter().find(|id| *graph.node(**id).op() == Op::MatMul);
    first.is_some_and(|&id| chain(graph, id, MATMUL, &taken).nodes.len() == operations.len())
}

/// The call that computes a step on a target, if one does.
pub fn matmul(program: &Program, step: &Step, target: &Target) -> Option<MatMul> {
    let body = &*step.body;
    let (id, node) = body.nodes().find(|(_, node)| *node.op() == Op::MatMul)?;
    let TensorType { dtype, shape } = body.ty(id.value());
    if step.family != Family::MatMul || !is_real(*dtype) {
        return None;
    }
    let Chain { scale, bias, addend, activation, .. } = whole_chain(body, id, MATMUL)?;
    let read = |value: ValueId| read(program, step, value, *dtype);
    let (a, b) = (read(node.input(0)?)?, read(node.input(1)?)?);
    let (addend, bias) = (if_any(addend, read)?, if_any(bias, |value| row(read(value)?))?);
    let result = (StepOperand::Output(0), step.outputs.first()?);
    let outer = shape.len().checked_sub(2)?;
    let (batch, [rows, columns]) = shape.split_at(outer) else { return None };
    let depth = &a.1.view.modes.last()?.size;
    let expanded = |(_, of): Given<'_>, last: [&Dim; 2]| {
        of.view.expand(&batch.iter().chain(last).cloned().collect::<Vec<_>>())
    };
    // As one matrix of all rows, if all of them share B, or as a batch.
    let call = |one: bool| {
        let matrix = |given: Given<'_>, view: View| {
            let (leading, transposed, apart) = lies(&view, if one { 0 } else { outer })?;
            let pointer = Pointer { operand: given.0, offset: view.offset };
            Some(Matrix { pointer, leading, transposed, apart })
        };
        let in_rows =
            |given| matrix(given, expanded(given, [rows, columns])?).filter(|of| !of.transposed);
        let mut of_b = expanded(b, [depth, columns])?;
        if one {
            let own = of_b.modes.split_off(outer);
            let shared = |mode: &Mode| mode.stride == 0 || mode.size == 1;
            of_b.modes.iter().all(shared).then_some(())?;
            of_b.modes = own;
        }
        let all = |dims: &[Dim]| dims.iter().product::<Dim>();
        Some(MatMul {
            dtype: *dtype,
            tf32: *dtype == DType::F32 && target.tf32,
            batch: if one { Dim::from(1) } else { all(batch) },
            rows: if one { all(&shape[..=outer]) } else { rows.clone() },
            columns: columns.clone(),
            depth: depth.clone(),
            a: matrix(a, expanded(a, [rows, depth])?)?,
            b: matrix(b, of_b)?,
            addend: if_any(addend, in_rows)?,
            result: in_rows(result)?,
            bias: bias.clone(),
            scale,
            activation,
        })
    };
    call(true).or_else(|| call(false))
}

/// What a function finds of a value, if there is one; `None` if it finds nothing of one that is there.
pub(super) fn if_any<T, U>(
    value: Option<T>,
    find: impl FnOnce(T) -> Option<U>,
) -> Option<Option<U>> {
    value.map_or(Some(None), |value| find(value).map(Some))
}

pub(super) type Given<'a> = (StepOperand, &'a Operand);

/// The operand that a step reads a value of its body from, if it has such elements.
pub(super) fn read<'a>(
    program: &Program,
    step: &'a Step,
    value: ValueId,
    dtype: DType,
) -> Option<Given<'a>> {
    let number = step.body.place_of_input(value)?;
    let operand = &step.inputs[number];
    let same = program.buffer(operand.buffer).dtype == dtype;
    same.then_some((StepOperand::Input(number), operand))
}

/// A row of elements side by side.
fn row((operand, Operand { view, .. }): Given<'_>) -> Option<Pointer> {
    let (last, outer) = view.modes.split_last()?;
    let row = last.stride == 1 && outer.iter().all(|mode| mode.size == 1 || mode.stride == 0);
    row.then(|| Pointer::to(operand, view))
}

/// Prints as `b × [s, 64]·[64, s] f16: 0.125·in0[64, 64*s apart]·in1'[64, 64*s apart] + in2 row -> Relu`: the leading
/// strides, and an apostrophe at what is transposed.
impl fmt::Display for MatMul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, rows, columns, depth, a, b, result, .. } = self;
        let batch = optional_text("", Some(&self.batch).filter(|batch| **batch != 1), " × ");
        let rounded = if self.tf32 { " as tf32" } else { "" };
        write!(f, "{batch}[{rows}, {depth}]·[{depth}, {columns}] {dtype}{rounded}: ")?;
        let scale = optional_text("", Some(self.scale).filter(|scale| *scale != 1.0), "·");
        let addend = optional_text(" + ", self.addend.as_ref(), "");
        let bias = optional_text(" + ", self.bias.as_ref(), " row");
        let activation = self.activation.map(|activation| format!(", {activation:?}"));
        write!(f, "{scale}{a}·{b}{addend}{bias}{} -> {result}", activation.unwrap_or_default())
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let turned = if self.transposed { "'" } else { "" };
        let apart = optional_text(", ", Some(&self.apart).filter(|apart| **apart != 0), " apart");
        write!(f, "{}{turned}[{}{apart}]", self.pointer, self.leading)
    }
}
