//! Fourier transforms against their definition.

use crate::model::{graph, imported, int, ints, model, node, value, with};
use graphene_frontend::eval::evaluate;
use graphene_frontend::tensor::Tensor;
use std::f64::consts::TAU;

/// `[2, length, 3, 2]` transformed back along axis 1 is `Σ x[k]·e^(2πi·jk/length) / length`.
fn check_inverse(length: usize) {
    let dft = with(with(node("DFT", "x n", "y"), int("axis", 1)), int("inverse", 1));
    let mut graph = graph(vec![value("x", 1, &format!("2 {length} 3 2"))], vec![dft], &["y"]);
    graph.initializer.push(ints("n", &[], &[length as i64]));
    let imported = imported(&model(graph)).unwrap_or_else(|error| panic!("{length}: {error}"));
    let elements: Vec<f32> =
        (0..12 * length).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let x = Tensor::from_vec(vec![2, length, 3, 2], elements.clone()).unwrap();
    let y = evaluate(&imported.graph, &[x]).unwrap().remove(0);
    let y: &[f32] = y.as_slice().unwrap();
    let place = |b: usize, k: usize, column: usize| ((b * length + k) * 3 + column) * 2;
    for (b, j, column) in (0..6 * length).map(|i| (i / 3 / length, i / 3 % length, i % 3)) {
        let (mut re, mut im) = (0.0, 0.0);
        for k in 0..length {
            let (sin, cos) = (TAU * (j * k % length) as f64 / length as f64).sin_cos();
            let at = place(b, k, column);
            let (a, b) = (f64::from(elements[at]), f64::from(elements[at + 1]));
            re += (a * cos - b * sin) / length as f64;
            im += (a * sin + b * cos) / length as f64;
        }
        let at = place(b, j, column);
        for (actual, expected) in [(y[at], re), (y[at + 1], im)] {
            let error = (f64::from(actual) - expected).abs();
            assert!(error <= 1e-6, "{length}: [{b}, {j}, {column}] {actual} {expected}");
        }
    }
}

#[test]
fn inverse_transforms_of_all_factors() {
    for length in [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 26, 30, 45, 64, 66, 77] {
        check_inverse(length);
    }
}
