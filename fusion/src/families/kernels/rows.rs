//! Rows: LayerNorm, RMSNorm and softmax, with what is computed before and after; rows of tables by indices.

use super::function::{Walk, function, function_after, leaves};
use super::operand::Matrix;
use super::{Dims, Launch, Pointer, Refusal, Site, StepOperand, TypedOperand, WIDTH, ensure, made};
use crate::families::grids::halved;
use graphene_frontend::dim::Dim;
use graphene_frontend::graph::{Graph, Node, ValueId};
use graphene_frontend::op::Op;
use graphene_ir::kernel::Number;
use graphene_ir::template::access::Access;
use graphene_ir::template::gather::Place;
use graphene_ir::template::rows::{Norm, Rows};
use graphene_ir::tensor::Scalar;

/// Rows of a table at most: a register of 32 bits has the number of one.
const ROWS: i64 = i32::MAX as i64;

/// The launch of a step with a normalisation of rows, or with rows of tables, or both.
pub(super) fn launch(site: &Site<'_>) -> Result<Launch, Refusal> {
    let body = &site.step.body;
    let Normalisation { value, result, norm, axis, epsilon, affine } = normalisation(body)?;
    let (results, sum) = outputs(body, value, result)?;
    let shape = &body.ty(value).shape;

    let (all, indices) = (Vec::new(), Vec::new());
    let mut operands = Operands { site, axis, shape, all, indices, dims: Dims::new(), vector: 8 };
    let table = |value: ValueId| match body.node(value.node).op() {
        Op::Gather { axis: 0 } => Walk::Found,
        _ => Walk::On,
    };
    let before = leaves(body, &[value], &table);
    let prologue = function(body, &[value], &before)?;
    let sources = before.iter().enumerate();
    let sources = sources.map(|(i, &value)| operands.source(&format!("x{i}"), value));
    let (ins, mut places): (Vec<_>, Vec<_>) =
        sources.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    if places.iter().all(|place| *place == Place::Same) {
        places.clear();
    }
    let sum = sum.map(|number| operands.result("sum", number)).transpose()?;
    let [scale, shift] = affine;
    let scale = operands.line("scale", scale)?;
    let shift = operands.line("shift", shift)?;
    let given: Vec<ValueId> = results.iter().map(|&number| body.outputs()[number].1).collect();
    let (epilogue, after) = function_after(body, &given, result)?;
    let mut extras = Vec::new();
    for (i, &value) in after.iter().enumerate() {
        let operand = site.read(Some(value), "no operand")?;
        extras.push(operands.add(&format!("e{}", i + 1), operand)?);
    }
    let mut outs = Vec::new();
    for (i, &number) in results.iter().enumerate() {
        let name = if i == 0 { "y".to_owned() } else { format!("y{i}") };
        outs.push(operands.result(&name, number)?);
    }
    let more = outs.split_off(1);

    let columns = shape[axis..].iter().product::<Dim>();
    let rows = shape[..axis].iter().product::<Dim>();
    let vector = operands.vector_of(&columns);
    let Operands { all, indices, mut dims, .. } = operands;
    dims.insert("rows".to_owned(), rows);
    let known = columns.known();
    let template = Rows {
        arch: site.arch,
        norm,
        columns: known,
        prologue,
        ins,
        places,
        sum,
        scale,
        shift,
        epilogue,
        extras,
        out: outs.remove(0),
        more,
        epsilon: Number(f64::from(epsilon)),
        vector,
        ..Rows::default()
    };
    let template = match known {
        Some(columns) => template.fitting(columns),
        // Rows of any length are read again for each pass.
        None => Rows { held: None, threads: 128, teams: 1, ..template }.ahead(),
    };
    dims.insert("columns".to_owned(), columns);
    let rows = all.into_iter().map(|(operand, matrix)| Pointer { operand, offset: matrix.offset });
    Ok(site.launch(made!(template)?, &dims, rows.chain(indices).collect()))
}

/// What is normalised in a body, and how.
struct Normalisation {
    value: ValueId,
    /// What that gives.
    result: ValueId,
    norm: Norm,
    /// The first axis of the columns.
    axis: usize,
    epsilon: f32,
    /// The scale and the shift.
    affine: [Option<ValueId>; 2],
}

/// The normalisation of a body; rows of tables need none.
fn normalisation(body: &Graph) -> Result<Normalisation, Refusal> {
    let mut found = body.nodes().filter_map(|(id, node)| {
        let rank = body.ty(id.value()).shape.len();
        let (norm, axis, epsilon) = match *node.op() {
            Op::LayerNorm { axis, epsilon } => (Norm::Layer, axis, epsilon),
            Op::RmsNorm { axis, epsilon } => (Norm::Rms, axis, epsilon),
            Op::Softmax { axis, log } if axis + 1 == rank => {
                (if log { Norm::LogSoftmax } else { Norm::Softmax }, axis, 0.0)
            }
            _ => return None,
        };
        let (value, result) = (node.input(0)?, id.value());
        let affine = [node.input(1), node.input(2)];
        Some(Normalisation { value, result, norm, axis, epsilon, affine })
    });
    match (found.next(), found.next()) {
        (Some(one), None) => return Ok(one),
        (Some(_), Some(_)) => return Err(Refusal::Operation("several normalisations")),
        (None, _) => {}
    }
    let mut gathers = body.nodes().filter_map(|(_, node)| match node.op() {
        Op::Gather { axis: 0 } => node.input(0),
        _ => None,
    });
    let [(_, value)] = body.outputs() else { return Err(Refusal::Operation("several outputs")) };
    // What is one after the other in the table is a row, of however many axes.
    let row = gathers.next().and_then(|table| body.ty(table).rank().checked_sub(1));
    match row.and_then(|row| body.ty(*value).rank().checked_sub(row)) {
        Some(axis) => Ok(Normalisation {
            value: *value,
            result: *value,
            norm: Norm::None,
            axis,
            epsilon: 0.0,
            affine: [None; 2],
        }),
        None => Err(Refusal::Operation(first_operation(body))),
    }
}

/// What stands first in a body that is no function of rows.
fn first_operation(body: &Graph) -> &'static str {
    let mut nodes = body.nodes().map(|(_, node)| node);
    match nodes.find(|node| node.is_operation()).map(Node::op) {
        Some(Op::Gather { .. } | Op::Softmax { .. }) | None => "rows along another axis",
        Some(Op::LayerNorm { .. }) => "a LayerNorm's statistics",
        Some(op) => op.name(),
    }
}

/// Which of the body's outputs are made of the result, at least one, and which is what is normalised.
fn outputs(
    body: &Graph,
    value: ValueId,
    result: ValueId,
) -> Result<(Vec<usize>, Option<usize>), Refusal> {
    let is_sum = |number: &usize| body.outputs()[*number].1 == value && value != result;
    let (sums, results): (Vec<usize>, Vec<usize>) =
        (0..body.outputs().len()).partition(|number| is_sum(number));
    match (&sums[..], results.is_empty()) {
        (_, true) | ([_, _, ..], _) => Err(Refusal::Operation("rows with other outputs")),
        _ => Ok((results, sums.first().copied())),
    }
}

/// Operands as matrices of rows, in the order in which they are added.
struct Operands<'a> {
    site: &'a Site<'a>,
    axis: usize,
    shape: &'a [Dim],
    all: Vec<(StepOperand, Matrix)>,
    /// Of rows of tables.
    indices: Vec<Pointer>,
    dims: Dims,
    /// Elements that the widest type lets a thread move at once.
    vector: i64,
}

impl Operands<'_> {
    fn result(&mut self, name: &str, number: usize) -> Result<Access, Refusal> {
        self.add(name, self.site.operand(StepOperand::Output(number))?)
    }

    fn add(&mut self, name: &str, of: TypedOperand<'_>) -> Result<Access, Refusal> {
        let matrix = Matrix::of(of.view, self.shape, self.axis)?;
        ensure(matrix.period.is_none(), Refusal::Layout("rows that repeat"))?;
        Ok(self.push(name, of, matrix))
    }

    fn push(&mut self, name: &str, of: TypedOperand<'_>, matrix: Matrix) -> Access {
        let access = matrix.access(name, of.scalar, &mut self.dims);
        self.vector = self.vector.min(WIDTH / of.scalar.bytes());
        self.all.push((of.operand, matrix));
        access
    }

    /// An input of the prologue, and where its rows are: those of an operand, or of a table.
    fn source(&mut self, name: &str, value: ValueId) -> Result<(Access, Place), Refusal> {
        let node = self.site.step.body.node(value.node);
        if let Op::Gather { .. } = node.op() {
            return self.table(name, node);
        }
        let operand = self.site.read(Some(value), "no operand")?;
        let matrix = Matrix::of(operand.view, self.shape, self.axis)?;
        let place = match &matrix.period {
            None => Place::Same,
            Some(rows) => {
                self.dims.insert(format!("{name}_rows"), rows.clone());
                Place::Repeated
            }
        };
        Ok((self.push(name, operand, matrix), place))
    }

    /// The rows of a table that indices say, one for each row.
    fn table(&mut self, name: &str, node: &Node) -> Result<(Access, Place), Refusal> {
        let computed = "a table or indices that the launch itself computes";
        let given = |place| self.site.read(node.input(place), computed);
        let (table, indices) = (given(0)?, given(1)?);
        let own = table.view.shape();
        let fits = own.get(1..).is_some_and(|row| *row == self.shape[self.axis..]);
        ensure(fits, Refusal::Layout("rows of a table that are not those of the result"))?;
        let matrix = Matrix::of(table.view, &own, 1)?;
        let counted = own[0].lower_bound().is_none_or(|rows| rows <= ROWS);
        ensure(counted, Refusal::Layout("a table of 2³¹ rows or more"))?;
        self.dims.insert(format!("{name}_rows"), own[0].clone());
        let line = Matrix::of(indices.view, &self.shape[..self.axis], self.axis)?;
        let contiguous = line.row == 1 && line.period.is_none();
        ensure(contiguous, Refusal::Layout("indices that are not contiguous"))?;
        let access = self.push(name, table, matrix);
        self.indices.push(Pointer { operand: indices.operand, offset: line.offset });
        Ok((access, Place::Index(indices.scalar)))
    }

    /// A vector along the columns.
    fn line(&mut self, name: &str, value: Option<ValueId>) -> Result<Option<Scalar>, Refusal> {
        let Some(value) = value else { return Ok(None) };
        let operand = self.site.read(Some(value), "a scale that the launch itself computes")?;
        self.add(name, operand)?;
        match self.all.last() {
            Some((_, matrix)) if matrix.row == 0 && matrix.column == 1 => Ok(Some(operand.scalar)),
            _ => Err(Refusal::Layout("a scale that is no vector")),
        }
    }

    /// Elements of a vector that all operands can be read by.
    fn vector_of(&self, columns: &Dim) -> i64 {
        let aligned = |vector| self.all.iter().all(|(_, of)| of.is_aligned(vector, columns));
        halved(self.vector, aligned)
    }
}
