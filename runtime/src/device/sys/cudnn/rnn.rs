//! cuDNN's calls for recurrent layers.

use super::super::failed;
use super::super::stream::Stream;
use super::{Handle, Object, check, data_type, made, small, tensor};
use crate::device::cudnn::{Cell, Layer, Sizes};
use crate::error::Result;
use cudarc::cudnn::sys;
use cudarc::driver::sys as driver;
use graphene_ir::tensor::Scalar;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// A way of cuDNN's to compute a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Algorithm {
    /// A matmul a step.
    Standard,
    /// Weights stay in registers.
    Persistent,
}

/// A layer, as the library knows it.
pub(in crate::device) struct Rnn {
    descriptor: Object<sys::cudnnRNNDescriptor_t>,
    /// Kept as long as the descriptor that has it.
    _dropout: Object<sys::cudnnDropoutDescriptor_t>,
    weight_bytes: usize,
    running: Mutex<()>,
}

/// Where one gate's weights lie in the space of all of a layer's: bytes before them, and how many elements they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct Place {
    pub(in crate::device) first: usize,
    pub(in crate::device) elements: usize,
}

impl Rnn {
    pub(in crate::device) fn new(
        handle: &Handle,
        layer: &Layer,
        algorithm: Algorithm,
    ) -> Result<Rnn> {
        let locked = handle.lock()?;
        // SAFETY: one pointer is written.
        let create = |at| unsafe { sys::cudnnCreateDropoutDescriptor(at) };
        let destroy = sys::cudnnDestroyDropoutDescriptor;
        let dropout = made("cudnnCreateDropoutDescriptor", create, destroy)?;
        // SAFETY: both live; without dropout there are no states.
        let status = unsafe {
            sys::cudnnSetDropoutDescriptor(dropout.0, locked.raw(), 0.0, ptr::null_mut(), 0, 0)
        };
        check("cudnnSetDropoutDescriptor", status)?;
        // SAFETY: one pointer is written.
        let create = |at| unsafe { sys::cudnnCreateRNNDescriptor(at) };
        let descriptor = made("cudnnCreateRNNDescriptor", create, sys::cudnnDestroyRNNDescriptor)?;
        let data = data_type(layer.scalar)?;
        let math = match layer.scalar {
            // Neither TF32 nor half precision stands for single precision.
            Scalar::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        let (inputs, hidden) = (small(layer.inputs)?, small(layer.hidden)?);
        // SAFETY: the descriptors live, and the call reads numbers beside them.
        let status = unsafe {
            sys::cudnnSetRNNDescriptor_v8(
                descriptor.0,
                match algorithm {
                    Algorithm::Standard => sys::cudnnRNNAlgo_t::CUDNN_RNN_ALGO_STANDARD,
                    Algorithm::Persistent => sys::cudnnRNNAlgo_t::CUDNN_RNN_ALGO_PERSIST_STATIC,
                },
                match layer.cell {
                    Cell::Lstm => sys::cudnnRNNMode_t::CUDNN_LSTM,
                    Cell::Gru => sys::cudnnRNNMode_t::CUDNN_GRU,
                    Cell::Tanh => sys::cudnnRNNMode_t::CUDNN_RNN_TANH,
                    Cell::Relu => sys::cudnnRNNMode_t::CUDNN_RNN_RELU,
                },
                match layer.bias {
                    true => sys::cudnnRNNBiasMode_t::CUDNN_RNN_DOUBLE_BIAS,
                    false => sys::cudnnRNNBiasMode_t::CUDNN_RNN_NO_BIAS,
                },
                match layer.directions {
                    2 => sys::cudnnDirectionMode_t::CUDNN_BIDIRECTIONAL,
                    _ => sys::cudnnDirectionMode_t::CUDNN_UNIDIRECTIONAL,
                },
                sys::cudnnRNNInputMode_t::CUDNN_LINEAR_INPUT,
                data,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
                math,
                inputs,
                hidden,
                hidden,
                1,
                dropout.0,
                // `CUDNN_RNN_PADDED_IO_DISABLED`: sequences are of one length.
                0,
            )
        };
        check("cudnnSetRNNDescriptor_v8", status)?;
        let mut weight_bytes = 0;
        // SAFETY: both live, and one number is written.
        let status = unsafe {
            sys::cudnnGetRNNWeightSpaceSize(locked.raw(), descriptor.0, &mut weight_bytes)
        };
        check("cudnnGetRNNWeightSpaceSize", status)?;
        Ok(Rnn { descriptor, _dropout: dropout, weight_bytes, running: Mutex::default() })
    }

    /// Bytes of the space of all weights.
    pub(in crate::device) fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Where a matrix of a direction's, by the library's number, and its bias lie in a space of weights on the device.
    pub(in crate::device) fn places(
        &self,
        handle: &Handle,
        space: u64,
        direction: usize,
        number: usize,
    ) -> Result<[Option<Place>; 2]> {
        let locked = handle.lock()?;
        let descriptors = [tensor()?, tensor()?];
        let mut at = [ptr::null_mut::<c_void>(); 2];
        let [matrix, bias] = &mut at;
        let (direction, number) = (small(direction)?, small(number)?);
        // SAFETY: all objects live; the space is not read, and two addresses within it are written.
        let status = unsafe {
            sys::cudnnGetRNNWeightParams(
                locked.raw(),
                self.descriptor.0,
                direction,
                self.weight_bytes,
                space as *const c_void,
                number,
                descriptors[0].0,
                matrix,
                descriptors[1].0,
                bias,
            )
        };
        check("cudnnGetRNNWeightParams", status)?;
        let mut places = [None; 2];
        for ((place, descriptor), at) in places.iter_mut().zip(&descriptors).zip(at) {
            let first =
                (at as u64).checked_sub(space).and_then(|first| usize::try_from(first).ok());
            if let Some(first) = first.filter(|_| !at.is_null()) {
                *place = Some(Place { first, elements: elements(descriptor)? });
            }
        }
        Ok(places)
    }

    /// The layer on sequences of sizes, with the bytes of workspace that it needs beside them.
    pub(in crate::device) fn bind(
        &self,
        handle: &Handle,
        layer: &Layer,
        sizes: Sizes,
    ) -> Result<(Sequences, usize)> {
        let locked = handle.lock()?;
        let [x, y] = [layer.inputs, layer.hidden * layer.directions]
            .map(|elements| sequence(layer.scalar, sizes, elements));
        let (x, y) = (x?, y?);
        let state = states(layer, sizes)?;
        let (mut workspace, mut reserve) = (0, 0);
        // SAFETY: all objects live, and two numbers are written.
        let status = unsafe {
            sys::cudnnGetRNNTempSpaceSizes(
                locked.raw(),
                self.descriptor.0,
                sys::cudnnForwardMode_t::CUDNN_FWD_MODE_INFERENCE,
                x.0,
                &mut workspace,
                &mut reserve,
            )
        };
        check("cudnnGetRNNTempSpaceSizes", status)?;
        Ok((Sequences { x, y, state }, workspace))
    }

    /// Runs the layer, behind all work of the stream, whose memory the pointers are; the caller has checked lengths.
    pub(in crate::device) fn run(
        &self,
        (handle, stream): (&Handle, &Stream),
        sequences: &Sequences,
        at: &Pointers,
    ) -> Result<()> {
        let locked = handle.launching(stream)?;
        // The library does not say that two threads may run one layer at once.
        let _alone = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Pointers { lengths, x, y, initial, last, weights, workspace } = *at;
        let read = |pointer: Option<u64>| pointer.unwrap_or(0) as *const c_void;
        let written = |pointer: Option<u64>| pointer.unwrap_or(0) as *mut c_void;
        // SAFETY: all objects live; states that are not there are null, which the library takes for zeros or leaves
        // out, and the memories are the device's.
        let status = unsafe {
            sys::cudnnRNNForward(
                locked.raw(),
                self.descriptor.0,
                sys::cudnnForwardMode_t::CUDNN_FWD_MODE_INFERENCE,
                lengths as *const i32,
                sequences.x.0,
                x as *const c_void,
                sequences.y.0,
                y as *mut c_void,
                sequences.state.0,
                read(initial[0]),
                written(last[0]),
                sequences.state.0,
                read(initial[1]),
                written(last[1]),
                self.weight_bytes,
                weights as *const c_void,
                workspace.1,
                workspace.0 as *mut c_void,
                0,
                ptr::null_mut(),
            )
        };
        check("cudnnRNNForward", status)
    }
}

/// Where a layer's operands lie: `[h, c]` before the first step and after the last, and workspace with its bytes.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct Pointers {
    pub(in crate::device) lengths: u64,
    pub(in crate::device) x: u64,
    pub(in crate::device) y: u64,
    pub(in crate::device) initial: [Option<u64>; 2],
    pub(in crate::device) last: [Option<u64>; 2],
    pub(in crate::device) weights: u64,
    pub(in crate::device) workspace: (u64, usize),
}

/// What a layer reads and writes, at sizes.
pub(in crate::device) struct Sequences {
    x: Object<sys::cudnnRNNDataDescriptor_t>,
    y: Object<sys::cudnnRNNDataDescriptor_t>,
    state: Object<sys::cudnnTensorDescriptor_t>,
}

/// Sequences of one length, step by step.
fn sequence(
    scalar: Scalar,
    Sizes { steps, batch }: Sizes,
    elements: usize,
) -> Result<Object<sys::cudnnRNNDataDescriptor_t>> {
    // SAFETY: one pointer is written.
    let create = |at| unsafe { sys::cudnnCreateRNNDataDescriptor(at) };
    let destroy = sys::cudnnDestroyRNNDataDescriptor;
    let descriptor = made("cudnnCreateRNNDataDescriptor", create, destroy)?;
    let lengths = vec![small(steps)?; batch];
    let (scalar, steps) = (data_type(scalar)?, small(steps)?);
    let (batch, elements) = (small(batch)?, small(elements)?);
    // SAFETY: the descriptor lives, there are as many lengths as sequences, and they are copied.
    let status = unsafe {
        sys::cudnnSetRNNDataDescriptor(
            descriptor.0,
            scalar,
            sys::cudnnRNNDataLayout_t::CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED,
            steps,
            batch,
            elements,
            lengths.as_ptr(),
            ptr::null_mut(),
        )
    };
    check("cudnnSetRNNDataDescriptor", status)?;
    Ok(descriptor)
}

/// States of a layer: `[directions, batch, hidden]`.
fn states(layer: &Layer, sizes: Sizes) -> Result<Object<sys::cudnnTensorDescriptor_t>> {
    let descriptor = tensor()?;
    let dims = [small(layer.directions)?, small(sizes.batch)?, small(layer.hidden)?];
    let strides = [small(sizes.batch * layer.hidden)?, dims[2], 1];
    let scalar = data_type(layer.scalar)?;
    // SAFETY: the descriptor lives, and there are three sizes and strides, which are copied.
    let status = unsafe {
        sys::cudnnSetTensorNdDescriptor(descriptor.0, scalar, 3, dims.as_ptr(), strides.as_ptr())
    };
    check("cudnnSetTensorNdDescriptor", status)?;
    Ok(descriptor)
}

/// How many elements a tensor has.
fn elements(descriptor: &Object<sys::cudnnTensorDescriptor_t>) -> Result<usize> {
    const MOST: usize = 8;
    let mut scalar = MaybeUninit::uninit();
    let (mut rank, mut dims, mut strides) = (0, [0; MOST], [0; MOST]);
    // SAFETY: the descriptor lives, and there is room for as many dims as are asked for.
    let status = unsafe {
        sys::cudnnGetTensorNdDescriptor(
            descriptor.0,
            MOST as c_int,
            scalar.as_mut_ptr(),
            &mut rank,
            dims.as_mut_ptr(),
            strides.as_mut_ptr(),
        )
    };
    check("cudnnGetTensorNdDescriptor", status)?;
    let rank = usize::try_from(rank).unwrap_or(0).min(MOST);
    let dims = dims[..rank].iter().map(|&size: &c_int| usize::try_from(size).unwrap_or(0));
    Ok(dims.product())
}

/// Brings what two directions wrote side by side, `[steps, batch, 2, row]` in bytes, to `[steps, 2, batch, row]`, behind all
/// work of the stream, whose memory the pointers are; the caller has checked lengths.
pub(in crate::device) fn part_directions(
    stream: &Stream,
    from: u64,
    to: u64,
    Sizes { steps, batch }: Sizes,
    row: usize,
) -> Result<()> {
    let raw = stream.target()?;
    for direction in 0..2_usize {
        // SAFETY: the structure is made of numbers, pointers and a kind of memory; the kinds are set below.
        let mut copy: driver::CUDA_MEMCPY3D = unsafe {
            let mut copy = MaybeUninit::<driver::CUDA_MEMCPY3D>::zeroed();
            let at = copy.as_mut_ptr();
            (&raw mut (*at).srcMemoryType).write(driver::CUmemorytype::CU_MEMORYTYPE_DEVICE);
            (&raw mut (*at).dstMemoryType).write(driver::CUmemorytype::CU_MEMORYTYPE_DEVICE);
            copy.assume_init()
        };
        copy.srcDevice = from;
        copy.srcXInBytes = direction * row;
        copy.srcPitch = 2 * row;
        copy.srcHeight = batch;
        copy.dstDevice = to;
        copy.dstY = direction * batch;
        copy.dstPitch = row;
        copy.dstHeight = 2 * batch;
        copy.WidthInBytes = row;
        copy.Height = batch;
        copy.Depth = steps;
        // SAFETY: both memories hold what the copy spans, and they do not overlap.
        unsafe { driver::cuMemcpy3DAsync_v2(&copy, raw) }
            .result()
            .map_err(failed("cuMemcpy3DAsync"))?;
    }
    Ok(())
}
