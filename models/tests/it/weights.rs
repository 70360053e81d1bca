//! Weights are the same bits however, whenever and wherever they are asked for.

use graphene_frontend::import::{ExternalData, ExternalDataError};
use graphene_models::{Options, Weights};

use crate::zoo;

fn bytes(weights: &Weights, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; length];
    weights.fill(offset, &mut bytes);
    bytes
}

fn floats(weights: &Weights, name: &str) -> Vec<f32> {
    let weight = weights.iter().find(|weight| weight.name() == name).unwrap();
    let bytes = bytes(weights, weight.offset(), weight.length() as usize);
    bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn bits_are_the_same_on_every_machine() {
    let model = zoo("bert-base-tiny", &Options::default());
    let table = floats(model.weights(), "embeddings.word_embeddings.weight");
    let first: Vec<u32> = table[..4].iter().map(|value| value.to_bits()).collect();
    expect_test::expect![[r#"
        [
            3146032117,
            3143437145,
            3171067402,
            1029023092,
        ]
    "#]]
    .assert_debug_eq(&first);
}

#[test]
fn any_range_is_a_part_of_the_whole() {
    let model = zoo("bert-base-tiny", &Options::default());
    let weights = model.weights();
    let whole = bytes(weights, 0, weights.length() as usize);
    for start in (0..whole.len()).step_by(4999) {
        for length in [0, 1, 2, 3, 5, 63, 64, 1021, 70_001] {
            let end = (start + length).min(whole.len());
            assert_eq!(bytes(weights, start as u64, end - start), whole[start..end], "{start}");
        }
    }
    // Past the end there are zeros, however far.
    assert_eq!(bytes(weights, weights.length(), 9), [0; 9]);
    assert_eq!(bytes(weights, u64::MAX - 3, 9), [0; 9]);
}

#[test]
fn threads_share_the_work_without_changing_it() {
    let model = zoo("mlp-2x1024", &Options::default());
    let weights = model.weights();
    let whole = bytes(weights, 0, weights.length() as usize);
    let pieces = (0..weights.length()).step_by(4096);
    let pieces: Vec<u8> = pieces.flat_map(|offset| bytes(weights, offset, 4096)).collect();
    assert!(whole == pieces[..whole.len()]);
}

#[test]
fn seeds_and_names_decide() {
    let at = |seed, name| {
        floats(zoo("bert-base-tiny", &Options { seed, ..Options::default() }).weights(), name)
    };
    let bias = "encoder.layer.0.attention.self.query.bias";
    assert_eq!(at(1, bias), at(1, bias));
    assert_ne!(at(1, bias), at(2, bias));
    assert_ne!(at(1, bias), at(1, "encoder.layer.1.attention.self.query.bias"));
    // The opset changes the graph and not the weights.
    let older = zoo("bert-base-tiny", &Options { opset: 11, ..Options::default() });
    let newer = zoo("bert-base-tiny", &Options::default());
    let length = newer.weights().length();
    assert_eq!(older.weights().length(), length);
    assert_eq!(
        bytes(older.weights(), 0, length as usize),
        bytes(newer.weights(), 0, length as usize)
    );
}

#[test]
fn moments_are_as_declared() {
    let model = zoo("bert-base-tiny", &Options::default());
    let check = |name: &str, mean: f64, std: f64| {
        let values = floats(model.weights(), name);
        let n = values.len() as f64;
        let found = values.iter().map(|value| f64::from(*value)).sum::<f64>() / n;
        let square =
            values.iter().map(|value| (f64::from(*value) - found).powi(2)).sum::<f64>() / n;
        // Five standard errors of the mean, and as many of the deviation.
        assert!((found - mean).abs() < 5.0 * std / n.sqrt(), "{name}: mean {found}");
        assert!((square.sqrt() - std).abs() < 5.0 * std / (2.0 * n).sqrt(), "{name}: {square}");
    };
    check("embeddings.word_embeddings.weight", 0.0, 0.02);
    check("embeddings.LayerNorm.weight", 1.0, 0.1);
    check("embeddings.LayerNorm.bias", 0.0, 0.05);
    check("pooler.dense.weight", 0.0, 0.02 * 12.0_f64.sqrt());
}

#[test]
fn an_import_reads_them_by_their_location() {
    let model = zoo("lstm-tiny", &Options::default());
    let weights = model.weights();
    let whole = bytes(weights, 0, weights.length() as usize);
    let location = weights.location();
    assert!(weights.read(location, 0, None).unwrap() == whole);
    assert_eq!(weights.read(location, 70, Some(9)).unwrap(), whole[70..79]);
    assert!(weights.read(location, weights.length(), None).unwrap().is_empty());
    let (size, beyond) = (weights.length(), weights.length() + 1);
    for (offset, length) in
        [(0, Some(beyond)), (1, Some(size)), (9, Some(u64::MAX)), (beyond, None)]
    {
        let refused = weights.read(location, offset, length);
        assert!(matches!(refused, Err(ExternalDataError::Range { .. })), "{offset} {length:?}");
    }
    let elsewhere = weights.read("elsewhere", 0, None);
    assert!(matches!(elsewhere, Err(ExternalDataError::Io { .. })), "{elsewhere:?}");
}
