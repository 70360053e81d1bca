//! How requests run: rows of several of them together where that is exact.

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse, Ran};
use crate::statistics::{Counters, Spent};
use graphene_runtime::{Model, Pool, Request, RunOptions};
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct Batcher {
    name: String,
    pool: Pool,
    counters: Arc<Counters>,
}

impl Batcher {
    pub(crate) fn new(
        name: &str,
        model: &Model,
        config: &ModelConfig,
        queue: usize,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let pool = Pool::builder(model).contexts(config.contexts).queue(queue).build();
        let pool = pool.map_err(|error| Error::Model { name: name.to_owned(), error })?;
        Ok(Self { name: name.to_owned(), pool, counters })
    }

    pub(crate) fn rows(&self) -> usize {
        1
    }

    pub(crate) async fn submit(&self, request: InferRequest) -> Result<InferResponse> {
        let failed = |error| Error::Model { name: self.name.clone(), error };
        let asked = request.outputs;
        let mut all = Request::new();
        for (name, tensor) in request.inputs {
            all = all.named(&name, tensor);
        }
        let mut options = RunOptions::new();
        if let Some(deadline) = request.deadline {
            options = options.deadline(deadline);
        }
        let began = Instant::now();
        let outputs = self.pool.submit(all, &options).map_err(failed)?.await.map_err(failed)?;
        self.counters.batch(1, 1, Spent { infer: began.elapsed(), ..Spent::default() });
        let outputs = outputs.iter().map(|(name, tensor)| (name.to_owned(), tensor.clone()));
        let mut outputs: Vec<_> = outputs.collect();
        if !asked.is_empty() {
            outputs.retain(|(name, _)| asked.contains(name));
            outputs.sort_by_key(|(name, _)| asked.iter().position(|one| one == name));
        }
        let ran = Ran { computed: began.elapsed(), ..Ran::default() };
        Ok(InferResponse { outputs, ran })
    }
}
