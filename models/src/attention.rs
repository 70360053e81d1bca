//! Masks and multi-head attention, decomposed as the exporter prints them.

use crate::blocks::{Entry, Module, cast, expand, linear, shape_of, size};
use crate::builder::{Attr, BOOL, Builder};
use crate::catalog::{Encoder, Family};
use crate::error::ZooError;

/// The additive mask `(1 - mask)·lowest` of `[batch, 1, 1, sequence]`.
pub(crate) fn additive_mask(b: &mut Builder) -> String {
    let scope = "";
    let rows = b.unsqueeze(scope, "attention_mask", 1);
    let heads = b.unsqueeze(scope, &rows, 2);
    let float = cast(b, scope, &heads, true);
    let one = b.float(scope, 1.0);
    let masked = b.op(scope, "Sub", &[&one, &float], &[]);
    let lowest = b.float(scope, f32::MIN);
    b.op(scope, "Mul", &[&masked, &lowest], &[])
}

/// Batch and sequence of a hidden state, as scalars of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: String,
    pub(crate) sequence: String,
}

impl Sizes {
    /// Reads both from `x`, `[batch, sequence, …]`.
    pub(crate) fn of(b: &mut Builder, scope: &str, x: &str) -> Self {
        let batch = size(b, scope, x, 0);
        let sequence = size(b, scope, x, 1);
        Self { batch, sequence }
    }
}

/// The mask of `[batch, 1, sequence, sequence]` that newer sources gather by index ranges and select,
/// and the sizes read on the way.
pub(crate) fn gathered_mask(b: &mut Builder, hidden: &str) -> (String, Sizes) {
    let scope = "";
    let mask = b.op(scope, "Cast", &["attention_mask"], &[Attr::Int("to", i64::from(BOOL))]);
    let sequence = size(b, scope, hidden, 1);
    let keys = size(b, scope, &mask, 1);
    let batch = size(b, scope, hidden, 0);
    let ranges = [&batch, &sequence, &keys].map(|end| {
        let end = cast(b, scope, end, false);
        let (start, step) = (b.int(scope, 0), b.int(scope, 1));
        b.op(scope, "Range", &[&start, &end, &step], &[])
    });
    let axes = [[1, 2, 3], [0, 1, 3], [0, 1, 2]];
    let mut grids = ranges;
    for (grid, axes) in grids.iter_mut().zip(axes) {
        for axis in axes {
            *grid = b.unsqueeze(scope, grid, axis);
        }
    }
    let [batches, rows, columns] = grids;
    let allowed = every_row(b, &rows);
    let seen = gather_mask(b, &mask, &batches, &columns);
    let both = b.op(scope, "And", &[&allowed, &seen], &[]);
    let shape =
        [Entry::Scalar(&batch), Entry::Known(-1), Entry::Scalar(&sequence), Entry::Scalar(&keys)];
    let full = expand(b, scope, &both, &shape);
    let (zero, lowest) = (b.float(scope, 0.0), b.float(scope, f32::MIN));
    let selected = b.op(scope, "Where", &[&full, &zero, &lowest], &[]);
    (selected, Sizes { batch, sequence })
}

/// The part of the mask that is true for every row of a bidirectional encoder.
fn every_row(b: &mut Builder, rows: &str) -> String {
    let scope = "";
    let scalar = b.ints(scope, &[]);
    let yes = b.op(scope, "ConstantOfShape", &[&scalar], &[Attr::True("value")]);
    let zero = b.int(scope, 0);
    let reached = if b.opset() < 12 {
        let below = b.op(scope, "Less", &[rows, &zero], &[]);
        b.op(scope, "Not", &[&below], &[])
    } else {
        b.op(scope, "GreaterOrEqual", &[rows, &zero], &[])
    };
    let reached = b.op(scope, "Cast", &[&reached], &[Attr::Int("to", i64::from(BOOL))]);
    b.op(scope, "And", &[&yes, &reached], &[])
}

/// `mask[batches, columns]` by a flat gather, as the exporter prints indexing by two tensors.
fn gather_mask(b: &mut Builder, mask: &str, batches: &str, columns: &str) -> String {
    let scope = "";
    let shape = b.op(scope, "Shape", &[mask], &[]);
    let one = b.ints(scope, &[1]);
    let stride = b.op(scope, "Gather", &[&shape, &one], &[Attr::Int("axis", 0)]);
    let flat = b.op(scope, "Flatten", &[mask], &[Attr::Int("axis", 2)]);
    let row = b.op(scope, "Mul", &[batches, &stride], &[]);
    let index = b.op(scope, "Add", &[columns, &row], &[]);
    let gathered = b.op(scope, "Gather", &[&flat, &index], &[Attr::Int("axis", 0)]);
    let shape = b.op(scope, "Shape", &[&index], &[]);
    let all = b.ints(scope, &[-1]);
    let line = b.reshape(scope, &gathered, &all);
    let shape = b.op(scope, "Concat", &[&shape], &[Attr::Int("axis", 0)]);
    let grid = b.reshape(scope, &line, &shape);
    b.op(scope, "Cast", &[&grid], &[Attr::Int("to", i64::from(BOOL))])
}

/// Self-attention on `x`, `[batch, sequence, hidden]`, up to and without the output projection.
///
/// With `sizes` the heads are split and merged by them, as newer sources do; without, each reshape
/// reads the shape of what it reshapes, as transformers 4 did.
pub(crate) fn self_attention(
    b: &mut Builder,
    module: &Module,
    config: &Encoder,
    x: &str,
    mask: &str,
    sizes: Option<&Sizes>,
) -> Result<String, ZooError> {
    let scope = module.scope.as_str();
    let head = config.hidden / config.heads;
    let [query, key, value] = match sizes {
        Some(sizes) => heads_by_sizes(b, module, config, x, sizes)?,
        None => heads_by_shape(b, module, config, x)?,
    };
    let scores = b.op(scope, "MatMul", &[&query, &key], &[]);
    let root = (head as f32).sqrt();
    let scaled = match sizes {
        Some(_) => {
            let scale = b.float(scope, 1.0 / root);
            b.op(scope, "Mul", &[&scores, &scale], &[])
        }
        None => {
            let root = b.float(scope, root);
            b.op(scope, "Div", &[&scores, &root], &[])
        }
    };
    let masked = b.op(scope, "Add", &[&scaled, mask], &[]);
    let weights = b.softmax(scope, &masked, 4);
    let context = b.op(scope, "MatMul", &[&weights, &value], &[]);
    let context = transpose(b, scope, &context, &[0, 2, 1, 3]);
    let shape = match sizes {
        Some(sizes) => shape_of(
            b,
            scope,
            &[Entry::Scalar(&sizes.batch), Entry::Scalar(&sizes.sequence), Entry::Known(-1)],
        ),
        None if config.family == Family::Albert => flattened(b, scope, &context),
        None => {
            let Sizes { batch, sequence } = Sizes::of(b, scope, &context);
            let hidden = Entry::Known(config.hidden as i64);
            shape_of(b, scope, &[Entry::Scalar(&batch), Entry::Scalar(&sequence), hidden])
        }
    };
    Ok(b.reshape(scope, &context, &shape))
}

/// Query, transposed key and value by heads, the shapes made first from `sizes`.
fn heads_by_sizes(
    b: &mut Builder,
    module: &Module,
    config: &Encoder,
    x: &str,
    sizes: &Sizes,
) -> Result<[String; 3], ZooError> {
    let scope = module.scope.as_str();
    let square = (config.hidden, config.hidden);
    let query = linear(b, &module.child("query"), x, square)?;
    let shape = [
        Entry::Scalar(&sizes.batch),
        Entry::Scalar(&sizes.sequence),
        Entry::Known(-1),
        Entry::Known((config.hidden / config.heads) as i64),
    ];
    let shapes: [String; 3] = std::array::from_fn(|_| shape_of(b, scope, &shape));
    let query = b.reshape(scope, &query, &shapes[0]);
    let query = transpose(b, scope, &query, &[0, 2, 1, 3]);
    let key = linear(b, &module.child("key"), x, square)?;
    let key = b.reshape(scope, &key, &shapes[1]);
    let value = linear(b, &module.child("value"), x, square)?;
    let value = b.reshape(scope, &value, &shapes[2]);
    let value = transpose(b, scope, &value, &[0, 2, 1, 3]);
    let key = transpose(b, scope, &key, &[0, 2, 3, 1]);
    Ok([query, key, value])
}

/// Query, transposed key and value by heads, each reshape reading its operand's shape.
fn heads_by_shape(
    b: &mut Builder,
    module: &Module,
    config: &Encoder,
    x: &str,
) -> Result<[String; 3], ZooError> {
    let scope = module.scope.as_str();
    let square = (config.hidden, config.hidden);
    let query = linear(b, &module.child("query"), x, square)?;
    let key = linear(b, &module.child("key"), x, square)?;
    let key = split(b, scope, config, &key);
    let value = linear(b, &module.child("value"), x, square)?;
    let value = split(b, scope, config, &value);
    let value = transpose(b, scope, &value, &[0, 2, 1, 3]);
    let query = split(b, scope, config, &query);
    let query = transpose(b, scope, &query, &[0, 2, 1, 3]);
    let key = transpose(b, scope, &key, &[0, 2, 3, 1]);
    Ok([query, key, value])
}

/// `[batch, sequence, hidden]` as `[batch, sequence, heads, head]`.
fn split(b: &mut Builder, scope: &str, config: &Encoder, x: &str) -> String {
    let Sizes { batch, sequence } = Sizes::of(b, scope, x);
    let shape = [
        Entry::Scalar(&batch),
        Entry::Scalar(&sequence),
        Entry::Known(config.heads as i64),
        Entry::Known((config.hidden / config.heads) as i64),
    ];
    let shape = shape_of(b, scope, &shape);
    b.reshape(scope, x, &shape)
}

/// The shape of `x` with all dims from the third on as one, as `flatten(2)` is exported.
fn flattened(b: &mut Builder, scope: &str, x: &str) -> String {
    let shape = b.op(scope, "Shape", &[x], &[]);
    let (axis, start, end) = (b.ints(scope, &[0]), b.ints(scope, &[0]), b.ints(scope, &[2]));
    let kept = b.op(scope, "Slice", &[&shape, &start, &end, &axis], &[]);
    let rest = b.ints(scope, &[-1]);
    b.op(scope, "Concat", &[&kept, &rest], &[Attr::Int("axis", 0)])
}

/// Transpose by `perm`.
pub(crate) fn transpose(b: &mut Builder, scope: &str, x: &str, perm: &[i64]) -> String {
    b.op(scope, "Transpose", &[x], &[Attr::Ints("perm", perm)])
}
