//! Three replicas behind HAProxy, by the file that is deployed: one of them is killed, and small requests don't notice.

use crate::grpc_client::messages::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use crate::grpc_client::{Caller, SERVICE, ones};
use crate::process::{Process, start};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

/// What is sent again: less than `tune.bufsize`, with space for the head.
const FITS_THE_BUFFER: usize = 60_000;

/// More than `tune.bufsize` of the file: such a request is not sent again.
const OVER_THE_BUFFER: usize = 200_000;

/// HAProxy's process, killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// HAProxy before three replicas.
struct Balanced {
    replicas: Vec<Process>,
    _haproxy: Killed,
    http: SocketAddr,
    grpc: SocketAddr,
    stats: SocketAddr,
}

/// An answer by HTTP/1.1: the status and the body.
type Answer = (u16, Vec<u8>);

fn haproxy() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    folders.map(|folder| folder.join("haproxy")).find(|file| file.is_file())
}

/// Three replicas and HAProxy, once it answers.
fn balanced(binary: &Path, model: &str) -> Balanced {
    // The test stops in the middle of bodies, for longer than is usually allowed.
    let name = format!("haproxy-{}.toml", model.replace(':', "-"));
    let config = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&config, "[limits]\nread_ms = 60000\n").unwrap();
    let config = config.to_str().unwrap();
    let mut replicas: Vec<Process> = (0..3)
        .map(|_| {
            let args = [model, "--threads", "1", "--log", "error", "--config", config];
            start(&[&args[..], &["--drain", "2"]].concat())
        })
        .collect();
    // HAProxy cannot say which port it got, so it is given one that was free: somebody else may be faster.
    for _ in 0..5 {
        let free: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let [http, grpc, stats] = [0, 1, 2].map(|index| free[index].local_addr().unwrap());
        drop(free);
        let mut command = Command::new(binary);
        command
            .args(["-db", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/haproxy.cfg")])
            .env("LISTEN_HTTP", http.to_string())
            .env("LISTEN_GRPC", grpc.to_string())
            .env("LISTEN_STATS", stats.to_string())
            .stdout(Stdio::null());
        for (number, replica) in replicas.iter().enumerate() {
            command
                .env(format!("REPLICA_{}_HTTP", number + 1), &replica.http)
                .env(format!("REPLICA_{}_GRPC", number + 1), &replica.grpc);
        }
        let mut haproxy = Killed(command.spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until && haproxy.0.try_wait().unwrap().is_none() {
            if TcpStream::connect(http).is_ok() {
                let replicas = std::mem::take(&mut replicas);
                return Balanced { replicas, _haproxy: haproxy, http, grpc, stats };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("HAProxy did not start");
}

/// The head of an inference.
fn head(length: usize) -> String {
    format!(
        "POST {INFER} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // Longer than anything may take: a test that would hang fails.
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// What chunks are made of.
fn unchunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&chunks[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunks[line + 2..][..size]);
        chunks = &chunks[line + 2 + size + 2..];
    }
}

/// Reads an answer to its end.
fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    parsed(&bytes)
}

fn parsed(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let mut body = bytes[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if let Some(length) = length {
        assert_eq!(body.len(), length.parse::<usize>().unwrap(), "{head}");
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

fn ask(address: SocketAddr, body: &str) -> Answer {
    let mut stream = connect(address);
    stream.write_all(head(body.len()).as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    answer(stream)
}

const INFER: &str = "/v2/models/bert-base-tiny/infer";

/// Texts that are asked for, so many different ones.
const TEXTS: usize = 16;

/// A request of this number, for one of the texts.
fn request(number: usize) -> String {
    let token = |index: usize| 3 + (number % TEXTS * 37 + index * 11) % 900;
    let ids: Vec<String> = (0..8).map(|index| token(index).to_string()).collect();
    let tensor = |name: &str, data: &str| {
        format!(r#"{{"name": "{name}", "datatype": "INT64", "shape": [1, 8], "data": [{data}]}}"#)
    };
    let (ones, zeros) = (["1"; 8].join(","), ["0"; 8].join(","));
    let inputs = [
        tensor("input_ids", &ids.join(",")),
        tensor("attention_mask", &ones),
        tensor("token_type_ids", &zeros),
    ];
    format!(r#"{{"id": "{number}", "inputs": [{}]}}"#, inputs.join(","))
}

/// The numbers of all outputs of an answer, by the names of the outputs.
fn numbers(body: &[u8]) -> Vec<(String, Vec<f64>)> {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap();
    let outputs = json["outputs"].as_array().unwrap().iter();
    let data = |output: &serde_json::Value| {
        let data = output["data"].as_array().unwrap().iter();
        data.map(|number| number.as_f64().unwrap()).collect()
    };
    outputs.map(|output| (output["name"].as_str().unwrap().to_owned(), data(output))).collect()
}

/// Whether an answer is that of this request, whose results are `expected`: up to the rounding of sums, which depends on
/// what else was in the batch.
fn check_right(number: usize, (status, body): &Answer, expected: &[(String, Vec<f64>)]) {
    let text = String::from_utf8_lossy(body);
    assert_eq!(*status, 200, "request {number}: {text}");
    let json: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(json["id"], number.to_string());
    let found = numbers(body);
    assert_eq!(found.len(), expected.len());
    for ((name, found), (expected_name, expected)) in found.iter().zip(expected) {
        assert_eq!((name, found.len()), (expected_name, expected.len()));
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() < 1e-4,
                "request {number}, {name}: {found}, {expected}"
            );
        }
    }
}

/// A column of HAProxy's statistics for a row such as `http_replicas`, `replica1`.
fn statistic(balanced: &Balanced, proxy: &str, server: &str, column: &str) -> String {
    let mut stream = connect(balanced.stats);
    stream.write_all(b"GET /;csv HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let (status, body) = answer(stream);
    assert_eq!(status, 200);
    let text = String::from_utf8(body).unwrap();
    let mut lines = text.trim_start_matches("# ").lines();
    let at = lines.next().unwrap().split(',').position(|name| name == column).unwrap();
    let row = lines.find(|line| line.starts_with(&format!("{proxy},{server},"))).unwrap();
    row.split(',').nth(at).unwrap().to_owned()
}

/// Waits until HAProxy counts as many requests at each replica.
fn wait_for_requests(balanced: &Balanced, proxy: &str, each: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    let servers = ["replica1", "replica2", "replica3"];
    while !servers.iter().all(|name| statistic(balanced, proxy, name, "scur") == each) {
        assert!(Instant::now() < until, "requests are not spread over the replicas");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends the same request often enough that one goes to the first replica, which stands still.
fn until_one_waits(balanced: &Balanced, body: &str) -> Vec<JoinHandle<Answer>> {
    let waiting =
        || -> usize { statistic(balanced, "http_replicas", "replica1", "scur").parse().unwrap() };
    let (before, mut callers) = (waiting(), Vec::new());
    let until = Instant::now() + Duration::from_secs(10);
    while waiting() == before || !callers.iter().any(JoinHandle::is_finished) {
        assert!(Instant::now() < until, "no request waits at the first replica");
        for _ in 0..8 {
            let (address, body) = (balanced.http, body.to_owned());
            callers.push(std::thread::spawn(move || ask(address, &body)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    callers
}

/// Sends requests from eight threads, and runs `between` when a quarter of them is answered.
fn small_requests(http: SocketAddr, expected: &[Vec<(String, Vec<f64>)>], between: impl FnOnce()) {
    const REQUESTS: usize = 600;
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = AtomicBool::new(false);
    let caller = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= REQUESTS || failed.load(Ordering::Relaxed) {
                break;
            }
            // A check that fails ends the others as well, and their wait.
            let right = std::panic::catch_unwind(|| {
                let answer = ask(http, &request(number));
                check_right(number, &answer, &expected[number % expected.len()]);
            });
            failed.fetch_or(right.is_err(), Ordering::Relaxed);
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(caller);
        }
        while done.load(Ordering::Relaxed) < REQUESTS / 4 && !failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        between();
    });
    assert!(!failed.load(Ordering::Relaxed), "a small request failed");
    assert_eq!(done.load(Ordering::Relaxed), REQUESTS);
}

#[test]
fn small_requests_survive_a_killed_replica_and_large_ones_are_told() {
    let Some(binary) = haproxy() else {
        eprintln!("skipped: haproxy is not installed");
        return;
    };
    let mut balanced = balanced(&binary, "zoo:bert-base-tiny");
    let expected: Vec<_> = (0..TEXTS)
        .map(|number| {
            let (status, body) = ask(balanced.replicas[0].http.parse().unwrap(), &request(number));
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
            numbers(&body)
        })
        .collect();

    // Three large requests, half sent: one at each replica, since each goes where the fewest are.
    let large = format!("{}{}", request(0), " ".repeat(OVER_THE_BUFFER));
    let half = large.len() / 2;
    let streams: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = connect(balanced.http);
            stream.write_all(head(large.len()).as_bytes()).unwrap();
            stream.write_all(&large.as_bytes()[..half]).unwrap();
            stream
        })
        .collect();
    wait_for_requests(&balanced, "http_replicas", "1");

    // Whole requests, of which some run at the replica that stands still when it is killed.
    balanced.replicas[0].signal("STOP");
    let fitting = until_one_waits(&balanced, &format!("{:1$}", request(0), FITS_THE_BUFFER));
    let whole = until_one_waits(&balanced, &large);

    let victim = &mut balanced.replicas[0].child;
    small_requests(balanced.http, &expected, || victim.kill().unwrap());
    let retries = statistic(&balanced, "http_replicas", "BACKEND", "wredis");
    assert!(retries.parse::<u64>().unwrap() > 0, "no small request was sent to another replica");
    for caller in fitting {
        check_right(0, &caller.join().unwrap(), &expected[0]);
    }
    let mut statuses = Vec::new();
    for caller in whole {
        let answer = caller.join().unwrap();
        statuses.push(answer.0);
        if answer.0 != 502 {
            check_right(0, &answer, &expected[0]);
        }
    }
    assert!(statuses.contains(&502) && statuses.contains(&200), "{statuses:?}");

    let mut answered = 0;
    for mut stream in streams {
        // The one whose replica is gone may be closed already, with 502 or without an answer.
        let _ = stream.write_all(&large.as_bytes()[half..]);
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes);
        if read.is_ok() && !bytes.is_empty() && !bytes.starts_with(b"HTTP/1.1 502 ") {
            check_right(0, &parsed(&bytes), &expected[0]);
            answered += 1;
        }
    }
    assert_eq!(answered, 2);

    for _ in 0..6 {
        let answer = ask(balanced.http, &large);
        check_right(0, &answer, &expected[0]);
    }
    assert!(statistic(&balanced, "http_replicas", "replica1", "status").starts_with("DOWN"));
    assert_eq!(statistic(&balanced, "http_replicas", "replica2", "status"), "UP");
}

/// HAProxy is told by the replica itself, over a connection that it takes, and no client sees that it ends.
#[test]
fn no_request_is_lost_when_a_replica_is_told_to_end() {
    let Some(binary) = haproxy() else {
        eprintln!("skipped: haproxy is not installed");
        return;
    };
    let mut balanced = balanced(&binary, "zoo:bert-base-tiny");
    let expected: Vec<_> =
        (0..TEXTS).map(|number| numbers(&ask(balanced.http, &request(number)).1)).collect();
    let replica = |column| statistic(&balanced, "http_replicas", "replica1", column);
    small_requests(balanced.http, &expected, || {
        balanced.replicas[0].signal("TERM");
        let until = Instant::now() + Duration::from_secs(10);
        while !replica("status").starts_with("DOWN") {
            assert!(Instant::now() < until, "it is still up");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!((&*replica("check_status"), &*replica("check_code")), ("L7STS", "503"));
    });
    assert_eq!(balanced.replicas[0].wait(Duration::from_secs(10)), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_by_grpc_survive_a_killed_replica_and_streams_are_told() {
    let Some(binary) = haproxy() else {
        eprintln!("skipped: haproxy is not installed");
        return;
    };
    let mut balanced = balanced(&binary, "zoo:mlp-2x4");
    let caller = Caller::at(balanced.grpc).await;
    let expected: ModelInferResponse = Caller::at(balanced.replicas[1].grpc.parse().unwrap())
        .await
        .call("ModelInfer", ones(2))
        .await
        .unwrap();

    // Three streams, one at each replica; an answer comes before the next request is sent.
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let requests = futures_util::stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|asked: ModelInferRequest| (asked, receiver))
        });
        sender.send(ones(2)).await.unwrap();
        let mut answers: Streaming<ModelStreamInferResponse> =
            caller.stream(&format!("/{SERVICE}/ModelStreamInfer"), requests).await;
        let first = answers.next().await.unwrap().unwrap().infer_response.unwrap();
        assert_eq!(first.raw_output_contents, expected.raw_output_contents);
        streams.push((sender, answers));
    }
    wait_for_requests(&balanced, "grpc_replicas", "1");

    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (caller, expected) = (caller.clone(), expected.clone());
            tokio::spawn(async move {
                let mut broken = 0;
                for _ in 0..200 {
                    let answer: Result<ModelInferResponse, Status> =
                        caller.call("ModelInfer", ones(2)).await;
                    match answer {
                        Ok(answer) => {
                            let outputs = answer.raw_output_contents;
                            assert_eq!(outputs, expected.raw_output_contents);
                        }
                        // Its answer had begun; see the file.
                        Err(_) => broken += 1,
                    }
                }
                broken
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(30)).await;
    balanced.replicas[0].child.kill().unwrap();
    let mut broken = 0;
    for calls in calls {
        broken += calls.await.unwrap();
    }
    // One that each caller waited for, at most; all 1600 were sent, and none was answered wrongly.
    assert!(broken <= 8, "{broken} calls");
    let retries = statistic(&balanced, "grpc_replicas", "BACKEND", "wredis");
    assert!(retries.parse::<u64>().unwrap() > 0, "no call was sent to another replica");

    let mut broken = 0;
    for (sender, mut answers) in streams {
        let _ = sender.send(ones(2)).await;
        match answers.next().await.unwrap() {
            Ok(answer) => {
                let outputs = answer.infer_response.unwrap().raw_output_contents;
                assert_eq!(outputs, expected.raw_output_contents);
            }
            // HAProxy resets the stream: which code that is differs between clients.
            Err(_) => broken += 1,
        }
    }
    assert_eq!(broken, 1);
}
