//! `--text`: what is said of texts, beside what transformers recorded of them (`tests/data/fixtures.py`).

use crate::{Folder, json, quick, read};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder with a model, its tokenizer and its settings.
pub(crate) fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    path.to_str().expect("the checkout's path is text").to_owned()
}

/// What transformers said.
pub(crate) fn expected(name: &str) -> Value {
    let text = read(PathBuf::from(fixture(name)).join("expected.json"));
    serde_json::from_str(&text).expect("it is JSON")
}

/// A copy of a fixture whose files can be changed.
fn copy(name: &str) -> Folder {
    let folder = Folder::new();
    for entry in fs::read_dir(fixture(name)).expect("a fixture") {
        let path = entry.expect("a fixture's file").path();
        if path.is_file() {
            let name = path.file_name().expect("a file has a name");
            fs::copy(&path, folder.0.join(name)).expect("the folder takes files");
        }
    }
    folder
}

/// Changes a file of settings.
fn change(folder: &Folder, file: &str, changes: &[(&str, Value)]) {
    let path = folder.path(file);
    let mut settings: Value = serde_json::from_str(&read(&path)).expect("it is JSON");
    for (name, value) in changes {
        settings[*name] = value.clone();
    }
    fs::write(path, settings.to_string()).expect("the folder takes files");
}

fn texts(of: &Value) -> Vec<&str> {
    of.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text")).collect()
}

/// The answer of a model on texts; other flags after them.
#[track_caller]
fn ask(model: &str, texts: &[&str], flags: &[&str]) -> Value {
    let given = texts.iter().flat_map(|text| ["--text", text]);
    let arguments: Vec<&str> =
        [model].into_iter().chain(given).chain(flags.iter().copied()).collect();
    json(&arguments)["text"].clone()
}

#[track_caller]
fn check_near(found: &Value, expected: &Value) {
    match (found, expected) {
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).for_each(|(a, b)| check_near(a, b));
        }
        (Value::Number(a), Value::Number(b)) => {
            let apart = a.as_f64().expect("a number") - b.as_f64().expect("a number");
            assert!(apart.abs() < 1e-5, "{a} is not {b}");
        }
        _ => assert_eq!(found, expected),
    }
}

/// Scores of labels in the labels' own order.
fn scores(text: &Value, labels: &Value) -> Value {
    let found = text["labels"].as_array().expect("labels");
    let score = |label: &Value| {
        let entry =
            found.iter().find(|entry| entry["label"] == *label).expect("each label is there");
        entry["score"].clone()
    };
    labels.as_array().expect("labels").iter().map(score).collect()
}

#[test]
fn labels_are_scored_as_transformers_does() {
    let expected = expected("classifier");
    let rows =
        [("single_label_classification", "softmax"), ("multi_label_classification", "sigmoid")];
    for (problem, function) in rows {
        let folder = copy("classifier");
        change(&folder, "config.json", &[("problem_type", json!(problem))]);
        // Texts of two lengths are a batch: one is padded.
        let found = ask(&folder.path(""), &texts(&expected["texts"]), &[]);
        assert_eq!(
            (&found["task"], &found["output"]),
            (&json!("text-classification"), &json!("logits"))
        );
        let of_each = found["texts"].as_array().unwrap();
        let all: Value = of_each.iter().map(|text| scores(text, &expected["labels"])).collect();
        check_near(&all, &expected[function]);
        let order: Vec<f64> = of_each[0]["labels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["score"].as_f64().unwrap())
            .collect();
        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
    }
}

#[test]
fn pairs_have_a_value() {
    let expected = expected("reranker");
    let [first, second] = [0, 1].map(|i| texts(&expected["pairs"][i]));
    let each = ["--text-pair", first[1], "--text-pair", second[1]];
    // One text may stand for all.
    for given in [&[first[0], second[0]][..], &[first[0]]] {
        let found = ask(&fixture("reranker"), given, &each);
        let of = |name: &str| -> Value {
            [0, 1].iter().map(|&i| found["texts"][i]["value"][name].clone()).collect()
        };
        check_near(&of("value"), &expected["scores"]);
        check_near(&of("sigmoid"), &expected["sigmoid"]);
        assert_eq!(found["texts"][1]["pair"], second[1]);
    }
    let folder = copy("reranker");
    change(&folder, "config.json", &[("problem_type", json!("regression"))]);
    let found = ask(&folder.path(""), &[first[0]], &each[..2]);
    check_near(&found["texts"][0]["value"]["value"], &expected["scores"][0]);
    assert_eq!(found["texts"][0]["value"].get("sigmoid"), None);
    let given = quick(&[
        &fixture("reranker"),
        "--text",
        "a",
        "--text",
        "b",
        "--text",
        "c",
        "--text-pair",
        "d",
        "--text-pair",
        "e",
    ]);
    let reason =
        "error: --text-pair: one is needed for each of 3 texts, or there is one text; got 2\n";
    assert_eq!((given.code, &*given.stderr), (2, reason));
}

#[test]
fn tokens_have_labels() {
    let expected = expected("token-classifier");
    let found = ask(&fixture("token-classifier"), &[expected["text"].as_str().unwrap()], &[]);
    assert_eq!(found["task"], "token-classification");
    let row = |token: &Value| json!([token["token"], token["label"], token["score"]]);
    let rows: Value = found["texts"][0]["tokens"].as_array().unwrap().iter().map(row).collect();
    check_near(&rows, &expected["tokens"]);
}

#[test]
fn masks_have_words() {
    let expected = expected("masked-lm");
    let found = ask(&fixture("masked-lm"), &texts(&expected["texts"]), &[]);
    assert_eq!(found["task"], "fill-mask");
    for (text, masks) in
        found["texts"].as_array().unwrap().iter().zip(expected["masks"].as_array().unwrap())
    {
        let row = |words: &Value| {
            let of = |name: &str| {
                words["best"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|word| word[name].clone())
                    .collect::<Value>()
            };
            json!({ "position": words["position"], "tokens": of("token"), "scores": of("score") })
        };
        let rows: Vec<Value> = text["words"].as_array().unwrap().iter().map(row).collect();
        for (row, mask) in rows.iter().zip(masks.as_array().unwrap()) {
            assert_eq!((&row["position"], &row["tokens"]), (&mask["position"], &mask["tokens"]));
            check_near(&row["scores"], &mask["scores"]);
        }
        assert_eq!(rows.len(), masks.as_array().unwrap().len());
    }
    let given = quick(&[&fixture("masked-lm"), "--text", "the cat"]);
    assert!(
        given.stdout.contains("note: the model guesses words: write [MASK] in the place of one\n"),
        "{}",
        given.stdout
    );
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let expected = expected("encoder");
    let given = texts(&expected["texts"]);
    let vectors = |found: &Value| -> Value {
        found["texts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|text| text["embedding"]["vector"].clone())
            .collect()
    };
    let found = ask(&fixture("encoder"), &given, &[]);
    check_near(&vectors(&found), &expected["embeddings"]);
    check_near(&found["cosines"], &expected["cosines"]);
    check_near(&found["texts"][0]["embedding"]["norm"], &json!(1.0));
    // Without a step that normalises, by the mean where nothing says how to pool; and by the first token, as older files say it.
    let cls = r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;
    for (pooling, name) in [(None, "means"), (Some(cls), "first")] {
        let folder = copy("encoder");
        fs::remove_file(folder.path("modules.json")).unwrap();
        if let Some(pooling) = pooling {
            fs::create_dir(folder.path("1_Pooling")).unwrap();
            fs::write(folder.path("1_Pooling/config.json"), pooling).unwrap();
        }
        check_near(&vectors(&ask(&folder.path(""), &given, &[])), &expected[name]);
    }
}

#[test]
fn answers_are_in_the_summary() {
    let given =
        quick(&[&fixture("encoder"), "--text", "The cat sat on the mat.", "--text", "a dog"]);
    let answer: Vec<&str> = given.stdout.split("\n\n").nth(1).unwrap_or_default().lines().collect();
    assert_eq!(
        answer,
        [
            "feature-extraction, from last_hidden_state",
            "  \"The cat sat on the mat.\", 9 tokens",
            "    [0.1599, -0.0022, 0.0957, 0.0902, 0.2735, -0.0513, …] 32 numbers, norm 1.0000",
            "  \"a dog\", 4 tokens",
            "    [-0.0678, -0.1567, 0.0536, -0.0336, 0.0875, 0.1131, …] 32 numbers, norm 1.0000",
            "  cosine similarity of the texts",
            "     1.0000  0.6285",
            "     0.6285  1.0000",
        ],
        "{}",
        given.stdout
    );
    assert!(
        given.stdout.contains("  inputs       input_ids i64[2, 9] from --text\n"),
        "{}",
        given.stdout
    );
    let given = quick(&[&fixture("classifier"), "--text", "a \u{1b}[31m film"]);
    assert!(given.stdout.contains(r#"  "a \u{1b}[31m film", "#), "{}", given.stdout);
}

#[test]
fn models_lie_where_exporters_put_them() {
    let folder = copy("encoder");
    let whole = ask(&folder.path(""), &["a dog"], &[]);
    fs::create_dir(folder.path("onnx")).unwrap();
    fs::rename(folder.path("model.onnx"), folder.path("onnx/model.onnx")).unwrap();
    assert_eq!(ask(&folder.path(""), &["a dog"], &[]), whole);
    assert_eq!(ask(&folder.path("onnx/model.onnx"), &["a dog"], &[]), whole);
    fs::rename(folder.path("onnx/model.onnx"), folder.path("onnx/model_quantized.onnx")).unwrap();
    assert_eq!(ask(&folder.path(""), &["a dog"], &[]), whole);
    fs::copy(folder.path("onnx/model_quantized.onnx"), folder.path("other.onnx")).unwrap();
    let given = quick(&[&folder.path(""), "--text", "a dog"]);
    let several = format!(
        "error: {}: it has no model.onnx, but several models: name one of {}, {}\n",
        folder.path(""),
        folder.path("onnx/model_quantized.onnx"),
        folder.path("other.onnx")
    );
    assert_eq!((given.code, given.stderr), (3, several));
    // A model is read, wherever it lies.
    let flags = ["--text", "a dog", "--save-outputs", &folder.path("other.onnx")];
    let given = quick(&[&[&*folder.path("other.onnx")], &flags[..]].concat());
    assert!(
        given.code == 2 && given.stderr.contains("is read, and would be overwritten"),
        "{}",
        given.stderr
    );
    fs::remove_file(folder.path("onnx/model_quantized.onnx")).unwrap();
    let given = quick(&[&[&*folder.path("")], &flags[..]].concat());
    assert!(
        given.code == 2 && given.stderr.contains("is read, and would be overwritten"),
        "{}",
        given.stderr
    );
}

#[test]
fn sizes_are_those_of_the_texts() {
    let model = fixture("encoder");
    let sizes = json(&[&model, "--text", "a dog", "--text", "the cat"])["sizes"].clone();
    assert_eq!(sizes, json!({ "batch": 2, "sequence": 4 }));
    let given = quick(&[&model, "--text", "a dog", "--seq", "9"]);
    assert_eq!(given.code, 2, "{}", given.stdout);
    assert!(
        given.stderr.contains("`sequence` cannot be 9: it is 4 by input `input_ids` from --text"),
        "{}",
        given.stderr
    );
    let long = vec!["cat"; 30].join(" ");
    let given = quick(&[&model, "--text", "a", "--text", &long]);
    let reason = "error: --text: text 2 of 2: it has 32 tokens, and the model takes 24\n";
    assert_eq!((given.code, &*given.stderr), (2, reason));
}

#[test]
fn models_of_the_zoo_take_text() {
    let found = ask("zoo:bert-base-tiny", &["hello"], &[]);
    assert_eq!(found["texts"][0]["length"], 7);
    assert_eq!(found["texts"][0]["embedding"]["vector"].as_array().unwrap().len(), 64);
    let given = quick(&["zoo:mlp-2x8", "--text", "hello"]);
    let reason =
        "error: --text: the model takes no tokens: it has no input named input_ids, but x\n";
    assert_eq!((given.code, &*given.stderr), (2, reason));
}

#[test]
fn a_missing_tokenizer_is_told_with_how_to_get_it() {
    let folder = copy("classifier");
    fs::remove_file(folder.path("tokenizer.json")).unwrap();
    let given = quick(&[&folder.path(""), "--text", "a"]);
    assert_eq!(given.code, 2);
    let made = "it has tokenizer_config.json, of which `AutoTokenizer.from_pretrained(";
    assert!(
        given.stderr.contains("has no tokenizer.json") && given.stderr.contains(made),
        "{}",
        given.stderr
    );
    fs::remove_file(folder.path("tokenizer_config.json")).unwrap();
    let given = quick(&[&folder.path(""), "--text", "a"]);
    let export = "`optimum-cli export onnx --model NAME FOLDER/` writes model.onnx with tokenizer.json and config.json";
    assert!(given.stderr.contains(export), "{}", given.stderr);
    fs::write(
        folder.path("tokenizer.json"),
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    )
    .unwrap();
    let given = quick(&[&folder.path(""), "--text", "a"]);
    let pointer = format!(
        "error: {}: it is a git-LFS pointer, not the file itself",
        folder.path("tokenizer.json")
    );
    assert!(given.code == 2 && given.stderr.starts_with(&pointer), "{}", given.stderr);
}
