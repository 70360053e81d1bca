//! Folders of text models: their tokenizers and settings, and what their files may not say.

use crate::harness::{Running, cpu, serve, write_zoo};
use crate::openai::{check_near, floats, unit};
use graphene_serve::{Server, ServerConfig};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const WORDS: [&str; 13] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "##s", "big",
    "café",
];

/// An empty folder of the test's own.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("text-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a tokenizer of a few words, as Hugging Face's libraries write one.
pub(crate) fn write_tokenizer(folder: &Path) {
    let ids: Value =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let special = |name: &str, type_id| json!({"SpecialToken": {"id": name, "type_id": type_id}});
    let text = |id: &str, type_id| json!({"Sequence": {"id": id, "type_id": type_id}});
    let known = |name: &str, id| json!({"id": name, "ids": [id], "tokens": [name]});
    let added: Vec<Value> = (0..5)
        .map(|id| {
            json!({
                "id": id, "content": WORDS[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true
            })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        // A folder may say so, but rows are cut and padded by what a request asks for.
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[PAD]"
        },
        "added_tokens": added,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)],
            "pair": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0), text("B", 1), special("[SEP]", 1)],
            "special_tokens": {"[CLS]": known("[CLS]", 2), "[SEP]": known("[SEP]", 3)}
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids
        }
    });
    write(folder, "tokenizer.json", &tokenizer.to_string());
}

pub(crate) fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A tiny BERT with a tokenizer and these files.
pub(crate) fn write_bert(folder: &Path, files: &[(&str, &str)]) {
    write_zoo("bert-base-tiny", 3, folder);
    write_tokenizer(folder);
    files.iter().for_each(|(file, text)| write(folder, file, text));
}

pub(crate) async fn serve_folder(folder: &Path) -> Running {
    serve(folder.to_str().unwrap(), ServerConfig::default()).await
}

async fn post(running: &Running, path: &str, request: &Value) -> Value {
    let answer = running.post(path, request).await;
    assert_eq!(answer.status, 200, "{request} {answer:?}");
    answer.json()
}

const POOLING: &str = "1_Pooling/config.json";
const CLS: &str = r#"{"word_embedding_dimension": 64, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#;

#[tokio::test]
async fn pooling_is_what_the_folder_or_its_settings_say() {
    #[rustfmt::skip]
    let rows: [(&str, &[(&str, &str)]); 6] = [
        ("mean", &[]),
        ("cls", &[(POOLING, CLS)]),
        ("last_token", &[(POOLING, r#"{"pooling_mode_lasttoken": true}"#)]),
        ("mean", &[(POOLING, CLS), ("serve.toml", "[text]\npooling = \"mean\"")]),
        ("last_token", &[(POOLING, CLS), ("serve.toml", "[text]\npooling = \"last\"")]),
        ("cls", &[("serve.toml", "[text]\npooling = \"cls\"")]),
    ];
    for (number, (pooling, files)) in rows.into_iter().enumerate() {
        let folder = folder(&format!("pooling-{number}"));
        write_bert(&folder, files);
        let running = serve_folder(&folder).await;
        let info = running.get("/info").await.json();
        assert_eq!(info["model_type"], json!({ "embedding": { "pooling": pooling } }));
        // Texts of several lengths are padded to run together: the last token is no padding.
        let texts = json!({ "inputs": ["the cat sat", "the cats sat on the mat", "mat"] });
        let tokens = post(&running, "/embed_all", &texts).await;
        let found = post(&running, "/embed", &texts).await;
        for (place, count) in [5, 9, 3].into_iter().enumerate() {
            let tokens: Vec<Vec<f32>> =
                tokens[place].as_array().unwrap().iter().map(floats).collect();
            assert_eq!(tokens.len(), count);
            let mean = |at: usize| tokens.iter().map(|x| x[at]).sum::<f32>() / count as f32;
            let expected = match pooling {
                "cls" => tokens[0].clone(),
                "mean" => (0..64).map(mean).collect(),
                _ => tokens[count - 1].clone(),
            };
            check_near(&floats(&found[place]), &unit(&expected), 1e-5, pooling);
        }
    }
}

#[tokio::test]
async fn a_text_is_as_long_as_the_strictest_file_says() {
    let positions = r#"{"max_position_embeddings": 12}"#;
    let roberta = r#"{"model_type": "roberta", "max_position_embeddings": 12, "pad_token_id": 1}"#;
    #[rustfmt::skip]
    let rows: [(usize, &[(&str, &str)]); 9] = [
        (512, &[]),
        (12, &[("config.json", positions)]),
        (10, &[("config.json", roberta)]),
        (9, &[("tokenizer_config.json", r#"{"model_max_length": 9, "do_lower_case": true}"#)]),
        (8, &[("sentence_bert_config.json", r#"{"max_seq_length": 8, "do_lower_case": false}"#)]),
        (7, &[("serve.toml", "[text]\nmax_tokens = 7")]),
        // What tokenizers write where they do not know.
        (512, &[("tokenizer_config.json", r#"{"model_max_length": 1000000000000000019884624838656}"#)]),
        (512, &[("tokenizer_config.json", r#"{"model_max_length": null}"#)]),
        (7, &[("config.json", positions), ("serve.toml", "[text]\nmax_tokens = 7"), ("tokenizer_config.json", r#"{"model_max_length": 9}"#)]),
    ];
    for (number, (most, files)) in rows.into_iter().enumerate() {
        let folder = folder(&format!("length-{number}"));
        write_bert(&folder, files);
        let running = serve_folder(&folder).await;
        assert_eq!(running.get("/info").await.json()["max_input_length"], json!(most), "{files:?}");
        let text = |words: usize| json!({ "inputs": vec!["cat"; words].join(" ") });
        let fits = post(&running, "/embed_all", &text(most - 2)).await;
        assert_eq!(fits[0].as_array().unwrap().len(), most);
        let answer = running.post("/embed", &text(most - 1)).await;
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 400, "{files:?}");
        let needed = format!("input 0: it has {} tokens, and the model takes {most}", most + 1);
        assert!(error.contains(&needed), "{error}");
    }
}

#[tokio::test]
async fn an_output_of_two_dims_is_the_texts_vector() {
    let folder = folder("pooler");
    write_bert(&folder, &[("serve.toml", "[text]\noutput = \"pooler_output\"")]);
    let running = serve_folder(&folder).await;
    let info = running.get("/info").await.json();
    assert_eq!(info["model_type"], json!({ "embedding": { "pooling": "model" } }));
    let request = json!({ "inputs": "the cat", "normalize": false });
    let found = post(&running, "/embed", &request).await;
    // It is a tanh, so no vector of length one.
    let length = floats(&found[0]).iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!(floats(&found[0]).len() == 64 && (length - 1.0).abs() > 1e-3, "{length}");
    let answer = running.post("/embed_all", &request).await;
    assert_eq!(answer.status, 400, "{answer:?}");
}

#[test]
fn files_that_are_wrong_are_named() {
    let scores = r#"{"architectures": ["BertForSequenceClassification"], "id2label": {"64": "X"}}"#;
    #[rustfmt::skip]
    let rows: [(&str, &[(&str, &str)]); 13] = [
        ("tokenizer.json", &[("tokenizer.json", "{")]),
        ("tokenizer.json", &[("tokenizer.json", r#"{"version": "1.0", "model": {"type": "Guess"}}"#)]),
        ("tokenizer_config.json", &[("tokenizer_config.json", r#"{"model_max_length": "long"}"#)]),
        ("/config.json", &[("config.json", r#"{"max_position_embeddings": -1}"#)]),
        ("/config.json", &[("config.json", r#"{"id2label": {"first": "X"}}"#)]),
        ("config.json has a label 64", &[("config.json", scores), ("serve.toml", "[text]\noutput = \"pooler_output\"")]),
        ("sentence_bert_config.json", &[("sentence_bert_config.json", "[]]")]),
        ("1_Pooling/config.json", &[(POOLING, "no JSON")]),
        ("1_Pooling/config.json", &[(POOLING, r#"{"pooling_mode_max_tokens": true}"#)]),
        ("1_Pooling/config.json", &[(POOLING, r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#)]),
        ("serve.toml", &[("serve.toml", "[text]\npooling = \"max\"")]),
        ("serve.toml", &[("serve.toml", "[text]\nmax_tokens = \"many\"")]),
        ("\"nothing\", which serve.toml names", &[("serve.toml", "[text]\noutput = \"nothing\"")]),
    ];
    for (number, (needed, files)) in rows.into_iter().enumerate() {
        let folder = folder(&format!("wrong-{number}"));
        write_bert(&folder, files);
        let refused = Server::new(&cpu(), folder.to_str().unwrap(), ServerConfig::default());
        let error = refused.err().unwrap_or_else(|| panic!("{files:?}")).to_string();
        assert!(error.contains(needed), "{needed:?} is not in {error:?}");
        assert!(error.contains(&format!("text-wrong-{number}")), "{error}");
    }
    let folder = folder("no-text");
    write_zoo("mlp-2x4", 0, &folder);
    write_tokenizer(&folder);
    let refused = Server::new(&cpu(), folder.to_str().unwrap(), ServerConfig::default());
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("tokenizer.json is for models of text, and input x"), "{error}");
}

#[tokio::test]
async fn models_with_positions_behind_padding_and_without_types_run() {
    let running = serve("zoo:roberta-base-tiny", ServerConfig::default()).await;
    let texts = ["one", "and another one, which is longer"];
    let together = post(&running, "/embed", &json!({ "inputs": texts })).await;
    for (place, text) in texts.iter().enumerate() {
        let alone = post(&running, "/embed", &json!({ "inputs": text })).await;
        check_near(&floats(&together[place]), &floats(&alone[0]), 1e-5, text);
    }
}
