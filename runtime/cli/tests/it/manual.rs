//! What is made of the command line's description: help, completions, the manual page; and the zoo's table.

use crate::{Folder, quick, run};
use std::fs;
use std::process::{Command, Stdio};

/// Whether there is a program of this name; says so where there is none.
fn has(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        eprintln!("skipped: {program} is not here");
    }
    found.is_ok()
}

fn completions(shell: &str) -> String {
    let given = run(&["--completions", shell]);
    assert_eq!((given.code, &*given.stderr), (0, ""), "{shell}");
    given.stdout
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = completions(shell);
        assert!(
            script.contains("graphene-run") && script.contains("save-outputs"),
            "{shell}: {script}"
        );
    }
    let given = run(&["--completions", "tcsh"]);
    assert!(
        given.code == 2 && given.stderr.contains("[possible values: bash, elvish, fish"),
        "{}",
        given.stderr
    );
}

#[test]
fn bash_completes_flags_and_values() {
    if !has("bash") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("graphene-run.bash"), completions("bash")).unwrap();
    let complete = |words: &str| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _graphene__run graphene-run \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            folder.path("graphene-run.bash")
        );
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("output is text").trim().to_owned()
    };
    assert_eq!(complete("graphene-run --list"), "--list-ops --list-zoo");
    assert_eq!(complete("graphene-run model.onnx --dtype b"), "bf16");
}

#[test]
fn other_shells_read_their_completions() {
    let folder = Folder::new();
    for shell in ["zsh", "fish"] {
        if has(shell) {
            let path = folder.path(shell);
            fs::write(&path, completions(shell)).unwrap();
            let output = Command::new(shell).args(["-n", &path]).output().expect("it runs");
            assert!(
                output.status.success(),
                "{shell}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[test]
fn the_manual_page_has_all_flags() {
    let page = run(&["--man"]);
    assert_eq!((page.code, &*page.stderr), (0, ""));
    let help = run(&["--help"]).stdout;
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: Vec<&str> = flags.filter_map(|line| line.split([' ', '=']).next()).collect();
    assert!(flags.len() > 40, "{flags:?}");
    for flag in flags {
        let roff = format!("\\-\\-{}", flag.replace('-', "\\-"));
        assert!(page.stdout.contains(&roff), "{flag} is not in {}", page.stdout);
    }
    for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES"] {
        assert!(page.stdout.contains(&format!(".SH {section}\n")), "{section}");
    }
    if !has("groff") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("page.1"), &page.stdout).unwrap();
    let arguments = ["-man", "-Tutf8", "-ww", "-z", &folder.path("page.1")];
    let output = Command::new("groff").args(arguments).output().expect("it runs");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_help_has_examples() {
    let help = run(&["--help"]).stdout;
    let examples = help.split("Examples:\n").nth(1).expect("examples");
    assert!(
        examples.lines().filter(|line| line.starts_with("  graphene-run ")).count() >= 5,
        "{examples}"
    );
}

#[test]
fn the_zoo_is_listed_with_sizes() {
    let table = run(&["--list-zoo"]);
    assert_eq!((table.code, &*table.stderr), (0, ""));
    let row = table.stdout.lines().find(|line| line.starts_with("zoo:bert-base-tiny "));
    let row = row.unwrap_or_else(|| panic!("{}", table.stdout));
    assert!(row.contains(" 168 k   673 kB  BERT with 2 layers of 64"), "{row}");
    let listed = json_of_zoo();
    let names: Vec<&str> = listed.iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"lstm") && names.len() + 1 == table.stdout.lines().count(),
        "{names:?}"
    );
    let tiny = listed.iter().find(|model| model["name"] == "bert-base-tiny").unwrap();
    assert_eq!((&tiny["parameters"], &tiny["bytes"]), (&168_128.into(), &672_512.into()));
    assert_eq!(quick(&["--list-zoo", "zoo:lstm"]).code, 2);
}

#[test]
fn models_of_the_zoo_are_written_as_onnx() {
    let folder = Folder::new();
    let [file, elsewhere] = &["mlp.onnx", "no/folder.onnx"].map(|name| folder.path(name));
    let saved = run(&["zoo:mlp-2x8", "--save-model", file]);
    assert_eq!((saved.code, &*saved.stdout), (0, ""), "{}", saved.stderr);
    assert_eq!(saved.stderr, format!("wrote {file}\n"));
    let [built, read] =
        ["zoo:mlp-2x8", &**file].map(|model| run(&[model, "--emit", "import"]).stdout);
    assert_eq!(read, built);
    assert_eq!(run(&["zoo:mlp-2x8", "--save-model", elsewhere]).code, 7);
    assert_eq!(run(&[file, "--save-model", elsewhere]).code, 2);
}

fn json_of_zoo() -> Vec<serde_json::Value> {
    let given = run(&["--list-zoo", "--json"]);
    let parsed: serde_json::Value = serde_json::from_str(&given.stdout).expect("it is JSON");
    parsed["models"].as_array().expect("a list").clone()
}
