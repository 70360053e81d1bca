//! What all protocols make of a request for inference, and what they are given back.

use crate::metrics::Protocol;
use graphene_runtime::Tensor;
use std::time::{Duration, Instant};

/// A request: tensors by the names of the model's inputs.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// What the client calls it; for logs.
    pub id: String,
    /// Inputs by name, each once.
    pub inputs: Vec<(String, Tensor)>,
    /// The outputs to give, in this order; all of the model's where there are none.
    pub outputs: Vec<String>,
    /// When the client no longer waits.
    pub deadline: Option<Instant>,
    /// How it came; for metrics.
    pub protocol: Protocol,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct InferResponse {
    /// Outputs by name, in the order asked for.
    pub outputs: Vec<(String, Tensor)>,
    /// How it ran.
    pub ran: Ran,
}

/// How a request ran: enough to run it again alone with the same result, bit for bit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ran {
    /// The sizes of the model's dims at which the batch ran.
    pub sizes: Vec<(String, usize)>,
    /// The row of the batch that the request's first row was.
    pub row: usize,
    /// The time that it waited for a context.
    pub queued: Duration,
    /// The time in the model, shared by all requests of the batch.
    pub computed: Duration,
}
