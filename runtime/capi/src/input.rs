//! What a request brings: inputs, memory for outputs, sizes.

#![allow(unsafe_code)] // Arrays and text of the caller's.

use crate::dtype::of_number;
use crate::raw;
use crate::status::Failure;
use graphene_runtime as rt;
use std::ffi::{c_char, c_void};
use std::ops::Range;

/// A tensor that a call reads: elements in row-major order, in the machine's byte order. Nothing is kept after the call.
#[repr(C)]
pub struct Input {
    /// The model's input of this name; null for the one at this place in the array.
    pub name: *const c_char,
    /// A `graphene_dtype`.
    pub dtype: u32,
    /// Dimensions of the shape.
    pub rank: usize,
    /// Elements along each dimension; may be null if `rank` is 0.
    pub shape: *const usize,
    /// The elements. Those that are not aligned to their size are copied.
    pub data: *const c_void,
    /// Bytes at `data`: as many as shape and type take.
    pub byte_len: usize,
}

/// Memory for an output, as long as the output is under the request's sizes. It overlaps nothing else of the call.
#[repr(C)]
pub struct OutputBuffer {
    /// The model's output of this name; null for the one at this place in the array.
    pub name: *const c_char,
    /// A `graphene_dtype`: that of the output.
    pub dtype: u32,
    /// Where its elements are written.
    pub data: *mut c_void,
    /// Bytes at `data`.
    pub byte_len: usize,
}

/// A size for a dim of the model.
#[repr(C)]
pub struct Size {
    /// The dim's name.
    pub name: *const c_char,
    /// Its size.
    pub size: usize,
}

/// The runtime's inputs for an array of a caller's.
pub(crate) unsafe fn inputs<'a>(
    given: *const Input,
    count: usize,
) -> Result<Vec<rt::Input<'a>>, Failure> {
    // SAFETY: the caller vouches for the array, and for what each of its elements points at.
    let given = unsafe { raw::list(given, count, "inputs") }?;
    // SAFETY: the same.
    given.iter().map(|input| unsafe { input.view() }).collect()
}

impl Input {
    pub(crate) unsafe fn view<'a>(&self) -> Result<rt::Input<'a>, Failure> {
        let dtype = of_number(self.dtype)?;
        // SAFETY: the caller vouches for name, shape and data.
        let (name, shape, bytes) = unsafe {
            let name = raw::text(self.name, "an input's name")?;
            let shape = raw::list(self.shape, self.rank, "an input's shape")?;
            (name, shape, raw::bytes(self.data, self.byte_len, "an input's data")?)
        };
        let input = rt::Input::bytes(dtype, bytes, shape);
        Ok(name.map_or(input, |name| input.named(name)))
    }

    /// A tensor with a copy of the elements.
    pub(crate) unsafe fn copied(&self) -> Result<rt::Tensor, Failure> {
        let dtype = of_number(self.dtype)?;
        // SAFETY: the caller vouches for shape and data.
        let (shape, bytes) = unsafe {
            let shape = raw::list(self.shape, self.rank, "a constant's shape")?;
            (shape, raw::bytes(self.data, self.byte_len, "a constant's data")?)
        };
        let tensor = rt::Tensor::new(dtype, shape.to_vec(), bytes.to_vec().into());
        tensor.map_err(|error| rt::Error::from(error).into())
    }

    fn range(&self) -> Range<usize> {
        let start = self.data.addr();
        start..start.saturating_add(self.byte_len)
    }
}

impl OutputBuffer {
    fn range(&self) -> Range<usize> {
        let start = self.data.addr();
        start..start.saturating_add(self.byte_len)
    }
}

/// Inputs and outputs of a call for arrays of a caller's: outputs overlap neither each other nor an input.
pub(crate) unsafe fn inputs_and_outputs<'a>(
    (given, count): (*const Input, usize),
    (wanted, places): (*const OutputBuffer, usize),
) -> Result<(Vec<rt::Input<'a>>, Vec<rt::OutputMut<'a>>), Failure> {
    // SAFETY: the caller vouches for both arrays.
    let (read, wanted) =
        unsafe { (raw::list(given, count, "inputs")?, raw::list(wanted, places, "outputs")?) };
    let written: Vec<Range<usize>> = wanted.iter().map(OutputBuffer::range).collect();
    for (number, range) in written.iter().enumerate() {
        let others = written[..number].iter().cloned().chain(read.iter().map(Input::range));
        if others.into_iter().any(|other| other.start < range.end && range.start < other.end) {
            let text =
                format!("the memory of output {number} overlaps that of another or of an input");
            return Err(Failure::misuse(1006, text));
        }
    }
    let mut outputs = Vec::with_capacity(wanted.len());
    for output in wanted {
        let dtype = of_number(output.dtype)?;
        // SAFETY: the caller vouches for name and data; the data is nobody else's, as was just found.
        let (name, bytes) = unsafe {
            let name = raw::text(output.name, "an output's name")?;
            (name, raw::bytes_mut(output.data, output.byte_len, "an output's data")?)
        };
        let output = rt::OutputMut::bytes(dtype, bytes);
        outputs.push(match name {
            Some(name) => output.named(name),
            None => output,
        });
    }
    // SAFETY: the caller vouches for the array, and for what each of its elements points at.
    Ok((unsafe { inputs(given, count) }?, outputs))
}

/// Names and sizes of dims.
pub(crate) unsafe fn sizes<'a>(
    given: *const Size,
    count: usize,
) -> Result<Vec<(&'a str, usize)>, Failure> {
    // SAFETY: the caller vouches for the array and its names.
    let given = unsafe { raw::list(given, count, "sizes") }?;
    // SAFETY: the same.
    let pair =
        |size: &Size| Ok((unsafe { raw::needed_text(size.name, "a dim's name") }?, size.size));
    given.iter().map(pair).collect()
}
