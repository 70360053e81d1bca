//! Types, and the operations that give a view of a view.

use super::cursor::Parser;
use super::expr::{coords, expr, trees};
use crate::{
    Agent, Builder, Error, Expr, IntTuple, Layout, Memory, Result, Scalar, Swizzle, Tensor,
    Threads, Tiler, View, tensor::ViewOp,
};

/// `[2,2:2,16].[2,4:1,4].fp32.GL`
pub(super) fn tensor_type(p: &mut Parser<'_>, k: &Builder) -> Result<Tensor> {
    let view = levels(p, k)?;
    let scalar = p.row("a scalar type", &Scalar::ALL)?;
    let memory = p.after(".", |p| p.row("a memory", &Memory::ALL))?;
    let mut tensor = Tensor::new(view, scalar, memory);
    if p.sees(".S<") {
        tensor.swizzle = Some(p.within([".S<", ">"], |p| {
            p.placed(|p| {
                let (bits, base) = (p.integer()?, p.after_comma(Parser::integer)?);
                Swizzle::new(bits, base, p.after_comma(Parser::integer)?)
            })
        })?);
    }
    if p.sees(".peer(") {
        tensor.peer = Some(p.within([".peer(", ")"], |p| expr(p, k))?);
    }
    tensor.constant = p.eat(".const");
    tensor.scratch = p.eat(".scratch");
    Ok(tensor)
}

/// `[4:8].[8:1].thread`
pub(super) fn threads_type(p: &mut Parser<'_>, k: &Builder) -> Result<Threads> {
    let view = levels(p, k)?;
    let agent = p.row("`thread` or `block`", &Agent::ALL)?;
    Ok(Threads { view, agent })
}

/// Levels, and the dot behind them.
fn levels(p: &mut Parser<'_>, k: &Builder) -> Result<View> {
    let mut levels: Vec<Vec<Layout<Expr>>> = Vec::new();
    if p.eat("[]") {
        return p.expect(".").map(|()| View::buffer(&[]));
    }
    while levels.is_empty() || p.sees("[") {
        let level = p.placed(|p| {
            let [sizes, strides] = p.within(["[", "]"], |p| {
                Ok([trees(p, k)?, p.after(":", |p| trees(p, k))?].map(IntTuple::Tuple))
            })?;
            Layout::new(&sizes, &strides).map_err(|error| match error {
                Error::Profile { .. } => unpaired(),
                error => error,
            })
        })?;
        levels.push(level.modes().to_vec());
        p.expect(".")?;
    }
    Ok(View::levels_of(&levels))
}

/// `.tile(128, _)` and its like.
pub(super) fn view_op(p: &mut Parser<'_>, k: &Builder) -> Result<ViewOp> {
    if p.sees("[") {
        return coords(p, k).map(ViewOp::Index);
    }
    p.expect(".")?;
    let at = p.next();
    let op = p.word().unwrap_or_default();
    p.expect("(")?;
    let op = match op {
        "tile" => ViewOp::Tile(p.list(tile)?),
        "reshape" => {
            let at = p.next();
            let depth = usize::try_from(p.natural()?)
                .map_err(|_| p.fail(at, "expected a level's number"))?;
            let mut dims = Vec::new();
            while p.eat(",") {
                dims.push(modes(p)?);
            }
            ViewOp::Reshape(depth, dims)
        }
        "scalar" => ViewOp::Scalar,
        "peer" => ViewOp::Peer(expr(p, k)?),
        _ => return Err(p.fail(at, "expected `tile`, `reshape`, `scalar` or `peer`")),
    };
    p.expect(")")?;
    Ok(op)
}

fn tile(p: &mut Parser<'_>) -> Result<Tiler> {
    if p.eat_word("_") { Ok(Tiler::Whole) } else { modes(p).map(Tiler::from) }
}

/// `8`, `8:2` or `(4,2):(1,16)`
fn modes(p: &mut Parser<'_>) -> Result<Layout> {
    p.placed(|p| {
        if !p.sees("(") {
            let size = p.natural()?;
            return Layout::mode(size, if p.eat(":") { p.natural()? } else { 1 });
        }
        let naturals = |p: &mut Parser<'_>| p.within(["(", ")"], |p| p.list(Parser::natural));
        let (sizes, strides) = (naturals(p)?, p.after(":", naturals)?);
        if sizes.len() != strides.len() {
            return Err(unpaired());
        }
        Layout::of_modes(&sizes.into_iter().zip(strides).collect::<Vec<_>>())
    })
}

fn unpaired() -> Error {
    Error::Shape("expected a stride for every size".to_owned())
}
