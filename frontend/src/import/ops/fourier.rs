//! The fast Fourier transform, written out in slices, sums and products.

use super::signal::waves;
use crate::dim::Dim;
use crate::graph::ValueId;
use crate::import::{Context, OpError};
use crate::op::Binary;
use std::f64::consts::TAU;

/// The prime factors of a length that a stage is written out for; their butterflies grow with the square.
const FACTORS: [i64; 5] = [2, 3, 5, 7, 11];

/// Real and imaginary parts.
pub(super) type Complex = [ValueId; 2];

/// `Σ x[k]·e^(2πi·jk/length)` along the last axis, which is so long; `None` where the length has other factors than
/// [`FACTORS`].
///
/// One stage a prime factor, ascending (decimation in frequency, as in Gentleman and Sande, *Fast Fourier Transforms:
/// for fun and profit*, 1966). Between stages the axis is `[done, rest]`: transforms of length `rest` are left.
pub(super) fn backward(
    c: &mut Context<'_, '_>,
    mut x: Complex,
    length: i64,
) -> Result<Option<Complex>, OpError> {
    let Some(stages) = factors(length) else { return Ok(None) };
    let mut outer = c.shape(x[0]);
    outer.pop();
    let axis = outer.len();
    let shape = |sizes: &[i64]| -> Vec<Dim> {
        outer.iter().cloned().chain(sizes.iter().map(|&n| n.into())).collect()
    };
    let (mut done, mut rest) = (1, length);
    for factor in stages {
        let inner = rest / factor;
        for part in &mut x {
            *part = c.reshape(*part, shape(&[done, factor, inner]))?;
        }
        let mut legs = Vec::new();
        for leg in 0..factor {
            let mut take = |part| c.narrow(part, axis + 1, Dim::from(leg), Dim::from(1));
            legs.push([take(x[0])?, take(x[1])?]);
        }
        let legs = butterfly(c, &legs)?;
        for (i, part) in x.iter_mut().enumerate() {
            let legs: Vec<ValueId> = legs.iter().map(|leg| leg[i]).collect();
            *part = c.concat(axis + 1, &legs)?;
        }
        if inner > 1 {
            x = turned(c, x, factor, inner)?;
        }
        // What was found for each remainder goes before what was done: the result is in order at the end.
        let mut perm: Vec<usize> = (0..axis + 3).collect();
        perm.swap(axis, axis + 1);
        for part in &mut x {
            *part = c.transpose(*part, perm.clone())?;
        }
        (done, rest) = (done * factor, inner);
    }
    for part in &mut x {
        *part = c.reshape(*part, shape(&[length]))?;
    }
    Ok(Some(x))
}

/// The prime factors, ascending.
fn factors(mut n: i64) -> Option<Vec<i64>> {
    let mut found = Vec::new();
    for factor in FACTORS {
        while n > 1 && n % factor == 0 {
            found.push(factor);
            n /= factor;
        }
    }
    (n == 1).then_some(found)
}

/// The transform across the legs; where two legs are turned by opposite angles, from their sum and difference.
fn butterfly(c: &mut Context<'_, '_>, legs: &[Complex]) -> Result<Vec<Complex>, OpError> {
    let count = legs.len();
    if let &[a, b] = legs {
        return Ok(vec![both(c, Binary::Add, a, b)?, both(c, Binary::Sub, a, b)?]);
    }
    let mut pairs = Vec::new();
    let mut first = legs[0];
    for j in 1..=count / 2 {
        let (a, b) = (legs[j], legs[count - j]);
        let (sum, difference) = (both(c, Binary::Add, a, b)?, both(c, Binary::Sub, a, b)?);
        first = both(c, Binary::Add, first, sum)?;
        pairs.push((sum, difference));
    }
    let mut results = vec![first; count];
    for m in 1..=count / 2 {
        let mut even = legs[0];
        let mut odd: Option<Complex> = None;
        for (j, &(sum, difference)) in (1..).zip(&pairs) {
            let angle = TAU * (m * j % count) as f64 / count as f64;
            let term = scaled(c, sum, angle.cos())?;
            even = both(c, Binary::Add, even, term)?;
            let term = scaled(c, difference, angle.sin())?;
            odd = Some(match odd {
                Some(odd) => both(c, Binary::Add, odd, term)?,
                None => term,
            });
        }
        let [re, im] = odd.unwrap_or(first);
        // i·(re + i·im) = -im + i·re
        results[m] = [c.minus(even[0], im)?, c.plus(even[1], re)?];
        results[count - m] = [c.plus(even[0], im)?, c.minus(even[1], re)?];
    }
    Ok(results)
}

/// `x[…, done, factor, inner]` times `e^(2πi·jk/(factor·inner))`, j and k being the places along the last two axes.
fn turned(
    c: &mut Context<'_, '_>,
    [re, im]: Complex,
    factor: i64,
    inner: i64,
) -> Result<Complex, OpError> {
    let length = Dim::from(factor * inner);
    let (cos, sin) = waves(c, factor.into(), inner.into(), length, c.dtype(re))?;
    let (a, b) = (c.times(re, cos)?, c.times(im, sin)?);
    let real = c.minus(a, b)?;
    let (a, b) = (c.times(re, sin)?, c.times(im, cos)?);
    Ok([real, c.plus(a, b)?])
}

/// An operation on both parts.
fn both(c: &mut Context<'_, '_>, op: Binary, a: Complex, b: Complex) -> Result<Complex, OpError> {
    Ok([c.binary(op, a[0], b[0])?, c.binary(op, a[1], b[1])?])
}

/// Both parts times a number.
fn scaled(c: &mut Context<'_, '_>, x: Complex, factor: f64) -> Result<Complex, OpError> {
    Ok([c.scaled(x[0], factor)?, c.scaled(x[1], factor)?])
}
