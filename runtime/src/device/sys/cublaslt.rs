//! cuBLASLt's calls.
//!
//! It thinks in columns: a row-major matrix is the transpose of a column-major one, and `Dᵀ = Bᵀ·Aᵀ`, so that B is its
//! first operand and A its second.

use super::context::Context;
use super::stream::Stream;
use super::{Library, Owned};
use crate::device::cublaslt::gemm::{Gemm, Matrix};
use crate::error::{Error, Result};
use cudarc::cublaslt::{result as lt, sys};
use graphene_fusion::library::Activation;
use graphene_ir::tensor::Scalar;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::PoisonError;

fn refused(call: &'static str) -> impl Fn(lt::CublasError) -> Error {
    move |error| Error::Device { call, status: format!("{:?}", error.0) }
}

type Object<T> = Owned<T, std::result::Result<(), lt::CublasError>>;

/// The library's state in a context, which any thread may use: one for all, by its address.
pub(in crate::device) struct Handle(usize);

impl Handle {
    pub(in crate::device) fn new(context: &Context) -> Result<Handle> {
        Library::CublasLt.require()?;
        let _guard = context.exclude_recording("opening cuBLASLt while a graph is recorded")?;
        let kept = context.handles().cublaslt.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = *kept {
            return Ok(Handle(known));
        }
        let handle = lt::create_handle().map_err(refused("cublasLtCreate"))?;
        Ok(Handle(*kept.insert(handle as usize)))
    }

    fn raw(&self) -> sys::cublasLtHandle_t {
        self.0 as sys::cublasLtHandle_t
    }
}

/// A way of cuBLASLt's to compute a matmul.
#[derive(Clone, Copy)]
pub(in crate::device) struct Algorithm(sys::cublasLtMatmulAlgo_t);

/// Where a matmul's operands lie; C is D where nothing is added.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct Pointers {
    pub(in crate::device) a: u64,
    pub(in crate::device) b: u64,
    pub(in crate::device) c: u64,
    pub(in crate::device) d: u64,
}

/// A matmul in cuBLASLt's words.
pub(in crate::device) struct Matmul {
    description: Object<sys::cublasLtMatmulDesc_t>,
    a: Object<sys::cublasLtMatrixLayout_t>,
    b: Object<sys::cublasLtMatrixLayout_t>,
    c: Object<sys::cublasLtMatrixLayout_t>,
    d: Object<sys::cublasLtMatrixLayout_t>,
    alpha: f32,
    beta: f32,
}

impl Matmul {
    /// Describes a matmul; `bias` is where its row lies, if it has one.
    pub(in crate::device) fn new(gemm: &Gemm, bias: Option<u64>) -> Result<Matmul> {
        Library::CublasLt.require()?;
        let scalar = match gemm.scalar {
            Scalar::F32 => sys::cudaDataType::CUDA_R_32F,
            Scalar::F16 => sys::cudaDataType::CUDA_R_16F,
            Scalar::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            Scalar::I32 | Scalar::I64 | Scalar::U32 | Scalar::U8 | Scalar::I8 | Scalar::Mbar => {
                return Err(Error::Unsupported { what: "a cuBLASLt matmul of integers" });
            }
        };
        let compute = match (gemm.scalar, gemm.tf32) {
            (Scalar::F32, true) => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let description = lt::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)
            .map_err(refused("cublasLtMatmulDescCreate"))?;
        let description = Owned(description, lt::destroy_matmul_desc as unsafe fn(_) -> _);
        let layout = |[rows, columns]: [usize; 2], matrix: &Matrix| -> Result<_> {
            // By columns, a matrix whose rows lie side by side is its transpose.
            let [inner, outer] = if matrix.transposed { [rows, columns] } else { [columns, rows] };
            let leading = i64::try_from(matrix.leading)
                .map_err(|_| Error::TooLarge { what: "a matrix of a matmul" })?;
            let layout = lt::create_matrix_layout(scalar, inner as u64, outer as u64, leading)
                .map_err(refused("cublasLtMatrixLayoutCreate"))?;
            let layout = Owned(layout, lt::destroy_matrix_layout as unsafe fn(_) -> _);
            batch(&layout, gemm.batch, matrix.apart)?;
            Ok(layout)
        };
        let &Gemm { m, n, k, .. } = gemm;
        let matmul = Matmul {
            description,
            a: layout([m, k], &gemm.a)?,
            b: layout([k, n], &gemm.b)?,
            c: layout([m, n], gemm.c.as_ref().unwrap_or(&gemm.d))?,
            d: layout([m, n], &gemm.d)?,
            alpha: gemm.scale(),
            beta: if gemm.c.is_some() { 1.0 } else { 0.0 },
        };
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // `CUBLAS_OP_N` and `CUBLAS_OP_T`.
        matmul.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(gemm.b.transposed))?;
        matmul.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(gemm.a.transposed))?;
        let epilogue = epilogue(gemm.activation, bias.is_some()) as u32;
        matmul.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            matmul.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        Ok(matmul)
    }

    /// Sets an attribute, which is a number.
    fn set<T: Number>(&self, which: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the description lives, and the attribute has the size of the number, which is read at the call.
        unsafe {
            let value = ptr::from_ref(value).cast();
            lt::set_matmul_desc_attribute(self.description.0, which, value, size_of::<T>())
        }
        .map_err(refused("cublasLtMatmulDescSetAttribute"))
    }

    /// At most `most` algorithms that need no more workspace than given, in the order of the heuristic. `aligned` are the
    /// bytes at multiples of which A, B, C and D begin.
    pub(in crate::device) fn algorithms(
        &self,
        handle: &Handle,
        workspace: usize,
        aligned: [u32; 4],
        most: usize,
    ) -> Result<Vec<Algorithm>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference =
            lt::create_matmul_pref().map_err(refused("cublasLtMatmulPreferenceCreate"))?;
        let preference = Owned(preference, lt::destroy_matmul_pref as unsafe fn(_) -> _);
        let limit = workspace as u64;
        prefer(&preference, Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit)?;
        let [a, b, c, d] = aligned;
        for (which, bytes) in [
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c),
            (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
        ] {
            prefer(&preference, which, &bytes)?;
        }
        // SAFETY: the structure is made of numbers and a status whose 0 is success.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> =
            vec![unsafe { MaybeUninit::zeroed().assume_init() }; most];
        let mut count = 0;
        // SAFETY: all objects live, and there is room for `most` results.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle.raw(),
                self.description.0,
                self.b.0,
                self.a.0,
                self.c.0,
                self.d.0,
                preference.0,
                most as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        }
        .result()
        .map_err(refused("cublasLtMatmulAlgoGetHeuristic"))?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        found.retain(|result| result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(found.iter().map(|result| Algorithm(result.algo)).collect())
    }

    /// Computes, behind all work of the stream, whose memory the pointers are. The caller has checked lengths.
    pub(in crate::device) fn run(
        &self,
        handle: &Handle,
        stream: &Stream,
        algorithm: &Algorithm,
        at: Pointers,
        (workspace, bytes): (u64, usize),
    ) -> Result<()> {
        let to = stream.target()?;
        // SAFETY: all objects live; the scales are read at the call, and the memories are the device's.
        unsafe {
            lt::matmul(
                handle.raw(),
                self.description.0,
                ptr::from_ref(&self.alpha).cast(),
                ptr::from_ref(&self.beta).cast(),
                at.b as *const c_void,
                self.b.0,
                at.a as *const c_void,
                self.a.0,
                at.c as *const c_void,
                self.c.0,
                at.d as *mut c_void,
                self.d.0,
                &algorithm.0,
                workspace as *mut c_void,
                bytes,
                to.cast(),
            )
        }
        .map_err(refused("cublasLtMatmul"))
    }
}

/// What attributes are: of C's types of the same size.
trait Number {}
impl Number for i32 {}
impl Number for u32 {}
impl Number for i64 {}
impl Number for u64 {}

fn prefer<T: Number>(
    preference: &Object<sys::cublasLtMatmulPreference_t>,
    which: sys::cublasLtMatmulPreferenceAttributes_t,
    value: &T,
) -> Result<()> {
    // SAFETY: the preference lives, and the attribute has the size of the number, which is read at the call.
    unsafe {
        let value = ptr::from_ref(value).cast();
        lt::set_matmul_pref_attribute(preference.0, which, value, size_of::<T>())
    }
    .map_err(refused("cublasLtMatmulPreferenceSetAttribute"))
}

/// Makes a layout one of several matrices at even distances.
fn batch(layout: &Object<sys::cublasLtMatrixLayout_t>, count: usize, apart: usize) -> Result<()> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let large = |_| Error::TooLarge { what: "a batch of matmuls" };
    let (count, apart) =
        (i32::try_from(count).map_err(large)?, i64::try_from(apart).map_err(large)?);
    // SAFETY: the layout lives, the count is an integer of 32 bits, and it is read at the call.
    unsafe {
        let which = Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        let value = ptr::from_ref(&count).cast();
        lt::set_matrix_layout_attribute(layout.0, which, value, size_of::<i32>())
    }
    .map_err(refused("cublasLtMatrixLayoutSetAttribute"))?;
    // SAFETY: the layout lives, the distance is an integer of 64 bits, and it is read at the call.
    unsafe {
        let which = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        let value = ptr::from_ref(&apart).cast();
        lt::set_matrix_layout_attribute(layout.0, which, value, size_of::<i64>())
    }
    .map_err(refused("cublasLtMatrixLayoutSetAttribute"))
}

fn epilogue(activation: Option<Activation>, bias: bool) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as Epilogue;
    match (activation, bias) {
        (None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (None, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (Some(Activation::Relu), false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (Some(Activation::Relu), true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Some(Activation::GeluTanh), false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (Some(Activation::GeluTanh), true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}
