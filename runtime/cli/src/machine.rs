//! The machine that this runs on.

use crate::args::{Device, Run};
use crate::error::Error;
use crate::report;
use std::path::{Path, PathBuf};

/// What the GPU executor would need, by the names of the libraries on Linux.
const GPU_LIBRARIES: [(&str, &str); 4] = [
    ("CUDA driver", "libcuda.so.1"),
    ("NVRTC", "libnvrtc.so"),
    ("cuBLASLt", "libcublasLt.so"),
    ("cuDNN", "libcudnn.so"),
];
/// Where libraries lie beside what the environment says.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
];

/// Checks that the device asked for can be used, and starts the threads.
///
/// # Errors
/// [`Error::Device`] for a GPU; [`Error::Flag`] if the threads cannot be started.
pub(crate) fn prepare(run: &Run) -> Result<report::Device, Error> {
    if let Device::Cuda(number) = run.device {
        return Err(Error::Device(format!(
            "--device cuda:{number}: this build has no GPU executor yet; --device cpu runs on the CPU, and \
             --target sm_90a plans for a GPU without running"
        )));
    }
    if let Some(threads) = run.threads {
        let set = graphene_runtime::cpu::set_threads(threads);
        set.map_err(|error| Error::flag("--threads", error.to_string()))?;
    }
    Ok(describe())
}

/// This machine.
fn describe() -> report::Device {
    let threads = graphene_runtime::cpu::threads();
    report::Device { kind: "cpu", name: processor(), threads, simd: simd() }
}

fn processor() -> String {
    let found = field("/proc/cpuinfo", "model name");
    found.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// A field of one of Linux's `name : value` files.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of physical memory, where the system tells.
pub(crate) fn memory() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal")?;
    let kibibytes: u64 = text.strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The widest vector instructions.
#[cfg(target_arch = "x86_64")]
fn simd() -> &'static str {
    if std::arch::is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if std::arch::is_x86_feature_detected!("avx2") {
        "AVX2"
    } else {
        "SSE2"
    }
}

/// The widest vector instructions.
#[cfg(not(target_arch = "x86_64"))]
fn simd() -> &'static str {
    if cfg!(target_arch = "aarch64") { "NEON" } else { "none known" }
}

/// The table of `--doctor`: what was found on this machine.
pub(crate) fn doctor() -> String {
    let device = describe();
    let memory = |name| field("/proc/meminfo", name).unwrap_or_else(|| "unknown".to_owned());
    let mut rows = vec![
        ("graphene-run", env!("CARGO_PKG_VERSION").to_owned()),
        ("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("processor", device.name),
        ("threads", device.threads.to_string()),
        ("vectors", device.simd.to_owned()),
        ("memory", format!("{} ({} available)", memory("MemTotal"), memory("MemAvailable"))),
        ("executors", "fused, library, reference (all on the CPU)".to_owned()),
    ];
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let driver = driver.and_then(|text| text.lines().next().map(str::to_owned));
    rows.push(("NVIDIA driver", driver.unwrap_or_else(|| "not found".to_owned())));
    for (name, file) in GPU_LIBRARIES {
        let found = find_library(file).map(|path| path.display().to_string());
        rows.push((name, found.unwrap_or_else(|| "not found".to_owned())));
    }
    rows.push(("GPU execution", "not in this build; --target sm_90a plans for one".to_owned()));
    rows.iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect()
}

/// A library file, or one with a version after its name.
fn find_library(file: &str) -> Option<PathBuf> {
    let environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&environment).filter(|path| !path.as_os_str().is_empty());
    let folders = folders.chain(LIBRARY_FOLDERS.iter().map(PathBuf::from));
    folders.into_iter().find_map(|folder| find_in(&folder, file))
}

fn find_in(folder: &Path, file: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let versioned = |name: &String| {
        name.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    names.filter(versioned).min().map(|name| folder.join(name))
}
