//! A body that may not keep us waiting.

use axum::body::{Body, Bytes, HttpBody};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A body whose next part has to come within a time; after that it fails by `DEADLINE_EXCEEDED`.
pub(super) struct Patient {
    body: Body,
    patience: Duration,
    /// Runs while the next part is waited for, which few bodies need.
    waits: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(super) fn new(body: Body, patience: Duration) -> Self {
        Self { body, patience, waits: None }
    }
}

type Frame = hyper::body::Frame<Bytes>;

impl HttpBody for Patient {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(task) {
            self.waits = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        waits.as_mut().poll(task).map(|()| {
            let text =
                format!("no part of the request came for {} ms (read_ms)", patience.as_millis());
            Some(Err(Status::deadline_exceeded(text).into()))
        })
    }
}
