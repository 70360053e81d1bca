//! Outputs of runs.

#![allow(unsafe_code)] // Exported names, and text of the caller's.

use crate::dtype::DType;
use crate::raw::{needed, needed_text};
use crate::status::{Failure, Status, c_text, free, guard};
use graphene_runtime as rt;
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

/// The outputs of a run. They don't change; any thread may read them, several at a time.
pub struct Outputs {
    tensors: Vec<Tensor>,
    /// What `tensors` points at.
    names: Vec<CString>,
    _outputs: rt::Outputs,
}

/// A tensor that the library owns: elements in row-major order, in the machine's byte order.
#[repr(C)]
pub struct Tensor {
    /// The output's name.
    pub name: *const c_char,
    /// The type of its elements.
    pub dtype: DType,
    /// Dimensions of its shape.
    pub rank: usize,
    /// Elements along each dimension.
    pub shape: *const usize,
    /// The elements.
    pub data: *const c_void,
    /// Bytes at `data`.
    pub byte_len: usize,
}

impl Outputs {
    fn new(outputs: rt::Outputs) -> Self {
        let names: Vec<CString> = outputs.iter().map(|(name, _)| c_text(name)).collect();
        let tensor = |(tensor, name): (&rt::Tensor, &CString)| Tensor {
            name: name.as_ptr(),
            dtype: tensor.dtype().into(),
            rank: tensor.shape().len(),
            shape: tensor.shape().as_ptr(),
            data: tensor.bytes().as_ptr().cast(),
            byte_len: tensor.bytes().len(),
        };
        let tensors = outputs.tensors().iter().zip(&names).map(tensor).collect();
        Self { tensors, names, _outputs: outputs }
    }
}

/// Runs, and gives the outputs to the caller.
pub(crate) fn give(
    place: Option<&mut MaybeUninit<*mut Outputs>>,
    run: impl FnOnce() -> Result<rt::Outputs, Failure>,
) -> Result<(), Failure> {
    let place = needed(place, "outputs")?;
    place.write(std::ptr::null_mut());
    let outputs = Outputs::new(run()?);
    place.write(Box::into_raw(Box::new(outputs)));
    Ok(())
}

/// All outputs, in the order of the model's. Valid until `outputs` is freed.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_outputs_tensors(
    outputs: Option<&Outputs>,
    tensors: Option<&mut MaybeUninit<*const Tensor>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> Status {
    guard(|| {
        let outputs = needed(outputs, "outputs")?;
        let (tensors, count) = (needed(tensors, "tensors")?, needed(count, "count")?);
        tensors.write(outputs.tensors.as_ptr());
        count.write(outputs.tensors.len());
        Ok(())
    })
}

/// The output of this name. Valid until `outputs` is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn graphene_outputs_find(
    outputs: Option<&Outputs>,
    name: *const c_char,
    tensor: Option<&mut MaybeUninit<*const Tensor>>,
) -> Status {
    guard(|| {
        let (outputs, place) = (needed(outputs, "outputs")?, needed(tensor, "tensor")?);
        // SAFETY: the caller vouches for the text.
        let name = unsafe { needed_text(name, "name") }?;
        let found = outputs.names.iter().position(|known| known.as_bytes() == name.as_bytes());
        let known =
            || outputs.names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let unknown =
            || rt::Error::UnknownPort { what: "output", name: name.to_owned(), known: known() };
        place.write(&outputs.tensors[found.ok_or_else(unknown)?]);
        Ok(())
    })
}

/// Frees outputs; null is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn graphene_outputs_free(outputs: Option<Box<Outputs>>) {
    free(outputs);
}
