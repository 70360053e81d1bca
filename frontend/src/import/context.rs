//! What a row of the operator table works with: the ONNX node at hand and the graph that it adds to.

use super::driver::Importer;
use super::error::{OpError, Reason};
use super::sweep::sweep;
use super::symbolic::{Abstract, Affine};
use super::tensor::read_tensor;
use super::value::{Sequence, Value};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::eval::number;
use crate::graph::{Graph, ValueId};
use crate::onnx::{AttributeProto, GraphProto};
use crate::op::{Binary, Op, Unary};
use crate::tensor::Tensor;
use crate::types::TensorType;
use std::borrow::Cow;

/// The node at hand and the graph under construction.
pub struct Context<'a, 'm> {
    pub(super) importer: &'a mut Importer<'m>,
    pub(super) op: &'m str,
    pub(super) opset: i64,
    /// Attributes by name, references of a function's body resolved.
    pub(super) attributes: Vec<(&'m str, &'m AttributeProto)>,
    pub(super) inputs: Vec<Option<Value>>,
    /// Whether each output is wanted.
    pub(super) outputs: Vec<bool>,
}

impl<'m> Context<'_, 'm> {
    /// The operator.
    pub fn op(&self) -> &'m str {
        self.op
    }

    /// The version of the operator set of the operator's domain.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        self.attributes.iter().find(|(n, _)| *n == name).map(|(_, attribute)| *attribute)
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    /// An integer attribute with a default.
    pub fn int_or(&self, name: &str, default: i64) -> i64 {
        self.int(name).unwrap_or(default)
    }

    /// An attribute that is a list of integers.
    pub fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// An attribute that is a number.
    pub fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name).map(|attribute| attribute.f)
    }

    /// An attribute that is a number, with a default.
    pub fn float_or(&self, name: &str, default: f32) -> f32 {
        self.float(name).unwrap_or(default)
    }

    /// An attribute that is a list of numbers.
    pub fn floats(&self, name: &str) -> Option<&'m [f32]> {
        self.attribute(name).map(|attribute| attribute.floats.as_slice())
    }

    /// An attribute that is text; what is no UTF-8 counts as absent.
    pub fn string(&self, name: &str) -> Option<&'m str> {
        std::str::from_utf8(&self.attribute(name)?.s).ok()
    }

    /// An attribute that is a list of texts; what is no UTF-8 counts as empty.
    pub fn strings(&self, name: &str) -> Option<Vec<&'m str>> {
        let text = |bytes: &'m bytes::Bytes| std::str::from_utf8(bytes).unwrap_or("");
        Some(self.attribute(name)?.strings.iter().map(text).collect())
    }

    /// An attribute that is a tensor.
    ///
    /// # Errors
    /// [`OpError`] if it is malformed or of an element type that is not supported.
    pub fn tensor_attr(&self, name: &str) -> Result<Option<Tensor>, OpError> {
        match self.attribute(name).and_then(|attribute| attribute.t.as_ref()) {
            Some(tensor) => read_tensor(tensor, self.importer.weights).map(Some),
            None => Ok(None),
        }
    }

    /// An attribute that is a graph.
    pub fn graph_attr(&self, name: &str) -> Option<&'m GraphProto> {
        self.attribute(name).and_then(|attribute| attribute.g.as_ref())
    }

    /// A required input.
    ///
    /// # Errors
    /// [`Reason::MissingInput`]; [`OpError::Unsupported`] for a sequence.
    pub fn input(&self, i: usize) -> Result<ValueId, OpError> {
        match self.value(i)? {
            Value::Tensor(value) => Ok(value),
            Value::Sequence(_) | Value::Unsupported(_) => {
                Err(self.unsupported(format!("its input {i} is no tensor")))
            }
        }
    }

    /// An optional input; a sequence counts as absent.
    pub fn optional(&self, i: usize) -> Option<ValueId> {
        match self.inputs.get(i)? {
            Some(Value::Tensor(value)) => Some(*value),
            Some(Value::Sequence(_) | Value::Unsupported(_)) | None => None,
        }
    }

    /// A required input that may be a sequence.
    ///
    /// # Errors
    /// [`Reason::MissingInput`].
    pub fn value(&self, i: usize) -> Result<Value, OpError> {
        self.inputs.get(i).cloned().flatten().ok_or_else(|| Reason::MissingInput(i).into())
    }

    /// A required input that is a sequence.
    ///
    /// # Errors
    /// [`Reason::MissingInput`]; [`Reason::Operator`] for a tensor.
    pub fn sequence(&self, i: usize) -> Result<Sequence, OpError> {
        match self.value(i)? {
            Value::Sequence(sequence) => Ok(sequence),
            Value::Tensor(_) | Value::Unsupported(_) => {
                Err(self.invalid(format!("input {i} must be a sequence")))
            }
        }
    }

    /// The number of inputs, those left out between others among them.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// The number of outputs, those left out between others among them.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the node names its output `i`.
    pub fn wants_output(&self, i: usize) -> bool {
        self.outputs.get(i).copied().unwrap_or(false)
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> TensorType {
        self.importer.builder().ty(value).clone()
    }

    /// The dims of a value.
    pub fn shape(&self, value: ValueId) -> Vec<Dim> {
        self.importer.builder().ty(value).shape.clone()
    }

    /// The number of dims of a value.
    pub fn rank(&self, value: ValueId) -> usize {
        self.importer.builder().ty(value).rank()
    }

    /// The element type of a value.
    pub fn dtype(&self, value: ValueId) -> DType {
        self.importer.builder().ty(value).dtype
    }

    /// An axis of `rank` dims, counted from the end if negative.
    ///
    /// # Errors
    /// [`Reason::Axis`] if it is outside.
    pub fn axis(&self, rank: usize, axis: i64) -> Result<usize, OpError> {
        let from_front = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        match usize::try_from(from_front) {
            Ok(index) if index < rank => Ok(index),
            _ => Err(Reason::Axis { axis, rank }.into()),
        }
    }

    /// Axes of `rank` dims, ascending.
    ///
    /// # Errors
    /// [`Reason::Axis`] for one outside or given twice.
    pub fn axes(&self, rank: usize, axes: &[i64]) -> Result<Vec<usize>, OpError> {
        let mut sorted = Vec::with_capacity(axes.len().min(rank));
        for &axis in axes {
            let index = self.axis(rank, axis)?;
            if sorted.contains(&index) {
                return Err(Reason::Axis { axis, rank }.into());
            }
            sorted.push(index);
        }
        sorted.sort_unstable();
        Ok(sorted)
    }

    /// Adds an operation of one output.
    ///
    /// # Errors
    /// [`OpError::Infer`] if the inputs do not fit.
    pub fn add(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, OpError> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.add_optional(op, &inputs)?[0])
    }

    /// Adds an operation; all of its outputs.
    ///
    /// # Errors
    /// [`OpError::Infer`] if the inputs do not fit.
    pub fn add_optional(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<Vec<ValueId>, OpError> {
        self.importer.builder_mut().add(op, inputs)
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.importer.builder_mut().constant(tensor)
    }

    /// A constant without dims, of the number nearest to `value`.
    ///
    /// # Errors
    /// None today: every element type stores numbers.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<ValueId, OpError> {
        let tensor = number::from_reals(dtype, Vec::new(), &[value], true)
            .map_err(|error| Reason::Operator(error.to_string()))?;
        Ok(self.constant(tensor))
    }

    /// A constant without dims, of the element type of another value.
    ///
    /// # Errors
    /// As [`Context::scalar`].
    pub fn scalar_like(&mut self, like: ValueId, value: f64) -> Result<ValueId, OpError> {
        self.scalar(self.dtype(like), value)
    }

    /// The value under another shape.
    ///
    /// # Errors
    /// [`OpError::Infer`] if the number of elements differs.
    pub fn reshape(&mut self, value: ValueId, shape: Vec<Dim>) -> Result<ValueId, OpError> {
        self.add(Op::Reshape(shape), &[value])
    }

    /// The value with its dims permuted.
    ///
    /// # Errors
    /// [`OpError::Infer`] if that is no permutation of its dims.
    pub fn transpose(&mut self, value: ValueId, perm: Vec<usize>) -> Result<ValueId, OpError> {
        self.add(Op::Transpose(perm), &[value])
    }

    /// The value broadcast to a shape.
    ///
    /// # Errors
    /// [`OpError::Infer`] if it does not broadcast.
    pub fn expand(&mut self, value: ValueId, shape: Vec<Dim>) -> Result<ValueId, OpError> {
        self.add(Op::Expand(shape), &[value])
    }

    /// The value converted to another element type.
    ///
    /// # Errors
    /// [`OpError::Infer`].
    pub fn cast(&mut self, value: ValueId, to: DType) -> Result<ValueId, OpError> {
        self.add(Op::Cast { to, saturate: true }, &[value])
    }

    /// A function of one argument.
    ///
    /// # Errors
    /// [`OpError::Infer`] for element types that it does not take.
    pub fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Unary(op), &[x])
    }

    /// A function of two arguments.
    ///
    /// # Errors
    /// [`OpError::Infer`] for element types that it does not take and shapes that do not broadcast.
    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.add(Op::Binary(op), &[a, b])
    }

    /// A scalar that is a dim.
    ///
    /// # Errors
    /// [`OpError::Infer`].
    pub fn size(&mut self, dim: Dim) -> Result<ValueId, OpError> {
        self.add(Op::Size(dim), &[])
    }

    /// An `i64` tensor of these dims.
    ///
    /// # Errors
    /// [`OpError::Infer`].
    pub fn list(&mut self, dims: Vec<Dim>) -> Result<ValueId, OpError> {
        let elements = Abstract::Elements { shape: vec![dims.len()], items: dims };
        self.importer.builder_mut().value_of(DType::I64, elements)
    }

    /// The tensor `offset, offset + step, …` of `count` elements.
    ///
    /// # Errors
    /// [`OpError::Infer`] if it is too large.
    pub fn counted(
        &mut self,
        dtype: DType,
        count: Dim,
        step: Dim,
        offset: Dim,
    ) -> Result<ValueId, OpError> {
        let affine = Affine { dims: vec![count], strides: vec![step], offset };
        TensorType::new(dtype, affine.dims.clone()).check()?;
        self.importer.builder_mut().value_of(dtype, Abstract::of_affine(affine))
    }

    /// The elements of an integer tensor of rank at most one, as dims.
    ///
    /// # Errors
    /// [`OpError::NeedsValue`] if they depend on values.
    pub fn dims(&mut self, value: ValueId) -> Result<Vec<Dim>, OpError> {
        if self.rank(value) > 1 {
            return Err(self.invalid("a list of sizes has one dim"));
        }
        let builder = self.importer.builder_mut();
        match builder.fact(value).and_then(|fact| fact.items()) {
            Some(items) => Ok(items),
            None => Ok(self.known_ints(value)?.into_iter().map(Dim::from).collect()),
        }
    }

    /// The only element of an integer tensor, as a dim.
    ///
    /// # Errors
    /// [`OpError::NeedsValue`] if it depends on values.
    pub fn dim(&mut self, value: ValueId) -> Result<Dim, OpError> {
        match <[Dim; 1]>::try_from(self.dims(value)?) {
            Ok([dim]) => Ok(dim),
            Err(_) => Err(self.invalid("a single number is expected")),
        }
    }

    /// The elements, if they depend on constants only.
    pub fn known(&self, value: ValueId) -> Option<Tensor> {
        self.importer.builder().known(value)
    }

    /// The elements of an integer or bool tensor.
    ///
    /// # Errors
    /// [`OpError::NeedsValue`] if they depend on values or sizes.
    pub fn known_ints(&self, value: ValueId) -> Result<Vec<i64>, OpError> {
        let tensor = self.known(value).ok_or(OpError::NeedsValue(value))?;
        let items = number::integers(&tensor).map_err(|_| {
            self.invalid(format!("integers are expected, found {}", tensor.dtype()))
        })?;
        let clamp = |x: i128| x.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Ok(items.into_iter().map(clamp).collect())
    }

    /// The elements of a tensor as numbers.
    ///
    /// # Errors
    /// [`OpError::NeedsValue`] if they depend on values or sizes.
    pub fn known_floats(&self, value: ValueId) -> Result<Vec<f64>, OpError> {
        let tensor = self.known(value).ok_or(OpError::NeedsValue(value))?;
        number::reals(&tensor).map_err(|_| OpError::refuses(tensor.dtype()))
    }

    /// A body that `make` builds, whose inputs have these types and which captures nothing.
    ///
    /// # Errors
    /// Those of `make`; [`Reason::Depth`].
    pub fn body(
        &mut self,
        formal: &[TensorType],
        make: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>, OpError>,
    ) -> Result<Graph, OpError> {
        let inputs = self.importer.open_body(formal, &[])?;
        let outcome = make(self, &inputs);
        let builder = self.importer.close_body(outcome)?;
        Ok(sweep(&builder.graph, formal.len(), &[])?)
    }

    /// The key of the node's random numbers: by its own seed, or by the run's and another one for each node.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] in a body that stays one.
    pub fn draw_key(&mut self, own: Option<u64>) -> Result<u64, OpError> {
        self.importer.draw_key(own)
    }

    /// Counts work that the import itself does.
    ///
    /// # Errors
    /// [`Reason::Work`] where the model asks for more than any real one.
    pub fn take_steps(&self, steps: usize) -> Result<(), OpError> {
        match self.importer.builder().budget.take_work(steps) {
            true => Ok(()),
            false => Err(Reason::Work.into()),
        }
    }

    /// Counts memory that the import holds beside the graph.
    ///
    /// # Errors
    /// [`Reason::Memory`] where the model asks for more than any real one.
    pub fn take_bytes(&self, bytes: usize) -> Result<(), OpError> {
        match self.importer.builder().budget.take_bytes(bytes) {
            true => Ok(()),
            false => Err(Reason::Memory.into()),
        }
    }

    /// The element type of an attribute that names one.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] if it is none of ours.
    pub fn dtype_attr(&self, name: &str) -> Result<Option<DType>, OpError> {
        let Some(number) = self.int(name) else { return Ok(None) };
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        DType::from_onnx(number).map(Some).ok_or_else(|| OpError::dtype(number))
    }

    /// What the node asks for is not supported, and why.
    pub fn unsupported(&self, why: impl Into<Cow<'static, str>>) -> OpError {
        OpError::Unsupported(why.into())
    }

    /// The node breaks a rule of its operator.
    pub fn invalid(&self, why: impl Into<String>) -> OpError {
        OpError::Invalid(Reason::Operator(why.into()))
    }
}
