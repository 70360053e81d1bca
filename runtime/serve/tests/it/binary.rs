//! Binary tensors of the Open Inference Protocol: JSON ahead, elements behind, or elements alone.

use crate::harness::{Answer, Running, serve};
use crate::oip::direct;
use axum::http::Method;
use graphene_serve::ServerConfig;
use serde_json::{Value, json};
use std::io::Write;

const INFER: &str = "/v2/models/mlp-2x4/infer";
const LENGTH: &str = "Inference-Header-Content-Length";

async fn mlp() -> Running {
    serve("zoo:mlp-2x4", ServerConfig::default()).await
}

/// Sends JSON and bytes behind it.
async fn send(running: &Running, path: &str, json: &Value, bytes: &[u8]) -> Answer {
    let json = json.to_string();
    let length = json.len().to_string();
    let body = [json.as_bytes(), bytes].concat();
    running.send(Method::POST, path, &[(LENGTH, &length)], body).await
}

/// The JSON and the bytes of an answer.
fn parts(answer: &Answer) -> (Value, &[u8]) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/octet-stream");
    let length: usize = answer.headers[LENGTH].to_str().unwrap().parse().unwrap();
    let whole: usize = answer.headers["content-length"].to_str().unwrap().parse().unwrap();
    assert_eq!(whole, answer.body.len());
    (serde_json::from_slice(&answer.body[..length]).unwrap(), &answer.body[length..])
}

fn x(rows: usize) -> Value {
    let size = rows * 16;
    json!({"name": "x", "shape": [rows, 4], "datatype": "FP32",
        "parameters": {"binary_data_size": size}})
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 97) as f32 / 16.0 - 3.0).collect()
}

/// From a body that is read at once to those that come in parts, and outputs that are copied together or not.
#[tokio::test]
async fn binary_tensors_come_and_go() {
    let running = mlp().await;
    for rows in [1, 2, 3, 64, 255, 1024, 4096] {
        let sent = numbers(rows * 4);
        let expected = direct(&running, &sent).await;
        let bytes: &[u8] = bytemuck::cast_slice(&sent);
        // The JSON's length decides where elements lie in the body.
        for id in ["", "1", "12", "123", "1234", "12345"] {
            let request = json!({"id": id, "inputs": [x(rows)],
                "parameters": {"binary_data_output": true}});
            let answer = send(&running, INFER, &request, bytes).await;
            let (json, data) = parts(&answer);
            assert_eq!(json["outputs"][0]["shape"], json!([rows, 4]));
            assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], rows * 16);
            assert!(json["outputs"][0].get("data").is_none());
            assert_eq!(data, bytemuck::cast_slice::<f32, u8>(&expected), "{rows} rows");
        }
    }
}

#[tokio::test]
async fn outputs_are_as_they_are_asked_for() {
    let running = mlp().await;
    let sent = numbers(4);
    let bytes: &[u8] = bytemuck::cast_slice(&sent);
    let y = |binary: Option<bool>| match binary {
        Some(binary) => json!([{"name": "y", "parameters": {"binary_data": binary}}]),
        None => json!([{"name": "y"}]),
    };
    // Of the request, of the output, and whether the output is binary then.
    let rows = [
        (None, json!(null), false),
        (Some(false), json!(null), false),
        (Some(true), json!(null), true),
        (Some(true), json!([]), true),
        (None, y(None), false),
        (None, y(Some(true)), true),
        (Some(true), y(None), true),
        (Some(true), y(Some(false)), false),
        (Some(false), y(Some(true)), true),
    ];
    for (of_request, outputs, binary) in rows {
        let mut request = json!({"inputs": [x(1)], "outputs": outputs});
        if let Some(of_request) = of_request {
            request["parameters"] = json!({ "binary_data_output": of_request });
        }
        let answer = send(&running, INFER, &request, bytes).await;
        assert_eq!(answer.status, 200, "{request} {answer:?}");
        assert_eq!(answer.headers.contains_key(LENGTH), binary, "{request}");
        if !binary {
            assert_eq!(answer.json()["outputs"][0]["data"].as_array().unwrap().len(), 4);
        }
    }
}

/// Several inputs, some binary and some not, and outputs in another order than the model's.
#[tokio::test]
async fn json_and_binary_tensors_are_mixed() {
    let running = serve("zoo:bert-base-tiny", ServerConfig::default()).await;
    let path = "/v2/models/bert-base-tiny";
    let described = running.get(path).await.json();
    let ports = |which: &str| described[which].as_array().unwrap().clone();
    let names: Vec<String> =
        ports("inputs").iter().map(|port| port["name"].as_str().unwrap().to_owned()).collect();
    assert!(names.len() > 1, "{described}");
    let ones: Vec<i64> = vec![1; 6];
    let request = |binary: &dyn Fn(usize) -> bool, outputs: &Value| {
        let mut bytes: Vec<u8> = Vec::new();
        let mut inputs = Vec::new();
        for (index, port) in ports("inputs").iter().enumerate() {
            assert_eq!(port["datatype"], "INT64");
            let mut input = json!({"name": port["name"], "shape": [2, 3], "datatype": "INT64"});
            if binary(index) {
                input["parameters"] = json!({"binary_data_size": 48});
                bytes.extend_from_slice(bytemuck::cast_slice(&ones));
            } else {
                input["data"] = json!([[1, 1, 1], [1, 1, 1]]);
            }
            inputs.push(input);
        }
        inputs.reverse();
        (json!({"inputs": inputs, "outputs": outputs}), bytes)
    };
    let mut wanted: Vec<Value> = ports("outputs");
    wanted.reverse();
    let outputs: Vec<Value> = wanted.iter().map(|port| json!({"name": port["name"]})).collect();
    let mut found = Vec::new();
    let infer = format!("{path}/infer");
    for binary in 0..1_usize << names.len() {
        let (json, bytes) = request(&|index| binary >> index & 1 == 1, &json!(outputs));
        let answer = send(&running, &infer, &json, &bytes).await;
        assert_eq!(answer.status, 200, "{json} {answer:?}");
        let answer = answer.json();
        let order: Vec<&Value> =
            answer["outputs"].as_array().unwrap().iter().map(|output| &output["name"]).collect();
        assert_eq!(order, wanted.iter().map(|port| &port["name"]).collect::<Vec<_>>());
        found.push(answer["outputs"].clone());
    }
    assert!(found.windows(2).all(|pair| pair[0] == pair[1]));
    // Integers are whole numbers of their range.
    for (wrong, names) in [("1.5", "whole"), ("9223372036854775808", "INT64"), ("true", "INT64")] {
        let (json, _) = request(&|_| false, &json!(null));
        let text = json.to_string().replacen("[1,1,1]", &format!("[1,1,{wrong}]"), 1);
        let answer = running.send(Method::POST, &infer, &[], text).await;
        assert_eq!(answer.status, 400, "{wrong}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(names) && error.contains(wrong), "{error}");
    }
    // A body without JSON says nothing of which input it is.
    let answer = running.send(Method::POST, &infer, &[(LENGTH, "0")], vec![0; 48]).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"].as_str().unwrap().contains("one input"));
}

#[tokio::test]
async fn elements_alone_are_a_request_to_a_model_of_one_input() {
    let running = mlp().await;
    for rows in [1, 2, 8, 1000] {
        let sent = numbers(rows * 4);
        let expected = direct(&running, &sent).await;
        let bytes = bytemuck::cast_slice::<f32, u8>(&sent).to_vec();
        let answer = running.send(Method::POST, INFER, &[(LENGTH, "0")], bytes).await;
        let (json, data) = parts(&answer);
        assert_eq!(json["outputs"][0]["shape"], json!([rows, 4]));
        assert_eq!(data, bytemuck::cast_slice::<f32, u8>(&expected));
    }
    for bytes in [1, 4, 15, 17, 33] {
        let answer = running.send(Method::POST, INFER, &[(LENGTH, "0")], vec![0; bytes]).await;
        assert_eq!(answer.status, 400, "{bytes}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains("\"x\"") && error.contains("16"), "{error}");
    }
}

/// A row a request: what its header says of the JSON's length, its body, and what the error names.
#[tokio::test]
async fn lengths_that_do_not_fit_are_refused() {
    let running = mlp().await;
    let json = json!({"inputs": [x(1)]}).to_string();
    let own = json.len().to_string();
    let body = |json: &str, bytes: usize| [json.as_bytes(), &vec![0; bytes]].concat();
    let sized = |size: Value| {
        let mut x = x(1);
        x["parameters"]["binary_data_size"] = size;
        json!({ "inputs": [x] }).to_string()
    };
    let rows: Vec<(String, Vec<u8>, &[&str])> = vec![
        ("".into(), body(&json, 16), &["byte count"]),
        ("x".into(), body(&json, 16), &["byte count", "x"]),
        ("-1".into(), body(&json, 16), &["byte count", "-1"]),
        ("1.5".into(), body(&json, 16), &["byte count"]),
        ("0x10".into(), body(&json, 16), &["byte count"]),
        ("99999999999".into(), body(&json, 16), &["99999999999"]),
        ("99999999999999999999999".into(), body(&json, 16), &["byte count"]),
        ((json.len() + 17).to_string(), body(&json, 16), &["the body has"]),
        ((json.len() - 1).to_string(), body(&json, 16), &["the request"]),
        ((json.len() + 1).to_string(), body(&json, 16), &["the request"]),
        ("1".into(), body(&json, 16), &["the request"]),
        (own.clone(), body(&json, 0), &["\"x\"", "16", "0 left"]),
        (own.clone(), body(&json, 15), &["\"x\"", "16", "15 left"]),
        (own.clone(), body(&json, 17), &["1 bytes are left"]),
        (own, body(&json, 48), &["32 bytes are left"]),
    ];
    for (length, body, names) in rows {
        let answer = running.send(Method::POST, INFER, &[(LENGTH, &length)], body).await;
        assert_eq!(answer.status, 400, "{length}: {answer:?}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(names.iter().all(|name| error.contains(name)), "{length}: {error}");
    }
    for (size, names) in [
        (json!(0), "16 bytes"),
        (json!(15), "16 bytes"),
        (json!(17), "16 bytes"),
        (json!(1_u64 << 63), "16 bytes"),
        (json!(-16), "whole number"),
        (json!("16"), "whole number"),
        (json!(16.0), "whole number"),
        (json!([16]), "whole number"),
    ] {
        let json = sized(size.clone());
        let length = json.len().to_string();
        let answer = running.send(Method::POST, INFER, &[(LENGTH, &length)], body(&json, 16)).await;
        assert_eq!(answer.status, 400, "{size}: {answer:?}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains("\"x\"") && error.contains(names), "{size}: {error}");
    }
}

/// JSON has neither NaN nor infinity; binary outputs do.
#[tokio::test]
async fn what_json_does_not_have_is_binary() {
    let running = mlp().await;
    let sent = [f32::NAN; 4];
    let bytes: &[u8] = bytemuck::cast_slice(&sent);
    let answer = send(&running, INFER, &json!({"inputs": [x(1)]}), bytes).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("\"y\"") && error.contains("binary_data"), "{error}");
    let request = json!({"inputs": [x(1)], "parameters": {"binary_data_output": true}});
    let answer = send(&running, INFER, &request, bytes).await;
    let (_, data) = parts(&answer);
    let found: Vec<f32> = bytemuck::pod_collect_to_vec(data);
    assert!(found.iter().any(|value| value.is_nan()));
}

#[tokio::test]
async fn packed_bodies_are_unpacked_within_limits() {
    let mut config = ServerConfig::default();
    config.limits.body_bytes = 100_000;
    let running = serve("zoo:mlp-2x4", config).await;
    let json = json!({"inputs": [x(1)]}).to_string();
    let whole = [json.as_bytes(), &[0; 16]].concat();
    let gzip = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    zlib.write_all(&whole).unwrap();
    let packed = gzip(&whole);
    let bomb = gzip(&vec![b' '; 50_000_000]);
    assert!(bomb.len() < 100_000, "packed it is within the limit");
    let rows = [
        ("gzip", packed.clone(), 200),
        ("GZIP", packed.clone(), 200),
        ("deflate", zlib.finish().unwrap(), 200),
        ("identity", whole.clone(), 200),
        ("gzip", whole.clone(), 400),
        ("deflate", packed.clone(), 400),
        ("gzip", packed[..packed.len() / 2].to_vec(), 400),
        ("gzip", bomb, 413),
        ("gzip", gzip(&vec![b' '; 100_001]), 413),
        ("br", whole.clone(), 415),
        ("gzip, gzip", packed, 415),
    ];
    for (encoding, body, status) in rows {
        let length = json.len().to_string();
        let headers = [(LENGTH, length.as_str()), ("content-encoding", encoding)];
        let answer = running.send(Method::POST, INFER, &headers, body).await;
        assert_eq!(answer.status, status, "{encoding}: {answer:?}");
    }
}
