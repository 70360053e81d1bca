//! A connection between its stream and hyper, which has no setting for what is done here.
//!
//! What HTTP's parser refuses, hyper answers by a status alone: it gets the body that every error has. A client that still
//! sends when its answer is written would see its connection reset, often before it has read the answer: the connection is
//! half closed, and what still comes is read and dropped for a while. And a client that doesn't say which HTTP it speaks,
//! or doesn't take its answer, would keep the connection for ever: it has `idle_ms`.

use crate::limits::Limits;
use axum::extract::Request;
use axum::http::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes by which HTTP/2 is told from HTTP/1.
const PREFACE: usize = 24;

/// So many times the largest body is read from a client that sends beyond its answer.
const LINGER_BODIES: u64 = 16;

/// The statuses that hyper's parser answers, and what they mean.
const REFUSALS: &[(&str, &str)] = &[
    (
        " 400 ",
        "this is no request of HTTP/1.1 or HTTP/2: its first line, a header, its Content-Length or its Transfer-Encoding is \
         malformed (or it is encrypted, and this server is not)",
    ),
    (" 414 ", "the request's target is longer than 65534 bytes"),
    (
        " 431 ",
        "the request's head is larger than 400 KiB, or has more than 100 headers, or a Content-Length beyond all sizes",
    ),
];

/// Whether some of the body of a connection's last request is left, as its requests tell its socket.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// A request whose body is watched, but for HTTP/2, where a request ends without its connection.
    pub(super) fn watch(&self, request: Request<Incoming>) -> Request<Watched> {
        let unread = (request.version() < Version::HTTP_2).then(|| self.clone());
        request.map(|body| {
            let watched = Watched { body, unread };
            watched.tell(true);
            watched
        })
    }

    fn set(&self, unread: bool) {
        self.0.store(unread, Ordering::Relaxed);
    }
}

/// A request's body that tells whether some of it is left.
pub(super) struct Watched {
    body: Incoming,
    unread: Option<Unread>,
}

impl Watched {
    fn tell(&self, goes_on: bool) {
        if let Some(unread) = &self.unread {
            unread.set(goes_on && !self.body.is_end_stream());
        }
    }
}

impl Body for Watched {
    type Data = hyper::body::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(task));
        self.tell(frame.is_some());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection's stream as hyper gets it.
pub(super) struct Socket<S> {
    stream: S,
    unread: Unread,
    /// An answer of the parser's: not sent until it is seen to be the last.
    held: Vec<u8>,
    /// Bytes that came.
    came: usize,
    /// Runs until enough came to tell which HTTP it is, and again once the connection has ended and lingers.
    waits: Option<Pin<Box<Sleep>>>,
    lingers: bool,
    /// Runs while the client takes nothing of an answer.
    stalls: Option<Pin<Box<Sleep>>>,
    limits: Limits,
    /// How many bytes are still dropped at most.
    dropped: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, unread: Unread, limits: Limits) -> Self {
        Self {
            stream,
            unread,
            held: Vec::new(),
            came: 0,
            waits: Some(timer(limits.idle_ms)),
            lingers: false,
            stalls: None,
            dropped: limits.body_bytes.saturating_mul(LINGER_BODIES),
            limits,
        }
    }

    /// What became of sending, or an error once the client has taken nothing for too long.
    fn poll_taken<T>(
        &mut self,
        task: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.stalls = None;
            return sent;
        }
        let stalls = self.stalls.get_or_insert_with(|| timer(self.limits.idle_ms));
        stalls.as_mut().poll(task).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends what was held.
    fn poll_held(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let sent = Pin::new(&mut self.stream).poll_write(task, &self.held);
            let sent = ready!(self.poll_taken(task, sent))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and drops what comes, until nothing more does or it is enough.
    fn poll_drop(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; 16 << 10];
        while self.dropped > 0 {
            if self.waits.as_mut().is_some_and(|waits| waits.as_mut().poll(task).is_ready()) {
                break;
            }
            let mut part = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(task, &mut part));
            if read.is_err() || part.filled().is_empty() {
                break;
            }
            self.dropped = self.dropped.saturating_sub(part.filled().len() as u64);
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_held(task))?;
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(task, into);
        self.came += into.filled().len() - before;
        if self.came >= PREFACE {
            self.waits = None;
        }
        match &mut self.waits {
            Some(waits) if read.is_pending() => {
                waits.as_mut().poll(task).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
            _ => read,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(task, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_held(task))?;
        if let [part] = parts
            && refusal(part).is_some()
        {
            self.held.extend_from_slice(part);
            return Poll::Ready(Ok(part.len()));
        }
        let sent = Pin::new(&mut self.stream).poll_write_vectored(task, parts);
        self.poll_taken(task, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(task);
        self.poll_taken(task, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.lingers {
            if let Some(answer) = refusal(&self.held) {
                self.held = answer;
                self.unread.set(true);
            }
            ready!(self.poll_held(task))?;
            let sent = Pin::new(&mut self.stream).poll_shutdown(task);
            ready!(self.poll_taken(task, sent))?;
            if !self.unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            self.waits = Some(timer(self.limits.read_ms));
            self.lingers = true;
        }
        self.poll_drop(task).map(Ok)
    }
}

fn timer(ms: u64) -> Pin<Box<Sleep>> {
    Box::pin(sleep(Duration::from_millis(ms)))
}

/// The answer that the parser should have given, if these bytes are one of its: all errors of ours have a body.
fn refusal(written: &[u8]) -> Option<Vec<u8>> {
    if !written.starts_with(b"HTTP/1.") || !written.ends_with(b"\r\n\r\n") || written.len() > 256 {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?;
    let status = head.get(8..)?;
    let (_, text) = REFUSALS.iter().find(|(refused, _)| status.starts_with(refused))?;
    let (before, after) = head.split_once("content-length: 0\r\n")?;
    let body = serde_json::json!({ "error": text }).to_string();
    let length = body.len();
    let answer = format!(
        "{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}{body}"
    );
    Some(answer.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn only_answers_without_a_body_are_the_parsers() {
        let bare = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
        let answer = String::from_utf8(refusal(bare.as_bytes()).unwrap()).unwrap();
        assert!(answer.contains("\r\n\r\n{\"error\":"), "{answer}");
        // What is written of a tensor's bytes may begin and end anywhere.
        for other in [
            &answer,
            &bare.replace("400", "200"),
            &bare.replace(": 0", ": 1"),
            &bare[..bare.len() - 1],
            &bare[1..],
            "HTTP/1.\u{e9} 400 \r\n\r\n",
            "HTTP/1.\r\n\r\n",
            "",
        ] {
            assert!(refusal(other.as_bytes()).is_none(), "{other:?}");
        }
    }
}
