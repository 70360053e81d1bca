//! The walk over a model: scopes of names, functions, bodies, and errors that name the node.

use super::budget::MAX_NODES;
use super::build::Builder;
use super::context::Context;
use super::error::{ImportError, OpError, Reason, Unsupported};
use super::external::ExternalData;
use super::ops;
use super::order::{MAX_DEPTH, graphs, in_order, invalid, node_name};
use super::sweep::sweep;
use super::tensor::read_tensor;
use super::types::{TypeError, bind_value, read_type};
use super::value::Value;
use super::{Import, ImportOptions};
use crate::dim::{Bindings, Symbol};
use crate::graph::{Graph, ValueId};
use crate::infer::InferError;
use crate::onnx::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::types::TensorType;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// The newest operator set that is known here; one more may be in the making.
const NEWEST_OPSET: i64 = 28;

/// Values by name, in one graph, body or function.
struct Scope<'m> {
    /// None: a value that depends on what is not supported, which is told of already.
    names: HashMap<&'m str, Option<Value>>,
    /// Which builder the values belong to.
    level: usize,
    /// Names of the scope before are not seen: the body of a function.
    opaque: bool,
    opsets: Rc<HashMap<&'m str, i64>>,
    /// What references to attributes of the enclosing function stand for.
    attributes: Rc<Vec<(&'m str, &'m AttributeProto)>>,
}

type FunctionKey<'m> = (&'m str, &'m str, &'m str);

/// The state of an import.
pub(super) struct Importer<'m> {
    functions: HashMap<FunctionKey<'m>, &'m FunctionProto>,
    pub(super) weights: &'m dyn ExternalData,
    builders: Vec<Builder>,
    scopes: Vec<Scope<'m>>,
    unsupported: Vec<Unsupported>,
    pub(super) notes: Vec<String>,
    seed: u64,
    /// How many nodes draw random numbers so far.
    draws: u64,
}

/// See [`super::import`].
pub(super) fn import(
    model: Bytes,
    weights: &dyn ExternalData,
    options: &ImportOptions,
) -> Result<Import, ImportError> {
    let model = super::read(model)?;
    let graph = model.graph.as_ref().ok_or_else(|| outside("", Reason::NoGraph))?;
    let opsets = read_opsets(&model.opset_import)?;
    let opset = opsets.get("").copied().unwrap_or(NEWEST_OPSET);
    let mut importer = Importer::new(&model, weights, opsets, options.seed);
    let outcome = importer.run_model(graph, options);
    if !importer.unsupported.is_empty() {
        return Err(ImportError::Unsupported(importer.all_unsupported(&model, graph)));
    }
    outcome?;
    let builder = importer.builder();
    let swept = sweep(&builder.graph, builder.graph.inputs().len(), &[])
        .map_err(|error| outside_infer("", error))?;
    let producer = format!("{} {}", model.producer_name, model.producer_version).trim().to_owned();
    Ok(Import { graph: swept, notes: importer.notes, opset, producer })
}

fn read_opsets(imports: &[OperatorSetIdProto]) -> Result<HashMap<&str, i64>, ImportError> {
    let mut opsets = HashMap::new();
    for import in imports {
        let domain = plain_domain(&import.domain);
        if domain.is_empty() && !(1..=NEWEST_OPSET).contains(&import.version) {
            let reason = Reason::Opset { domain: domain.to_owned(), version: import.version };
            return Err(outside("", reason));
        }
        opsets.insert(domain, import.version);
    }
    Ok(opsets)
}

/// ONNX's own domain has two names.
fn plain_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

fn outside(node: &str, reason: Reason) -> ImportError {
    ImportError::Invalid { node: node.to_owned(), op: String::new(), reason }
}

fn outside_infer(node: &str, error: InferError) -> ImportError {
    ImportError::Infer { node: node.to_owned(), op: String::new(), error: error.into() }
}

impl<'m> Importer<'m> {
    fn new(
        model: &'m ModelProto,
        weights: &'m dyn ExternalData,
        opsets: HashMap<&'m str, i64>,
        seed: u64,
    ) -> Self {
        let key = |function: &'m FunctionProto| {
            (plain_domain(&function.domain), function.name.as_str(), function.overload.as_str())
        };
        let scope = Scope {
            names: HashMap::new(),
            level: 0,
            opaque: true,
            opsets: Rc::new(opsets),
            attributes: Rc::default(),
        };
        Self {
            functions: model.functions.iter().map(|f| (key(f), f)).collect(),
            weights,
            builders: vec![Builder::default()],
            scopes: vec![scope],
            unsupported: Vec::new(),
            notes: Vec::new(),
            seed,
            draws: 0,
        }
    }

    /// The graph that is being built.
    pub(super) fn builder(&self) -> &Builder {
        self.builders.last().expect("there is always one")
    }

    /// The graph that is being built.
    pub(super) fn builder_mut(&mut self) -> &mut Builder {
        self.builders.last_mut().expect("there is always one")
    }

    fn scope(&mut self) -> &mut Scope<'m> {
        self.scopes.last_mut().expect("there is always one")
    }

    /// The key of the random numbers of a node, which may have a seed of its own. Not in a body: it runs once, or not at
    /// all, or often, and each time its numbers would be the same.
    pub(super) fn draw_key(&mut self, own: Option<u64>) -> Result<u64, OpError> {
        if self.builders.len() > 1 {
            let why = "random numbers in a body that is not written out at import";
            return Err(OpError::Unsupported(why.into()));
        }
        if let Some(seed) = own {
            return Ok(ops::random::key(seed, 0));
        }
        self.draws += 1;
        Ok(ops::random::key(self.seed, self.draws))
    }

    fn run_model(
        &mut self,
        graph: &'m GraphProto,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        self.add_initializers(graph)?;
        self.add_inputs(graph, options)?;
        self.run_nodes(&graph.node)?;
        let mut seen = BTreeSet::new();
        for output in &graph.output {
            let name = output.name.as_str();
            if !seen.insert(name) {
                return Err(outside(name, Reason::Duplicate(name.to_owned())));
            }
            let value = self.lookup(name).map_err(|_| outside(name, Reason::NoOutput))?;
            match value {
                Some(Value::Tensor(value)) => self.builder_mut().graph.add_output(name, value),
                Some(Value::Sequence(_)) => {
                    let why = "is a sequence: outputs are tensors here, so join its tensors \
                               (ConcatFromSequence) or make each an output (SequenceAt)";
                    self.refuse(name, "", "", why.to_owned());
                }
                Some(Value::Unsupported(why)) => self.refuse(name, "", "", why.into_owned()),
                None => {}
            }
        }
        Ok(())
    }

    fn add_initializers(&mut self, graph: &'m GraphProto) -> Result<(), ImportError> {
        for tensor in &graph.initializer {
            let name = tensor.name.as_str();
            let value = match read_tensor(tensor, self.weights) {
                Ok(tensor) => {
                    let builder = self.builder_mut();
                    builder.name = name.to_owned();
                    builder.budget.grow(&tensor);
                    Some(builder.constant(tensor).into())
                }
                Err(OpError::Unsupported(why)) => {
                    self.refuse(name, "", "", why.into_owned());
                    None
                }
                Err(error) => return Err(self.with_place(error, name, "")),
            };
            self.bind(name, value).map_err(|reason| outside(name, reason))?;
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name.as_str());
            self.refuse(name, "", "", "a weight in coordinate form".to_owned());
            self.bind(name, None).map_err(|reason| outside(name, reason))?;
        }
        Ok(())
    }

    /// Inputs that no initializer and no given value replaces.
    fn add_inputs(
        &mut self,
        graph: &'m GraphProto,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        let mut bindings = Bindings::new();
        for (name, &size) in &options.dims {
            let fail = |error: crate::dim::DimError| outside_infer(name, error.into());
            bindings.fix(Symbol::new(name), size).map_err(fail)?;
            self.notes.push(format!("dimension `{name}` is {size}"));
        }
        for (symbol, dim) in &options.equal {
            self.notes.push(format!("dimension `{}` is {dim}", symbol.name()));
        }
        let initial: HashSet<_> = graph.initializer.iter().map(|tensor| &tensor.name).collect();
        let (mut declared, mut refused) = (Vec::new(), BTreeMap::new());
        for input in &graph.input {
            let name = input.name.as_str();
            if self.scope().names.contains_key(name) {
                if !initial.contains(&input.name) {
                    return Err(outside(name, Reason::Duplicate(name.to_owned())));
                }
                continue;
            }
            let given = options.values.get(name).map(Tensor::shape);
            let given = given.or_else(|| options.shapes.get(name).map(Vec::as_slice));
            let ty = match read_type(input, given) {
                Ok(ty) => ty,
                Err(TypeError::Invalid(reason)) => return Err(outside(name, reason)),
                Err(TypeError::Unsupported(why)) => {
                    refused.insert(name, why);
                    self.scope().names.insert(name, None);
                    continue;
                }
            };
            let replaced = options.equal.iter().try_fold(ty, |ty, (s, dim)| ty.replace(s, dim));
            let ty = replaced.map_err(|error| outside_infer(name, error.into()))?;
            if let Some(tensor) = options.values.get(name) {
                bind_value(&ty, tensor, &mut bindings).map_err(|reason| outside(name, reason))?;
            }
            declared.push((name, ty));
        }
        self.refuse_inputs(graph, &refused);
        for (name, ty) in declared {
            let ty = ty.substitute(&bindings);
            let ty = ty.map_err(|error| outside_infer(name, error.into()))?;
            let builder = self.builder_mut();
            builder.name = name.to_owned();
            let value = match options.values.get(name) {
                Some(tensor) => builder.constant(tensor.clone()),
                None => {
                    builder.graph.add_input(name, ty).map_err(|error| outside_infer(name, error))?
                }
            };
            if options.values.contains_key(name) {
                self.notes.push(format!("input `{name}` is a constant"));
            }
            self.bind(name, Some(value.into())).map_err(|reason| outside(name, reason))?;
        }
        Ok(())
    }

    fn bind(&mut self, name: &'m str, value: Option<Value>) -> Result<(), Reason> {
        match self.scope().names.insert(name, value) {
            Some(_) => Err(Reason::Duplicate(name.to_owned())),
            None => Ok(()),
        }
    }

    /// The value of that name, as one of the graph being built; `None` where it depends on what is not supported.
    fn lookup(&mut self, name: &str) -> Result<Option<Value>, Reason> {
        let mut at = self.scopes.len();
        while at > 0 {
            at -= 1;
            let scope = &self.scopes[at];
            if let Some(value) = scope.names.get(name) {
                let (value, level) = (value.clone(), scope.level);
                return Ok(value.map(|value| self.capture_all(name, level, value)));
            }
            if scope.opaque {
                break;
            }
        }
        Err(Reason::Dangling(name.to_owned()))
    }

    /// Takes what a name stands for in an outer graph into the one being built.
    fn capture_all(&mut self, name: &str, level: usize, value: Value) -> Value {
        match value {
            Value::Tensor(value) => Value::Tensor(self.capture(name, level, value)),
            Value::Sequence(sequence) => {
                Value::Sequence(sequence.iter().map(|&v| self.capture(name, level, v)).collect())
            }
            Value::Unsupported(why) => Value::Unsupported(why),
        }
    }

    /// Takes a value of an outer graph into the one being built, through all between.
    fn capture(&mut self, name: &str, level: usize, mut value: ValueId) -> ValueId {
        for inner in level + 1..self.builders.len() {
            let (outer, rest) = self.builders.split_at_mut(inner);
            value = rest[0].capture(name, &mut outer[inner - 1], value);
        }
        value
    }

    fn refuse(&mut self, node: &str, op: &str, domain: &str, why: String) {
        let (node, op, domain) = (node.to_owned(), op.to_owned(), domain.to_owned());
        self.unsupported.push(Unsupported { node, op, domain, why });
    }

    /// Refuses inputs, each for its reason, by the operators that read them, or by name where none does.
    fn refuse_inputs(&mut self, graph: &GraphProto, refused: &BTreeMap<&str, String>) {
        let mut read = BTreeSet::new();
        for node in &graph.node {
            for (name, why) in node.input.iter().filter_map(|name| refused.get_key_value(&**name)) {
                read.insert(*name);
                let why = format!("its input `{name}` {why}");
                self.refuse(node_name(node), &node.op_type, &node.domain, why);
            }
        }
        for (name, why) in refused.iter().filter(|(name, _)| !read.contains(*name)) {
            self.refuse(name, "", "", why.clone());
        }
    }

    fn run_nodes(&mut self, nodes: &'m [NodeProto]) -> Result<(), ImportError> {
        for node in in_order(nodes)? {
            self.run_node(node)?;
        }
        Ok(())
    }

    fn run_node(&mut self, node: &'m NodeProto) -> Result<(), ImportError> {
        self.take_nodes(1).map_err(|reason| invalid(node, reason))?;
        let mut inputs = Vec::with_capacity(node.input.len());
        let mut poisoned = false;
        for name in &node.input {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            let value = self.lookup(name).map_err(|reason| invalid(node, reason))?;
            poisoned |= matches!(value, None | Some(Value::Unsupported(_)));
            if let Some(Value::Unsupported(why)) = &value {
                let why = format!("its input `{name}` {why}");
                self.refuse(node_name(node), &node.op_type, plain_domain(&node.domain), why);
            }
            inputs.push(value);
        }
        let outputs = match poisoned {
            true => None,
            false => match self.call(node, inputs) {
                Ok(outputs) => Some(outputs),
                Err(OpError::Unsupported(why)) => {
                    let domain = plain_domain(&node.domain);
                    self.refuse(node_name(node), &node.op_type, domain, why.into_owned());
                    None
                }
                Err(error) => return Err(self.with_place(error, node_name(node), &node.op_type)),
            },
        };
        for (i, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let value = match &outputs {
                Some(outputs) => match outputs.get(i) {
                    Some(value) => Some(value.clone()),
                    None => {
                        let reason = Reason::OutputCount { named: i + 1, given: outputs.len() };
                        return Err(invalid(node, reason));
                    }
                },
                None => None,
            };
            self.bind(name, value).map_err(|reason| invalid(node, reason))?;
        }
        Ok(())
    }

    /// Runs the node's row, or inlines the function that it calls.
    fn call(
        &mut self,
        node: &'m NodeProto,
        inputs: Vec<Option<Value>>,
    ) -> Result<Vec<Value>, OpError> {
        let domain = plain_domain(&node.domain);
        let attributes = self.resolve_attributes(node);
        let key = (domain, node.op_type.as_str(), node.overload.as_str());
        let function = self.functions.get(&key).copied();
        let opset = self.scope().opsets.get(domain).copied();
        let opset = opset.unwrap_or(if domain.is_empty() { NEWEST_OPSET } else { 1 });
        let Some(row) = ops::find(domain, &node.op_type) else {
            return match function {
                Some(function) => self.inline(function, &inputs, attributes),
                None => Err(OpError::Unsupported("there is no such operator here".into())),
            };
        };
        if opset < row.since {
            let why = format!("exists from version {} of the operator set on", row.since);
            return Err(OpError::Unsupported(why.into()));
        }
        self.builder_mut().name = node_name(node).to_owned();
        let mut context = Context {
            importer: self,
            op: &node.op_type,
            opset,
            attributes: attributes.clone(),
            inputs: inputs.clone(),
            outputs: node.output.iter().map(|name| !name.is_empty()).collect(),
        };
        match (row.run.call(&mut context, &node.input), function) {
            (Err(OpError::Unsupported(_)), Some(function)) => {
                self.inline(function, &inputs, attributes)
            }
            (outcome, _) => outcome,
        }
    }

    /// Counts nodes, calls and iterations: functions and loops make many of few, and may add nothing to the graph.
    fn take_nodes(&self, nodes: usize) -> Result<(), Reason> {
        match self.builder().budget.take_nodes(nodes) {
            true => Ok(()),
            false => Err(Reason::Nodes(MAX_NODES)),
        }
    }

    /// The node's attributes, with references replaced by what the call of the function gave.
    fn resolve_attributes(&mut self, node: &'m NodeProto) -> Vec<(&'m str, &'m AttributeProto)> {
        let given = Rc::clone(&self.scope().attributes);
        let resolve = |attribute: &'m AttributeProto| {
            let reference = attribute.ref_attr_name.as_str();
            if reference.is_empty() {
                return Some((attribute.name.as_str(), attribute));
            }
            let (_, value) = given.iter().find(|(name, _)| *name == reference)?;
            Some((attribute.name.as_str(), *value))
        };
        node.attribute.iter().filter_map(resolve).collect()
    }

    /// Runs a function's nodes in place of its call.
    fn inline(
        &mut self,
        function: &'m FunctionProto,
        inputs: &[Option<Value>],
        mut attributes: Vec<(&'m str, &'m AttributeProto)>,
    ) -> Result<Vec<Value>, OpError> {
        for default in &function.attribute_proto {
            if !attributes.iter().any(|(name, _)| *name == default.name) {
                attributes.push((&default.name, default));
            }
        }
        let mut opsets = (*self.scope().opsets).clone();
        self.take_nodes(opsets.len())?;
        opsets.extend(read_opsets(&function.opset_import)?);
        let level = self.builders.len() - 1;
        let scope = Scope {
            names: HashMap::new(),
            level,
            opaque: true,
            opsets: Rc::new(opsets),
            attributes: Rc::new(attributes),
        };
        self.within(scope, |importer| {
            for (name, input) in function.input.iter().zip(inputs) {
                if let Some(value) = input {
                    importer.bind(name, Some(value.clone()))?;
                }
            }
            // An optional input left out is an empty name wherever the body uses it.
            importer.run_function_nodes(function, inputs)?;
            let mut outputs = Vec::new();
            for name in &function.output {
                match importer.lookup(name)? {
                    Some(value) => outputs.push(value),
                    None => return Err(OpError::Unsupported("its body is not supported".into())),
                }
            }
            Ok(outputs)
        })
    }

    fn run_function_nodes(
        &mut self,
        function: &'m FunctionProto,
        inputs: &[Option<Value>],
    ) -> Result<(), OpError> {
        let absent = |(i, _): &(usize, &String)| inputs.get(*i).is_none_or(Option::is_none);
        let absent: BTreeSet<&str> =
            function.input.iter().enumerate().filter(absent).map(|(_, n)| n.as_str()).collect();
        if !absent.is_empty() {
            let uses = |node: &NodeProto| node.input.iter().any(|n| absent.contains(n.as_str()));
            if function.node.iter().any(uses) {
                return Err(OpError::Unsupported("a call that leaves an input out".into()));
            }
        }
        Ok(self.run_nodes(&function.node)?)
    }

    /// Works in a further scope.
    fn within<T>(
        &mut self,
        scope: Scope<'m>,
        work: impl FnOnce(&mut Self) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        if self.scopes.len() > 2 * MAX_DEPTH {
            return Err(Reason::Depth.into());
        }
        let name = self.builder().name.clone();
        self.scopes.push(scope);
        let outcome = work(self);
        self.scopes.pop();
        self.builder_mut().name = name;
        outcome
    }

    /// Runs a body's nodes within the graph being built, for these inputs; its outputs.
    pub(super) fn run_body(
        &mut self,
        body: &'m GraphProto,
        inputs: &[Value],
    ) -> Result<Vec<Value>, OpError> {
        if body.input.len() != inputs.len() {
            let why = format!("a body takes {} inputs, not {}", body.input.len(), inputs.len());
            return Err(Reason::Operator(why).into());
        }
        let scope = Scope {
            names: HashMap::new(),
            level: self.builders.len() - 1,
            opaque: false,
            opsets: Rc::clone(&self.scope().opsets),
            attributes: Rc::clone(&self.scope().attributes),
        };
        self.take_nodes(1)?;
        self.within(scope, |importer| {
            for (input, value) in body.input.iter().zip(inputs) {
                importer.bind(&input.name, Some(value.clone()))?;
            }
            importer.add_initializers(body)?;
            importer.run_nodes(&body.node)?;
            let mut outputs = Vec::new();
            for output in &body.output {
                match importer.lookup(&output.name)? {
                    Some(value) => outputs.push(value),
                    None => return Err(OpError::Unsupported("its body is not supported".into())),
                }
            }
            Ok(outputs)
        })
    }

    /// Builds bodies of one node as graphs of their own. Each takes inputs of the given types; all take the same
    /// captured values after them, which are given back. The deciders are what the inputs' values hang on.
    pub(super) fn build_bodies(
        &mut self,
        bodies: &[&'m GraphProto],
        formal: &[TensorType],
        deciders: &[ValueId],
    ) -> Result<(Vec<Graph>, Vec<ValueId>), OpError> {
        let mut built = Vec::new();
        for &body in bodies {
            built.push(self.build_body(body, formal, deciders)?);
        }
        let mut captured: Vec<ValueId> = Vec::new();
        for (outer, _) in built.iter().flat_map(|builder| &builder.captures) {
            if !captured.contains(outer) {
                captured.push(*outer);
            }
        }
        let mut graphs = Vec::new();
        for builder in &built {
            let inner = |outer: &ValueId| {
                builder.captures.iter().find(|(o, _)| o == outer).map(|(_, inner)| *inner)
            };
            let taken: Vec<_> = captured
                .iter()
                .enumerate()
                .map(|(i, value)| {
                    (format!("captured_{i}"), self.builder().ty(*value).clone(), inner(value))
                })
                .collect();
            graphs.push(sweep(&builder.graph, formal.len(), &taken)?);
        }
        Ok((graphs, captured))
    }

    fn build_body(
        &mut self,
        body: &'m GraphProto,
        formal: &[TensorType],
        deciders: &[ValueId],
    ) -> Result<Builder, OpError> {
        let inputs = self.open_body(formal, deciders)?;
        let inputs: Vec<_> = inputs.into_iter().map(Value::from).collect();
        let outcome = self.run_body(body, &inputs);
        let outcome = outcome.and_then(|outputs| Value::tensors(outputs, "an output of its body"));
        self.close_body(outcome)
    }

    /// Begins a graph within the one being built; its inputs, of these types.
    pub(super) fn open_body(
        &mut self,
        formal: &[TensorType],
        deciders: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        if self.builders.len() >= MAX_DEPTH {
            return Err(Reason::Depth.into());
        }
        let mut builder = self.builder().inner();
        builder.deciders = deciders.to_vec();
        let mut inputs = Vec::new();
        for (i, ty) in formal.iter().enumerate() {
            inputs.push(builder.graph.add_input(&format!("formal_{i}"), ty.clone())?);
        }
        self.builders.push(builder);
        Ok(inputs)
    }

    /// Ends the graph that was begun last.
    pub(super) fn close_body(
        &mut self,
        outcome: Result<Vec<ValueId>, OpError>,
    ) -> Result<Builder, OpError> {
        let mut builder = self.builders.pop().expect("a body is open");
        match outcome {
            Ok(outputs) => {
                for (i, value) in outputs.into_iter().enumerate() {
                    builder.graph.add_output(&format!("result_{i}"), value);
                }
                Ok(builder)
            }
            // The value belongs to a graph that is no more: what it hangs on outside is what counts.
            Err(OpError::NeedsValue(value)) => {
                let needed = builder.first_outside(value);
                Err(needed.map_or(OpError::Infer(InferError::DataDependent), OpError::NeedsValue))
            }
            Err(error) => Err(error),
        }
    }

    /// A node's error with the node's name.
    fn with_place(&self, error: OpError, node: &str, op: &str) -> ImportError {
        let (node, op) = (node.to_owned(), op.to_owned());
        match error {
            OpError::Unsupported(why) => {
                let (domain, why) = (String::new(), why.into_owned());
                ImportError::Unsupported(vec![Unsupported { node, op, domain, why }])
            }
            OpError::Invalid(reason) => ImportError::Invalid { node, op, reason },
            OpError::Infer(error) => {
                let symbols = unresolved_symbols(&error);
                if symbols.is_empty() {
                    return ImportError::Infer { node, op, error: error.into() };
                }
                let equal = match &error {
                    InferError::Unresolved { a, b } => a.equate(b),
                    _ => Vec::new(),
                };
                ImportError::Resists { node, op, inputs: Vec::new(), symbols, equal }
            }
            OpError::NeedsValue(value) => {
                let (inputs, symbols) = self.ancestors(value);
                ImportError::Resists { node, op, inputs, symbols, equal: Vec::new() }
            }
            OpError::Import(error) => *error,
        }
    }

    /// The inputs of the model on whose values a value depends, and the symbols of sizes that it holds.
    fn ancestors(&self, value: ValueId) -> (Vec<String>, Vec<Symbol>) {
        let mut level = self.builders.len() - 1;
        let mut wanted = vec![value];
        loop {
            let builder = &self.builders[level];
            let (inputs, symbols) = builder.ancestors(&wanted);
            if level == 0 {
                let name = |value: &ValueId| builder.graph.node(value.node).name().to_owned();
                return (inputs.iter().map(name).collect(), symbols);
            }
            wanted = inputs.iter().flat_map(|inner| builder.outside(*inner)).collect();
            level -= 1;
        }
    }

    /// Everything in the model that is not supported: what the walk met, and operators that it did not reach.
    fn all_unsupported(&self, model: &ModelProto, graph: &GraphProto) -> Vec<Unsupported> {
        let mut seen = HashSet::new();
        let mut all = self.unsupported.clone();
        all.retain(|one| one.why != "its body is not supported" && seen.insert(one.clone()));
        let mut told = all.iter().map(|one| (one.node.clone(), one.op.clone())).collect();
        self.scan(&graph.node, &mut all, &mut told, 0);
        for function in &model.functions {
            self.scan(&function.node, &mut all, &mut told, 0);
        }
        all
    }

    /// Adds operators that are not here, except for nodes that are told of.
    fn scan(
        &self,
        nodes: &[NodeProto],
        all: &mut Vec<Unsupported>,
        told: &mut HashSet<(String, String)>,
        depth: usize,
    ) {
        for node in nodes {
            let domain = plain_domain(&node.domain);
            let key = (domain, node.op_type.as_str(), node.overload.as_str());
            let known =
                ops::find(domain, &node.op_type).is_some() || self.functions.contains_key(&key);
            let name = node_name(node);
            if !known && told.insert((name.to_owned(), node.op_type.clone())) {
                all.push(Unsupported {
                    node: name.to_owned(),
                    op: node.op_type.clone(),
                    domain: domain.to_owned(),
                    why: "there is no such operator here".to_owned(),
                });
            }
            if depth < MAX_DEPTH {
                for graph in node.attribute.iter().flat_map(graphs) {
                    self.scan(&graph.node, all, told, depth + 1);
                }
            }
        }
    }
}

/// The symbols whose sizes would settle an inference.
fn unresolved_symbols(error: &InferError) -> Vec<Symbol> {
    let mut symbols = BTreeSet::new();
    match error {
        InferError::Unresolved { a, b } => {
            a.collect_symbols(&mut symbols);
            b.collect_symbols(&mut symbols);
        }
        InferError::UnresolvedRank(dim) => dim.collect_symbols(&mut symbols),
        _ => {}
    }
    symbols.into_iter().collect()
}

impl Builder {
    /// Takes a value of the enclosing graph: a constant or symbolic one is made again, another becomes an input.
    fn capture(&mut self, name: &str, outer: &mut Builder, value: ValueId) -> ValueId {
        if let Some((_, inner)) = self.captures.iter().find(|(o, _)| *o == value) {
            return *inner;
        }
        let ty = outer.ty(value).clone();
        if let Some(tensor) = outer.graph.constant(value) {
            return self.graph.add_constant(name, tensor.clone());
        }
        if let Some(fact) = outer.fact(value)
            && let Ok(made) = self.value_of(ty.dtype, fact)
        {
            return made;
        }
        let inner = self.graph.add_input(name, ty).expect("the type stands in a graph already");
        self.captures.push((value, inner));
        inner
    }

    /// The values of the enclosing graph behind an input.
    fn outside(&self, input: ValueId) -> Vec<ValueId> {
        match self.captures.iter().find(|(_, inner)| *inner == input) {
            Some((outer, _)) => vec![*outer],
            None => self.deciders.clone(),
        }
    }

    /// Of the values of the enclosing graph that a value depends on, the first.
    fn first_outside(&self, value: ValueId) -> Option<ValueId> {
        let (inputs, _) = self.ancestors(&[value]);
        inputs.iter().find_map(|input| self.outside(*input).first().copied())
    }

    /// The inputs on whose values the given ones depend, and the symbols in sizes used as values.
    fn ancestors(&self, values: &[ValueId]) -> (Vec<ValueId>, Vec<Symbol>) {
        let mut wanted = vec![false; self.graph.len()];
        for value in values {
            wanted[value.node.index()] = true;
        }
        let (mut inputs, mut symbols) = (Vec::new(), BTreeSet::new());
        let nodes: Vec<_> = self.graph.nodes().collect();
        for (id, node) in nodes.into_iter().rev() {
            if !wanted[id.index()] {
                continue;
            }
            if *node.op() == Op::Input {
                inputs.push(id.value());
            }
            if let Op::Size(dim) | Op::Iota(dim) = node.op() {
                dim.collect_symbols(&mut symbols);
            }
            for input in node.inputs().iter().flatten() {
                wanted[input.node.index()] = true;
            }
        }
        inputs.reverse();
        (inputs, symbols.into_iter().collect())
    }
}
