//! `grpc.health.v1.Health`, which Kubernetes and KServe ask.

use super::SERVICE;
use super::call::{Call, Incoming, status};
use super::codec::{Ask, unread};
use super::messages::{HealthCheckRequest, HealthCheckResponse};
use crate::error::Error;
use crate::server::Server;
use futures_util::Stream;
use futures_util::stream::unfold;
use std::time::Duration;
use tonic::Status;

/// `HealthCheckResponse.ServingStatus`: all models answer.
const SERVING: i32 = 1;
/// `HealthCheckResponse.ServingStatus`: not all of them do.
const NOT_SERVING: i32 = 2;
/// `HealthCheckResponse.ServingStatus`: no service has the name.
const SERVICE_UNKNOWN: i32 = 3;

/// Between two looks at how the server is, for those that watch it.
const INTERVAL: Duration = Duration::from_millis(500);

impl Ask for HealthCheckRequest {}

/// How a service is; without a name, the server.
fn health(server: &Server, service: &str) -> i32 {
    match service {
        "" | SERVICE if server.ready() => SERVING,
        "" | SERVICE => NOT_SERVING,
        _ => SERVICE_UNKNOWN,
    }
}

/// `Check`.
pub(super) async fn check(
    call: Call,
    asked: HealthCheckRequest,
) -> crate::error::Result<HealthCheckResponse> {
    match health(&call.server, &asked.service) {
        SERVICE_UNKNOWN => Err(Error::UnknownService { name: asked.service }),
        status => Ok(HealthCheckResponse { status }),
    }
}

/// What a watcher is at.
enum Watch {
    /// It has not said yet what it watches.
    Begin(Box<Incoming<HealthCheckRequest>>),
    /// It watches a service, and was told last how it is.
    Told(String, i32),
    /// It is told nothing more.
    End,
}

/// `Watch`: how a service is, and again whenever that changes, until the server shuts down.
pub(super) fn watch(
    call: Call,
    incoming: Incoming<HealthCheckRequest>,
) -> impl Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static {
    unfold((call.server, Watch::Begin(Box::new(incoming))), async |(server, watch)| {
        let (service, told) = match watch {
            Watch::End => return None,
            Watch::Told(service, told) => (service, Some(told)),
            Watch::Begin(mut incoming) => match incoming.message().await {
                Ok(Some(Ok(asked))) => (asked.service, None),
                Ok(Some(Err(error))) => return Some((Err(status(&error)), (server, Watch::End))),
                Ok(None) => return None,
                Err(status) => {
                    let status = unread::<HealthCheckRequest>(&server, status);
                    return Some((Err(status), (server, Watch::End)));
                }
            },
        };
        loop {
            let now = health(&server, &service);
            if told != Some(now) {
                let answer = HealthCheckResponse { status: now };
                return Some((Ok(answer), (server, Watch::Told(service, now))));
            }
            if server.draining() {
                return None;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    })
}
