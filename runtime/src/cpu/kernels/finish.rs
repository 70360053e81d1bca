//! What becomes of the sums of convolutions and matmuls: the epilogues that most of them have, in registers where that is
//! faster.

use super::pointwise::Unary;
use super::prefetch::prefetch_all;
use super::simd::{Kernel, dispatch, mul_add, within};
use super::tile::TileMut;
use pulp::Simd;
use std::hint::black_box;
use std::ops::Range;

/// Does something for each of some numbers that the compiler knows: vectors in arrays that they index stay in registers, which
/// a loop does not promise.
macro_rules! unrolled {
    ($number:ident in [$($value:literal)*] => $body:expr) => {
        $({
            const NUMBER: usize = $value;
            let $number = NUMBER;
            $body
        })*
    };
}
pub(super) use unrolled;

/// A function of one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activation {
    Identity,
    Relu,
    HardSwish,
}

impl Activation {
    /// The function, if it is one of these.
    pub(crate) fn of(function: Option<Unary>) -> Option<Self> {
        match function {
            None => Some(Self::Identity),
            Some(Unary::Relu) => Some(Self::Relu),
            Some(Unary::HardSwish) => Some(Self::HardSwish),
            Some(_) => None,
        }
    }
}

/// What is done to a convolution's sums as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish<'a> {
    /// Added first: as many elements as there are results, in the same order.
    pub(crate) residual: Option<&'a [f32]>,
    /// Applied last.
    pub(crate) activation: Activation,
}

impl<'a> Finish<'a> {
    /// Sums are stored as they are.
    pub(crate) const NONE: Self = Self { residual: None, activation: Activation::Identity };

    /// Asks for what is added to so many results from this one on, before they are there.
    #[inline(always)]
    pub(super) fn prefetch(self, first: usize, len: usize) {
        if let Some(residual) = self.residual {
            prefetch_all(residual, first, len);
        }
    }

    /// The same for so many results from this one on.
    #[inline(always)]
    fn slice(self, first: usize, len: usize) -> Self {
        Self { residual: self.residual.map(|all| &all[first..first + len]), ..self }
    }
}

/// Leaves sums in a row of as many elements, the last vector's last ones left out, or adds them to it. What they are
/// finished by begins with the row's first result, number `first` of all. Sums are given by value, so that they stay in
/// registers.
#[inline(always)]
pub(super) fn leave_finished<S: Simd, const FMA: bool, const V: usize>(
    simd: S,
    row: &mut [f32],
    sums: [S::f32s; V],
    adds: bool,
    (finish, first): (Finish<'_>, usize),
) {
    let Finish { residual, activation } = finish.slice(first, row.len());
    let mut sums = added::<S, V>(simd, row, sums, adds, residual);
    match activation {
        Activation::Identity => {}
        Activation::Relu => {
            for sum in &mut sums {
                *sum = activate::<S, FMA>(simd, Activation::Relu, *sum);
            }
        }
        Activation::HardSwish => {
            for sum in &mut sums {
                *sum = activate::<S, FMA>(simd, Activation::HardSwish, *sum);
            }
        }
    }
    store(simd, row, sums);
}

/// Leaves sums and a bias in a row, or adds them to it, as [`leave_finished`] does.
#[inline(always)]
pub(super) fn leave_biased<S: Simd, const V: usize>(
    simd: S,
    row: &mut [f32],
    sums: [S::f32s; V],
    adds: bool,
    bias: Option<&[f32]>,
) {
    let sums = added::<S, V>(simd, row, sums, adds, bias);
    store(simd, row, sums);
}

/// Sums, with what is in their row if they are added to it, and with other elements.
#[inline(always)]
fn added<S: Simd, const V: usize>(
    simd: S,
    row: &[f32],
    mut sums: [S::f32s; V],
    adds: bool,
    beside: Option<&[f32]>,
) -> [S::f32s; V] {
    if adds {
        sums = plus::<S, V>(simd, row, sums);
    }
    if let Some(beside) = beside {
        sums = plus::<S, V>(simd, beside, sums);
    }
    sums
}

/// Stores sums in a row of as many elements, the last vector's last ones left out.
#[inline(always)]
fn store<S: Simd, const V: usize>(simd: S, row: &mut [f32], sums: [S::f32s; V]) {
    let (to, rest) = S::as_mut_simd_f32s(row);
    if rest.is_empty() {
        to[..V].copy_from_slice(&sums);
    } else {
        to[..V - 1].copy_from_slice(&sums[..V - 1]);
        simd.partial_store_f32s(rest, sums[V - 1]);
    }
}

/// What follows a matmul on a tile of C. Without a residual, a bias is added in registers, and a function applied while what it
/// is applied to is in the first-level cache; with one, all is done row by row once a block of rows is summed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue<'a, T = f32> {
    /// Added to each row: an element for each of the tile's columns.
    pub(crate) bias: Option<&'a [T]>,
    /// Added too: elements of the tile's first row and those after it, and the distance from one of its rows to the next.
    pub(crate) residual: Option<(&'a [T], usize)>,
    /// Applied last.
    pub(crate) function: Option<Unary>,
}

impl<T> Epilogue<'_, T> {
    /// Sums are stored as they are.
    pub(crate) const NONE: Self = Self { bias: None, residual: None, function: None };
}

impl Epilogue<'_> {
    /// The epilogue, if it is done while sums are stored: `None` with a residual, of which a few elements at a time, beside the
    /// sums, are read slower than long rows of it beside a tile that is still in the second-level cache.
    #[inline(always)]
    pub(super) fn while_storing(&self) -> Option<&Self> {
        if self.residual.is_some() { None } else { Some(self) }
    }

    /// Does it to a tile of sums that is stored already.
    pub(crate) fn apply(self, tile: &mut TileMut<'_, f32>) {
        let (rows, _) = tile.sizes();
        dispatch(Apply { epilogue: self, tile, rows: 0..rows });
    }

    /// The same to some rows.
    #[inline(always)]
    pub(super) fn apply_within<S: Simd>(
        self,
        simd: S,
        tile: &mut TileMut<'_, f32>,
        rows: Range<usize>,
    ) {
        within(simd, Apply { epilogue: self, tile, rows });
    }
}

struct Apply<'a, 'b, 'c> {
    epilogue: Epilogue<'a>,
    tile: &'b mut TileMut<'c, f32>,
    rows: Range<usize>,
}

impl Kernel for Apply<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd, const FMA: bool>(self, simd: S) {
        let Self { epilogue: Epilogue { bias, residual, function }, tile, rows } = self;
        let (_, columns) = tile.sizes();
        for number in rows {
            let row = tile.row(number);
            let beside = residual.map(|(residual, pitch)| &residual[number * pitch..][..columns]);
            match (bias, beside) {
                (Some(bias), Some(beside)) => {
                    let terms = bias.iter().zip(beside);
                    row.iter_mut().zip(terms).for_each(|(sum, (&x, &y))| *sum = *sum + x + y);
                }
                (Some(terms), None) | (None, Some(terms)) => {
                    row.iter_mut().zip(terms).for_each(|(sum, &x)| *sum += x);
                }
                (None, None) => {}
            }
            if let Some(function) = function {
                function.apply_within(simd, tile, number..number + 1, 0..columns);
            }
        }
    }
}

/// Elements and sums, as many as there are elements.
#[inline(always)]
fn plus<S: Simd, const V: usize>(
    simd: S,
    elements: &[f32],
    mut sums: [S::f32s; V],
) -> [S::f32s; V] {
    let (whole, rest) = S::as_simd_f32s(elements);
    let last = match rest {
        [] => whole[V - 1],
        rest => simd.partial_load_f32s(rest),
    };
    for (sum, &x) in sums.iter_mut().zip(&whole[..V - 1]) {
        *sum = simd.add_f32s(x, *sum);
    }
    sums[V - 1] = simd.add_f32s(last, sums[V - 1]);
    sums
}

#[inline(always)]
fn activate<S: Simd, const FMA: bool>(simd: S, activation: Activation, x: S::f32s) -> S::f32s {
    let zero = simd.splat_f32s(0.0);
    match activation {
        Activation::Identity => x,
        Activation::Relu => simd.select_f32s(simd.less_than_f32s(x, zero), zero, x),
        Activation::HardSwish if !FMA => {
            let mut lanes = [x];
            let each = bytemuck::cast_slice_mut(&mut lanes).iter_mut();
            each.for_each(|x| *x = hard_swish::<FMA>(*x));
            lanes[0]
        }
        Activation::HardSwish => {
            // Read where they are used: in registers they would displace sums that are not finished yet.
            let [three, sixth, sixth_low, minus_sixth, six, one] = *black_box(&OF_HARD_SWISH);
            let [three, sixth] = [simd.splat_f32s(three), simd.splat_f32s(sixth)];
            let sum = simd.add_f32s(x, three);
            let error = simd.sub_f32s(x, simd.sub_f32s(sum, three));
            let high = simd.mul_f32s(sum, sixth);
            let minus_high = simd.mul_f32s(sum, simd.splat_f32s(minus_sixth));
            let low = simd.mul_add_e_f32s(sum, sixth, minus_high);
            let low = simd.mul_add_e_f32s(sum, simd.splat_f32s(sixth_low), low);
            let low = simd.mul_f32s(x, simd.mul_add_e_f32s(error, sixth, low));
            let (above, below) =
                (simd.less_than_f32s(zero, sum), simd.less_than_f32s(sum, simd.splat_f32s(six)));
            let high = simd.select_f32s(below, high, simd.splat_f32s(one));
            let high = simd.select_f32s(above, high, zero);
            let low = simd.select_f32s(below, low, simd.splat_f32s(-0.0));
            let low = simd.select_f32s(above, low, simd.splat_f32s(-0.0));
            simd.mul_add_e_f32s(x, high, low)
        }
    }
}

/// 1 / 6 in two parts.
const SIXTH: f32 = 1.0 / 6.0;
const SIXTH_LOW: f32 = (1.0 / 6.0 - SIXTH as f64) as f32;

/// What [`Activation::HardSwish`] computes with.
static OF_HARD_SWISH: [f32; 6] = [3.0, SIXTH, SIXTH_LOW, -SIXTH, 6.0, 1.0];

/// x · min(max(x / 6 + ½, 0), 1), within 1 ulp: as [`Activation::HardSwish`] where multiplying and adding is one
/// instruction, in double precision elsewhere.
#[inline(always)]
pub(super) fn hard_swish<const FMA: bool>(x: f32) -> f32 {
    if !FMA {
        let x = f64::from(x);
        return (x * (x * (1.0 / 6.0) + 0.5).clamp(0.0, 1.0)) as f32;
    }
    // The factor is (x + 3) / 6 in two parts: near -3 it is a small difference, which a rounding of the sum would be large
    // beside.
    let sum = x + 3.0;
    let error = x - (sum - 3.0);
    let high = sum * SIXTH;
    let low = mul_add::<FMA>(sum, SIXTH, -high);
    let low = mul_add::<FMA>(sum, SIXTH_LOW, low);
    let low = x * mul_add::<FMA>(error, SIXTH, low);
    let high = if sum < 6.0 { high } else { 1.0 };
    let high = if 0.0 < sum { high } else { 0.0 };
    let low = if sum < 6.0 { low } else { -0.0 };
    let low = if 0.0 < sum { low } else { -0.0 };
    mul_add::<FMA>(x, high, low)
}

#[cfg(test)]
mod tests {
    use super::{Activation, Finish, Unary, leave_finished};
    use crate::cpu::kernels::packed::lanes;
    use crate::cpu::kernels::simd::{Kernel, dispatch};
    use pulp::Simd;

    struct Leave<'a>(&'a mut [f32], &'a [f32], bool, Finish<'a>);

    impl Kernel for Leave<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd, const FMA: bool>(self, simd: S) {
            let Self(row, sums, adds, finish) = self;
            let (sums, _) = S::as_simd_f32s(sums);
            let finish = (finish, 2);
            match row.len().div_ceil(S::F32_LANES) {
                1 => leave_finished::<S, FMA, 1>(simd, row, [sums[0]], adds, finish),
                2 => leave_finished::<S, FMA, 2>(simd, row, [sums[0], sums[1]], adds, finish),
                _ => {
                    let sums = [sums[0], sums[1], sums[2]];
                    leave_finished::<S, FMA, 3>(simd, row, sums, adds, finish);
                }
            }
        }
    }

    /// Rows of every length, with and without what was there before, a residual and a function: the same bits as
    /// those steps one by one.
    #[test]
    fn sums_are_finished_as_step_by_step() {
        let numbers = |factor: f32| -> Vec<f32> {
            (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * factor).collect()
        };
        let (sums, before, beside) = (numbers(0.19), numbers(0.07), numbers(0.03));
        for activation in [Activation::Identity, Activation::Relu, Activation::HardSwish] {
            for (adds, residual) in [(false, false), (true, false), (false, true), (true, true)] {
                for len in 1..=3 * lanes() {
                    let mut row = before[..len].to_vec();
                    let residual = residual.then_some(&beside[..]);
                    dispatch(Leave(&mut row, &sums, adds, Finish { residual, activation }));
                    let mut wanted = sums[..len].to_vec();
                    for (i, x) in wanted.iter_mut().enumerate() {
                        *x = if adds { before[i] + *x } else { *x };
                        *x += residual.map_or(0.0, |beside| beside[2 + i]);
                    }
                    match activation {
                        Activation::Identity => {}
                        Activation::Relu => Unary::Relu.apply_in_place(&mut wanted),
                        Activation::HardSwish => Unary::HardSwish.apply_in_place(&mut wanted),
                    }
                    assert_eq!(row, wanted, "{activation:?}, {adds}, {residual:?}, {len}");
                }
            }
        }
    }
}
