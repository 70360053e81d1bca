//! Operations that move elements.

use super::{
    Along, Said, Value, common, input_ty, mentions, operand_axis, other_elements, refuse_if,
    refused,
};
use graphene_frontend::{Dim, Graph, Node, SliceAxis, Symbol};

/// Each position has the same element, also where an axis of one becomes the dim.
pub(super) fn expand(node: &Node, value: &Value, symbol: &Symbol) -> Said {
    let shape = &node.outputs()[0].shape;
    let of = |(axis, dim): (usize, &Dim)| {
        let at = operand_axis(value, axis, shape.len());
        let whole = *dim == Dim::symbol(symbol.name());
        let plain = || whole.then(|| Along::plain(value.added(at)));
        at.and_then(|axis| value.axes[axis].clone()).or_else(plain)
    };
    let axes = shape.iter().enumerate().map(of).collect();
    Ok(Value { axes, ..value.clone() })
}

/// A part of what the dim has nothing to do with may be as long as it; of positions themselves only the first is known
/// to be there.
pub(super) fn slice(node: &Node, value: &Value, slices: &[SliceAxis], symbol: &Symbol) -> Said {
    let mut made = value.clone();
    for slice in slices {
        refuse_if(mentions(&slice.start, symbol), "begins where it says")?;
        let begins = slice.start == Dim::from(0) && slice.step == 1;
        let along = &mut made.axes[slice.axis];
        let whole = node.outputs()[0].shape[slice.axis] == Dim::symbol(symbol.name());
        *along = match along.take() {
            Some(kept) if begins && slice.len == Dim::from(1) && kept.is_plain() => None,
            Some(kept) if begins && whole && kept.is_plain() => Some(kept),
            Some(_) => return refused("takes some of its positions"),
            None if whole => Some(Along::plain(value.added(None))),
            None => None,
        };
    }
    Ok(made)
}

pub(super) fn pad(inputs: &[&Value], before: &[Dim], after: &[Dim]) -> Said {
    let none = Some(&Dim::from(0));
    let adds = |axis: usize| before.get(axis) != none || after.get(axis) != none;
    refuse_if(inputs[0].along().any(adds), "adds elements along it")?;
    Ok(Value { axes: other_elements(inputs[0]).axes, ..super::of_any(inputs) })
}

/// Row-major order is kept: the dim is found again where as many elements lie before and after it.
pub(super) fn reshape(graph: &Graph, node: &Node, value: &Value, symbol: &Symbol) -> Said {
    let Some(from) = input_ty(graph, node, 0) else { return refused("has no input") };
    let to = &node.outputs()[0].shape;
    let product = |dims: &[Dim]| dims.iter().product::<Dim>();
    let mut axes = vec![None; to.len()];
    for (axis, along) in value.axes.iter().enumerate() {
        let Some(along) = along else { continue };
        let before = &product(&from.shape[..axis]) * &along.outer;
        let after = &product(&from.shape[axis + 1..]) * &along.inner;
        let place = (0..to.len()).find_map(|axis| {
            let outer = before.exact_div(&product(&to[..axis]))?;
            let inner = after.exact_div(&product(&to[axis + 1..]))?;
            let whole = &(&outer * &Dim::symbol(symbol.name())) * &inner;
            (whole == to[axis]).then_some((axis, outer, inner))
        });
        match place {
            Some((axis, outer, inner)) if axes[axis].is_none() => {
                axes[axis] = Some(Along { outer, inner, added: along.added.clone() });
            }
            _ => return refused("mixes its positions"),
        }
    }
    Ok(Value { axes, ..value.clone() })
}

pub(super) fn concat(inputs: &[&Value], axis: usize) -> Said {
    let runs = inputs.iter().any(|value| value.axes[axis].is_some());
    refuse_if(runs, "joins others to its positions")?;
    let rank = inputs.first().map_or(0, |value| value.axes.len());
    let along = |axis: usize| common(inputs.iter().filter_map(|value| value.axes[axis].as_ref()));
    let axes = (0..rank).map(along).collect::<Result<_, _>>()?;
    Ok(Value { axes, ..super::of_any(inputs) })
}

/// Rows by their numbers: one row for each position of the indices. Of positions themselves only the first is known to
/// be there.
pub(super) fn gather(inputs: &[&Value], axis: usize) -> Said {
    let [table, indices] = inputs else { return refused("has no indices") };
    let first = indices.added(None).is_zero() && indices.along().next().is_none();
    let picks = table.axes[axis].as_ref().is_some_and(|along| !(first && along.is_plain()));
    refuse_if(picks, "picks some of its positions")?;
    let mut axes = other_elements(table).axes;
    axes.splice(axis..=axis, other_elements(indices).axes);
    Ok(Value { axes, ..(*table).clone() })
}
