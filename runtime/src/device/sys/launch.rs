//! Kernels and their launches, and the tensor maps that some take.

use super::context::Context;
use super::recording::Outside;
use super::stream::Stream;
use super::{Error, Result, failed};
use cudarc::driver::{CudaFunction, DriverError, sys};
use cudarc::nvrtc::Ptx;
use graphene_ir::launch::Launch;
use graphene_ir::tensor::Scalar;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// The largest cluster that every GPU with clusters runs.
const PORTABLE_CLUSTER: u32 = 8;

/// A tensor map to encode, all expressions evaluated; see [`graphene_ir::launch::TensorMap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::device) struct Map {
    pub(in crate::device) pointer: u64,
    pub(in crate::device) scalar: Scalar,
    pub(in crate::device) sizes: Vec<u64>,
    pub(in crate::device) strides: Vec<u64>,
    pub(in crate::device) window: Vec<u32>,
    pub(in crate::device) swizzle: u32,
}

/// Encodes a tensor map; coordinates outside give zeros.
pub(in crate::device) fn encode(map: &Map) -> Result<sys::CUtensorMap> {
    use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Swizzle};
    let rank = map.sizes.len();
    if !(1..=5).contains(&rank) || map.strides.len() + 1 != rank || map.window.len() != rank {
        return Err(Error::Unsupported { what: "a tensor map of another rank than 1 to 5" });
    }
    let scalar = match map.scalar {
        Scalar::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Scalar::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Scalar::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Scalar::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Scalar::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Scalar::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        // There is no type of signed bytes; they are copied as they are.
        Scalar::U8 | Scalar::I8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        Scalar::Mbar => return Err(Error::Unsupported { what: "a tensor map of barriers" }),
    };
    let swizzle = match map.swizzle {
        0 => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        _ => {
            return Err(Error::Unsupported { what: "a swizzle of other than 32, 64 or 128 bytes" });
        }
    };
    let steps = [1_u32; 5];
    let mut encoded = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: the arrays have `rank` elements, the strides one fewer, and `encoded` is aligned to 64 bytes. The
    // pointer to global memory is stored, not followed.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr(),
            scalar,
            rank as u32,
            map.pointer as *mut c_void,
            map.sizes.as_ptr(),
            map.strides.as_ptr(),
            map.window.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    match status {
        // SAFETY: the call succeeded, and it writes all of it.
        sys::CUresult::CUDA_SUCCESS => Ok(unsafe { encoded.assume_init() }),
        _ => Err(Error::Device {
            call: "cuTensorMapEncodeTiled",
            status: format!("{status:?} of {map:?}"),
        }),
    }
}

/// The value of one parameter of a kernel.
pub(in crate::device) enum Slot {
    Pointer(u64),
    Symbol(i32),
    Map(Box<sys::CUtensorMap>),
}

/// A function whose parameters have the sizes that its launches pass.
#[derive(Clone)]
pub(in crate::device) struct Function {
    /// With the code that it is of, which is unloaded with the last of these.
    function: Arc<Outside<CudaFunction>>,
    sizes: Vec<usize>,
}

impl Function {
    /// Loads a function, if its parameters have these sizes, in bytes. Whether it takes more is not asked: a question past
    /// the last parameter is an error that tools report.
    pub(in crate::device) fn load(
        context: &Context,
        image: &[u8],
        launch: &Launch,
        sizes: Vec<usize>,
    ) -> Result<Function> {
        use sys::CUfunction_attribute as Attribute;
        if launch.entry.contains('\0') {
            return Err(Error::Unsupported { what: "a name with a NUL in it" });
        }
        let shared = i32::try_from(launch.shared_bytes)
            .map_err(|_| Error::TooLarge { what: "a block's shared memory" })?;
        let _guard = context.exclude_recording("loading a kernel while a graph is recorded")?;
        let module = context.cuda().load_module(Ptx::from_binary(image.to_vec()));
        let module = module.map_err(failed("cuModuleLoadData"))?;
        let function =
            module.load_function(&launch.entry).map_err(failed("cuModuleGetFunction"))?;
        let set = |attribute, value| {
            function.set_attribute(attribute, value).map_err(failed("cuFuncSetAttribute"))
        };
        set(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)?;
        if launch.cluster > PORTABLE_CLUSTER {
            set(Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        let mut found = Vec::new();
        while found.len() < sizes.len() {
            let (mut offset, mut size) = (0, 0);
            let raw = function.cu_function();
            // SAFETY: the function's module is loaded; two integers are written.
            match unsafe { sys::cuFuncGetParamInfo(raw, found.len(), &mut offset, &mut size) } {
                sys::CUresult::CUDA_SUCCESS => found.push(size),
                sys::CUresult::CUDA_ERROR_INVALID_VALUE => break,
                status => return Err(failed("cuFuncGetParamInfo")(DriverError(status))),
            }
        }
        if found != sizes {
            return Err(Error::Parameters { expected: sizes, found });
        }
        Ok(Function { function: Arc::new(Outside::new(function)), sizes })
    }
}

/// The shape of a launch; see [`graphene_ir::launch::Launch`].
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct Shape {
    pub(in crate::device) grid: u32,
    pub(in crate::device) cluster: u32,
    pub(in crate::device) block: u32,
    pub(in crate::device) shared_bytes: u32,
    pub(in crate::device) dependent: bool,
    pub(in crate::device) cooperative: bool,
}

/// Launches a kernel, behind all work of the stream.
pub(in crate::device) fn launch(
    stream: &Stream,
    function: &Function,
    shape: Shape,
    slots: &[Slot],
) -> Result<()> {
    let to = stream.target()?;
    let mut values = Vec::with_capacity(slots.len());
    for slot in slots {
        values.push(match slot {
            Slot::Pointer(value) => (ptr::from_ref(value).cast_mut().cast::<c_void>(), 8),
            Slot::Symbol(value) => (ptr::from_ref(value).cast_mut().cast::<c_void>(), 4),
            Slot::Map(value) => (ptr::from_ref(&**value).cast_mut().cast::<c_void>(), 128),
        });
    }
    let (mut values, sizes): (Vec<*mut c_void>, Vec<usize>) = values.into_iter().unzip();
    if sizes != function.sizes {
        return Err(Error::Parameters { expected: function.sizes.clone(), found: sizes });
    }
    let mut attributes = attributes(shape);
    let config = sys::CUlaunchConfig {
        gridDimX: shape.grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: shape.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared_bytes,
        hStream: to,
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    };
    let raw = function.function.cu_function();
    // SAFETY: the module is loaded, every parameter has a value of its size, which the call copies, and the attributes
    // outlive the call.
    unsafe { sys::cuLaunchKernelEx(&config, raw, values.as_mut_ptr(), ptr::null_mut()) }
        .result()
        .map_err(failed("cuLaunchKernelEx"))
}

fn attributes(shape: Shape) -> Vec<sys::CUlaunchAttribute> {
    use sys::CUlaunchAttributeID as Id;
    let attribute = |id| sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    };
    let mut attributes = Vec::new();
    if shape.cluster > 1 {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
        one.value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
        attributes.push(one);
    }
    if shape.dependent {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        one.value.programmaticStreamSerializationAllowed = 1;
        attributes.push(one);
    }
    if shape.cooperative {
        let mut one = attribute(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
        one.value.cooperative = 1;
        attributes.push(one);
    }
    attributes
}
