//! A model without its weights' bytes.
//!
//! A file with its weights inside would be in memory twice, as the file's bytes and as tensors. So the protobuf is
//! walked once, field by field, and each initializer's data is replaced by a reference to its place in the file: to
//! the importer, all weights are external data. The walk reads a window of the file at a time and skips the weights.

use super::held::{Held, ReadError};
use std::ops::Range;

/// Data shorter than this stays where it is.
pub(super) const SHORT: usize = 4096;

/// Bytes of a file that are looked at together.
const WINDOW: u64 = 1 << 16;

/// Field numbers of `onnx.proto`.
const MODEL_GRAPH: u64 = 7;
const GRAPH_INITIALIZER: u64 = 5;
const TENSOR_DATA_TYPE: u64 = 2;
const TENSOR_FLOAT_DATA: u64 = 4;
const TENSOR_RAW_DATA: u64 = 9;
const TENSOR_EXTERNAL_DATA: u64 = 13;
const TENSOR_DATA_LOCATION: u64 = 14;
const EXTERNAL: u64 = 1;
const FLOAT: u64 = 1;

/// Protobuf's wire types of numbers, and of bytes and messages.
const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

/// What the model is read from.
pub(super) trait Source {
    /// Its bytes.
    fn len(&self) -> u64;

    /// Fills `bytes` with those from `offset` on, which lie within [`len`](Self::len).
    ///
    /// # Errors
    /// [`ReadError`].
    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError>;
}

impl Source for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        bytes.copy_from_slice(&self[offset as usize..][..bytes.len()]);
        Ok(())
    }
}

impl Source for Held {
    fn len(&self) -> u64 {
        self.len()
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
        self.fill(offset, bytes)
    }
}

/// Why a walk ends early.
enum Stop {
    /// The bytes are no fields.
    Malformed,
    /// They cannot be read.
    Unread(ReadError),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Unread(error)
    }
}

/// The model with the data of its large initializers as references to `location`; `None` if it has none, or
/// is malformed, which decoding it says better.
///
/// # Errors
/// [`ReadError`].
pub(super) fn strip(
    model: &(impl Source + ?Sized),
    location: &str,
) -> Result<Option<Vec<u8>>, ReadError> {
    let len = model.len();
    match strip_model(&mut Window { source: model, start: 0, bytes: Vec::new() }, len, location) {
        Ok(stripped) => Ok(stripped),
        Err(Stop::Malformed) => Ok(None),
        Err(Stop::Unread(error)) => Err(error),
    }
}

fn strip_model<S: Source + ?Sized>(
    model: &mut Window<'_, S>,
    len: u64,
    location: &str,
) -> Result<Option<Vec<u8>>, Stop> {
    let mut stripped = Vec::new();
    let mut found = false;
    let mut rest = 0..len;
    while let Some(field) = model.field(&mut rest)? {
        if field.number != MODEL_GRAPH || field.wire_type != LENGTH_DELIMITED {
            model.copy(field.whole, &mut stripped)?;
            continue;
        }
        let mut graph = Vec::new();
        let mut rest = field.content;
        while let Some(inner) = model.field(&mut rest)? {
            let tensor =
                match inner.number == GRAPH_INITIALIZER && inner.wire_type == LENGTH_DELIMITED {
                    true => strip_tensor(model, inner.content, location)?,
                    false => None,
                };
            found |= tensor.is_some();
            match tensor {
                Some(tensor) => push_bytes(&mut graph, GRAPH_INITIALIZER, &tensor),
                None => model.copy(inner.whole, &mut graph)?,
            }
        }
        push_bytes(&mut stripped, MODEL_GRAPH, &graph);
    }
    Ok(found.then_some(stripped))
}

/// The tensor with its data as a reference, if that is large.
fn strip_tensor<S: Source + ?Sized>(
    model: &mut Window<'_, S>,
    tensor: Range<u64>,
    location: &str,
) -> Result<Option<Vec<u8>>, Stop> {
    let mut kept: Vec<Range<u64>> = Vec::new();
    let (mut raw, mut floats, mut data_type) = (None, Vec::new(), 0);
    let mut rest = tensor;
    while let Some(field) = model.field(&mut rest)? {
        match (field.number, field.wire_type) {
            (TENSOR_RAW_DATA, LENGTH_DELIMITED) => raw = Some(field.content),
            (TENSOR_FLOAT_DATA, _) => floats.push(field.content),
            (number, wire_type) => {
                if (number, wire_type) == (TENSOR_DATA_TYPE, VARINT) {
                    let key = field.whole.start;
                    data_type = model.varint(&mut (key + 1..field.whole.end))?;
                }
                kept.push(field.whole);
            }
        }
    }
    // Floats in one packed field lie there as raw data does.
    let data = match (raw, &floats[..], data_type) {
        (Some(raw), [], _) => Some(raw),
        (None, [floats], FLOAT) => Some(floats.clone()),
        _ => None,
    };
    let Some(data) = data.filter(|data| data.end - data.start >= SHORT as u64) else {
        return Ok(None);
    };
    let mut stripped = Vec::new();
    kept.into_iter().try_for_each(|field| model.copy(field, &mut stripped))?;
    let entries = [
        ("location", location.to_owned()),
        ("offset", data.start.to_string()),
        ("length", (data.end - data.start).to_string()),
    ];
    for (key, value) in entries {
        let mut entry = Vec::new();
        push_bytes(&mut entry, 1, key.as_bytes());
        push_bytes(&mut entry, 2, value.as_bytes());
        push_bytes(&mut stripped, TENSOR_EXTERNAL_DATA, &entry);
    }
    push_varint(&mut stripped, TENSOR_DATA_LOCATION << 3);
    push_varint(&mut stripped, EXTERNAL);
    Ok(Some(stripped))
}

/// A field of a message.
struct Field {
    number: u64,
    wire_type: u64,
    /// Its key and content.
    whole: Range<u64>,
    /// The content of a length-delimited field.
    content: Range<u64>,
}

/// The part of a source that is being looked at.
struct Window<'a, S: ?Sized> {
    source: &'a S,
    start: u64,
    bytes: Vec<u8>,
}

impl<S: Source + ?Sized> Window<'_, S> {
    /// Takes the first field of the message that lies in a range off it; `None` at its end.
    fn field(&mut self, rest: &mut Range<u64>) -> Result<Option<Field>, Stop> {
        if rest.is_empty() {
            return Ok(None);
        }
        let start = rest.start;
        let key = self.varint(rest)?;
        let (number, wire_type) = (key >> 3, key & 7);
        let length = match wire_type {
            VARINT => {
                self.varint(rest)?;
                0
            }
            1 => 8,
            LENGTH_DELIMITED => self.varint(rest)?,
            5 => 4,
            _ => return Err(Stop::Malformed),
        };
        let end = rest.start.checked_add(length).filter(|&end| end <= rest.end);
        let content = rest.start..end.ok_or(Stop::Malformed)?;
        rest.start = content.end;
        Ok(Some(Field { number, wire_type, whole: start..content.end, content }))
    }

    fn varint(&mut self, rest: &mut Range<u64>) -> Result<u64, Stop> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            if rest.is_empty() {
                return Err(Stop::Malformed);
            }
            let byte = self.view(rest.start, 1)?[0];
            rest.start += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Stop::Malformed)
    }

    /// At most [`WINDOW`] bytes that the source has.
    fn view(&mut self, from: u64, len: u64) -> Result<&[u8], Stop> {
        if from < self.start || from + len > self.start + self.bytes.len() as u64 {
            let window = WINDOW.min(self.source.len() - from) as usize;
            self.bytes.resize(window, 0);
            self.start = from;
            if let Err(error) = self.source.fill(from, &mut self.bytes) {
                self.bytes.clear();
                return Err(error.into());
            }
        }
        Ok(&self.bytes[(from - self.start) as usize..][..len as usize])
    }

    /// Adds bytes of the source to `out`.
    fn copy(&mut self, range: Range<u64>, out: &mut Vec<u8>) -> Result<(), Stop> {
        let len = range.end - range.start;
        if len <= WINDOW {
            out.extend_from_slice(self.view(range.start, len)?);
            return Ok(());
        }
        let before = out.len();
        out.resize(before + len as usize, 0);
        Ok(self.source.fill(range.start, &mut out[before..])?)
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
        let mut stripped = decode(strip(&bytes[..], "here").unwrap().unwrap().into()).unwrap();
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
    fn packed_floats_are_raw_data() {
        let numbers: Vec<f32> = (0..2000).map(|i| i as f32).collect();
        let mut whole = model(&[]);
        let floats = TensorProto {
            dims: vec![2000],
            data_type: 1,
            float_data: numbers.clone(),
            ..TensorProto::default()
        };
        // Of other types they are not.
        let complex = TensorProto { dims: vec![1000], data_type: 14, ..floats.clone() };
        whole.graph.as_mut().unwrap().initializer = vec![floats, complex.clone()];
        let bytes = encode(&whole);
        let stripped = decode(strip(&bytes[..], "here").unwrap().unwrap().into()).unwrap();
        let [floats, left] = &stripped.graph.unwrap().initializer[..] else { panic!("two") };
        assert_eq!(*left, complex);
        assert!(floats.float_data.is_empty());
        let number = |i: usize| floats.external_data[i].value.parse::<usize>().unwrap();
        let there = bytes.slice(number(1)..number(1) + number(2));
        assert_eq!(there, numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn small_and_damaged_models_stay_as_they_are() {
        let bytes = encode(&model(&[8, 16]));
        assert_eq!(strip(&bytes[..], "here").unwrap(), None);
        let bytes = encode(&model(&[8192]));
        for end in 0..bytes.len() {
            assert!(strip(&bytes[..end], "here").unwrap().is_none(), "cut at {end}");
        }
        assert_eq!(strip(&[0xff; 64][..], "here").unwrap(), None);
    }
}
