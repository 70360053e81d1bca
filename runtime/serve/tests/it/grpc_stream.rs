//! `ModelStreamInfer`: requests after each other on one stream, without waiting for answers.

use crate::grpc_client::messages::{
    InferParameter, ModelInferRequest, ModelStreamInferResponse, ParameterChoice,
};
use crate::grpc_client::{Caller, frame, input, ones, send};
use crate::harness::{Running, serve};
use graphene_serve::{Limits, ServerConfig};
use prost::Message;
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::{Code, Streaming};

const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

async fn mlp(limits: Limits) -> (Running, Caller) {
    let running = serve("zoo:mlp-2x4", ServerConfig { limits, ..ServerConfig::default() }).await;
    let caller = Caller::new(&running).await;
    (running, caller)
}

type Answers = Streaming<ModelStreamInferResponse>;

#[tokio::test]
async fn a_hundred_requests_are_answered_in_order() {
    let (_running, caller) = mlp(Limits::default()).await;
    // Every seventh is wrong, each in its own way.
    let requests = (0..100_usize).map(|index| {
        let mut asked = ModelInferRequest { id: index.to_string(), ..ones(index % 5 + 1) };
        if index % 7 == 3 {
            asked.inputs[0].name = format!("input-{index}");
        }
        asked
    });
    let requests: Vec<_> = requests.collect();
    let mut answers: Answers = caller.stream(STREAM, tokio_stream::iter(requests)).await;
    for index in 0..100 {
        let answer = answers.next().await.unwrap().unwrap();
        let response = answer.infer_response.unwrap();
        assert_eq!(response.id, index.to_string());
        if index % 7 == 3 {
            assert!(
                answer.error_message.contains(&format!("input-{index}")),
                "{}",
                answer.error_message
            );
            assert!(response.outputs.is_empty());
        } else {
            assert_eq!(answer.error_message, "");
            assert_eq!(response.outputs[0].shape, [index % 5 + 1, 4]);
            assert_eq!(response.raw_output_contents.len(), 1);
        }
        assert!(response.parameters.is_empty());
    }
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn an_answer_comes_before_the_next_request() {
    let (_running, caller) = mlp(Limits::default()).await;
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let requests = futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|asked: ModelInferRequest| (asked, receiver))
    });
    sender.send(ones(1)).await.unwrap();
    let mut answers: Answers = caller.stream(STREAM, requests).await;
    for index in 0..10 {
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(answer.error_message, "", "{index}");
        sender.send(ones(1)).await.unwrap();
    }
    drop(sender);
    assert!(answers.next().await.unwrap().is_ok());
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn a_last_answer_says_so_where_it_is_asked() {
    let (_running, caller) = mlp(Limits::default()).await;
    let mut asked = ones(1);
    let yes = InferParameter { parameter_choice: Some(ParameterChoice::Bool(true)) };
    asked.parameters.insert("triton_enable_empty_final_response".to_owned(), yes.clone());
    let mut wrong = asked.clone();
    wrong.inputs.clear();
    let mut answers: Answers = caller.stream(STREAM, tokio_stream::iter([asked, wrong])).await;
    for is_wrong in [false, true] {
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(!answer.error_message.is_empty(), is_wrong);
        let parameters = answer.infer_response.unwrap().parameters;
        assert_eq!(parameters.get("triton_final_response"), Some(&yes));
    }
}

#[tokio::test]
async fn bytes_that_are_no_message_do_not_end_a_stream() {
    let (running, _) = mlp(Limits::default()).await;
    let good = frame(&ones(1).encode_to_vec());
    // A stream that ends well has the status of that, whatever was wrong with its messages.
    let body = [good.clone(), frame(&[0xff; 9]), frame(b"text"), good].concat();
    let said = send(&running, STREAM, &[], body).await;
    assert_eq!(said.code, Code::Ok, "{said:?}");
    let version = running.server.find("mlp-2x4", None).unwrap();
    assert_eq!(version.statistics().success.count, 2);
}

#[tokio::test]
async fn a_message_that_is_too_large_ends_a_stream_after_what_came_before() {
    let (_running, caller) = mlp(Limits { body_bytes: 1000, ..Limits::default() }).await;
    let requests = tokio_stream::iter([ones(1), ones(2), ones(1000), ones(1)]);
    let mut answers: Answers = caller.stream(STREAM, requests).await;
    for _ in 0..2 {
        assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
    }
    let ended = answers.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::ResourceExhausted, "{ended}");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_what_waits() {
    // About a tenth of a second each.
    let model = "mlp-8x512";
    let running = serve(&format!("zoo:{model}"), ServerConfig::default()).await;
    let caller = Caller::new(&running).await;
    let (rows, count) = (1024, 60);
    let asked = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input("x", "FP32", &[rows, 512])],
        raw_input_contents: vec![vec![0; 1024 * 512 * 4].into()],
        ..ModelInferRequest::default()
    };
    let requests = tokio_stream::iter(vec![asked; count]);
    let mut answers: Answers = caller.stream(STREAM, requests).await;
    assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
    drop(answers);
    let version = running.server.find(model, None).unwrap();
    // What runs when the client leaves may end; soon nothing more runs, long before all would have.
    let counted = || (version.statistics().success.count, version.statistics().executions);
    let mut before = counted();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = counted();
        if now == before {
            break;
        }
        before = now;
    }
    let (answered, executions) = before;
    assert!(answered < count as u64 && executions < count as u64, "{before:?} of {count}");
}

#[tokio::test]
async fn a_server_that_drains_ends_its_streams() {
    let (running, caller) = mlp(Limits::default()).await;
    let requests = tokio_stream::iter([ones(1)]).chain(tokio_stream::pending());
    let mut answers: Answers = caller.stream(STREAM, requests).await;
    assert_eq!(answers.next().await.unwrap().unwrap().error_message, "");
    running.server.drain();
    let ended = answers.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    let drained =
        tokio::time::timeout(Duration::from_secs(10), running.listening.drain(Duration::ZERO));
    assert!(drained.await.is_ok());
}
