//! How much memory the command takes, as Linux tells.

use crate::{QUICK, read};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The largest resident memory of a run, in bytes, as far as it was seen.
fn peak(arguments: &[&str]) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graphene-run"));
    command.args(arguments).args(QUICK).env("CUDA_VISIBLE_DEVICES", "").stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().expect("the binary is built");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().expect("it is our child").is_none() {
        let lines = read(&status);
        let line = lines.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(number.unwrap_or(0) << 10);
        sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("it has ended").success());
    peak
}

#[test]
fn weights_are_in_memory_once() {
    let weights = 8 * 2048 * 2048 * 4;
    let least = peak(&["zoo:mlp-2x8", "--exec", "fused"]);
    let most = peak(&["zoo:mlp-8x2048", "--exec", "fused"]);
    let beyond = most.saturating_sub(least);
    assert!(beyond > weights / 2, "{beyond} bytes: not all was seen");
    assert!(beyond < weights + weights / 4, "{beyond} bytes for weights of {weights}");
}
