//! `--doctor`: what was found on this machine, and what to install for what was not.

use crate::machine::{field, host, usable};
use crate::report;
use graphene_runtime::Error;
use graphene_runtime::device::{Device, Library, Properties};
use graphene_runtime::gpu::Cache;
use graphene_runtime::gpu::cache::Contents;
use serde::Serialize;

/// GPUs that are listed at most.
const MOST_GPUS: usize = 64;

/// Something that was looked for.
#[derive(Serialize, Debug)]
struct Row {
    /// What it is; GPUs, and libraries to install, have a row each.
    name: &'static str,
    /// What was found.
    found: String,
}

/// The table of `--doctor`, as an object of JSON if asked for, and why `--device auto` takes the CPU, if it does.
pub(crate) fn doctor(json: bool) -> (String, Option<String>) {
    let device = host(graphene_runtime::cpu::threads());
    let memory = |name| field("/proc/meminfo", name).unwrap_or_else(|| "unknown".to_owned());
    let mut rows = vec![
        ("graphene-run", env!("CARGO_PKG_VERSION").to_owned()),
        ("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("processor", device.name),
        ("threads", device.threads.to_string()),
        ("vectors", device.simd.to_owned()),
        ("memory", format!("{} ({} available)", memory("MemTotal"), memory("MemAvailable"))),
    ];
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.and_then(|text| text.lines().next().map(str::to_owned));
    rows.push(("kernel module", driver.unwrap_or_else(|| "not found".to_owned())));
    rows.extend(Library::ALL.map(|library| (name(library), version(library))));
    let (gpus, end) = gpus();
    rows.extend(gpus.iter().map(|properties| ("GPU", gpu(properties))));
    if gpus.is_empty() {
        rows.push(("GPU", end.to_string()));
    }
    rows.push(("kernel cache", cache()));
    let usable = usable();
    let calls = [Library::CublasLt, Library::Cudnn].into_iter().all(Library::found);
    rows.push((
        "executors",
        match usable {
            Ok(()) if calls => "fused, library on the GPU or the CPU; reference on the CPU",
            Ok(()) => "fused on the GPU or the CPU; library, reference on the CPU",
            Err(_) => "fused, library, reference (all on the CPU)",
        }
        .to_owned(),
    ));
    let missing = Library::ALL.into_iter().filter(|library| !library.found());
    rows.extend(missing.map(|library| ("to install", format!("{library}{}", purpose(library)))));
    let rows: Vec<_> = rows.into_iter().map(|(name, found)| Row { name, found }).collect();
    let text = match json {
        true => report::table("found", &rows),
        false => rows.iter().map(|row| format!("{:<14} {}\n", row.name, row.found)).collect(),
    };
    (text, usable.err().map(|error| format!("note: --device auto takes the CPU: {error}")))
}

fn name(library: Library) -> &'static str {
    match library {
        Library::Driver => "CUDA driver",
        Library::Nvrtc => "NVRTC",
        Library::CublasLt => "cuBLASLt",
        Library::Cudnn => "cuDNN",
    }
}

/// What a library is for.
fn purpose(library: Library) -> &'static str {
    match library {
        Library::Driver => ", to run on a GPU",
        Library::Nvrtc => ", to compile kernels",
        Library::CublasLt | Library::Cudnn => ", for library execution",
    }
}

fn version(library: Library) -> String {
    match library.version() {
        Ok(version) => match library {
            Library::Driver => format!("found, for CUDA up to {version}"),
            Library::Nvrtc | Library::CublasLt | Library::Cudnn => format!("found, {version}"),
        },
        Err(Error::MissingLibrary(_)) => "not found".to_owned(),
        Err(error) => format!("found, but {error}"),
    }
}

/// The GPUs, and the error that ends their list.
fn gpus() -> (Vec<Properties>, Error) {
    let mut found = Vec::new();
    loop {
        match Device::open(found.len()) {
            Ok(device) if found.len() < MOST_GPUS => found.push(device.properties().clone()),
            Ok(_) => return (found, Error::Unsupported { what: "more GPUs" }),
            Err(error) => return (found, error),
        }
    }
}

fn gpu(properties: &Properties) -> String {
    let (major, minor) = properties.capability;
    let kernels = match properties.arch() {
        Some(arch) => format!("kernels for {arch}"),
        None => "no kernels are generated for it".to_owned(),
    };
    format!(
        "{}, {} multiprocessors, capability {major}.{minor}, {}; {kernels}",
        properties.name,
        properties.multiprocessors,
        crate::human::bytes(properties.memory as u64),
    )
}

/// The folder of compiled kernels, and how much is in it.
fn cache() -> String {
    let Some(cache) = Cache::default_folder().map(Cache::new) else {
        return "none: set GRAPHENE_CACHE to a folder for it".to_owned();
    };
    let folder = cache.folder().display();
    match cache.contents() {
        Ok(Contents { entries, bytes }) => {
            let entries = crate::human::counted(entries, "entry", "entries");
            let unwritten =
                cache.probe().err().map(|error| format!("; cannot be written: {error}"));
            let unwritten = unwritten.unwrap_or_default();
            format!("{folder}: {entries}, {}{unwritten}", crate::human::bytes(bytes))
        }
        Err(error) => format!("{folder}: {error}"),
    }
}
