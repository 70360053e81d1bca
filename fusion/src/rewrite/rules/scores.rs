//! What stands between the two matmuls of an attention, read from the weights inwards: the softmax, guards behind it,
//! masks, scales and a cap before it.
//!
//! An attention computes in `f32` from operands of one type, and rounds once. So casts on the way are looked through
//! where all that they pass holds every value of that type; where something narrower rounds, it is no attention.

use super::algebra::scaled;
use crate::rewrite::rule::{Site, digits};
use egg::Id;
use graphene_frontend::{Binary, DType, Dim, Op, Unary};

/// Scores vanish in the rounding of numbers of this size, whatever the type: the lowest of `f16` is none of them,
/// for attention computes in `f32`.
const SWALLOWS: f64 = -1e30;

/// What stands between the two matmuls.
pub(super) struct Weights {
    pub(super) scores: Scores,
    /// Whether weights that are NaN become zero.
    pub(super) guarded: bool,
    /// Truth values, of scores of this shape: where none of a row holds, its weights are zero.
    pub(super) allowed: Option<(Id, Vec<Dim>)>,
}

/// The softmax over the last axis behind a class, and what is done to the weights after it, for an attention on
/// operands of this type.
pub(super) fn weights(s: &mut Site<'_>, w: Id, operands: DType) -> Option<Weights> {
    let (mut inner, mut guarded, mut kept) = (w, false, None);
    for _ in 0..DEPTH {
        let rank = s.ty(inner)?.rank();
        let softmaxes = s.operations(inner, "Softmax");
        let over_keys = |(op, _): &&(Op, Vec<Option<Id>>)| matches!(op, Op::Softmax { axis, log: false } if *axis + 1 == rank);
        if let Some(masked) = softmaxes.iter().find(over_keys).and_then(|(_, x)| x[0]) {
            let mut reader = Reader { operands, visits: VISITS };
            let Some((condition, shape)) = kept else {
                return Some(Weights { scores: reader.scores(s, masked)?, guarded, allowed: None });
            };
            let scores = reader.kept_scores(s, masked, condition)?;
            let allowed = Some((allowed(s, condition)?, shape));
            return Some(Weights { scores, guarded, allowed });
        }
        let zeroed = zeroed(s, inner);
        inner = if let Some((weights, _)) = zeroed.iter().find(|known| guards(s, known)) {
            guarded = true;
            *weights
        } else if let Some((weights, condition)) = zeroed.first() {
            // The scores can know of one condition.
            if kept.is_some() {
                return None;
            }
            kept = Some((*condition, s.shape(inner)?));
            *weights
        } else {
            viewed(s, inner, operands)?
        };
    }
    s.terms.analysis.searches_cut += 1;
    None
}

/// Changes of view, casts and guards around a softmax.
const DEPTH: usize = 5;

/// Classes that are looked at for one set of scores.
const VISITS: usize = 64;

/// A truth value, and which one allows.
type Condition = (Id, bool);

fn allowed(s: &mut Site<'_>, (condition, allows): Condition) -> Option<Id> {
    if allows { Some(condition) } else { s.unary(Unary::Not, condition) }
}

/// What a class is where a condition allows, and what where that forbids.
fn selections(s: &Site<'_>, id: Id) -> Vec<(Id, Id, Condition)> {
    let both = |[condition, a, b]: [Id; 3]| [(a, b, (condition, true)), (b, a, (condition, false))];
    s.operands(id, "Select").into_iter().flat_map(both).collect()
}

/// What a class is where a condition allows, if it is zero where that forbids.
fn zeroed(s: &Site<'_>, id: Id) -> Vec<(Id, Condition)> {
    let zeroed = selections(s, id).into_iter();
    let zeroed = zeroed.filter(|&(x, other, _)| s.is(other, 0.0) && !s.is(x, 0.0));
    zeroed.map(|(x, _, condition)| (x, condition)).collect()
}

/// Whether weights are zero where they are NaN.
fn guards(s: &Site<'_>, (weights, (nan, allows)): &(Id, Condition)) -> bool {
    !allows && s.operands(*nan, "IsNan").contains(&[*weights])
}

/// What a class is a cast of, or another view of with the same last two dims. Casts are looked through from what holds
/// every number of the operands' type.
fn viewed(s: &Site<'_>, id: Id, operands: DType) -> Option<Id> {
    let holds = |[x]: &[Id; 1]| s.dtype(*x).is_some_and(|own| holds(own, operands));
    let casts = s.operands(id, "Cast").into_iter().filter(holds);
    let to = s.shape(id)?;
    let last = |of: &[Dim]| (of.len() > 2).then(|| of[of.len() - 2..].to_vec());
    let rows = |[x]: &[Id; 1]| {
        s.shape(*x).is_some_and(|own| last(&own).is_some() && last(&own) == last(&to))
    };
    let views = s.operands(id, "Reshape").into_iter().filter(rows);
    casts.chain(views).next().map(|[x]| x)
}

/// Whether a type holds every number of another.
fn holds(own: DType, other: DType) -> bool {
    let wider =
        |own, other| Some((digits(own)? >= digits(other)?, own.largest()? >= other.largest()?));
    wider(own, other) == Some((true, true))
}

/// What is done to scores before the softmax; masks with the shape of the scores that they are for.
pub(super) enum Mask {
    Nothing,
    /// Truth values: may be attended. Scores that may not are this number.
    Allowed(Id, Vec<Dim>, f64),
    /// Numbers, added.
    Added(Id, Vec<Dim>),
}

/// `mask(softcap·tanh(scale · q · k / softcap))`.
pub(super) struct Scores {
    pub(super) q: Id,
    /// Keys, transposed.
    pub(super) k: Id,
    pub(super) matmul: Id,
    pub(super) scale: f64,
    pub(super) softcap: f64,
    pub(super) mask: Mask,
}

/// Reads the scores of an attention on operands of one type.
struct Reader {
    operands: DType,
    /// Classes that it may still look at.
    visits: usize,
}

impl Reader {
    /// Scores by the first way of reading a class that ends at a matmul.
    fn scores(&mut self, s: &mut Site<'_>, id: Id) -> Option<Scores> {
        let Some(left) = self.visits.checked_sub(1) else {
            s.terms.analysis.searches_cut += 1;
            return None;
        };
        self.visits = left;
        let own = s.ty(id)?.clone();
        for [inner, by] in s.operands(id, "Mul") {
            let by = s.number(by).filter(|by| *by > 0.0 && s.ty(inner) == Some(&own));
            let Some(by) = by else { continue };
            if let Some(scaled) = self.times(s, inner, by) {
                return Some(scaled);
            }
        }
        for [q, k] in s.operands(id, "MatMul") {
            if s.ty(q)?.rank() == s.ty(k)?.rank() && own.rank() > 2 {
                let (scale, softcap, mask) = (1.0, 0.0, Mask::Nothing);
                return Some(Scores { q, k, matmul: id, scale, softcap, mask });
            }
        }
        if let Some(found) = viewed(s, id, self.operands).and_then(|inner| self.scores(s, inner)) {
            return Some(found);
        }
        for (scored, mask) in s.pairs(id, "Add") {
            if s.ty(scored) != Some(&own) {
                continue;
            }
            if let Some(found) = self.scores(s, scored) {
                return with_added(s, found, mask, &own.shape);
            }
        }
        for (scored, fill, by) in selections(s, id) {
            let fills = |fill: &f64| *fill < f64::INFINITY && s.ty(scored) == Some(&own);
            let Some(fill) = s.number(fill).filter(fills) else { continue };
            if let Some(found) = self.scores(s, scored) {
                return with_fill(s, found, by, fill, &own.shape);
            }
        }
        None
    }

    /// Scores times a number, that of a softcap perhaps.
    fn times(&mut self, s: &mut Site<'_>, inner: Id, by: f64) -> Option<Scores> {
        for [x] in s.operands(inner, "Tanh") {
            let bare = |of: &Scores| matches!(of.mask, Mask::Nothing) && of.softcap == 0.0;
            if let Some(found) = self.scores(s, x).filter(bare) {
                return Some(Scores { scale: found.scale * by, softcap: by, ..found });
            }
        }
        let found = self.scores(s, inner).filter(|found| found.softcap == 0.0)?;
        let mask = match found.mask {
            Mask::Nothing => Mask::Nothing,
            Mask::Allowed(mask, of, fill) => Mask::Allowed(mask, of, fill * by),
            Mask::Added(mask, of) => Mask::Added(scaled(s, mask, by)?, of),
        };
        Some(Scores { scale: found.scale * by, mask, ..found })
    }

    /// Scores that are replaced where the weights become zero: what is forbidden has no weight, and a row that may
    /// attend nowhere is zero.
    fn kept_scores(&mut self, s: &mut Site<'_>, masked: Id, kept: Condition) -> Option<Scores> {
        let replaces = |&(scored, fill, by): &(Id, Id, Condition)| {
            let swallows = s.number(fill).is_some_and(|fill| fill <= SWALLOWS);
            by == kept && swallows && s.ty(scored) == s.ty(masked)
        };
        let (scored, ..) = selections(s, masked).into_iter().find(replaces)?;
        let (found, shape) = (self.scores(s, scored)?, s.shape(masked)?);
        with_fill(s, found, kept, f64::NEG_INFINITY, &shape)
    }
}

/// Scores of this shape, with something added.
fn with_added(s: &mut Site<'_>, found: Scores, addend: Id, shape: &[Dim]) -> Option<Scores> {
    // One of another type than the queries can say what it adds by truth values.
    if s.dtype(addend) != s.dtype(found.q)
        && let Some((by, fill)) = chosen(s, addend)
    {
        return with_fill(s, found, by, fill, shape);
    }
    let sum = match found.mask {
        Mask::Nothing => addend,
        known => {
            let known = numbers(s, known, addend, shape)?;
            s.binary(Binary::Add, known, addend)?
        }
    };
    Some(Scores { mask: Mask::Added(sum, shape.to_vec()), ..found })
}

/// A mask as one of numbers that are added to scores of this shape, of the type of `like`.
fn numbers(s: &mut Site<'_>, mask: Mask, like: Id, shape: &[Dim]) -> Option<Id> {
    match mask {
        Mask::Nothing => s.scalar(like, 0.0),
        Mask::Added(mask, of) => mask_under(s, mask, &of, lead(shape)),
        // What is added to a fill that is a number stays.
        Mask::Allowed(_, _, fill) if fill != f64::NEG_INFINITY => None,
        Mask::Allowed(mask, of, fill) => {
            let mask = mask_under(s, mask, &of, lead(shape))?;
            let (zero, fill) = (s.scalar(like, 0.0)?, s.scalar(like, fill)?);
            s.add(Op::Select, &[mask, zero, fill])
        }
    }
}

/// What adds nothing where a condition allows, and where it forbids a number that swallows any score.
fn chosen(s: &Site<'_>, addend: Id) -> Option<(Condition, f64)> {
    zeroed(s, addend).into_iter().find_map(|(fill, (condition, forbids))| {
        let fill = s.number(fill).filter(|fill| *fill <= SWALLOWS)?;
        Some(((condition, !forbids), fill))
    })
}

/// A fill of scores as one of a mask of this type: one that is finite stays so, for a row of it alone has weights.
fn finite_fill(s: &Site<'_>, mask: Id, fill: f64) -> Option<f64> {
    if fill == f64::NEG_INFINITY {
        return Some(fill);
    }
    // Below the lowest of a type there is nothing else that it could be mistaken for.
    let fill = fill.max(-s.dtype(mask)?.largest()?);
    (fill <= SWALLOWS).then_some(fill)
}

/// Scores of this shape, replaced where a condition forbids: by a mask of truth values, or, where the fill is a number
/// near the lowest, which swallows whatever it is added to, by one that is added, since that goes with others.
fn with_fill(
    s: &mut Site<'_>,
    found: Scores,
    by: Condition,
    fill: f64,
    shape: &[Dim],
) -> Option<Scores> {
    let allowed = allowed(s, by)?;
    // A mask of numbers has the type of the queries, which may not hold the fill of wider scores.
    let by_truth = fill == f64::NEG_INFINITY || finite_fill(s, found.q, fill).is_none();
    let mask = match found.mask {
        Mask::Nothing if by_truth => Mask::Allowed(allowed, shape.to_vec(), fill),
        Mask::Allowed(mask, of, known) if by_truth && fill == known => {
            let mask = mask_under(s, mask, &of, lead(shape))?;
            Mask::Allowed(s.binary(Binary::And, mask, allowed)?, shape.to_vec(), fill)
        }
        known => {
            let kept = numbers(s, known, found.q, shape)?;
            let fill = s.scalar(kept, finite_fill(s, kept, fill)?)?;
            Mask::Added(s.add(Op::Select, &[allowed, kept, fill])?, shape.to_vec())
        }
    };
    Some(Scores { mask, ..found })
}

/// What is in front of the rows and columns of scores.
pub(super) fn lead(shape: &[Dim]) -> &[Dim] {
    &shape[..shape.len() - 2]
}

/// A mask of scores of a shape as one of scores with these leading dims.
pub(super) fn mask_under(s: &mut Site<'_>, mask: Id, of: &[Dim], to: &[Dim]) -> Option<Id> {
    let from = lead(of);
    let mut own = s.shape(mask)?;
    if from == to || own.len() <= 2 {
        return Some(mask);
    }
    while own.len() < of.len() {
        own.insert(0, Dim::from(1));
    }
    let same = from.iter().rev().zip(to.iter().rev()).take_while(|(a, b)| a == b).count();
    let (split, joined) = (from.len() - same, to.len() - same);
    let mut mask = s.reshape(mask, own.clone())?;
    let shape = if own[..split].iter().all(|dim| *dim == 1) {
        [&vec![Dim::from(1); joined][..], &own[split..]].concat()
    } else {
        let wide = [&from[..split], &own[split..]].concat();
        if wide != own {
            mask = s.add(Op::Expand(wide), &[mask])?;
        }
        [&to[..joined], &own[split..]].concat()
    };
    s.reshape(mask, shape)
}
