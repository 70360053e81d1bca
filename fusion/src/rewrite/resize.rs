//! Resizing to nearest elements, as views: every so many elements along an axis are a slice, and elements that repeat a number
//! of times each are an expanded dim. So masks shrink and images grow in most models, by factors that are whole. By others,
//! elements are looked up.

use crate::base::rebuild::{Rebuilt, rebuilt};
use graphene_frontend::eval::nearest_sources;
use graphene_frontend::op::{CoordinateTransform, Op, ResizeMode, SliceAxis};
use graphene_frontend::{Dim, Graph, Node};

/// The graph with slices, expansions and lookups in place of resizes to nearest elements.
pub(crate) fn without_resizes(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let Some(sources) = sources(graph, at.node) else { return Ok(None) };
        let Some(mut value) = inputs[0] else { return Ok(None) };
        for Sources { axis, given, places } in sources {
            let mut shape = at.graph.ty(value).shape.clone();
            let len = at.node.outputs()[0].shape[axis].clone();
            let are = |place: &dyn Fn(usize) -> usize| {
                places.iter().enumerate().all(|(i, own)| *own == place(i))
            };
            let step = places.get(1).map_or(1, |second| second.saturating_sub(places[0]));
            let times = places.len() / given;
            if step > 0 && are(&|i| places[0] + i * step) {
                let start = Dim::from(places[0] as i64);
                let slice = SliceAxis { axis, start, len, step: step as i64 };
                value = at.add(Op::Slice(vec![slice]), &[value])?;
            } else if times > 1 && places.len() % given == 0 && are(&|i| i / times) {
                let mut apart = shape.clone();
                apart.insert(axis + 1, Dim::from(1));
                value = at.add(Op::Reshape(apart.clone()), &[value])?;
                apart[axis + 1] = Dim::from(times as i64);
                value = at.add(Op::Expand(apart), &[value])?;
                shape[axis] = len;
                value = at.add(Op::Reshape(shape), &[value])?;
            } else {
                let places = at.places(places);
                value = at.add(Op::Gather { axis }, &[value, places])?;
            }
        }
        Ok(Some(value))
    })
}

/// From which of so many places along an axis each element is.
struct Sources {
    axis: usize,
    given: usize,
    places: Vec<usize>,
}

/// The axes that change, whose sizes are known, if it is a resize that is nothing else.
fn sources(graph: &Graph, node: &Node) -> Option<Vec<Sources>> {
    let Op::Resize(attrs) = node.op() else { return None };
    let ResizeMode::Nearest(mode) = attrs.mode else { return None };
    if attrs.transform == CoordinateTransform::CropAndResize {
        return None;
    }
    let (from, to) = (&graph.ty(node.inputs()[0]?).shape, &node.outputs()[0].shape);
    // An axis that stays may be of any size.
    let known = |dim: &Dim| usize::try_from(dim.known()?).ok().filter(|size| *size > 0);
    let size = |(own, other): (&Dim, &Dim)| if own == other { Some(1) } else { known(own) };
    let given = from.iter().zip(to).map(size).collect::<Option<Vec<_>>>()?;
    let wanted = to.iter().zip(from).map(size).collect::<Option<Vec<_>>>()?;
    let sources = nearest_sources(&given, &wanted, attrs, mode).ok()?;
    let stays = |axis: &usize| from[*axis] == to[*axis];
    let scale = |axis: usize| attrs.scales.get(axis).copied().flatten().unwrap_or(1.0);
    if (0..from.len()).filter(stays).any(|axis| scale(axis) != 1.0) {
        return None;
    }
    let of = |(axis, places)| Sources { axis, given: given[axis], places };
    Some(sources.into_iter().enumerate().filter(|(axis, _)| !stays(axis)).map(of).collect())
}
