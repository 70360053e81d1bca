//! `ModelInfer`, by one message and by a stream.

use super::call::{Call, Incoming, message, status};
use super::codec::{Ask, unread};
use super::messages::{
    InferInputTensor, InferOutputTensor, InferParameter, ModelInferRequest, ModelInferResponse,
    ModelStreamInferResponse, ParameterChoice,
};
use super::model::find;
use super::tensors::{check_datatype, contents, name, raw, shape};
use super::wire::{Field, fields};
use crate::error::{Error, Result};
use crate::infer::{InferRequest, InferResponse};
use crate::metrics::Protocol;
use crate::server::Server;
use crate::version::Version;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use graphene_runtime::Tensor;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tonic::Status;

/// Requests of a stream that are answered at a time: two batches of the most rows that are usual. Further ones wait in the
/// connection.
const PIPELINED: usize = 128;

/// Parts of a message for every input that there may be: itself, its bytes, an output, parameters of all of these.
const PARTS: usize = 16;

/// The parameter with the microseconds that a request may take.
const TIMEOUT: &str = "timeout";
/// The parameter that asks whether an answer of a stream is a request's last.
const ASKS_FINAL: &str = "triton_enable_empty_final_response";
/// The parameter that says that it is.
const FINAL: &str = "triton_final_response";

type Parameters = BTreeMap<String, InferParameter>;

impl Ask for ModelInferRequest {
    fn limit(server: &Server) -> u64 {
        server.limits().body_bytes
    }

    /// Two bytes of a message make an input of a few hundred, so they are counted first.
    fn look(server: &Server, bytes: &[u8]) -> Result<()> {
        let limits = server.limits();
        let (most, longest) = (limits.inputs.saturating_mul(PARTS), limits.rank.saturating_mul(10));
        let mut parts = 0;
        let mut one_more = || {
            parts += 1;
            let (what, found, limit) =
                ("the number of a request's parts".to_owned(), parts as u64, most as u64);
            if parts <= most {
                Ok(())
            } else {
                Err(Error::Limit { what, found, limit, setting: "inputs" })
            }
        };
        fields(bytes, |number, field| {
            one_more()?;
            // Inputs and outputs; elements are not looked at.
            let (5 | 6, Field::Length(tensor)) = (number, field) else { return Ok(()) };
            fields(tensor, |inner, field| match field {
                // Sizes without keys of their own, of ten bytes at most.
                Field::Length(sizes) if (number, inner) == (5, 3) && sizes.len() > longest => {
                    let what = "the rank of an input".to_owned();
                    let (found, limit) = ((sizes.len() / 10) as u64, limits.rank as u64);
                    Err(Error::Limit { what, found, limit, setting: "rank" })
                }
                _ => one_more(),
            })
        })
    }
}

/// `ModelInfer`.
pub(super) async fn model_infer(
    call: Call,
    asked: ModelInferRequest,
) -> Result<ModelInferResponse> {
    let version = find(&call.server, &asked.model_name, &asked.model_version)?;
    let (request, id) = read(&call, &version, asked)?;
    let answer = version.infer(request).await?;
    Ok(written(&version, id, answer))
}

/// `ModelStreamInfer`: several requests are answered at a time, and answers come in the order of requests. What is wrong
/// with a request is told of it alone. The stream ends with what cannot be read on, and once the server shuts down;
/// what came before is answered.
pub(super) fn model_stream_infer(
    call: Call,
    incoming: Incoming<ModelInferRequest>,
) -> impl Stream<Item = std::result::Result<ModelStreamInferResponse, Status>> + Send + 'static {
    let server = call.server.clone();
    let ended =
        stream::once(async move { server.draining().then(|| Err(status(&Error::Draining))) });
    let requests = incoming.take_until(call.server.clone().drained());
    let answers = requests.map(move |asked| {
        let call = call.clone();
        async move {
            match asked {
                Ok(asked) => Ok(streamed(call, asked).await),
                Err(status) => Err(unread::<ModelInferRequest>(&call.server, status)),
            }
        }
    });
    answers.buffered(PIPELINED).chain(ended.filter_map(std::future::ready))
}

/// The answer to a request of a stream.
async fn streamed(call: Call, asked: Result<ModelInferRequest>) -> ModelStreamInferResponse {
    let (mut named, asks_final) = match &asked {
        Ok(asked) => (
            ModelInferResponse {
                model_name: asked.model_name.clone(),
                model_version: asked.model_version.clone(),
                id: asked.id.clone(),
                ..ModelInferResponse::default()
            },
            asked.parameters.get(ASKS_FINAL).is_some_and(is_true),
        ),
        Err(_) => (ModelInferResponse::default(), false),
    };
    let mut answer = match asked {
        Ok(asked) => model_infer(call, asked).await,
        Err(error) => Err(error),
    };
    let last = answer.as_mut().unwrap_or(&mut named);
    if asks_final {
        let parameter_choice = Some(ParameterChoice::Bool(true));
        last.parameters.insert(FINAL.to_owned(), InferParameter { parameter_choice });
    }
    let (error_message, infer_response) = match answer {
        Ok(answer) => (String::new(), Some(answer)),
        Err(error) => (message(&error), Some(named)),
    };
    ModelStreamInferResponse { error_message, infer_response }
}

/// A request of a message, and what the client calls it.
fn read(
    call: &Call,
    version: &Version,
    asked: ModelInferRequest,
) -> Result<(InferRequest, String)> {
    refuse_sharing("the request", &asked.parameters)?;
    let inputs = inputs(call, version, asked.inputs, asked.raw_input_contents)?;
    let mut outputs = Vec::with_capacity(asked.outputs.len());
    for output in asked.outputs {
        check_output(version, &output.name, &outputs)?;
        refuse_sharing(&format!("output {:?}", output.name), &output.parameters)?;
        outputs.push(output.name);
    }
    let own = asked.parameters.get(TIMEOUT).map(timeout).transpose()?.flatten();
    let deadline = [call.deadline, own].into_iter().flatten().min();
    let id = asked.id.clone();
    let protocol = Protocol::Grpc;
    Ok((InferRequest { id: asked.id, inputs, outputs, deadline, protocol }, id))
}

fn inputs(
    call: &Call,
    version: &Version,
    asked: Vec<InferInputTensor>,
    raws: Vec<Bytes>,
) -> Result<Vec<(String, Tensor)>> {
    let (limit, found) = (call.server.limits().inputs, asked.len());
    if found > limit {
        let (what, found, limit) = ("the number of inputs".to_owned(), found as u64, limit as u64);
        return Err(Error::Limit { what, found, limit, setting: "inputs" });
    }
    if !raws.is_empty() && raws.len() != found {
        return Err(Error::malformed(format!(
            "raw_input_contents needs an entry for each of the {found} inputs; it has {}",
            raws.len()
        )));
    }
    let mut raws = raws.into_iter();
    let mut inputs: Vec<(String, Tensor)> = Vec::with_capacity(found);
    for asked in asked {
        if inputs.iter().any(|(name, _)| *name == asked.name) {
            return Err(Error::malformed(format!("input {:?} is given twice", asked.name)));
        }
        let tensor = input(version, &asked, raws.next())?;
        inputs.push((asked.name, tensor));
    }
    let missing = version
        .model()
        .inputs()
        .iter()
        .find(|port| inputs.iter().all(|(name, _)| name != port.name()));
    match missing {
        None => Ok(inputs),
        Some(port) => Err(Error::malformed(format!(
            "input {:?} ({} {:?}) is missing",
            port.name(),
            name(port.dtype()),
            super::tensors::sizes(port.dims())
        ))),
    }
}

fn input(version: &Version, asked: &InferInputTensor, bytes: Option<Bytes>) -> Result<Tensor> {
    let ports = version.model().inputs();
    let port = ports.iter().find(|port| port.name() == asked.name).ok_or_else(|| {
        let known: Vec<&str> = ports.iter().map(|port| port.name()).collect();
        Error::malformed(format!(
            "the model has no input {:?}; it has {}",
            asked.name,
            known.join(", ")
        ))
    })?;
    refuse_sharing(&format!("input {:?}", asked.name), &asked.parameters)?;
    check_datatype(port, &asked.datatype)?;
    let shape = shape(&asked.name, &asked.shape)?;
    let target = (port.name(), port.dtype());
    let needed = version.check(&asked.name, port.dtype(), &shape)?;
    match (bytes, &asked.contents) {
        (Some(bytes), None) => raw(target, shape, needed, bytes),
        (None, Some(bytes)) => contents(target, shape, bytes),
        (Some(_), Some(_)) => Err(Error::malformed(format!(
            "input {:?} has contents beside raw_input_contents: a request has one or the other",
            asked.name
        ))),
        (None, None) if needed == 0 => raw(target, shape, needed, Bytes::new()),
        (None, None) => Err(Error::malformed(format!(
            "input {:?} has neither contents nor an entry of raw_input_contents",
            asked.name
        ))),
    }
}

fn check_output(version: &Version, asked: &str, before: &[String]) -> Result<()> {
    let ports = version.model().outputs();
    if !ports.iter().any(|port| port.name() == asked) {
        let known: Vec<&str> = ports.iter().map(|port| port.name()).collect();
        let known = known.join(", ");
        return Err(Error::malformed(format!("the model has no output {asked:?}; it has {known}")));
    }
    if before.iter().any(|name| name == asked) {
        return Err(Error::malformed(format!("output {asked:?} is asked for twice")));
    }
    Ok(())
}

/// Parameters that would have to be followed, and are not; others are hints.
fn refuse_sharing(whose: &str, parameters: &Parameters) -> Result<()> {
    let followed = |name: &&String| name.starts_with("shared_memory") || *name == "classification";
    match parameters.keys().find(followed) {
        None => Ok(()),
        Some(name) => Err(Error::Unsupported { what: format!("parameter {name:?} of {whose}") }),
    }
}

fn is_true(parameter: &InferParameter) -> bool {
    parameter.parameter_choice == Some(ParameterChoice::Bool(true))
}

/// When a request has taken as long as it may, if it says so: zero is none.
fn timeout(parameter: &InferParameter) -> Result<Option<Instant>> {
    let micros = match &parameter.parameter_choice {
        Some(ParameterChoice::Int64(micros)) => u64::try_from(*micros).ok(),
        Some(ParameterChoice::Uint64(micros)) => Some(*micros),
        Some(
            ParameterChoice::Bool(_) | ParameterChoice::String(_) | ParameterChoice::Double(_),
        )
        | None => None,
    };
    match micros {
        Some(0) => Ok(None),
        Some(micros) => Ok(Instant::now().checked_add(Duration::from_micros(micros))),
        None => Err(Error::malformed(format!(
            "parameter {TIMEOUT:?} needs microseconds, a whole number of zero or more; it is {:?}",
            parameter.parameter_choice
        ))),
    }
}

/// The message of an answer; it shares the outputs' memory.
fn written(version: &Version, id: String, answer: InferResponse) -> ModelInferResponse {
    let (mut outputs, mut raws) = (Vec::new(), Vec::new());
    for (name, tensor) in answer.outputs {
        raws.push(tensor.shared_bytes().clone());
        outputs.push(InferOutputTensor {
            name,
            datatype: self::name(tensor.dtype()).to_owned(),
            // A tensor in memory has no size beyond this.
            shape: tensor.shape().iter().map(|&size| size as i64).collect(),
        });
    }
    ModelInferResponse {
        model_name: version.name().to_owned(),
        model_version: version.number().to_owned(),
        id,
        parameters: Parameters::new(),
        outputs,
        raw_output_contents: raws,
    }
}
