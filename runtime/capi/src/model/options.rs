//! How a model is loaded.

#![allow(unsafe_code)] // Arrays and text of the caller's.

use crate::input::Input;
use crate::raw::{list, needed_text, numbered};
use crate::status::Failure;
use graphene_runtime as rt;
use std::ffi::c_char;

/// The elements that a model computes with.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Those of the model.
    Model = 0,
    /// Single precision.
    F32 = 1,
    /// Single precision, whose matmuls and attention round their operands to TF32: on GPUs.
    Tf32 = 2,
    /// fp16 in place of single precision: on GPUs.
    F16 = 3,
    /// bf16 in place of single precision on GPUs; on a CPU, that of weights and of what they are multiplied by.
    Bf16 = 4,
}

/// What a `graphene_dim_rule` says of its dim.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimKind {
    /// The model is made for this one size.
    Fixed = 0,
    /// Requests have this one size.
    Exact = 1,
    /// Requests have a size from the first to the second.
    Range = 2,
    /// Requests run at the smallest of these sizes that holds them.
    Buckets = 3,
}

/// The sizes that a model is prepared for along a dim.
#[repr(C)]
pub struct DimRule {
    /// The dim's name.
    pub name: *const c_char,
    /// A `graphene_dim_kind`.
    pub kind: u32,
    /// How many sizes there are: one, two for a range, any number for buckets.
    pub size_count: usize,
    /// The sizes.
    pub sizes: *const usize,
}

/// How a model is to be loaded. Zeros are the defaults.
#[repr(C)]
pub struct ModelOptions {
    /// A `graphene_precision`.
    pub precision: u32,
    /// How many rules there are for dims; a dim without one may have any size.
    pub dim_count: usize,
    /// The rules.
    pub dims: *const DimRule,
    /// How many inputs have values that are known: where a shape depends on them, the model is made for these alone.
    pub constant_count: usize,
    /// Those, by name; their elements are copied.
    pub constants: *const Input,
    /// 1 to run the model once at the sizes of its rules before it is given out, so that first requests are as fast as
    /// later ones. There has to be a rule for every dim.
    pub warm: u32,
}

impl ModelOptions {
    pub(crate) unsafe fn apply(
        &self,
        mut builder: rt::ModelBuilder,
    ) -> Result<rt::ModelBuilder, Failure> {
        let all =
            [rt::Dtype::Model, rt::Dtype::F32, rt::Dtype::Tf32, rt::Dtype::F16, rt::Dtype::Bf16];
        builder = builder.dtype(numbered(&all, self.precision, "precision")?);
        let mut profile = rt::Profile::new();
        // SAFETY: the caller vouches for the arrays.
        let (dims, constants) = unsafe {
            (
                list(self.dims, self.dim_count, "dims")?,
                list(self.constants, self.constant_count, "constants")?,
            )
        };
        for rule in dims {
            // SAFETY: the caller vouches for what the rule points at.
            let (name, sizes) = unsafe {
                let sizes = list(rule.sizes, rule.size_count, "a dim's sizes")?;
                (needed_text(rule.name, "a dim's name")?, sizes)
            };
            let kinds = [DimKind::Fixed, DimKind::Exact, DimKind::Range, DimKind::Buckets];
            match (numbered(&kinds, rule.kind, "kind of rule for a dim")?, sizes) {
                (DimKind::Fixed, &[size]) => builder = builder.dim(name, size),
                (DimKind::Exact, &[size]) => profile = profile.exact(name, size),
                (DimKind::Range, &[from, to]) => profile = profile.range(name, from..=to),
                (DimKind::Buckets, [_, ..]) => {
                    profile = profile.buckets(name, sizes.iter().copied())
                }
                (DimKind::Fixed | DimKind::Exact | DimKind::Range | DimKind::Buckets, _) => {
                    let text =
                        format!("{} sizes are not for dim {name:?} of this kind", sizes.len());
                    return Err(Failure::misuse(1007, text));
                }
            }
        }
        for constant in constants {
            // SAFETY: the caller vouches for what it points at.
            let (name, value) =
                unsafe { (needed_text(constant.name, "a constant's name")?, constant.copied()?) };
            builder = builder.value(name, value);
        }
        builder = builder.profile(profile);
        Ok(if self.warm != 0 { builder.warm() } else { builder })
    }
}
