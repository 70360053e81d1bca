//! Building an ONNX graph with the names that torch's exporter gives: `{scope}/{Op}_{k}_output_0`.

use std::collections::HashMap;

use graphene_frontend::onnx::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

use crate::error::ZooError;
use crate::options::Options;
use crate::weights::{Init, LIMIT, Weights};
use crate::wire;

/// ONNX's number for f32.
pub(crate) const FLOAT: i32 = 1;
/// ONNX's number for i32.
pub(crate) const INT32: i32 = 6;
/// ONNX's number for i64.
pub(crate) const INT64: i32 = 7;
/// ONNX's number for bool.
pub(crate) const BOOL: i32 = 9;

/// An attribute of a node: its name and value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attr<'a> {
    Int(&'static str, i64),
    Float(&'static str, f32),
    Ints(&'static str, &'a [i64]),
    Str(&'static str, &'static str),
    /// An i64 tensor: name, dims, elements.
    Int64s(&'static str, &'a [i64], &'a [i64]),
    /// An i32 scalar.
    Int32(&'static str, i32),
    /// A f32 tensor of one element: name, dims, element.
    FloatTensor(&'static str, &'a [i64], f32),
    /// A bool tensor of one element, true.
    True(&'static str),
}

/// A dim of a graph's input or output.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dim {
    /// Dynamic, by its `dim_param`.
    Named(&'static str),
    /// Known.
    Size(usize),
}

/// A graph while it is being built.
pub(crate) struct Builder {
    model: String,
    opset: i64,
    whole_layer_norm: bool,
    graph: GraphProto,
    weights: Weights,
    /// Names of the initializers by the paths of their parameters: a shared parameter is one initializer.
    named: HashMap<String, String>,
    /// How many nodes of an operator a scope has.
    counts: HashMap<String, usize>,
}

impl Builder {
    pub(crate) fn new(model: &str, options: &Options) -> Self {
        Self {
            model: model.to_owned(),
            opset: options.opset,
            whole_layer_norm: options.opset >= 17 && !options.decomposed_layer_norm,
            graph: GraphProto { name: "main_graph".to_owned(), ..GraphProto::default() },
            weights: Weights::new(format!("{model}.weights"), options.seed),
            named: HashMap::new(),
            counts: HashMap::new(),
        }
    }

    pub(crate) fn opset(&self) -> i64 {
        self.opset
    }

    pub(crate) fn whole_layer_norm(&self) -> bool {
        self.whole_layer_norm
    }

    /// Declares a graph input.
    pub(crate) fn input(&mut self, name: &str, kind: i32, dims: &[Dim]) {
        self.graph.input.push(wire::value(name, kind, dims));
    }

    /// Makes `value` a graph output of f32 called `name`.
    pub(crate) fn output(&mut self, value: &str, name: &str, dims: &[Dim]) {
        for node in &mut self.graph.node {
            for known in node.input.iter_mut().chain(&mut node.output) {
                if known == value {
                    name.clone_into(known);
                }
            }
        }
        self.graph.output.push(wire::value(name, FLOAT, dims));
    }

    /// The initializer of the parameter at `path`, made on first use.
    pub(crate) fn weight(
        &mut self,
        path: &str,
        dims: &[usize],
        init: Init,
    ) -> Result<String, ZooError> {
        self.initializer(path, path, dims, init)
    }

    /// A weight that the exporter transposed and renamed when it folded constants: `[inputs, outputs]`.
    pub(crate) fn matmul_weight(
        &mut self,
        path: &str,
        dims: [usize; 2],
        init: Init,
    ) -> Result<String, ZooError> {
        self.folded_weight(path, "MatMul", &dims, init)
    }

    /// A weight renamed `onnx::{op}_{k}` by constant folding.
    pub(crate) fn folded_weight(
        &mut self,
        path: &str,
        op: &str,
        dims: &[usize],
        init: Init,
    ) -> Result<String, ZooError> {
        let name = format!("onnx::{op}_{}", self.graph.node.len());
        self.initializer(path, &name, dims, init)
    }

    fn initializer(
        &mut self,
        path: &str,
        name: &str,
        dims: &[usize],
        init: Init,
    ) -> Result<String, ZooError> {
        if let Some(known) = self.named.get(path) {
            return Ok(known.clone());
        }
        let too_large = || ZooError::TooLarge { model: self.model.clone(), limit: LIMIT };
        let elements = dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim as u64));
        let elements = elements.ok_or_else(too_large)?;
        let weight = self.weights.push(name.to_owned(), path, elements, init);
        let (offset, length) =
            weight.map(|weight| (weight.offset(), weight.length())).ok_or_else(too_large)?;
        let dims = dims.iter().map(|dim| *dim as i64).collect();
        let tensor = wire::external(name, dims, self.weights.location(), offset, length);
        self.graph.initializer.push(tensor);
        self.named.insert(path.to_owned(), name.to_owned());
        Ok(name.to_owned())
    }

    /// Adds a node with one output and returns the output's name.
    pub(crate) fn op(
        &mut self,
        scope: &str,
        op: &str,
        inputs: &[&str],
        attributes: &[Attr],
    ) -> String {
        let [output] = self.op_with(scope, op, inputs, attributes);
        output
    }

    /// Adds a node with `N` outputs and returns their names.
    pub(crate) fn op_with<const N: usize>(
        &mut self,
        scope: &str,
        op: &str,
        inputs: &[&str],
        attributes: &[Attr],
    ) -> [String; N] {
        let stem = format!("{scope}/{op}");
        let count = self.counts.entry(stem.clone()).or_default();
        let name = if *count == 0 { stem } else { format!("{stem}_{count}") };
        *count += 1;
        let outputs = std::array::from_fn(|index| format!("{name}_output_{index}"));
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: outputs.to_vec(),
            name,
            op_type: op.to_owned(),
            attribute: attributes.iter().map(wire::attribute).collect(),
            ..NodeProto::default()
        });
        outputs
    }

    /// A constant scalar of i64.
    pub(crate) fn int(&mut self, scope: &str, value: i64) -> String {
        self.op(scope, "Constant", &[], &[Attr::Int64s("value", &[], &[value])])
    }

    /// A constant vector of i64.
    pub(crate) fn ints(&mut self, scope: &str, values: &[i64]) -> String {
        let dims = [values.len() as i64];
        self.op(scope, "Constant", &[], &[Attr::Int64s("value", &dims, values)])
    }

    /// A constant scalar of f32.
    pub(crate) fn float(&mut self, scope: &str, value: f32) -> String {
        self.op(scope, "Constant", &[], &[Attr::FloatTensor("value", &[], value)])
    }

    /// Inserts a dim of size 1; the axes are an attribute before opset 13 and an input from there on.
    pub(crate) fn unsqueeze(&mut self, scope: &str, x: &str, axis: i64) -> String {
        self.with_axes(scope, "Unsqueeze", x, axis)
    }

    /// Removes a dim of size 1.
    pub(crate) fn squeeze(&mut self, scope: &str, x: &str, axis: i64) -> String {
        self.with_axes(scope, "Squeeze", x, axis)
    }

    fn with_axes(&mut self, scope: &str, op: &str, x: &str, axis: i64) -> String {
        if self.opset < 13 {
            return self.op(scope, op, &[x], &[Attr::Ints("axes", &[axis])]);
        }
        let axes = self.ints(scope, &[axis]);
        self.op(scope, op, &[x, &axes], &[])
    }

    /// Reshape; from opset 14 on it says that a 0 copies the size.
    pub(crate) fn reshape(&mut self, scope: &str, x: &str, shape: &str) -> String {
        let attributes: &[Attr] = if self.opset < 14 { &[] } else { &[Attr::Int("allowzero", 0)] };
        self.op(scope, "Reshape", &[x, shape], attributes)
    }

    /// Softmax over the last dim of a tensor of `rank` dims.
    pub(crate) fn softmax(&mut self, scope: &str, x: &str, rank: i64) -> String {
        let axis = if self.opset < 13 { rank - 1 } else { -1 };
        self.op(scope, "Softmax", &[x], &[Attr::Int("axis", axis)])
    }

    /// The finished model and its weights.
    pub(crate) fn finish(self) -> (ModelProto, Weights) {
        // IR versions as torch's exporter pairs them with opsets.
        let ir_version = match self.opset {
            ..=11 => 6,
            12..=14 => 7,
            15..=18 => 8,
            _ => 9,
        };
        let opset = OperatorSetIdProto { domain: String::new(), version: self.opset };
        let model = ModelProto {
            ir_version,
            opset_import: vec![opset],
            producer_name: "graphene-models".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            graph: Some(self.graph),
            ..ModelProto::default()
        };
        (model, self.weights)
    }
}
