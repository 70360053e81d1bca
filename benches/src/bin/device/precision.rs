//! What models compute in.

use graphene_frontend::dtype::DType;
use graphene_ir::target::Target;
use graphene_runtime::Error;
use graphene_runtime::device::Stream;
use std::fmt;

/// How values of single precision are stored and multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precision {
    /// As they are.
    Single,
    /// As they are, but rounded to TF32 for matmuls.
    Tf32,
    /// In fp16 or bf16.
    Half(DType),
}

impl Precision {
    /// Single precision, or this half precision.
    pub(crate) fn of(half: Option<DType>) -> Self {
        half.map_or(Self::Single, Self::Half)
    }

    /// The elements that values become, if others.
    pub(crate) fn elements(self) -> Option<DType> {
        match self {
            Self::Single | Self::Tf32 => None,
            Self::Half(dtype) => Some(dtype),
        }
    }

    /// A GPU to plan for.
    pub(crate) fn target(self, stream: &Stream) -> Result<Target, Error> {
        let arch =
            stream.device().properties().arch().ok_or(Error::Unsupported { what: "this GPU" })?;
        let target: Target = arch.to_string().parse()?;
        Ok(Target { tf32: self == Self::Tf32, ..target })
    }

    /// How far outputs may be from those of the CPU in single precision: 1 less their cosine.
    pub(crate) fn bound(self) -> f64 {
        match self {
            Self::Single => 1e-8,
            Self::Tf32 => 1e-5,
            Self::Half(DType::F16) => 1e-4,
            Self::Half(_) => 1e-3,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single => f.write_str("f32"),
            Self::Tf32 => f.write_str("tf32"),
            Self::Half(dtype) => write!(f, "{dtype}"),
        }
    }
}
