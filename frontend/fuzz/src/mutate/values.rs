//! Numbers, types and tensors, new and changed.

use super::super::random::Random;
use graphene_frontend::onnx::{
    Dimension, DimensionValue, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    TypeValue, ValueInfoProto,
};

/// Element types in files, the common ones several times.
const TYPES: &[i32] = &[
    1, 1, 1, 1, 1, 7, 7, 7, 7, 6, 6, 9, 9, 10, 11, 16, 2, 3, 4, 5, 12, 13, 17, 18, 19, 20, 21, 22,
    23, 24, 25, 26, 8, 14,
];

/// An integer: mostly small, sometimes at an edge.
pub(super) fn int(random: &mut Random) -> i64 {
    const EDGES: &[i64] = &[
        i64::MAX,
        i64::MIN,
        i64::MIN + 1,
        i64::MAX - 1,
        1 << 32,
        (1 << 31) - 1,
        -(1 << 31),
        1 << 36,
        1 << 20,
        1000,
        65_536,
        1 << 62,
    ];
    match random.below(12) {
        0 => *random.pick(EDGES),
        1 => random.below(200) as i64 - 100,
        2 => -(random.below(5) as i64),
        _ => random.below(5) as i64,
    }
}

/// A number: mostly small, sometimes at an edge.
pub(super) fn float(random: &mut Random) -> f32 {
    const EDGES: &[f32] = &[
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        -0.0,
        1e30,
        -1.0,
    ];
    match random.below(6) {
        0 => *random.pick(EDGES),
        _ => random.below(64) as f32 / 8.0 - 2.0,
    }
}

fn size(random: &mut Random) -> i64 {
    match random.below(24) {
        0 => int(random),
        1 => 0,
        2..8 => 1,
        _ => 1 + random.below(8) as i64,
    }
}

fn dim(random: &mut Random) -> Dimension {
    const NAMES: &[&str] = &["n", "batch", "2*n", "n + m", "sequence", "a b", "-n", "floor(n, 2)"];
    let value = match random.below(10) {
        0 => None,
        1..4 => Some(DimensionValue::DimParam((*random.pick(NAMES)).to_owned())),
        _ => Some(DimensionValue::DimValue(size(random))),
    };
    Dimension { value }
}

fn tensor_type(input: &mut ValueInfoProto) -> Option<&mut TensorTypeProto> {
    match input.r#type.as_mut()?.value.as_mut()? {
        TypeValue::TensorType(ty) => Some(ty),
        _ => None,
    }
}

/// An input of any type.
pub(super) fn any_input(name: &str, random: &mut Random) -> ValueInfoProto {
    let dim = (0..random.below(5)).map(|_| dim(random)).collect();
    let shape = Some(TensorShapeProto { dim });
    let ty = TensorTypeProto { elem_type: *random.pick(TYPES), shape };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(ty)) });
    ValueInfoProto { name: name.to_owned(), r#type }
}

/// Changes the type of an input.
pub(super) fn change_input(inputs: &mut [ValueInfoProto], random: &mut Random) {
    let at = random.below(inputs.len());
    let Some(input) = inputs.get_mut(at) else { return };
    let Some(ty) = tensor_type(input) else {
        *input = any_input(&input.name, random);
        return;
    };
    let dims = &mut ty.shape.get_or_insert_default().dim;
    let at = random.below(dims.len());
    match random.below(8) {
        0 => ty.elem_type = *random.pick(TYPES),
        1 => dims.push(dim(random)),
        2 => drop(dims.pop()),
        _ => {
            if let Some(slot) = dims.get_mut(at) {
                *slot = dim(random);
            }
        }
    }
}

/// A tensor of few elements.
pub(super) fn any_tensor(name: &str, random: &mut Random) -> TensorProto {
    let dims = (0..random.below(4)).map(|_| random.below(4) as i64).collect();
    let mut tensor = TensorProto {
        name: name.to_owned(),
        data_type: *random.pick(TYPES),
        dims,
        ..Default::default()
    };
    fill(&mut tensor, random);
    tensor
}

/// A tensor that fits the type of an input, where that is not too large.
pub(super) fn tensor_for(input: &ValueInfoProto, random: &mut Random) -> TensorProto {
    let mut input = input.clone();
    let mut tensor = any_tensor(&input.name, random);
    if let Some(ty) = tensor_type(&mut input) {
        let size = |dim: &Dimension| match dim.value {
            Some(DimensionValue::DimValue(size)) => size.clamp(0, 64),
            _ => 2,
        };
        tensor.data_type = ty.elem_type;
        tensor.dims = ty.shape.iter().flat_map(|shape| &shape.dim).map(size).collect();
        fill(&mut tensor, random);
    }
    tensor
}

/// An input of the type of a tensor, some dims perhaps symbols.
pub(super) fn input_for(tensor: &TensorProto, random: &mut Random) -> ValueInfoProto {
    let mut input = any_input(&tensor.name, random);
    if let Some(ty) = tensor_type(&mut input) {
        ty.elem_type = tensor.data_type;
        let known = |&size: &i64| Dimension { value: Some(DimensionValue::DimValue(size)) };
        let mut dims: Vec<_> = tensor.dims.iter().map(known).collect();
        if !dims.is_empty() && random.once_in(2) {
            let at = random.below(dims.len());
            dims[at] = dim(random);
        }
        ty.shape = Some(TensorShapeProto { dim: dims });
    }
    input
}

/// Changes one of the weights.
pub(super) fn change_initializer(tensors: &mut [TensorProto], random: &mut Random) {
    let at = random.below(tensors.len());
    if let Some(tensor) = tensors.get_mut(at) {
        change_tensor(tensor, random);
    }
}

/// Changes a tensor's elements, with or without its type and shape.
pub(super) fn change_tensor(tensor: &mut TensorProto, random: &mut Random) {
    match random.below(8) {
        0 => tensor.data_type = *random.pick(TYPES),
        1 => {
            let at = random.below(tensor.dims.len());
            if let Some(size) = tensor.dims.get_mut(at) {
                *size = int(random);
                return;
            }
        }
        2 => tensor.dims = vec![random.below(5) as i64],
        3 => {
            tensor.dims.clear();
        }
        _ => {}
    }
    fill(tensor, random);
}

/// Gives a tensor as many elements as its shape asks for, if those are not too many.
fn fill(tensor: &mut TensorProto, random: &mut Random) {
    let count = tensor.dims.iter().try_fold(1_i64, |n, &size| n.checked_mul(size));
    let Some(count) = count.and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= 1024) else {
        return;
    };
    *tensor = TensorProto {
        name: std::mem::take(&mut tensor.name),
        data_type: tensor.data_type,
        dims: std::mem::take(&mut tensor.dims),
        ..Default::default()
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let whole = int(random);
        match tensor.data_type {
            1 => bytes.extend(float(random).to_le_bytes()),
            11 => bytes.extend(f64::from(float(random)).to_le_bytes()),
            10 | 16 | 4 | 5 => bytes.extend((whole as u16).to_le_bytes()),
            6 | 12 => bytes.extend((whole as u32).to_le_bytes()),
            7 | 13 => bytes.extend(whole.to_le_bytes()),
            21 | 22 | 23 | 25 | 26 => tensor.int32_data.push(whole as i32),
            9 => bytes.push(u8::from(whole & 1 == 1)),
            _ => bytes.push(whole as u8),
        }
    }
    if tensor.int32_data.is_empty() {
        tensor.raw_data = Some(bytes.into());
    }
}
