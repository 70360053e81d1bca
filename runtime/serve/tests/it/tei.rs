//! The endpoints of text-embeddings-inference.

use crate::harness::{Running, serve};
use crate::openai::{check_near, floats, ids, unit};
use crate::text::{folder, serve_folder, write, write_bert, write_tokenizer};
use axum::http::Method;
use graphene_frontend::onnx::{
    AttributeProto, AttributeType, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue,
    ValueInfoProto, encode,
};
use graphene_serve::{Limits, ServerConfig};
use serde_json::{Value, json};
use std::path::Path;

async fn bert() -> Running {
    serve("zoo:bert-base-tiny", ServerConfig::default()).await
}

async fn post(running: &Running, path: &str, request: &Value) -> Value {
    let answer = running.post(path, request).await;
    assert_eq!(answer.status, 200, "{path} {request} {answer:?}");
    answer.json()
}

/// Asks for what is refused, and checks how.
async fn check_refused(
    running: &Running,
    path: &str,
    request: &Value,
    (status, kind, needed): (u16, &str, &str),
) {
    let answer = running.post(path, request).await;
    let body = answer.json();
    assert_eq!(
        (answer.status.as_u16(), &body["error_type"]),
        (status, &json!(kind)),
        "{path} {request} {body}"
    );
    let error = body["error"].as_str().unwrap();
    assert!(error.contains(needed), "{needed:?} is not in {error:?}");
}

#[tokio::test]
async fn embeddings_are_normalised_unless_they_shall_not_be() {
    let running = bert().await;
    let texts = ["a text", "and another, longer one"];
    let ask = |normalize: bool| json!({ "inputs": texts, "normalize": normalize });
    let raw = post(&running, "/embed", &ask(false)).await;
    let normal = post(&running, "/embed", &ask(true)).await;
    assert_eq!(post(&running, "/embed", &json!({ "inputs": texts })).await, normal);
    let same = json!({ "inputs": texts, "truncate": null });
    assert_eq!(post(&running, "/embed", &same).await, normal);
    for (raw, normal) in raw.as_array().unwrap().iter().zip(normal.as_array().unwrap()) {
        let raw = floats(raw);
        check_near(&floats(normal), &unit(&raw), 1e-6, "normalised");
        let length = raw.iter().map(|x| x * x).sum::<f32>();
        assert!((length - 1.0).abs() > 1e-3, "{length}");
    }
    let all = post(&running, "/embed_all", &json!({ "inputs": texts })).await;
    for (place, text) in texts.iter().enumerate() {
        let tokens = all[place].as_array().unwrap();
        assert_eq!(tokens.len(), ids(&running, text).await.len());
        assert!(tokens.iter().all(|token| floats(token).len() == 64));
    }
    assert_eq!(
        post(&running, "/embed_all", &json!({ "inputs": "a" })).await[0].as_array().unwrap().len(),
        3
    );
}

#[tokio::test]
async fn texts_are_cut_off_at_either_side() {
    let running = bert().await;
    let (begins, ends) = ("x ".repeat(510), "y ".repeat(510));
    let text = format!("{begins}{ends}");
    for (side, expected) in
        [("Left", &ends), ("left", &ends), ("Right", &begins), ("right", &begins)]
    {
        let request = json!({ "inputs": text, "truncate": true, "truncation_direction": side });
        let found = post(&running, "/embed", &request).await;
        let expected = post(&running, "/embed", &json!({ "inputs": expected })).await;
        check_near(&floats(&found[0]), &floats(&expected[0]), 1e-6, side);
    }
    let right = post(&running, "/embed", &json!({ "inputs": text, "truncate": true })).await;
    let expected = post(&running, "/embed", &json!({ "inputs": begins })).await;
    check_near(&floats(&right[0]), &floats(&expected[0]), 1e-6, "the right side, if none is named");
    let needed = (400, "Validation", "input 1: it has 1022 tokens, and the model takes 512");
    check_refused(&running, "/embed", &json!({ "inputs": ["a", text] }), needed).await;
    let ids = ids(&running, &text).await;
    assert_eq!(ids.len(), 1022, "tokens are not made for the model alone");
    let request = json!({ "inputs": ids, "truncate": true, "truncation_direction": "left" });
    assert_eq!(post(&running, "/embed_all", &request).await[0].as_array().unwrap().len(), 512);
}

#[tokio::test]
async fn tokens_are_told_and_made_text_again() {
    let place = folder("tokens");
    write_bert(&place, &[]);
    let running = serve_folder(&place).await;
    let token = |id: u32, text: &str, start: usize, stop: usize| json!({"id": id, "text": text, "special": false, "start": start, "stop": stop});
    let special = |id: u32, text: &str| json!({"id": id, "text": text, "special": true, "start": null, "stop": null});
    let plain = [
        token(5, "The", 0, 3),
        token(6, "cat", 4, 7),
        token(10, "s", 7, 8),
        token(12, "Café", 9, 14),
    ];
    let mut whole = vec![special(2, "[CLS]")];
    whole.extend(plain.clone());
    whole.push(special(3, "[SEP]"));
    let text = "The cats Café";
    let found = post(&running, "/tokenize", &json!({ "inputs": text })).await;
    assert_eq!(found, json!([whole]));
    let request = json!({ "inputs": [text, "mat"], "add_special_tokens": false });
    let found = post(&running, "/tokenize", &request).await;
    assert_eq!(found, json!([plain, [token(9, "mat", 0, 3)]]));
    let lists = json!([[2, 5, 6, 10, 3], [2, 9, 3]]);
    let found = post(&running, "/decode", &json!({ "ids": lists })).await;
    assert_eq!(found, json!(["the cats", "mat"]));
    let request = json!({ "ids": lists[1], "skip_special_tokens": false });
    assert_eq!(post(&running, "/decode", &request).await, json!(["[CLS] mat [SEP]"]));
    #[rustfmt::skip]
    let rows = [
        ("/decode", json!({ "ids": [5, 999] }), "input 0: 999 is no token"),
        ("/decode", json!({ "ids": [] }), "input 0: it has no tokens"),
        ("/decode", json!({ "ids": "a" }), "ids has to be"),
        ("/tokenize", json!({ "inputs": [] }), "no input"),
        ("/tokenize", json!({ "inputs": "" }), "input 0 is empty"),
    ];
    for (path, request, needed) in rows {
        check_refused(&running, path, &request, (400, "Validation", needed)).await;
    }
}

#[tokio::test]
async fn info_and_health_say_what_is_served() {
    let limits = Limits { rows: 33, queue: 77, ..Limits::default() };
    let running =
        serve("zoo:bert-base-tiny", ServerConfig { limits, ..ServerConfig::default() }).await;
    let info = running.get("/info").await.json();
    #[rustfmt::skip]
    let rows = [
        ("model_id", json!("bert-base-tiny")),
        ("model_type", json!({ "embedding": { "pooling": "mean" } })),
        ("max_concurrent_requests", json!(77)),
        ("max_input_length", json!(512)),
        ("max_client_batch_size", json!(33)),
        ("max_batch_tokens", json!(16_384)),
        ("auto_truncate", json!(false)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
    ];
    for (name, expected) in rows {
        assert_eq!(info[name], expected, "{name}");
    }
    assert_eq!(running.get("/health").await.status, 200);
    let many = json!({ "inputs": vec!["a"; 34] });
    let needed = (400, "Validation", "the number of texts is 34; the server takes at most 33");
    check_refused(&running, "/embed", &many, needed).await;
    running.server.drain();
    assert_eq!(running.get("/health").await.status, 503);
    check_refused(
        &running,
        "/embed",
        &json!({ "inputs": "a" }),
        (503, "Unhealthy", "shutting down"),
    )
    .await;
}

#[tokio::test]
async fn several_models_of_text_are_named() {
    let root = folder("several");
    write_bert(&root.join("a"), &[]);
    write_bert(&root.join("b"), &[("serve.toml", "[text]\npooling = \"cls\"")]);
    crate::harness::write_zoo("mlp-2x4", 0, &root.join("c"));
    let running = serve_folder(&root).await;
    let ask = |model: &str| json!({ "inputs": "the cat", "model": model });
    let (a, b) =
        (post(&running, "/embed", &ask("a")).await, post(&running, "/embed", &ask("b")).await);
    assert_ne!(a, b);
    let plain = json!({ "inputs": "the cat" });
    let named = (400, "Validation", "name one by `model`");
    for path in ["/embed", "/embed_all", "/tokenize", "/predict"] {
        check_refused(&running, path, &plain, named).await;
    }
    check_refused(&running, "/rerank", &json!({ "query": "a", "texts": ["b"] }), named).await;
    check_refused(&running, "/decode", &json!({ "ids": [5] }), named).await;
    check_refused(&running, "/embed", &ask("d"), (404, "Validation", "\"d\"")).await;
    check_refused(&running, "/embed", &ask("c"), (400, "Validation", "tokenizer.json")).await;
    // With one alone it is that one, whatever else is served.
    std::fs::remove_dir_all(root.join("b")).unwrap();
    running.server.refresh().unwrap();
    assert_eq!(post(&running, "/embed", &plain).await, a);
}

#[tokio::test]
async fn wrong_bodies_and_late_answers_have_their_types() {
    let limits = Limits { body_bytes: 1000, deadline_ms: 0, ..Limits::default() };
    let running =
        serve("zoo:bert-base-tiny", ServerConfig { limits, ..ServerConfig::default() }).await;
    check_refused(&running, "/embed", &json!({ "inputs": "a" }), (504, "Backend", "deadline"))
        .await;
    check_refused(
        &running,
        "/embed",
        &json!({ "inputs": "a ".repeat(600) }),
        (413, "Validation", "body_bytes"),
    )
    .await;
    check_refused(
        &running,
        "/embed",
        &json!({ "inputs": 5 }),
        (400, "Validation", "a text, a list of texts"),
    )
    .await;
    check_refused(&running, "/embed", &json!({ "input": "a" }), (400, "Validation", "`inputs`"))
        .await;
    let wrong = json!({ "inputs": "a", "truncation_direction": "up" });
    check_refused(&running, "/embed", &wrong, (400, "Validation", "up")).await;
    for path in ["/embed", "/embed_all", "/rerank", "/predict", "/tokenize", "/decode"] {
        let answer = running.send(Method::POST, path, &[], "[".repeat(900)).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error_type"]),
            (400, &json!("Validation"))
        );
    }
}

/// What the model below adds to a label's score for a token.
fn weight(id: i64, label: usize) -> f32 {
    ((id * 7 + label as i64 * 3) % 11) as f32 / 4.0 - 1.25
}

/// What it adds for a token of the second text of a pair.
const SECOND: f32 = 0.5;

/// Writes a classifier whose scores are means over tokens of what their ids and types weigh. It has no mask, so padding
/// would show.
fn write_classifier(folder: &Path, labels: usize, config: &Value) {
    let dim = |value| Dimension { value: Some(value) };
    let named = |name: &str| dim(DimensionValue::DimParam(name.to_owned()));
    let value = |name: &str, elem_type: i32, dims: [Dimension; 2]| {
        let shape = Some(TensorShapeProto { dim: dims.to_vec() });
        let tensor = TypeValue::TensorType(TensorTypeProto { elem_type, shape });
        ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(tensor) }) }
    };
    let table = |name: &str, rows: usize, numbers: Vec<f32>| TensorProto {
        name: name.to_owned(),
        dims: vec![rows as i64, labels as i64],
        data_type: 1,
        float_data: numbers,
        ..TensorProto::default()
    };
    let node = |op: &str, inputs: [&str; 2], output: &str, attribute| NodeProto {
        input: inputs.iter().filter(|name| !name.is_empty()).map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: op.to_owned(),
        attribute,
        ..NodeProto::default()
    };
    let attribute = |name: &str, kind: AttributeType, i: i64, ints: Vec<i64>| AttributeProto {
        name: name.to_owned(),
        r#type: kind.into(),
        i,
        ints,
        ..AttributeProto::default()
    };
    let axes = attribute("axes", AttributeType::Ints, 0, vec![1]);
    let keep = attribute("keepdims", AttributeType::Int, 0, Vec::new());
    let ids = || [named("batch"), named("sequence")];
    let weights = (0..20).flat_map(|id| (0..labels).map(move |label| weight(id, label)));
    let types = [vec![0.0; labels], vec![SECOND; labels]].concat();
    let graph = GraphProto {
        name: "classifier".to_owned(),
        node: vec![
            node("Gather", ["weights", "input_ids"], "of_ids", Vec::new()),
            node("Gather", ["types", "token_type_ids"], "of_types", Vec::new()),
            node("Add", ["of_ids", "of_types"], "of_tokens", Vec::new()),
            node("ReduceMean", ["of_tokens", ""], "logits", vec![axes, keep]),
        ],
        initializer: vec![table("weights", 20, weights.collect()), table("types", 2, types)],
        input: vec![value("input_ids", 7, ids()), value("token_type_ids", 7, ids())],
        output: vec![value(
            "logits",
            1,
            [named("batch"), dim(DimensionValue::DimValue(labels as i64))],
        )],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: String::new(), version: 13 };
    let model = ModelProto {
        ir_version: 8,
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("model.onnx"), encode(&model)).unwrap();
    write_tokenizer(folder);
    let mut config = config.clone();
    config["architectures"] = json!(["BertForSequenceClassification"]);
    write(folder, "config.json", &config.to_string());
}

/// The raw score that the classifier has for a text's tokens and for those of a second one.
fn score(first: &[i64], second: &[i64], label: usize) -> f32 {
    let sum: f32 = first.iter().chain(second).map(|&id| weight(id, label)).sum();
    let count = first.len() + second.len();
    (sum + SECOND * second.len() as f32) / count as f32
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[tokio::test]
async fn texts_are_ranked_by_a_model_of_one_label() {
    let place = folder("ranker");
    write_classifier(&place, 1, &json!({ "id2label": { "0": "relevance" } }));
    let running = serve_folder(&place).await;
    let kind =
        json!({ "reranker": { "id2label": { "0": "relevance" }, "label2id": { "relevance": 0 } } });
    assert_eq!(running.get("/info").await.json()["model_type"], kind);
    let texts = ["mat", "the cat sat on the mat", "big cats", "cat", "cats"];
    let query = ids(&running, "the cat").await;
    let mut expected = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        expected.push((index, score(&query, &ids(&running, text).await[1..], 0)));
    }
    expected.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert_ne!(expected[0].0, 0, "a ranking that changes nothing shows nothing");
    for (raw, with_text) in [(false, false), (true, false), (false, true), (true, true)] {
        let request = json!({ "query": "the cat", "texts": texts, "raw_scores": raw, "return_text": with_text });
        let found = post(&running, "/rerank", &request).await;
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), texts.len());
        for (found, &(index, score)) in found.iter().zip(&expected) {
            let score = if raw { score } else { sigmoid(score) };
            assert_eq!(found["index"], json!(index));
            check_near(&[found["score"].as_f64().unwrap() as f32], &[score], 1e-5, texts[index]);
            assert_eq!(found.get("text"), with_text.then(|| json!(texts[index])).as_ref());
        }
    }
    let found = post(&running, "/predict", &json!({ "inputs": "the cat" })).await;
    let expected = sigmoid(score(&query, &[], 0));
    assert_eq!(found[0]["label"], "relevance");
    check_near(&[found[0]["score"].as_f64().unwrap() as f32], &[expected], 1e-6, "the cat");
    check_refused(
        &running,
        "/rerank",
        &json!({ "query": "a", "texts": [] }),
        (400, "Validation", "no input"),
    )
    .await;
    check_refused(
        &running,
        "/embed",
        &json!({ "inputs": "cat" }),
        (400, "Validation", "/rerank or /predict"),
    )
    .await;
}

#[tokio::test]
async fn labels_are_predicted_for_texts_and_pairs() {
    let place = folder("classifier");
    // More than ten, so that their names come in another order than their numbers.
    let names: Value = (0..12).map(|id| (id.to_string(), json!(format!("label {id}")))).collect();
    write_classifier(&place, 12, &json!({ "id2label": names }));
    let running = serve_folder(&place).await;
    let info = running.get("/info").await.json();
    assert_eq!(info["model_type"]["classifier"]["id2label"], names);
    let (a, b) = (ids(&running, "the cat").await, ids(&running, "sat on the big mats").await);
    let check = |found: &Value, raw: bool, second: &[i64]| {
        let logits: Vec<f32> = (0..12).map(|label| score(&a, second, label)).collect();
        let sum: f32 = logits.iter().map(|x| x.exp()).sum();
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), 12);
        let mut before = f32::INFINITY;
        for item in found {
            let label = item["label"].as_str().unwrap();
            let logit = logits[label.strip_prefix("label ").unwrap().parse::<usize>().unwrap()];
            let expected = if raw { logit } else { logit.exp() / sum };
            let score = item["score"].as_f64().unwrap() as f32;
            check_near(&[score], &[expected], 1e-5, label);
            assert!(score <= before);
            before = score;
        }
    };
    for raw in [false, true] {
        let ask = |inputs: Value| json!({ "inputs": inputs, "raw_scores": raw });
        let pair = json!(["the cat", "sat on the big mats"]);
        check(&post(&running, "/predict", &ask(json!("the cat"))).await, raw, &[]);
        check(&post(&running, "/predict", &ask(json!(["the cat"]))).await, raw, &[]);
        check(&post(&running, "/predict", &ask(pair.clone())).await, raw, &b[1..]);
        let found = post(&running, "/predict", &ask(json!([["the cat"], pair]))).await;
        assert_eq!(found.as_array().unwrap().len(), 2);
        check(&found[0], raw, &[]);
        check(&found[1], raw, &b[1..]);
    }
    #[rustfmt::skip]
    let rows = [
        ("/predict", json!({ "inputs": [] }), "input 0 has 0 texts"),
        ("/predict", json!({ "inputs": [["a"], []] }), "input 1 has 0 texts"),
        ("/predict", json!({ "inputs": ["a", "b", "c"] }), "input 0 has 3 texts"),
        ("/predict", json!({ "inputs": 4 }), "inputs has to be a text"),
        ("/rerank", json!({ "query": "a", "texts": ["b"] }), "12 labels; ranking needs a model of one"),
    ];
    for (path, request, needed) in rows {
        check_refused(&running, path, &request, (400, "Validation", needed)).await;
    }
}

#[tokio::test]
async fn two_labels_without_names_are_numbered() {
    let place = folder("two");
    write_classifier(&place, 2, &json!({}));
    let running = serve_folder(&place).await;
    let info = running.get("/info").await.json();
    assert_eq!(
        info["model_type"]["classifier"]["id2label"],
        json!({ "0": "LABEL_0", "1": "LABEL_1" })
    );
    let found = post(&running, "/predict", &json!({ "inputs": "cat" })).await;
    let sum = found[0]["score"].as_f64().unwrap() + found[1]["score"].as_f64().unwrap();
    assert!((sum - 1.0).abs() < 1e-6, "{found}");
    let embeds = serve("zoo:bert-base-tiny", ServerConfig::default()).await;
    for (path, request) in [
        ("/predict", json!({ "inputs": "a" })),
        ("/rerank", json!({ "query": "a", "texts": ["b"] })),
    ] {
        check_refused(&embeds, path, &request, (400, "Validation", "ForSequenceClassification"))
            .await;
    }
}

#[tokio::test]
async fn the_longer_text_of_a_pair_is_cut_off() {
    let place = folder("pairs");
    write_classifier(&place, 1, &json!({ "max_position_embeddings": 9 }));
    let running = serve_folder(&place).await;
    let (cls, sep, cat, mat) = (2, 3, 6, 9);
    // Six tokens are left for both.
    #[rustfmt::skip]
    let rows = [
        (10, 10, "right", 3, 3), (10, 2, "right", 4, 2), (1, 10, "left", 1, 5), (3, 10, "right", 3, 3),
        (10, 3, "left", 3, 3), (3, 3, "right", 3, 3), (2, 4, "left", 2, 4),
    ];
    for (first, second, side, kept_first, kept_second) in rows {
        let words = |word: &str, count: usize| vec![word; count].join(" ");
        let inputs = json!([words("cat", first), words("mat", second)]);
        let request = json!({
            "inputs": inputs, "raw_scores": true, "truncate": true, "truncation_direction": side
        });
        let found = post(&running, "/predict", &request).await;
        let first = [&[cls][..], &vec![cat; kept_first], &[sep]].concat();
        let second = [&vec![mat; kept_second][..], &[sep]].concat();
        let expected = score(&first, &second, 0);
        check_near(
            &[found[0]["score"].as_f64().unwrap() as f32],
            &[expected],
            1e-5,
            &request.to_string(),
        );
    }
    let long = json!({ "inputs": ["cat ".repeat(10), "mat"] });
    check_refused(&running, "/predict", &long, (400, "Validation", "it has 14 tokens")).await;
    // What is cut off costs no more than to read it.
    let inputs = json!(["cat ".repeat(20_000), "mat ".repeat(20_000)]);
    let request = json!({ "inputs": inputs, "truncate": true });
    let began = std::time::Instant::now();
    post(&running, "/predict", &request).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
}
