//! What clients do to a server: bodies that are too large, too slow, cut short or in many parts.

use crate::harness::{Running, serve};
use axum::http::Method;
use graphene_serve::{Limits, ServerConfig};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

const INFER: &str = "/v2/models/mlp-2x4/infer";
const LENGTH: &str = "Inference-Header-Content-Length";

async fn limited(limits: Limits) -> Running {
    serve("zoo:mlp-2x4", ServerConfig { limits, ..ServerConfig::default() }).await
}

/// What a socket of the test's does.
enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Sends nothing more.
    Close,
}

/// Does the steps on a new connection, and gives all that the server answers until it closes.
async fn converse(running: &Running, steps: Vec<Step>) -> String {
    let address = running.listening.http();
    let talk = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for step in steps {
            match step {
                // The server may have answered and closed already.
                Step::Send(bytes) => drop(stream.write_all(&bytes)),
                Step::Wait(time) => std::thread::sleep(time),
                Step::Close => drop(stream.shutdown(Shutdown::Write)),
            }
        }
        let mut answer = Vec::new();
        // A connection that is reset ends the answer as well.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::task::spawn_blocking(talk).await.unwrap()
}

fn head(headers: &str) -> Vec<u8> {
    format!("POST {INFER} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n").into_bytes()
}

fn good() -> String {
    json!({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]})
        .to_string()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn bodies_come_in_chunks_of_any_size() {
    let running = limited(Limits::default()).await;
    let body = good();
    let sent: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let raw: &[u8] = bytemuck::cast_slice(&sent);
    for size in [1, 2, 3, 7, 16, 1000] {
        for (header, bytes) in
            [("", body.as_bytes()), ("Inference-Header-Content-Length: 0\r\n", raw)]
        {
            let mut steps =
                vec![Step::Send(head(&format!("Transfer-Encoding: chunked\r\n{header}")))];
            let chunks: Vec<u8> = bytes.chunks(size).flat_map(chunk).collect();
            // Some in pieces that are no chunks.
            steps.extend(chunks.chunks(11).map(|piece| Step::Send(piece.to_vec())));
            steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
            let answer = converse(&running, steps).await;
            assert_eq!(status(&answer), "200", "{size}: {answer}");
        }
    }
}

/// A hundred thousand chunks of a byte are one body of as many bytes, and take no more memory.
#[tokio::test]
async fn many_small_chunks_are_read_or_refused() {
    let limits = Limits { body_bytes: 100_000, ..Limits::default() };
    let running = limited(limits).await;
    for (chunks, expected) in [(99_999, "400"), (1_000_000, "413")] {
        let mut steps = vec![Step::Send(head(
            "Transfer-Encoding: chunked\r\nInference-Header-Content-Length: 0\r\n",
        ))];
        steps.push(Step::Send(b"1\r\nA\r\n".repeat(chunks)));
        steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
        let answer = converse(&running, steps).await;
        // Where the client still sends when the server closes, the answer may be lost to a reset.
        assert!(
            status(&answer) == expected || answer.is_empty() && chunks == 1_000_000,
            "{answer}"
        );
    }
    assert_eq!(running.get("/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn larger_bodies_than_the_limit_are_refused() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let running = limited(limits).await;
    let (body, spaces) = (good(), |count: usize| " ".repeat(count).into_bytes());
    let fits = [body.as_bytes(), &spaces(1000 - body.len())].concat();
    let beyond = [body.as_bytes(), &spaces(1001 - body.len())].concat();
    let chunked = "Transfer-Encoding: chunked\r\n";
    let length = |length: u64| format!("Content-Length: {length}\r\n");
    let end = b"0\r\n\r\n".to_vec();
    let rows = [
        ("as much as may be", length(1000), fits.clone(), "200"),
        ("more than may be", length(1001), beyond.clone(), "413"),
        ("a length alone", length(1 << 40), Vec::new(), "413"),
        ("chunks within", chunked.to_owned(), [chunk(&fits), end.clone()].concat(), "200"),
        ("chunks beyond", chunked.to_owned(), [chunk(&beyond), end].concat(), "413"),
        ("chunks without end", chunked.to_owned(), chunk(&spaces(600)).repeat(3), "413"),
        ("a chunk's length alone", chunked.to_owned(), b"ffffffff\r\n".to_vec(), "none"),
        ("a length that overflows", chunked.to_owned(), b"fffffffffffffffff\r\nx".to_vec(), "400"),
        ("no length that is one", "Content-Length: x\r\n".to_owned(), Vec::new(), "400"),
        ("two lengths", length(5) + &length(6), Vec::new(), "400"),
        ("no length", String::new(), Vec::new(), "400"),
    ];
    for (what, headers, bytes, expected) in rows {
        let mut steps = vec![Step::Send([head(&headers), bytes].concat())];
        // Nothing more comes. Who closes after a whole request is taken to have left.
        if expected != "200" && what != "no length" {
            steps.push(Step::Close);
        }
        let answer = converse(&running, steps).await;
        let found = status(&answer);
        assert!(found == expected || expected == "none" && found == "400", "{what}: {answer}");
        if expected == "413" {
            assert!(answer.contains("1000 bytes") && answer.contains("body_bytes"), "{answer}");
        }
    }
    assert_eq!(running.get("/v2/health/live").await.status, 200);
}

#[tokio::test]
async fn slow_bodies_are_given_up() {
    let limits = Limits { read_ms: 300, ..Limits::default() };
    let running = limited(limits).await;
    let body = good().into_bytes();
    let length = format!("Content-Length: {}\r\n", body.len());
    let began = Instant::now();
    // Nothing, a part, and a chunk that is not ended.
    for (headers, first) in [
        (length.as_str(), Vec::new()),
        (length.as_str(), body[..20].to_vec()),
        ("Transfer-Encoding: chunked\r\n", chunk(&body[..20])),
        ("Transfer-Encoding: chunked\r\n", b"14\r\n{".to_vec()),
    ] {
        let answer = converse(&running, vec![Step::Send([head(headers), first].concat())]).await;
        assert_eq!(status(&answer), "408", "{answer}");
        assert!(answer.contains("300 ms"), "{answer}");
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    // Slow, but always again something.
    let mut steps = vec![Step::Send(head(&length))];
    for part in body.chunks(body.len().div_ceil(6)) {
        steps.extend([Step::Wait(Duration::from_millis(100)), Step::Send(part.to_vec())]);
    }
    let answer = converse(&running, steps).await;
    assert_eq!(status(&answer), "200", "{answer}");
}

#[tokio::test]
async fn bodies_cut_short_do_no_harm() {
    let running = limited(Limits::default()).await;
    let body = good().into_bytes();
    for cut in [0, 1, body.len() / 2, body.len() - 1] {
        let length = format!("Content-Length: {}\r\n", body.len());
        let sent = [head(&length), body[..cut].to_vec()].concat();
        let answer = converse(&running, vec![Step::Send(sent), Step::Close]).await;
        assert!(matches!(status(&answer), "none" | "400"), "{answer}");
        let sent = [head("Transfer-Encoding: chunked\r\n"), chunk(&body[..cut.max(1)])].concat();
        let answer = converse(&running, vec![Step::Send(sent), Step::Close]).await;
        assert!(matches!(status(&answer), "none" | "400"), "{answer}");
    }
    let answer = running.send(Method::POST, INFER, &[], good()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn requests_beyond_the_limits_are_refused_before_anything_is_made() {
    let limits = Limits { rank: 3, elements: 64, inputs: 2, ..Limits::default() };
    let running = limited(limits).await;
    let x = |shape: serde_json::Value| json!({"name": "x", "shape": shape, "datatype": "FP32", "data": []});
    let rows = [
        (json!([x(json!([1, 1, 1, 4]))]), "\"x\"", "rank"),
        (json!([x(json!([17, 4]))]), "\"x\"", "elements"),
        (json!([x(json!([0, 1_u64 << 40]))]), "\"x\"", "elements"),
        (json!([{}, {}, {}]), "inputs is 3", "inputs"),
        (json!(vec![json!({}); 5000]), "4096", "array"),
    ];
    for (inputs, what, setting) in rows {
        let answer = running.post(INFER, &json!({ "inputs": inputs })).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(what) && error.contains(setting), "{error}");
    }
    let raw = vec![0; 17 * 16];
    let answer = running.send(Method::POST, INFER, &[(LENGTH, "0")], raw).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.json()["error"].as_str().unwrap().contains("elements"));
}

/// A timeout of a microsecond has passed before the model runs.
#[tokio::test]
async fn a_deadline_that_passed_is_told() {
    let running = limited(Limits::default()).await;
    let mut request: serde_json::Value = serde_json::from_str(&good()).unwrap();
    for (timeout, status) in [(1, 504), (0, 200), (60_000_000, 200), (u64::MAX, 200)] {
        request["parameters"] = json!({ "timeout": timeout });
        let answer = running.post(INFER, &request).await;
        assert_eq!(answer.status, status, "{timeout} {answer:?}");
    }
}
