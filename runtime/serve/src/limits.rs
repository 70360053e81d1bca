//! What a request may ask for at most.

use crate::error::{Error, Result};
use graphene_runtime::DType;
use serde::Deserialize;
use std::time::Duration;

/// What a request may ask for at most. `[limits]` of the server's settings.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// The rank of a tensor.
    pub rank: usize,
    /// Elements of a tensor.
    pub elements: u64,
    /// Rows of a request along the batch dim, and texts of a request.
    pub rows: usize,
    /// Inputs of a request.
    pub inputs: usize,
    /// Requests that wait for a model.
    pub queue: usize,
    /// Bytes of the inputs of requests that wait for a model.
    pub queue_bytes: u64,
    /// The time that a request may take at most, in milliseconds; one that asks for less gets less.
    pub deadline_ms: u64,
    /// Connections at a time.
    pub connections: usize,
    /// The time between two parts of a request's body, in milliseconds.
    pub read_ms: u64,
    /// The time for a request's head, and that in which a client takes nothing of its answer; also how long a connection may
    /// be idle, in milliseconds. One of HTTP/2 is asked after it whether the client is there.
    pub idle_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            rank: 16,
            elements: 64 << 20,
            rows: 4096,
            inputs: 256,
            queue: 1024,
            queue_bytes: 1 << 30,
            deadline_ms: 60_000,
            connections: 4096,
            read_ms: 10_000,
            idle_ms: 75_000,
        }
    }
}

impl Limits {
    /// The longest that a request may take.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    /// Checks an input's shape before anything is made of it, and gives the bytes that its elements take.
    ///
    /// # Errors
    /// [`Error::Limit`] for a rank or a number of elements beyond these.
    pub fn check(&self, input: &str, dtype: DType, shape: &[usize]) -> Result<usize> {
        let beyond = |what: &str, found: u64, limit: u64, setting| {
            let what = format!("the {what} of input {input:?}");
            Error::Limit { what, found, limit, setting }
        };
        if shape.len() > self.rank {
            return Err(beyond("rank", shape.len() as u64, self.rank as u64, "rank"));
        }
        // A zero beside sizes whose product overflows is no reason to let those through.
        let elements =
            shape.iter().try_fold(1_u64, |all, &size| all.checked_mul(size.max(1) as u64));
        let elements = elements.unwrap_or(u64::MAX);
        if elements > self.elements {
            return Err(beyond("number of elements", elements, self.elements, "elements"));
        }
        Ok(shape.iter().product::<usize>() * dtype.size())
    }
}
