//! TODO

use crate::server::Server;
use axum::Router;

/// The routes.
pub(super) fn routes() -> Router<Server> {
    Router::new()
}
