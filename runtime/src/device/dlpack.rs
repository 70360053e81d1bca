//! Tensors that go to other libraries of the process and come from them, by the DLPack specification, version 1: no byte is
//! copied.
//!
//! [`Buffer::export`] lends a buffer, [`export_host`] a tensor of the host; [`Stream::import`] takes what another library
//! lends as a buffer. Who lends is told by a function that the tensor carries when the other is done: dropping a
//! [`ManagedTensor`] calls it, and so does dropping the last of a [`Buffer`] that was made of one.
//!
//! Structures are those of `dlpack.h`; names of theirs are kept. How a tensor goes through Python, in a capsule, is the
//! caller's to do.
#![allow(unsafe_code)]

use super::sys::memory::Memory;
use super::sys::recording::Outside;
use super::{Buffer, Stream};
use crate::error::{Error, Result};
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::Tensor;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;

/// The version whose structures these are. Another minor version has the same.
const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 0 };

/// The flag of a tensor that may not be written.
const READ_ONLY: u64 = 1;

/// What tensors have at most of dimensions here.
const MAX_RANK: i32 = 64;

/// A version.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Structures of another major version are other ones.
    pub major: u32,
    /// A later one knows more devices and types.
    pub minor: u32,
}

/// Where a tensor is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind: 1 for a CPU, 2 for a GPU of CUDA's.
    pub device_type: i32,
    /// Its number, 0 on the host.
    pub device_id: i32,
}

impl DLDevice {
    /// The host's memory.
    pub const CPU: DLDevice = DLDevice { device_type: 1, device_id: 0 };

    /// The memory of a GPU.
    const fn cuda(index: i32) -> DLDevice {
        DLDevice { device_type: 2, device_id: index }
    }
}

/// A type of elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
    pub code: u8,
    /// Bits of a number.
    pub bits: u8,
    /// Numbers of an element.
    pub lanes: u16,
}

/// A tensor, whosever it is.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Its memory; nothing if it has no elements.
    pub data: *mut c_void,
    /// Where that is.
    pub device: DLDevice,
    /// How many dimensions there are.
    pub ndim: i32,
    /// What its elements are.
    pub dtype: DLDataType,
    /// Elements along each dimension.
    pub shape: *mut i64,
    /// Elements from one to the next along each dimension; before version 1.2, nothing stands for row-major.
    pub strides: *mut i64,
    /// Bytes before the first element.
    pub byte_offset: u64,
}

/// A tensor that is lent, as libraries before version 1 have it.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Its owner's.
    pub manager_ctx: *mut c_void,
    /// Called once, with the structure itself, when the borrower is done.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor that is lent.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// By which version the rest is to be read.
    pub version: DLPackVersion,
    /// Its owner's.
    pub manager_ctx: *mut c_void,
    /// Called once, with the structure itself, when the borrower is done.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bit 0: the tensor may not be written.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// A structure that lends a tensor: [`DLManagedTensorVersioned`] or [`DLManagedTensor`].
pub trait Managed: Sized + 'static + sealed::Sealed {
    #[doc(hidden)]
    fn wrap(tensor: DLTensor, owner: *mut c_void, read_only: bool) -> Self;
    #[doc(hidden)]
    fn version(&self) -> DLPackVersion;
    #[doc(hidden)]
    fn tensor(&self) -> &DLTensor;
    #[doc(hidden)]
    fn owner(&self) -> *mut c_void;
    #[doc(hidden)]
    fn is_read_only(&self) -> bool;
    #[doc(hidden)]
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

mod sealed {
    /// What only this module says of a type.
    pub trait Sealed {}
    impl Sealed for super::DLManagedTensor {}
    impl Sealed for super::DLManagedTensorVersioned {}
}

impl Managed for DLManagedTensor {
    fn wrap(dl_tensor: DLTensor, manager_ctx: *mut c_void, _: bool) -> Self {
        Self { dl_tensor, manager_ctx, deleter: Some(delete::<Self>) }
    }

    fn version(&self) -> DLPackVersion {
        VERSION
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn owner(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Managed for DLManagedTensorVersioned {
    fn wrap(dl_tensor: DLTensor, manager_ctx: *mut c_void, read_only: bool) -> Self {
        let flags = if read_only { READ_ONLY } else { 0 };
        Self { version: VERSION, manager_ctx, deleter: Some(delete::<Self>), flags, dl_tensor }
    }

    fn version(&self) -> DLPackVersion {
        self.version
    }

    fn tensor(&self) -> &DLTensor {
        &self.dl_tensor
    }

    fn owner(&self) -> *mut c_void {
        self.manager_ctx
    }

    fn is_read_only(&self) -> bool {
        self.flags & READ_ONLY != 0
    }

    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

/// What a tensor of ours needs as long as it is lent.
struct Lent {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Box<dyn Send>,
}

/// Ends the loan of a tensor of ours.
unsafe extern "C" fn delete<M: Managed>(tensor: *mut M) {
    // SAFETY: both were boxes, and whoever borrowed the tensor calls this once.
    drop(unsafe {
        let tensor = Box::from_raw(tensor);
        Box::from_raw(tensor.owner().cast::<Lent>())
    });
}

/// Lends memory.
fn lend<M: Managed>(
    (data, device): (*mut c_void, DLDevice),
    (dtype, shape): (DType, &[usize]),
    read_only: bool,
    memory: Box<dyn Send>,
) -> Result<ManagedTensor<M>> {
    let large = |_| Error::TooLarge { what: "a tensor for another library" };
    let dtype = data_type(dtype)?;
    let shape: Vec<i64> =
        shape.iter().map(|&size| i64::try_from(size).map_err(large)).collect::<Result<_>>()?;
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    let ndim = i32::try_from(shape.len())
        .map_err(|_| Error::TooLarge { what: "the rank of a tensor for another library" })?;
    let data = if shape.contains(&0) { ptr::null_mut() } else { data };
    let mut lent = Box::new(Lent { shape, strides, _memory: memory });
    let (shape, strides) = (lent.shape.as_mut_ptr(), lent.strides.as_mut_ptr());
    let tensor = DLTensor { data, device, ndim, dtype, shape, strides, byte_offset: 0 };
    let tensor = Box::new(M::wrap(tensor, Box::into_raw(lent).cast(), read_only));
    let raw = NonNull::from(Box::leak(tensor));
    // SAFETY: it is made as the specification asks, just now.
    unsafe { ManagedTensor::from_raw(raw) }
}

/// Lends a tensor of the host's, which stays what it is.
///
/// # Errors
///
/// [`Error::Unsupported`] for a type that DLPack does not have.
pub fn export_host<M: Managed>(tensor: &Tensor) -> Result<ManagedTensor<M>> {
    let data = tensor.bytes().as_ptr().cast_mut().cast();
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    // Others may hold the tensor: nobody may write it.
    lend((data, DLDevice::CPU), (dtype, shape), true, Box::new(tensor.clone()))
}

/// A tensor that is lent, by whomever, with the duty to say when it is no longer needed: dropping it does.
pub struct ManagedTensor<M: Managed> {
    raw: Borrowed<M>,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
}

// SAFETY: the specification lets any thread call the deleter, and nobody writes the structure.
unsafe impl<M: Managed> Send for ManagedTensor<M> {}
// SAFETY: as above; shared references only read.
unsafe impl<M: Managed> Sync for ManagedTensor<M> {}

/// Calls the deleter when it goes.
struct Borrowed<M: Managed>(NonNull<M>);

impl<M: Managed> Drop for Borrowed<M> {
    fn drop(&mut self) {
        // SAFETY: the structure lives until this, which is called once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter() {
                deleter(self.0.as_ptr());
            }
        }
    }
}

impl<M: Managed> ManagedTensor<M> {
    /// Takes a tensor that another library lends. If it is refused, its deleter is called.
    ///
    /// # Safety
    ///
    /// It is as the specification says, has not been given to anybody else, and any thread may call its deleter.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a tensor of another major version, a type that is not known here, or elements that do not
    /// lie row-major without gaps; [`Error::TooLarge`].
    pub unsafe fn from_raw(raw: NonNull<M>) -> Result<Self> {
        let borrowed = Borrowed(raw);
        // SAFETY: the structure lives, and its head is the same in all versions.
        let managed = unsafe { raw.as_ref() };
        if managed.version().major != VERSION.major {
            return Err(Error::Unsupported { what: "a tensor of another version of DLPack" });
        }
        let tensor = managed.tensor();
        let large = Error::TooLarge { what: "a tensor of another library" };
        let rank = match tensor.ndim {
            0..=MAX_RANK => tensor.ndim as usize,
            _ => return Err(large),
        };
        let numbers = |at: *mut i64| match (rank, at.is_null()) {
            (0, _) | (_, true) => None,
            // SAFETY: there are as many numbers as dimensions, which nobody writes.
            (rank, false) => Some(unsafe { slice::from_raw_parts(at.cast_const(), rank) }),
        };
        let sizes = numbers(tensor.shape).unwrap_or_default();
        if sizes.len() != rank {
            return Err(Error::Unsupported { what: "a tensor of another library without a shape" });
        }
        let shape: Option<Vec<usize>> =
            sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let shape = shape.ok_or(large.clone())?;
        let dtype = element_type(tensor.dtype)?;
        let elements = match shape.contains(&0) {
            true => Some(0),
            false => shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size)),
        };
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size()));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or(large)?;
        if let Some(strides) = numbers(tensor.strides).filter(|_| bytes > 0) {
            let mut packed = 1;
            for (&size, &stride) in sizes.iter().zip(strides).rev() {
                if size != 1 && stride != packed {
                    return Err(Error::Unsupported {
                        what: "a tensor of another library with gaps",
                    });
                }
                packed *= size;
            }
        }
        if bytes > 0 && tensor.data.is_null() {
            return Err(Error::Unsupported { what: "a tensor of another library without memory" });
        }
        Ok(Self { raw: borrowed, dtype, shape, bytes })
    }

    /// Gives the tensor away: whoever has the structure calls its deleter when done.
    pub fn into_raw(self) -> NonNull<M> {
        ManuallyDrop::new(self.raw).0
    }

    fn tensor(&self) -> &DLTensor {
        // SAFETY: the structure lives as long as this.
        unsafe { self.raw.0.as_ref() }.tensor()
    }

    /// What its elements are.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where it is.
    pub fn device(&self) -> DLDevice {
        self.tensor().device
    }

    /// Its elements, if they are in the host's memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        let at = self.address()?;
        match (self.device() == DLDevice::CPU, self.bytes) {
            (false, _) => None,
            (true, 0) => Some(&[]),
            // SAFETY: by the specification the memory has the elements, and is lent as long as this lives.
            (true, bytes) => Some(unsafe { slice::from_raw_parts(at as *const u8, bytes) }),
        }
    }

    /// Where the first element is.
    fn address(&self) -> Option<u64> {
        let tensor = self.tensor();
        (tensor.data as u64).checked_add(tensor.byte_offset)
    }
}

/// A buffer that another library has, as long as that needs it.
struct Outward(ManuallyDrop<Buffer>);

impl Drop for Outward {
    fn drop(&mut self) {
        let context = self.0.stream().device().context();
        // The other library's work may still use the memory, on streams that nobody here knows.
        if context.synchronize().is_ok() {
            // SAFETY: it is taken once, here, and not used afterwards.
            drop(unsafe { ManuallyDrop::take(&mut self.0) });
        }
        // Otherwise nobody knows what still runs, and the memory stays.
    }
}

impl Buffer {
    /// Lends the buffer, row-major elements of this type and shape, to another library, once all that was launched on its
    /// stream is done. The memory is freed when the other is done with it and no buffer is left, behind all that the
    /// whole device does then. What both do to it meanwhile is for the caller to order.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] if it has fewer bytes; [`Error::Unsupported`] for a type that DLPack does not have, and
    /// while this thread records a graph; [`Error::Device`].
    pub fn export<M: Managed>(&self, dtype: DType, shape: &[usize]) -> Result<ManagedTensor<M>> {
        let elements = shape.iter().try_fold(1_usize, |all, &size| all.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.size()));
        let bytes = bytes.ok_or(Error::TooLarge { what: "a tensor for another library" })?;
        if bytes > self.len() {
            let (expected, found) = (bytes, self.len());
            return Err(Error::Mismatch { what: "bytes of a buffer", expected, found });
        }
        data_type(dtype)?;
        self.stream().synchronize()?;
        let index = i32::try_from(self.stream().device().context().index());
        let index = index.map_err(|_| Error::TooLarge { what: "the number of a GPU" })?;
        let memory = Outside::new(Outward(ManuallyDrop::new(self.clone())));
        let at = (self.pointer() as *mut c_void, DLDevice::cuda(index));
        lend(at, (dtype, shape), self.is_read_only(), Box::new(memory))
    }
}

impl Stream {
    /// What another library lends, as a buffer of this stream: its elements' bytes. The other library's work on them must be
    /// done, or come before this stream's in the device's order, as the caller sees to. The lender is told when the
    /// last of the buffer is dropped and this stream's work is done.
    ///
    /// # Errors
    ///
    /// [`Error::Foreign`] for a tensor that is not in this device's memory.
    pub fn import<M: Managed>(&self, tensor: ManagedTensor<M>) -> Result<Buffer> {
        let own = i32::try_from(self.device().context().index()).map(DLDevice::cuda);
        let foreign = || Error::Foreign { tensor: "another library's tensor".to_owned() };
        let at = tensor.address().filter(|_| own == Ok(tensor.device())).ok_or_else(foreign)?;
        // SAFETY: the structure lives.
        let read_only = unsafe { tensor.raw.0.as_ref() }.is_read_only();
        let len = tensor.bytes;
        // SAFETY: by the specification the memory has the elements, and is lent until the tensor is dropped.
        let memory = unsafe { Memory::foreign(self.shared(), (at, len), Box::new(tensor)) };
        let mut buffer = Buffer::new(self, memory, len);
        buffer.read_only = read_only;
        Ok(buffer)
    }
}

/// The types that both have: the code and bits of each.
const TYPES: [(DType, u8, u8); 13] = [
    (DType::I8, 0, 8),
    (DType::I16, 0, 16),
    (DType::I32, 0, 32),
    (DType::I64, 0, 64),
    (DType::U8, 1, 8),
    (DType::U16, 1, 16),
    (DType::U32, 1, 32),
    (DType::U64, 1, 64),
    (DType::F16, 2, 16),
    (DType::F32, 2, 32),
    (DType::F64, 2, 64),
    (DType::BF16, 4, 16),
    (DType::Bool, 6, 8),
];

fn data_type(dtype: DType) -> Result<DLDataType> {
    let row = TYPES.iter().find(|row| row.0 == dtype);
    let (_, code, bits) =
        *row.ok_or(Error::Unsupported { what: "a tensor of this type in another library" })?;
    Ok(DLDataType { code, bits, lanes: 1 })
}

fn element_type(dtype: DLDataType) -> Result<DType> {
    let DLDataType { code, bits, lanes } = dtype;
    let row = TYPES.iter().find(|row| (row.1, row.2, 1) == (code, bits, lanes));
    let row = row.ok_or(Error::Unsupported { what: "another library's tensor of this type" })?;
    Ok(row.0)
}

#[cfg(test)]
mod tests {
    use super::{
        DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
        Managed, ManagedTensor, TYPES, data_type, element_type, export_host,
    };
    use crate::error::Error;
    use graphene_frontend::dtype::DType;
    use graphene_frontend::tensor::Tensor;
    use std::ffi::c_void;
    use std::mem::offset_of;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn structures_are_those_of_the_specification() {
        assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>()), (8, 4));
        let fields = [
            offset_of!(DLTensor, data),
            offset_of!(DLTensor, device),
            offset_of!(DLTensor, ndim),
            offset_of!(DLTensor, dtype),
            offset_of!(DLTensor, shape),
            offset_of!(DLTensor, strides),
            offset_of!(DLTensor, byte_offset),
            size_of::<DLTensor>(),
        ];
        assert_eq!(fields, [0, 8, 16, 20, 24, 32, 40, 48]);
        let fields = [
            offset_of!(DLManagedTensor, dl_tensor),
            offset_of!(DLManagedTensor, manager_ctx),
            offset_of!(DLManagedTensor, deleter),
            size_of::<DLManagedTensor>(),
        ];
        assert_eq!(fields, [0, 48, 56, 64]);
        let fields = [
            offset_of!(DLManagedTensorVersioned, version),
            offset_of!(DLManagedTensorVersioned, manager_ctx),
            offset_of!(DLManagedTensorVersioned, deleter),
            offset_of!(DLManagedTensorVersioned, flags),
            offset_of!(DLManagedTensorVersioned, dl_tensor),
            size_of::<DLManagedTensorVersioned>(),
        ];
        assert_eq!(fields, [0, 8, 16, 24, 32, 80]);
    }

    #[test]
    fn types_go_there_and_back() {
        for (dtype, _, bits) in TYPES {
            assert_eq!(data_type(dtype).and_then(element_type), Ok(dtype));
            assert_eq!(dtype.size() * 8, usize::from(bits));
        }
        assert!(data_type(DType::I4).is_err());
        assert!(element_type(DLDataType { code: 2, bits: 32, lanes: 4 }).is_err());
    }

    /// A tensor of the host's goes to another library and comes back from it: the same memory.
    fn round_trip<M: Managed>() {
        let tensor = Tensor::from_vec(vec![2, 3], vec![1_i32, 2, 3, 4, 5, 6]).expect("a tensor");
        let lent = export_host::<M>(&tensor).expect("it has the type");
        assert_eq!(lent.host_bytes().map(<[u8]>::as_ptr), Some(tensor.bytes().as_ptr()));
        let raw = lent.into_raw();
        // SAFETY: it was made above, and nobody else has it.
        let back = unsafe { ManagedTensor::from_raw(raw) }.expect("it is row-major");
        assert_eq!((back.dtype(), back.shape()), (DType::I32, &[2, 3][..]));
        assert_eq!(back.device(), DLDevice::CPU);
        drop(tensor);
        let expected: Vec<u8> = (1..=6_i32).flat_map(i32::to_le_bytes).collect();
        assert_eq!(back.host_bytes(), Some(&expected[..]));
    }

    #[test]
    fn what_is_lent_is_the_same_memory() {
        round_trip::<DLManagedTensorVersioned>();
        round_trip::<DLManagedTensor>();
        let empty = Tensor::from_vec(vec![0, 3], Vec::<f32>::new()).expect("a tensor");
        let empty = export_host::<DLManagedTensor>(&empty).expect("it has the type");
        assert_eq!((empty.shape(), empty.host_bytes()), (&[0, 3][..], Some(&[][..])));
    }

    /// Another library's tensor, which counts how often its end is told.
    struct Other {
        elements: [f32; 6],
        shape: [i64; 2],
        strides: [i64; 2],
        ended: AtomicUsize,
    }

    unsafe extern "C" fn end(tensor: *mut DLManagedTensorVersioned) {
        // SAFETY: the structure was a box, and its owner outlives it.
        let owner = unsafe {
            let tensor = Box::from_raw(tensor);
            &*tensor.manager_ctx.cast_const().cast::<Other>()
        };
        owner.ended.fetch_add(1, Ordering::Relaxed);
    }

    impl Other {
        fn new(strides: [i64; 2]) -> Box<Other> {
            let elements = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
            Box::new(Other { elements, shape: [2, 2], strides, ended: AtomicUsize::new(0) })
        }

        fn lend(
            &mut self,
            change: impl FnOnce(&mut DLManagedTensorVersioned),
        ) -> Result<ManagedTensor<DLManagedTensorVersioned>, Error> {
            let dl_tensor = DLTensor {
                data: self.elements.as_mut_ptr().cast(),
                device: DLDevice::CPU,
                ndim: 2,
                dtype: DLDataType { code: 2, bits: 32, lanes: 1 },
                shape: self.shape.as_mut_ptr(),
                strides: self.strides.as_mut_ptr(),
                byte_offset: 8,
            };
            let manager_ctx: *mut c_void = std::ptr::from_mut(self).cast();
            let version = DLPackVersion { major: 1, minor: 9 };
            let deleter = Some(end as unsafe extern "C" fn(_));
            let mut managed =
                DLManagedTensorVersioned { version, manager_ctx, deleter, flags: 0, dl_tensor };
            change(&mut managed);
            let raw = NonNull::from(Box::leak(Box::new(managed)));
            // SAFETY: it is as the specification says, or says itself that it is of another version.
            unsafe { ManagedTensor::from_raw(raw) }
        }

        fn ended(&self) -> usize {
            self.ended.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn lenders_are_told_once() {
        let mut other = Other::new([2, 1]);
        let tensor = other.lend(|_| ()).expect("it is row-major");
        let expected: Vec<u8> =
            [2.0, 3.0, 4.0, 5.0_f32].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(tensor.host_bytes(), Some(&expected[..]));
        assert_eq!(other.ended(), 0);
        let raw = tensor.into_raw();
        assert_eq!(other.ended(), 0);
        // SAFETY: it came from there.
        drop(unsafe { ManagedTensor::from_raw(raw) });
        assert_eq!(other.ended(), 1);
    }

    #[test]
    fn what_is_refused_goes_back_to_its_lender() {
        type Change = fn(&mut DLManagedTensorVersioned);
        let changes: [Change; 6] = [
            |managed| managed.version.major = 2,
            |managed| managed.dl_tensor.dtype.lanes = 4,
            |managed| managed.dl_tensor.ndim = -1,
            |managed| managed.dl_tensor.data = std::ptr::null_mut(),
            |managed| managed.dl_tensor.shape = std::ptr::null_mut(),
            // SAFETY: there are two strides.
            |managed| unsafe { *managed.dl_tensor.strides = 3 },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut other = Other::new([2, 1]);
            assert!(other.lend(change).is_err(), "{number}");
            assert_eq!(other.ended(), 1, "{number}");
        }
        // A dimension of one may have any stride, and no strides are row-major ones.
        let mut other = Other::new([9, 1]);
        other.shape = [1, 2];
        assert!(other.lend(|_| ()).is_ok());
        assert!(other.lend(|managed| managed.dl_tensor.strides = std::ptr::null_mut()).is_ok());
        assert_eq!(other.ended(), 2);
    }
}
