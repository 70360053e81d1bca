//! Numbers and types of the messages' fields beside the published ones.
//!
//! `grpc_fields.tsv` is the list of `tritonclient`'s descriptors (`service_pb2`, `model_config_pb2`) and of `health.proto`:
//! message, field, number, `one`, `repeated` or `map`, and type.

use std::collections::BTreeMap;

const PUBLISHED: &str = include_str!("grpc_fields.tsv");
const OURS: &str = include_str!("../../src/grpc/messages.rs");

/// Messages whose published names are others: of a field, or of several that we read alike.
const NAMES: [(&str, &[&str]); 11] = [
    ("TensorMetadata", &["ModelMetadataResponse.TensorMetadata"]),
    ("ParameterChoice", &["InferParameter"]),
    ("InferInputTensor", &["ModelInferRequest.InferInputTensor"]),
    ("InferRequestedOutputTensor", &["ModelInferRequest.InferRequestedOutputTensor"]),
    ("InferOutputTensor", &["ModelInferResponse.InferOutputTensor"]),
    ("RepositoryParameterChoice", &["ModelRepositoryParameter"]),
    ("ModelIndex", &["RepositoryIndexResponse.ModelIndex"]),
    ("SettingsRequest", &["TraceSettingRequest", "LogSettingsRequest"]),
    ("ModelRepositoryParameter", &[]),
    ("InferParameter", &[]),
    ("SettingValue", &[]),
];

/// Types that are the same on the wire: ours, and the published ones.
const SAME: [(&str, &str, &str); 4] = [
    ("data_type", "int32", "enum"),
    ("kind", "int32", "enum"),
    ("status", "int32", "enum"),
    ("contents", "bytes", "message"),
];

/// Our fields: message, field, and its attribute.
fn ours() -> Vec<(String, String, String)> {
    let (mut found, mut message, mut attribute) = (Vec::new(), String::new(), None);
    for line in OURS.lines().map(str::trim) {
        if let Some(rest) =
            line.strip_prefix("pub(crate) struct ").or(line.strip_prefix("pub(crate) enum "))
        {
            message = rest.split(' ').next().unwrap().to_owned();
        } else if let Some(rest) = line.strip_prefix("#[prost(") {
            attribute = Some(rest.trim_end_matches(")]").to_owned());
        } else if let Some(attribute) = attribute.take() {
            let name = line.trim_start_matches("pub(crate) ");
            let name = name.split([':', '(']).next().unwrap();
            // A choice's field is a variant of its enum.
            let snake = |text: String, letter: char| match letter {
                'A'..='Z' if text.is_empty() => letter.to_ascii_lowercase().to_string(),
                'A'..='Z' => format!("{text}_{}", letter.to_ascii_lowercase()),
                _ => format!("{text}{letter}"),
            };
            let end = if message.ends_with("Choice") { "_param" } else { "" };
            let name = name.chars().fold(String::new(), snake) + end;
            found.push((message.clone(), name, attribute));
        }
    }
    found
}

/// Number, label and type of a field's attribute.
fn facts(attribute: &str) -> (u32, &'static str, String) {
    let (_, number) = attribute.split_once("tag = \"").unwrap();
    let number = number.trim_end_matches('"').parse().unwrap();
    if let Some(rest) = attribute.strip_prefix("btree_map = \"") {
        return (number, "map", format!("map<{}>", rest.split('"').next().unwrap()));
    }
    let label = if attribute.contains(" repeated,") { "repeated" } else { "one" };
    let of = attribute.split([',', ' ']).next().unwrap();
    (number, label, of.to_owned())
}

#[test]
fn fields_have_their_published_numbers() {
    let mut published = BTreeMap::new();
    for line in PUBLISHED.lines() {
        let [message, field, number, label, of] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        published.insert((message, field), (number.parse::<u32>().unwrap(), label, of));
    }
    let mut compared = 0;
    for (message, field, attribute) in ours() {
        if attribute.starts_with("oneof") {
            continue;
        }
        let own = [message.as_str()];
        let names = NAMES.iter().find(|row| row.0 == message).map_or(&own[..], |row| row.1);
        assert!(!names.is_empty(), "{message}.{field} has no published message");
        for name in names {
            let (number, label, of) = *published
                .get(&(*name, field.as_str()))
                .unwrap_or_else(|| panic!("{name}.{field} is not published"));
            let (our_number, our_label, our_type) = facts(&attribute);
            assert_eq!((our_number, our_label), (number, label), "{name}.{field}");
            let same = SAME.contains(&(&field, &our_type, of));
            assert!(our_type == of || same, "{name}.{field} is {of}, not {our_type}");
            compared += 1;
        }
    }
    // Fields of messages.rs, that of settings twice.
    assert_eq!(compared, OURS.matches("tag = \"").count() + 1);
}
