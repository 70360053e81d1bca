//! What the builder refuses.

use super::Builder;
use crate::{
    Completion, Error, Expr, IntTuple, Kind, Layout, Operand, Result, Scalar, Spec, Var, View,
    tensor::ViewOp, text::kind::row_of,
};

pub(super) fn refuse_if(wrong: bool, why: impl std::fmt::Display) -> Result {
    if wrong { Err(Error::Kernel(why.to_string())) } else { Ok(()) }
}

/// What there must be.
pub(super) fn known<T>(of: Option<T>, why: &str) -> Result<T> {
    of.ok_or_else(|| Error::Kernel(why.to_owned()))
}

/// The name of a tensor: letters, digits and `_`, as `%6` is one in the paper.
pub(super) fn word(name: &str) -> Result {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let fits = !name.is_empty() && name.bytes().all(part);
    refuse_if(!fits, format_args!("`{name}` is not a name: letters, digits and `_` are"))
}

/// The name of a variable or kernel, which code generation uses as it is.
pub(super) fn name(name: &str) -> Result {
    word(name)?;
    let digit = name.starts_with(|first: char| first.is_ascii_digit());
    refuse_if(digit, format_args!("the name `{name}` must not start with a digit"))
}

/// Variables are at least 0, by which expressions are simplified.
pub(super) fn not_negative(name: &str, value: &Expr) -> Result {
    let may_be = value.range().0 < Some(0);
    refuse_if(may_be, format_args!("@{name} may be negative: {value}; max(0, ...) is not"))
}

/// Threads and blocks are numbered from 0 on, without gaps.
pub(super) fn numbered(view: &View) -> Result {
    let mut extent = Expr::from(1);
    let mut left = view.leaves();
    left.retain(|leaf| !leaf.size.is(1));
    while let Some(at) = left.iter().position(|leaf| view.stride(leaf) == extent) {
        extent = extent * left.remove(at).size.clone();
    }
    refuse_if(!left.is_empty(), format_args!("{view} does not number its elements without gaps"))
}

pub(super) fn before_statements(k: &Builder) -> Result {
    let first = matches!(&k.scopes[..], [scope] if scope.stmts.is_empty());
    refuse_if(!first, "declared after the first statement")
}

/// Variables must be known here, and be those that are: of one name there may be several.
pub(super) fn expr(k: &Builder, expr: &Expr) -> Result {
    let known = |var: &Var| k.find_var(var.name()).is_some_and(|known| known.max() == var.max());
    if let Some(var) = expr.vars().into_iter().find(|var| !known(var)) {
        return Err(Error::Kernel(format!("no {var} here")));
    }
    let nothing = expr.divides_by_nothing();
    refuse_if(nothing, format_args!("{expr} divides by what is never positive"))
}

pub(super) fn view(k: &Builder, view: &View) -> Result {
    let levels: Vec<_> =
        view.strided().modes().iter().map(|level| level.modes().to_vec()).collect();
    let whole = View::levels_of(&levels) == *view;
    refuse_if(!whole, format_args!("{view} is not the view of a whole buffer"))?;
    levels.iter().flatten().try_for_each(|of| dim(k, of))?;
    refuse_if(levels.iter().any(Vec::is_empty), "a level without dimensions")
}

fn dim(k: &Builder, of: &Layout<Expr>) -> Result {
    if let Some(leaf) = of.as_leaf() {
        let (size, stride) = (&leaf.size, leaf.stride.number().unwrap_or_default());
        expr(k, size)?;
        expr(k, &stride)?;
        let below = |expr: &Expr, least| expr.constant().is_some_and(|value| value < least);
        refuse_if(below(size, 1), format_args!("a dimension of size {size}"))?;
        return refuse_if(below(&stride, 0), format_args!("a dimension of stride {stride}"));
    }
    refuse_if(of.rank() < 2, "a hierarchical dimension needs two parts")?;
    of.modes().iter().try_for_each(|mode| dim(k, mode))
}

pub(super) fn operand(k: &Builder, operand: &Operand) -> Result {
    let tensor = k.tensor_of(operand.tensor)?;
    if operand.index.is_empty() {
        return Ok(());
    }
    coords(k, &operand.index)?;
    tensor.apply(&ViewOp::Index(operand.index.clone())).map(drop)
}

fn coords(k: &Builder, all: &[IntTuple<Expr>]) -> Result {
    all.iter().try_for_each(|coord| match coord {
        IntTuple::Int(at) => expr(k, at),
        IntTuple::Tuple(inner) => coords(k, inner),
    })
}

pub(super) fn op(k: &Builder, op: &ViewOp) -> Result {
    match op {
        ViewOp::Index(at) => coords(k, at),
        ViewOp::Peer(block) => expr(k, block),
        ViewOp::Tile(_) | ViewOp::Reshape(..) | ViewOp::Scalar => Ok(()),
    }
}

/// A spec whose kind has so many results.
pub(super) fn spec(k: &Builder, spec: &Spec, outs: usize) -> Result {
    spec.operands().try_for_each(|of| operand(k, of))?;
    for out in &spec.outs {
        refuse_if(k.tensor_of(out.tensor)?.constant, "what is constant is not written")?;
    }
    if let Completion::Signals(barrier) = &spec.completion {
        operand(k, barrier)?;
        let tensor = k.tensor_of(barrier.tensor)?;
        let levels = tensor.view.levels().len();
        let one = levels == usize::from(!barrier.index.is_empty());
        let one = one && tensor.scalar == Scalar::Mbar;
        refuse_if(!one, format_args!("{tensor} is not one barrier to signal"))?;
    }
    k.tensor_of(spec.blocks)?;
    k.tensor_of(spec.threads)?;
    let row = row_of(&spec.kind);
    let nan = matches!(spec.kind, Kind::Init(number) if number.0.is_nan());
    refuse_if(nan, "nothing is set to NaN")?;
    let of_kind = match &spec.kind {
        Kind::Fused(fused) => Some((fused.outputs().len(), Some(fused.inputs()))),
        Kind::Fold(fold) => Some((fold.monoid.parts().len(), None)),
        _ => None,
    };
    let ins = spec.ins.len();
    let fits = of_kind.is_none_or(|(all, read)| all == outs && read.is_none_or(|read| read == ins));
    let (kind, fits) = (&spec.kind, fits && row.outs.contains(&outs) && row.ins.contains(&ins));
    refuse_if(!fits, format_args!("{kind} has not {outs} outputs and {ins} inputs"))?;
    spec.kind.exprs().into_iter().try_for_each(|value| expr(k, value))
}
