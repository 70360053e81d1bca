//! What Prometheus reads.

use crate::harness::serve;
use graphene_serve::ServerConfig;
use serde_json::json;

#[tokio::test]
async fn requests_are_recorded_by_model_and_status() {
    let first = serve("zoo:mlp-2x4", ServerConfig::default()).await;
    let second = serve("zoo:mlp-2x4", ServerConfig::default()).await;
    let x = json!({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]});
    let body = json!({ "inputs": [x] });
    let infer = "/v2/models/mlp-2x4/infer";
    for _ in 0..3 {
        assert_eq!(first.post(infer, &body).await.status, 200);
    }
    assert_eq!(first.post(infer, &json!({"inputs": []})).await.status, 400);
    assert_eq!(first.post(infer, &json!({})).await.status, 400);
    let labels = "model=\"mlp-2x4\",version=\"1\"";
    let http = format!("{labels},protocol=\"http\"");
    let rows = [
        format!("graphene_requests_total{{{http},status=\"200\"}} 3"),
        format!("graphene_requests_total{{{http},status=\"400\"}} 2"),
        format!("graphene_request_seconds_count{{{labels}}} 3"),
        format!("graphene_queue_seconds_count{{{labels}}} 3"),
        format!("graphene_compute_seconds_count{{{labels}}} 3"),
        format!("graphene_request_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
        format!("graphene_rows_total{{{labels}}} 3"),
        format!("graphene_running_requests{{{labels}}} 0"),
        "graphene_connections 1".to_owned(),
    ];
    let answer = first.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    for row in rows {
        assert!(text.lines().any(|line| line == row), "no {row} in {text}");
    }
    let used = text.lines().find_map(|line| line.strip_prefix("graphene_memory_used_bytes "));
    assert!(used.unwrap().parse::<f64>().unwrap() > 0.0);
    assert!(text.contains("# TYPE graphene_request_seconds histogram"));
    // Another server of the process records for itself.
    let text = second.get("/metrics").await;
    let text = String::from_utf8(text.body.to_vec()).unwrap();
    let row = format!("graphene_requests_total{{{http},status=\"200\"}} 0");
    assert!(text.lines().any(|line| line == row), "no {row} in {text}");
}
