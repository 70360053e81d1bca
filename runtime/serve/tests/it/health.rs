//! Live and ready.

use crate::harness::serve;
use graphene_serve::ServerConfig;
use std::time::Duration;

#[tokio::test]
async fn a_server_is_found_and_drained() {
    let running = serve("zoo:mlp-2x4", ServerConfig::default()).await;
    assert!(running.server.ready());
    assert_eq!(running.get("/nothing").await.status, 404);
    running.listening.drain(Duration::ZERO).await;
}
