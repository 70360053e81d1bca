//! Running sums and products along an axis.

use super::operand::{Axes, spread};
use super::{Dims, Launch, Refusal, Site, StepOperand, WIDTH, made};
use crate::base::view::View;
use graphene_frontend::op::{CumulativeOp, Op};
use graphene_frontend::{Dim, Graph};
use graphene_ir::kernel::Binary;
use graphene_ir::template::scan::Scan;
use graphene_ir::tensor::Scalar;

/// Whether a body has a running reduction.
pub(super) fn is_one(body: &Graph) -> bool {
    body.nodes().any(|(_, node)| matches!(node.op(), Op::Cumulative { .. }))
}

/// The launch of a step that is one running reduction.
pub(super) fn launch(site: &Site<'_>) -> Result<Launch, Refusal> {
    let others = Refusal::Operation("a scan with other operations");
    let node = site.step.body.only_operation().ok_or(others)?;
    let Op::Cumulative { op, axis, exclusive, reverse } = *node.op() else {
        return Err(Refusal::Operation(node.op().name()));
    };
    let (x, y) = (site.operand(StepOperand::Input(0))?, site.operand(StepOperand::Output(0))?);
    let pointers = vec![x.pointer(), y.pointer()];
    let (from, to) = (x.scalar, y.scalar);
    let numbers = match (from.is_float(), to.is_float()) {
        (true, true) => Scalar::F32,
        (false, false) => Scalar::I64,
        _ => return Err(Refusal::Operation("a scan that converts")),
    };
    // The axis goes last.
    let rank = y.view.modes.len();
    let order: Vec<usize> = (0..rank).filter(|&at| at != axis).chain([axis]).collect();
    let x = spread(x.view, &y.view.shape())?.transpose(&order);
    let y = y.view.transpose(&order);
    let strides = |view: &View| view.modes.iter().map(|mode| mode.stride.clone()).collect();
    let axes = Axes { sizes: y.shape(), strides: vec![strides(&x), strides(&y)] };
    let mut dims: Dims = axes.named("N").collect();
    let offsets: Vec<&Dim> = pointers.iter().map(|pointer| &pointer.offset).collect();
    let vector = axes.vector(&offsets, WIDTH / from.bytes().max(to.bytes()));
    let scan = Scan {
        arch: site.arch,
        op: match op {
            CumulativeOp::Sum => Binary::Add,
            CumulativeOp::Prod => Binary::Mul,
        },
        numbers,
        x: axes.access(0, "x", from, &mut dims),
        y: axes.access(1, "y", to, &mut dims),
        exclusive,
        reverse,
        vector,
        ..Scan::default()
    };
    Ok(site.launch(made!(scan)?, &dims, pointers))
}
