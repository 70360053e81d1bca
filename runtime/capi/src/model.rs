//! Models.

#![allow(unsafe_code)] // Exported names, and text and bytes of the caller's.

mod options;
mod port;

pub use options::{DimKind, DimRule, ModelOptions, Precision};
pub use port::Port;

use crate::engine::Engine;
use crate::input::{Size, sizes};
use crate::raw::{bytes, needed, needed_text};
use crate::status::{Failure, Status, c_text, free, guard};
use graphene_runtime as rt;
use port::Ports;
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

/// A loaded model: it doesn't change. Any thread may use it, several at a time.
pub struct Model {
    pub(crate) model: rt::Model,
    inputs: Ports,
    outputs: Ports,
    notes: Vec<*const c_char>,
    /// What `notes` points at.
    _texts: Vec<CString>,
}

/// The memory that a model takes at some sizes, in bytes.
#[repr(C)]
pub struct Footprint {
    /// Weights: once for all contexts.
    pub weights: u64,
    /// Intermediates: once for each context, of the largest sizes that it has run at.
    pub arena: u64,
    /// A request's inputs.
    pub inputs: u64,
    /// A request's outputs.
    pub outputs: u64,
}

type ModelPlace<'a> = Option<&'a mut MaybeUninit<*mut Model>>;

fn load(
    engine: Option<&Engine>,
    options: Option<&ModelOptions>,
    place: ModelPlace<'_>,
    load: impl FnOnce(rt::ModelBuilder) -> Result<rt::Model, Failure>,
) -> Status {
    guard(|| {
        let (engine, place) = (needed(engine, "engine")?, needed(place, "model")?);
        place.write(std::ptr::null_mut());
        let mut builder = engine.engine.model();
        if let Some(options) = options {
            // SAFETY: the caller of the exported function vouches for what the options point at.
            builder = unsafe { options.apply(builder) }?;
        }
        let model = load(builder)?;
        place.write(Box::into_raw(Box::new(Model::new(model))));
        Ok(())
    })
}

impl Model {
    fn new(model: rt::Model) -> Self {
        let (inputs, outputs) = (Ports::new(model.inputs()), Ports::new(model.outputs()));
        let texts: Vec<CString> = model.notes().iter().map(|note| c_text(note)).collect();
        let notes = texts.iter().map(|text| text.as_ptr()).collect();
        Self { model, inputs, outputs, notes, _texts: texts }
    }
}

/// Loads an ONNX file, into memory of the process's own. `options` may be null. The model is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_model_load(
    engine: Option<&Engine>,
    path: *const c_char,
    options: Option<&ModelOptions>,
    model: Option<&mut MaybeUninit<*mut Model>>,
) -> Status {
    load(engine, options, model, |builder| {
        // SAFETY: the caller vouches for the text.
        let path = unsafe { needed_text(path, "path") }?;
        Ok(builder.load(path)?)
    })
}

/// Loads an ONNX model of `byte_len` bytes, which has all its weights in it. The bytes are copied. `options` may be null.
/// The model is the caller's, to be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_model_load_bytes(
    engine: Option<&Engine>,
    data: *const c_void,
    byte_len: usize,
    options: Option<&ModelOptions>,
    model: Option<&mut MaybeUninit<*mut Model>>,
) -> Status {
    load(engine, options, model, |builder| {
        // SAFETY: the caller vouches for the bytes.
        let data = unsafe { bytes(data, byte_len, "data") }?;
        Ok(builder.load_bytes(data.to_vec())?)
    })
}

/// Frees a model; null is nothing. Contexts and pools of it stay usable, and keep what they need of it.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_model_free(model: Option<Box<Model>>) {
    free(model);
}

/// What the model takes, in order. Valid until the model is freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_model_inputs(
    model: Option<&Model>,
    ports: Option<&mut MaybeUninit<*const Port>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| needed(model, "model")?.inputs.give(ports, count))
}

/// What the model gives, in order. Valid until the model is freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_model_outputs(
    model: Option<&Model>,
    ports: Option<&mut MaybeUninit<*const Port>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| needed(model, "model")?.outputs.give(ports, count))
}

/// What is worth knowing of how the model was loaded. Valid until the model is freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_model_notes(
    model: Option<&Model>,
    notes: Option<&mut MaybeUninit<*const *const c_char>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let model = needed(model, "model")?;
        let (notes, count) = (needed(notes, "notes")?, needed(count, "count")?);
        notes.write(model.notes.as_ptr());
        count.write(model.notes.len());
        Ok(())
    })
}

/// The memory that the model takes when its dims have these sizes. Nothing is allocated on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_model_footprint(
    model: Option<&Model>,
    dims: *const Size,
    dim_count: usize,
    footprint: Option<&mut MaybeUninit<Footprint>>,
) -> Status {
    guard(|| {
        let (model, place) = (needed(model, "model")?, needed(footprint, "footprint")?);
        // SAFETY: the caller vouches for the array and its names.
        let sizes = unsafe { sizes(dims, dim_count) }?;
        let found = model.model.footprint(&sizes)?;
        let rt::Footprint { weights, arena, inputs, outputs, .. } = found;
        place.write(Footprint { weights, arena, inputs, outputs });
        Ok(())
    })
}
