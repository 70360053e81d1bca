//! Values that one step stores for another one, and why the two are not one step.

use graphene_frontend::dim::Bindings;
use graphene_fusion::Line;
use serde::Serialize;

/// A value that one step stores for another one.
#[derive(Serialize, Debug)]
pub(super) struct Stored {
    /// The step that writes it.
    from: usize,
    /// The step that reads it.
    to: usize,
    /// Its name.
    name: String,
    /// Its elements and sizes: `f32[8, 128]`.
    shape: String,
    /// Its bytes, where its sizes are known.
    bytes: Option<u64>,
    /// Why it is stored.
    why: String,
    /// Microseconds that one launch for both would gain, were there a kernel for it; below zero it would lose.
    gain_us: Option<f64>,
}

/// The values that steps store for others, in the order of the readers.
pub(super) fn stored(lines: &[Line], bindings: &Bindings) -> Vec<Stored> {
    let entry = |line: &Line| {
        let Line { from, to, name, ty, reason, gain } = line;
        let shape = ty.bound_shape(bindings).ok();
        let bytes = shape.as_ref().map(|shape| {
            let elements = shape.iter().fold(1_u64, |all, &size| all.saturating_mul(size as u64));
            elements.saturating_mul(ty.dtype.size() as u64)
        });
        Stored {
            from: from.index(),
            to: to.index(),
            name: name.clone(),
            shape: shape.map_or(ty.to_string(), |shape| format!("{}{shape:?}", ty.dtype)),
            bytes,
            why: reason.to_string(),
            gain_us: gain.map(|seconds| seconds * 1e6),
        }
    };
    lines.iter().map(entry).collect()
}
