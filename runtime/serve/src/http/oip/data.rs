//! Numbers of JSON as the elements of tensors, and back.

use super::datatype;
use crate::error::{Error, Result};
use graphene_runtime::{DType, Element, Tensor};
use std::str::FromStr;

/// The tensor whose elements stand in `text`, which is well-formed JSON: in row-major order, in one array or in arrays inside
/// each other as the shape has them.
///
/// # Errors
/// [`Error::Malformed`] for elements of another type, out of its range, or of another number than the shape has; for arrays
/// inside each other in another way.
pub(super) fn tensor(input: &str, dtype: DType, shape: Vec<usize>, text: &str) -> Result<Tensor> {
    if !text.starts_with('[') {
        let what = format!("input {input:?} needs its data as an array; got {}", shortened(text));
        return Err(Error::malformed(what));
    }
    let elements = Elements { input, dtype, shape, text };
    match dtype {
        DType::F32 => elements.of(finite::<f32>),
        DType::F64 => elements.of(finite::<f64>),
        DType::I8 => elements.of(whole::<i8>),
        DType::I16 => elements.of(whole::<i16>),
        DType::I32 => elements.of(whole::<i32>),
        DType::I64 => elements.of(whole::<i64>),
        DType::U8 => elements.of(whole::<u8>),
        DType::U16 => elements.of(whole::<u16>),
        DType::U32 => elements.of(whole::<u32>),
        DType::U64 => elements.of(whole::<u64>),
        DType::Bool => {
            let bytes = elements.parse(truth)?;
            Tensor::new(dtype, elements.shape.clone(), bytes.into()).map_err(|e| elements.odd(&e))
        }
        DType::F16 | DType::BF16 => Err(Error::malformed(format!(
            "input {input:?} is {}, which JSON has no numbers for: send it as binary data",
            datatype::name(dtype)
        ))),
        DType::I4
        | DType::U4
        | DType::I2
        | DType::U2
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => Err(Error::Unsupported { what: format!("input {input:?} of {dtype}") }),
    }
}

/// Whether JSON has numbers for a type.
pub(super) fn is_of_json(dtype: DType) -> bool {
    dtype.size() > 1 && !matches!(dtype, DType::F16 | DType::BF16)
        || matches!(dtype, DType::I8 | DType::U8 | DType::Bool)
}

struct Elements<'a> {
    input: &'a str,
    dtype: DType,
    shape: Vec<usize>,
    text: &'a str,
}

impl Elements<'_> {
    fn of<T: Element>(self, element: impl Fn(&str) -> Option<T>) -> Result<Tensor> {
        let elements = self.parse(element)?;
        Tensor::from_vec(self.shape.clone(), elements).map_err(|error| self.odd(&error))
    }

    fn odd(&self, error: &dyn std::error::Error) -> Error {
        Error::malformed(format!("input {:?}: {error}", self.input))
    }

    fn parse<T>(&self, element: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let expected: usize = self.shape.iter().product();
        let bytes = self.text.as_bytes();
        let flat = [expected];
        let is_nested = bytes[1..].iter().find(|&&byte| !is_space(byte)) == Some(&b'[');
        // The parts that an array has, the outermost first.
        let sizes = if is_nested { &*self.shape } else { &flat };
        // An element takes a character and a comma, so a shape alone reserves nothing.
        let mut all = Vec::with_capacity(expected.min(self.text.len() / 2 + 1));
        // For each array that is open, those of its parts that are arrays, and the elements ahead of it.
        let mut open: Vec<(usize, usize)> = Vec::with_capacity(sizes.len());
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'[' if open.len() == sizes.len() => return Err(self.other_nesting()),
                b'[' => open.push((0, all.len())),
                b']' => {
                    let Some((arrays, ahead)) = open.pop() else { return Err(self.no_element(at)) };
                    let is_innermost = open.len() + 1 == sizes.len();
                    let found = if is_innermost { all.len() - ahead } else { arrays };
                    if found != sizes[open.len()] {
                        return Err(if is_nested {
                            self.other_nesting()
                        } else {
                            self.other_count(&found.to_string())
                        });
                    }
                    if let Some((arrays, _)) = open.last_mut() {
                        *arrays += 1;
                    }
                }
                byte if byte == b',' || is_space(byte) => {}
                _ => {
                    let length = bytes[at..].iter().position(|&byte| is_between(byte));
                    let end = length.map_or(bytes.len(), |length| at + length);
                    // What is not an element may end inside of a string, which is no boundary of characters.
                    let value = self.text.get(at..end).and_then(&element);
                    all.push(value.ok_or_else(|| self.no_element(at))?);
                    if open.len() != sizes.len() {
                        return Err(self.other_nesting());
                    }
                    if all.len() > expected {
                        return Err(self.other_count("more"));
                    }
                    at = end;
                    continue;
                }
            }
            at += 1;
        }
        Ok(all)
    }

    fn other_nesting(&self) -> Error {
        let Self { input, shape, .. } = self;
        Error::malformed(format!(
            "input {input:?} of shape {shape:?} needs its data as one array of {} elements, or as arrays inside each other \
             of exactly these sizes; got {}",
            shape.iter().product::<usize>(),
            shortened(self.text)
        ))
    }

    fn other_count(&self, found: &str) -> Error {
        let Self { input, shape, .. } = self;
        let expected: usize = shape.iter().product();
        let what =
            format!("input {input:?} of shape {shape:?} needs {expected} elements; got {found}");
        Error::malformed(what)
    }

    fn no_element(&self, at: usize) -> Error {
        let needed = match self.dtype {
            DType::Bool => "true or false".to_owned(),
            dtype if dtype.is_float() => format!("a number that {} has", datatype::name(dtype)),
            dtype => format!("a whole number that {} has", datatype::name(dtype)),
        };
        let found = self.text.get(at..).unwrap_or_default();
        let found = found.split([',', ']']).next().unwrap_or_default();
        let found = shortened(found);
        Error::malformed(format!(
            "input {:?} needs {needed} at every place; got {found}",
            self.input
        ))
    }
}

fn is_between(byte: u8) -> bool {
    matches!(byte, b',' | b'[' | b']') || is_space(byte)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

fn finite<T: FromStr + Copy + Into<f64>>(text: &str) -> Option<T> {
    text.parse().ok().filter(|&value: &T| value.into().is_finite())
}

fn whole<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn truth(text: &str) -> Option<u8> {
    match text {
        "true" => Some(1),
        "false" => Some(0),
        _ => None,
    }
}

/// Text of a request as a message shows it.
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Writes a tensor's elements as one array.
///
/// # Errors
/// [`Error::Malformed`] for elements that JSON does not have: the request has to ask for them as binary data.
pub(super) fn write(output: &str, tensor: &Tensor, text: &mut Vec<u8>) -> Result<()> {
    macro_rules! numbers {
        ($rust:ty) => {
            tensor
                .as_slice::<$rust>()
                .map_err(|error| error.to_string())
                .and_then(|all| serde_json::to_writer(text, all).map_err(|error| error.to_string()))
        };
    }
    macro_rules! floats {
        ($rust:ty) => {{
            let all = tensor.as_slice::<$rust>().unwrap_or_default();
            if !all.iter().all(|value| value.is_finite()) {
                return Err(Error::malformed(format!(
                    "output {output:?} has infinite elements or NaN, which JSON does not have: ask for it with \
                     `\"binary_data\": true`"
                )));
            }
            numbers!($rust)
        }};
    }
    let written = match tensor.dtype() {
        DType::F32 => floats!(f32),
        DType::F64 => floats!(f64),
        DType::I8 => numbers!(i8),
        DType::I16 => numbers!(i16),
        DType::I32 => numbers!(i32),
        DType::I64 => numbers!(i64),
        DType::U8 => numbers!(u8),
        DType::U16 => numbers!(u16),
        DType::U32 => numbers!(u32),
        DType::U64 => numbers!(u64),
        DType::Bool => {
            let all: Vec<bool> = tensor.bytes().iter().map(|&byte| byte != 0).collect();
            serde_json::to_writer(text, &all).map_err(|error| error.to_string())
        }
        other => Err(format!("{other} has no numbers in JSON")),
    };
    written.map_err(|what| Error::Server { what: format!("output {output:?}: {what}") })
}

#[cfg(test)]
mod tests {
    use super::tensor;
    use graphene_runtime::DType;

    #[test]
    fn arrays_are_one_or_as_the_shape_has_them() {
        let rows: &[(&[usize], &str, bool)] = &[
            (&[2, 2], "[1,2,3,4]", true),
            (&[2, 2], "[ [1, 2] , [3,\n4 ] ]", true),
            (&[2, 2], "[[1,2,3],[4]]", false),
            (&[2, 2], "[[1,2,3,4]]", false),
            (&[2, 2], "[[1],[2],[3],[4]]", false),
            (&[2, 2], "[[1,2],3,4]", false),
            (&[2, 2], "[1,2,[3,4]]", false),
            (&[2, 2], "[[1,2],[3,4],[]]", false),
            (&[2, 2], "[[[1,2],[3,4]]]", false),
            (&[4], "[[1,2,3,4]]", false),
            (&[2, 1, 2], "[[[1,2]],[[3,4]]]", true),
            (&[2, 1, 2], "[[[1,2],[3,4]],[]]", false),
            (&[2, 1, 2], "[[1,2],[3,4]]", false),
            (&[], "[1]", true),
            (&[], "[[1]]", false),
            (&[2, 0], "[]", true),
            (&[2, 0], "[[],[]]", true),
            (&[2, 0], "[[]]", false),
            (&[0, 2], "[[]]", false),
        ];
        for (shape, text, is_taken) in rows {
            let found = tensor("x", DType::I64, shape.to_vec(), text);
            match &found {
                Ok(tensor) => {
                    let expected: Vec<i64> = (1..=tensor.bytes().len() as i64 / 8).collect();
                    assert_eq!(tensor.as_slice::<i64>().unwrap(), expected, "{text}");
                }
                Err(error) => assert!(error.to_string().contains("\"x\""), "{error}"),
            }
            assert_eq!(found.is_ok(), *is_taken, "{shape:?} {text}: {found:?}");
        }
    }
}
