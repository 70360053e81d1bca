//! A GPU as all streams of the process share it.

use super::recording::refuse;
use super::{Error, Library, Result, done, failed};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::ffi::c_void;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Bytes of freed memory that the pool keeps for later allocations of the process; the rest goes back to the GPU when a
/// stream is waited for.
const KEPT: u64 = 256 << 20;

/// The primary context of a GPU.
pub(in crate::device) struct Context {
    cuda: Arc<CudaContext>,
    index: usize,
    /// Whether memory is allocated and freed in the order of a stream.
    pooled: bool,
    /// The private stream of recordings, made by the first. Whoever records has it alone; whoever allocates outside of
    /// a stream's order, loads code or opens a library shares it with others of these, so that none comes between.
    recorder: RwLock<Option<Arc<CudaStream>>>,
    /// Without a pool: memory that is to be freed, which waits for the device.
    freed: Mutex<Vec<sys::CUdeviceptr>>,
    handles: Handles,
}

/// Handles of libraries, by their addresses. None is ever destroyed: cuBLASLt and cuDNN wait for the whole GPU then, and
/// crash where other threads make and drop streams meanwhile.
#[derive(Default)]
pub(super) struct Handles {
    /// cuBLASLt's, which all threads use, once it was asked for.
    pub(super) cublaslt: Mutex<Option<usize>>,
    /// Those of cuDNN that no stream has.
    pub(super) cudnn: Mutex<Vec<usize>>,
}

impl Context {
    /// The GPU of this number, which a process opens once, however often it asks, and for as long as it lives, as programs
    /// of CUDA's runtime do.
    pub(in crate::device) fn open(index: usize) -> Result<Arc<Context>> {
        static OPENED: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
        Library::Driver.require()?;
        let count = match CudaContext::device_count() {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            // What the toolkit has to link with where there is no driver.
            Err(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY)) => {
                return Err(Error::MissingLibrary(Library::Driver));
            }
            Err(error) => return Err(failed("cuDeviceGetCount")(error)),
        };
        if index >= count {
            return Err(Error::NoDevice { index, count });
        }
        refuse("opening a GPU while a graph is recorded")?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = opened.iter().find(|context| context.index == index) {
            return Ok(Arc::clone(known));
        }
        let cuda = CudaContext::new(index).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: no `CudaSlice` is ever made, so that there is nothing to track.
        unsafe { cuda.disable_event_tracking() };
        let pooled = cuda.has_async_alloc();
        let (recorder, freed) = (RwLock::default(), Mutex::default());
        let handles = Handles::default();
        let context = Arc::new(Context { cuda, index, pooled, recorder, freed, handles });
        if pooled {
            context.keep_freed()?;
        }
        opened.push(Arc::clone(&context));
        Ok(context)
    }

    pub(in crate::device) fn cuda(&self) -> &Arc<CudaContext> {
        &self.cuda
    }

    /// The GPU's number.
    pub(in crate::device) fn index(&self) -> usize {
        self.index
    }

    /// Waits until all that the GPU does for the process is done, whoever launched it.
    pub(in crate::device) fn synchronize(&self) -> Result<()> {
        let _guard = self.exclude_recording("waiting for a GPU while a graph is recorded")?;
        result::ctx::synchronize().map_err(failed("cuCtxSynchronize"))
    }

    pub(super) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(super) fn recorder(&self) -> &RwLock<Option<Arc<CudaStream>>> {
        &self.recorder
    }

    /// Makes the context this thread's.
    pub(in crate::device) fn make_current(&self) -> Result<()> {
        // `cudarc` tells what went wrong in a destructor at the next call, whosever that is. If the device is lost, that
        // call says so itself.
        let _ = self.cuda.check_err();
        self.cuda.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    /// Makes the context this thread's for what cannot be done while somebody records a graph, until the guard goes.
    pub(in crate::device) fn exclude_recording(
        &self,
        what: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<Arc<CudaStream>>>> {
        refuse(what)?;
        self.make_current()?;
        Ok(self.recorder.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn new_stream(&self) -> Result<Arc<CudaStream>> {
        self.cuda.new_stream().map_err(failed("cuStreamCreate"))
    }

    /// Bytes that can be allocated, those among them that the pool holds for this process, and bytes of the GPU.
    pub(in crate::device) fn memory(&self) -> Result<(usize, usize)> {
        self.make_current()?;
        let (free, total) = result::mem_get_info().map_err(failed("cuMemGetInfo"))?;
        // Between both questions another thread may free or allocate.
        Ok((free.saturating_add(self.idle().unwrap_or(0)).min(total), total))
    }

    fn pool(&self) -> Result<sys::CUmemoryPool> {
        // SAFETY: the context's own device.
        let pool = unsafe { result::device::get_default_mem_pool(self.cuda.cu_device()) };
        pool.map_err(failed("cuDeviceGetDefaultMemPool"))
    }

    /// Bytes of the pool that no buffer has.
    fn idle(&self) -> Result<usize> {
        use sys::CUmemPool_attribute_enum as Attribute;
        if !self.pooled {
            return Ok(0);
        }
        let pool = self.pool()?;
        let number = |which| -> Result<u64> {
            let mut number = 0_u64;
            let at: *mut u64 = &mut number;
            // SAFETY: the pool lives as long as the process, and one number is written.
            let status = unsafe { sys::cuMemPoolGetAttribute(pool, which, at.cast::<c_void>()) };
            done("cuMemPoolGetAttribute", status).map(|()| number)
        };
        let reserved = number(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = number(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(usize::try_from(reserved.saturating_sub(used)).unwrap_or(0))
    }

    /// Lets the pool keep some of what is freed; more, if somebody in the process asked for more.
    fn keep_freed(&self) -> Result<()> {
        let which = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let pool = self.pool()?;
        let mut kept = 0_u64;
        let at: *mut u64 = &mut kept;
        // SAFETY: the pool lives as long as the process, and one number is written.
        let status = unsafe { sys::cuMemPoolGetAttribute(pool, which, at.cast::<c_void>()) };
        done("cuMemPoolGetAttribute", status)?;
        if kept >= KEPT {
            return Ok(());
        }
        kept = KEPT;
        let at: *mut u64 = &mut kept;
        // SAFETY: as above; the number is read at the call.
        let status = unsafe { sys::cuMemPoolSetAttribute(pool, which, at.cast::<c_void>()) };
        done("cuMemPoolSetAttribute", status)
    }

    /// Memory of so many bytes, whatever it holds, for work behind all that the stream has.
    pub(super) fn allocate(&self, stream: sys::CUstream, bytes: usize) -> Result<sys::CUdeviceptr> {
        let allocated = self.try_allocate(stream, bytes);
        let allocated = match allocated {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) if self.pooled => {
                // What was freed may still wait for work, or lie in pieces.
                // SAFETY: the stream lives, and no recording is on it.
                unsafe { result::stream::synchronize(stream) }
                    .map_err(failed("cuStreamSynchronize"))?;
                let pool = self.pool()?;
                // SAFETY: the pool lives as long as the process.
                done("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(pool, 0) })?;
                self.try_allocate(stream, bytes)
            }
            allocated => allocated,
        };
        allocated.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                // Where even this fails, nothing is known to be free.
                let (free, total) = self.memory().unwrap_or((0, 0));
                Error::DeviceMemory { what: "a buffer".to_owned(), bytes, free, total }
            }
            _ => failed("cuMemAlloc")(error),
        })
    }

    fn try_allocate(
        &self,
        stream: sys::CUstream,
        bytes: usize,
    ) -> std::result::Result<sys::CUdeviceptr, DriverError> {
        if self.pooled {
            // SAFETY: the stream lives; whoever reads the memory writes it first.
            return unsafe { result::malloc_async(stream, bytes) };
        }
        let _guard = self.recorder.read().unwrap_or_else(PoisonError::into_inner);
        let freed = mem::take(&mut *self.freed());
        if !freed.is_empty() {
            // The driver refuses this while any stream of the context records.
            result::ctx::synchronize()?;
            for pointer in freed {
                // SAFETY: nobody has the memory any more, and the device is done with it.
                unsafe { result::free_sync(pointer) }?;
            }
        }
        // SAFETY: whoever reads the memory writes it first.
        unsafe { result::malloc_sync(bytes) }
    }

    /// Frees memory behind all that the stream has, and does not wait.
    pub(super) fn free(&self, stream: sys::CUstream, pointer: sys::CUdeviceptr) {
        if self.pooled {
            // Memory of a device that is lost cannot be freed, and need not be.
            let _ = self.make_current();
            // SAFETY: it is freed once, on a stream that is behind all work that uses it.
            let _ = unsafe { result::free_async(pointer, stream) };
        } else {
            self.freed().push(pointer);
        }
    }

    fn freed(&self) -> MutexGuard<'_, Vec<sys::CUdeviceptr>> {
        self.freed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
