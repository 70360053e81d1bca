//! cuDNN's calls: its state and softmaxes here, recurrent layers in `rnn`, graphs of operations in `graph`.

mod descriptor;
pub(in crate::device) mod graph;
pub(in crate::device) mod rnn;

use super::context::Context;
use super::stream::Stream;
use super::{Library, Owned, failed};
use crate::error::{Error, Result};
use cudarc::cudnn::sys;
use cudarc::driver::{CudaStream, result};
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
        Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::I8 | Scalar::Mbar => {
            Err(Error::Unsupported { what: "integers by cuDNN" })
        }
    }
}

/// The library's state for a stream, which one thread at a time uses. No other stream runs with it: the library keeps
/// memory of its own there.
pub(in crate::device) struct Handle {
    state: Mutex<State>,
    /// The stream that its work is on. The context lives as long.
    stream: Arc<CudaStream>,
    context: Arc<Context>,
}

/// The library's object by its address, and the stream that it launches on.
struct State {
    object: usize,
    /// By its address.
    to: usize,
}

/// The library's state in the hands of one thread.
struct Locked<'a>(MutexGuard<'a, State>);

impl Locked<'_> {
    fn raw(&self) -> sys::cudnnHandle_t {
        self.0.object as sys::cudnnHandle_t
    }
}

impl Handle {
    pub(super) fn new(stream: &Stream) -> Result<Handle> {
        Library::Cudnn.require()?;
        let context = Arc::clone(stream.context());
        let guard = context.exclude_recording("opening cuDNN while a graph is recorded")?;
        let kept = || context.handles().cudnn.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept().pop();
        let object = match known {
            Some(known) => known,
            None => {
                let mut object = MaybeUninit::uninit();
                // SAFETY: the context is current, and one pointer is written.
                check("cudnnCreate", unsafe { sys::cudnnCreate(object.as_mut_ptr()) })?;
                // SAFETY: the call succeeded, and it writes the object.
                (unsafe { object.assume_init() }) as usize
            }
        };
        drop(guard);
        let state = Mutex::new(State { object, to: 0 });
        Ok(Handle { state, stream: Arc::clone(stream.cuda()), context })
    }

    /// The library for one thread, in which the context is current, to describe and not to launch.
    fn lock(&self) -> Result<Locked<'_>> {
        self.context.make_current()?;
        Ok(Locked(self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Likewise to launch where launches on the stream go. The handle must be the stream's own.
    fn launching(&self, stream: &Stream) -> Result<Locked<'_>> {
        let to = stream.target()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.to != to as usize {
            // SAFETY: the handle and the stream live; whoever launches next sets the stream again.
            let status =
                unsafe { sys::cudnnSetStream(state.object as sys::cudnnHandle_t, to.cast()) };
            check("cudnnSetStream", status)?;
            state.to = to as usize;
        }
        Ok(Locked(state))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // What the library has on the device may be in use until the stream is done. Then another stream may have the
        // object; after a failure nobody has it.
        let wait = || {
            self.context.make_current()?;
            // SAFETY: the stream lives.
            unsafe { result::stream::synchronize(self.stream.cu_stream()) }
                .map_err(failed("cuStreamSynchronize"))
        };
        if wait().is_ok() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            let kept = self.context.handles().cudnn.lock();
            kept.unwrap_or_else(PoisonError::into_inner).push(state.object);
        }
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
        (handle, stream): (&Handle, &Stream),
        log: bool,
        from: u64,
        to: u64,
    ) -> Result<()> {
        let locked = handle.launching(stream)?;
        let (one, zero) = (1_f32, 0_f32);
        let algorithm = match log {
            true => sys::cudnnSoftmaxAlgorithm_t::CUDNN_SOFTMAX_LOG,
            false => sys::cudnnSoftmaxAlgorithm_t::CUDNN_SOFTMAX_ACCURATE,
        };
        // SAFETY: all objects live; the scales are read at the call, and the memories are the device's.
        let status = unsafe {
            sys::cudnnSoftmaxForward(
                locked.raw(),
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
