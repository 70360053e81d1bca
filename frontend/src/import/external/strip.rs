//! A model without its weights' bytes.
//!
//! A file with its weights inside would be in memory twice, mapped and copied into aligned tensors. So the
//! protobuf is walked once, field by field, and each initializer's data is replaced by a reference to its place in
//! the file: to the importer, all weights are external data.

use std::ops::Range;

/// Data shorter than this stays where it is.
const SHORT: usize = 4096;

/// Field numbers of `onnx.proto`.
const MODEL_GRAPH: u64 = 7;
const GRAPH_INITIALIZER: u64 = 5;
const TENSOR_RAW_DATA: u64 = 9;
const TENSOR_EXTERNAL_DATA: u64 = 13;
const TENSOR_DATA_LOCATION: u64 = 14;
const EXTERNAL: u64 = 1;

/// Protobuf's wire type of bytes and messages.
const LENGTH_DELIMITED: u64 = 2;

/// The model with the data of its large initializers as references to `location`; `None` if it has none, or
/// is malformed, which decoding it says better.
pub(super) fn strip(model: &[u8], location: &str) -> Option<Vec<u8>> {
    let mut stripped = Vec::new();
    let mut found = false;
    for field in Fields::of(model, 0..model.len()) {
        let field = field?;
        if field.number != MODEL_GRAPH || field.wire_type != LENGTH_DELIMITED {
            stripped.extend_from_slice(&model[field.whole]);
            continue;
        }
        let mut graph = Vec::new();
        for inner in Fields::of(model, field.content) {
            let inner = inner?;
            let tensor =
                match inner.number == GRAPH_INITIALIZER && inner.wire_type == LENGTH_DELIMITED {
                    true => strip_tensor(model, inner.content, location)?,
                    false => None,
                };
            found |= tensor.is_some();
            match tensor {
                Some(tensor) => push_bytes(&mut graph, GRAPH_INITIALIZER, &tensor),
                None => graph.extend_from_slice(&model[inner.whole]),
            }
        }
        push_bytes(&mut stripped, MODEL_GRAPH, &graph);
    }
    found.then_some(stripped)
}

/// The tensor with its data as a reference, if that is large; the outer `None` is a malformed one.
fn strip_tensor(model: &[u8], tensor: Range<usize>, location: &str) -> Option<Option<Vec<u8>>> {
    let mut stripped = Vec::new();
    let mut data: Option<Range<usize>> = None;
    for field in Fields::of(model, tensor) {
        let field = field?;
        if field.number == TENSOR_RAW_DATA && field.wire_type == LENGTH_DELIMITED {
            data = Some(field.content);
        } else {
            stripped.extend_from_slice(&model[field.whole]);
        }
    }
    let Some(data) = data.filter(|data| data.len() >= SHORT) else { return Some(None) };
    let entries = [
        ("location", location.to_owned()),
        ("offset", data.start.to_string()),
        ("length", data.len().to_string()),
    ];
    for (key, value) in entries {
        let mut entry = Vec::new();
        push_bytes(&mut entry, 1, key.as_bytes());
        push_bytes(&mut entry, 2, value.as_bytes());
        push_bytes(&mut stripped, TENSOR_EXTERNAL_DATA, &entry);
    }
    push_varint(&mut stripped, TENSOR_DATA_LOCATION << 3);
    push_varint(&mut stripped, EXTERNAL);
    Some(Some(stripped))
}

/// A field of a message.
struct Field {
    number: u64,
    wire_type: u64,
    /// Its key and content.
    whole: Range<usize>,
    /// The content of a length-delimited field.
    content: Range<usize>,
}

/// The fields of the message that lies in a range; `None` where it is malformed.
struct Fields<'a> {
    bytes: &'a [u8],
    range: Range<usize>,
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8], range: Range<usize>) -> Self {
        Self { bytes, range }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.range.clone())?.first()?;
            self.range.start += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<Field> {
        let start = self.range.start;
        let key = self.varint()?;
        let (number, wire_type) = (key >> 3, key & 7);
        let length = match wire_type {
            0 => {
                self.varint()?;
                0
            }
            1 => 8,
            LENGTH_DELIMITED => usize::try_from(self.varint()?).ok()?,
            5 => 4,
            _ => return None,
        };
        let content = self.range.start..self.range.start.checked_add(length)?;
        if content.end > self.range.end {
            return None;
        }
        self.range.start = content.end;
        Some(Field { number, wire_type, whole: start..content.end, content })
    }
}

impl Iterator for Fields<'_> {
    type Item = Option<Field>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.range.start = self.range.end;
        }
        Some(field)
    }
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn push_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    push_varint(out, number << 3 | LENGTH_DELIMITED);
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::strip;
    use crate::onnx::{GraphProto, ModelProto, NodeProto, TensorProto, decode, encode};

    fn model(lengths: &[usize]) -> ModelProto {
        let tensor = |(i, &length): (usize, &usize)| TensorProto {
            name: format!("w{i}"),
            dims: vec![length as i64 / 4],
            data_type: 1,
            raw_data: Some((0..length).map(|byte| (byte * 7 + i) as u8).collect()),
            ..TensorProto::default()
        };
        let node =
            NodeProto { name: "node".into(), op_type: "Relu".into(), ..NodeProto::default() };
        let initializer = lengths.iter().enumerate().map(tensor).collect();
        let graph = GraphProto { node: vec![node], initializer, ..GraphProto::default() };
        ModelProto { ir_version: 8, graph: Some(graph), ..ModelProto::default() }
    }

    #[test]
    fn references_lead_to_the_same_bytes() {
        let whole = model(&[8, 4096, 100_000, 0, 5000]);
        let bytes = encode(&whole);
        let mut stripped = decode(strip(&bytes, "here").unwrap().into()).unwrap();
        let mut replaced = 0;
        for tensor in &mut stripped.graph.as_mut().unwrap().initializer {
            let entry = |key: &str| {
                tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.clone())
            };
            let Some(location) = entry("location") else { continue };
            assert_eq!((location.as_str(), tensor.data_location), ("here", 1));
            let number = |key: &str| entry(key).unwrap().parse::<usize>().unwrap();
            let start = number("offset");
            tensor.raw_data = Some(bytes.slice(start..start + number("length")));
            tensor.external_data.clear();
            tensor.data_location = 0;
            replaced += 1;
        }
        assert_eq!(replaced, 3);
        assert_eq!(stripped, whole);
    }

    #[test]
    fn small_and_damaged_models_stay_as_they_are() {
        let bytes = encode(&model(&[8, 16]));
        assert_eq!(strip(&bytes, "here"), None);
        let bytes = encode(&model(&[8192]));
        for end in 0..bytes.len() {
            assert!(strip(&bytes[..end], "here").is_none(), "cut at {end}");
        }
        assert_eq!(strip(&[0xff; 64], "here"), None);
    }
}
