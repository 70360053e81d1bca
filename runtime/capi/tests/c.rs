//! The header is what the sources say, and programs in C and C++ run against the library.
//!
//! Each row names the commands that it needs; where one is absent, it is reported as ignored. Compilers are also given the
//! flags of `CFLAGS`, as `runtime/sanitize.sh` does.

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Outcome = Result<(), Failed>;

/// A test: its name, the commands that it needs, and what it does.
type Row = (&'static str, &'static [&'static str], fn() -> Outcome);

const ROWS: [Row; 7] = [
    ("the_header_is_what_the_sources_say", &[], header),
    ("the_library_exports_what_the_header_declares", &["nm"], exports),
    ("c_runs", &["cc"], c_runs),
    ("cpp_runs", &["c++"], cpp_runs),
    ("the_static_library_runs", &["cc"], static_runs),
    ("misuse_is_refused", &["cc"], misuse_is_refused),
    ("valgrind_finds_nothing", &["cc", "valgrind"], valgrind),
];

/// What the compilers are to say no word about.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn main() {
    if std::env::var_os("GRAPHENE_WRITE_HEADER").is_some() {
        let made = make_header().expect("the sources have a header");
        std::fs::write(header_path(), made).expect("the header can be written");
    }
    let trial = |(name, needs, run): Row| {
        let can = needs.iter().all(|command| exists(command));
        Trial::test(name, run).with_ignored_flag(!can)
    };
    libtest_mimic::run(&Arguments::from_args(), ROWS.map(trial).into()).exit();
}

fn exists(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header_path() -> PathBuf {
    package().join("include/graphene.h")
}

fn make_header() -> Result<String, Failed> {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml"))?;
    let sources = ["status", "dtype", "engine", "input", "model/options", "model/port", "model"];
    let sources = sources.into_iter().chain(["outputs", "context", "pool", "cancel"]);
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(package().join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    Ok(String::from_utf8(text)?)
}

fn header() -> Outcome {
    let committed = std::fs::read_to_string(header_path())?;
    if committed != make_header()? {
        let text = "include/graphene.h is not what src/ says: \
                    GRAPHENE_WRITE_HEADER=1 cargo test -p graphene-capi --test c writes it";
        return Err(text.into());
    }
    Ok(())
}

fn exports() -> Outcome {
    let library = library("libgraphene_capi.so")?;
    let symbols = checked(
        Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(library),
    )?;
    let symbols = String::from_utf8(symbols.stdout)?;
    let mut exported: Vec<&str> = symbols.lines().collect();
    let header = std::fs::read_to_string(header_path())?;
    let words = header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let functions = words.filter_map(|word| word.split_once('(').map(|(name, _)| name));
    let mut declared: Vec<&str> = functions.filter(|name| name.starts_with("graphene_")).collect();
    // The head of the header and its comments may mention one more than once.
    declared.sort_unstable();
    declared.dedup();
    exported.sort_unstable();
    if exported != declared {
        return Err(format!("exported: {exported:?}\ndeclared: {declared:?}").into());
    }
    Ok(())
}

/// A folder of a test's own with a model in it, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Self, Failed> {
        let name = format!("graphene-capi-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0)?;
        let model = graphene_models::build("bert-base-tiny", &graphene_models::Options::default())?;
        model.write(&folder.model())?;
        Ok(folder)
    }

    fn model(&self) -> PathBuf {
        self.0.join("model.onnx")
    }

    /// Compiles a program and links it with what follows.
    fn build(
        &self,
        compiler: &str,
        standard: &str,
        source: &str,
        link: &[String],
    ) -> Result<PathBuf, Failed> {
        let program = self.0.join("program");
        let mut command = Command::new(compiler);
        command.arg(format!("-std={standard}")).args(WARNINGS).arg("-g");
        let flags = std::env::var("CFLAGS").unwrap_or_default();
        command.args(flags.split_whitespace()).arg("-I").arg(package().join("include"));
        command.arg(package().join(source)).arg("-o").arg(&program).args(link);
        checked(&mut command)?;
        Ok(program)
    }

    /// What a program prints that is given the model.
    fn run(&self, command: &mut Command) -> Result<String, Failed> {
        Ok(String::from_utf8(checked(command.arg(self.model()))?.stdout)?)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a command that has to succeed.
fn checked(command: &mut Command) -> Result<Output, Failed> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output);
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    Err(format!("{command:?}: {}\n{out}{err}", output.status).into())
}

/// A library that cargo has built beside this test.
fn library(name: &str) -> Result<PathBuf, Failed> {
    let test = std::env::current_exe()?;
    let path = test.with_file_name(name);
    if path.exists() { Ok(path) } else { Err(format!("{} is not there", path.display()).into()) }
}

fn shared() -> Result<Vec<String>, Failed> {
    let library = library("libgraphene_capi.so")?;
    let folder = library.parent().ok_or("a library lies in a folder")?;
    let path = format!("-Wl,-rpath,{}", folder.display());
    Ok(vec![library.display().to_string(), path, "-pthread".to_owned()])
}

fn has(printed: &str, lines: &[&str]) -> Outcome {
    match lines.iter().find(|line| !printed.contains(*line)) {
        Some(line) => Err(format!("no {line:?} in:\n{printed}").into()),
        None => Ok(()),
    }
}

/// What the example in C prints of the model.
const C_PRINTS: [&str; 4] = [
    "input input_ids [batch, sequence]\n",
    "last_hidden_state: 2 4 64, from ",
    "pooler_output: 2 64, from ",
    "again: the same\n",
];

fn c_runs() -> Outcome {
    let folder = Folder::new("c")?;
    let program = folder.build("cc", "c11", "examples/run.c", &shared()?)?;
    has(&folder.run(&mut Command::new(program))?, &C_PRINTS)
}

fn static_runs() -> Outcome {
    let folder = Folder::new("static")?;
    let mut link = vec![library("libgraphene_capi.a")?.display().to_string()];
    link.extend(["-pthread", "-ldl", "-lm", "-lgcc_s"].map(str::to_owned));
    let program = folder.build("cc", "c11", "examples/run.c", &link)?;
    has(&folder.run(&mut Command::new(program))?, &C_PRINTS)
}

fn cpp_runs() -> Outcome {
    let folder = Folder::new("cpp")?;
    let program = folder.build("c++", "c++17", "examples/run.cpp", &shared()?)?;
    let lines = [
        "last_hidden_state: 256 elements, from ",
        "the same from four threads\n",
        "error 102: input \"input_ids\" (i64[batch, sequence]) is missing\n",
    ];
    has(&folder.run(&mut Command::new(program))?, &lines)
}

fn misuse_is_refused() -> Outcome {
    let folder = Folder::new("misuse")?;
    let program = folder.build("cc", "c11", "tests/c/misuse.c", &shared()?)?;
    has(&folder.run(&mut Command::new(program))?, &["all refused\n"])
}

fn valgrind() -> Outcome {
    let folder = Folder::new("valgrind")?;
    let suppressions = package().join("tests/c/valgrind.supp");
    for source in ["examples/run.c", "tests/c/misuse.c"] {
        let program = folder.build("cc", "c11", source, &shared()?)?;
        let mut command = Command::new("valgrind");
        command.args(["--error-exitcode=1", "--leak-check=full", "--quiet"]);
        command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
        folder.run(&mut command)?;
    }
    Ok(())
}
