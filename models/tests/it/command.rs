//! The command's exit codes and what it prints.

use std::process::{Command, Output};

use graphene_models::names;

use crate::scratch;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_graphene-models")).args(arguments).output();
    let Output { status, stdout, stderr } = command.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn list_prints_every_name() {
    let (code, out, _) = run(&["--list"]);
    assert_eq!(code, Some(0));
    let listed: Vec<&str> = out.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(listed, names().map(|(name, _)| name).collect::<Vec<_>>());
}

#[test]
fn a_model_is_written_quietly() {
    let path = scratch("command").join("mlp.onnx");
    let path = path.to_str().unwrap();
    let options = ["--seed", "7", "--layers", "2", "--width", "8", "--activation", "gelu"];
    let arguments = [["mlp", "-o", path].as_slice(), &options].concat();
    assert_eq!(run(&arguments), (Some(0), String::new(), String::new()));
    let first = std::fs::read(path).unwrap();
    assert_eq!(run(&arguments).0, Some(0));
    assert_eq!(std::fs::read(path).unwrap(), first);
}

#[test]
fn wrong_usage_is_two_and_failure_one() {
    let (code, _, complaint) = run(&["bert-bsae", "-o", "x.onnx"]);
    assert_eq!(code, Some(2));
    assert!(complaint.contains("bert-base"), "{complaint}");
    assert_eq!(run(&[]).0, Some(2));
    assert_eq!(run(&["mlp"]).0, Some(2));
    assert_eq!(run(&["mlp", "-o", "x.onnx", "--opset", "9"]).0, Some(2));
    assert_eq!(run(&["mlp", "-o", "x.onnx", "--activation", "cosine"]).0, Some(2));
    let absent = scratch("no-folder").join("absent").join("x.onnx");
    assert_eq!(run(&["mlp", "-o", absent.to_str().unwrap()]).0, Some(1));
}
