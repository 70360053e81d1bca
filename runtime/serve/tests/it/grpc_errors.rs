//! What is wrong by gRPC: each is told with its code, and names what it is about.

use crate::grpc_client::messages::{
    InferInputTensor, InferParameter, ModelInferRequest, ModelInferResponse, ParameterChoice,
};
use crate::grpc_client::{Caller, SERVICE, Said, frame, input, ones, output, send};
use crate::harness::{Running, serve};
use axum::body::{Body, Bytes};
use futures_util::StreamExt;
use graphene_serve::{Limits, ServerConfig};
use prost::Message;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tonic::Code;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

async fn mlp(limits: Limits) -> Running {
    serve("zoo:mlp-2x4", ServerConfig { limits, ..ServerConfig::default() }).await
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

type Change = fn(&mut ModelInferRequest);

/// What is changed in a good request, the code that it gets, and what its message has.
const WRONG: &[(Change, Code, &str)] = &[
    (|asked| asked.model_name = "m".to_owned(), Code::NotFound, "no model \"m\""),
    (|asked| asked.model_name.clear(), Code::NotFound, "no model \"\""),
    (|asked| asked.model_version = "7".to_owned(), Code::NotFound, "no version \"7\""),
    (
        |asked| asked.inputs[0].name = "z".to_owned(),
        Code::InvalidArgument,
        "no input \"z\"; it has x",
    ),
    (
        |asked| asked.inputs[0].datatype = "FP16".to_owned(),
        Code::InvalidArgument,
        "\"x\" needs FP32; its datatype is \"FP16\"",
    ),
    (|asked| asked.inputs[0].datatype.clear(), Code::InvalidArgument, "\"x\" needs FP32"),
    (
        |asked| asked.inputs[0].datatype = "BYTES".to_owned(),
        Code::InvalidArgument,
        "\"x\" needs FP32; BYTES",
    ),
    (|asked| asked.inputs[0].shape[0] = -1, Code::InvalidArgument, "\"x\" has -1 along axis 0"),
    (
        |asked| asked.inputs[0].shape = vec![i64::MAX; 2],
        Code::InvalidArgument,
        "\"x\" is 18446744073709551615",
    ),
    (
        |asked| asked.inputs[0].shape = vec![1 << 62, 0, 1 << 62],
        Code::InvalidArgument,
        "elements of input \"x\"",
    ),
    (
        |asked| asked.inputs[0].shape = vec![1; 17],
        Code::InvalidArgument,
        "the rank of input \"x\" is 17",
    ),
    (|asked| asked.inputs[0].shape = vec![1; 1000], Code::InvalidArgument, "the rank of an input"),
    (|asked| asked.inputs[0].shape = vec![4], Code::InvalidArgument, "x"),
    (|asked| asked.inputs[0].shape = vec![2, 2], Code::InvalidArgument, "x"),
    (
        |asked| asked.inputs[0].shape = vec![2, 4],
        Code::InvalidArgument,
        "\"x\" (FP32 [2, 4]) needs 32 bytes; its raw_input_contents has 16",
    ),
    (
        |asked| asked.inputs.clear(),
        Code::InvalidArgument,
        "raw_input_contents needs an entry for each of the 0 inputs",
    ),
    (
        |asked| {
            asked.inputs.clear();
            asked.raw_input_contents.clear();
        },
        Code::InvalidArgument,
        "\"x\" (FP32 [-1, 4]) is missing",
    ),
    (|asked| asked.raw_input_contents.clear(), Code::InvalidArgument, "\"x\" has neither"),
    (
        |asked| asked.inputs[0].contents = Some(Bytes::new()),
        Code::InvalidArgument,
        "\"x\" has contents beside",
    ),
    (
        |asked| {
            asked.inputs[0].contents = Some(vec![0x35, 0, 0, 0, 0].into());
            asked.raw_input_contents.clear();
        },
        Code::InvalidArgument,
        "\"x\" (FP32 [1, 4]) needs 4 elements; its contents has 1",
    ),
    (
        |asked| {
            asked.inputs[0].contents = Some(vec![0x18, 1].into());
            asked.raw_input_contents.clear();
        },
        Code::InvalidArgument,
        "\"x\" is FP32, but its contents is of another type",
    ),
    (
        |asked| {
            asked.inputs[0].contents = Some(vec![0x35, 0, 0].into());
            asked.raw_input_contents.clear();
        },
        Code::InvalidArgument,
        "ends inside",
    ),
    (
        |asked| {
            asked.inputs.push(asked.inputs[0].clone());
            asked.raw_input_contents.push(asked.raw_input_contents[0].clone());
        },
        Code::InvalidArgument,
        "\"x\" is given twice",
    ),
    (|asked| asked.outputs = vec![output("x")], Code::InvalidArgument, "no output \"x\"; it has y"),
    (
        |asked| asked.outputs = vec![output("y"), output("y")],
        Code::InvalidArgument,
        "\"y\" is asked for twice",
    ),
    (
        |asked| {
            asked.outputs = vec![output("y")];
            asked.outputs[0]
                .parameters
                .insert("classification".to_owned(), InferParameter::default());
        },
        Code::Unimplemented,
        "\"classification\" of output \"y\"",
    ),
    (
        |asked| {
            asked.inputs[0]
                .parameters
                .insert("shared_memory_region".to_owned(), InferParameter::default());
        },
        Code::Unimplemented,
        "\"shared_memory_region\" of input \"x\"",
    ),
    (
        |asked| {
            asked.parameters.insert("timeout".to_owned(), parameter(ParameterChoice::Int64(-1)));
        },
        Code::InvalidArgument,
        "\"timeout\" needs microseconds",
    ),
    (
        |asked| {
            asked
                .parameters
                .insert("timeout".to_owned(), parameter(ParameterChoice::String("1".to_owned())));
        },
        Code::InvalidArgument,
        "\"timeout\" needs microseconds",
    ),
    (
        |asked| {
            asked.parameters.insert("timeout".to_owned(), parameter(ParameterChoice::Int64(1)));
        },
        Code::DeadlineExceeded,
        "deadline",
    ),
];

#[tokio::test]
async fn wrong_requests_are_told_what_is_wrong() {
    let running = mlp(Limits::default()).await;
    let caller = Caller::new(&running).await;
    for (row, (change, code, text)) in WRONG.iter().enumerate() {
        let mut asked = ones(1);
        change(&mut asked);
        let refused = caller.call::<_, ModelInferResponse>("ModelInfer", asked).await.unwrap_err();
        assert_eq!(refused.code(), *code, "{row}: {text}: {refused}");
        assert!(refused.message().contains(text), "{row}: {text}: {}", refused.message());
    }
    // Hints are not followed, but nothing is wrong with them.
    let mut asked = ones(1);
    asked.parameters.insert("timeout".to_owned(), parameter(ParameterChoice::Uint64(0)));
    asked.parameters.insert("priority".to_owned(), parameter(ParameterChoice::Uint64(7)));
    caller.call::<_, ModelInferResponse>("ModelInfer", asked).await.unwrap();
}

#[tokio::test]
async fn the_header_says_how_long_a_client_waits() {
    let running = mlp(Limits::default()).await;
    let body = frame(&ones(1).encode_to_vec());
    let rows = [
        ("1n", Code::DeadlineExceeded, "deadline"),
        ("0S", Code::DeadlineExceeded, "deadline"),
        ("soon", Code::InvalidArgument, "grpc-timeout is \"soon\""),
        ("1H", Code::Ok, ""),
        ("99999999H", Code::Ok, ""),
    ];
    for (timeout, code, text) in rows {
        let said = send(&running, INFER, &[("grpc-timeout", timeout)], body.clone()).await;
        assert!(said.code == code && said.message.contains(text), "{timeout}: {said:?}");
    }
}

#[tokio::test]
async fn a_message_may_not_be_too_large() {
    let running = mlp(Limits { body_bytes: 1000, ..Limits::default() }).await;
    let caller = Caller::new(&running).await;
    for caller in [caller.clone(), caller.compressed()] {
        caller.call::<_, ModelInferResponse>("ModelInfer", ones(10)).await.unwrap();
        let refused = caller.call::<_, ModelInferResponse>("ModelInfer", ones(1000)).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("1000 bytes"), "{refused}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_message_are_refused() {
    let running = mlp(Limits::default()).await;
    let good = ones(1).encode_to_vec();
    let many = ModelInferRequest { inputs: vec![InferInputTensor::default(); 5000], ..ones(1) };
    let deep = [0x2a, 0x00].repeat(1 << 20);
    let mut cut = frame(&good).to_vec();
    cut.truncate(20);
    let twice = [frame(&good), frame(&good)].concat();
    let rows: [(&str, Bytes, Code, &str); 11] = [
        ("text", frame(b"no message at all"), Code::InvalidArgument, ""),
        ("ones", frame(&[0xff; 100]), Code::InvalidArgument, ""),
        (
            "a message cut short",
            frame(&good[..good.len() - 1]),
            Code::InvalidArgument,
            "ends inside",
        ),
        ("a name that is no UTF-8", frame(&[0x0a, 1, 0xff]), Code::InvalidArgument, "model_name"),
        ("many inputs", frame(&many.encode_to_vec()), Code::InvalidArgument, "parts"),
        ("many empty inputs", frame(&deep), Code::InvalidArgument, "parts"),
        ("a group", frame(&[0x0b, 0x0c]), Code::InvalidArgument, "group"),
        ("no frame", Bytes::new(), Code::InvalidArgument, "not none"),
        ("two frames", twice.into(), Code::InvalidArgument, "not several"),
        ("a frame cut short", cut.into(), Code::Internal, ""),
        ("no such flag", vec![7, 0, 0, 0, 0].into(), Code::Internal, "flag"),
    ];
    for (what, body, code, text) in rows {
        let said = send(&running, INFER, &[], body).await;
        assert!(said.code == code && said.message.contains(text), "{what}: {said:?}");
    }
    let good = send(&running, INFER, &[], frame(&good)).await;
    assert_eq!(good.code, Code::Ok, "{good:?}");
}

#[tokio::test]
async fn other_methods_and_content_types_are_refused() {
    let running = mlp(Limits::default()).await;
    for path in
        [format!("/{SERVICE}/Other"), "/other.Service/ModelInfer".to_owned(), "/".to_owned()]
    {
        let said = send(&running, &path, &[], frame(&[])).await;
        assert_eq!((said.http, said.code), (200, Code::Unimplemented), "{path}");
        assert!(said.message.contains(&path), "{said:?}");
    }
    let Said { http, .. } =
        send(&running, INFER, &[("content-type", "application/json")], frame(&[])).await;
    assert_eq!(http, 415);
    let headers = [("grpc-encoding", "snappy")];
    let said = send(&running, INFER, &headers, frame(&ones(1).encode_to_vec())).await;
    assert_eq!(said.code, Code::Unimplemented);
}

#[tokio::test]
async fn long_names_are_cut_in_messages() {
    let running = mlp(Limits::default()).await;
    let caller = Caller::new(&running).await;
    let mut asked = ones(1);
    asked.inputs[0] = input(&"é".repeat(1 << 20), "FP32", &[1, 4]);
    let refused = caller.call::<_, ModelInferResponse>("ModelInfer", asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().ends_with("é…"));
}

#[tokio::test]
async fn a_request_that_stops_half_way_is_given_up() {
    let running = mlp(Limits { read_ms: 200, ..Limits::default() }).await;
    let whole = frame(&ones(1).encode_to_vec());
    for sent in [0, 3, 20, whole.len()] {
        let part = Ok::<_, Infallible>(whole.slice(..sent));
        // The stream does not end either: even a whole message may be followed by another.
        let body =
            futures_util::stream::once(async { part }).chain(futures_util::stream::pending());
        let began = Instant::now();
        let said = send(&running, INFER, &[], Body::from_stream(body)).await;
        assert_eq!(said.code, Code::DeadlineExceeded, "{said:?}");
        assert!(said.message.contains("200 ms"), "{said:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    // Whoever says that less time is left gets less.
    let body = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let said = send(&running, INFER, &[("grpc-timeout", "50m")], body).await;
    assert!(said.message.contains("before the request was all there"), "{said:?}");
}
