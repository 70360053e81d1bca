//! Recurrent layers: all steps in one launch.

use super::function::unary;
use super::{
    Dims, Launch, Pointer, Refusal, Scratch, Site, StepOperand, TypedOperand, WIDTH, by_name,
    ensure, made, tiles,
};
use crate::base::sizes::{ceil, is_multiple};
use graphene_frontend::op::{Op, RnnAttrs, RnnCell, RnnDirection};
use graphene_frontend::{Dim, Node};
use graphene_ir::kernel::Binary;
use graphene_ir::template::matmul::Edges;
use graphene_ir::template::recurrent::{Cell, Direction, Recurrent};
use graphene_ir::{Function, Scalar};

/// Places of a layer's inputs, as [`Op::Rnn`] has them.
const X: usize = 0;
const W: usize = 1;
const R: usize = 2;
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const H0: usize = 5;
const C0: usize = 6;
const PEEPHOLES: usize = 7;

/// The launch of a step of one recurrent layer.
pub(super) fn launch(site: &Site<'_>) -> Result<Launch, Refusal> {
    let body = &site.step.body;
    let mut layers = body.nodes().filter_map(|(id, node)| match node.op() {
        Op::Rnn(attrs) => Some((id, node, attrs)),
        _ => None,
    });
    let (id, node, attrs) = layers.next().ok_or(Refusal::Operation("a layer of nothing"))?;
    let given = body.given();
    let alone = layers.next().is_none() && given.iter().all(|value| value.node == id);
    ensure(alone, Refusal::Operation("a recurrent layer with what follows it"))?;
    let mut operands = Operands { site, node, pointers: Vec::new(), aligned: true };

    let (scalar, x) = operands.read(X)?;
    let [steps, batch, inputs] = &x[..] else {
        return Err(Refusal::Layout("a sequence of no three dims"));
    };
    let known = inputs.known().ok_or(Refusal::Layout("inputs whose number is a symbol"))?;
    let result = |number: u32| given.iter().position(|value| value.output == number);
    let results = [0, 1, 2].map(result);
    let aligned = |size: i64| size * scalar.bytes() % WIDTH == 0;
    let hidden = i64::try_from(attrs.hidden).map_err(|_| Refusal::Layout("too many units"))?;
    let layer = Recurrent {
        scalar,
        arch: site.arch,
        cell: cell(attrs, operands.has(PEEPHOLES))?,
        direction: direction(attrs),
        inputs: known,
        hidden,
        bias: operands.has(BIAS),
        initial: [operands.has(H0), operands.has(C0)],
        ragged: operands.has(LENGTHS),
        results: results.map(|result| result.is_some()),
        ..Recurrent::default()
    };
    // In the order of the kernel's parameters.
    for place in [W, R, BIAS, H0, C0, PEEPHOLES] {
        if operands.has(place) {
            operands.read(place)?;
        }
    }
    let whole = operands.aligned && aligned(known) && aligned(hidden);
    if layer.ragged {
        // They move one by one, wherever they begin.
        operands.read(LENGTHS)?;
    }
    let edges = if whole { Edges::Bulk } else { Edges::Moves };
    let layer = fitting(site, Recurrent { edges, ..layer }, batch)?;

    let rows = tiles(batch, layer.rows);
    let directions = Dim::from(layer.directions());
    let mut scratch = Vec::new();
    let mut add_scratch = |operands: &mut Operands<'_>, scalar, elements| {
        let operand = StepOperand::Scratch(scratch.len());
        operands.pointers.push(Pointer { operand, offset: Dim::from(0) });
        scratch.push(Scratch { scalar, elements });
    };
    if layer.blocks() > layer.directions() {
        add_scratch(&mut operands, Scalar::U32, &directions * &rows);
    }
    let states = &(&directions * batch) * &Dim::from(hidden);
    if layer.cell.reset.is_some() {
        add_scratch(&mut operands, scalar, states.clone());
    }
    if layer.ragged || results[0].is_none() {
        add_scratch(&mut operands, scalar, &states * &Dim::from(2));
    }
    for place in results.into_iter().flatten() {
        operands.write(place)?;
    }
    let cores = i64::from(site.target.cores);
    let parts = rows.minimum(&Dim::from((cores / layer.blocks()).max(1)));
    let sizes = [("steps", steps.clone()), ("batch", batch.clone()), ("parts", parts)];
    let launch = site.launch(made!(layer)?, &Dims::from(by_name(sizes)), operands.pointers);
    Ok(Launch { scratch, ..launch })
}

/// The layer with rows for a batch, if blocks enough can be resident together.
fn fitting(site: &Site<'_>, layer: Recurrent, batch: &Dim) -> Result<Recurrent, Refusal> {
    let cores = i64::from(site.target.cores);
    let shared = i64::try_from(site.target.shared_memory_per_block).unwrap_or(i64::MAX);
    let single = layer.scalar == Scalar::F32;
    let (depth, rows) = (if single { 32 } else { 64 }, rows(batch.known(), single));
    let of_rows = |rows| Recurrent { rows, depth, ..layer.clone() }.fitting(cores, shared);
    let mut found = [rows, most_rows(single)].into_iter().filter_map(of_rows);
    found.next().ok_or(Refusal::Layout("more units than blocks that are resident together take"))
}

/// Sequences that blocks take through a step together: of a batch, if it is known; and where that is not.
fn rows(batch: Option<i64>, single: bool) -> i64 {
    let most = most_rows(single);
    match batch {
        Some(batch) if batch <= most / 2 => most / 2,
        Some(batch) if batch >= 128 && !single => 128,
        _ => most,
    }
}

fn most_rows(single: bool) -> i64 {
    if single { 16 } else { 32 }
}

/// The blocks of a layer over so many sequences, whose number the kernel knows or not; `None` for what has no kernel.
pub(crate) fn blocks(
    attrs: &RnnAttrs,
    scalar: Scalar,
    (batch, known): (i64, bool),
    cores: i64,
) -> Option<i64> {
    let (cell, hidden) = (cell(attrs, false).ok()?, i64::try_from(attrs.hidden).ok()?);
    let layer =
        Recurrent { scalar, cell, hidden, direction: direction(attrs), ..Recurrent::default() };
    let of_part = layer.spread(cores).blocks();
    let rows = rows(known.then_some(batch), scalar == Scalar::F32);
    Some(of_part * ceil(batch, rows).min((cores / of_part).max(1)))
}

fn direction(attrs: &RnnAttrs) -> Direction {
    match attrs.direction {
        RnnDirection::Forward => Direction::Forward,
        RnnDirection::Reverse => Direction::Reverse,
        RnnDirection::Bidirectional => Direction::Both,
    }
}

/// What a unit computes.
fn cell(attrs: &RnnAttrs, peepholes: bool) -> Result<Cell, Refusal> {
    let directions = if attrs.direction == RnnDirection::Bidirectional { 2 } else { 1 };
    let (own, other) = attrs.activations.split_at(attrs.activations.len() / directions);
    let alike = directions == 1 || own == other;
    ensure(alike, Refusal::Operation("directions with activations of their own"))?;
    // Gates and candidates are clipped before their activation, an LSTM's state is not.
    let clipped = |i: usize| match attrs.clip {
        Some(clip) if i < 2 => clipped(f64::from(clip)),
        Some(_) | None => Function::identity(),
    };
    let of = own.iter().enumerate().map(|(i, &op)| unary(op, clipped(i)));
    let of = of.collect::<Result<Vec<_>, _>>()?;
    match (attrs.cell, &of[..]) {
        (RnnCell::Lstm { input_forget }, [f, g, h]) if peepholes => {
            Ok(Cell::lstm_with_peepholes(f, g, h, input_forget))
        }
        (RnnCell::Lstm { input_forget }, [f, g, h]) => Ok(Cell::lstm(f, g, h, input_forget)),
        (RnnCell::Gru { linear_before_reset: true }, [f, g]) => Ok(Cell::gru(f, g)),
        (RnnCell::Gru { linear_before_reset: false }, [f, g]) => Ok(Cell::gru_reset_first(f, g)),
        (RnnCell::Plain, [f]) => Ok(Cell::plain(f)),
        _ => Err(Refusal::Operation("a layer that lacks an activation")),
    }
}

/// A number no larger than `clip`, and then no smaller than its negative.
fn clipped(clip: f64) -> Function {
    let x = Function::identity;
    let below = x().binary(Binary::Less, -clip).select(-clip, x());
    Function::constant(clip).binary(Binary::Less, x()).select(clip, below)
}

/// A layer's operands, in the order of the kernel's parameters.
struct Operands<'a> {
    site: &'a Site<'a>,
    node: &'a Node,
    pointers: Vec<Pointer>,
    /// Whether all begin at multiples of what an instruction moves at most.
    aligned: bool,
}

impl Operands<'_> {
    fn has(&self, place: usize) -> bool {
        self.node.input(place).is_some()
    }

    fn read(&mut self, place: usize) -> Result<(Scalar, Vec<Dim>), Refusal> {
        let computed = "a layer of a value that the launch itself computes";
        self.push(self.site.read(self.node.input(place), computed)?)
    }

    fn write(&mut self, number: usize) -> Result<(), Refusal> {
        self.push(self.site.operand(StepOperand::Output(number))?).map(drop)
    }

    fn push(&mut self, operand: TypedOperand<'_>) -> Result<(Scalar, Vec<Dim>), Refusal> {
        let TypedOperand { scalar, view, .. } = operand;
        ensure(view.is_contiguous(), Refusal::Layout("operands of a layer that are not packed"))?;
        self.aligned &= is_multiple(&view.offset, WIDTH / scalar.bytes());
        self.pointers.push(operand.pointer());
        Ok((scalar, view.shape()))
    }
}
