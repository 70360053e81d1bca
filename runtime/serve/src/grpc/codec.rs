//! Messages from frames and back.

use super::wire::malformed;
use crate::error::{Error, Result};
use crate::server::Server;
use bytes::Buf;
use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Bytes of a request that has no tensors: more than any needs, and few enough to be decoded without a second look.
pub(super) const CONTROL_BYTES: u64 = 1 << 20;

/// A message that clients send.
pub(super) trait Ask: Message + Default + 'static {
    /// Bytes that it may have.
    fn limit(_server: &Server) -> u64 {
        CONTROL_BYTES
    }

    /// Looks at an encoded message before memory is taken for its parts.
    ///
    /// # Errors
    /// What is wrong with it.
    fn look(_server: &Server, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A codec that reads `Q` and writes `A`. What cannot be decoded is an item too, so that a stream goes on after it:
/// where a message ends is known all the same.
pub(super) struct Frames<Q, A> {
    server: Server,
    messages: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Frames<Q, A> {
    pub(super) fn new(server: &Server) -> Self {
        Self { server: server.clone(), messages: PhantomData }
    }
}

impl<Q: Ask, A: Message + 'static> Codec for Frames<Q, A> {
    type Encode = A;
    type Decode = Result<Q>;
    type Encoder = Write<A>;
    type Decoder = Read<Q>;

    fn encoder(&mut self) -> Write<A> {
        Write(PhantomData)
    }

    fn decoder(&mut self) -> Read<Q> {
        Read { server: self.server.clone(), messages: PhantomData }
    }
}

pub(super) struct Read<Q> {
    server: Server,
    messages: PhantomData<fn() -> Q>,
}

impl<Q: Ask> Decoder for Read<Q> {
    type Item = Result<Q>;
    type Error = Status;

    fn decode(
        &mut self,
        frame: &mut DecodeBuf<'_>,
    ) -> std::result::Result<Option<Result<Q>>, Status> {
        // Shares the frame's memory, and tensors share it on.
        let bytes = frame.copy_to_bytes(frame.remaining());
        let looked = Q::look(&self.server, &bytes);
        Ok(Some(looked.and_then(|()| Q::decode(bytes).map_err(malformed))))
    }
}

pub(super) struct Write<A>(PhantomData<fn(A)>);

impl<A: Message> Encoder for Write<A> {
    type Item = A;
    type Error = Status;

    fn encode(&mut self, message: A, frame: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        // All at once: growing piece by piece would copy outputs again and again.
        frame.reserve(message.encoded_len());
        message.encode(frame).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The most that a message may have, as tonic takes it.
pub(super) fn limit<Q: Ask>(server: &Server) -> usize {
    usize::try_from(Q::limit(server)).unwrap_or(usize::MAX)
}

/// What tonic says of a message that it could not read.
pub(super) fn unread<Q: Ask>(server: &Server, status: Status) -> Status {
    use tonic::Code;
    match status.code() {
        // Its own words for a message, or a compressed one, beyond the limit.
        Code::OutOfRange | Code::ResourceExhausted => {
            super::call::status(&Error::Body { limit: Q::limit(server) })
        }
        _ => status,
    }
}
