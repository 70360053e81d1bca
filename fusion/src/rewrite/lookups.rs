//! What takes elements by indices, as rows of a table: one template of a GPU looks up rows along the first axis. A lookup along
//! another axis is one of rows whose numbers count the axes before it as well; so are those by several indices each, and those
//! of single elements. Borders that mirror or repeat an image are lookups by indices that are known. Those that a caller gives
//! stay as they are, and run on the host, which checks them.
//!
//! ```text
//! Gather along axis 1 of [b, n, d] by i[k]  =  rows of [b·n, d] by n·(0 .. b)[b, 1] + i[1, k]
//! ```

use crate::base::elements::is_real;
use crate::base::rebuild::{InPlace, Rebuilt, Replaced, rebuilt};
use graphene_frontend::eval::pad_sources;
use graphene_frontend::op::{Binary, Op, PadMode};
use graphene_frontend::{DType, Dim, Graph, Tensor, ValueId};

/// The graph with lookups along the first axis in place of all others, where the template has their elements.
pub(crate) fn as_rows(graph: &Graph) -> Rebuilt<Graph> {
    rebuilt(graph, |mut at, _, inputs| {
        let Some(table) = inputs.first().copied().flatten() else { return Ok(None) };
        let dtype = at.graph.ty(table).dtype;
        if !is_real(dtype) && !moves_as_real(dtype) {
            return Ok(None);
        }
        let given = inputs.get(1).copied().flatten().is_some_and(|of| is_given(at.graph, of));
        let op = at.node.op();
        // Whoever runs the plan refuses what lies outside, which could not be seen in sums of indices.
        let taken = if let Op::Gather { axis: 0 } = op { moves_as_real(dtype) } else { !given };
        match (op, inputs) {
            (Op::Gather { axis }, &[_, Some(indices)]) if taken => {
                at.along(table, *axis, indices).map(Some)
            }
            (Op::GatherElements { axis }, &[_, Some(indices)]) if taken => {
                at.elements(table, *axis, indices).map(Some)
            }
            (Op::GatherNd { batch_dims }, &[_, Some(indices)]) if taken => {
                at.tuples(table, *batch_dims, indices)
            }
            (Op::Pad { mode, before, .. }, _) if *mode != PadMode::Constant => {
                at.border(table, *mode, before)
            }
            _ => Ok(None),
        }
    })
}

/// Whether the template moves elements as reals: in single precision, or in half precision if that is asked for; both have
/// all integers of eight bits.
fn moves_as_real(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::I8 | DType::U8)
}

/// Whether a value is an input but for its shape and the width of its integers.
fn is_given(graph: &Graph, value: ValueId) -> bool {
    let passes =
        |op: &Op| matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Expand(_) | Op::Cast { .. });
    *graph.operation(graph.through(value, passes)).0 == Op::Input
}

impl InPlace<'_> {
    fn shape(&self, value: ValueId) -> Vec<Dim> {
        self.graph.ty(value).shape.clone()
    }

    fn size(&mut self, size: &Dim) -> Rebuilt<ValueId> {
        match size.known() {
            Some(size) => Ok(self.constant(Tensor::scalar(size))),
            None => self.add(Op::Size(size.clone()), &[]),
        }
    }

    fn scaled(&mut self, value: ValueId, by: &Dim) -> Rebuilt<ValueId> {
        if *by == 1 {
            return Ok(value);
        }
        let by = self.size(by)?;
        self.binary(Binary::Mul, value, by)
    }

    /// `0, step, 2·step, …` along one of so many axes.
    fn counted(&mut self, len: &Dim, step: &Dim, [axis, rank]: [usize; 2]) -> Rebuilt<ValueId> {
        let mut shape = vec![Dim::from(1); rank];
        shape[axis] = len.clone();
        let range = self.add(Op::Iota(len.clone()), &[])?;
        let range = self.scaled(range, step)?;
        self.add(Op::Reshape(shape), &[range])
    }

    /// Indices of an axis of this size, none of which counts from its end.
    fn wrapped(&mut self, indices: ValueId, size: &Dim) -> Rebuilt<ValueId> {
        let known = self.graph.constant(indices).and_then(|known| known.as_slice::<i64>().ok());
        if known.is_some_and(|known| known.iter().all(|&index| index >= 0)) {
            return Ok(indices);
        }
        let size = self.size(size)?;
        let zero = self.size(&Dim::from(0))?;
        let negative = self.binary(Binary::Less, indices, zero)?;
        let behind = self.binary(Binary::Add, indices, size)?;
        self.add(Op::Select, &[negative, behind, indices])
    }

    /// The rows of these numbers, of a value whose first `axes` axes are those of the rows; they are elements of `shape`.
    fn rows(
        &mut self,
        table: ValueId,
        axes: usize,
        numbers: ValueId,
        shape: Vec<Dim>,
    ) -> Rebuilt<ValueId> {
        let from = self.shape(table);
        let (rows, row) = from.split_at(axes);
        let dtype = self.graph.ty(table).dtype;
        let mut sizes = vec![product(rows)];
        sizes.extend((!row.is_empty()).then(|| product(row)));
        let table = self.add(Op::Reshape(sizes), &[table])?;
        let table = self.cast(if moves_as_real(dtype) { DType::F32 } else { dtype }, table)?;
        let taken = self.add(Op::Gather { axis: 0 }, &[table, numbers])?;
        let taken = self.cast(dtype, taken)?;
        self.add(Op::Reshape(shape), &[taken])
    }

    fn along(&mut self, table: ValueId, axis: usize, indices: ValueId) -> Rebuilt<ValueId> {
        let (from, by) = (self.shape(table), self.shape(indices));
        let shape = [&from[..axis], &by, &from[axis + 1..]].concat();
        if axis == 0 {
            return self.rows(table, 1, indices, shape);
        }
        let before = product(&from[..axis]);
        let indices = self.cast(DType::I64, indices)?;
        let indices = self.wrapped(indices, &from[axis])?;
        let own = self.add(Op::Reshape(vec![Dim::from(1), product(&by)]), &[indices])?;
        let first = self.counted(&before, &from[axis], [0, 2])?;
        let numbers = self.binary(Binary::Add, first, own)?;
        self.rows(table, axis + 1, numbers, shape)
    }

    /// Lookups of single elements, all of whose other coordinates are the result's.
    fn elements(&mut self, table: ValueId, axis: usize, indices: ValueId) -> Rebuilt<ValueId> {
        let (from, shape) = (self.shape(table), self.shape(indices));
        let indices = self.cast(DType::I64, indices)?;
        let own = self.wrapped(indices, &from[axis])?;
        let mut numbers = self.scaled(own, &product(&from[axis + 1..]))?;
        for (other, len) in shape.iter().enumerate() {
            if other != axis && *len != 1 {
                let step = product(&from[other + 1..]);
                let counted = self.counted(len, &step, [other, shape.len()])?;
                numbers = self.binary(Binary::Add, numbers, counted)?;
            }
        }
        self.rows(table, from.len(), numbers, shape)
    }

    /// Lookups by several indices each, which lie along the last axis.
    fn tuples(&mut self, table: ValueId, batch: usize, indices: ValueId) -> Replaced {
        let (from, by) = (self.shape(table), self.shape(indices));
        let Some((count, shape)) = by.split_last() else { return Ok(None) };
        let count = count.known().and_then(|count| usize::try_from(count).ok());
        let Some(count) = count.filter(|count| *count > 0) else { return Ok(None) };
        let axes = batch + count;
        let step = |axis: usize| product(&from[axis + 1..axes]);
        let mut numbers = None;
        let indices = self.cast(DType::I64, indices)?;
        for number in 0..count {
            let start = Dim::from(number as i64);
            let own = self.slice(indices, shape.len(), start, Dim::from(1))?;
            let own = self.add(Op::Reshape(shape.to_vec()), &[own])?;
            let own = self.wrapped(own, &from[batch + number])?;
            let own = self.scaled(own, &step(batch + number))?;
            numbers = Some(match numbers {
                Some(sum) => self.binary(Binary::Add, sum, own)?,
                None => own,
            });
        }
        let Some(mut numbers) = numbers else { return Ok(None) };
        for axis in 0..batch {
            if shape[axis] != 1 {
                let counted = self.counted(&shape[axis], &step(axis), [axis, shape.len()])?;
                numbers = self.binary(Binary::Add, numbers, counted)?;
            }
        }
        let to = [shape, &from[axes..]].concat();
        self.rows(table, axes, numbers, to).map(Some)
    }

    /// A value with a border of its own elements; the sizes of axes that have one are known.
    fn border(&mut self, value: ValueId, mode: PadMode, before: &[Dim]) -> Replaced {
        let (from, to) = (self.shape(value), self.node.outputs()[0].shape.clone());
        // The places that an axis's elements have before it has a border.
        let places = |axis: usize| {
            let known = |dim: &Dim| usize::try_from(dim.known()?).ok();
            let (given, wanted) = (known(&from[axis]).filter(|size| *size > 0)?, known(&to[axis])?);
            let sources = pad_sources(&[given], &[wanted], mode, &[before[axis].known()?]).ok()?;
            let places: Vec<usize> = sources[0].iter().flatten().copied().collect();
            (places.len() == wanted).then_some((axis, places))
        };
        let axes = (0..from.len()).filter(|&axis| from[axis] != to[axis] || before[axis] != 0);
        let Some(places) = axes.map(places).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut made = value;
        for (axis, places) in places {
            let places = self.places(places);
            made = self.along(made, axis, places)?;
        }
        Ok((made != value).then_some(made))
    }
}

fn product(dims: &[Dim]) -> Dim {
    dims.iter().product()
}
