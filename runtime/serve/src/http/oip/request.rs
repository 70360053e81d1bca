//! A request for inference, as it is on the wire.

use super::data::{self, shortened};
use super::{datatype, describe};
use crate::error::{Error, Result};
use crate::http::json;
use crate::infer::InferRequest;
use crate::metrics::Protocol;
use crate::version::Version;
use axum::body::Bytes;
use graphene_runtime::{DType, Port, Tensor};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// A request, and how its answer is to be written.
pub(super) struct Read {
    pub(super) request: InferRequest,
    pub(super) form: Form,
}

/// How an answer is to be written.
pub(super) struct Form {
    /// What the client calls the request, if it does.
    pub(super) id: String,
    /// For each output asked for, whether it is binary.
    pub(super) binary: Vec<bool>,
    /// Whether outputs are that are not asked for by name.
    pub(super) others_binary: bool,
}

/// Inputs and outputs that are read at all; fewer are taken.
const FEW: usize = 4096;

/// A sequence that cannot take much memory for few bytes of text.
struct Few<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {FEW} objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut from: A,
            ) -> std::result::Result<Few<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(next) = from.next_element()? {
                    if all.len() == FEW {
                        return Err(serde::de::Error::invalid_length(FEW + 1, &self));
                    }
                    all.push(next);
                }
                Ok(Few(all))
            }
        }
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

// Values whose type an error should name the place of stay text here.
#[derive(Deserialize)]
struct WireRequest<'a> {
    id: Option<String>,
    #[serde(borrow)]
    parameters: Option<RequestParameters<'a>>,
    #[serde(borrow)]
    inputs: Option<Few<WireInput<'a>>>,
    #[serde(borrow, default)]
    outputs: Option<Few<WireOutput<'a>>>,
}

#[derive(Deserialize, Default)]
struct RequestParameters<'a> {
    #[serde(borrow)]
    timeout: Option<&'a RawValue>,
    #[serde(borrow)]
    binary_data_output: Option<&'a RawValue>,
    #[serde(borrow)]
    sequence_id: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireInput<'a> {
    name: Option<String>,
    datatype: Option<String>,
    #[serde(borrow)]
    shape: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<TensorParameters<'a>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireOutput<'a> {
    name: Option<String>,
    #[serde(borrow)]
    parameters: Option<TensorParameters<'a>>,
}

#[derive(Deserialize, Default)]
struct TensorParameters<'a> {
    #[serde(borrow)]
    binary_data_size: Option<&'a RawValue>,
    #[serde(borrow)]
    binary_data: Option<&'a RawValue>,
    #[serde(borrow)]
    classification: Option<&'a RawValue>,
    #[serde(borrow)]
    shared_memory_region: Option<&'a RawValue>,
}

/// Reads a request whose JSON is the first `length` bytes of a body, binary tensors behind.
///
/// # Errors
/// [`Error::Malformed`], [`Error::Limit`], [`Error::Unsupported`], and [`Error::Model`] for names that the model lacks.
pub(super) fn read(version: &Version, body: &Bytes, length: usize, inputs: usize) -> Result<Read> {
    let wire: WireRequest<'_> = json::parse("the request", &body[..length])?;
    let parameters = wire.parameters.unwrap_or_default();
    if let Some(id) = parameters.sequence_id.filter(|id| !matches!(id.get(), "0" | "\"\"")) {
        let what = format!("a sequence of requests (sequence_id {})", shortened(id.get()));
        return Err(Error::Unsupported { what });
    }
    let deadline = deadline(parameters.timeout)?;
    let others_binary = flag("the request", "binary_data_output", parameters.binary_data_output)?;
    let others_binary = others_binary.unwrap_or(false);
    let id = wire.id.unwrap_or_default();

    let found = wire.inputs.ok_or_else(|| Error::malformed("the request has no `inputs`"))?.0;
    if found.len() > inputs {
        let (found, limit) = (found.len() as u64, inputs as u64);
        let what = "the number of inputs".to_owned();
        return Err(Error::Limit { what, found, limit, setting: "inputs" });
    }
    let mut rest = body.slice(length..);
    let mut tensors = Vec::with_capacity(found.len());
    for (index, input) in found.into_iter().enumerate() {
        let (name, tensor) = read_input(version, input, index, &mut rest)?;
        if tensors.iter().any(|(other, _)| *other == name) {
            return Err(repeated(version, "input", name));
        }
        tensors.push((name, tensor));
    }
    if !rest.is_empty() {
        let what = format!("{} bytes are left of the body behind the last input", rest.len());
        return Err(Error::malformed(what));
    }

    let wanted = wire.outputs.unwrap_or_default().0;
    let (mut outputs, mut binary) = (Vec::with_capacity(wanted.len()), Vec::new());
    for (index, output) in wanted.into_iter().enumerate() {
        let (name, is_binary) = read_output(version, output, index)?;
        if outputs.contains(&name) {
            return Err(repeated(version, "output", name));
        }
        outputs.push(name);
        binary.push(is_binary.unwrap_or(others_binary));
    }
    let form = Form { id: id.clone(), binary, others_binary };
    let request = InferRequest { id, inputs: tensors, outputs, deadline, protocol: Protocol::Http };
    json_has_outputs(version, &request, &form)?;
    Ok(Read { request, form })
}

/// Reads a request whose body is nothing but the elements of the model's only input.
///
/// # Errors
/// As for [`read`]; where the bytes don't say which shape they have.
pub(super) fn raw(version: &Version, body: Bytes) -> Result<Read> {
    let [port] = version.model().inputs() else {
        let count = version.model().inputs().len();
        let what = format!(
            "a body without JSON needs a model with one input; {:?} has {count}",
            version.name()
        );
        return Err(Error::malformed(what));
    };
    let shape = raw_shape(version, port, body.len())?;
    let tensor = binary_tensor(version, port, shape, body)?;
    let form = Form { id: String::new(), binary: Vec::new(), others_binary: true };
    let inputs = vec![(port.name().to_owned(), tensor)];
    Ok(Read { request: InferRequest { inputs, ..InferRequest::default() }, form })
}

/// The shape that so many bytes have: one dim at most may be unknown, the batch dim counting as one row otherwise.
fn raw_shape(version: &Version, port: &Port, bytes: usize) -> Result<Vec<usize>> {
    let (name, size) = (port.name(), port.dtype().size());
    let known = |dim: &graphene_runtime::Dim| dim.known().and_then(|size| size.try_into().ok());
    let mut dims: Vec<Option<usize>> = port.dims().iter().map(known).collect();
    if dims.iter().filter(|dim| dim.is_none()).count() > 1 && describe::has_batch_dim(version) {
        dims[0] = Some(1);
    }
    if dims.iter().filter(|dim| dim.is_none()).count() > 1 {
        let what = format!(
            "the shape of input {name:?} cannot be deduced from {bytes} bytes: several of its dims are unknown; say its \
             shape in JSON"
        );
        return Err(Error::malformed(what));
    }
    let row: usize = dims.iter().map(|dim| dim.unwrap_or(1)).product::<usize>() * size;
    if let Some(unknown) = dims.iter_mut().find(|dim| dim.is_none()) {
        if row == 0 || !bytes.is_multiple_of(row) {
            let what =
                format!("input {name:?} needs a multiple of {row} bytes; the body has {bytes}");
            return Err(Error::malformed(what));
        }
        *unknown = Some(bytes / row);
    }
    Ok(dims.into_iter().flatten().collect())
}

fn read_input(
    version: &Version,
    input: WireInput<'_>,
    index: usize,
    rest: &mut Bytes,
) -> Result<(String, Tensor)> {
    let missing = |what: &str| Error::malformed(format!("`inputs[{index}]` has no `{what}`"));
    let name = input.name.ok_or_else(|| missing("name"))?;
    let port = port(version, "input", &name)?;
    let lacks = |what: &str| Error::malformed(format!("input {name:?} has no `{what}`"));
    check_datatype(port, &input.datatype.ok_or_else(|| lacks("datatype"))?)?;
    let shape = read_shape(&name, input.shape.ok_or_else(|| lacks("shape"))?.get())?;
    let parameters = input.parameters.unwrap_or_default();
    if parameters.shared_memory_region.is_some() {
        return Err(Error::Unsupported { what: format!("shared memory for input {name:?}") });
    }
    let needed = version.check(&name, port.dtype(), &shape)?;
    let tensor = match (parameters.binary_data_size, input.data) {
        (Some(_), Some(_)) => {
            let what = format!("input {name:?} has both `data` and `binary_data_size`");
            return Err(Error::malformed(what));
        }
        (None, None) => {
            let what = format!("input {name:?} has neither `data` nor `binary_data_size`");
            return Err(Error::malformed(what));
        }
        (None, Some(text)) => data::tensor(&name, port.dtype(), shape, text.get())?,
        (Some(size), None) => {
            let size = whole(&format!("input {name:?}"), "binary_data_size", size)?;
            if size != needed as u64 {
                let dtype = datatype::name(port.dtype());
                let what = format!(
                    "input {name:?} of {dtype} and shape {shape:?} needs {needed} bytes; binary_data_size is {size}"
                );
                return Err(Error::malformed(what));
            }
            if needed > rest.len() {
                let what = format!(
                    "input {name:?} needs {needed} bytes; the body has {} left behind its JSON \
                     (whose length `Inference-Header-Content-Length` has to say)",
                    rest.len()
                );
                return Err(Error::malformed(what));
            }
            binary_tensor(version, port, shape, rest.split_to(needed))?
        }
    };
    Ok((name, tensor))
}

/// A tensor over bytes of a body, or a copy where they are not aligned.
fn binary_tensor(
    version: &Version,
    port: &Port,
    shape: Vec<usize>,
    bytes: Bytes,
) -> Result<Tensor> {
    let (name, dtype) = (port.name(), port.dtype());
    version.check(name, dtype, &shape)?;
    if datatype::of_name(datatype::name(dtype)).is_none() {
        return Err(Error::Unsupported { what: format!("input {name:?} of {dtype}") });
    }
    if dtype == DType::Bool && bytes.iter().any(|&byte| byte > 1) {
        let what = format!("input {name:?} of BOOL needs bytes that are 0 or 1");
        return Err(Error::malformed(what));
    }
    let odd = |error| Error::malformed(format!("input {name:?}: {error}"));
    Tensor::new(dtype, shape, bytes).map_err(odd)
}

fn read_output(
    version: &Version,
    output: WireOutput<'_>,
    index: usize,
) -> Result<(String, Option<bool>)> {
    let missing = || Error::malformed(format!("`outputs[{index}]` has no `name`"));
    let name = output.name.ok_or_else(missing)?;
    port(version, "output", &name)?;
    let parameters = output.parameters.unwrap_or_default();
    if let Some(classes) = parameters.classification.filter(|classes| classes.get() != "0") {
        let classes = shortened(classes.get());
        let what = format!("classification ({classes} classes of output {name:?})");
        return Err(Error::Unsupported { what });
    }
    if parameters.shared_memory_region.is_some() {
        return Err(Error::Unsupported { what: format!("shared memory for output {name:?}") });
    }
    let binary = flag(&format!("output {name:?}"), "binary_data", parameters.binary_data)?;
    Ok((name, binary))
}

/// Refuses a request whose answer JSON could not hold, before it runs.
fn json_has_outputs(version: &Version, request: &InferRequest, form: &Form) -> Result<()> {
    for port in version.model().outputs() {
        let place = request.outputs.iter().position(|name| name == port.name());
        let binary = match place {
            Some(place) => form.binary[place],
            None if request.outputs.is_empty() => form.others_binary,
            None => continue,
        };
        if !binary && !data::is_of_json(port.dtype()) {
            let what = format!(
                "output {:?} is {}, which JSON has no numbers for: ask for it with `\"binary_data\": true`",
                port.name(),
                datatype::name(port.dtype())
            );
            return Err(Error::malformed(what));
        }
    }
    Ok(())
}

fn port<'a>(version: &'a Version, what: &'static str, name: &str) -> Result<&'a Port> {
    let ports = match what {
        "input" => version.model().inputs(),
        _ => version.model().outputs(),
    };
    ports.iter().find(|port| port.name() == name).ok_or_else(|| {
        let known = ports.iter().map(|port| port.name().to_owned()).collect();
        let error = graphene_runtime::Error::UnknownPort { what, name: name.to_owned(), known };
        Error::Model { name: version.name().to_owned(), error }
    })
}

fn repeated(version: &Version, what: &'static str, name: String) -> Error {
    let error = graphene_runtime::Error::RepeatedPort { what, name };
    Error::Model { name: version.name().to_owned(), error }
}

fn check_datatype(port: &Port, found: &str) -> Result<()> {
    let needed = datatype::name(port.dtype());
    if found == needed {
        return Ok(());
    }
    let found = shortened(found);
    Err(Error::malformed(format!("input {:?} is {needed}; its datatype is {found:?}", port.name())))
}

fn read_shape(input: &str, text: &str) -> Result<Vec<usize>> {
    let wrong = || {
        let what = format!(
            "input {input:?} needs an array of sizes as its shape; got {}",
            shortened(text)
        );
        Error::malformed(what)
    };
    let inside =
        text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).ok_or_else(wrong)?;
    if inside.trim().is_empty() {
        return Ok(Vec::new());
    }
    inside.split(',').map(|size| size.trim().parse().map_err(|_| wrong())).collect()
}

fn whole(place: &str, name: &str, value: &RawValue) -> Result<u64> {
    value.get().parse().map_err(|_| {
        let found = shortened(value.get());
        Error::malformed(format!("`{name}` of {place} needs a whole number; got {found}"))
    })
}

fn flag(place: &str, name: &str, value: Option<&RawValue>) -> Result<Option<bool>> {
    let Some(value) = value else { return Ok(None) };
    match value.get() {
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        other => {
            let found = shortened(other);
            Err(Error::malformed(format!("`{name}` of {place} needs true or false; got {found}")))
        }
    }
}

/// When the client no longer waits: so many microseconds from now, for ever where they are none.
fn deadline(timeout: Option<&RawValue>) -> Result<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    let micros = whole("the request", "timeout", timeout)?;
    Ok(Instant::now().checked_add(Duration::from_micros(micros)).filter(|_| micros > 0))
}
