//! The Open Inference Protocol by gRPC.

use crate::server::Server;
use axum::Router;

/// All methods.
pub(crate) fn router(server: &Server) -> Router {
    Router::new().with_state(server.clone())
}
