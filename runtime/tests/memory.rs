//! Weights are in memory once: what a process holds at most while it loads and runs a model, and that loading again
//! and again takes no more.
//!
//! Memory is a process's: each trial runs in one of its own, which this binary starts anew. What is measured is what
//! Linux says of it; elsewhere trials are reported as ignored.

use graphene_frontend::dim::Symbol;
use graphene_models::{Options, Storage, build};
use graphene_runtime::{Bindings, Context, DType, Device, Engine, Input, Model, Tensor};
use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Names the model file to a process of a trial.
const FILE: &str = "GRAPHENE_MEMORY_FILE";
/// Names the trial.
const TRIAL: &str = "GRAPHENE_MEMORY_TRIAL";

/// Times that a model is loaded.
const RELOADS: usize = 100;
/// What memory may differ by over the last ten of them.
const FLAT: u64 = 4 << 20;
/// What a second context may take.
const CONTEXT: u64 = 5 << 20;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

fn main() -> std::process::ExitCode {
    if let (Ok(trial), Some(file)) = (env::var(TRIAL), env::var_os(FILE)) {
        let file = Path::new(&file);
        let outcome = match trial.as_str() {
            "peak" => peak(file),
            "reload" => reload(file),
            "serve" => serve(file),
            _ => Err("no such trial".into()),
        };
        return match outcome {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                std::process::ExitCode::FAILURE
            }
        };
    }
    let arguments = Arguments::from_args();
    let ignored = !cfg!(target_os = "linux");
    let trial = |trial: &'static str, model: &'static str, storage| {
        let name = match storage {
            Storage::Auto => format!("{trial}::{model}"),
            Storage::External => format!("{trial}::{model}_with_external_weights"),
        };
        let file = name.replace("::", "_");
        let run = move || in_process(trial, model, storage, &file).map_err(Failed::from);
        Trial::test(name, run).with_ignored_flag(ignored)
    };
    let trials = vec![
        trial("peak", "bert-base", Storage::Auto),
        trial("peak", "distilroberta", Storage::External),
        trial("reload", "mlp-4x512", Storage::Auto),
        trial("reload", "bert-base-tiny", Storage::External),
        trial("serve", "mlp-4x512", Storage::Auto),
        trial("serve", "bert-base-tiny", Storage::External),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Writes the model to a file and runs the trial on it in a process of its own.
fn in_process(trial: &str, model: &str, storage: Storage, name: &str) -> Outcome {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("memory").join(name);
    fs::create_dir_all(&folder)?;
    let file = folder.join("model.onnx");
    build(model, &Options::default())?.write_as(&file, storage, &mut |_, _| ())?;
    let mut process = Command::new(env::current_exe()?);
    let output = process.env(TRIAL, trial).env(FILE, &file).output()?;
    fs::remove_dir_all(&folder)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if env::var_os("GRAPHENE_MEMORY_SHOWN").is_some() {
        eprintln!("{trial} {model}\n{said}");
    }
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}\n{said}", output.status).into()),
    }
}

/// Bytes of the process by `/proc/self/status`: `VmRSS` in memory now, `VmHWM` at most so far.
fn status(field: &str) -> Outcome<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kibibytes.ok_or("no such field")?.trim().parse::<u64>()? << 10)
}

/// A loaded model.
fn load(file: &Path) -> Outcome<Model> {
    let engine = Engine::builder().device(Device::Cpu).threads(2).build()?;
    Ok(engine.load(file)?)
}

/// Runs once, with a batch of 1 and a sequence of 16.
fn run(context: &mut Context) -> Outcome<Vec<Tensor>> {
    let mut sizes = Bindings::new();
    for dim in context.model().dims() {
        sizes.bind(Symbol::new(dim), if dim == "batch" { 1 } else { 16 })?;
    }
    let inputs = context.model().inputs().iter().map(|port| {
        let shape = port.dims().iter().map(|dim| Ok(usize::try_from(dim.eval(&sizes)?)?));
        let shape = shape.collect::<Outcome<Vec<_>>>()?;
        let len = shape.iter().product();
        Ok(match port.dtype() {
            DType::I64 => Tensor::from_vec(shape, vec![1_i64; len])?,
            _ => Tensor::from_vec(shape, vec![0.5_f32; len])?,
        })
    });
    let inputs = inputs.collect::<Outcome<Vec<_>>>()?;
    let inputs: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
    Ok(context.run(&inputs)?.into_iter().collect())
}

/// A model that is loaded and run takes at most a quarter more than its file, which is weights but for some kilobytes; a
/// second context takes little.
fn peak(file: &Path) -> Outcome {
    let before = status("VmHWM")?;
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let folder = fs::read_dir(file.parent().ok_or("a file has a folder")?)?;
    let in_files = folder.map(|entry| Ok(entry?.metadata()?.len())).sum::<Outcome<u64>>()?;
    let model = load(file)?;
    let mut context = model.context();
    run(&mut context)?;
    let (held, most) = (model.engine().memory_used(), status("VmHWM")? - before);
    let now = status("VmRSS")?;
    let mut second = model.context();
    run(&mut second)?;
    let beside = status("VmRSS")?.saturating_sub(now);
    let [files, of_engine, peak, second] = [in_files, held, most, beside].map(mebibytes);
    println!(
        "files {files:.1} MiB, the engine's {of_engine:.1} MiB, peak {peak:.1} MiB beyond what was before: {:.3}; \
         a second context {second:.1} MiB",
        peak / files
    );
    let now = now.saturating_sub(before);
    if now < held / 2 || now > held + held / 8 + FLAT {
        return Err(format!("the engine says that it holds {held} bytes, the process {now}").into());
    }
    if beside > CONTEXT {
        return Err(format!("a second context takes {beside} bytes").into());
    }
    match most <= in_files + in_files / 4 {
        true => Ok(()),
        false => Err("the peak is more than 1.25 of the weights".into()),
    }
}

/// Loading, running and dropping a model again and again takes no more memory.
fn reload(file: &Path) -> Outcome {
    let mut after = Vec::with_capacity(RELOADS);
    for _ in 0..RELOADS {
        run(&mut load(file)?.context())?;
        after.push(status("VmRSS")?);
    }
    let last = &after[RELOADS - 10..];
    let (least, most) = (last.iter().min().unwrap_or(&0), last.iter().max().unwrap_or(&0));
    let (tenth, highest) = (after[9], status("VmHWM")?);
    println!("after 10: {tenth}, the last ten: {least} to {most}, at most {highest}");
    match most - least <= FLAT && *most <= tenth + FLAT {
        true => Ok(()),
        false => Err("memory grows".into()),
    }
}

/// Files that are truncated, overwritten or removed while a model is served change nothing.
fn serve(file: &Path) -> Outcome {
    let mut context = load(file)?.context();
    let right = run(&mut context)?;
    let folder = file.parent().ok_or("a file has a folder")?;
    let files = || -> Outcome<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut same = |after: &str| match run(&mut context)? == right {
        true => Ok(()),
        false => Err(Box::<dyn std::error::Error>::from(format!("another answer {after}"))),
    };
    for path in files()? {
        let bytes = fs::metadata(&path)?.len();
        fs::write(&path, vec![0x55; usize::try_from(bytes)?])?;
    }
    same("after the files were overwritten")?;
    for path in files()? {
        fs::OpenOptions::new().write(true).open(&path)?.set_len(0)?;
    }
    same("after the files were truncated")?;
    for path in files()? {
        fs::remove_file(&path)?;
    }
    same("after the files were removed")
}
