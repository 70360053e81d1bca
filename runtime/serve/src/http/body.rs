//! Bodies of requests: read within limits, and bodies of responses that are not copied together.

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::server::blocking;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use flate2::read::{GzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, SizeHint};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Elements lie at multiples of this, where they can.
const ALIGNMENT: usize = 16;

/// Bytes that are unpacked or parsed on the thread of a connection; more of them would keep others waiting.
pub(super) const SHORT: usize = 1 << 20;

/// A request's body, whole and unpacked, whatever its Content-Type.
///
/// The byte at `aligned` lies where tensors can be made of it without a copy, if the body came in several parts: one that
/// came with the request's head stays where it was read.
///
/// # Errors
/// [`Error::Body`] if it is or becomes larger than `body_bytes`; [`Error::SlowBody`] if there are more than `read_ms`
/// between two of its parts; [`Error::Encoding`]; [`Error::Malformed`] if it ends early, or is not what its encoding says.
pub(super) async fn read(
    limits: &Limits,
    headers: &HeaderMap,
    body: Body,
    aligned: usize,
) -> Result<Bytes> {
    let encoding = Encoding::of(headers)?;
    let bytes = collect(limits, body, aligned).await?;
    let limit = limits.body_bytes;
    match encoding {
        Encoding::Identity => Ok(bytes),
        packed if bytes.len() < SHORT / 16 => packed.unpack(&bytes, limit),
        packed => blocking(move || packed.unpack(&bytes, limit)).await,
    }
}

async fn collect(limits: &Limits, mut body: Body, aligned: usize) -> Result<Bytes> {
    let limit = limits.body_bytes;
    let beyond = |length: u64| if length > limit { Err(Error::Body { limit }) } else { Ok(()) };
    let known = body.size_hint().exact();
    beyond(known.unwrap_or(0))?;
    let Some(first) = part(limits, &mut body).await? else { return Ok(Bytes::new()) };
    beyond(first.len() as u64)?;
    if known == Some(first.len() as u64) {
        return Ok(first);
    }
    let mut second = part(limits, &mut body).await?;
    if second.is_none() {
        return Ok(first);
    }
    // Memory that was reserved is taken as it is written, so a length that is only claimed takes none.
    let known = known.and_then(|length| usize::try_from(length).ok());
    let mut all = Vec::with_capacity(known.unwrap_or(2 * first.len()) + ALIGNMENT);
    let ahead = aligned.wrapping_neg() % ALIGNMENT;
    all.resize(ahead, 0);
    all.extend_from_slice(&first);
    drop(first);
    while let Some(next) = second {
        beyond((all.len() - ahead + next.len()) as u64)?;
        all.extend_from_slice(&next);
        second = part(limits, &mut body).await?;
    }
    Ok(Bytes::from(all).slice(ahead..))
}

/// The next part of a body that has bytes.
async fn part(limits: &Limits, body: &mut Body) -> Result<Option<Bytes>> {
    let pause = Duration::from_millis(limits.read_ms);
    loop {
        let frame = tokio::time::timeout(pause, body.frame()).await;
        let frame = frame.map_err(|_| Error::SlowBody { ms: limits.read_ms })?;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|error| {
            Error::malformed(format!("the body ended early or is not well formed: {error}"))
        })?;
        if let Ok(bytes) = frame.into_data()
            && !bytes.is_empty()
        {
            return Ok(Some(bytes));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Encoding {
    Identity,
    Gzip,
    /// Deflate in zlib's format, as HTTP has it.
    Deflate,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Result<Self> {
        let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(Self::Identity) };
        let found = String::from_utf8_lossy(value.as_bytes());
        match found.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "deflate" => Ok(Self::Deflate),
            _ => Err(Error::Encoding { found: found.chars().take(40).collect() }),
        }
    }

    fn unpack(self, packed: &[u8], limit: u64) -> Result<Bytes> {
        let mut unpacked = Vec::with_capacity(packed.len().saturating_mul(2));
        let read = match self {
            Self::Identity => packed.take(limit + 1).read_to_end(&mut unpacked),
            Self::Gzip => GzDecoder::new(packed).take(limit + 1).read_to_end(&mut unpacked),
            Self::Deflate => ZlibDecoder::new(packed).take(limit + 1).read_to_end(&mut unpacked),
        };
        read.map_err(|error| Error::malformed(format!("the body is not {self:?}: {error}")))?;
        if unpacked.len() as u64 > limit {
            return Err(Error::Body { limit });
        }
        Ok(Bytes::from(unpacked))
    }
}

/// A response's body of parts that lie where they are.
pub(super) struct Parts {
    parts: VecDeque<Bytes>,
    length: u64,
}

impl Parts {
    pub(super) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let length = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, length }
    }
}

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.length -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}
