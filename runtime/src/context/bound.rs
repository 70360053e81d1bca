//! A model bound to sizes, as a context keeps it.

use super::io::{Given, Wanted};
use super::{Input, Ordered};
use crate::control::Control;
use crate::cpu::Storage;
use crate::engine::Reservation;
use crate::error::{Error, Result};
use crate::executor::{Bound, Workspace};
#[cfg(feature = "cuda")]
use crate::gpu::{In, Out};
use crate::model::{Model, Sizes};
use crate::pad::copy_corner;
use graphene_frontend::dim::Bindings;
use std::sync::Arc;

/// A model bound to sizes.
pub(super) struct Entry {
    pub(super) sizes: Sizes,
    /// The same by symbol.
    pub(super) bindings: Arc<Bindings>,
    /// When it ran last, by the context's clock.
    pub(super) used: u64,
    /// Shapes of the model's inputs and outputs.
    pub(super) inputs: Vec<Vec<usize>>,
    pub(super) outputs: Vec<Vec<usize>>,
    pub(super) bound: Bound,
    /// What it has of the memory limit.
    _staged: Reservation,
}

/// Memory for what a request does not bring in the form that kernels take: inputs to be padded or aligned, outputs to be
/// cut, outputs that nobody wants. It grows to the largest request.
#[derive(Default)]
pub(super) struct Staging {
    inputs: Vec<Storage>,
    outputs: Vec<Storage>,
    pub(super) unwanted: Vec<Storage>,
}

impl Entry {
    pub(super) fn new(
        model: &Model,
        sizes: Sizes,
        (bound, staged): (Bound, Reservation),
        used: u64,
    ) -> Result<Self> {
        let bindings = Arc::new(model.bindings(&sizes)?);
        let shapes = |ports: &[crate::model::Port]| {
            let shape = |port: &crate::model::Port| Ok(port.ty().bound_shape(&bindings)?);
            ports.iter().map(shape).collect::<Result<Vec<_>>>()
        };
        let (inputs, outputs) = (shapes(model.inputs())?, shapes(model.outputs())?);
        Ok(Self { sizes, bindings, used, inputs, outputs, bound, _staged: staged })
    }

    /// Runs, from inputs of at most these sizes to outputs, which have the shapes given, or else the entry's own.
    #[expect(clippy::too_many_arguments, reason = "the parts of a context, borrowed one by one")]
    pub(super) fn run(
        &mut self,
        model: &Model,
        workspace: &mut Option<Workspace>,
        staging: &mut Staging,
        inputs: &[Input<'_>],
        outputs: &mut [Wanted<'_>],
        shapes: &[Vec<usize>],
        control: Control<'_>,
    ) -> Result<()> {
        staging.inputs.resize_with(inputs.len(), Storage::default);
        staging.outputs.resize_with(outputs.len(), Storage::default);
        let mut read: Ordered<Given<'_>> = Ordered::new();
        for ((input, shape), staged) in inputs.iter().zip(&self.inputs).zip(&mut staging.inputs) {
            let width = input.dtype.size();
            read.push(match input.data {
                Given::Host(bytes) if input.shape == shape && is_aligned(bytes, width) => {
                    input.data
                }
                Given::Host(bytes) => {
                    let staged = staged.at_least(len(shape, width)?)?;
                    staged.fill(0);
                    copy_corner((staged, shape), (bytes, input.shape), width);
                    Given::Host(staged)
                }
                #[cfg(feature = "cuda")]
                Given::Device(_) if input.shape == shape => input.data,
                #[cfg(feature = "cuda")]
                Given::Device(_) => return Err(unsupported(PADDED)),
            });
        }
        let mut cut: Ordered<bool> = Ordered::new();
        let mut written: Ordered<Wanted<'_>> = Ordered::new();
        let ports = model.outputs();
        let own = outputs.iter_mut().zip(&mut staging.outputs).zip(&self.outputs).zip(ports);
        for (number, (((output, staged), shape), port)) in own.enumerate() {
            let width = port.dtype().size();
            let whole = shapes.get(number).is_none_or(|asked| asked == shape);
            let direct = match output {
                Wanted::Host(bytes) => whole && is_aligned(bytes, width),
                #[cfg(feature = "cuda")]
                Wanted::Device(_) if !whole => return Err(unsupported(PADDED)),
                #[cfg(feature = "cuda")]
                Wanted::Device(_) => true,
            };
            cut.push(!direct);
            written.push(match direct {
                true => output.reborrow(),
                false => Wanted::Host(staged.at_least(len(shape, width)?)?),
            });
        }
        self.execute(model, workspace, &read, &mut written, control)?;
        drop(written);
        for (number, output) in outputs.iter_mut().enumerate() {
            if let (true, Wanted::Host(output)) = (cut[number], output) {
                let (shape, width) = (&self.outputs[number], ports[number].dtype().size());
                let asked = shapes.get(number).unwrap_or(shape);
                let from = &staging.outputs[number].as_ref()[..len(shape, width)?];
                copy_corner((output, asked), (from, shape), width);
            }
        }
        Ok(())
    }

    /// Runs, with inputs and outputs of the entry's own sizes.
    fn execute(
        &mut self,
        model: &Model,
        workspace: &mut Option<Workspace>,
        inputs: &[Given<'_>],
        outputs: &mut [Wanted<'_>],
        control: Control<'_>,
    ) -> Result<()> {
        match (&mut self.bound, workspace) {
            (Bound::Cpu(bound), Some(Workspace::Cpu(arena))) => {
                let mut read: Ordered<&[u8]> = Ordered::new();
                for input in inputs {
                    read.push(match input {
                        Given::Host(bytes) => bytes,
                        #[cfg(feature = "cuda")]
                        Given::Device(_) => return Err(unsupported(FOREIGN)),
                    });
                }
                let mut written: Ordered<&mut [u8]> = Ordered::new();
                for output in outputs {
                    written.push(match output {
                        Wanted::Host(bytes) => bytes,
                        #[cfg(feature = "cuda")]
                        Wanted::Device(_) => return Err(unsupported(FOREIGN)),
                    });
                }
                let mut go_on = |_step| Ok(());
                let control = match control {
                    Some(control) => control,
                    None => &mut go_on,
                };
                let threads = model.engine().pool();
                threads.run(|| bound.run(arena.bytes_mut(), &read, &mut written, control))
            }
            #[cfg(feature = "cuda")]
            (Bound::Gpu(executable), _) => {
                let read = inputs.iter().map(|input| match input {
                    Given::Host(bytes) => In::Host(bytes),
                    Given::Device(tensor) => In::Device(tensor.buffer()),
                });
                let written = outputs.iter_mut().map(|output| match output {
                    Wanted::Host(bytes) => Out::Host(bytes),
                    Wanted::Device(tensor) => Out::Device(tensor.buffer()),
                });
                let read: Ordered<In<'_>> = read.collect();
                let mut written: Ordered<Out<'_>> = written.collect();
                match control {
                    Some(control) => {
                        executable.run_into_while(&read, &mut written, &mut || control(0))
                    }
                    None => executable.run_into(&read, &mut written),
                }
            }
            (Bound::Cpu(_), _) => Err(Error::Unsupported { what: "a run without a workspace" }),
        }
    }
}

/// What is refused of memory on a GPU.
#[cfg(feature = "cuda")]
const PADDED: &str = "a padded request with memory on a GPU";
#[cfg(feature = "cuda")]
const FOREIGN: &str = "memory on a GPU for a run on the CPU";

#[cfg(feature = "cuda")]
fn unsupported(what: &'static str) -> Error {
    Error::Unsupported { what }
}

fn is_aligned(bytes: &[u8], width: usize) -> bool {
    bytes.as_ptr().align_offset(width) == 0
}

/// Bytes of a tensor.
fn len(shape: &[usize], width: usize) -> Result<usize> {
    let elements = graphene_frontend::tensor::checked_elements(shape);
    let bytes = elements.and_then(|elements| elements.checked_mul(width));
    bytes.ok_or(Error::TooLarge { what: "a padded tensor" })
}
