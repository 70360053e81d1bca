//! The answer to a request for inference, as it is on the wire.

use super::request::Form;
use super::{JSON_LENGTH, data, datatype};
use crate::error::{Error, Result};
use crate::http::body::Parts;
use crate::http::error::json_text;
use crate::infer::InferResponse;
use crate::version::Version;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use graphene_runtime::Tensor;
use serde::Serialize;

/// Up to so many bytes are copied together: that costs less than writing them apart.
const TOGETHER: usize = 16 << 10;

/// Characters of an element in JSON, about.
const CHARACTERS: usize = 12;

/// The outputs, in order, and whether each is binary.
fn outputs<'a>(
    answer: &'a InferResponse,
    form: &'a Form,
) -> impl Iterator<Item = (&'a str, &'a Tensor, bool)> {
    answer.outputs.iter().enumerate().map(|(place, (name, tensor))| {
        (name.as_str(), tensor, form.binary.get(place).copied().unwrap_or(form.others_binary))
    })
}

/// About how many bytes of JSON an answer is.
pub(super) fn text_length(answer: &InferResponse, form: &Form) -> usize {
    let elements = outputs(answer, form).filter(|output| !output.2).map(|output| output.1.len());
    elements.sum::<usize>() * CHARACTERS
}

/// The answer.
///
/// # Errors
/// [`Error::Malformed`] for an output that JSON does not have.
pub(super) fn write(version: &Version, answer: &InferResponse, form: &Form) -> Result<Response> {
    let mut text = Vec::with_capacity(256 + text_length(answer, form));
    text.push(b'{');
    if !form.id.is_empty() {
        text.extend_from_slice(b"\"id\":");
        string(&mut text, &form.id)?;
        text.push(b',');
    }
    text.extend_from_slice(b"\"model_name\":");
    string(&mut text, version.name())?;
    text.extend_from_slice(b",\"model_version\":");
    string(&mut text, version.number())?;
    text.extend_from_slice(b",\"outputs\":[");
    for (place, (name, tensor, binary)) in outputs(answer, form).enumerate() {
        if place > 0 {
            text.push(b',');
        }
        text.extend_from_slice(b"{\"name\":");
        string(&mut text, name)?;
        text.extend_from_slice(b",\"datatype\":");
        string(&mut text, datatype::name(tensor.dtype()))?;
        text.extend_from_slice(b",\"shape\":");
        value(&mut text, tensor.shape())?;
        if binary {
            text.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            value(&mut text, &tensor.bytes().len())?;
            text.extend_from_slice(b"}}");
        } else {
            text.extend_from_slice(b",\"data\":");
            data::write(name, tensor, &mut text)?;
            text.push(b'}');
        }
    }
    text.extend_from_slice(b"]}");
    Ok(response(text, answer, form))
}

fn response(mut text: Vec<u8>, answer: &InferResponse, form: &Form) -> Response {
    let binary = || outputs(answer, form).filter(|output| output.2).map(|output| output.1);
    if binary().next().is_none() {
        return json_text(StatusCode::OK, Body::from(text));
    }
    let length = text.len();
    let together = length + binary().map(|tensor| tensor.bytes().len()).sum::<usize>();
    let body = if together <= TOGETHER {
        binary().for_each(|tensor| text.extend_from_slice(tensor.bytes()));
        Body::from(text)
    } else {
        let tensors = binary().map(|tensor| tensor.shared_bytes().clone());
        Body::new(Parts::new(std::iter::once(Bytes::from(text)).chain(tensors)))
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let octets = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, octets);
    headers.insert(JSON_LENGTH, HeaderValue::from(length));
    response
}

fn string(text: &mut Vec<u8>, string: &str) -> Result<()> {
    value(text, string)
}

fn value<T: Serialize + ?Sized>(text: &mut Vec<u8>, value: &T) -> Result<()> {
    serde_json::to_writer(text, value).map_err(|error| Error::Server { what: error.to_string() })
}
