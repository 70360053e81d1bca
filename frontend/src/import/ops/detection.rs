//! Boxes that detectors find.

use super::helpers::Outputs;
use super::{Row, row};
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::tensor::Tensor;

/// The operators of this family.
pub(super) const ROWS: &[Row] = &[row("NonMaxSuppression", 10, non_max_suppression)];

/// A box by its corners: the smaller coordinates, then the larger.
#[derive(Clone, Copy)]
struct Area {
    low: [f32; 2],
    high: [f32; 2],
}

impl Area {
    /// By two corners on a diagonal.
    fn of_corners(corners: [f32; 4]) -> Self {
        let [a, b, c, d] = corners;
        Self { low: [a.min(c), b.min(d)], high: [a.max(c), b.max(d)] }
    }

    /// By the centre, the width and the height.
    fn of_center([x, y, width, height]: [f32; 4]) -> Self {
        let (w, h) = (width / 2.0, height / 2.0);
        Self { low: [x - w, y - h], high: [x + w, y + h] }
    }

    fn size(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// Whether the intersection is more than this share of the union. Boxes without area overlap nothing.
    fn overlaps(&self, other: &Self, share: f32) -> bool {
        let side = |axis: usize| {
            self.high[axis].min(other.high[axis]) - self.low[axis].max(other.low[axis])
        };
        let (a, b) = (side(0), side(1));
        if !(a > 0.0 && b > 0.0 && self.size() > 0.0 && other.size() > 0.0) {
            return false;
        }
        let intersection = a * b;
        let union = self.size() + other.size() - intersection;
        union > 0.0 && intersection / union > share
    }
}

/// What is selected, and how much of it.
struct Selection {
    /// Boxes of one class at most.
    most: usize,
    /// Boxes that share more than this with a better one of their class are dropped.
    overlap: f32,
    /// Boxes with at most this score are dropped.
    score: Option<f32>,
}

/// `boxes[b, n, 4], scores[b, c, n] → [selected, 3]`: batch, class and box. How many are selected depends on values, so
/// these must be known.
fn non_max_suppression(cx: &mut Context<'_, '_>) -> Outputs {
    let (boxes, scores) = (cx.input(0)?, cx.input(1)?);
    if [boxes, scores].into_iter().any(|value| cx.rank(value) != 3) {
        return Err(cx.invalid("needs boxes [batch, n, 4] and scores [batch, classes, n]"));
    }
    let most = match cx.optional(2) {
        Some(most) => cx.known_ints(most)?.first().copied().unwrap_or(0),
        None => 0,
    };
    let overlap = number(cx, 3)?.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&overlap) {
        return Err(cx.invalid(format!("iou_threshold must be within 0 and 1; got {overlap}")));
    }
    let most = usize::try_from(most).unwrap_or(0);
    let selection = Selection { most, overlap, score: number(cx, 4)? };
    let area: fn([f32; 4]) -> Area = match cx.int_or("center_point_box", 0) {
        0 => Area::of_corners,
        1 => Area::of_center,
        other => return Err(cx.invalid(format!("center_point_box must be 0 or 1; got {other}"))),
    };
    let places = match most {
        0 => Vec::new(),
        _ => selected(cx, boxes, scores, area, &selection)?,
    };
    let places = Tensor::from_vec(vec![places.len() / 3, 3], places)?;
    Ok(vec![cx.constant(places)])
}

/// The number that an optional input holds.
fn number(cx: &Context<'_, '_>, input: usize) -> Result<Option<f32>, OpError> {
    match cx.optional(input) {
        Some(value) => Ok(cx.known_floats(value)?.first().map(|&number| number as f32)),
        None => Ok(None),
    }
}

/// Batch, class and box of all that is selected, one after the other.
fn selected(
    cx: &Context<'_, '_>,
    boxes: ValueId,
    scores: ValueId,
    area: fn([f32; 4]) -> Area,
    selection: &Selection,
) -> Result<Vec<i64>, OpError> {
    let known = |value| cx.known(value).ok_or(OpError::NeedsValue(value));
    let (found, rated) = (known(boxes)?, known(scores)?);
    let (&[batches, count, 4], &[scored, classes, per_class]) = (found.shape(), rated.shape())
    else {
        return Err(cx.invalid("a box has four coordinates"));
    };
    if (batches, count) != (scored, per_class) {
        return Err(cx.invalid(format!(
            "{batches} batches of {count} boxes, but scores for {scored} of {per_class}"
        )));
    }
    let corners = cx.known_floats(boxes)?;
    let areas: Vec<Area> = corners
        .chunks_exact(4)
        .map(|corners| area([0, 1, 2, 3].map(|i| corners[i] as f32)))
        .collect();
    let scores: Vec<f32> = cx.known_floats(scores)?.into_iter().map(|score| score as f32).collect();
    let mut places = Vec::new();
    for class in 0..batches * classes {
        let batch = class / classes;
        let areas = &areas[batch * count..][..count];
        let best = of_class(cx, areas, &scores[class * count..][..count], selection)?;
        for chosen in best {
            places.extend([batch, class % classes, chosen].map(|index| index as i64));
        }
    }
    Ok(places)
}

/// The boxes of one class that no better one covers, the best first; of equal scores the first.
fn of_class(
    cx: &Context<'_, '_>,
    areas: &[Area],
    scores: &[f32],
    selection: &Selection,
) -> Result<Vec<usize>, OpError> {
    let passes = |index: &usize| selection.score.is_none_or(|least| scores[*index] > least);
    let mut candidates: Vec<usize> = (0..scores.len()).filter(passes).collect();
    candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    let mut chosen: Vec<usize> = Vec::new();
    for candidate in candidates {
        if chosen.len() == selection.most {
            break;
        }
        cx.take_steps(chosen.len() + 1)?;
        let area = &areas[candidate];
        if !chosen.iter().any(|&better| areas[better].overlaps(area, selection.overlap)) {
            chosen.push(candidate);
        }
    }
    Ok(chosen)
}
