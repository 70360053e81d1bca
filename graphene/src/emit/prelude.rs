//! What CUDA's headers would define, in parts; a source has those that it uses.

use std::collections::BTreeSet;

use crate::{Binary, Kind, Scalar, Unary, named::named};

named! {
    /// A part of the prelude, by its name in C.
    #[derive(PartialOrd, Ord)]
    pub enum Prelude {
        Half = "half",
        Bfloat16 = "bfloat16",
        /// Multiply-adds of fp16.
        Hfma = "__hfma",
        Exp2 = "exp2_approx",
        Gelu = "gelu",
        /// GELU as exact as fp16 is.
        GeluHalf = "gelu_half",
        MaxNan = "max_nan",
        MinNan = "min_nan",
        Tf32 = "to_tf32",
        TensorMap = "TensorMap",
        Word = "word",
        SharedAddress = "shared_address",
        Swizzle = "swizzle",
    }
}

const PARTS: [&str; Prelude::ALL.len()] = [
    include_str!("prelude/half.cu"),
    include_str!("prelude/bfloat16.cu"),
    include_str!("prelude/hfma.cu"),
    include_str!("prelude/exp2.cu"),
    include_str!("prelude/gelu.cu"),
    include_str!("prelude/gelu_half.cu"),
    include_str!("prelude/max_nan.cu"),
    include_str!("prelude/min_nan.cu"),
    include_str!("prelude/tf32.cu"),
    include_str!("prelude/tensor_map.cu"),
    include_str!("prelude/word.cu"),
    include_str!("prelude/shared_address.cu"),
    include_str!("prelude/swizzle.cu"),
];

impl Prelude {
    /// What a type of elements needs.
    pub(super) fn of(scalar: Scalar) -> Option<Prelude> {
        match scalar {
            Scalar::F16 => Some(Prelude::Half),
            Scalar::Bf16 => Some(Prelude::Bfloat16),
            _ => None,
        }
    }

    /// What the text of a function of single precision calls.
    pub(super) fn called(kind: &Kind) -> Option<Prelude> {
        match kind {
            Kind::Unary(Unary::Exp2) => Some(Prelude::Exp2),
            Kind::Unary(Unary::Gelu) => Some(Prelude::Gelu),
            Kind::Unary(Unary::GeluHalf) => Some(Prelude::GeluHalf),
            Kind::Unary(Unary::Tf32) => Some(Prelude::Tf32),
            Kind::Binary(Binary::MaxNan) | Kind::Reduction(Binary::MaxNan) => Some(Prelude::MaxNan),
            Kind::Binary(Binary::MinNan) | Kind::Reduction(Binary::MinNan) => Some(Prelude::MinNan),
            _ => None,
        }
    }

    /// The definitions of parts. A multiply-add of fp16 needs fp16.
    pub(super) fn text(parts: &BTreeSet<Prelude>) -> String {
        let half = parts.contains(&Prelude::Hfma).then_some(Prelude::Half);
        let all: BTreeSet<Prelude> = parts.iter().copied().chain(half).collect();
        all.into_iter().flat_map(|part| ["\n", PARTS[part as usize]]).collect()
    }
}
