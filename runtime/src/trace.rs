//! Spans for a subscriber of the `tracing` crate; without the feature `tracing` they are nothing.
//!
//! `load` is a model's loading, `run` a run, with the shapes of its inputs, the sizes asked for, those that it is bound
//! to, and whether it is padded; `bind` within it, where sizes are bound that were not yet.

use crate::context::Input;
use crate::model::{Dtype, Execution, Model, Sizes};

/// A span that lasts until it is dropped.
#[must_use]
pub(crate) struct Span {
    #[cfg(feature = "tracing")]
    entered: tracing::span::EnteredSpan,
}

#[cfg(feature = "tracing")]
impl From<tracing::Span> for Span {
    fn from(span: tracing::Span) -> Self {
        Self { entered: span.entered() }
    }
}

/// What is passed for a span is written as text only where somebody listens.
#[cfg(feature = "tracing")]
impl Span {
    /// Loading a model.
    pub(crate) fn load(dtype: Dtype, execution: Execution) -> Self {
        tracing::info_span!("load", ?dtype, ?execution).into()
    }

    /// Binding a model to sizes.
    pub(crate) fn bind(model: &Model, sizes: &Sizes) -> Self {
        let span = tracing::debug_span!("bind", sizes = tracing::field::Empty);
        if !span.is_disabled() {
            span.record("sizes", text(model, sizes).as_str());
        }
        span.into()
    }

    /// A run.
    pub(crate) fn run(model: &Model, inputs: &[Input<'_>]) -> Self {
        use tracing::field::Empty;
        let span = tracing::info_span!(
            "run",
            inputs = Empty,
            sizes = Empty,
            bound = Empty,
            padded = Empty
        );
        if !span.is_disabled() {
            let ports = model.inputs().iter().zip(inputs);
            let text: Vec<String> =
                ports.map(|(port, input)| format!("{}: {input:?}", port.name())).collect();
            span.record("inputs", text.join(", ").as_str());
        }
        span.into()
    }

    /// Says at which sizes the run of this span was asked for, and at which it takes place.
    pub(crate) fn bound(&self, model: &Model, asked: &Sizes, bound: &Sizes) {
        if !self.entered.is_disabled() {
            self.entered.record("sizes", text(model, asked).as_str());
            self.entered.record("bound", text(model, bound).as_str());
            self.entered.record("padded", asked != bound);
        }
    }
}

#[cfg(not(feature = "tracing"))]
impl Span {
    pub(crate) fn load(_dtype: Dtype, _execution: Execution) -> Self {
        Self {}
    }

    pub(crate) fn bind(_model: &Model, _sizes: &Sizes) -> Self {
        Self {}
    }

    pub(crate) fn run(_model: &Model, _inputs: &[Input<'_>]) -> Self {
        Self {}
    }

    pub(crate) fn bound(&self, _model: &Model, _asked: &Sizes, _bound: &Sizes) {}
}

/// Sizes as text: `batch=8, sequence=128`.
#[cfg(feature = "tracing")]
fn text(model: &Model, sizes: &Sizes) -> String {
    model.bindings(sizes).map_or_else(
        // Sizes that no model can have: the run says so.
        |error| error.to_string(),
        |bindings| crate::model::sizes_text(&bindings),
    )
}
