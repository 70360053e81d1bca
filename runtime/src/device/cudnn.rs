//! cuDNN's softmaxes, recurrent layers and attention, which the library executor calls.

mod recurrent;
mod sdpa;

pub use recurrent::{Cell, Layer, Recurrent, Sizes, States, Weights};
pub use sdpa::{Attention, Bound as BoundAttention, Operands, Strided};

use super::sys::cudnn::graph::Plan;
use super::sys::cudnn::rnn::Algorithm;
use super::sys::cudnn::{Handle, Rows};
use super::{Buffer, Device};
use crate::error::{Error, Result};
use graphene_ir::tensor::Scalar;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Launches of what is timed that are timed together.
const REPEATS: usize = 4;

/// The library on a device.
pub struct Context {
    handle: Arc<Handle>,
    /// The fastest algorithm of every layer and sizes that were bound.
    chosen: Mutex<HashMap<(Layer, Sizes), Algorithm>>,
    /// The fastest way of every attention that was bound.
    attentions: Mutex<HashMap<Attention, Arc<Plan>>>,
}

impl Context {
    /// Opens the library.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] or [`Error::OldLibrary`] without cuDNN 9; [`Error::Device`].
    pub fn new(device: &Device) -> Result<Context> {
        let handle = Arc::new(Handle::new(&device.stream)?);
        Ok(Context { handle, chosen: Mutex::default(), attentions: Mutex::default() })
    }

    /// Binds the softmax, or its logarithm, of rows without gaps, and runs it once.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold the rows, [`Error::Foreign`] if it is of another device;
    /// [`Error::TooLarge`] beyond what the library counts; [`Error::Unsupported`] for integers; [`Error::Device`].
    pub fn softmax(
        &self,
        device: &Device,
        scalar: Scalar,
        log: bool,
        shape: [usize; 2],
        [x, y]: [&Buffer; 2],
    ) -> Result<Softmax> {
        let elements = shape[0] as i128 * shape[1] as i128;
        for (name, buffer) in [("x", x), ("y", y)] {
            holds(device, name, buffer, elements, scalar)?;
        }
        let handle = self.handle.clone();
        let rows = Rows::new(scalar, shape)?;
        let softmax = Softmax { handle, rows, log, x: x.clone(), y: y.clone() };
        // What the library loads when it is first called cannot be loaded while a graph is recorded.
        softmax.launch()?;
        Ok(softmax)
    }
}

/// Microseconds of a launch, inside a CUDA graph.
fn time(device: &Device, launch: impl Fn() -> Result<()>) -> Result<f64> {
    let graph = device.capture(|| (0..REPEATS).try_for_each(|_| launch()))?;
    graph.launch()?;
    let first = device.time(|| graph.launch())?;
    Ok(first.min(device.time(|| graph.launch())?) / REPEATS as f64)
}

/// Whether a buffer of the device holds so many elements.
fn holds(
    device: &Device,
    name: &str,
    buffer: &Buffer,
    elements: i128,
    scalar: Scalar,
) -> Result<()> {
    device.check_own(name, buffer)?;
    let needed = elements * i128::from(scalar.bytes());
    if needed <= buffer.len() as i128 {
        return Ok(());
    }
    Err(Error::Short { tensor: name.to_owned(), needed, bytes: buffer.len() })
}

/// A softmax bound to its buffers.
pub struct Softmax {
    handle: Arc<Handle>,
    rows: Rows,
    log: bool,
    x: Buffer,
    y: Buffer,
}

impl Softmax {
    /// Computes it, behind all work of the device.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        self.rows.softmax(&self.handle, self.log, self.x.pointer(), self.y.pointer())
    }
}
