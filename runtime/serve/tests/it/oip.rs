//! The Open Inference Protocol in JSON: what is answered, and what is refused.

use crate::harness::{Running, serve};
use axum::body::Bytes;
use axum::http::Method;
use graphene_runtime::Tensor;
use graphene_serve::{InferRequest, ServerConfig};
use serde_json::{Value, json};

const INFER: &str = "/v2/models/mlp-2x4/infer";

async fn mlp() -> Running {
    serve("zoo:mlp-2x4", ServerConfig::default()).await
}

/// What the model gives for `x`, without HTTP.
pub(crate) async fn direct(running: &Running, x: &[f32]) -> Vec<f32> {
    let x = Tensor::from_vec(vec![x.len() / 4, 4], x.to_vec()).unwrap();
    let request = InferRequest { inputs: vec![("x".to_owned(), x)], ..InferRequest::default() };
    let version = running.server.find("mlp-2x4", None).unwrap();
    let answer = version.infer(request).await.unwrap();
    answer.outputs[0].1.as_slice::<f32>().unwrap().to_vec()
}

#[tokio::test]
async fn the_server_and_its_models_are_described() {
    let running = mlp().await;
    let dims = json!([-1, 4]);
    let rows: [(&str, &str, Value); 25] = [
        ("/v2", "/name", json!("graphene")),
        ("/v2", "/extensions/0", json!("binary_tensor_data")),
        ("/v2/models/mlp-2x4", "/name", json!("mlp-2x4")),
        ("/v2/models/mlp-2x4", "/versions", json!(["1"])),
        ("/v2/models/mlp-2x4/versions/1", "/versions", json!(["1"])),
        ("/v2/models/mlp-2x4", "/inputs/0/name", json!("x")),
        ("/v2/models/mlp-2x4", "/inputs/0/datatype", json!("FP32")),
        ("/v2/models/mlp-2x4", "/inputs/0/shape", dims.clone()),
        ("/v2/models/mlp-2x4", "/outputs/0/shape", dims),
        ("/v2/models/mlp-2x4/config", "/name", json!("mlp-2x4")),
        ("/v2/models/mlp-2x4/config", "/backend", json!("graphene")),
        ("/v2/models/mlp-2x4/config", "/input/0/data_type", json!("TYPE_FP32")),
        ("/v2/models/mlp-2x4/versions/1/config", "/output/0/name", json!("y")),
        ("/v2/models/mlp-2x4/stats", "/model_stats/0/inference_count", json!(0)),
        ("/v2/models/mlp-2x4/versions/1/stats", "/model_stats/0/version", json!("1")),
        ("/v2/models/stats", "/model_stats/0/name", json!("mlp-2x4")),
        ("/v2/repository/index", "/0/state", json!("READY")),
        ("/v2/systemsharedmemory/status", "", json!([])),
        ("/v2/cudasharedmemory/region/a/status", "", json!([])),
        ("/v2/trace/setting", "/trace_level", json!(["OFF"])),
        ("/v2/models/mlp-2x4/trace/setting", "/trace_level", json!(["OFF"])),
        ("/v2/logging", "/log_file", json!("")),
        ("/v2/health/live", "/live", json!(true)),
        ("/v2/health/ready", "/ready", json!(true)),
        ("/v2/models/mlp-2x4/ready", "/ready", json!(true)),
    ];
    for (path, pointer, expected) in rows {
        let answer = running.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        assert_eq!(answer.json().pointer(pointer), Some(&expected), "{path} {pointer}");
    }
}

/// Where requests are put together, dims of the configuration are without the batch's, and there is a largest batch.
#[tokio::test]
async fn the_configuration_fits_the_batches() {
    let running = mlp().await;
    let rows = running.server.find("mlp-2x4", None).unwrap().batch_rows();
    let config = running.get("/v2/models/mlp-2x4/config").await.json();
    let (batch, dims) = if rows > 1 { (rows, json!([4])) } else { (0, json!([-1, 4])) };
    assert_eq!(config["max_batch_size"], batch);
    assert_eq!(config["input"][0]["dims"], dims);
    assert_eq!(config["output"][0]["dims"], dims);
}

#[tokio::test]
async fn json_is_answered_in_whatever_form_it_comes() {
    let running = mlp().await;
    let expected = direct(&running, &[0.5, -1.25, 3.0, 1e-3]).await;
    // A row a form of the same request.
    let rows = [
        r#"{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[0.5,-1.25,3,0.001]}]}"#,
        r#"{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[[0.5,-1.25,3.0,1e-3]]}]}"#,
        r#"{"inputs":[{"data":[ [ 0.5,-1.25, 3 ,1E-3] ],"datatype":"FP32","shape":[1,4],"name":"x"}]}"#,
        "\n{\"outputs\": [ {\"name\": \"y\"} ],\t\"inputs\" : [ {\"name\": \"\\u0078\", \"shape\" : [ 1 , 4 ],\r\n \
         \"datatype\": \"FP32\", \"data\": [ 0.5 , -1.25e0 , 30e-1 , 0.001 ] } ] } \n",
        r#"{"id":"","parameters":{"timeout":5000000,"priority":3,"other":{"a":[1]}},"model_name":"?",
            "inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[0.5,-1.25,3,0.001],
            "parameters":{"other":1}}],"outputs":[{"name":"y","parameters":{"binary_data":false}}]}"#,
    ];
    for content_type in ["application/json", "application/octet-stream", "text/plain", "?"] {
        for row in rows {
            let headers = [("content-type", content_type)];
            let answer = running.send(Method::POST, INFER, &headers, row).await;
            assert_eq!(answer.status, 200, "{row} {answer:?}");
            let body = answer.json();
            assert_eq!(body["model_name"], "mlp-2x4");
            assert_eq!(body["model_version"], "1");
            assert!(body.get("id").is_none());
            let y = &body["outputs"][0];
            assert_eq!((&y["name"], &y["datatype"]), (&json!("y"), &json!("FP32")));
            assert_eq!(y["shape"], json!([1, 4]));
            let data: Vec<f32> = serde_json::from_value(y["data"].clone()).unwrap();
            assert_eq!(data, expected, "{row}");
        }
    }
    // None at all, as tritonclient sends it, and a version in the path.
    let path = "/v2/models/mlp-2x4/versions/1/infer";
    let answer = running.send(Method::POST, path, &[], rows[0]).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_request_is_called_what_its_client_calls_it() {
    let running = mlp().await;
    for id in ["a", "\"quoted\" \\ \u{1f600}\n", "0123456789"] {
        let x = json!({"name": "x", "shape": [0, 4], "datatype": "FP32", "data": []});
        let answer = running.post(INFER, &json!({"id": id, "inputs": [x]})).await;
        assert!(answer.status == 200 || answer.status == 400, "{answer:?}");
        let x = json!({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]});
        let answer = running.post(INFER, &json!({"id": id, "inputs": [x]})).await;
        assert_eq!(answer.json()["id"], id);
    }
}

/// Numbers that are hard to read are read as the nearest that the type has.
#[tokio::test]
async fn numbers_are_read_exactly() {
    let running = mlp().await;
    let rows = [
        ("16777217.0", 16_777_216.0_f32),
        ("16777217.0000001", 16_777_218.0),
        ("0.30000001192092896", 0.3),
        ("1.1754943508222875e-38", f32::MIN_POSITIVE),
        ("3.4028234663852886e38", f32::MAX),
        ("7e-46", 0.0),
        ("-0", -0.0),
    ];
    for (text, value) in rows {
        let expected = direct(&running, &[value, 0.0, 0.0, 0.0]).await;
        let body = format!(
            r#"{{"inputs":[{{"name":"x","shape":[1,4],"datatype":"FP32","data":[{text},0,0,0]}}],
                "parameters":{{"binary_data_output":true}}}}"#
        );
        let answer = running.send(Method::POST, INFER, &[], body).await;
        if expected.iter().all(|value| value.is_finite()) {
            assert_eq!(answer.status, 200, "{text} {answer:?}");
        }
        let length: usize =
            answer.headers["inference-header-content-length"].to_str().unwrap().parse().unwrap();
        let found: Vec<f32> = bytemuck::pod_collect_to_vec(&answer.body[length..]);
        let bits = |all: &[f32]| all.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{text}");
    }
}

fn x(change: &[(&str, Value)]) -> Value {
    let mut x = json!({"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]});
    for (key, value) in change {
        x[key] = value.clone();
    }
    json!({ "inputs": [x] })
}

fn with(key: &str, value: Value) -> Value {
    let mut all = x(&[]);
    all[key] = value;
    all
}

/// A row a request: what is wrong with it, its status, and what the error has to name.
#[tokio::test]
async fn wrong_requests_are_refused_and_name_the_place() {
    let running = mlp().await;
    let huge = json!([1_u64 << 60, 1 << 10]);
    let two = json!([x(&[])["inputs"][0], x(&[])["inputs"][0]]);
    let rows: Vec<(&str, Value, u16, &[&str])> = vec![
        ("no inputs", json!({}), 400, &["inputs"]),
        ("inputs of none", json!({"inputs": []}), 400, &["\"x\"", "missing"]),
        ("inputs no array", json!({"inputs": 3}), 400, &["array", "3"]),
        ("no object", json!([1]), 400, &["the request"]),
        ("null", json!(null), 400, &["the request"]),
        ("no name", json!({"inputs": [{}]}), 400, &["inputs[0]", "name"]),
        ("name a number", x(&[("name", json!(1))]), 400, &["string"]),
        ("unknown input", x(&[("name", json!("z"))]), 400, &["input", "\"z\"", "it has x"]),
        ("input twice", json!({ "inputs": two }), 400, &["\"x\"", "twice"]),
        ("no datatype", x(&[("datatype", json!(null))]), 400, &["\"x\"", "datatype"]),
        ("other datatype", x(&[("datatype", json!("FP64"))]), 400, &["\"x\"", "FP32", "FP64"]),
        ("lower case", x(&[("datatype", json!("fp32"))]), 400, &["\"x\"", "FP32", "fp32"]),
        ("strings", x(&[("datatype", json!("BYTES"))]), 400, &["\"x\"", "FP32", "BYTES"]),
        ("no shape", x(&[("shape", json!(null))]), 400, &["\"x\"", "shape"]),
        ("shape a number", x(&[("shape", json!(4))]), 400, &["\"x\"", "shape", "4"]),
        ("shape of text", x(&[("shape", json!(["1", 4]))]), 400, &["\"x\"", "shape"]),
        ("shape of parts", x(&[("shape", json!([1.5, 4]))]), 400, &["\"x\"", "1.5"]),
        ("nested shape", x(&[("shape", json!([[1, 4]]))]), 400, &["\"x\"", "shape"]),
        ("negative size", x(&[("shape", json!([-1, 4]))]), 400, &["\"x\"", "[-1,4]"]),
        ("2^64 elements", x(&[("shape", json!([16, (1_u64 << 60) + 2]))]), 400, &["\"x\""]),
        ("2^64 bytes", x(&[("shape", json!([4, (1_u64 << 60) + 2]))]), 400, &["\"x\""]),
        ("product overflows", x(&[("shape", huge)]), 400, &["\"x\"", "elements"]),
        ("beside a zero", x(&[("shape", json!([0, u64::MAX]))]), 400, &["\"x\"", "elements"]),
        ("too many dims", x(&[("shape", json!(vec![1; 17]))]), 400, &["\"x\"", "rank"]),
        ("other rank", x(&[("shape", json!([4]))]), 400, &["\"x\""]),
        ("other size", x(&[("shape", json!([2, 2]))]), 400, &["\"x\"", "4", "2"]),
        ("too few", x(&[("data", json!([1, 2, 3]))]), 400, &["\"x\"", "[1, 4]", "4", "3"]),
        ("too many", x(&[("data", json!([1, 2, 3, 4, 5]))]), 400, &["\"x\"", "more"]),
        (
            "ragged",
            x(&[("data", json!([[1, 2, 3], [4]]))]),
            400,
            &["\"x\"", "[1, 4]", "[[1,2,3],[4]]"],
        ),
        ("text in data", x(&[("data", json!([1, 2, 3, "ä,ö]"]))]), 400, &["\"x\"", "FP32", "ä"]),
        ("truth in data", x(&[("data", json!([1, 2, 3, true]))]), 400, &["\"x\"", "true"]),
        ("null in data", x(&[("data", json!([1, 2, 3, null]))]), 400, &["\"x\"", "null"]),
        ("object in data", x(&[("data", json!([1, 2, 3, {"a": 1}]))]), 400, &["\"x\""]),
        ("data an object", x(&[("data", json!({"a": 1}))]), 400, &["\"x\"", "array"]),
        ("data a number", x(&[("data", json!(1))]), 400, &["\"x\"", "array"]),
        ("not in FP32", x(&[("data", json!([1, 2, 3, 1e39]))]), 400, &["\"x\"", "FP32", "1e"]),
        ("no data", x(&[("data", json!(null))]), 400, &["\"x\"", "neither"]),
        (
            "binary data without any",
            json!({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32",
                "parameters": {"binary_data_size": 16}}]}),
            400,
            &["\"x\"", "16", "Inference-Header-Content-Length"],
        ),
        ("both", x(&[("parameters", json!({"binary_data_size": 16}))]), 400, &["\"x\"", "both"]),
        (
            "shared memory",
            x(&[("parameters", json!({"shared_memory_region": "r"}))]),
            501,
            &["\"x\"", "shared memory"],
        ),
        ("unknown output", with("outputs", json!([{"name": "z"}])), 400, &["output", "\"z\"", "y"]),
        (
            "output twice",
            with("outputs", json!([{"name": "y"}, {"name": "y"}])),
            400,
            &["output", "\"y\"", "twice"],
        ),
        ("no output name", with("outputs", json!([{}])), 400, &["outputs[0]", "name"]),
        (
            "classification",
            with("outputs", json!([{"name": "y", "parameters": {"classification": 2}}])),
            501,
            &["\"y\"", "classification"],
        ),
        (
            "binary_data a number",
            with("outputs", json!([{"name": "y", "parameters": {"binary_data": 1}}])),
            400,
            &["\"y\"", "binary_data", "1"],
        ),
        ("timeout text", with("parameters", json!({"timeout": "1"})), 400, &["timeout", "1"]),
        ("timeout negative", with("parameters", json!({"timeout": -1})), 400, &["timeout", "-1"]),
        (
            "binary_data_output text",
            with("parameters", json!({"binary_data_output": "yes"})),
            400,
            &["binary_data_output", "yes"],
        ),
        ("a sequence", with("parameters", json!({"sequence_id": 7})), 501, &["sequence"]),
        ("id a number", with("id", json!(1)), 400, &["string"]),
        (
            "parameters an array",
            with("parameters", json!([])),
            400,
            &["the request", "RequestParameters"],
        ),
    ];
    for (what, body, status, names) in rows {
        let answer = running.post(INFER, &body).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert_eq!(answer.headers["content-type"], "application/json", "{what}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        for name in names {
            assert!(error.contains(name), "{what}: {error} does not name {name}");
        }
    }
    assert_eq!(running.post(INFER, &x(&[])).await.status, 200);
}

#[tokio::test]
async fn what_is_no_json_is_refused() {
    let running = mlp().await;
    let good = x(&[]).to_string();
    let double = good.replacen("\"shape\"", "\"shape\":[1,4],\"shape\"", 1);
    let nan = good.replace("[1,2,3,4]", "[1,2,3,NaN]");
    let zeros = good.replace("[1,2,3,4]", "[1,2,3,04]");
    let plus = good.replace("[1,2,3,4]", "[1,2,3,+4]");
    let comma = good.replace("[1,2,3,4]", "[1,2,3,4,]");
    let rows: [(&str, Vec<u8>); 13] = [
        ("empty", Vec::new()),
        ("spaces", b"  \n".to_vec()),
        ("text", b"hello".to_vec()),
        ("cut short", good.as_bytes()[..good.len() - 1].to_vec()),
        ("garbage behind", [good.as_bytes(), b"x"].concat()),
        ("two of them", [good.as_bytes(), good.as_bytes()].concat()),
        ("no UTF-8", [b"{\"id\":\"\xff\",".as_slice(), &good.as_bytes()[1..]].concat()),
        ("zero bytes", vec![0; 64]),
        ("a key twice", double.into_bytes()),
        ("NaN", nan.into_bytes()),
        ("leading zeros", zeros.into_bytes()),
        ("a plus", plus.into_bytes()),
        ("a comma behind", comma.into_bytes()),
    ];
    for (what, body) in rows {
        let answer = running.send(Method::POST, INFER, &[], body).await;
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert!(answer.json()["error"].is_string(), "{what}");
    }
}

/// Deep JSON is refused wherever it is, and nothing overflows.
#[tokio::test]
async fn deep_json_is_refused() {
    let running = mlp().await;
    let good = x(&[]).to_string();
    let nested = |depth: usize, value: &str| "[".repeat(depth) + value + &"]".repeat(depth);
    let objects = |depth: usize| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
    let inside = |key: &str, value: String| format!("{{\"{key}\":{value},{}", &good[1..]);
    let data = |value: String| good.replace("[1,2,3,4]", &value);
    let index = "/v2/repository/index";
    let rows = [
        (INFER, nested(200_000, ""), 400),
        (INFER, "[".repeat(200_000), 400),
        (INFER, "{\"a\":".repeat(200_000), 400),
        (INFER, objects(200_000), 400),
        (INFER, inside("unknown", nested(200_000, "1")), 400),
        (INFER, inside("unknown", objects(200_000)), 400),
        (INFER, inside("parameters", format!("{{\"a\":{}}}", nested(200_000, "1"))), 400),
        (INFER, inside("parameters", format!("{{\"timeout\":{}}}", nested(200_000, "1"))), 400),
        (INFER, data(nested(200_000, "1,2,3,4")), 400),
        (INFER, data(nested(120, "1,2,3,4")), 400),
        (INFER, data(nested(50, "1,2,3,4")), 400),
        (INFER, data(nested(2, "1,2,3,4")), 200),
        (INFER, inside("unknown", nested(50, "1")), 200),
        (INFER, inside("id", format!("{:?}", "[".repeat(200_000))), 200),
        (index, format!("{{\"ready\":{}}}", nested(250_000, "true")), 400),
        ("/v2/repository/models/mlp-2x4/load", objects(200_000), 400),
    ];
    for (path, body, status) in rows {
        let start: String = body.chars().take(60).collect();
        let answer = running.send(Method::POST, path, &[], body).await;
        assert_eq!(answer.status, status, "{start} {answer:?}");
    }
    assert_eq!(running.get("/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let running = mlp().await;
    let rows = [
        (Method::GET, "/v2/models/none", 404, "none"),
        (Method::GET, "/v2/models/none/ready", 404, "none"),
        (Method::POST, "/v2/models/none/infer", 404, "none"),
        (Method::GET, "/v2/models/mlp-2x4/versions/2", 404, "serves 1"),
        (Method::GET, "/v2/models/mlp-2x4/versions/99999999999999999999/config", 404, "serves 1"),
        (Method::GET, "/v2/models/mlp-2x4/versions/v1/ready", 404, "v1"),
        (Method::GET, "/v2/models/%ff/ready", 400, "path"),
        (Method::GET, "/v2/models/mlp-2x4/nothing", 404, "no endpoint"),
        (Method::GET, "/v3", 404, "no endpoint"),
        (Method::GET, INFER, 405, "method"),
        (Method::PUT, INFER, 405, "method"),
        (Method::DELETE, INFER, 405, "method"),
        (Method::POST, "/v2", 405, "method"),
        (Method::POST, "/v2/health/live", 405, "method"),
        (Method::PUT, "/v2/repository/index", 405, "method"),
        (Method::GET, "/v2/repository/models/mlp-2x4/load", 405, "method"),
        (Method::POST, "/v2/repository/models/mlp-2x4/load", 501, "control"),
        (Method::POST, "/v2/repository/models/mlp-2x4/unload", 501, "control"),
        (Method::POST, "/v2/systemsharedmemory/region/a/register", 501, "shared memory"),
        (Method::POST, "/v2/cudasharedmemory/region/a/register", 501, "shared memory"),
        (Method::POST, "/v2/trace/setting", 501, "tracing"),
        (Method::POST, "/v2/logging", 501, "logged"),
    ];
    for (method, path, status, names) in rows {
        let answer = running.send(method.clone(), path, &[], Bytes::new()).await;
        assert_eq!(answer.status, status, "{method} {path} {answer:?}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(names), "{method} {path}: {error}");
    }
    assert_eq!(running.send(Method::HEAD, INFER, &[], "").await.status, 405);
    let path = "/v2/systemsharedmemory/unregister";
    assert_eq!(running.send(Method::POST, path, &[], "").await.status, 200);
}

#[tokio::test]
async fn the_repository_is_listed_and_controlled() {
    let running = serve("zoo:mlp-2x4", ServerConfig { control: true, ..Default::default() }).await;
    let index = "/v2/repository/index";
    for body in ["", "{}", r#"{"ready":true}"#, r#"{"ready":false}"#] {
        let answer = running.send(Method::POST, index, &[], body).await;
        assert_eq!(answer.json()[0]["name"], "mlp-2x4", "{body}");
    }
    for body in [r#"{"ready":1}"#, "[]x", "{"] {
        assert_eq!(running.send(Method::POST, index, &[], body).await.status, 400, "{body}");
    }
    let load = "/v2/repository/models/mlp-2x4/load";
    for body in ["", "{}", r#"{"parameters":{}}"#, r#"{"parameters":null}"#] {
        assert_eq!(running.send(Method::POST, load, &[], body).await.status, 200, "{body}");
    }
    let answer = running.post(load, &json!({"parameters": {"config": "{}"}})).await;
    assert_eq!(answer.status, 501);
    let unload = "/v2/repository/models/mlp-2x4/unload";
    let answer = running.post(unload, &json!({"parameters": {"unload_dependents": true}})).await;
    assert_eq!(answer.status, 200);
    let answer = running.post(INFER, &x(&[])).await;
    assert!(answer.status == 404 || answer.status == 503, "{answer:?}");
}

/// The statistics count rows and requests, and what failed.
#[tokio::test]
async fn statistics_count_requests() {
    let running = mlp().await;
    for _ in 0..3 {
        assert_eq!(running.post(INFER, &x(&[])).await.status, 200);
    }
    assert_eq!(running.post(INFER, &x(&[("shape", json!([2, 2]))])).await.status, 400);
    let answer = running.get("/v2/models/mlp-2x4/stats").await.json();
    let stats = &answer["model_stats"][0];
    assert_eq!(stats["inference_stats"]["success"]["count"], 3);
    assert_eq!(stats["inference_stats"]["fail"]["count"], 1);
    assert_eq!(stats["inference_stats"]["compute_infer"]["count"], 3);
    assert_eq!(stats["inference_count"], 3);
    assert!(stats["inference_stats"]["compute_infer"]["ns"].as_u64().unwrap() > 0);
    assert!(stats["last_inference"].as_u64().unwrap() > 1_700_000_000_000);
    assert_eq!(stats["batch_stats"][0]["batch_size"], 1);
}
