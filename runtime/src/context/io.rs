//! What a request brings and takes away: borrowed inputs, borrowed memory for outputs, and outputs of their own.

#[cfg(feature = "cuda")]
use super::device::DeviceTensor;
use crate::error::Result;
use crate::model::Port;
use graphene_frontend::dim::Bindings;
use graphene_frontend::dtype::DType;
use graphene_frontend::tensor::{Element, Tensor};
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// An input of a request: borrowed elements in row-major order, by name or in the order of the model's inputs.
///
/// ```
/// # use graphene_runtime::Input;
/// let ids = [101_i64, 7592, 102];
/// let first = Input::new(&ids, &[1, 3]);
/// let by_name = Input::new(&ids, &[1, 3]).named("input_ids");
/// # let _ = (first, by_name);
/// ```
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    pub(crate) data: Given<'a>,
}

/// Where an input's elements are.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    /// In memory of the host's.
    Host(&'a [u8]),
    /// On the engine's GPU.
    #[cfg(feature = "cuda")]
    Device(&'a DeviceTensor),
}

/// Where an output's elements go.
pub(crate) enum Wanted<'a> {
    /// To memory of the host's.
    Host(&'a mut [u8]),
    /// To the engine's GPU.
    #[cfg(feature = "cuda")]
    Device(&'a DeviceTensor),
}

impl Given<'_> {
    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            #[cfg(feature = "cuda")]
            Self::Device(tensor) => tensor.len(),
        }
    }
}

impl Wanted<'_> {
    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            #[cfg(feature = "cuda")]
            Self::Device(tensor) => tensor.len(),
        }
    }

    /// The same for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Wanted<'_> {
        match self {
            Self::Host(bytes) => Wanted::Host(bytes),
            #[cfg(feature = "cuda")]
            Self::Device(tensor) => Wanted::Device(tensor),
        }
    }
}

impl<'a> Input<'a> {
    /// Elements of this shape. Whether there are as many as the shape says is found when the request runs.
    pub fn new<T: Element>(elements: &'a [T], shape: &'a [usize]) -> Self {
        Self::bytes(T::DTYPE, bytemuck::cast_slice(elements), shape)
    }

    /// Truth values of this shape.
    pub fn bools(elements: &'a [bool], shape: &'a [usize]) -> Self {
        Self::bytes(DType::Bool, bytemuck::cast_slice(elements), shape)
    }

    /// Elements of any type as little-endian bytes, aligned to the element.
    pub fn bytes(dtype: DType, bytes: &'a [u8], shape: &'a [usize]) -> Self {
        Self { name: None, dtype, shape, data: Given::Host(bytes) }
    }

    /// Elements on the engine's GPU: they are copied there, not by way of the host, behind all that writes them.
    #[cfg(feature = "cuda")]
    pub fn device(tensor: &'a DeviceTensor) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        Self { name: None, dtype, shape, data: Given::Device(tensor) }
    }

    /// The same for the model's input of this name.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name: Some(name), ..self }
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::bytes(tensor.dtype(), tensor.bytes(), tensor.shape())
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Memory of the caller's for an output, by name or in the order of the model's outputs. It has to be as long as the
/// output is under the request's sizes.
pub struct OutputMut<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) dtype: DType,
    pub(crate) data: Wanted<'a>,
}

impl<'a> OutputMut<'a> {
    /// Memory for elements.
    pub fn new<T: Element>(elements: &'a mut [T]) -> Self {
        Self::bytes(T::DTYPE, bytemuck::cast_slice_mut(elements))
    }

    /// Memory for elements of any type, aligned to them.
    pub fn bytes(dtype: DType, bytes: &'a mut [u8]) -> Self {
        Self { name: None, dtype, data: Wanted::Host(bytes) }
    }

    /// Memory on the engine's GPU: the output stays there, as state that a later run reads.
    #[cfg(feature = "cuda")]
    pub fn device(tensor: &'a DeviceTensor) -> Self {
        Self { name: None, dtype: tensor.dtype(), data: Wanted::Device(tensor) }
    }

    /// The same for the model's output of this name.
    #[must_use]
    pub fn named(self, name: &'a str) -> Self {
        Self { name: Some(name), ..self }
    }
}

/// The outputs of a run, in the order of the model's.
///
/// ```
/// # use graphene_runtime::{Engine, Input};
/// # let zoo = graphene_models::build("mlp-2x4", &graphene_models::Options::default())?;
/// # let source = graphene_runtime::Source::with_external(zoo.encode(), zoo.weights().clone());
/// # let model = Engine::new()?.model().load_from(&source)?;
/// let outputs = model.context().run(&[Input::new(&[0.0_f32; 4], &[1, 4])])?;
/// let y: Vec<f32> = outputs.to_vec("y")?;
/// assert_eq!(outputs[0].as_slice::<f32>()?, y);
/// for (name, tensor) in outputs.iter() {
///     println!("{name}: {tensor:?}");
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Outputs {
    pub(super) ports: Arc<[Port]>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) sizes: Arc<Bindings>,
}

impl Outputs {
    /// The output of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let number = self.ports.iter().position(|port| port.name() == name)?;
        self.tensors.get(number)
    }

    /// All of them, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Names and outputs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.ports.iter().map(Port::name).zip(&self.tensors)
    }

    /// The elements of the output of this name, in row-major order.
    ///
    /// # Errors
    /// [`Error::UnknownPort`](crate::Error::UnknownPort); [`Error::Tensor`](crate::Error::Tensor) if they are of another
    /// type.
    pub fn to_vec<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let tensor = self.get(name).ok_or_else(|| super::unknown("output", name, &self.ports))?;
        Ok(tensor.as_slice()?.to_vec())
    }

    /// The sizes of the model's dims at which it ran: those of a bucket where the request was padded.
    pub fn sizes(&self) -> &Bindings {
        &self.sizes
    }
}

impl Index<usize> for Outputs {
    type Output = Tensor;

    /// # Panics
    /// If the model has no output of this number.
    fn index(&self, number: usize) -> &Tensor {
        &self.tensors[number]
    }
}

impl IntoIterator for Outputs {
    type Item = Tensor;
    type IntoIter = std::vec::IntoIter<Tensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
