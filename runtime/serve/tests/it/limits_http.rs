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
    for (chunks, expected) in [(99_999, "400"), (200_000, "413")] {
        let mut steps = vec![Step::Send(head(
            "Transfer-Encoding: chunked\r\nInference-Header-Content-Length: 0\r\n",
        ))];
        steps.push(Step::Send(b"1\r\nA\r\n".repeat(chunks)));
        steps.push(Step::Send(b"0\r\n\r\n".to_vec()));
        let answer = converse(&running, steps).await;
        assert_eq!(status(&answer), expected, "{answer}");
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
    let (whole, cut) = (Vec::new, || vec![Step::Close]);
    let rows = [
        ("as much as may be", length(1000), fits.clone(), whole(), "200"),
        ("more than may be", length(1001), beyond.clone(), whole(), "413"),
        ("a length alone", length(1 << 40), Vec::new(), cut(), "413"),
        ("chunks within", chunked.to_owned(), [chunk(&fits), end.clone()].concat(), whole(), "200"),
        ("chunks beyond", chunked.to_owned(), [chunk(&beyond), end].concat(), whole(), "413"),
        ("chunks without end", chunked.to_owned(), chunk(&spaces(600)).repeat(3), cut(), "413"),
        ("a chunk's length alone", chunked.to_owned(), b"ffffffff\r\n".to_vec(), cut(), "none"),
        (
            "a length that overflows",
            chunked.to_owned(),
            b"fffffffffffffffff\r\nx".to_vec(),
            cut(),
            "400",
        ),
        ("no length that is one", "Content-Length: x\r\n".to_owned(), Vec::new(), cut(), "400"),
        ("two lengths", length(5) + &length(6), Vec::new(), cut(), "400"),
        ("no length", String::new(), Vec::new(), whole(), "400"),
    ];
    for (what, headers, bytes, after, expected) in rows {
        // Who closes after a whole request is taken to have left, and may get no answer.
        let mut steps = vec![Step::Send([head(&headers), bytes].concat())];
        steps.extend(after);
        let answer = converse(&running, steps).await;
        let found = status(&answer);
        assert!(found == expected || expected == "none" && found == "400", "{what}: {answer}");
        if expected == "413" {
            assert!(answer.contains("1000 bytes") && answer.contains("body_bytes"), "{answer}");
        }
    }
    assert_eq!(running.get("/v2/health/live").await.status, 200);
}

/// A client that reads nothing before it has sent everything gets its answer, whatever it is.
#[tokio::test]
async fn answers_wait_for_clients_that_send_first() {
    let limits = Limits { body_bytes: 256 << 10, ..Limits::default() };
    let running = limited(limits).await;
    let address = running.listening.http();
    let body = vec![b' '; 3 << 20];
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunks = [chunk(&body), b"0\r\n\r\n".to_vec()].concat();
    let other = String::from_utf8(head(&length)).unwrap().replace("mlp-2x4", "other");
    let rows = [
        (head(&length), body.clone(), "413", "body_bytes"),
        (head("Transfer-Encoding: chunked\r\n"), chunks, "413", "body_bytes"),
        (head(&format!("Content-Encoding: br\r\n{length}")), body.clone(), "415", "br"),
        (other.into_bytes(), body.clone(), "404", "other"),
        (head("Content-Length: x\r\n"), body, "400", "Content-Length"),
    ];
    let talk = move || {
        for (head, body, expected, word) in rows {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&head).unwrap();
            stream.write_all(&body).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(status(&answer), expected, "{answer}");
            assert!(error_of(&answer).contains(word), "{answer}");
            assert!(expected != "413" || answer.contains("\r\nconnection: close\r\n"), "{answer}");
        }
    };
    tokio::task::spawn_blocking(talk).await.unwrap();
}

/// The server hears such a client out for a while, but not for ever: neither one that sends fast nor one that hardly does.
#[tokio::test]
async fn clients_that_send_without_end_are_cut_off() {
    let limits = Limits { body_bytes: 1 << 20, read_ms: 500, ..Limits::default() };
    let running = limited(limits).await;
    let address = running.listening.http();
    let talk = move || {
        for (part, pause) in [(1 << 20, 0), (1, 20)] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&head("Content-Length: 1000000000000\r\n")).unwrap();
            let (began, part) = (Instant::now(), vec![b' '; part]);
            let mut sent = 0;
            while stream.write_all(&part).is_ok() {
                sent += part.len();
                assert!(began.elapsed() < Duration::from_secs(10), "{sent} bytes were taken");
                std::thread::sleep(Duration::from_millis(pause));
            }
            // What it drops, and what the buffers of two sockets hold.
            assert!(sent < 64 << 20, "{sent}");
        }
    };
    tokio::task::spawn_blocking(talk).await.unwrap();
    assert_eq!(running.get("/v2/health/live").await.status, 200);
}

/// The text of an error's JSON, which is as long as the head says.
fn error_of(answer: &str) -> String {
    let (head, body) = answer.rsplit_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let head = head.to_ascii_lowercase();
    assert!(head.contains(&format!("\r\ncontent-length: {}", body.len())), "{answer}");
    assert!(head.contains("\r\ncontent-type: application/json"), "{answer}");
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    value["error"].as_str().unwrap().to_owned()
}

/// What is no request is told so, in the form of every other error.
#[tokio::test]
async fn heads_that_no_parser_reads_are_refused() {
    let running = limited(Limits::default()).await;
    let with = |headers: &str| head(headers);
    let target = |length: usize| {
        let path = "a".repeat(length - 1);
        format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let rows: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("a length that is none", with("Content-Length: -1\r\n"), "400", "Content-Length"),
        (
            "two lengths",
            with("Content-Length: 1\r\nContent-Length: 2\r\n"),
            "400",
            "Content-Length",
        ),
        ("a list of lengths", with("Content-Length: 1, 2\r\n"), "400", "Content-Length"),
        ("an unknown encoding", with("Transfer-Encoding: x\r\n"), "400", "Transfer-Encoding"),
        ("no header", with("no header\r\n"), "400", "header"),
        ("another version", b"GET / HTTP/3.0\r\n\r\n".to_vec(), "400", "HTTP/1.1"),
        ("no version", b"GET /\r\n\r\n".to_vec(), "400", "HTTP/1.1"),
        ("no words", b"\0\0\0\r\n\r\n".to_vec(), "400", "HTTP/1.1"),
        (
            "a handshake",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\x42".to_vec(),
            "400",
            "encrypted",
        ),
        ("a long target", target(65_535), "414", "65534"),
        ("many headers", with(&"a: b\r\n".repeat(101)), "431", "100 headers"),
        ("long headers", with(&format!("a: {}\r\n", "b".repeat(1 << 20))), "431", "400 KiB"),
    ];
    // Alone, behind a request that was answered, and behind one that is sent with it.
    let first = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    for (what, bytes, expected, word) in rows {
        for before in [
            vec![],
            vec![Step::Send(first.clone()), Step::Wait(Duration::from_millis(20))],
            vec![Step::Send(first.clone())],
        ] {
            let is_first = before.is_empty();
            let steps = before.into_iter().chain([Step::Send(bytes.clone())]).collect();
            let answer = converse(&running, steps).await;
            let last =
                &answer[answer.rfind("HTTP/1.1 4").unwrap_or_else(|| panic!("{what}: {answer}"))..];
            assert_eq!(answer.starts_with("HTTP/1.1 200 "), !is_first, "{what}: {answer}");
            assert_eq!(status(last), expected, "{what}: {answer}");
            assert!(error_of(last).contains(word), "{what}: {answer}");
        }
    }
    let answer = converse(&running, vec![Step::Send(target(65_534))]).await;
    assert_eq!(status(&answer), "404", "as long as may be");
}

/// Nobody keeps a connection by saying nothing on it, by not saying enough to tell which HTTP it is, or by being gone.
#[tokio::test]
async fn connections_that_do_not_go_on_are_closed() {
    let limits = Limits { idle_ms: 300, ..Limits::default() };
    let running = limited(limits).await;
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = "\0\0\0\x04\0\0\0\0\0";
    for said in ["", "P", &preface[..23], "GET /v2", preface, &format!("{preface}{settings}")] {
        let began = Instant::now();
        let answer = converse(&running, vec![Step::Send(said.into())]).await;
        assert_eq!(answer.is_empty(), !said.starts_with(preface), "{said:?}: {answer:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{said:?}");
    }
}

/// Nor by not reading what was asked for.
#[tokio::test]
async fn clients_that_take_no_answer_are_left() {
    const REQUESTS: usize = 3000;
    let limits = Limits { idle_ms: 300, ..Limits::default() };
    let running = limited(limits).await;
    let get = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS);
    let steps = vec![Step::Send(get), Step::Wait(Duration::from_millis(1500))];
    let answer = converse(&running, steps).await;
    let answered = answer.matches("HTTP/1.1 200 ").count();
    assert!((1..REQUESTS).contains(&answered), "{answered} of {} bytes", answer.len());
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
