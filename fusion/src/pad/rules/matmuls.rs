//! Matmuls, attention and layers.

use super::{Along, Said, Value, broadcast, by_itself, common, ensure, refuse_if, refused};
use graphene_frontend::graph::Node;
use graphene_frontend::op::{AttentionAttrs, Op};

pub(super) fn matmul(inputs: &[&Value]) -> Said {
    let [a, b] = inputs else { return refused("has no two factors") };
    let rank = a.axes.len().max(b.axes.len());
    let (m, k) = (a.axes.len() - 2, a.axes.len() - 1);
    let (row, column) = (b.axes.len() - 2, b.axes.len() - 1);
    // Zeros times what is finite add nothing to a sum.
    let zeros =
        |x: &Along, y: &Along| x.added.is_zero() && b.finite || y.added.is_zero() && a.finite;
    match (&a.axes[k], &b.axes[row]) {
        (None, None) => {}
        (Some(x), Some(y)) if x.agrees(y) && zeros(x, y) => {}
        _ => return refused("adds up what lies along it"),
    }
    let outer = (0..rank - 2).map(|axis| broadcast(inputs, axis, rank));
    let mut axes = outer.collect::<Result<Vec<_>, _>>()?;
    let last = [a.axes[m].as_ref(), b.axes[column].as_ref()];
    axes.extend(last.map(|along| along.map(Along::unknown)));
    let large = a.large || b.large;
    Ok(Value { axes, uniform: None, finite: a.finite && b.finite && !large, large })
}

/// `q[b,h,s,d], k[b,g,t,d], v[b,g,t,e], mask?`: each of s by itself; of t what the mask does not forbid.
pub(super) fn attention(given: &[Option<&Value>], attrs: &AttentionAttrs) -> Said {
    let [Some(q), Some(k), Some(v), rest @ ..] = given else { return refused("has no operands") };
    let mask = rest.first().copied().flatten();
    let inner = [q, k, v].iter().any(|value| value.axes[1].is_some() || value.axes[3].is_some());
    refuse_if(inner, "has it in its heads or features")?;
    let keys = [k, v].map(|value| value.axes[2].as_ref());
    if keys.iter().flatten().next().is_some() {
        let both = keys.iter().all(|along| along.is_some_and(Along::is_plain));
        ensure(both, "has it in keys or values alone")?;
        ensure(k.finite && v.finite, "attends to what may not be finite")?;
        let last = mask.and_then(|mask| mask.axes.last()?.as_ref());
        let forbids = last.is_some_and(|along| {
            // Truth values forbid by what scores become.
            let low = f64::from(attrs.fill) <= super::super::FORBIDS;
            along.is_plain() && (along.added.forbids() || along.added.is_false() && low)
        });
        // Positions are added behind those asked for: no query that was asked for sees them.
        let causal = attrs.causal && q.axes[2].as_ref().is_some_and(Along::is_plain);
        let all = "attends to all keys: no mask is known to forbid what is added";
        ensure(forbids || causal, all)?;
    }
    let mut axes = vec![None; 4];
    axes[0] = common([q, k, v].into_iter().filter_map(|value| value.axes[0].as_ref()))?;
    axes[2] = q.axes[2].as_ref().map(Along::unknown);
    // A row of the batch that was added may be forbidden everything; and so may a query that was, if the mask has queries:
    // then it sees nothing, unless what forbids is a number.
    let sees = attrs.guarded
        || mask.is_none_or(|mask| {
            let queries = mask.axes.len().checked_sub(2).and_then(|at| mask.axes[at].as_ref());
            queries.is_none() || (mask.finite && attrs.fill.is_finite())
        });
    let finite = [q, k, v].iter().all(|value| value.finite) && axes[0].is_none() && sees;
    Ok(Value { axes, uniform: None, finite, large: v.large })
}

/// `x[s,b,i], w, r, bias?, lengths[b]?, h0[d,b,h]?, c0[d,b,h]?, peepholes? → y[s,d,b,h], y_h[d,b,h], y_c[d,b,h]`.
pub(super) fn recurrent(node: &Node, given: &[Option<&Value>]) -> Said<Vec<Value>> {
    // Where the batch is, by input.
    let batches = [Some(1), None, None, None, Some(0), Some(1), Some(1), None];
    let mut batch = Vec::new();
    for (number, value) in given.iter().enumerate() {
        let Some(value) = value else { continue };
        for axis in value.along() {
            refuse_if(batches.get(number).copied().flatten() != Some(axis), "runs along it")?;
        }
        batch.extend(value.axes.iter().flatten());
    }
    let along = common(batch.into_iter())?;
    let outputs = node.outputs().iter().map(|ty| {
        let finite = given.iter().flatten().all(|value| value.finite);
        let mut value = Value { finite, ..Value::free(ty.rank()) };
        // The batch is the last but one.
        value.axes[ty.rank() - 2] = along.clone();
        value
    });
    Ok(outputs.collect())
}

/// Convolutions and pools: each image by itself.
pub(super) fn window(node: &Node, given: &[Option<&Value>]) -> Said {
    let [Some(image), filters @ ..] = given else { return refused("has no input") };
    let follow = filters.iter().flatten().any(|value| value.along().next().is_some());
    refuse_if(follow, "has filters that follow from it")?;
    let made = by_itself(image, 1..image.axes.len(), "moves a window along it")?;
    let finite = image.finite && !matches!(node.op(), Op::Pool(_));
    Ok(Value { finite, ..made })
}
