//! Strides that are wrong, of what has one.

use graphene_ir::index::{Expr, Factor};
use graphene_ir::kernel::{Kernel, Spec, Stmt, TensorId};
use graphene_ir::layout::{IntTuple, Layout, Tiler};
use graphene_ir::tensor::ViewOp;

use super::sites::{Change, Family, Text};

/// A term's coefficient is larger by 1: neighbours are further apart.
fn farther(expr: &Expr) -> Option<Expr> {
    let mut terms = expr.terms().filter(|(product, _)| !product.is_empty());
    let (product, _) = terms.next()?;
    let more = product
        .iter()
        .fold(Expr::from(1), |all, factor: &Factor| all * &Expr::from(factor.clone()));
    Some(expr.clone() + &more)
}

fn farther_in(coords: &mut [IntTuple<Expr>]) -> bool {
    for coord in coords {
        match coord {
            IntTuple::Int(at) => {
                if let Some(more) = farther(at) {
                    *at = more;
                    return true;
                }
            }
            IntTuple::Tuple(inner) => {
                if farther_in(inner) {
                    return true;
                }
            }
        }
    }
    false
}

/// The first stride that is not 0 is larger by 1.
fn farther_layout(layout: &Layout) -> Option<Layout> {
    let leaves = layout.leaves();
    let at = leaves
        .iter()
        .position(|leaf| leaf.size > 1 && leaf.stride.number().is_some_and(|s| s > 0))?;
    let modes: Vec<(i64, i64)> = leaves
        .iter()
        .enumerate()
        .map(|(i, leaf)| Some((leaf.size, leaf.stride.number()? + i64::from(i == at))))
        .collect::<Option<_>>()?;
    Layout::of_modes(&modes).ok()
}

/// The strides of a spec's operands, outputs first.
const OPERANDS: [&str; 5] = [
    "stride of operand 0",
    "stride of operand 1",
    "stride of operand 2",
    "stride of operand 3",
    "stride of operand 4",
];

/// Makes the stride of a number in a statement larger; says what has it, if anything does.
fn enlarge(stmt: &mut Stmt, number: usize) -> Option<&'static str> {
    match stmt {
        Stmt::View(_, _, ViewOp::Index(coords)) if number == 0 => {
            farther_in(coords).then_some("stride of an index")
        }
        Stmt::View(_, _, ViewOp::Tile(tiles)) => {
            let tile = tiles.get_mut(number)?;
            let changed = match tile {
                Tiler::Whole | Tiler::Modes(_) => None,
                // Every second one.
                Tiler::Size(size) if *size > 1 => Layout::of_modes(&[(*size, 2)]).ok(),
                Tiler::Size(_) => None,
                Tiler::Layout(layout) => farther_layout(layout),
            };
            *tile = Tiler::Layout(changed?);
            Some("stride of a tile")
        }
        Stmt::View(_, _, ViewOp::Reshape(_, dims)) => {
            let dim = dims.get_mut(number)?;
            *dim = farther_layout(dim)?;
            Some("stride of a shape")
        }
        Stmt::Let(_, value) if number == 0 => {
            *value = farther(value)?;
            Some("stride of a sum")
        }
        Stmt::Spec(Spec { body: None, outs, ins, .. }) => {
            let operand = outs.iter_mut().chain(ins).nth(number)?;
            farther_in(&mut operand.index).then_some(*OPERANDS.get(number)?)
        }
        _ => None,
    }
}

/// More than a statement has dimensions or operands.
const MOST: usize = 8;

/// Neighbours are further apart: each stride of a statement without others within it.
pub(super) fn strides(stmt: &Stmt) -> Vec<Change> {
    if !stmt.body().is_empty() {
        return Vec::new();
    }
    let all = (0..MOST).filter_map(|number| {
        let change = enlarge(&mut stmt.clone(), number)?;
        let edit = move |list: &mut Vec<Stmt>, i: usize| {
            enlarge(&mut list[i], number);
        };
        Some((Family::Stride, change, None, Box::new(edit) as _))
    });
    all.collect()
}

/// What may be wrong with how a tensor is declared. Rows, or what else has a stride, begin one element too early: they overlap,
/// or are where they should not be. What is swizzled is not, or by one bit less.
pub(super) fn retyped(kernel: &Kernel, id: TensorId) -> Vec<(&'static str, Text)> {
    let (tensor, head) = (kernel.tensor(id), format!("%{}:", kernel.tensor_name(id)));
    let written = tensor.to_string();
    let mut all: Vec<(&'static str, String)> = Vec::new();
    for leaf in tensor.view.strided().leaves() {
        let stride = leaf.stride.to_string();
        if leaf.size.is(1) || stride == "0" || stride == "1" {
            continue;
        }
        // It is found by its text: the first that reads so, behind the colon.
        let Some((shape, strides)) = written.split_once(':') else { continue };
        let Some(at) = strides.find(&stride) else { continue };
        let (before, after) = strides.split_at(at);
        let closer = format!("{stride} - 1");
        let closer = stride.parse::<i64>().map_or(closer, |stride| (stride - 1).to_string());
        let text = format!("{shape}:{before}{closer}{}", &after[stride.len()..]);
        all.push(("stride of a tensor", text));
    }
    if let Some(swizzle) = tensor.swizzle {
        let suffix = |bits: i64| format!(".S<{bits},{},{}>", swizzle.base(), swizzle.shift());
        let with = |other: &str| written.replace(&suffix(swizzle.bits()), other);
        all.push(("remove swizzle", with("")));
        all.push(("narrow swizzle", with(&suffix(swizzle.bits() - 1))));
    }
    let text = |(change, to): (&'static str, String)| {
        let (from, to) = (format!("{head}{written}"), format!("{head}{to}"));
        let text = move |kernel: &Kernel| kernel.to_string().replacen(&from, &to, 1);
        (change, Box::new(text) as Text)
    };
    all.into_iter().map(text).collect()
}
