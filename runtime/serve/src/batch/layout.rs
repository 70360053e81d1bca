//! Along which axes requests are put together, and along which they are padded.

use crate::config::BatchConfig;
use graphene_runtime::{DimAxes, Model};

/// The axes of a model's inputs and outputs that requests differ along.
pub(super) struct Layout {
    rows: Option<Rows>,
    notes: Vec<String>,
}

/// A batch dim, which is the first axis of all inputs and outputs.
struct Rows {
    batch: String,
    length: Option<DimAxes>,
}

impl Layout {
    /// That of a model. Where the plan does not prove that rows are independent, requests run one by one; where it does
    /// not prove that padding is exact, requests of one length run together.
    pub(super) fn of(model: &Model, config: &BatchConfig) -> Self {
        let mut notes = Vec::new();
        let rows = if config.enabled { Self::rows(model, &mut notes) } else { None };
        Self { rows, notes }
    }

    fn rows(model: &Model, notes: &mut Vec<String>) -> Option<Rows> {
        let first = model.inputs().first()?.dims().first()?.clone();
        let Some(batch) = model.dims().find(|dim| first.to_string() == **dim) else {
            notes.push(format!(
                "requests run one by one: the first axis of {} is no dim of its own",
                model.inputs()[0]
            ));
            return None;
        };
        let axes = match model.independent(batch) {
            Ok(axes) => axes,
            Err(why) => {
                notes.push(format!("requests run one by one: {why}"));
                return None;
            }
        };
        if !axes.inputs.iter().chain(&axes.outputs).all(|axes| **axes == [0]) {
            notes.push(format!(
                "requests run one by one: `{batch}` is not the first axis of all inputs and outputs"
            ));
            return None;
        }
        Some(Rows { batch: batch.to_owned(), length: Self::length(model, batch, notes) })
    }

    /// The only other dim, if requests may be padded along it.
    fn length(model: &Model, batch: &str, notes: &mut Vec<String>) -> Option<DimAxes> {
        let mut others = model.dims().filter(|dim| *dim != batch);
        let length = others.next()?;
        if others.next().is_some() {
            notes
                .push("requests of one shape run together: they differ in several dims".to_owned());
            return None;
        }
        match model.paddable(length) {
            Ok(axes) => Some(axes.clone()),
            Err(why) => {
                notes.push(format!("requests of one length run together: {why}"));
                None
            }
        }
    }

    /// Whether requests are put together at all.
    pub(super) fn together(&self) -> bool {
        self.rows.is_some()
    }

    /// The batch dim, if requests are put together.
    pub(super) fn batch(&self) -> Option<&str> {
        self.rows.as_ref().map(|rows| &*rows.batch)
    }

    /// Whether requests of different lengths are.
    pub(super) fn padded(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.length.is_some())
    }

    /// What is worth knowing of it.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The axes of an input that are as long as the longest request of a batch.
    pub(super) fn input_lengths(&self, input: usize) -> &[usize] {
        self.lengths().map_or(&[], |axes| &axes.inputs[input])
    }

    /// The axes of an output that are cut to a request's length.
    pub(super) fn output_lengths(&self, output: usize) -> &[usize] {
        self.lengths().map_or(&[], |axes| &axes.outputs[output])
    }

    fn lengths(&self) -> Option<&DimAxes> {
        self.rows.as_ref()?.length.as_ref()
    }

    /// What the shapes of a request's inputs say: rows, length, and all other sizes, which requests of a batch have in
    /// common. `None` where they contradict each other, which the runtime explains better alone.
    pub(super) fn measure(&self, shapes: &[&[usize]]) -> Option<Measure> {
        self.rows.as_ref()?;
        let rows = *shapes.first()?.first()?;
        let (mut length, mut others) = (None, Vec::new());
        for (input, shape) in shapes.iter().enumerate() {
            if shape.first() != Some(&rows) {
                return None;
            }
            let along = self.input_lengths(input);
            for (axis, &size) in shape.iter().enumerate().skip(1) {
                match (along.contains(&axis), length) {
                    (false, _) => others.push(size),
                    (true, None) => length = Some(size),
                    (true, Some(before)) if before == size => {}
                    (true, Some(_)) => return None,
                }
            }
        }
        let length = length.unwrap_or(1);
        (rows > 0 && length > 0).then_some(Measure { rows, length, others })
    }
}

/// What the shapes of a request say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Measure {
    /// Rows along the batch dim.
    pub(super) rows: usize,
    /// The size of the padded dim, one where there is none.
    pub(super) length: usize,
    /// All other sizes.
    pub(super) others: Vec<usize>,
}
