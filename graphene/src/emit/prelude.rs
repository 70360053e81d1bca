//! What CUDA's headers would define, in parts; a source has those that it uses.

use std::collections::BTreeSet;

use crate::{Scalar, Unary, named::named};

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

    /// What a function's text calls.
    pub(super) fn called(op: Unary) -> Option<Prelude> {
        match op {
            Unary::Exp2 => Some(Prelude::Exp2),
            Unary::Gelu => Some(Prelude::Gelu),
            Unary::GeluHalf => Some(Prelude::GeluHalf),
            Unary::Tf32 => Some(Prelude::Tf32),
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
