//! Spans for a subscriber of the `tracing` crate; without the feature `tracing` they are nothing.
//!
//! `load` is a model's loading, `run` a run, with the shapes of its inputs, the sizes asked for, those that it is bound
//! to, and whether it is padded; `bind` within it, where sizes are bound that were not yet. What a span is told as text is
//! written only where somebody listens.

use std::fmt::Debug;

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

#[cfg(feature = "tracing")]
impl Span {
    /// Loading a model that computes with such elements, by such launches.
    pub(crate) fn load(dtype: impl Debug, execution: impl Debug) -> Self {
        tracing::info_span!("load", ?dtype, ?execution).into()
    }

    /// Binding a model to sizes.
    pub(crate) fn bind(sizes: impl FnOnce() -> String) -> Self {
        let span = tracing::debug_span!("bind", sizes = tracing::field::Empty);
        if !span.is_disabled() {
            span.record("sizes", sizes().as_str());
        }
        span.into()
    }

    /// A run.
    pub(crate) fn run(inputs: impl FnOnce() -> String) -> Self {
        use tracing::field::Empty;
        let span = tracing::info_span!(
            "run",
            inputs = Empty,
            sizes = Empty,
            bound = Empty,
            padded = Empty
        );
        if !span.is_disabled() {
            span.record("inputs", inputs().as_str());
        }
        span.into()
    }

    /// Says at which sizes the run of this span was asked for, and at which it takes place.
    pub(crate) fn bound(
        &self,
        padded: bool,
        asked: impl FnOnce() -> String,
        bound: impl FnOnce() -> String,
    ) {
        if !self.entered.is_disabled() {
            self.entered.record("sizes", asked().as_str());
            self.entered.record("bound", bound().as_str());
            self.entered.record("padded", padded);
        }
    }
}

#[cfg(not(feature = "tracing"))]
impl Span {
    pub(crate) fn load(_dtype: impl Debug, _execution: impl Debug) -> Self {
        Self {}
    }

    pub(crate) fn bind(_sizes: impl FnOnce() -> String) -> Self {
        Self {}
    }

    pub(crate) fn run(_inputs: impl FnOnce() -> String) -> Self {
        Self {}
    }

    pub(crate) fn bound(
        &self,
        _padded: bool,
        _asked: impl FnOnce() -> String,
        _bound: impl FnOnce() -> String,
    ) {
    }
}
