//! Tree ensembles: from lists of nodes in three layouts to a forest, and from its scores to predictions.

use super::super::helpers::Outputs;
use super::forest::{Aggregate, Branch, Forest, Place, Test};
use super::scores::Transform;
use super::{Labels, MAX_CLASSES, filled, largest};
use crate::dtype::DType;
use crate::eval::number;
use crate::graph::ValueId;
use crate::import::{Context, OpError, Reason, Value};
use crate::op::Binary;
use crate::tensor::Tensor;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Tests of branches in the order of their numbers in `TreeEnsemble`, with their names before.
const TESTS: [(&str, Test); 7] = [
    ("BRANCH_LEQ", Test::Compare(Binary::LessOrEqual)),
    ("BRANCH_LT", Test::Compare(Binary::Less)),
    ("BRANCH_GTE", Test::Compare(Binary::GreaterOrEqual)),
    ("BRANCH_GT", Test::Compare(Binary::Greater)),
    ("BRANCH_EQ", Test::Compare(Binary::Equal)),
    ("BRANCH_NEQ", Test::Differs),
    ("BRANCH_MEMBER", Test::Member),
];

/// In the order of their numbers in `TreeEnsemble`.
const AGGREGATES: [(&str, Aggregate); 4] = [
    ("AVERAGE", Aggregate::Average),
    ("SUM", Aggregate::Sum),
    ("MIN", Aggregate::Min),
    ("MAX", Aggregate::Max),
];

pub(super) fn regressor(c: &mut Context<'_, '_>) -> Outputs {
    let targets = targets(c)?;
    let name = c.string("aggregate_function").unwrap_or("SUM");
    let aggregate = AGGREGATES.iter().find(|(known, _)| *known == name);
    let Some(&(_, aggregate)) = aggregate else {
        let why = "aggregate_function must be one of AVERAGE, SUM, MIN, MAX; got ";
        return Err(c.invalid(format!("{why}{name}")));
    };
    let transform = Transform::named(c)?;
    let (forest, dtype) = listed(c, "target", targets)?;
    let base = numbers(c, "base_values")?;
    let x = c.input(0)?;
    let leaves = forest.walk(c, x, dtype)?;
    let mut scores = forest.scores(c, leaves, targets, aggregate, dtype)?;
    match base.len() {
        0 => {}
        count if count == targets => scores = plus_base(c, scores, &base)?,
        count => return Err(c.invalid(format!("needs {targets} base_values or none; got {count}"))),
    }
    let scores = transform.apply(c, scores, targets)?;
    Ok(vec![c.cast_to(scores, DType::F32)?])
}

pub(super) fn classifier(c: &mut Context<'_, '_>) -> Result<Vec<Value>, OpError> {
    let labels = Labels::of(c, "classlabels_int64s")?;
    let transform = Transform::named(c)?;
    let (forest, dtype) = listed(c, "class", labels.len())?;
    let base = numbers(c, "base_values")?;
    let x = c.input(0)?;
    let leaves = forest.walk(c, x, dtype)?;
    let scored: BTreeSet<usize> = forest.weights().map(|(class, _)| class).collect();
    let (class, scores) = match (labels.len(), scored.len()) {
        (2, 1) => two_by_one(c, &forest, leaves, dtype, transform, &base)?,
        (classes, _) => {
            let mut scores = forest.scores(c, leaves, classes, Aggregate::Sum, dtype)?;
            match base.len() {
                0 => {}
                count if count == classes => scores = plus_base(c, scores, &base)?,
                count => {
                    let why = format!("needs {classes} base_values or none; got {count}");
                    return Err(c.invalid(why));
                }
            }
            (largest(c, scores)?, transform.apply(c, scores, classes)?)
        }
    };
    let scores = c.cast_to(scores, DType::F32)?;
    Ok(vec![labels.at(c, class)?, scores.into()])
}

/// Two classes of which the trees score one: it is the second class's score if they call it the first, and of both
/// columns the second if they call it that. The second class wins above one half, or, where weights are negative,
/// above zero.
fn two_by_one(
    c: &mut Context<'_, '_>,
    forest: &Forest,
    leaves: ValueId,
    dtype: DType,
    transform: Transform,
    base: &[f64],
) -> Result<(ValueId, ValueId), OpError> {
    let second = forest.weights().any(|(class, _)| class == 1);
    let positive = forest.weights().all(|(_, weight)| weight >= 0.0);
    let both = forest.scores(c, leaves, 2, Aggregate::Sum, dtype)?;
    let mut score = c.narrow(both, 1, usize::from(second).into(), 1.into())?;
    match base.len() {
        0 => {}
        1 if !second => score = plus_base(c, score, base)?,
        count => {
            return Err(
                c.unsupported(format!("{count} base values where trees score one class of two"))
            );
        }
    }
    let least = c.scalar_like(score, if positive { 0.5 } else { 0.0 })?;
    let wins = c.binary(Binary::Greater, score, least)?;
    let wins = c.squeeze(wins, 1)?;
    let class = c.cast(wins, DType::I64)?;
    let scores = match second {
        false => transform.pair(c, score, positive)?,
        true => {
            let zero = c.scalar_like(score, 0.0)?;
            let zero = filled(c, zero, score, 1)?;
            let columns = c.concat(1, &[zero, score])?;
            transform.apply(c, columns, 2)?
        }
    };
    Ok((class, scores))
}

fn plus_base(c: &mut Context<'_, '_>, scores: ValueId, base: &[f64]) -> Result<ValueId, OpError> {
    let base = Tensor::from_vec(vec![base.len()], base.to_vec())?;
    let base = c.constant(base);
    let base = c.cast_to(base, c.dtype(scores))?;
    c.plus(scores, base)
}

fn targets(c: &Context<'_, '_>) -> Result<usize, OpError> {
    let targets = c.int_or("n_targets", 1);
    match usize::try_from(targets) {
        Ok(targets @ 1..=MAX_CLASSES) => Ok(targets),
        _ => Err(c.invalid(format!("n_targets must be 1 to {MAX_CLASSES}; got {targets}"))),
    }
}

/// Numbers of an attribute that is a list, or of the tensor beside it that holds them in fp64; none where neither is.
fn numbers(c: &Context<'_, '_>, name: &str) -> Result<Vec<f64>, OpError> {
    if let Some(tensor) = c.tensor_attr(&format!("{name}_as_tensor"))? {
        return reals(c, &tensor);
    }
    Ok(c.floats(name).unwrap_or_default().iter().copied().map(f64::from).collect())
}

fn reals(c: &Context<'_, '_>, tensor: &Tensor) -> Result<Vec<f64>, OpError> {
    number::reals(tensor).map_err(|_| c.invalid(format!("needs numbers; got {}", tensor.dtype())))
}

/// Lists that belong together must be equally long.
fn equal(c: &Context<'_, '_>, what: &str, count: usize, expected: usize) -> Result<(), OpError> {
    if count == expected {
        return Ok(());
    }
    Err(c.invalid(format!(
        "needs as many `{what}` as other attributes have: {expected}; got {count}"
    )))
}

/// The type that features are compared in: fp64 where they or the thresholds are.
fn working(c: &Context<'_, '_>, thresholds: Option<&Tensor>) -> Result<DType, OpError> {
    let wide = c.dtype(c.input(0)?) == DType::F64
        || thresholds.is_some_and(|thresholds| thresholds.dtype() == DType::F64);
    Ok(if wide { DType::F64 } else { DType::F32 })
}

/// The forest of the operators before `TreeEnsemble`: nodes are named by tree and number, and leaves are among them.
/// Weights are lists that begin with `kind`.
fn listed(c: &Context<'_, '_>, kind: &str, targets: usize) -> Result<(Forest, DType), OpError> {
    let ints = |name: &str| c.ints(name).ok_or_else(|| Reason::MissingAttribute(name.into()));
    let (trees, ids) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
    let features = ints("nodes_featureids")?;
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let modes = c.strings("nodes_modes").unwrap_or_default();
    let thresholds = numbers(c, "nodes_values")?;
    let missing = c.ints("nodes_missing_value_tracks_true").unwrap_or_default();
    for (what, count) in [
        ("nodes_nodeids", ids.len()),
        ("nodes_featureids", features.len()),
        ("nodes_truenodeids", yes.len()),
        ("nodes_falsenodeids", no.len()),
        ("nodes_modes", modes.len()),
        ("nodes_values", thresholds.len()),
    ] {
        equal(c, what, count, trees.len())?;
    }
    // Places by the nodes' names; the first node of a tree is its root.
    let (mut places, mut branches, mut leaves) = (HashMap::new(), 0, 0);
    let (mut roots, mut rooted) = (Vec::new(), HashSet::new());
    for i in 0..trees.len() {
        let next = if modes[i] == "LEAF" { &mut leaves } else { &mut branches };
        let place = if modes[i] == "LEAF" { Place::Leaf(*next) } else { Place::Branch(*next) };
        *next += 1;
        if places.insert((trees[i], ids[i]), place).is_some() {
            return Err(c.invalid(format!("node {} of tree {} is given twice", ids[i], trees[i])));
        }
        if rooted.insert(trees[i]) {
            roots.push(place);
        }
    }
    let find = |tree: i64, id: i64| {
        let found = places.get(&(tree, id)).copied();
        found.ok_or_else(|| c.invalid(format!("there is no node {id} in tree {tree}")))
    };
    let mut made = Vec::with_capacity(branches);
    for i in (0..trees.len()).filter(|&i| modes[i] != "LEAF") {
        let test = TESTS.iter().find(|(name, _)| *name == modes[i]);
        let Some(&(_, test @ (Test::Compare(_) | Test::Differs))) = test else {
            let why = "nodes_modes must be BRANCH_LEQ, BRANCH_LT, BRANCH_GTE, BRANCH_GT, BRANCH_EQ, \
                       BRANCH_NEQ or LEAF; got ";
            return Err(c.invalid(format!("{why}{}", modes[i])));
        };
        made.push(Branch {
            feature: features[i],
            test,
            threshold: thresholds[i],
            yes: find(trees[i], yes[i])?,
            no: find(trees[i], no[i])?,
            missing_holds: missing.get(i).is_some_and(|&holds| holds != 0),
            members: Vec::new(),
        });
    }
    let leaves = weighed(c, kind, targets, leaves, find)?;
    let tensor = c.tensor_attr("nodes_values_as_tensor")?;
    Ok((Forest::new(c, roots, made, leaves)?, working(c, tensor.as_ref())?))
}

/// The weights of each leaf, from lists that begin with `kind`.
fn weighed(
    c: &Context<'_, '_>,
    kind: &str,
    targets: usize,
    leaves: usize,
    find: impl Fn(i64, i64) -> Result<Place, OpError>,
) -> Result<Vec<Vec<(usize, f64)>>, OpError> {
    let list = |what: &str| c.ints(&format!("{kind}_{what}")).unwrap_or_default();
    let (trees, nodes, ids) = (list("treeids"), list("nodeids"), list("ids"));
    let weights = numbers(c, &format!("{kind}_weights"))?;
    for (what, count) in [("nodeids", nodes.len()), ("ids", ids.len()), ("weights", weights.len())]
    {
        equal(c, &format!("{kind}_{what}"), count, trees.len())?;
    }
    let mut weighed = vec![Vec::new(); leaves];
    for i in 0..trees.len() {
        let target = usize::try_from(ids[i]).ok().filter(|&target| target < targets);
        let Some(target) = target else {
            let why = format!("{kind}_ids must be 0 to {}; got {}", targets - 1, ids[i]);
            return Err(c.invalid(why));
        };
        // Of branches, weights say nothing.
        if let Place::Leaf(leaf) = find(trees[i], nodes[i])? {
            weighed[leaf].push((target, weights[i]));
        }
    }
    Ok(weighed)
}

/// Nodes without leaves, which have lists of their own; a place is a number and which of the lists it counts in.
pub(super) fn ensemble(c: &mut Context<'_, '_>) -> Outputs {
    let targets = targets(c)?;
    let aggregate = c.int_or("aggregate_function", 1);
    let aggregate = usize::try_from(aggregate).ok().and_then(|number| AGGREGATES.get(number));
    let Some(&(_, aggregate)) = aggregate else {
        let found = c.int_or("aggregate_function", 1);
        return Err(c.invalid(format!("aggregate_function must be 0 to 3; got {found}")));
    };
    let transform = Transform::numbered(c)?;
    let (forest, dtype) = linked(c, targets)?;
    let x = c.input(0)?;
    let own = c.dtype(x);
    let leaves = forest.walk(c, x, dtype)?;
    let scores = forest.scores(c, leaves, targets, aggregate, dtype)?;
    let scores = transform.apply(c, scores, targets)?;
    Ok(vec![c.cast_to(scores, own)?])
}

fn linked(c: &Context<'_, '_>, targets: usize) -> Result<(Forest, DType), OpError> {
    let ints = |name: &str| c.ints(name).ok_or_else(|| Reason::MissingAttribute(name.into()));
    let tensor = |name: &str| -> Result<Tensor, OpError> {
        c.tensor_attr(name)?.ok_or_else(|| Reason::MissingAttribute(name.into()).into())
    };
    let features = ints("nodes_featureids")?;
    let splits = tensor("nodes_splits")?;
    let (thresholds, modes) = (reals(c, &splits)?, reals(c, &tensor("nodes_modes")?)?);
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let (yes_leaves, no_leaves) = (ints("nodes_trueleafs")?, ints("nodes_falseleafs")?);
    let missing = c.ints("nodes_missing_value_tracks_true").unwrap_or_default();
    for (what, count) in [
        ("nodes_splits", thresholds.len()),
        ("nodes_modes", modes.len()),
        ("nodes_truenodeids", yes.len()),
        ("nodes_falsenodeids", no.len()),
        ("nodes_trueleafs", yes_leaves.len()),
        ("nodes_falseleafs", no_leaves.len()),
    ] {
        equal(c, what, count, features.len())?;
    }
    let members = match c.tensor_attr("membership_values")? {
        Some(members) => reals(c, &members)?,
        None => Vec::new(),
    };
    // The members of one branch after the other, NaN behind each.
    let mut members = members.split(|member| member.is_nan());
    let place = |number: i64, is_leaf: i64| {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if is_leaf != 0 { Place::Leaf(number) } else { Place::Branch(number) }
    };
    let mut branches = Vec::with_capacity(features.len());
    for i in 0..features.len() {
        let Some(&(_, test)) = TESTS.get(modes[i] as usize) else {
            return Err(c.invalid(format!("nodes_modes must be 0 to 6; got {}", modes[i])));
        };
        let members = match test {
            Test::Member => members.next().unwrap_or_default().to_vec(),
            Test::Compare(_) | Test::Differs => Vec::new(),
        };
        branches.push(Branch {
            feature: features[i],
            test,
            threshold: thresholds[i],
            yes: place(yes[i], yes_leaves[i]),
            no: place(no[i], no_leaves[i]),
            missing_holds: missing.get(i).is_some_and(|&holds| holds != 0),
            members,
        });
    }
    let roots = ints("tree_roots")?.iter().map(|&root| place(root, 0)).collect();
    let (ids, weights) = (ints("leaf_targetids")?, reals(c, &tensor("leaf_weights")?)?);
    equal(c, "leaf_weights", weights.len(), ids.len())?;
    let mut leaves = Vec::with_capacity(ids.len());
    for (&id, weight) in ids.iter().zip(weights) {
        let target = usize::try_from(id).ok().filter(|&target| target < targets);
        let target = target.ok_or_else(|| {
            c.invalid(format!("leaf_targetids must be 0 to {}; got {id}", targets - 1))
        })?;
        leaves.push(vec![(target, weight)]);
    }
    Ok((Forest::new(c, roots, branches, leaves)?, working(c, Some(&splits))?))
}
