//! Requests in buckets: tensors filled to larger sizes, and cut back.
//!
//! Which axes are filled and cut is [`graphene_fusion::pad`]'s to say.

use crate::error::{Error, Result};
use graphene_frontend::dim::Bindings;
use graphene_frontend::tensor::Tensor;
use graphene_fusion::pad::Padding;

/// The inputs of a program at larger sizes: zeros behind what is given.
///
/// # Errors
/// [`Error::InputCount`], [`Error::Axis`] for inputs that are not those that the paddings are for; as for [`resized`].
pub fn filled(inputs: &[Tensor], paddings: &[Padding], bucket: &Bindings) -> Result<Vec<Tensor>> {
    resize_all(inputs, paddings, bucket, |padding| &padding.inputs)
}

/// The part of a program's outputs that was asked for.
///
/// # Errors
/// As for [`filled`].
pub fn cut(outputs: &[Tensor], paddings: &[Padding], asked: &Bindings) -> Result<Vec<Tensor>> {
    resize_all(outputs, paddings, asked, |padding| &padding.outputs)
}

fn resize_all(
    tensors: &[Tensor],
    paddings: &[Padding],
    sizes: &Bindings,
    axes: impl Fn(&Padding) -> &Vec<Vec<usize>>,
) -> Result<Vec<Tensor>> {
    let mut tensors = tensors.to_vec();
    for padding in paddings {
        let (axes, size) = (axes(padding), sizes.get(&padding.symbol));
        let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else { continue };
        if axes.len() != tensors.len() {
            return Err(Error::InputCount { expected: axes.len(), found: tensors.len() });
        }
        for (tensor, axes) in tensors.iter_mut().zip(axes) {
            for &axis in axes {
                *tensor = resized(tensor, axis, size)?;
            }
        }
    }
    Ok(tensors)
}

/// A tensor with `size` elements along an axis: its first ones, and zeros behind them.
///
/// # Errors
/// [`Error::Axis`] if it has no such axis; [`Error::TooLarge`].
pub fn resized(tensor: &Tensor, axis: usize, size: usize) -> Result<Tensor> {
    let mut shape = tensor.shape().to_vec();
    let Some(before) = shape.get(axis).copied() else {
        return Err(Error::Axis { axis, rank: shape.len() });
    };
    if before == size {
        return Ok(tensor.clone());
    }
    let too_large = || Error::TooLarge { what: "a padded tensor" };
    shape[axis] = size;
    let elements = graphene_frontend::tensor::checked_elements(&shape).ok_or_else(too_large)?;
    let width = tensor.dtype().size();
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * width;
    let mut bytes = vec![0; elements.checked_mul(width).ok_or_else(too_large)?];
    let (from, to) = (before * inner, size * inner);
    let kept = from.min(to);
    if kept > 0 {
        for (to, from) in bytes.chunks_exact_mut(to).zip(tensor.bytes().chunks_exact(from)) {
            to[..kept].copy_from_slice(&from[..kept]);
        }
    }
    Ok(Tensor::new(tensor.dtype(), shape, bytes.into())?)
}

#[cfg(test)]
mod tests {
    use super::resized;
    use graphene_frontend::tensor::Tensor;

    #[test]
    fn what_is_filled_and_cut_is_as_it_was() {
        let tensor = Tensor::from_vec(vec![2, 3, 2], (1..13_i32).collect()).expect("12 elements");
        let longer = resized(&tensor, 1, 5).expect("it has the axis");
        assert_eq!(longer.shape(), [2, 5, 2]);
        let expected = [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0];
        assert_eq!(longer.as_slice::<i32>().expect("integers"), expected);
        let more = resized(&longer, 0, 3).expect("it has the axis");
        assert_eq!(more.shape(), [3, 5, 2]);
        let back = resized(&resized(&more, 0, 2).expect("an axis"), 1, 3).expect("an axis");
        assert_eq!((back.shape(), back.bytes()), (tensor.shape(), tensor.bytes()));
        let shorter = resized(&tensor, 2, 1).expect("it has the axis");
        assert_eq!(shorter.as_slice::<i32>().expect("integers"), [1, 3, 5, 7, 9, 11]);
        assert!(resized(&tensor, 3, 1).is_err());
    }
}
