//! cuDNN's descriptors: objects with attributes.
//!
//! An attribute is set as an array of one type; [`Element`] says which of the library's types a type of ours is, so that
//! the two cannot disagree. Names and numbers of attributes are those of `cudnn_graph.h`, by cudarc.

use super::{Object, check, made};
use crate::error::{Error, Result};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptor_t,
    cudnnBackendHeurMode_t as Mode, cudnnConvolutionMode_t, cudnnDataType_t as DataType,
    cudnnPointwiseMode_t, cudnnReduceTensorOp_t,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

pub(super) use sys::cudnnBackendAttributeName_t as Attribute;
pub(super) use sys::cudnnBackendDescriptorType_t as Kind;

/// What attributes are arrays of: each of the size that the library knows its type by.
pub(super) trait Element: Copy {
    const TYPE: Type;
}

impl Element for i64 {
    const TYPE: Type = Type::CUDNN_TYPE_INT64;
}

impl Element for f32 {
    const TYPE: Type = Type::CUDNN_TYPE_FLOAT;
}

impl Element for bool {
    const TYPE: Type = Type::CUDNN_TYPE_BOOLEAN;
}

impl Element for DataType {
    const TYPE: Type = Type::CUDNN_TYPE_DATA_TYPE;
}

impl Element for cudnnPointwiseMode_t {
    const TYPE: Type = Type::CUDNN_TYPE_POINTWISE_MODE;
}

impl Element for cudnnConvolutionMode_t {
    const TYPE: Type = Type::CUDNN_TYPE_CONVOLUTION_MODE;
}

impl Element for cudnnReduceTensorOp_t {
    const TYPE: Type = Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
}

impl Element for Mode {
    const TYPE: Type = Type::CUDNN_TYPE_HEUR_MODE;
}

/// An object of the library, whose attributes are set before it is finished.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Raw(cudnnBackendDescriptor_t);

impl Element for Raw {
    const TYPE: Type = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
}

/// A pointer: to memory of the device, or to a number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Pointer(pub(super) *mut c_void);

impl Element for Pointer {
    const TYPE: Type = Type::CUDNN_TYPE_VOID_PTR;
}

/// The library's state.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct State(pub(super) sys::cudnnHandle_t);

impl Element for State {
    const TYPE: Type = Type::CUDNN_TYPE_HANDLE;
}

/// A note on how an engine computes, by its number: a newer library may have some that have no name here.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(super) struct NumericalNote(pub(super) u32);

impl Element for NumericalNote {
    const TYPE: Type = Type::CUDNN_TYPE_NUMERICAL_NOTE;
}

/// Likewise on what an engine needs or does beside.
#[derive(Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(super) struct BehaviorNote(pub(super) u32);

impl Element for BehaviorNote {
    const TYPE: Type = Type::CUDNN_TYPE_BEHAVIOR_NOTE;
}

/// What any number that the library writes is one of.
pub(super) trait Noted: Element {}

impl Noted for NumericalNote {}

impl Noted for BehaviorNote {}

/// An object that this owns, with what its attributes refer to.
pub(super) struct Descriptor {
    object: Object<cudnnBackendDescriptor_t>,
    kind: Kind,
    /// Kept until the object is gone.
    kept: Vec<Arc<Descriptor>>,
}

/// Sets the attributes of a new object.
pub(super) struct Making(Descriptor);

pub(super) fn making(kind: Kind) -> Result<Making> {
    // SAFETY: one pointer is written.
    let create = |at| unsafe { sys::cudnnBackendCreateDescriptor(kind, at) };
    let destroy = sys::cudnnBackendDestroyDescriptor;
    let object = made("cudnnBackendCreateDescriptor", create, destroy)?;
    Ok(Making(Descriptor { object, kind, kept: Vec::new() }))
}

impl Making {
    pub(super) fn set<T: Element>(self, name: Attribute, values: &[T]) -> Result<Self> {
        let (object, values_at) = (self.0.object.0, values.as_ptr().cast());
        // SAFETY: the object lives, and there are as many values of the type as said, which are read at the call.
        let status = unsafe {
            sys::cudnnBackendSetAttribute(object, name, T::TYPE, values.len() as i64, values_at)
        };
        refused("cudnnBackendSetAttribute", status, || format!("{name:?}"))?;
        Ok(self)
    }

    pub(super) fn refer(mut self, name: Attribute, to: &[&Arc<Descriptor>]) -> Result<Self> {
        self.0.kept.extend(to.iter().map(|of| Arc::clone(of)));
        let raw: Vec<Raw> = to.iter().map(|of| Raw(of.object.0)).collect();
        self.set(name, &raw)
    }

    pub(super) fn finish(self) -> Result<Arc<Descriptor>> {
        // SAFETY: the object lives.
        let status = unsafe { sys::cudnnBackendFinalize(self.0.object.0) };
        refused("cudnnBackendFinalize", status, || format!("{:?}", self.0.kind))?;
        Ok(Arc::new(self.0))
    }
}

/// An error with the object or attribute that it is about, and the library's own words.
pub(super) fn refused(
    call: &'static str,
    status: sys::cudnnStatus_t,
    about: impl FnOnce() -> String,
) -> Result<()> {
    const MOST: usize = 1024;
    check(call, status).map_err(|error| match error {
        Error::Device { call, status } => {
            let mut words = [0 as c_char; MOST];
            // SAFETY: there is room for as many characters as said, a zero at their end among them.
            unsafe { sys::cudnnGetLastErrorString(words.as_mut_ptr(), MOST) };
            words[MOST - 1] = 0;
            // SAFETY: a zero ends the characters.
            let words = unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy();
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
            Error::Device { call, status: format!("{status} for {}: {words}", about()) }
        }
        other => other,
    })
}

impl Descriptor {
    /// What the library knows it by.
    pub(super) fn raw(&self) -> cudnnBackendDescriptor_t {
        self.object.0
    }

    /// The one number that an attribute is.
    pub(super) fn number(&self, name: Attribute) -> Result<i64> {
        let (mut number, mut count) = (0_i64, 0_i64);
        let to: *mut i64 = &mut number;
        // SAFETY: the object lives, and there is room for one number and for how many there are.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(
                self.object.0,
                name,
                Type::CUDNN_TYPE_INT64,
                1,
                &mut count,
                to.cast(),
            )
        };
        refused("cudnnBackendGetAttribute", status, || format!("{name:?}"))?;
        Ok(number)
    }

    /// The notes that an attribute has, in place of those given and at most as many.
    pub(super) fn notes<T: Noted>(&self, name: Attribute, mut values: Vec<T>) -> Result<Vec<T>> {
        let mut count = 0_i64;
        let (most, to) = (values.len() as i64, values.as_mut_ptr());
        // SAFETY: the object lives, and there is room for as many values of the type as said.
        let status = unsafe {
            let kind = T::TYPE;
            sys::cudnnBackendGetAttribute(self.object.0, name, kind, most, &mut count, to.cast())
        };
        refused("cudnnBackendGetAttribute", status, || format!("{name:?}"))?;
        values.truncate(usize::try_from(count).unwrap_or(0));
        Ok(values)
    }

    /// The one object of a kind that an attribute is.
    pub(super) fn object(self: &Arc<Self>, name: Attribute, kind: Kind) -> Result<Arc<Descriptor>> {
        let mut one = making(kind)?.0;
        self.write_objects(name, &mut [Raw(one.object.0)])?;
        one.kept.push(Arc::clone(self));
        Ok(Arc::new(one))
    }

    /// The objects of a kind that an attribute has, at most so many.
    pub(super) fn objects(
        self: &Arc<Self>,
        name: Attribute,
        kind: Kind,
        most: usize,
    ) -> Result<Vec<Arc<Descriptor>>> {
        let mut found = Vec::new();
        let count = self.write_objects(name, &mut [])?.min(most);
        for _ in 0..count {
            found.push(making(kind)?.0);
        }
        let mut raw: Vec<Raw> = found.iter().map(|one| Raw(one.object.0)).collect();
        found.truncate(self.write_objects(name, &mut raw)?);
        let kept = found.into_iter().map(|mut one| {
            one.kept.push(Arc::clone(self));
            Arc::new(one)
        });
        Ok(kept.collect())
    }

    /// Writes the objects of an attribute into as many as are given; how many it has, or how many were written.
    fn write_objects(&self, name: Attribute, to: &mut [Raw]) -> Result<usize> {
        let mut count = 0_i64;
        let (most, to) = match to {
            [] => (0, ptr::null_mut()),
            to => (to.len() as i64, to.as_mut_ptr()),
        };
        // SAFETY: the object lives, and there is room for as many as said, all of them objects of the kind.
        let status = unsafe {
            let kind = Raw::TYPE;
            sys::cudnnBackendGetAttribute(self.object.0, name, kind, most, &mut count, to.cast())
        };
        refused("cudnnBackendGetAttribute", status, || format!("{name:?}"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
}
