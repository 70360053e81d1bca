//! Exit codes and messages.

use crate::{json, quick, run};
use expect_test::{Expect, expect};

const MLP: &str = "zoo:mlp-2x8";

#[track_caller]
fn check_fails(arguments: &[&str], code: i32, message: Expect) {
    let given = quick(arguments);
    message.assert_eq(&given.stderr);
    assert_eq!((given.code, given.stdout.as_str()), (code, ""));
}

/// As [`check_fails`], for a message that has a path in it.
#[track_caller]
fn check_says(arguments: &[&str], code: i32, message: &str) {
    let given = quick(arguments);
    assert_eq!(given.stderr, format!("error: {message}\n"));
    assert_eq!((given.code, given.stdout.as_str()), (code, ""));
}

#[test]
fn usage_is_code_2() {
    check_fails(
        &[MLP, "--batchs", "3"],
        2,
        expect![[r#"
            error: unexpected argument '--batchs' found

              tip: a similar argument exists: '--batch'

            Usage: graphene-run --batch <N> <MODEL>

            For more information, try '--help'.
        "#]],
    );
    check_fails(
        &[MLP, "--dim", "btch=3"],
        2,
        expect![[r#"
            error: --dim btch: the model has no such dim; it has batch (--batch)
        "#]],
    );
    check_fails(
        &["zoo:bert-base-tiny", "--dim", "seq=64"],
        2,
        expect![[r#"
            error: --dim seq: the model has no such dim; it has batch (--batch), sequence (--seq)
        "#]],
    );
    check_fails(
        &[MLP, "--dim", "batch=3", "--batch", "4"],
        2,
        expect![[r#"
            error: --batch: dimension `batch` cannot be 4: it is 3 by --dim
        "#]],
    );
    check_fails(
        &[MLP, "--exec", "fused,fused"],
        2,
        expect![[r#"
            error: --exec: `fused` is listed twice
        "#]],
    );
    check_fails(
        &[MLP, "--assert-fused", "GEMM=3"],
        2,
        expect![[r#"
            error: --assert-fused: `GEMM` is no family; they are View, Copy, Pointwise, MatMul, MLP, Normalization, Reduction, Gather, FMHA, Convolution, Recurrent, Control
        "#]],
    );
    check_fails(
        &[MLP, "--dtype", "f16"],
        2,
        expect![[r#"
            error: --dtype: f16 is for GPUs; give `--target`, or use `bf16` or `model`
        "#]],
    );
    let given = quick(&["zoo:bert-bse"]);
    assert_eq!(given.code, 2);
    assert!(given.stderr.contains("`bert-bse`; near it are: bert-base"), "{}", given.stderr);
}

/// On a CPU weights are rounded to bf16, and outputs agree with those of fp32 within what that may do.
#[test]
fn weights_are_rounded_to_bf16_on_a_cpu() {
    let given = ["zoo:bert-base-tiny", "--device", "cpu", "--profile"];
    let [single, narrow] =
        ["f32", "bf16"].map(|dtype| json(&[&given[..], &["--dtype", dtype]].concat()));
    let kernels = |report: &serde_json::Value| report["executors"][0]["kernels"].to_string();
    assert_eq!((&narrow["exit_code"], &narrow["dtype"]), (&0.into(), &"bf16".into()), "{narrow}");
    assert!(
        kernels(&narrow).contains("bf16-gemm") && !kernels(&single).contains("bf16"),
        "{narrow}"
    );
}

#[test]
fn bad_values_name_their_flag() {
    let rows = [
        (["--batch", "0"], "'--batch <N>'"),
        (["--seq", "-1"], "'--seq <N>'"),
        (["--dim", "batch"], "'--dim <NAME=N>'"),
        (["--dim", "batch=-1"], "'--dim <NAME=N>'"),
        (["--input", "x=3"], "'--input <NAME=@FILE>'"),
        (["--rtol", "-1"], "'--rtol <X>'"),
        (["--atol", "nan"], "'--atol <X>'"),
        (["--timeout", "0s"], "'--timeout <TIME>': leaves no time"),
        (["--warmup", "3"], "'--warmup <TIME>'"),
        (["--iterations", "0"], "'--iterations <N>'"),
        (["--percentiles", "50,101"], "'--percentiles <LIST>'"),
        (["--threads", "0"], "'--threads <N>'"),
        (["--device", "tpu"], "'--device <DEVICE>'"),
        (["--target", "sm_1"], "'--target <TARGET>'"),
        (["--exec", "fast"], "'--exec <LIST>'"),
        (["--dtype", "tf64"], "[possible values: model, f32, tf32, f16, bf16]"),
        (["--buckets", "batch"], "'--buckets <NAME=N,N>'"),
        (["--emit", "ptx"], "'--emit <STAGE[=PATH]>'"),
        (["--emit", "asm"], "'--emit <STAGE[=PATH]>'"),
        (["--assert-fused", "FMHA"], "'--assert-fused <FAMILY=N>'"),
    ];
    for (flags, name) in rows {
        let given = run(&[&[MLP], &flags[..]].concat());
        assert_eq!(given.code, 2, "{flags:?}");
        // A value that reads as a flag is told as one.
        let told = given.stderr.contains(name) || flags[1].starts_with('-');
        assert!(told, "{flags:?}: {}", given.stderr);
    }
    assert_eq!(run(&[]).code, 2);
}

#[test]
fn models_that_cannot_be_read_are_code_7_or_3() {
    check_fails(
        &["/nowhere/model.onnx"],
        7,
        expect![[r#"
            error: cannot read /nowhere/model.onnx: No such file or directory (os error 2)
        "#]],
    );
}

#[test]
fn gates_are_code_5() {
    let given = quick(&[MLP, "--assert-fused", "MLP=1", "--assert-launches", "1"]);
    assert_eq!(given.code, 0, "{}", given.stdout);
    let given = quick(&[MLP, "--assert-fused", "FMHA=1", "--assert-fused", "mlp=1"]);
    assert_eq!(given.code, 5);
    let gates = given.stdout.lines().filter(|line| line.starts_with("gate"));
    assert_eq!(
        gates.collect::<Vec<_>>(),
        [
            "gate fused FMHA: expected 1, found 0: FAILED",
            "gate fused MLP: expected 1, found 1: holds"
        ]
    );
    // A plan for another machine is gated as well.
    assert_eq!(run(&[MLP, "--target", "sm_90a", "--assert-launches", "0"]).code, 5);
    assert_eq!(run(&[MLP, "--emit", "groups", "--assert-launches", "0"]).code, 5);
}

#[test]
fn missing_devices_are_code_6() {
    // Without a driver it says what to install; where there is one, that it knows of no GPU.
    for (device, name) in [("cuda", "cuda:0"), ("cuda:1", "cuda:1")] {
        let given = quick(&[MLP, "--device", device]);
        let said = given.stderr.strip_prefix(&format!("error: --device {name}: "));
        let said = said.unwrap_or_else(|| panic!("{}", given.stderr));
        let install =
            "not found: the CUDA driver (libcuda.so.1; install NVIDIA's driver, 570 or newer)\n";
        assert!(said == install || said.starts_with("there is no GPU "), "{said}");
        assert_eq!((given.code, given.stdout.as_str()), (6, ""));
    }
}

#[test]
fn targets_and_devices_go_together() {
    check_fails(
        &[MLP, "--device", "cuda", "--target", "cpu"],
        2,
        expect![[r#"
            error: --target: a plan for the CPU does not run on a GPU; leave out one of --target and --device
        "#]],
    );
    assert_eq!(quick(&[MLP, "--device", "cpu", "--target", "sm_90a"]).code, 0);
}

/// What is missing is no error there: it says what to install.
#[test]
fn the_doctor_finds_what_is_missing() {
    let given = run(&["--doctor"]);
    assert_eq!(given.code, 0);
    let row = |name: &str| {
        let line = given.stdout.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name} in {}", given.stdout)).to_owned()
    };
    for (name, install) in [
        ("CUDA driver", "the CUDA driver (libcuda.so.1; install "),
        ("NVRTC", "NVRTC (libnvrtc.so; install "),
        ("cuBLASLt", "cuBLASLt (libcublasLt.so; install "),
        ("cuDNN", "cuDNN (libcudnn.so; install "),
    ] {
        let missing = row(name).ends_with(" not found");
        let told = given.stdout.contains(&format!("to install     {install}"));
        assert_eq!(missing, told, "{}", given.stdout);
    }
    assert!(row("executors").ends_with("(all on the CPU)"), "{}", given.stdout);
    assert!(given.stderr.starts_with("note: --device auto takes the CPU: "), "{}", given.stderr);
}

/// The folder of compiled kernels is the one that the environment asks for.
#[test]
fn the_doctor_counts_compiled_kernels() {
    let folder = crate::Folder::new();
    for (name, bytes) in
        [("a.cubin", "123"), ("b.cubin", "45"), (".c.cubin.0.tmp", "6"), ("d", "7")]
    {
        std::fs::write(folder.path(name), bytes).unwrap();
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_graphene-run"));
    let output = command.arg("--doctor").env("GRAPHENE_CACHE", folder.path("")).output();
    let stdout = String::from_utf8(output.expect("the binary is built").stdout).unwrap();
    let expected = format!("kernel cache   {}: 2 entries, 5 B\n", folder.path(""));
    assert!(stdout.contains(&expected), "{stdout}");
}

#[test]
fn time_that_is_over_is_code_124() {
    let given = run(&[MLP, "--duration", "60s", "--timeout", "200ms"]);
    assert_eq!(given.code, 124);
    let said = given.stderr.lines().last().unwrap_or_default();
    assert!(said.starts_with("error: timed out after 200 ms while "), "{}", given.stderr);
}

#[test]
fn what_needs_no_model_ends_well() {
    for (flag, known) in
        [("--list-ops", "MatMul"), ("--help", "--assert-launches"), ("--version", "graphene-run")]
    {
        let given = run(&[flag]);
        assert_eq!((given.code, given.stderr.as_str()), (0, ""), "{flag}");
        assert!(given.stdout.contains(known), "{flag}: {}", given.stdout);
    }
}

#[test]
fn what_needs_no_model_is_json_if_asked_for() {
    for (flag, name) in [("--list-ops", "operators"), ("--doctor", "found")] {
        let given = run(&[flag, "--json"]);
        let table: serde_json::Value = serde_json::from_str(&given.stdout).expect(flag);
        let (rows, lines) = (table[name].as_array().expect(flag), run(&[flag]).stdout);
        // The table has a head where it says how many operators there are.
        let head = usize::from(flag == "--list-ops");
        assert_eq!(rows.len(), lines.lines().count() - head, "{table:#}");
        assert_eq!((given.code, &table["schema"]), (0, &serde_json::json!(2)));
    }
}

/// What cannot be written to stdout is said, and is no success.
#[test]
#[cfg(target_os = "linux")]
fn a_stdout_that_is_full_is_code_7() {
    use std::process::Command;
    let program = &[MLP, "--batch", "1", "--emit", "program"];
    for flags in [&["--help"][..], &["--version"], &["--list-ops"], program] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphene-run"));
        let output = command.args(flags).stdout(full).output().expect("the binary is built");
        let said = String::from_utf8(output.stderr).unwrap();
        let wanted = "error: cannot write to stdout: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), said.as_str()), (Some(7), wanted), "{flags:?}");
    }
}

/// A reader that goes away ends the command, and is no error.
#[test]
#[cfg(unix)]
fn readers_may_go_away() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_graphene-run"))
        .args([MLP, "--batch", "1", "--emit", "program"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary is built");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &[][..]));
}

#[test]
fn files_are_written_by_one_flag_each() {
    let folder = crate::Folder::new();
    let path = folder.path("out");
    check_says(
        &[MLP, "--trace", &path, "--report", &path],
        2,
        &format!("--report: {path} is written by another flag already"),
    );
    let emits = [format!("import={path}"), format!("dot={path}")];
    check_says(
        &[MLP, "--emit", &emits[0], "--emit", &emits[1]],
        2,
        &format!("--emit: {path} is written by another flag already"),
    );
    assert!(folder.files().is_empty());
}

#[test]
fn what_is_read_is_not_overwritten() {
    let folder = crate::Folder::new();
    let (model, data) = (folder.path("m.onnx"), folder.path("data"));
    let fixture = crate::fixtures::fixture("mlp-8x64");
    std::fs::copy(fixture.0, &model).unwrap();
    std::fs::create_dir(&data).unwrap();
    let input = format!("{data}/input_0.pb");
    std::fs::copy(format!("{}/input_0.pb", fixture.1), &input).unwrap();
    let before = [&model, &input].map(|path| std::fs::read(path).unwrap());
    let around = format!("{data}/../m.onnx");
    for (flag, path) in [("--report", &model), ("--trace", &around), ("--save-outputs", &input)] {
        let reason = format!("{flag}: {path} is read, and would be overwritten");
        check_says(&[&model, "--data", &data, flag, path], 2, &reason);
    }
    assert_eq!([&model, &input].map(|path| std::fs::read(path).unwrap()), before);
}

#[test]
fn data_in_no_folder_is_not_found() {
    check_says(
        &[MLP, "--data", "/nonexist"],
        7,
        "/nonexist: No such file or directory (os error 2)",
    );
}

#[test]
fn data_with_a_gap_is_not_taken_for_less() {
    let (model, data) = crate::fixtures::fixture("mlp-8x64");
    let folder = crate::Folder::new();
    let (path, gap) = (folder.path(""), folder.path("output_0.pb"));
    for (from, to) in [("input_0.pb", "input_0.pb"), ("output_0.pb", "output_1.pb")] {
        std::fs::copy(format!("{data}/{from}"), folder.path(to)).unwrap();
    }
    let reason = format!("{gap}: No such file or directory (os error 2)");
    check_says(&[&model, "--data", path.trim_end_matches('/')], 7, &reason);
}

/// However the path of a file is spelled.
#[test]
fn what_is_written_is_not_overwritten() {
    let folder = crate::Folder::new();
    let (page, again) = (folder.path("a"), folder.path("./a"));
    let reason = format!("--report: {again} is written by another flag already");
    check_says(&[MLP, "--trace", &page, "--report", &again], 2, &reason);
}

/// Pipes, which say not how long they are, are read to their end; weights in one are refused, as it may have none.
#[cfg(unix)]
#[test]
fn pipes_are_read_to_their_end() {
    let (model, _) = crate::fixtures::fixture("mlp-8x64");
    let script = r#"cat "$1" | "$0" /dev/stdin --iterations 1 --warmup 0ms --duration 0ms"#;
    let mut shell = std::process::Command::new("sh");
    let shell = shell.args(["-c", script, env!("CARGO_BIN_EXE_graphene-run"), &model]);
    let output = shell.output().expect("there is a shell");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let folder = crate::Folder::new();
    let model = folder.path("m.onnx");
    let built = graphene_models::build("mlp-8x64", &graphene_models::Options::default()).unwrap();
    built.write_as(model.as_ref(), graphene_models::Storage::External, &mut |_, _| {}).unwrap();
    let weights = folder.files().into_iter().find(|name| name != "m.onnx").expect("two files");
    std::fs::remove_file(folder.path(&weights)).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.path(&weights)).status();
    assert!(made.expect("there is mkfifo").success());
    let given = quick(&[&model]);
    assert_eq!(given.code, 3, "{}", given.stderr);
    assert!(given.stderr.contains(&weights), "{}", given.stderr);
}

#[test]
fn weights_in_files_of_their_own_are_not_overwritten() {
    let folder = crate::Folder::new();
    let model = folder.path("m.onnx");
    let built = graphene_models::build("mlp-8x64", &graphene_models::Options::default()).unwrap();
    built.write_as(model.as_ref(), graphene_models::Storage::External, &mut |_, _| {}).unwrap();
    let weights = folder.files().into_iter().find(|name| name != "m.onnx").expect("two files");
    let (weights, before) = (folder.path(&weights), std::fs::read(folder.path(&weights)).unwrap());
    let reason = format!("--trace: {weights} is read, and would be overwritten");
    check_says(&[&model, "--trace", &weights], 2, &reason);
    assert_eq!(std::fs::read(&weights).unwrap(), before);
}

#[test]
fn plans_have_no_outputs_to_save() {
    let folder = crate::Folder::new();
    for flags in [["--target", "sm_90a"], ["--emit", "groups"]] {
        let given = quick(&[MLP, flags[0], flags[1], "--save-outputs", &folder.path("out.npz")]);
        assert_eq!(given.code, 2, "{flags:?}");
        assert!(given.stderr.starts_with("error: --save-outputs: "), "{}", given.stderr);
    }
}

/// What only a run gives is refused, rather than left out, where there is none.
#[test]
fn plans_are_neither_timed_nor_run() {
    let elsewhere = "--target sm_90a is not what this machine runs";
    for (only, why) in [
        (["--target", "sm_90a"], elsewhere),
        (["--emit", "groups"], "--emit prints a stage and ends"),
    ] {
        for (flags, what) in [
            (&["--profile"][..], "nothing is run"),
            (&["--buckets", "batch=1,8"], "nothing is run"),
            (&["--exec", "fused,reference"], "the reference has no plan"),
        ] {
            let message = format!("{}: the model is only planned, and {what}: {why}", flags[0]);
            check_says(&[&[MLP], &only[..], flags].concat(), 2, &message);
        }
    }
    // Of several executors the first one's plan is printed.
    let groups = |exec: &str| run(&[MLP, "--emit", "groups", "--exec", exec]).stdout;
    assert_eq!(groups("fused,library").lines().filter(|line| line.starts_with('#')).count(), 1);
    assert_eq!(groups("library").lines().filter(|line| line.starts_with('#')).count(), 6);
}

#[test]
fn threads_are_bounded() {
    let given = run(&[MLP, "--threads", "100000"]);
    assert_eq!(given.code, 2);
    assert!(given.stderr.contains("expected a number from 1 to 1024"), "{}", given.stderr);
}

#[test]
#[cfg(unix)]
fn folders_are_no_files() {
    let folder = crate::Folder::new();
    let path = folder.path("");
    check_says(
        &[MLP, "--inputs", &path],
        2,
        &format!(
            "--inputs: {path} is a folder, not a .npz archive; --data DIR reads a folder's input_i.pb"
        ),
    );
}

/// A device keeps being one, and a link keeps being one: the file that it names is written.
#[test]
#[cfg(target_os = "linux")]
fn devices_and_links_are_written_through() {
    use std::os::unix::fs::symlink;
    let folder = crate::Folder::new();
    // Behind a link, so that a command that replaces what it is given would replace the link alone.
    let (full, file, link) = (folder.path("full"), folder.path("file"), folder.path("link"));
    symlink("/dev/full", &full).unwrap();
    let given = quick(&[MLP, "--save-outputs", &full]);
    let said = format!("error: cannot write {full}: No space left on device (os error 28)\n");
    assert!(given.code == 7 && given.stderr.contains(&said), "{}", given.stderr);
    // What was found is told all the same.
    assert!(given.stdout.contains("fused agrees with library"), "{}", given.stdout);
    std::fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    assert_eq!(quick(&[MLP, "--emit", &format!("groups={link}")]).code, 0);
    assert!(crate::read(&file).starts_with("#0 MLP"), "{}", crate::read(&file));
    for path in [&full, &link] {
        assert!(std::fs::symlink_metadata(path).unwrap().is_symlink(), "{path}");
    }
    assert_eq!(folder.files(), ["file", "full", "link"]);
}
