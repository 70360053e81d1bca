//! The command: what README tells of it, and how it ends.

use crate::harness::write_zoo;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A process that serves, killed when this is dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Where HTTP is, as `127.0.0.1:PORT`.
    pub(crate) http: String,
    /// Where gRPC is.
    pub(crate) grpc: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphene-serve"));
    command.args(args).args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--device", "cpu"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts the server and waits until it is ready.
pub(crate) fn start(args: &[&str]) -> Process {
    let mut child = command(args).stderr(Stdio::inherit()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let http = first.strip_prefix("http://").unwrap().to_owned();
    let second = lines.next().unwrap().unwrap();
    let grpc = second.strip_prefix("grpc://").unwrap().to_owned();
    Process { child, http, grpc }
}

impl Process {
    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// The exit code, once it has ended by itself.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<i32> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it still runs after {limit:?}");
    }
}

/// The shell lines of the code blocks of README's section about the server: the server's first.
fn lines_of_readme() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let section = readme.split("\n## Serve it\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("\n```").skip(1).step_by(2);
    let text: String =
        blocks.map(|block| block.trim_start_matches("\n")).collect::<Vec<_>>().join("\n");
    // A command goes on until the next one begins.
    let mut commands: Vec<String> = Vec::new();
    for line in text.lines() {
        match commands.last_mut() {
            Some(last) if !line.starts_with("curl") => {
                last.push('\n');
                last.push_str(line);
            }
            _ => commands.push(line.to_owned()),
        }
    }
    commands
}

#[test]
fn the_command_of_readme_answers_its_lines() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return;
    }
    let mut lines = lines_of_readme().into_iter();
    let server = lines.next().unwrap();
    let args: Vec<&str> =
        server.strip_prefix("graphene-serve ").unwrap().split_whitespace().collect();
    let process = start(&args);
    let mut count = 0;
    for line in lines {
        let asked = line
            .replace("localhost:8000", &process.http)
            .replace("curl -s", "curl -sS --fail-with-body");
        let output = Command::new("sh").args(["-c", &asked]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{text}{error}");
        let expected = match line.split_whitespace().nth(2).unwrap().rsplit_once('/').unwrap().1 {
            "infer" => "\"shape\":[1,3,64]",
            "embeddings" => "\"index\":1",
            other => panic!("what does {other} give?"),
        };
        assert!(text.contains(expected), "{line}\n{text}");
        count += 1;
    }
    assert!(count >= 2, "{count} lines");
}

/// Asks for an inference, and gives the status; `None` where there was no connection, or no answer.
fn ask(address: &str, rows: usize) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    let data = vec!["0.5"; rows * 4].join(",");
    let body = format!(
        r#"{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [{rows}, 4], "data": [{data}]}}]}}"#
    );
    let head = format!(
        "POST /v2/models/mlp-2x4/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn the_first_signal_drains_under_load() {
    let mut process = start(&["zoo:mlp-2x4"]);
    let ended = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (address, ended) = (process.http.clone(), Arc::clone(&ended));
            std::thread::spawn(move || {
                let (mut answered, mut refused) = (0, 0);
                while !ended.load(Ordering::Relaxed) {
                    match ask(&address, 100) {
                        Some(200) => answered += 1,
                        // It ends, or has ended.
                        Some(503) | None => refused += 1,
                        Some(other) => panic!("status {other}"),
                    }
                }
                (answered, refused)
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(10)), Some(0));
    ended.store(true, Ordering::Relaxed);
    for caller in callers {
        let (answered, _) = caller.join().unwrap();
        assert!(answered > 10, "{answered}");
    }
}

/// The whole answer to a request on a connection of its own, which the server closes.
fn answered(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const READY: &str = "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// While requests run, whoever asks is told that the server ends.
#[test]
fn a_server_that_drains_says_so() {
    let mut process = start(&["zoo:mlp-2x4"]);
    let body =
        r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
    let infer = format!(
        "POST /v2/models/mlp-2x4/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut running = TcpStream::connect(&process.http).unwrap();
    running.write_all(infer.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(answered(&process.http, READY).starts_with("HTTP/1.1 200 "));
    process.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));

    let ready = answered(&process.http, READY);
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains(r#"{"ready":false}"#), "{ready}");
    let refused = answered(&process.http, &[&infer, body].concat());
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("\r\nconnection: close\r\n"), "{refused}");
    assert!(refused.ends_with(r#"{"error":"the server is shutting down"}"#), "{refused}");
    // Clients of gRPC balance themselves: they go elsewhere where nobody listens.
    assert!(TcpStream::connect(&process.grpc).is_err());

    running.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    running.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(process.wait(Duration::from_secs(5)), Some(0));
}

/// With `--drain`, balancers see that the server isn't ready even where nothing runs; without it, it ends at once.
#[test]
fn the_ports_stay_open_for_as_long_as_is_said() {
    for (drain, least, most) in [("0", 0, 1000), ("2", 2000, 5000)] {
        let mut process = start(&["zoo:mlp-2x4", "--drain", drain]);
        let signalled = Instant::now();
        process.signal("TERM");
        if least > 0 {
            std::thread::sleep(Duration::from_millis(500));
            assert!(answered(&process.http, READY).starts_with("HTTP/1.1 503 "));
        }
        assert_eq!(process.wait(Duration::from_millis(most)), Some(0));
        assert!(signalled.elapsed() >= Duration::from_millis(least));
    }
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let mut process = start(&["zoo:mlp-2x4"]);
    // A request that never ends: half a body.
    let mut stream = TcpStream::connect(&process.http).unwrap();
    let head = "POST /v2/models/mlp-2x4/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    process.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(process.child.try_wait().unwrap().is_none(), "it waits for the request");
    process.signal("TERM");
    assert_eq!(process.wait(Duration::from_secs(5)), Some(130));
}

#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-process");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("empty")).unwrap();
    write_zoo("mlp-2x4", 0, &folder.join("bad"));
    std::fs::write(folder.join("bad/model.onnx"), "no protobuf").unwrap();
    std::fs::write(folder.join("config.toml"), "[limits]\nbody_bytez = 3").unwrap();
    std::fs::write(folder.join("tokens"), "\n").unwrap();
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let rows: Vec<(Vec<String>, &str)> = vec![
        (vec!["zoo:nothing".into()], "nothing"),
        (vec![at("missing")], "missing"),
        (vec![at("empty")], "model.onnx"),
        (vec![at("bad")], "bad"),
        (vec!["zoo:mlp-2x4".into(), "--config".into(), at("config.toml")], "body_bytez"),
        (vec!["zoo:mlp-2x4".into(), "--token-file".into(), at("tokens")], "token"),
        (vec!["zoo:mlp-2x4".into(), "--dtype".into(), "f13".into()], "f13"),
        (vec!["zoo:mlp-2x4".into(), "--dtype".into(), "f16".into()], "f16"),
        (vec!["zoo:mlp-2x4".into(), "--memory".into(), "8 boxes".into()], "8GiB"),
        (vec!["zoo:mlp-2x4".into(), "--tls-cert".into(), at("tokens")], "--tls-key"),
    ];
    for (args, expected) in rows {
        let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
        let output = command(&args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_graphene-serve"))
        .args(["zoo:mlp-2x4", "--device", "cpu", "--control", "--http", "0.0.0.0:0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--token-file"), "{text}");
}
