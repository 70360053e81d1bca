//! Attributes, new and changed.

use super::super::operators::Kind;
use super::super::random::Random;
use super::values::{any_tensor, float, int};
use graphene_frontend::onnx::{AttributeProto, AttributeType, GraphProto};

/// Texts that some attribute knows.
const TEXTS: &[&str] = &[
    "SAME_UPPER",
    "SAME_LOWER",
    "VALID",
    "NOTSET",
    "constant",
    "reflect",
    "edge",
    "wrap",
    "linear",
    "nearest",
    "cubic",
    "bilinear",
    "align_corners",
    "asymmetric",
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
    "round_prefer_floor",
    "round_prefer_ceil",
    "floor",
    "ceil",
    "stretch",
    "not_larger",
    "not_smaller",
    "forward",
    "reverse",
    "bidirectional",
    "Tanh",
    "Sigmoid",
    "Relu",
    "HardSigmoid",
    "ScaledTanh",
    "LeakyRelu",
    "Elu",
    "Softplus",
    "Affine",
    "add",
    "mul",
    "min",
    "max",
    "none",
    "mean",
    "sum",
    "tanh",
    "LEFT",
    "RIGHT",
    "DCR",
    "CRD",
    "avg",
    "border",
    "zeros",
    "ij,jk->ik",
    "...ij,...jk->...ik",
    "bii->bi",
    "i,i",
    "...ii->...i",
    "bhqk,bkhd->bqhd",
    "ij->",
    "a,b,c->cba",
];

/// An attribute of this name and kind.
pub(super) fn make(name: &str, kind: Kind, random: &mut Random) -> AttributeProto {
    let mut attribute = AttributeProto { name: name.into(), ..Default::default() };
    let count = random.below(6);
    let ty = match kind {
        Kind::Float => {
            attribute.f = float(random);
            AttributeType::Float
        }
        Kind::Int => {
            attribute.i = int(random);
            AttributeType::Int
        }
        Kind::Text => {
            attribute.s = random.pick(TEXTS).as_bytes().into();
            AttributeType::String
        }
        Kind::Tensor => {
            attribute.t = Some(any_tensor("", random));
            AttributeType::Tensor
        }
        Kind::Graph => {
            attribute.g = Some(GraphProto::default());
            AttributeType::Graph
        }
        Kind::Floats => {
            attribute.floats = (0..count).map(|_| float(random)).collect();
            AttributeType::Floats
        }
        Kind::Ints => {
            attribute.ints = (0..count).map(|_| int(random)).collect();
            AttributeType::Ints
        }
        Kind::Texts => {
            attribute.strings = (0..count).map(|_| random.pick(TEXTS).as_bytes().into()).collect();
            AttributeType::Strings
        }
    };
    attribute.r#type = ty as i32;
    attribute
}

/// Changes what the attribute holds.
pub(super) fn change(attribute: &mut AttributeProto, random: &mut Random) {
    if !attribute.ints.is_empty() {
        change_list(&mut attribute.ints, random, int);
    } else if !attribute.floats.is_empty() {
        change_list(&mut attribute.floats, random, float);
    } else if !attribute.strings.is_empty() {
        change_list(&mut attribute.strings, random, |random| random.pick(TEXTS).as_bytes().into());
    } else if !attribute.s.is_empty() {
        attribute.s = random.pick(TEXTS).as_bytes().into();
    } else if let Some(tensor) = &mut attribute.t {
        super::values::change_tensor(tensor, random);
    } else if attribute.f != 0.0 {
        attribute.f = float(random);
    } else {
        attribute.i = int(random);
    }
}

fn change_list<T>(list: &mut Vec<T>, random: &mut Random, make: fn(&mut Random) -> T) {
    let at = random.below(list.len());
    match random.below(6) {
        0 => list.push(make(random)),
        1 => drop(list.pop()),
        _ => list[at] = make(random),
    }
}

/// An attribute that is a graph.
pub(super) fn body(name: &str, graph: GraphProto) -> AttributeProto {
    let ty = AttributeType::Graph as i32;
    AttributeProto { name: name.into(), g: Some(graph), r#type: ty, ..Default::default() }
}
