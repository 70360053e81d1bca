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
    fn wait(&mut self, limit: Duration) -> Option<i32> {
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
