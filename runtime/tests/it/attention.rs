//! Attention: masks of every kind, grouped heads, partial blocks.

use crate::check::{Random, check_op};
use graphene_frontend::dtype::DType;
use graphene_frontend::op::{AttentionAttrs, Op};
use graphene_frontend::tensor::Tensor;

const PLAIN: AttentionAttrs =
    AttentionAttrs { scale: 0.25, causal: false, softcap: 0.0, guarded: false };

/// Batch, heads, groups, queries, keys, depth, depth of the values.
type Sizes = [usize; 7];

fn operands(
    dtype: DType,
    [b, h, g, s, t, d, e]: Sizes,
    random: &mut Random,
) -> Vec<Option<Tensor>> {
    let shapes = [vec![b, h, s, d], vec![b, g, t, d], vec![b, g, t, e]];
    shapes.map(|shape| Some(random.tensor(dtype, shape))).into()
}

fn check(dtype: DType, sizes: Sizes, attrs: AttentionAttrs, mask: Option<Tensor>, tolerance: f64) {
    let mut operands = operands(dtype, sizes, &mut Random(7));
    operands.push(mask);
    check_op(Op::Attention(attrs), &operands, &[0], "attention", tolerance);
}

#[test]
fn sizes() {
    for sizes in [
        [1, 1, 1, 1, 1, 1, 1],
        [2, 3, 3, 5, 7, 8, 8],
        [1, 2, 2, 130, 300, 33, 17],
        [1, 4, 2, 9, 520, 16, 5],
        [2, 6, 1, 129, 257, 4, 40],
        [0, 2, 2, 3, 3, 4, 4],
        [1, 2, 2, 3, 0, 4, 4],
        [1, 2, 1, 3, 5, 0, 4],
        [1, 2, 1, 3, 5, 4, 0],
    ] {
        check(DType::F32, sizes, PLAIN, None, 1e-5);
        check(DType::F32, sizes, AttentionAttrs { causal: true, ..PLAIN }, None, 1e-5);
        check(DType::F32, sizes, AttentionAttrs { softcap: 1.5, ..PLAIN }, None, 1e-5);
    }
}

#[test]
fn masks_broadcast() {
    let (b, h, s, t) = (2, 4, 131, 270);
    let sizes = [b, h, 2, s, t, 9, 10];
    for shape in
        [vec![b, h, s, t], vec![b, 1, 1, t], vec![1, h, s, 1], vec![s, t], vec![t], vec![1], vec![]]
    {
        for dtype in [DType::F32, DType::Bool] {
            let mask = Random(3).tensor(dtype, shape.clone());
            let causal = AttentionAttrs { causal: true, ..PLAIN };
            check(DType::F32, sizes, PLAIN, Some(mask.clone()), 1e-5);
            check(DType::F32, sizes, causal, Some(mask), 1e-5);
        }
    }
}

#[test]
fn rows_that_attend_nowhere_or_late() {
    let (s, t) = (3, 600);
    // The first row attends nothing, the second only a key of the last block, the third all but the first.
    let attended = |i: usize| [false, i % t == 590, i % t > 300][i / t];
    let bools = Tensor::from_bools(vec![s, t], (0..s * t).map(attended).collect()).unwrap();
    let bias = |i| if attended(i) { 0.5 } else { f32::NEG_INFINITY };
    let floats = Tensor::from_vec(vec![s, t], (0..s * t).map(bias).collect()).unwrap();
    for mask in [bools, floats] {
        for guarded in [false, true] {
            let attrs = AttentionAttrs { guarded, ..PLAIN };
            check(DType::F32, [1, 2, 2, s, t, 8, 8], attrs, Some(mask.clone()), 1e-5);
        }
    }
}

#[test]
fn infinite_and_missing_scores() {
    for special in [f32::NAN, f32::INFINITY] {
        let mut mask = vec![0.0_f32; 2 * 300];
        mask[299] = special;
        let mask = Tensor::from_vec(vec![2, 300], mask).unwrap();
        for guarded in [false, true] {
            let attrs = AttentionAttrs { guarded, ..PLAIN };
            check(DType::F32, [1, 1, 1, 2, 300, 4, 4], attrs, Some(mask.clone()), 1e-5);
        }
    }
}

#[test]
fn narrow_floats() {
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let sizes = [2, 4, 2, 37, 300, 16, 12];
        check(dtype, sizes, PLAIN, None, tolerance);
        let mask = Random(5).tensor(dtype, vec![37, 300]);
        check(dtype, sizes, PLAIN, Some(mask), tolerance);
    }
}
