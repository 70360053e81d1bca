//! The protocols by HTTP: a module each, and what they share.

mod oip;
mod openai;
mod tei;

use crate::server::Server;
use axum::Router;

/// All routes by HTTP.
pub(crate) fn router(server: &Server) -> Router {
    let routes = oip::routes().merge(openai::routes()).merge(tei::routes());
    routes.with_state(server.clone())
}
