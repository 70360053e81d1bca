//! cuDNN's calls: its state and softmaxes here, recurrent layers in `rnn`, graphs of operations in `graph`.

mod descriptor;
pub(in crate::device) mod graph;
pub(in crate::device) mod rnn;

use super::{Library, Owned, bind};
use crate::error::{Error, Result};
use cudarc::cudnn::sys;
use cudarc::driver::CudaStream;
use graphene_ir::tensor::Scalar;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Object<T> = Owned<T, sys::cudnnStatus_t>;

fn check(call: &'static str, status: sys::cudnnStatus_t) -> Result<()> {
    match status {
        sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(Error::Device { call, status: format!("{status:?}") }),
    }
}

/// Makes an object of the library.
fn made<T: Copy>(
    call: &'static str,
    create: impl FnOnce(*mut T) -> sys::cudnnStatus_t,
    destroy: unsafe fn(T) -> sys::cudnnStatus_t,
) -> Result<Object<T>> {
    let mut object = MaybeUninit::uninit();
    check(call, create(object.as_mut_ptr()))?;
    // SAFETY: the call succeeded, and it writes the object.
    Ok(Owned(unsafe { object.assume_init() }, destroy))
}

fn small(size: usize) -> Result<c_int> {
    c_int::try_from(size).map_err(|_| Error::TooLarge { what: "a size for cuDNN" })
}

fn data_type(scalar: Scalar) -> Result<sys::cudnnDataType_t> {
    match scalar {
        Scalar::F32 => Ok(sys::cudnnDataType_t::CUDNN_DATA_FLOAT),
        Scalar::F16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_HALF),
        Scalar::Bf16 => Ok(sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::Mbar => {
            Err(Error::Unsupported { what: "integers by cuDNN" })
        }
    }
}

/// The library's state on a stream, which one thread at a time uses.
pub(in crate::device) struct Handle {
    handle: Mutex<Object<sys::cudnnHandle_t>>,
    stream: Arc<CudaStream>,
}

impl Handle {
    pub(in crate::device) fn new(stream: &Arc<CudaStream>) -> Result<Handle> {
        Library::Cudnn.require()?;
        bind(stream)?;
        // SAFETY: the context is current, and one pointer is written.
        let create = |at| unsafe { sys::cudnnCreate(at) };
        let handle = made("cudnnCreate", create, sys::cudnnDestroy)?;
        // SAFETY: the handle and the stream live; the handle is kept beside the stream.
        let status = unsafe { sys::cudnnSetStream(handle.0, stream.cu_stream().cast()) };
        check("cudnnSetStream", status)?;
        Ok(Handle { handle: Mutex::new(handle), stream: stream.clone() })
    }

    pub(in crate::device) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The handle, for one thread, in whose hands the context is current.
    fn lock(&self) -> Result<MutexGuard<'_, Object<sys::cudnnHandle_t>>> {
        bind(&self.stream)?;
        Ok(self.handle.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What the library has on the device may be in use until the stream is done. A failure leaves nothing to do.
        let _ = bind(&self.stream).map(|()| self.stream.synchronize());
    }
}

/// What a softmax reads and writes: rows without gaps.
pub(in crate::device) struct Rows(Object<sys::cudnnTensorDescriptor_t>);

fn tensor() -> Result<Object<sys::cudnnTensorDescriptor_t>> {
    // SAFETY: one pointer is written.
    let create = |at| unsafe { sys::cudnnCreateTensorDescriptor(at) };
    made("cudnnCreateTensorDescriptor", create, sys::cudnnDestroyTensorDescriptor)
}

impl Rows {
    pub(in crate::device) fn new(scalar: Scalar, [rows, columns]: [usize; 2]) -> Result<Rows> {
        Library::Cudnn.require()?;
        let descriptor = tensor()?;
        let (rows, columns, scalar) = (small(rows)?, small(columns)?, data_type(scalar)?);
        let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
        // SAFETY: the descriptor lives.
        let status = unsafe {
            sys::cudnnSetTensor4dDescriptor(descriptor.0, format, scalar, rows, columns, 1, 1)
        };
        check("cudnnSetTensor4dDescriptor", status)?;
        Ok(Rows(descriptor))
    }

    /// Softmax of each row, behind all work of the stream, whose memory the pointers are; the caller has checked lengths.
    pub(in crate::device) fn softmax(
        &self,
        handle: &Handle,
        log: bool,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let locked = handle.lock()?;
        let (one, zero) = (1_f32, 0_f32);
        let algorithm = match log {
            true => sys::cudnnSoftmaxAlgorithm_t::CUDNN_SOFTMAX_LOG,
            false => sys::cudnnSoftmaxAlgorithm_t::CUDNN_SOFTMAX_ACCURATE,
        };
        // SAFETY: all objects live; the scales are read at the call, and the memories are the device's.
        let status = unsafe {
            sys::cudnnSoftmaxForward(
                locked.0,
                algorithm,
                sys::cudnnSoftmaxMode_t::CUDNN_SOFTMAX_MODE_INSTANCE,
                ptr::from_ref(&one).cast(),
                self.0.0,
                from as *const c_void,
                ptr::from_ref(&zero).cast(),
                self.0.0,
                to as *mut c_void,
            )
        };
        check("cudnnSoftmaxForward", status)
    }
}
