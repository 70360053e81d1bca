//! The examples run, and the server answers.
//!
//! Cargo builds examples with all tests of a package, but not with a single one of them: where an example is absent, its
//! test is reported as ignored.

use libtest_mimic::{Arguments, Failed, Trial};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

type Outcome = Result<(), Failed>;

/// A test: the example, and what it does with it.
type Row = (&'static str, fn(Command) -> Outcome);

const ROWS: [Row; 4] =
    [("minimal", minimal), ("pooled", pooled), ("tasks", tasks), ("server", server)];

fn main() {
    let trial = |(name, run): Row| {
        let program = path(name);
        let can = program.as_ref().is_some_and(|program| program.exists());
        let command = move || Command::new(program.expect("a test that runs has its example"));
        Trial::test(name, move || run(command())).with_ignored_flag(!can)
    };
    libtest_mimic::run(&Arguments::from_args(), ROWS.map(trial).into()).exit();
}

/// Where cargo puts an example: beside the folder that this test is in.
fn path(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    Some(test.parent()?.parent()?.join("examples").join(name))
}

fn check_prints(mut command: Command, lines: &[&str]) -> Outcome {
    let output = command.output()?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{}\n{out}{err}", output.status).into());
    }
    match lines.iter().find(|line| !out.contains(*line)) {
        Some(line) => Err(format!("no {line:?} in:\n{out}").into()),
        None => Ok(()),
    }
}

fn minimal(command: Command) -> Outcome {
    let lines =
        ["input input_ids: i64[batch, sequence]", "output last_hidden_state: f32[4, 4, 64]"];
    check_prints(command, &lines)
}

fn pooled(command: Command) -> Outcome {
    let lines = ["batch 3 ran at ", "f32[8, 4, 64]", "a cancelled request: "];
    check_prints(command, &lines)
}

fn tasks(command: Command) -> Outcome {
    check_prints(command, &["length 1: f32[1, 1, 64]", "length 6: f32[1, 6, 64]"])
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already cannot be ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(mut command: Command) -> Outcome {
    let mut server = Running(command.stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().ok_or("it has an output")?).read_line(&mut line)?;
    let address = line.trim().strip_prefix("http://").and_then(|line| line.strip_suffix("/run"));
    let address = address.ok_or_else(|| format!("{line:?} is no address"))?;
    let array = |data: &str| format!(r#"{{"shape": [1, 3], "data": [{data}]}}"#);
    let (ids, ones, zeros) = (array("7, 8, 9"), array("1, 1, 1"), array("0, 0, 0"));
    let whole =
        format!(r#"{{"input_ids": {ids}, "attention_mask": {ones}, "token_type_ids": {zeros}}}"#);
    let text = ask(address, &whole)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let answer: serde_json::Value = serde_json::from_str(body)?;
    let shape = &answer["last_hidden_state"]["shape"];
    if !text.starts_with("HTTP/1.1 200 ") || *shape != serde_json::json!([1, 3, 64]) {
        return Err(text.into());
    }
    let text = ask(address, &format!(r#"{{"input_ids": {ids}}}"#))?;
    if !text.starts_with("HTTP/1.1 400 ") || !text.contains("input \"attention_mask\"") {
        return Err(text.into());
    }
    Ok(())
}

/// What the server answers to a request, as it is.
fn ask(address: &str, body: &str) -> Result<String, Failed> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "POST /run HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
