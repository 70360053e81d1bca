//! The house rules that a machine can check: which package may use which, and what sources must look like.

mod imports;
mod source;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A row a package: its folder, its name, the workspace packages it may use, and the crates that only it names.
const PACKAGES: &[(&str, &str, &[&str], &[&str])] = &[
    ("graphene", "graphene-ir", &[], &[]),
    ("graphene/opt", "graphene-opt", &["graphene-ir"], &[]),
    ("frontend", "graphene-frontend", &[], &[]),
    ("fusion", "graphene-fusion", &["graphene-frontend", "graphene-ir"], &["egg", "microlp"]),
    (
        "runtime",
        "graphene-runtime",
        &["graphene-fusion", "graphene-frontend", "graphene-ir"],
        &["cudarc", "gemm", "loom"],
    ),
    (
        "runtime/cli",
        "graphene-run",
        &[
            "graphene-runtime",
            "graphene-fusion",
            "graphene-frontend",
            "graphene-ir",
            "graphene-models",
            "graphene-text",
        ],
        &["clap_complete", "clap_mangen", "image"],
    ),
    ("runtime/text", "graphene-text", &["graphene-frontend"], &["tokenizers"]),
    ("runtime/capi", "graphene-capi", &["graphene-runtime"], &[]),
    (
        "runtime/serve",
        "graphene-serve",
        &["graphene-runtime", "graphene-frontend", "graphene-models", "graphene-text"],
        &["tonic", "rustls"],
    ),
    ("models", "graphene-models", &["graphene-frontend"], &[]),
    (
        "benches",
        "graphene-benches",
        &[
            "graphene-runtime",
            "graphene-fusion",
            "graphene-frontend",
            "graphene-ir",
            "graphene-models",
            "graphene-serve",
        ],
        &["criterion"],
    ),
];

/// What stands at the top beside dot-files and build output.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "clippy.toml",
    "frontend",
    "fusion",
    "graphene",
    "models",
    "runtime",
    "rustfmt.toml",
    "target",
];

/// Modules that may contain `unsafe`: the thin layers that call something with raw memory.
const MAY_BE_UNSAFE: &[&str] = &[
    "runtime/capi/src/cancel.rs",
    "runtime/capi/src/context.rs",
    "runtime/capi/src/dtype.rs",
    "runtime/capi/src/engine.rs",
    "runtime/capi/src/input.rs",
    "runtime/capi/src/model.rs",
    "runtime/capi/src/model/options.rs",
    "runtime/capi/src/outputs.rs",
    "runtime/capi/src/pool.rs",
    "runtime/capi/src/raw.rs",
    "runtime/capi/src/status.rs",
    "runtime/src/cpu/kernels/amx.rs",
    "runtime/src/cpu/kernels/bf16/units.rs",
    "runtime/src/cpu/kernels/gemm.rs",
    "runtime/src/cpu/kernels/int8/units.rs",
    "runtime/src/cpu/kernels/prefetch.rs",
    "runtime/src/cpu/kernels/tile.rs",
    "runtime/src/threads/parts.rs",
    "runtime/src/threads/team.rs",
    "runtime/tests/allocations.rs",
    "runtime/src/device/dlpack.rs",
    "runtime/src/device/sys.rs",
    "runtime/src/device/sys/cublaslt.rs",
    "runtime/src/device/sys/cudnn.rs",
    "runtime/src/device/sys/cudnn/descriptor.rs",
    "runtime/src/device/sys/cudnn/graph.rs",
    "runtime/src/device/sys/cudnn/rnn.rs",
    "frontend/src/import/external/map.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("benches lies in the workspace")
        .to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names under `[dependencies]` and `[build-dependencies]` of a manifest.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines() {
        if let Some(section) = line.trim().strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = matches!(section, "dependencies" | "build-dependencies");
            if let Some(name) = section.strip_prefix("dependencies.") {
                names.insert(name.to_owned());
            }
        } else if inside && let Some((key, _)) = line.split_once('=') {
            names.insert(key.trim().split('.').next().unwrap_or_default().to_owned());
        }
    }
    names
}

/// All files at and below a place, in order; not build output, nor what is hidden.
fn files(place: &Path) -> Vec<PathBuf> {
    fn visit(place: &Path, found: &mut Vec<PathBuf>) {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        if name == "target" || name.starts_with('.') {
        } else if place.is_dir() {
            let entries = fs::read_dir(place).into_iter().flatten().flatten();
            entries.for_each(|entry| visit(&entry.path(), found));
        } else {
            found.push(place.to_owned());
        }
    }
    let mut found = Vec::new();
    visit(place, &mut found);
    found.sort();
    found
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn sources() -> Vec<(String, String)> {
    let root = root();
    let folders = PACKAGES.iter().filter(|row| !row.0.contains('/'));
    let found = folders.flat_map(|(folder, ..)| files(&root.join(folder)));
    let found: Vec<PathBuf> = found.filter(|path| extension(path) == "rs").collect();
    let name = |path: &Path| path.strip_prefix(&root).unwrap_or(path).display().to_string();
    found.iter().map(|path| (name(path), read(path))).collect()
}

#[test]
fn packages_use_only_what_they_may() {
    let root = root();
    let own: BTreeSet<&str> = PACKAGES.iter().map(|row| row.1).collect();
    for (folder, name, may_use, _) in PACKAGES {
        let manifest = read(&root.join(folder).join("Cargo.toml"));
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{folder} holds {name}");
        for dependency in dependencies(&manifest) {
            let allowed =
                !own.contains(dependency.as_str()) || may_use.contains(&dependency.as_str());
            assert!(allowed, "{name} must not use {dependency}");
            for (other, owner, _, only) in PACKAGES {
                let taken = only.contains(&dependency.as_str()) && owner != name;
                assert!(!taken, "{name} must not name {dependency}: only {other} may");
            }
        }
    }
}

#[test]
fn every_member_is_in_the_table() {
    let manifest = read(&root().join("Cargo.toml"));
    let line =
        manifest.lines().find(|line| line.starts_with("members")).expect("members on one line");
    let members: BTreeSet<&str> = line.split('"').skip(1).step_by(2).collect();
    let table: BTreeSet<&str> = PACKAGES.iter().map(|row| row.0).collect();
    assert_eq!(members, table);
}

#[test]
fn nothing_else_stands_at_the_top() {
    for entry in fs::read_dir(root()).expect("the root can be listed").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let known = name.starts_with('.') || TOP_LEVEL.contains(&name.as_str());
        assert!(known, "{name} stands at the top level");
    }
}

#[test]
fn every_file_opens_with_what_it_is() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{path} does not open with a //! line");
    }
}

#[test]
fn unsafe_code_stays_in_its_thin_layers() {
    for (path, text) in sources() {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        // Spelled apart, so that this file does not find itself.
        let allowed = ["allow(", "unsafe_code)"].concat();
        let allows = lines.clone().any(|line| line.contains(&allowed));
        assert!(!allows || MAY_BE_UNSAFE.contains(&path.as_str()), "{path} allows unsafe code");
        let blocks = lines.filter(|line| line.contains(&["unsafe", " {"].concat())).count();
        let reasons = text.matches("SAFETY:").count();
        assert!(blocks <= reasons, "{path} has an unsafe block without its SAFETY line");
    }
}

#[test]
fn every_package_tells_what_it_is() {
    for (folder, name, ..) in PACKAGES {
        let text = read(&root().join(folder).join("README.md"));
        assert!(text.starts_with(&format!("# {name}\n")), "{folder}/README.md is not of {name}");
    }
}

#[test]
fn the_example_of_the_readme_is_the_one_that_is_run() {
    let example = format!("```rust\n{}```\n", read(&root().join("runtime/src/embed.txt")));
    for readme in ["README.md", "runtime/README.md"] {
        let text = read(&root().join(readme));
        let (_, found) = text.split_once("\n## Embed it\n\n").expect("the heading is there");
        assert!(
            found.starts_with(&example),
            "{readme} has another example than runtime/src/embed.txt"
        );
    }
}

#[test]
fn the_readme_is_short() {
    let text = read(&root().join("README.md"));
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(lines <= 150 && words <= 1300, "README has {lines} lines and {words} words");
}

/// Links of Markdown files to files of ours.
#[test]
fn links_lead_somewhere() {
    let mut count = 0;
    for path in markdown() {
        let folder = path.parent().expect("a file lies in a folder");
        let text = read(&path);
        for target in text.split("](").skip(1).filter_map(|part| part.split(')').next()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(folder.join(target).exists(), "{}: {target} is not there", path.display());
            count += 1;
        }
    }
    assert!(count > 20, "where are the links? {count} were found");
}

#[test]
fn the_results_are_those_of_the_tables() {
    let folder = root().join("benches");
    let page = graphene_benches::results::page(&folder.join("results")).expect("tables");
    assert!(
        read(&folder.join("RESULTS.md")) == page,
        "write it anew: cargo run --release -p graphene-benches --bin results"
    );
}

#[test]
fn the_operator_of_the_readme_is_in_its_table() {
    let table = read(&root().join("frontend/src/import/ops/math.rs"));
    let readme = read(&root().join("README.md"));
    let row = readme.split('`').find(|part| part.starts_with("row(")).expect("README shows a row");
    assert!(table.contains(row), "{row}");
}

/// All Markdown files.
fn markdown() -> Vec<PathBuf> {
    let tops = fs::read_dir(root()).expect("the root can be listed").flatten();
    let found = tops.flat_map(|entry| files(&entry.path()));
    found.filter(|path| extension(path) == "md").collect()
}

/// Where CUDA C++ and PTX are written: one row an instruction, and what prints a kernel.
const HAS_CUDA: [&str; 2] = ["graphene/src/atom/", "graphene/src/emit"];

#[test]
fn cuda_is_written_by_atoms_and_the_emitter_alone() {
    let words = [
        "asm volatile",
        "asm(",
        "__global__",
        "__device__",
        "__shared__",
        "__sync",
        "threadIdx",
        "blockIdx",
        "#pragma",
        ".sync.",
        ".global.",
        ".shared.",
        "setmaxnreg.",
        "cvt.rn",
    ];
    let may = |path: &str| HAS_CUDA.iter().any(|place| path.starts_with(place));
    let ours = |path: &str| path.contains("/src/") && !may(path);
    let mut written = 0;
    for (path, text) in sources() {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            // Words of CUDA stand in strings; a field named `shared` does not.
            let strings: String = line.split('"').skip(1).step_by(2).collect();
            let word = words.iter().find(|word| strings.contains(*word));
            written += usize::from(word.is_some() && may(&path));
            assert!(word.is_none() || !ours(&path), "{path} writes CUDA: {line}");
        }
    }
    assert!(written > 20, "where is it written? {written} lines were found");
}

/// The longest file of a template: its statements, what its levels compute, and its parameters' documentation.
const TEMPLATE_LINES: usize = 350;

#[test]
fn a_template_reads_as_a_composition() {
    let mut seen = 0;
    for (path, text) in sources() {
        let (ours, lines) = (path.starts_with("graphene/src/template/"), text.lines().count());
        seen += usize::from(ours);
        assert!(
            !ours || lines <= TEMPLATE_LINES,
            "{path} has {lines} lines, not {TEMPLATE_LINES}: hand parts to decompositions"
        );
    }
    assert!(seen > 40, "where are the templates? {seen} files were found");
}

#[test]
fn sources_leave_nothing_open() {
    let open = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "FIXME"];
    for (path, text) in sources() {
        for word in open {
            let found = text.contains(word) && path != "benches/tests/tidy/main.rs";
            assert!(!found, "{path} contains {word}");
        }
        for line in text.lines().filter(|line| line.trim_start().starts_with("use ")) {
            assert!(!line.contains("::*"), "{path} imports by glob: {line}");
        }
    }
}
