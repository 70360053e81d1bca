//! The models that are measured: one of each kind.

use bytes::Bytes;
use graphene_frontend::dim::{Bindings, Dim, Symbol};
use graphene_frontend::dtype::DType;
use graphene_frontend::graph::{Graph, ValueId};
use graphene_frontend::import::{ExternalData, ExternalDataError, ImportOptions, import};
use graphene_frontend::op::{AttentionAttrs, Binary, ConvAttrs, Op, Unary};
use graphene_frontend::tensor::Tensor;
use graphene_frontend::types::TensorType;
use graphene_models::{Options, build};

/// A model, and the sizes that its symbols have where sizes are needed.
pub(crate) struct Model {
    pub(crate) kind: &'static str,
    /// The model as an ONNX file, where it is one of the zoo's.
    pub(crate) file: Option<Bytes>,
    pub(crate) graph: Graph,
    pub(crate) sizes: Bindings,
}

/// One model of each kind.
pub(crate) fn models() -> Vec<Model> {
    vec![
        zoo("encoder", "bert-base", &[("batch", 1), ("sequence", 128)]),
        zoo("mlp", "mlp-12x512", &[("batch", 64)]),
        zoo("lstm", "lstm", &[("batch", 1), ("time", 64)]),
        built("convnet", convnet(4, 64, 56), &[("batch", 1)]),
        built("decoder", decoder(4, 8), &[("past", 511)]),
    ]
}

/// The same kinds, so small that the simulator runs all kernels of a model in a second or so.
pub(crate) fn small_models() -> Vec<Model> {
    vec![
        zoo("encoder", "bert-base-tiny", &[("batch", 1), ("sequence", 8)]),
        zoo("mlp", "mlp-4x64", &[("batch", 16)]),
        zoo("lstm", "lstm-tiny", &[("batch", 1), ("time", 4)]),
        built("convnet", convnet(1, 16, 8), &[("batch", 1)]),
        built("decoder", decoder(1, 2), &[("past", 15)]),
    ]
}

/// The bindings of named symbols.
pub(crate) fn sizes(of: &[(&str, i64)]) -> Bindings {
    let mut sizes = Bindings::new();
    for &(name, size) in of {
        sizes.bind(Symbol::new(name), size).expect("a positive size");
    }
    sizes
}

/// Weights of any length, all zero: reading a file is a matter of the disk.
pub(crate) struct Zeros(Bytes);

impl Zeros {
    pub(crate) fn new() -> Self {
        Self(vec![0; 1 << 27].into())
    }
}

impl ExternalData for Zeros {
    fn read(&self, _: &str, _: u64, length: Option<u64>) -> Result<Bytes, ExternalDataError> {
        Ok(self.0.slice(..length.unwrap_or(0) as usize))
    }
}

fn zoo(kind: &'static str, name: &str, of: &[(&str, i64)]) -> Model {
    let file = build(name, &Options::default()).expect("the zoo has it").encode();
    let imported = import(file.clone(), &Zeros::new(), &ImportOptions::default());
    Model { kind, file: Some(file), graph: imported.expect("it imports").graph, sizes: sizes(of) }
}

fn built(kind: &'static str, graph: Graph, of: &[(&str, i64)]) -> Model {
    Model { kind, file: None, graph, sizes: sizes(of) }
}

fn f32_type(dims: &[Dim]) -> TensorType {
    TensorType::new(DType::F32, dims.to_vec())
}

/// A constant of small numbers, each row unlike the others.
fn weight(graph: &mut Graph, name: &str, shape: &[usize]) -> ValueId {
    let len: usize = shape.iter().product();
    let data: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 1e-3).collect();
    graph.add_constant(name, Tensor::from_vec(shape.to_vec(), data).expect("as many elements"))
}

fn add(graph: &mut Graph, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    graph.add(name, op, &inputs).expect("operands fit").value()
}

/// Pairs of 3 × 3 convolutions with a residual, as ResNet's first stage has them.
fn convnet(pairs: usize, channels: usize, pixels: usize) -> Graph {
    let mut graph = Graph::new();
    let dims = [Dim::symbol("batch"), Dim::from(channels), Dim::from(pixels), Dim::from(pixels)];
    let mut x = graph.add_input("x", f32_type(&dims)).expect("a type");
    for layer in 0..pairs {
        let mut y = x;
        for part in ["a", "b"] {
            let name = format!("{layer}.{part}");
            let w = weight(&mut graph, &format!("{name}.w"), &[channels, channels, 3, 3]);
            let bias = weight(&mut graph, &format!("{name}.bias"), &[channels]);
            let attrs = ConvAttrs {
                strides: vec![1, 1],
                dilations: vec![1, 1],
                pads_before: vec![1, 1],
                pads_after: vec![1, 1],
                group: 1,
            };
            y = add(&mut graph, &name, Op::Conv(attrs), &[y, w, bias]);
            if part == "a" {
                y = add(&mut graph, &format!("{name}.relu"), Op::Unary(Unary::Relu), &[y]);
            }
        }
        let sum = add(&mut graph, &format!("{layer}.sum"), Op::Binary(Binary::Add), &[x, y]);
        x = add(&mut graph, &format!("{layer}.relu"), Op::Unary(Unary::Relu), &[sum]);
    }
    graph.add_output("y", x);
    graph
}

/// Elements of a decoder's head.
const HEAD: usize = 64;

/// One token's step through Llama-like layers with a cache of `past` tokens.
fn decoder(layers: usize, heads: usize) -> Graph {
    let mut graph = Graph::new();
    let hidden = heads * HEAD;
    let mut x = graph.add_input("x", f32_type(&[Dim::from(1), Dim::from(hidden)])).expect("a type");
    for layer in 0..layers {
        let attended = attention(&mut graph, layer, heads, x);
        x = add(&mut graph, &format!("{layer}.residual"), Op::Binary(Binary::Add), &[x, attended]);
        let normed = norm(&mut graph, &format!("{layer}.norm2"), hidden, x);
        let linear = |graph: &mut Graph, name: &str, x, shape: [usize; 2]| {
            let w = weight(graph, &format!("{layer}.{name}.w"), &shape);
            add(graph, &format!("{layer}.{name}"), Op::MatMul, &[x, w])
        };
        let gate = linear(&mut graph, "gate", normed, [hidden, 4 * hidden]);
        let up = linear(&mut graph, "up", normed, [hidden, 4 * hidden]);
        let silu = Op::Unary(Unary::Swish { alpha: 1.0 });
        let gate = add(&mut graph, &format!("{layer}.silu"), silu, &[gate]);
        let inner =
            add(&mut graph, &format!("{layer}.gated"), Op::Binary(Binary::Mul), &[gate, up]);
        let down = linear(&mut graph, "down", inner, [4 * hidden, hidden]);
        x = add(&mut graph, &format!("{layer}.sum"), Op::Binary(Binary::Add), &[x, down]);
    }
    graph.add_output("y", x);
    graph
}

fn norm(graph: &mut Graph, name: &str, hidden: usize, x: ValueId) -> ValueId {
    let scale = weight(graph, &format!("{name}.scale"), &[hidden]);
    add(graph, name, Op::RmsNorm { axis: 1, epsilon: 1e-5 }, &[x, scale])
}

/// Attention of one token to the cache and itself; its keys and values are outputs too.
fn attention(graph: &mut Graph, layer: usize, heads: usize, x: ValueId) -> ValueId {
    let hidden = heads * HEAD;
    let normed = norm(graph, &format!("{layer}.norm1"), hidden, x);
    let split = |tokens: Dim| vec![Dim::from(1), Dim::from(heads), tokens, Dim::from(HEAD)];
    let mut parts = Vec::new();
    for part in ["q", "k", "v"] {
        let name = format!("{layer}.{part}");
        let w = weight(graph, &format!("{name}.w"), &[hidden, hidden]);
        let flat = add(graph, &name, Op::MatMul, &[normed, w]);
        let reshape = Op::Reshape(split(Dim::from(1)));
        let mut value = add(graph, &format!("{name}.heads"), reshape, &[flat]);
        if part != "q" {
            let past = f32_type(&split(Dim::symbol("past")));
            let past = graph.add_input(&format!("past.{name}"), past).expect("a type");
            value = add(graph, &format!("{name}.all"), Op::Concat { axis: 2 }, &[past, value]);
            graph.add_output(&format!("present.{name}"), value);
        }
        parts.push(value);
    }
    let attrs = AttentionAttrs {
        scale: 1.0 / (HEAD as f32).sqrt(),
        causal: false,
        softcap: 0.0,
        guarded: false,
        fill: f32::NEG_INFINITY,
    };
    let attended = add(graph, &format!("{layer}.attention"), Op::Attention(attrs), &parts);
    let merge = Op::Reshape(vec![Dim::from(1), Dim::from(hidden)]);
    let merged = add(graph, &format!("{layer}.merged"), merge, &[attended]);
    let w = weight(graph, &format!("{layer}.o.w"), &[hidden, hidden]);
    add(graph, &format!("{layer}.o"), Op::MatMul, &[merged, w])
}
