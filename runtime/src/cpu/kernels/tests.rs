//! Kernels spread over threads give what they give on one, the same bits where sums are taken in the same order.

use super::arg::arg_reduce;
use super::attention::{Scores, Sizes, View, ViewMut, attention};
use super::conv::{Conv, Geometry, conv, conv_transpose};
use super::copy::copy_strided;
use super::gather::gather;
use super::integer::matmul_integers;
use super::matmul::{Matrix, MatrixMut, Size, Strides, matmul};
use super::norm::{Affine, Norm, norm};
use super::pool::{Pool, pool};
use super::reduce::{Reduce, reduce};
use super::softmax::{Softmax, softmax};
use crate::threads::Threads;
use bytemuck::Pod;

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 1013) as f32 * 2e-3 - 1.0).collect()
}

/// Runs a kernel on one thread and on three, into `len` elements, and gives the most that two differ by.
fn apart<T: Pod + PartialEq>(
    len: usize,
    run: impl Fn(&mut [T]),
    distance: impl Fn(T, T) -> f64,
) -> f64 {
    let mut alone = vec![T::zeroed(); len];
    run(&mut alone);
    let mut worst = 0.0_f64;
    Threads::new(3).unwrap().run(|| {
        // Several times: which thread does what differs.
        for _ in 0..5 {
            let mut spread = vec![T::zeroed(); len];
            run(&mut spread);
            let pairs = alone.iter().zip(&spread);
            worst = pairs.fold(worst, |worst, (&a, &b)| worst.max(distance(a, b)));
        }
    });
    worst
}

fn check<T: Pod + PartialEq>(what: &str, len: usize, run: impl Fn(&mut [T])) {
    let differ = |a: T, b: T| if a == b { 0.0 } else { 1.0 };
    assert_eq!(apart(len, run, differ), 0.0, "{what}");
}

fn check_near(what: &str, len: usize, run: impl Fn(&mut [f32])) {
    let worst = apart(len, run, |a: f32, b: f32| f64::from((a - b).abs()));
    assert!(worst < 1e-4, "{what}: {worst}");
}

#[test]
fn rows_and_elements() {
    let x = numbers(300 * 1000);
    let turned = |y: &mut [f32]| copy_strided(y, &[1000, 300], &x, 0, &[1, 1000]).unwrap();
    check("a transposition", x.len(), turned);
    let moved = |y: &mut [f32]| copy_strided(y, &[10, 1000, 30], &x, 0, &[30, 300, 1]).unwrap();
    check("a permutation", x.len(), moved);
    check("a copy", x.len(), |y: &mut [f32]| {
        copy_strided(y, &[300_000], &x, 0, &[1]).unwrap();
    });
    let indices: Vec<i64> = (0..500).map(|i| (i * 7) % 300 - 300).collect();
    check("a gather", 500_000, |y: &mut [f32]| {
        gather(y, &x, [1, 300, 1000], &indices).unwrap();
    });
    for [outer, axis, inner] in [[300, 1000, 1], [3, 100, 1000], [1, 300, 1000]] {
        let shape = [outer, axis, inner];
        check("a softmax", x.len(), |y: &mut [f32]| {
            softmax(Softmax::Plain, y, &x, shape).unwrap();
        });
        check("places", outer * inner, |y: &mut [i64]| {
            arg_reduce(y, &x, shape, true, false).unwrap();
        });
    }
    let affine = Affine { scale: Some(&x[..1000]), bias: Some(&x[9..1009]), epsilon: 1e-5 };
    check("a norm", 2 * 300, |y: &mut [f32]| {
        let mut rows = vec![0.0; x.len()];
        let (mean, inverse) = y.split_at_mut(300);
        norm(Norm::Layer, &mut rows, Some(&x), 1000, affine, Some((mean, inverse))).unwrap();
    });
    for (shape, axes, len) in [
        (&[300, 1000][..], &[1][..], 300),
        (&[300, 1000], &[0], 1000),
        (&[2, 150_000], &[1], 2),
        (&[300_000], &[0], 1),
        (&[3, 100, 1000], &[1], 3000),
        (&[10, 30, 10, 100], &[0, 2], 3000),
        (&[100, 3000], &[], 300_000),
    ] {
        check("a reduction", len, |y: &mut [f32]| {
            reduce(Reduce::Sum, y, &x, shape, axes).unwrap();
        });
    }
}

#[test]
fn matrices() {
    let x = numbers(1 << 18);
    let whole: Vec<i32> = (0..1 << 14).map(|i| i % 17 - 8).collect();
    let rows = |row: usize| Strides { offset: 0, batch: &[], row: row as isize, column: 1 };
    for (m, n, k) in [(300, 500, 130), (1, 2000, 100), (1000, 20, 200)] {
        let size = Size { batch: &[], m, n, k };
        let (a, b) = (Matrix { data: &x[..], at: rows(k) }, Matrix { data: &x[..], at: rows(n) });
        check_near("a matmul", m * n, |y| {
            matmul(size, 1.0, a, b, MatrixMut { data: y, at: rows(n) }).unwrap();
        });
    }
    let batch = |stride| Strides { offset: 0, batch: stride, row: 32, column: 1 };
    let size = Size { batch: &[40], m: 32, n: 32, k: 32 };
    let a = Matrix { data: &x[..], at: batch(&[1024]) };
    check_near("a batch of matmuls", 40 * 1024, |y| {
        matmul(size, 1.0, a, a, MatrixMut { data: y, at: batch(&[1024]) }).unwrap();
    });
    let size = Size { batch: &[], m: 100, n: 100, k: 100 };
    let a = Matrix { data: &whole[..], at: rows(100) };
    check("a matmul of integers", 10_000, |y: &mut [i32]| {
        matmul_integers(size, a, a, MatrixMut { data: y, at: rows(100) }).unwrap();
    });
    let view = |strides| View { data: &x[..], offset: 0, strides };
    // Blocks of all queries, and of so many that the last one has two.
    for (queries, causal) in [(300, true), (300, false), (258, false)] {
        let (batch, heads, groups) = (2, 4, 2);
        let sizes = Sizes { batch, heads, groups, queries, keys: 500, depth: 32, value_depth: 24 };
        let scores = Scores { scale: 0.2, softcap: 0.0, causal, mask: None, guarded: false };
        let s = queries as isize;
        // Heads beside each other, and before the rows; the last lie apart and are moved.
        for strides in [[24, 96, 1], [24 * s, 24, 1], [24 * s, 1, s]] {
            check("attention", 2 * 4 * queries * 24, |y: &mut [f32]| {
                let [head, row, column] = strides;
                let y = ViewMut { data: y, offset: 0, strides: [96 * s, head, row, column] };
                let q = view([128 * s, 32 * s, 32, 1]);
                let (k, v) = (view([32_000, 16_000, 32, 1]), view([24_000, 12_000, 24, 1]));
                attention(y, sizes, q, k, v, scores).unwrap();
            });
        }
    }
}

#[test]
fn images() {
    let x = numbers(8 * 6 * 40 * 40);
    let geometry = Geometry {
        inner: &[40, 40],
        outer: &[40, 40],
        kernel: &[3, 3],
        strides: &[1, 1],
        dilations: &[1, 1],
        before: &[1, 1],
    };
    for (images, groups, channels, filters) in [(8, 1, 6, 16), (1, 1, 48, 16), (8, 2, 3, 2)] {
        let of = Conv { images, groups, channels, filters, geometry };
        let w = &x[..groups * filters * channels * 9];
        check_near("a convolution", images * groups * filters * 1600, |y| {
            conv(y, &x, w, None, of).unwrap();
        });
        check_near("a transposed convolution", images * groups * filters * 1600, |y| {
            conv_transpose(y, &x, w, None, of).unwrap();
        });
    }
    check("a pooling", x.len(), |y: &mut [f32]| {
        pool(Pool::Max, y, &x, 48, geometry).unwrap();
    });
}
