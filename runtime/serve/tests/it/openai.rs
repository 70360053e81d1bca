//! OpenAI's embeddings.

use crate::harness::{Running, cpu, serve};
use axum::body::Bytes;
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use graphene_runtime::{Input, Tensor};
use graphene_serve::{Limits, ServerConfig};
use serde_json::{Value, json};
use std::time::Instant;

const MODEL: &str = "bert-base-tiny";

async fn bert() -> Running {
    serve("zoo:bert-base-tiny", ServerConfig::default()).await
}

pub(crate) fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The vectors that a request is answered by, whose places are checked.
async fn embed(running: &Running, request: &Value) -> Vec<Vec<f32>> {
    let answer = running.post("/v1/embeddings", request).await;
    let body = answer.json();
    assert_eq!(answer.status, 200, "{request} {body}");
    let one = |(place, item): (usize, &Value)| {
        assert_eq!((&item["index"], &item["object"]), (&json!(place), &json!("embedding")));
        floats(&item["embedding"])
    };
    body["data"].as_array().unwrap().iter().enumerate().map(one).collect()
}

/// The ids that `/tokenize` gives.
pub(crate) async fn ids(running: &Running, text: &str) -> Vec<i64> {
    let answer = running.post("/tokenize", &json!({ "inputs": text })).await.json();
    answer[0].as_array().unwrap().iter().map(|token| token["id"].as_i64().unwrap()).collect()
}

pub(crate) fn check_near(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((x - y).abs() <= tolerance, "{what}: element {place} is {x}, not {y}");
    }
}

/// A vector of length one.
pub(crate) fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

#[tokio::test]
async fn formats_agree_bit_for_bit() {
    let running = bert().await;
    let texts = json!(["Hello, world!", "two", "a third one"]);
    let ask = |format: &str| json!({ "model": MODEL, "input": texts, "encoding_format": format });
    let expected = embed(&running, &ask("float")).await;
    let answer = running.post("/v1/embeddings", &ask("base64")).await.json();
    for (place, expected) in expected.iter().enumerate() {
        let text = answer["data"][place]["embedding"].as_str().unwrap();
        let bytes = STANDARD.decode(text).unwrap();
        let found: Vec<u32> =
            bytes.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()).to_bits()).collect();
        let expected: Vec<u32> = expected.iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, expected, "text {place}");
    }
    assert_eq!((expected.len(), expected[0].len()), (3, 64));
    // Neither a format nor a model need be named, nor a Content-Type be given.
    let bare = json!({ "input": texts, "encoding_format": null, "model": null, "user": "me" });
    let answer = running.send(Method::POST, "/v1/embeddings", &[], bare.to_string()).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(floats(&answer.json()["data"][2]["embedding"]), expected[2]);
}

#[tokio::test]
async fn every_kind_of_input_is_the_same_text() {
    let running = bert().await;
    let (first, second) = ("a text", "and a longer one");
    let (a, b) = (ids(&running, first).await, ids(&running, second).await);
    let expected = embed(&running, &json!({ "input": [first, second] })).await;
    assert_ne!(expected[0], expected[1]);
    let rows = [
        (json!(first), 0..1),
        (json!([second]), 1..2),
        (json!(a), 0..1),
        (json!([a, b]), 0..2),
        (json!([b]), 1..2),
    ];
    for (input, places) in rows {
        let answer = running.post("/v1/embeddings", &json!({ "input": input })).await.json();
        let count: usize = places.clone().map(|place| [a.len(), b.len()][place]).sum();
        let usage = json!({ "prompt_tokens": count, "total_tokens": count });
        assert_eq!((&answer["usage"], &answer["model"]), (&usage, &json!(MODEL)), "{input}");
        assert_eq!(answer["object"], "list");
        let found = answer["data"].as_array().unwrap();
        assert_eq!(found.len(), places.len(), "{input}");
        for (found, place) in found.iter().zip(places) {
            check_near(&floats(&found["embedding"]), &expected[place], 1e-5, &input.to_string());
        }
    }
}

#[tokio::test]
async fn dimensions_cut_off_and_normalise_again() {
    let running = bert().await;
    let whole = &embed(&running, &json!({ "input": "some text" })).await[0];
    check_near(whole, &unit(whole), 1e-6, "all");
    for width in [1, 7, 63, 64] {
        let request = json!({ "input": "some text", "dimensions": width });
        let found = &embed(&running, &request).await[0];
        check_near(found, &unit(&whole[..width]), 1e-6, &format!("{width} dimensions"));
    }
}

#[tokio::test]
async fn fifty_texts_keep_their_order() {
    let running = bert().await;
    // Neighbours are of very different lengths, so that the order in which they run is another.
    let text = |place: usize| format!("{place} {}", "words ".repeat(place * 37 % 50));
    let texts: Vec<String> = (0..50).map(text).collect();
    let together = embed(&running, &json!({ "input": texts })).await;
    assert_eq!(together.len(), 50);
    for (text, found) in texts.iter().zip(&together) {
        let alone = &embed(&running, &json!({ "input": text })).await[0];
        check_near(found, alone, 1e-5, text);
    }
}

#[tokio::test]
async fn embeddings_are_means_of_the_models_vectors() {
    let running = bert().await;
    let zoo = graphene_models::build(MODEL, &graphene_models::Options::default()).unwrap();
    let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
    let model = cpu().model().load_from(&source).unwrap();
    let mut context = model.context();
    for text in ["x", "Hello, world!", &"many words ".repeat(15)] {
        let ids = ids(&running, text).await;
        let count = ids.len();
        let tensor = |numbers: Vec<i64>| Tensor::from_vec(vec![1, count], numbers).unwrap();
        let all = [tensor(ids), tensor(vec![1; count]), tensor(vec![0; count])];
        let names = ["input_ids", "attention_mask", "token_type_ids"];
        let inputs: Vec<Input> =
            names.iter().zip(&all).map(|(name, x)| Input::from(x).named(name)).collect();
        let outputs = context.run(&inputs).unwrap();
        let hidden = outputs.get("last_hidden_state").unwrap().as_slice::<f32>().unwrap();
        let mean = |place: usize| hidden.iter().skip(place).step_by(64).sum::<f32>() / count as f32;
        let expected = unit(&(0..64).map(mean).collect::<Vec<f32>>());
        let found = &embed(&running, &json!({ "input": text })).await[0];
        check_near(found, &expected, 1e-5, text);
    }
}

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let limits = Limits { rows: 5, ..Limits::default() };
    let running =
        serve("zoo:bert-base-tiny", ServerConfig { limits, ..ServerConfig::default() }).await;
    let long = "a ".repeat(511);
    #[rustfmt::skip]
    let rows = [
        (400, "invalid_request", "no input", json!({ "input": [] })),
        (400, "invalid_request", "input 0 is empty", json!({ "input": "" })),
        (400, "invalid_request", "input 1 is empty", json!({ "input": ["a", ""] })),
        (400, "invalid_request", "input 1 is empty", json!({ "input": [[2, 3], []] })),
        (400, "invalid_request", "input 0: it has 513 tokens, and the model takes 512", json!({ "input": long })),
        (400, "invalid_request", "input 2: it has 513 tokens, and the model takes 512", json!({ "input": ["a", "b", long] })),
        (400, "invalid_request", "input 0: it has 513 tokens", json!({ "input": vec![2; 513] })),
        (404, "not_found", "nobody", json!({ "input": "a", "model": "nobody" })),
        (400, "invalid_request", "a text, a list of texts", json!({ "input": 1 })),
        (400, "invalid_request", "a text, a list of texts", json!({ "input": null })),
        (400, "invalid_request", "a text, a list of texts", json!({ "input": ["a", 1] })),
        (400, "invalid_request", "a text, a list of texts", json!({ "input": [1.5] })),
        (400, "invalid_request", "a text, a list of texts", json!({ "input": [-1] })),
        (400, "invalid_request", "`input`", json!({ "model": MODEL })),
        (400, "invalid_request", "string", json!({ "input": "a", "model": 7 })),
        (400, "invalid_request", "base64", json!({ "input": "a", "encoding_format": "hex" })),
        (400, "invalid_request", "dimensions is 65; it may be 1 to 64", json!({ "input": "a", "dimensions": 65 })),
        (400, "invalid_request", "dimensions is 0", json!({ "input": "a", "dimensions": 0 })),
        (400, "invalid_request", "-1", json!({ "input": "a", "dimensions": -1 })),
        (400, "invalid_request", "input 0: 999 is no token", json!({ "input": [999] })),
        (400, "invalid_request", "input 1: 4000000000 is no token", json!({ "input": [[2], [4_000_000_000_u32]] })),
        (400, "limit", "the number of texts is 6; the server takes at most 5 (rows)", json!({ "input": vec!["a"; 6] })),
    ];
    for (status, code, needed, request) in rows {
        let answer = running.post("/v1/embeddings", &request).await;
        let error = &answer.json()["error"];
        assert_eq!(answer.status, status, "{request} {error}");
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!(code))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(needed), "{needed:?} is not in {message:?}");
    }
    let (deep, half) = ("[".repeat(200_000), r#"{"input": "a""#.to_owned());
    for body in [format!(r#"{{"input": {deep}"#), half, String::new()] {
        let answer = running.send(Method::POST, "/v1/embeddings", &[], Bytes::from(body)).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.json()["error"]["message"].is_string());
    }
    // As long as may be, and as many as may be.
    let most = "a ".repeat(510);
    assert_eq!(embed(&running, &json!({ "input": ["a", "b", "c", "d", most] })).await.len(), 5);
}

#[tokio::test]
async fn a_request_alone_is_never_too_many_for_the_queue() {
    let limits = Limits { queue: 4, ..Limits::default() };
    let running =
        serve("zoo:bert-base-tiny", ServerConfig { limits, ..ServerConfig::default() }).await;
    let texts: Vec<String> = (0..100).map(|place| format!("text {place}")).collect();
    assert_eq!(embed(&running, &json!({ "input": texts })).await.len(), 100);
}

#[tokio::test]
async fn a_request_has_one_deadline_for_all_of_its_texts() {
    let texts = |count: usize| json!({ "input": vec!["a ".repeat(500); count] });
    let running = bert().await;
    let began = Instant::now();
    embed(&running, &texts(256)).await;
    let part = began.elapsed();
    // Time enough for each text once it is its turn, and too little for all of them.
    let limits = Limits { deadline_ms: 4 * part.as_millis() as u64, ..Limits::default() };
    let running =
        serve("zoo:bert-base-tiny", ServerConfig { limits, ..ServerConfig::default() }).await;
    let answer = running.post("/v1/embeddings", &texts(4096)).await;
    assert_eq!(answer.status, 504, "{part:?}");
    let error = &answer.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("deadline")));
}

#[tokio::test]
async fn models_are_listed() {
    let running = bert().await;
    let list = running.get("/v1/models").await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    let one = running.get("/v1/models/bert-base-tiny").await.json();
    assert_eq!(one, list["data"][0]);
    let none = running.get("/v1/models/nobody").await;
    assert_eq!((none.status.as_u16(), &none.json()["error"]["code"]), (404, &json!("not_found")));
    let other = serve("zoo:mlp-2x4", ServerConfig::default()).await;
    let request = json!({ "input": "a", "model": "mlp-2x4" });
    let answer = other.post("/v1/embeddings", &request).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("tokenizer.json"));
    let answer = other.post("/v1/embeddings", &json!({ "input": "a" })).await;
    assert_eq!(answer.status, 400);
}
