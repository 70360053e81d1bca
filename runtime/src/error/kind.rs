//! Kinds and codes of errors: what a caller decides by.

use super::Error;
use graphene_frontend::eval::EvalError;
use graphene_frontend::import::ImportError;
use graphene_frontend::infer::InferError;

/// Whose fault an error is, and what a caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request does not fit the model: another request may.
    Request,
    /// A limit is in the way: a smaller request, or a larger limit, helps.
    Limit,
    /// Too many requests wait: the same request may do later.
    Busy,
    /// The caller cancelled.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// The model is malformed, or cannot be read.
    Model,
    /// The model or the machine asks for something that is not supported.
    Unsupported,
    /// The device or its libraries failed.
    Device,
    /// A defect of this crate.
    Bug,
}

impl Error {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        self.class().0
    }

    /// A number that stays the same from version to version: of kind Request 1xx, Limit 2xx, Busy 3xx, Cancelled 4xx,
    /// Deadline 5xx, Model 6xx, Unsupported 7xx, Device 8xx, Bug 9xx. An error at a step or a weight has that of its
    /// cause.
    pub fn code(&self) -> u16 {
        self.class().1
    }

    fn class(&self) -> (ErrorKind, u16) {
        use ErrorKind::{Bug, Busy, Cancelled, Deadline, Device, Limit, Model, Request};
        match self {
            Self::At { error, .. } => error.class(),
            Self::UnknownPort { .. } => (Request, 101),
            Self::MissingInput { .. } => (Request, 102),
            Self::RepeatedPort { .. } => (Request, 103),
            Self::InputCount { .. } => (Request, 104),
            Self::Input { .. } => (Request, 105),
            Self::Output { .. } => (Request, 106),
            Self::Conflict { .. } => (Request, 107),
            Self::Unsized { .. } => (Request, 108),
            Self::Profile { .. } => (Request, 109),
            Self::UnknownDim { .. } => (Request, 110),
            Self::Dim(_) => (Request, 111),
            Self::Infer(error) if matches!(**error, InferError::Size(_)) => (Limit, 206),
            Self::Infer(_) => (Request, 112),
            Self::Index { .. } => (Request, 113),
            Self::Largest { .. } => (Request, 114),
            Self::NeedsSize { .. } => (Request, 115),
            Self::NeedsValue { .. } => (Request, 116),
            Self::Tensor(_) => (Request, 117),
            Self::Negative { .. } => (Request, 118),
            Self::Contradiction { .. } => (Request, 120),
            Self::Role { .. } => (Request, 121),
            Self::NoSize { .. } => (Request, 122),
            Self::NotContiguous { .. } => (Request, 123),
            Self::EmptyProfile { .. } => (Request, 124),
            Self::Eval(error) => of_evaluation(error),
            Self::TooLarge { .. } => (Limit, 201),
            Self::Exceeds { .. } => (Limit, 202),
            Self::MemoryLimit { .. } => (Limit, 203),
            Self::Memory { .. } => (Limit, 204),
            Self::DeviceMemory { .. } => (Limit, 205),
            Self::Oversized { .. } => (Limit, 207),
            Self::Busy { .. } => (Busy, 301),
            Self::Cancelled => (Cancelled, 401),
            Self::Deadline => (Deadline, 501),
            Self::Read { .. } => (Model, 601),
            Self::Import(error) => of_import(error),
            Self::Baked { .. } => (Model, 607),
            Self::Unsupported { .. } => (ErrorKind::Unsupported, 702),
            Self::Refused(_) => (ErrorKind::Unsupported, 703),
            Self::Elements { .. } => (ErrorKind::Unsupported, 705),
            Self::Target { .. } => (ErrorKind::Unsupported, 706),
            #[cfg(feature = "cuda")]
            Self::MissingLibrary(_) => (Device, 801),
            #[cfg(feature = "cuda")]
            Self::OldLibrary(_) => (Device, 802),
            Self::NoDevice { .. } => (Device, 803),
            Self::Device { .. } => (Device, 804),
            Self::Unhealthy { .. } => (Device, 805),
            Self::Threads { .. } => (Device, 806),
            Self::Compile { .. } => (Bug, 901),
            Self::Plan(_) => (Bug, 902),
            Self::Kernel(_) => (Bug, 903),
            Self::Parameters { .. } => (Bug, 904),
            Self::Unbound { .. } => (Bug, 905),
            Self::Symbol { .. } => (Bug, 906),
            Self::Condition { .. } => (Bug, 907),
            Self::Short { .. } => (Bug, 908),
            Self::Foreign { .. } => (Bug, 909),
            Self::Grid { .. } => (Bug, 910),
            Self::OutOfBounds { .. } => (Bug, 911),
            Self::Mismatch { .. } => (Bug, 912),
            Self::Overlap { .. } => (Bug, 913),
            Self::Axis { .. } => (Bug, 914),
            Self::Shared { .. } => (Bug, 915),
            Self::Panicked { .. } => (Bug, 916),
            Self::Released { .. } => (Bug, 917),
        }
    }
}

/// What the reference evaluator refuses while it runs follows from values or sizes of the request.
fn of_evaluation(error: &EvalError) -> (ErrorKind, u16) {
    match error {
        EvalError::Node { source, .. } => of_evaluation(source),
        EvalError::Unsupported(_) => (ErrorKind::Unsupported, 704),
        _ => (ErrorKind::Request, 119),
    }
}

fn of_import(error: &ImportError) -> (ErrorKind, u16) {
    match error {
        ImportError::Unsupported(_) => (ErrorKind::Unsupported, 701),
        ImportError::External { .. } => (ErrorKind::Model, 602),
        ImportError::Decode(_) => (ErrorKind::Model, 603),
        ImportError::Invalid { .. } => (ErrorKind::Model, 604),
        ImportError::Infer { .. } => (ErrorKind::Model, 605),
        ImportError::Resists { .. } => (ErrorKind::Model, 606),
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorKind;
    use crate::Error;

    #[test]
    fn an_error_at_a_step_is_of_its_causes_kind() {
        let index = Error::Index { index: 7, size: 3 };
        assert_eq!((index.kind(), index.code()), (ErrorKind::Request, 113));
        let at = index.at("embedding");
        assert_eq!((at.kind(), at.code()), (ErrorKind::Request, 113));
        assert_eq!(at.to_string(), "embedding: index 7 is outside an axis of size 3");
    }
}
