//! Resizing to nearest elements, as views: every so many elements along an axis are a slice, and elements that repeat a number
//! of times each are an expanded dim. So masks shrink and images grow in most models, by factors that are whole. By others,
//! elements are looked up.

use crate::base::rebuild::{Rebuilt, rebuilt};
use graphene_frontend::eval::nearest_sources;
use graphene_frontend::op::{CoordinateTransform, Op, ResizeMode, SliceAxis};
use graphene_frontend::{Dim, Graph, Node, Tensor};

/// The graph with slices, expansions and lookups in place of resizes to nearest elements.
pub(crate) fn without_resizes(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let Some(axes) = axes(graph, at.node) else { return Ok(None) };
        let Some(mut value) = inputs[0] else { return Ok(None) };
        let mut shape = node_shape(graph, at.node);
        for (axis, along) in axes.into_iter().enumerate() {
            match along {
                Axis::Same => {}
                Axis::Sources(places) => {
                    shape[axis] = Dim::from(places.len() as i64);
                    let places = Tensor::from_vec(vec![places.len()], places);
                    let places = at.constant(places.expect("a vector"));
                    value = at.add(Op::Gather { axis }, &[value, places])?;
                }
                Axis::Slice(slice) => {
                    shape[axis] = slice.len.clone();
                    value = at.add(Op::Slice(vec![slice]), &[value])?;
                }
                Axis::Repeats(times) => {
                    let mut apart = shape.clone();
                    apart.insert(axis + 1, Dim::from(1));
                    value = at.add(Op::Reshape(apart.clone()), &[value])?;
                    apart[axis + 1] = Dim::from(times);
                    value = at.add(Op::Expand(apart), &[value])?;
                    shape[axis] = &shape[axis] * &Dim::from(times);
                    value = at.add(Op::Reshape(shape.clone()), &[value])?;
                }
            }
        }
        Ok(Some(value))
    })
}

enum Axis {
    Same,
    Slice(SliceAxis),
    /// Each element so many times.
    Repeats(i64),
    /// The elements at these places.
    Sources(Vec<i64>),
}

fn node_shape(graph: &Graph, node: &Node) -> Vec<Dim> {
    node.inputs()[0].map_or(Vec::new(), |x| graph.ty(x).shape.clone())
}

/// What becomes of each axis, if it is a resize that is nothing else; sizes of the axes that change are known.
fn axes(graph: &Graph, node: &Node) -> Option<Vec<Axis>> {
    let Op::Resize(attrs) = node.op() else { return None };
    let ResizeMode::Nearest(mode) = attrs.mode else { return None };
    if attrs.transform == CoordinateTransform::CropAndResize {
        return None;
    }
    let (from, to) = (node_shape(graph, node), &node.outputs()[0].shape);
    // An axis that stays may be of any size.
    let size = |axis: usize| match from[axis] == to[axis] {
        true => Some((1, 1)),
        false => {
            let sizes = (from[axis].known()?, to[axis].known()?);
            Some((usize::try_from(sizes.0).ok()?, usize::try_from(sizes.1).ok()?))
        }
    };
    let sizes = (0..from.len()).map(size).collect::<Option<Vec<_>>>()?;
    if sizes.iter().any(|sizes| sizes.0 == 0 || sizes.1 == 0) {
        return None;
    }
    let (given, wanted): (Vec<usize>, Vec<usize>) = sizes.into_iter().unzip();
    let sources = nearest_sources(&given, &wanted, attrs, mode).ok()?;
    let along = |(axis, places): (usize, Vec<usize>)| {
        if from[axis] == to[axis] {
            let scale = attrs.scales.get(axis).copied().flatten();
            return scale.is_none_or(|scale| scale == 1.0).then_some(Axis::Same);
        }
        let step = places.get(1).map_or(1, |second| second.saturating_sub(places[0]));
        if step > 0 && places.iter().enumerate().all(|(i, place)| *place == places[0] + i * step) {
            let [start, step] = [places[0], step].map(|number| number as i64);
            let (start, len) = (Dim::from(start), to[axis].clone());
            return Some(Axis::Slice(SliceAxis { axis, start, len, step }));
        }
        let times = places.len() / given[axis];
        let repeats = places.iter().enumerate().all(|(i, place)| *place == i / times.max(1));
        Some(match times > 1 && places.len() % given[axis] == 0 && repeats {
            true => Axis::Repeats(times as i64),
            false => Axis::Sources(places.into_iter().map(|place| place as i64).collect()),
        })
    };
    sources.into_iter().enumerate().map(along).collect()
}
