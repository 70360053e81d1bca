//! A loaded version of a model, which answers requests.

use crate::batch::Batcher;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse};
use crate::limits::Limits;
use crate::metrics::{Metrics, Protocol, VersionMetrics};
use crate::statistics::{Counters, Statistics};
use crate::text::Text;
use graphene_runtime::{DType, Model};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A loaded version of a model. Once the last of its holders goes, so do its weights and threads.
pub struct Version {
    name: String,
    number: String,
    model: Model,
    config: ModelConfig,
    text: Option<Text>,
    counters: Arc<Counters>,
    limits: Limits,
    batcher: Batcher,
    metrics: OnceLock<VersionMetrics>,
}

impl Version {
    /// A version that answers requests from now on.
    ///
    /// # Errors
    /// [`Error::Server`] if the system gives no threads.
    pub(crate) fn new(
        (name, number): (&str, &str),
        model: Model,
        text: Option<Text>,
        config: ModelConfig,
        limits: Limits,
    ) -> Result<Self> {
        let counters = Arc::new(Counters::default());
        let batcher = Batcher::new(name, &model, &config, &limits, Arc::clone(&counters))?;
        let (name, number) = (name.to_owned(), number.to_owned());
        let metrics = OnceLock::new();
        Ok(Self { name, number, model, config, text, counters, limits, batcher, metrics })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version's, a number as text.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// The model: its inputs and outputs, and where it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its settings.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What requests may ask for.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Rows that a batch may have, one where requests are not put together.
    pub fn batch_rows(&self) -> usize {
        self.batcher.rows()
    }

    /// Batches that run side by side.
    pub fn contexts(&self) -> usize {
        self.batcher.contexts()
    }

    /// What was counted of its requests.
    pub fn statistics(&self) -> Statistics {
        self.counters.snapshot()
    }

    /// Runs it once, so that the first requests find memory there and kernels loaded.
    ///
    /// # Errors
    /// [`Error::Model`].
    pub(crate) fn warm(&self) -> Result<()> {
        self.batcher.warm()
    }

    /// What is worth knowing of how it runs: why requests are not put together or not padded, and the model's own notes.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.batcher.notes().iter().chain(self.model.notes()).map(|note| &**note)
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.batcher.waiting()
    }

    /// Records its requests there from now on, if it does not yet.
    pub(crate) fn measured_by(&self, metrics: &Metrics) {
        self.metrics.get_or_init(|| metrics.version(&self.name, &self.number));
    }

    /// Copies what was counted to where metrics are read.
    pub(crate) fn record_counted(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.counted(&self.statistics());
        }
    }

    /// Counts a request that was refused before it came to [`infer`](Self::infer).
    pub(crate) fn refused(&self, protocol: Protocol, error: &Error) {
        if let Some(metrics) = self.metrics.get() {
            metrics.failed(protocol, error);
        }
    }

    /// Its tokenizer, and what its outputs are for text.
    ///
    /// # Errors
    /// [`Error::NotText`] if it has none.
    pub fn text(&self) -> Result<&Text> {
        let reason = || "its folder has no tokenizer.json".to_owned();
        self.text
            .as_ref()
            .ok_or_else(|| Error::NotText { name: self.name.clone(), reason: reason() })
    }

    /// Checks an input's shape before anything is made of it, and gives the bytes that its elements take.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn check(&self, input: &str, dtype: DType, shape: &[usize]) -> Result<usize> {
        self.limits.check(input, dtype, shape)
    }

    /// Answers a request. Dropping the future cancels it: at once where it waits; where it runs, once nobody else waits
    /// for its batch.
    ///
    /// # Errors
    /// [`Error::Limit`] and [`Error::Malformed`] for a request that the model cannot take, [`Error::Busy`],
    /// [`Error::Deadline`], and [`Error::Model`] for what the runtime says.
    pub async fn infer(&self, request: InferRequest) -> Result<InferResponse> {
        self.answer(request, true).await
    }

    /// The same for a request that is one of several which come together: they wait for each other, so as to run together.
    ///
    /// # Errors
    /// As for [`infer`](Self::infer).
    pub(crate) async fn infer_among_others(&self, request: InferRequest) -> Result<InferResponse> {
        self.answer(request, false).await
    }

    async fn answer(&self, mut request: InferRequest, alone: bool) -> Result<InferResponse> {
        let began = Instant::now();
        let latest = began + self.limits.deadline();
        request.deadline = Some(request.deadline.map_or(latest, |asked| asked.min(latest)));
        let protocol = request.protocol;
        let metrics = self.metrics.get();
        let running = metrics.map(VersionMetrics::running);
        let answer = self.batcher.submit(request, alone).await;
        drop(running);
        let whole = began.elapsed();
        match &answer {
            Ok(response) => {
                self.counters.answered(response.ran.queued, whole);
                if let Some(metrics) = metrics {
                    metrics.answered(protocol, &response.ran, whole);
                }
            }
            Err(error) => {
                self.counters.failed(whole);
                if let Some(metrics) = metrics {
                    metrics.failed(protocol, error);
                }
            }
        }
        answer
    }
}
