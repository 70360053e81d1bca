//! What a client is told when a request is refused or fails.

use graphene_runtime::ErrorKind;

/// The result of what can fail for a client.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the server. [`Error::class`] says which status it has by HTTP and by gRPC.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name of no model.
    #[error("there is no model {name:?}; `GET /v2/repository/index` lists them")]
    UnknownModel {
        /// The name.
        name: String,
    },
    /// A name of no gRPC service, of one that asks how it is.
    #[error("there is no service {name:?}; leave the name empty to ask for the server")]
    UnknownService {
        /// The name.
        name: String,
    },
    /// A version that the model does not have.
    #[error("model {name:?} has no version {version:?}; it serves {}", served.join(", "))]
    UnknownVersion {
        /// The model.
        name: String,
        /// The version asked for.
        version: String,
        /// Those that it serves.
        served: Vec<String>,
    },
    /// A model whose version is still loading, or failed to.
    #[error("model {name:?} is not ready: {reason}")]
    NotReady {
        /// The model.
        name: String,
        /// What it waits for, or why it failed.
        reason: String,
    },
    /// Text for a model without a tokenizer, or whose outputs are of another kind than the endpoint's.
    #[error("model {name:?} cannot do this: {reason}")]
    NotText {
        /// The model.
        name: String,
        /// What it lacks.
        reason: String,
    },
    /// A request that is not what its protocol says.
    #[error("{what}")]
    Malformed {
        /// The place in the request, what it needs and what was got.
        what: String,
    },
    /// A request beyond a limit of the server's.
    #[error("{what} is {found}; the server takes at most {limit} ({setting})")]
    Limit {
        /// What is too large, with its port.
        what: String,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
        /// The setting of [`Limits`](crate::Limits) that says so.
        setting: &'static str,
    },
    /// A request body beyond the limit.
    #[error("the body is larger than {limit} bytes, the most that the server takes (body_bytes)")]
    Body {
        /// How large it may be.
        limit: u64,
    },
    /// A request whose body does not come.
    #[error("no more of the body came within {ms} ms (read_ms)")]
    SlowBody {
        /// How long the server waits between two parts.
        ms: u64,
    },
    /// A request body in an encoding that the server does not read.
    #[error("`Content-Encoding: {found}` is not supported: send gzip, deflate or no encoding")]
    Encoding {
        /// The encoding.
        found: String,
    },
    /// The queue is full.
    #[error("the queue of model {name:?} is full, {waiting} requests wait: try again later")]
    Busy {
        /// The model.
        name: String,
        /// How many wait.
        waiting: usize,
    },
    /// The deadline passed.
    #[error("the deadline passed before model {name:?} was done")]
    Deadline {
        /// The model.
        name: String,
    },
    /// The server is about to end.
    #[error("the server is shutting down")]
    Draining,
    /// A request without the token that the server asks for.
    #[error("`Authorization: Bearer` with a token of the server's is needed")]
    Unauthorized,
    /// An endpoint, or an extension of a protocol, that this server doesn't have.
    #[error("{what} is not supported")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// The runtime refused the request or failed.
    #[error("model {name:?}: {error}")]
    Model {
        /// The model.
        name: String,
        /// What the runtime says.
        error: graphene_runtime::Error,
    },
    /// A model's folder, its settings or its tokenizer cannot be used.
    #[error("{path}: {reason}")]
    Folder {
        /// The file or folder.
        path: String,
        /// What is wrong, and what is needed.
        reason: String,
    },
    /// The server cannot do its work: a thread or a socket that it doesn't get.
    #[error("{what}")]
    Server {
        /// What failed.
        what: String,
    },
}

/// What a protocol says of an error: a row of [`Error::class`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// The status by HTTP.
    pub http: u16,
    /// The status by gRPC.
    pub grpc: tonic::Code,
    /// A word for it, as OpenAI's and text-embeddings-inference's errors have one.
    pub name: &'static str,
}

const fn class(http: u16, grpc: tonic::Code, name: &'static str) -> Class {
    Class { http, grpc, name }
}

impl Error {
    /// The statuses that it has.
    pub fn class(&self) -> Class {
        use tonic::Code;
        match self {
            Self::UnknownModel { .. }
            | Self::UnknownService { .. }
            | Self::UnknownVersion { .. } => class(404, Code::NotFound, "not_found"),
            Self::NotReady { .. } | Self::Draining => class(503, Code::Unavailable, "unavailable"),
            Self::Malformed { .. } | Self::NotText { .. } => {
                class(400, Code::InvalidArgument, "invalid_request")
            }
            Self::Limit { .. } => class(400, Code::InvalidArgument, "limit"),
            Self::Body { .. } => class(413, Code::ResourceExhausted, "limit"),
            Self::SlowBody { .. } => class(408, Code::DeadlineExceeded, "deadline"),
            Self::Encoding { .. } => class(415, Code::Unimplemented, "unsupported"),
            Self::Busy { .. } => class(429, Code::ResourceExhausted, "overloaded"),
            Self::Deadline { .. } => class(504, Code::DeadlineExceeded, "deadline"),
            Self::Unauthorized => class(401, Code::Unauthenticated, "unauthorized"),
            Self::Unsupported { .. } => class(501, Code::Unimplemented, "unsupported"),
            Self::Model { error, .. } => of_runtime(error.kind()),
            Self::Folder { .. } => class(400, Code::FailedPrecondition, "model"),
            Self::Server { .. } => class(500, Code::Internal, "internal"),
        }
    }

    /// A request that is not what its protocol says.
    pub fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }
}

fn of_runtime(kind: ErrorKind) -> Class {
    use tonic::Code;
    match kind {
        ErrorKind::Request | ErrorKind::Limit => {
            class(400, Code::InvalidArgument, "invalid_request")
        }
        ErrorKind::Busy => class(429, Code::ResourceExhausted, "overloaded"),
        ErrorKind::Cancelled => class(499, Code::Cancelled, "cancelled"),
        ErrorKind::Deadline => class(504, Code::DeadlineExceeded, "deadline"),
        ErrorKind::Device => class(503, Code::Unavailable, "device"),
        // The others are the model's or our own.
        _ => class(500, Code::Internal, "internal"),
    }
}
