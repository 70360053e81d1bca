//! The numbers that a model gives for one text, and what is made of them.

use crate::error::{Error, Result};
use graphene_frontend::tensor::Tensor;
use half::{bf16, f16};

/// What a model gives for one text: a vector, or one for each token.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    numbers: Vec<f32>,
    width: usize,
}

impl Row {
    /// The row of an output that has one.
    pub fn of(output: &Tensor) -> Self {
        Self { numbers: numbers(output), width: output.shape().last().copied().unwrap_or(0).max(1) }
    }

    /// All numbers.
    pub fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// The vectors, one for each token or one in all.
    pub fn vectors(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.numbers.chunks_exact(self.width)
    }

    /// The vector of a token.
    pub(crate) fn vector(&self, place: usize) -> Vec<f32> {
        self.vectors().nth(place).map(<[f32]>::to_vec).unwrap_or_default()
    }

    /// The last token's vector.
    pub(crate) fn last(&self) -> Vec<f32> {
        self.vector((self.numbers.len() / self.width).saturating_sub(1))
    }

    /// The mean of the vectors.
    pub(crate) fn mean(&self) -> Vec<f32> {
        let mut sum = vec![0.0_f32; self.width];
        for vector in self.vectors() {
            sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
        }
        let count = (self.numbers.len() / self.width).max(1) as f32;
        sum.iter_mut().for_each(|sum| *sum /= count);
        sum
    }
}

/// The rows of an output of several texts, `[texts, width]` or `[texts, length, width]`, of which each has so many tokens: what
/// was computed of padding is left out.
///
/// # Errors
/// [`Error::Rows`] for another shape.
pub fn rows(output: &Tensor, lengths: &[usize]) -> Result<Vec<Row>> {
    let misfit = || Error::Rows { shape: output.shape().to_vec(), texts: lengths.len() };
    let (length, width) = match *output.shape() {
        [texts, width] if texts == lengths.len() => (1, width),
        [texts, length, width] if texts == lengths.len() => (length, width),
        _ => return Err(misfit()),
    };
    let all = numbers(output);
    let row = |(place, &own): (usize, &usize)| {
        let own = if output.shape().len() == 2 { 1 } else { own };
        let start = place * length * width;
        let numbers = all.get(start..start + own * width).filter(|_| own <= length)?;
        Some(Row { numbers: numbers.to_vec(), width: width.max(1) })
    };
    lengths.iter().enumerate().map(|one| row(one).ok_or_else(misfit)).collect()
}

/// Elements in single precision.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    if let Ok(all) = tensor.as_slice::<f32>() {
        return all.to_vec();
    }
    if let Ok(all) = tensor.as_slice::<f16>() {
        return all.iter().map(|x| x.to_f32()).collect();
    }
    tensor
        .as_slice::<bf16>()
        .map_or_else(|_| Vec::new(), |all| all.iter().map(|x| x.to_f32()).collect())
}

/// Divides a vector by its length, unless that is zero.
pub fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}

/// The softmax of scores: they are positive then, and sum up to one.
pub fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::{Row, rows, sigmoid, softmax};
    use graphene_frontend::tensor::Tensor;

    fn tensor(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        Tensor::from_vec(shape.to_vec(), (0..count).map(|i| i as f32).collect()).unwrap()
    }

    #[test]
    fn padding_is_left_out_of_rows() {
        let found = rows(&tensor(&[2, 3, 2]), &[3, 1]).unwrap();
        assert_eq!(found[0].numbers(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((found[0].mean(), found[0].last()), (vec![2.0, 3.0], vec![4.0, 5.0]));
        assert_eq!(found[1].vectors().collect::<Vec<_>>(), [[6.0, 7.0]]);
        assert_eq!(rows(&tensor(&[2, 3]), &[7, 1]).unwrap()[1].numbers(), [3.0, 4.0, 5.0]);
        for (shape, lengths) in [(&[2, 3][..], &[1][..]), (&[1, 2, 3], &[3]), (&[1], &[1])] {
            assert!(rows(&tensor(shape), lengths).is_err(), "{shape:?}");
        }
        assert_eq!(Row::of(&tensor(&[1, 2, 2])).vectors().len(), 2);
    }

    #[test]
    fn scores_become_probabilities() {
        let mut scores = [1000.0, 1000.0, f32::NEG_INFINITY];
        softmax(&mut scores);
        assert_eq!(scores, [0.5, 0.5, 0.0]);
        assert_eq!(sigmoid(0.0), 0.5);
    }
}
