//! Elements of tensors in symbols: what shape arithmetic is made of.
//!
//! A tensor's elements are known here if they are integers (truth values count as 0 and 1, and integers may be
//! held in a float type), and either few, or affine in their coordinates as in a layout of offset and strides.
//! `build/evaluate.rs` computes with them.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::eval::number;
use crate::tensor::Tensor;
use crate::types::TensorType;

pub(super) mod movement;
pub(super) mod pointwise;
pub(super) mod reduce;

/// Tensors of at most this many elements are kept element by element.
pub(super) const MAX_ITEMS: usize = 64;

/// Constants with more elements are not searched for affine ones.
const MAX_SEARCHED: usize = 1 << 22;

/// The elements of a tensor.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Abstract {
    /// Each element of a small tensor, row-major.
    Elements { shape: Vec<usize>, items: Vec<Dim> },
    /// See [`Affine`].
    Affine(Affine),
}

/// The element at coordinates c is offset + Σ strides·c.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Affine {
    pub(super) dims: Vec<Dim>,
    pub(super) strides: Vec<Dim>,
    pub(super) offset: Dim,
}

impl Affine {
    /// Every element is `value`.
    pub(super) fn uniform(dims: Vec<Dim>, value: Dim) -> Self {
        let strides = vec![Dim::from(0); dims.len()];
        Self { dims, strides, offset: value }
    }

    pub(super) fn is_uniform(&self) -> bool {
        self.strides.iter().all(|stride| *stride == 0)
    }

    /// The smallest and the largest element, where the strides' signs are known.
    pub(super) fn range(&self) -> Option<(Dim, Dim)> {
        let (mut low, mut high) = (self.offset.clone(), self.offset.clone());
        for (dim, stride) in self.dims.iter().zip(&self.strides) {
            let reach = stride * (dim - &Dim::from(1));
            if stride.lower_bound().is_some_and(|bound| bound >= 0) {
                high = high + reach;
            } else if stride.upper_bound().is_some_and(|bound| bound <= 0) {
                low = low + reach;
            } else {
                return None;
            }
        }
        Some((low, high))
    }
}

impl Abstract {
    /// A single element without dims.
    pub(super) fn scalar(value: Dim) -> Self {
        Self::Elements { shape: Vec::new(), items: vec![value] }
    }

    /// The form for these: element by element where they are few, and strides of single elements zero.
    pub(super) fn of_affine(mut affine: Affine) -> Self {
        for (dim, stride) in affine.dims.iter().zip(&mut affine.strides) {
            if *dim == 1 {
                *stride = Dim::from(0);
            }
        }
        match affine_items(&affine) {
            Some((shape, items)) => Self::Elements { shape, items },
            None => Self::Affine(affine),
        }
    }

    /// The elements of a constant, if they are integers and few or affine.
    pub(super) fn of_tensor(tensor: &Tensor) -> Option<Self> {
        let dtype = tensor.dtype();
        if dtype.is_float() {
            if tensor.len() > MAX_ITEMS {
                return None;
            }
            let integer = |x: f64| {
                let exact = x.fract() == 0.0 && x.abs() <= exact_integers(dtype) as f64;
                (exact && (x != 0.0 || x.is_sign_positive())).then(|| Dim::from(x as i64))
            };
            let items = number::reals(tensor).ok()?.into_iter().map(integer);
            let items = items.collect::<Option<Vec<_>>>()?;
            return Some(Self::Elements { shape: tensor.shape().to_vec(), items });
        }
        if tensor.len() > MAX_SEARCHED {
            return None;
        }
        let value = |at| number::integer_at(tensor, at);
        if tensor.len() <= MAX_ITEMS {
            let items = (0..tensor.len()).map(|at| value(at).map(Dim::from));
            let items = items.collect::<Option<Vec<_>>>()?;
            return Some(Self::Elements { shape: tensor.shape().to_vec(), items });
        }
        affine_integers(tensor.shape(), value).map(Self::Affine)
    }

    /// The shape.
    pub(super) fn dims(&self) -> Vec<Dim> {
        match self {
            Self::Elements { shape, .. } => shape.iter().map(|&size| Dim::from(size)).collect(),
            Self::Affine(affine) => affine.dims.clone(),
        }
    }

    /// Every element, row-major, if they are few.
    pub(super) fn items(&self) -> Option<Vec<Dim>> {
        match self {
            Self::Elements { items, .. } => Some(items.clone()),
            Self::Affine(affine) => affine_items(affine).map(|(_, items)| items),
        }
    }

    /// The affine form, if there is one.
    pub(super) fn affine(&self) -> Option<Affine> {
        match self {
            Self::Affine(affine) => Some(affine.clone()),
            Self::Elements { shape, items } => affine_elements(shape, items),
        }
    }

    /// The value of every element, if they are all the same.
    pub(super) fn uniform(&self) -> Option<Dim> {
        match self {
            Self::Elements { items, .. } => {
                let (first, rest) = items.split_first()?;
                rest.iter().all(|item| item == first).then(|| first.clone())
            }
            Self::Affine(affine) => affine.is_uniform().then(|| affine.offset.clone()),
        }
    }
}

/// Integers up to this are exact in the type.
pub(super) fn exact_integers(dtype: DType) -> i64 {
    match dtype {
        DType::F64 => 1 << 53,
        DType::F32 => 1 << 24,
        DType::F16 => 1 << 11,
        DType::BF16 => 1 << 8,
        DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0
        | DType::F4E2M1 => 0,
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::Bool
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2 => i64::MAX,
    }
}

fn affine_items(affine: &Affine) -> Option<(Vec<usize>, Vec<Dim>)> {
    let sizes: Option<Vec<usize>> =
        affine.dims.iter().map(|dim| usize::try_from(dim.known()?).ok()).collect();
    let shape = sizes?;
    let count = crate::tensor::checked_elements(&shape).filter(|&n| n <= MAX_ITEMS)?;
    let item = |i| {
        let place = coordinates(i, &shape);
        place.iter().zip(&affine.strides).fold(affine.offset.clone(), |sum, (&c, stride)| {
            if c == 0 { sum } else { sum + stride * Dim::from(c) }
        })
    };
    let items = (0..count).map(item).collect();
    Some((shape, items))
}

/// The coordinates of the i-th element.
pub(super) fn coordinates(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (c, &size) in place.iter_mut().zip(shape).rev() {
        *c = i % size.max(1);
        i /= size.max(1);
    }
    place
}

/// The position of the element at these coordinates.
pub(super) fn position(place: &[usize], shape: &[usize]) -> usize {
    place.iter().zip(shape).fold(0, |at, (&c, &size)| at * size + c)
}

fn affine_elements(shape: &[usize], items: &[Dim]) -> Option<Affine> {
    let offset = items.first()?.clone();
    let strides: Vec<Dim> =
        steps(shape).map(|step| step.map_or(Dim::from(0), |step| &items[step] - &offset)).collect();
    let dims = shape.iter().map(|&size| Dim::from(size)).collect();
    let affine = Affine { dims, strides, offset };
    let (_, expected) = affine_items(&affine)?;
    (expected == items).then_some(affine)
}

/// For each axis, the position of its second element, if it has one.
fn steps(shape: &[usize]) -> impl Iterator<Item = Option<usize>> + '_ {
    let after = |axis: usize| {
        // Sizes beside a zero may be anything.
        shape[axis + 1..].iter().fold(1_usize, |product, &size| product.saturating_mul(size))
    };
    (0..shape.len()).map(move |axis| (shape[axis] > 1).then(|| after(axis)))
}

/// Values of a shape, of which there are some, if they are affine. Most weights are not, and few of them are looked at.
fn affine_integers(shape: &[usize], value: impl Fn(usize) -> Option<i64>) -> Option<Affine> {
    let offset = value(0)?;
    let strides: Option<Vec<i64>> = steps(shape)
        .map(|step| step.map_or(Some(0), |step| value(step)?.checked_sub(offset)))
        .collect();
    let strides = strides?;
    let mut place = vec![0_usize; shape.len()];
    for at in 0..shape.iter().product() {
        let terms = place.iter().zip(&strides);
        let sum: i128 = terms.map(|(&c, &stride)| c as i128 * i128::from(stride)).sum();
        if sum + i128::from(offset) != i128::from(value(at)?) {
            return None;
        }
        for (c, &size) in place.iter_mut().zip(shape).rev() {
            *c += 1;
            if *c < size {
                break;
            }
            *c = 0;
        }
    }
    Some(Affine {
        dims: shape.iter().map(|&size| Dim::from(size)).collect(),
        strides: strides.into_iter().map(Dim::from).collect(),
        offset: Dim::from(offset),
    })
}

/// A tensor of this type whose every element is `value`.
pub(super) fn uniform_of(ty: &TensorType, value: Dim) -> Abstract {
    Abstract::of_affine(Affine::uniform(ty.shape.clone(), value))
}
