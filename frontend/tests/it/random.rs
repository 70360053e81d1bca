//! Random numbers: as distributed as they should be, the same for the same seed, and free of state.

use crate::model::{bytes, graph, imported, int, int_list, model, node, number, value, with};
use graphene_frontend::dtype::DType;
use graphene_frontend::eval::evaluate;
use graphene_frontend::import::{ImportOptions, NoExternalData, import};
use graphene_frontend::onnx::{AttributeProto, GraphProto, ModelProto, NodeProto};
use graphene_frontend::tensor::Tensor;

/// So many numbers are drawn; the bounds below are five standard errors of the mean or more.
const COUNT: usize = 40_000;

fn with_all(node: NodeProto, attributes: &[AttributeProto]) -> NodeProto {
    attributes.iter().cloned().fold(node, with)
}

/// The first output of a model of no inputs, imported with a seed.
fn drawn_with(model: &ModelProto, seed: u64, inputs: &[Tensor]) -> Tensor {
    let options = ImportOptions { seed, ..Default::default() };
    let imported = import(bytes(model), &NoExternalData, &options).unwrap();
    evaluate(&imported.graph, inputs).unwrap().remove(0)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F64 => tensor.as_slice::<f64>().unwrap().to_vec(),
        _ => tensor.as_slice::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect(),
    }
}

/// A model of one node that gives `y`, of a shape of [`COUNT`] elements unless an input gives it.
fn source(op: &str, attributes: &[AttributeProto]) -> ModelProto {
    let shape = int_list("shape", &[4, COUNT as i64 / 4]);
    let node = with(with_all(node(op, "", "y"), attributes), shape);
    model(graph(vec![], vec![node], &["y"]))
}

struct Moments {
    mean: f64,
    deviation: f64,
    least: f64,
    most: f64,
}

fn moments(values: &[f64]) -> Moments {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), &x| (l.min(x), m.max(x)));
    Moments { mean, deviation: variance.sqrt(), least, most }
}

fn check_near(what: &str, found: f64, expected: f64, within: f64) {
    assert!((found - expected).abs() <= within, "{what}: {found}, not {expected} ± {within}");
}

/// How much of one sequence the other tells: the correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (of_a, of_b) = (moments(a), moments(b));
    let pairs = a.iter().zip(b).map(|(x, y)| (x - of_a.mean) * (y - of_b.mean));
    pairs.sum::<f64>() / a.len() as f64 / (of_a.deviation * of_b.deviation)
}

#[test]
fn uniform_numbers() {
    for dtype in [1, 11] {
        let attributes = [number("low", -2.0), number("high", 6.0), int("dtype", dtype)];
        let values = numbers(&drawn_with(&source("RandomUniform", &attributes), 1, &[]));
        let Moments { mean, deviation, least, most } = moments(&values);
        check_near("mean", mean, 2.0, 0.06);
        check_near("deviation", deviation, 8.0 / 12_f64.sqrt(), 0.04);
        assert!((-2.0..-1.99).contains(&least) && (5.99..=6.0).contains(&most), "{least} {most}");
        // As many in each eighth.
        let mut eighths = [0; 8];
        for value in &values {
            eighths[((value + 2.0) as usize).min(7)] += 1;
        }
        for count in eighths {
            check_near("an eighth", f64::from(count) / COUNT as f64, 0.125, 0.01);
        }
        let next: Vec<_> = values[1..].to_vec();
        check_near("neighbours", correlation(&values[..COUNT - 1], &next), 0.0, 0.03);
    }
}

#[test]
fn normal_numbers() {
    for dtype in [1, 11] {
        let attributes = [number("mean", 3.0), number("scale", 2.0), int("dtype", dtype)];
        let values = numbers(&drawn_with(&source("RandomNormal", &attributes), 1, &[]));
        let Moments { mean, deviation, .. } = moments(&values);
        check_near("mean", mean, 3.0, 0.05);
        check_near("deviation", deviation, 2.0, 0.05);
        for (within, share) in [(1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)] {
            let inside = values.iter().filter(|x| (*x - 3.0).abs() < 2.0 * within).count();
            check_near("inside", inside as f64 / COUNT as f64, share, 0.013);
        }
        let third = values.iter().map(|x| ((x - mean) / deviation).powi(3)).sum::<f64>();
        check_near("skewness", third / COUNT as f64, 0.0, 0.07);
    }
}

#[test]
fn draws_like_an_input() {
    let nodes = vec![node("RandomNormalLike", "x", "n"), node("RandomUniformLike", "x", "u")];
    let nodes = [nodes, vec![node("Add", "n u", "y")]].concat();
    let model = model(graph(vec![value("x", 11, "rows 8")], nodes, &["y"]));
    let imported = imported(&model).unwrap();
    let (_, y) = imported.graph.outputs()[0];
    assert_eq!(imported.graph.ty(y).to_string(), "f64[rows, 8]", "the size stays a symbol");
    let x = Tensor::from_vec(vec![COUNT / 8, 8], vec![0.0_f64; COUNT]).unwrap();
    let values = numbers(&evaluate(&imported.graph, &[x]).unwrap()[0]);
    let Moments { mean, deviation, .. } = moments(&values);
    // Independent: variances add.
    check_near("mean", mean, 0.5, 0.03);
    check_near("deviation", deviation, (1.0 + 1.0 / 12.0_f64).sqrt(), 0.03);
}

#[test]
fn types_of_draws() {
    for (number, name) in [(1, "f32"), (10, "f16"), (11, "f64"), (16, "bf16")] {
        let drawn = drawn_with(&source("RandomNormal", &[int("dtype", number)]), 0, &[]);
        assert_eq!(drawn.dtype().to_string(), name);
    }
    let error = imported(&source("RandomUniform", &[int("dtype", 7)])).unwrap_err().to_string();
    assert!(error.ends_with("`y` (RandomUniform): elements of i64"), "{error}");
}

#[test]
fn a_seed_decides_what_is_drawn() {
    let plain = source("RandomNormal", &[]);
    let own = source("RandomNormal", &[number("seed", 7.5)]);
    assert_eq!(drawn_with(&plain, 3, &[]), drawn_with(&plain, 3, &[]), "the same seed");
    assert_ne!(drawn_with(&plain, 3, &[]), drawn_with(&plain, 4, &[]), "another seed");
    assert_eq!(drawn_with(&own, 3, &[]), drawn_with(&own, 4, &[]), "a seed of the node's own");
    let [three, four] = [3, 4].map(|seed| numbers(&drawn_with(&plain, seed, &[])));
    check_near("two seeds", correlation(&three, &four), 0.0, 0.03);
    // Two nodes of a model draw different numbers.
    let shape = || int_list("shape", &[COUNT as i64]);
    let node = |name: &str| with(node("RandomNormal", "", name), shape());
    let model = model(graph(vec![], vec![node("a"), node("b")], &["a", "b"]));
    let both = evaluate(&imported(&model).unwrap().graph, &[]).unwrap();
    check_near("two nodes", correlation(&numbers(&both[0]), &numbers(&both[1])), 0.0, 0.03);
}

#[test]
fn bernoulli_draws_as_often_as_asked() {
    let bernoulli = with(node("Bernoulli", "x", "y"), int("dtype", 1));
    let model = model(graph(vec![value("x", 1, "n")], vec![bernoulli], &["y"]));
    for p in [0.0, 0.2, 0.9, 1.0] {
        let x = Tensor::from_vec(vec![COUNT], vec![p as f32; COUNT]).unwrap();
        let values = numbers(&drawn_with(&model, 5, &[x]));
        assert!(values.iter().all(|&x| x == 0.0 || x == 1.0));
        let sure = p == 0.0 || p == 1.0;
        check_near("share", moments(&values).mean, p, if sure { 0.0 } else { 0.012 });
    }
}

#[test]
fn multinomial_draws_classes_by_their_weights() {
    let attributes = [int("sample_size", COUNT as i64), int("dtype", 7)];
    let multinomial = with_all(node("Multinomial", "x", "y"), &attributes);
    let model = model(graph(vec![value("x", 1, "b 4")], vec![multinomial], &["y"]));
    // Logarithms of weights that need not sum to one; one is nothing.
    let weights = [[1.0_f32, 0.0, 2.0, 5.0], [3.0, 3.0, 1.0, 1.0]];
    let logarithms = weights.iter().flatten().map(|weight| weight.ln()).collect();
    let x = Tensor::from_vec(vec![2, 4], logarithms).unwrap();
    let drawn = drawn_with(&model, 5, &[x]);
    assert_eq!(drawn.shape(), [2, COUNT]);
    for (row, weights) in drawn.as_slice::<i64>().unwrap().chunks(COUNT).zip(weights) {
        for (class, weight) in (0..).zip(weights) {
            let share = row.iter().filter(|&&drawn| drawn == class).count() as f64 / COUNT as f64;
            check_near("share", share, f64::from(weight) / 8.0, 0.015);
        }
    }
}

#[test]
fn dropout_in_training_drops_and_scales() {
    let mut graph = graph(vec![value("x", 1, "n")], vec![], &["y", "mask"]);
    graph.node = vec![node("Dropout", "x ratio training", "y mask")];
    let scalar = |name: &str, data_type, raw: &[u8]| graphene_frontend::onnx::TensorProto {
        name: name.into(),
        data_type,
        raw_data: Some(raw.to_vec().into()),
        ..Default::default()
    };
    graph.initializer =
        vec![scalar("ratio", 1, &0.75_f32.to_le_bytes()), scalar("training", 9, &[1])];
    let imported = imported(&model(graph)).unwrap();
    let x = Tensor::from_vec(vec![COUNT], (0..COUNT).map(|i| i as f32 + 1.0).collect()).unwrap();
    let outputs = evaluate(&imported.graph, &[x]).unwrap();
    let kept: Vec<bool> = outputs[1].bytes().iter().map(|&kept| kept != 0).collect();
    let share = kept.iter().filter(|kept| **kept).count() as f64 / COUNT as f64;
    check_near("kept", share, 0.25, 0.012);
    for (i, (value, kept)) in numbers(&outputs[0]).into_iter().zip(kept).enumerate() {
        assert_eq!(value, if kept { 4.0 * (i as f64 + 1.0) } else { 0.0 });
    }
}

/// In a body that stays one, every iteration would draw the same.
#[test]
fn draws_in_bodies_are_refused() {
    let body = GraphProto {
        input: vec![value("i", 7, ""), value("c", 9, ""), value("v", 1, "2")],
        ..graph(
            vec![],
            vec![
                node("RandomNormalLike", "v", "r"),
                node("Add", "v r", "w"),
                node("Identity", "c", "go"),
            ],
            &["go", "w"],
        )
    };
    let repeat = with(node("Loop", "trips _ x", "y"), crate::model::subgraph("body", body));
    let inputs = vec![value("x", 1, "2"), value("trips", 7, "")];
    let error = imported(&model(graph(inputs, vec![repeat], &["y"]))).unwrap_err().to_string();
    let why = "`r` (RandomNormalLike): random numbers in a body that is not written out at import";
    assert!(error.contains(why), "{error}");
}
