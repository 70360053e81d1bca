//! Engines.

#![allow(unsafe_code)] // Exported names, and text of the caller's.

use crate::raw::{needed, numbered, put, text};
use crate::status::{Failure, Status, c_text, free, guard};
use graphene_runtime as rt;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

/// Bytes that kept kernels may take where the caller says a folder alone.
const CACHE_BYTES: u64 = 1 << 30;

/// A device, threads and a memory limit. Any thread may use it, several at a time.
pub struct Engine {
    pub(crate) engine: rt::Engine,
    device: CString,
}

/// Where models run.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The first GPU that can be used, else the host's cores.
    Auto = 0,
    /// The host's cores.
    Cpu = 1,
    /// The GPU of the number `device_index`.
    Cuda = 2,
}

/// How an engine is to be. Zeros are the defaults.
#[repr(C)]
pub struct EngineOptions {
    /// A `graphene_device`.
    pub device: u32,
    /// The GPU's number, from 0, if `device` is `GRAPHENE_DEVICE_CUDA`.
    pub device_index: u32,
    /// How many threads compute, the caller's included; 0 for as many as there are cores.
    pub threads: usize,
    /// Bytes that weights and intermediates may take together; 0 for the device's memory.
    pub memory_limit: u64,
    /// A folder in which kernels for a GPU are kept; null for one of the user's own.
    pub kernel_cache: *const c_char,
    /// Bytes that it may take; 0 for 1 GiB. Not read if `kernel_cache` is null.
    pub kernel_cache_bytes: u64,
    /// 1 to keep no kernels.
    pub without_kernel_cache: u32,
}

unsafe fn build(options: Option<&EngineOptions>) -> Result<rt::Engine, Failure> {
    let mut builder = rt::Engine::builder();
    if let Some(options) = options {
        let devices = [Device::Auto, Device::Cpu, Device::Cuda];
        builder = builder.device(match numbered(&devices, options.device, "device")? {
            Device::Auto => rt::Device::Auto,
            Device::Cpu => rt::Device::Cpu,
            Device::Cuda => rt::Device::Cuda(options.device_index as usize),
        });
        if options.threads > 0 {
            builder = builder.threads(options.threads);
        }
        if options.memory_limit > 0 {
            builder = builder.memory_limit(options.memory_limit);
        }
        // SAFETY: the caller vouches for the text.
        let folder = unsafe { text(options.kernel_cache, "kernel_cache") }?;
        if let Some(folder) = folder {
            let bytes = options.kernel_cache_bytes;
            builder = builder.kernel_cache(folder, if bytes == 0 { CACHE_BYTES } else { bytes });
        }
        if options.without_kernel_cache != 0 {
            builder = builder.without_kernel_cache();
        }
    }
    Ok(builder.build()?)
}

/// Opens a device and starts threads. `options` may be null. The engine is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_engine_new(
    options: Option<&EngineOptions>,
    engine: Option<&mut MaybeUninit<*mut Engine>>,
) -> Status {
    guard(|| {
        let place = needed(engine, "engine")?;
        place.write(std::ptr::null_mut());
        // SAFETY: the caller vouches for what the options point at.
        let engine = unsafe { build(options) }?;
        let device = c_text(&engine.device().name);
        place.write(Box::into_raw(Box::new(Engine { engine, device })));
        Ok(())
    })
}

/// Frees an engine; null is nothing. Models loaded on it stay usable, and keep what they need of it.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_engine_free(engine: Option<Box<Engine>>) {
    free(engine);
}

/// The device's name: "cpu", or a GPU's. Valid until the engine is freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_engine_device(
    engine: Option<&Engine>,
    name: Option<&mut MaybeUninit<*const c_char>>,
) -> Status {
    guard(|| {
        let (engine, name) = (needed(engine, "engine")?, needed(name, "name")?);
        name.write(engine.device.as_ptr());
        Ok(())
    })
}

/// How many threads compute.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_engine_threads(
    engine: Option<&Engine>,
    threads: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let (engine, threads) = (needed(engine, "engine")?, needed(threads, "threads")?);
        threads.write(engine.engine.threads());
        Ok(())
    })
}

/// Bytes that models and contexts have, and the limit. Either place may be null.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_engine_memory(
    engine: Option<&Engine>,
    used: Option<&mut MaybeUninit<u64>>,
    limit: Option<&mut MaybeUninit<u64>>,
) -> Status {
    guard(|| {
        let engine = &needed(engine, "engine")?.engine;
        put(used, engine.memory_used());
        put(limit, engine.memory_limit());
        Ok(())
    })
}

/// Whether the device still takes work: after some errors a GPU is lost to its process, and this is
/// `GRAPHENE_STATUS_DEVICE`.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_engine_health(engine: Option<&Engine>) -> Status {
    guard(|| Ok(needed(engine, "engine")?.engine.health()?))
}
