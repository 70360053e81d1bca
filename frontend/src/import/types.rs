//! Types of a model's inputs.

use super::error::Reason;
use crate::dim::{Bindings, Dim, DimError, Symbol};
use crate::dtype::DType;
use crate::onnx::{DimensionValue, TypeValue, ValueInfoProto};
use crate::tensor::Tensor;
use crate::types::TensorType;

/// Why an input's type is not read: it breaks a rule, or it is not supported.
pub(super) enum TypeError {
    Invalid(Reason),
    Unsupported(String),
}

/// The type of an input; a dim without size or name is named after the input and its position. Where the model does
/// not say its rank, `given` sizes are its shape.
pub(super) fn read_type(
    info: &ValueInfoProto,
    given: Option<&[usize]>,
) -> Result<TensorType, TypeError> {
    let unsupported = |what: &str| Err(TypeError::Unsupported(what.to_owned()));
    let tensor = match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) => tensor,
        Some(TypeValue::SequenceType(_)) => return unsupported("is a sequence"),
        Some(TypeValue::MapType(_)) => return unsupported("is a map"),
        Some(TypeValue::OptionalType(_)) => return unsupported("is an optional value"),
        Some(TypeValue::SparseTensorType(_)) => return unsupported("is a sparse tensor"),
        Some(TypeValue::OpaqueType(_)) => return unsupported("is an opaque value"),
        None => return Err(TypeError::Invalid(Reason::Type("none is given".into()))),
    };
    let Some(dtype) = DType::from_onnx(tensor.elem_type) else {
        return Err(TypeError::Unsupported(format!("has {}", element_type(tensor.elem_type))));
    };
    let Some(shape) = &tensor.shape else {
        let Some(given) = given else {
            return unsupported(
                "has no shape: not even its rank is known, unless data is given for it",
            );
        };
        return Ok(TensorType::new(dtype, given.iter().map(|&size| Dim::from(size)).collect()));
    };
    let mut dims = Vec::new();
    for (i, dim) in shape.dim.iter().enumerate() {
        dims.push(match &dim.value {
            Some(DimensionValue::DimValue(size)) if *size < 0 => {
                return Err(TypeError::Invalid(Reason::NegativeSize(*size)));
            }
            Some(DimensionValue::DimValue(size)) => Dim::from(*size),
            Some(DimensionValue::DimParam(name)) if !name.trim().is_empty() => {
                name.parse().unwrap_or_else(|_| Dim::symbol(Symbol::quoted(name).name()))
            }
            Some(DimensionValue::DimParam(_)) | None => {
                Dim::symbol(Symbol::quoted(&format!("{}_d{i}", info.name)).name())
            }
        });
    }
    Ok(TensorType::new(dtype, dims))
}

/// An element type of ONNX that is none of ours, by name where it has one.
pub(super) fn element_type(number: i32) -> String {
    match number {
        8 => "elements of type string".to_owned(),
        14 => "elements of type complex64".to_owned(),
        15 => "elements of type complex128".to_owned(),
        _ => format!("elements of the unknown type {number}"),
    }
}

/// Checks a given value against its input's type, and takes the sizes that it gives to symbols.
pub(super) fn bind_value(
    declared: &TensorType,
    tensor: &Tensor,
    bindings: &mut Bindings,
) -> Result<(), Reason> {
    let given = TensorType::of(tensor);
    let refuse = || Reason::Given { given: given.to_string(), declared: declared.to_string() };
    if given.dtype != declared.dtype || given.rank() != declared.rank() {
        return Err(refuse());
    }
    for (dim, &size) in declared.shape.iter().zip(tensor.shape()) {
        let size = size as i64;
        let bound: Result<(), DimError> = match dim.as_symbol() {
            Some(symbol) => bindings.fix(symbol.clone(), size),
            None => Ok(()),
        };
        let fits = dim.as_symbol().is_some() || dim.known().is_none_or(|known| known == size);
        if bound.is_err() || !fits {
            return Err(refuse());
        }
    }
    Ok(())
}
