//! cuDNN's convolutions, softmaxes, recurrent layers and attention, which the library executor calls.

mod conv;
mod recurrent;
mod sdpa;

pub use conv::{Axis, Bound as BoundConvolution, ConvOperands, Convolution};
pub use recurrent::{Cell, Layer, Recurrent, Sizes, States, Weights};
pub use sdpa::{Attention, Bound as BoundAttention, Operands, Strided};

use super::sys::capture::Used;
use super::sys::cudnn::graph::Plan;
use super::sys::cudnn::rnn::Algorithm;
use super::sys::cudnn::{Handle, Rows};
use super::sys::recording::{Outside, keep};
use super::{Buffer, Library, Stream};
use crate::error::{Error, Result};
use conv::{Found, Workspaces};
use graphene_ir::tensor::Scalar;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Launches of what is timed that are timed together.
const REPEATS: usize = 4;

/// The library on a device: what was the fastest for each layer, attention and convolution. Streams have a state of the library each.
pub struct Context {
    /// The fastest algorithm of every layer and sizes that were bound.
    chosen: Mutex<HashMap<(Layer, Sizes), Algorithm>>,
    /// The fastest way of every attention that was bound.
    attentions: Mutex<HashMap<Attention, Arc<Plan>>>,
    /// The fastest graphs of every convolution that was bound.
    convolutions: Mutex<HashMap<Convolution, Arc<Found>>>,
    workspaces: Workspaces,
}

impl Context {
    /// Finds the library, which a stream opens when something of it is first bound there.
    ///
    /// # Errors
    ///
    /// [`Error::MissingLibrary`] or [`Error::OldLibrary`] without cuDNN 9.
    pub fn new() -> Result<Context> {
        Library::Cudnn.require()?;
        Ok(Context {
            chosen: Mutex::default(),
            attentions: Mutex::default(),
            convolutions: Mutex::default(),
            workspaces: Workspaces::default(),
        })
    }

    /// Binds the softmax, or its logarithm, of rows without gaps, and runs it once.
    ///
    /// # Errors
    ///
    /// [`Error::Short`] if a buffer does not hold the rows, [`Error::Foreign`] if it is of another stream;
    /// [`Error::TooLarge`] beyond what the library counts; [`Error::Unsupported`] for integers; [`Error::Device`].
    pub fn softmax(
        &self,
        stream: &Stream,
        scalar: Scalar,
        log: bool,
        shape: [usize; 2],
        [x, y]: [&Buffer; 2],
    ) -> Result<Softmax> {
        let elements = shape[0] as i128 * shape[1] as i128;
        for (name, buffer) in [("x", x), ("y", y)] {
            holds(stream, name, buffer, elements, scalar)?;
        }
        y.check_writable()?;
        let (handle, rows) = (stream.shared().cudnn()?, Rows::new(scalar, shape)?);
        let rows = BoundRows { handle, rows, log, x: x.clone(), y: y.clone() };
        let softmax = Softmax(Arc::new(Used::new(stream.shared(), rows)));
        // What the library loads when it is first called cannot be loaded while a graph is recorded.
        softmax.launch()?;
        Ok(softmax)
    }
}

/// Microseconds of a launch, inside a CUDA graph.
fn time(stream: &Stream, launch: impl Fn() -> Result<()>) -> Result<f64> {
    let graph = stream.capture(|| (0..REPEATS).try_for_each(|_| launch()))?;
    graph.launch()?;
    let first = stream.time(|| graph.launch())?;
    Ok(first.min(stream.time(|| graph.launch())?) / REPEATS as f64)
}

/// Whether a buffer of the device holds so many elements.
fn holds(
    stream: &Stream,
    name: &str,
    buffer: &Buffer,
    elements: i128,
    scalar: Scalar,
) -> Result<()> {
    stream.check_own(name, buffer)?;
    let needed = elements * i128::from(scalar.bytes());
    if needed <= buffer.len() as i128 {
        return Ok(());
    }
    Err(Error::Short { tensor: name.to_owned(), needed, bytes: buffer.len() })
}

/// A softmax bound to its buffers.
pub struct Softmax(Arc<Used<BoundRows>>);

struct BoundRows {
    handle: Arc<Outside<Handle>>,
    rows: Rows,
    log: bool,
    x: Buffer,
    y: Buffer,
}

impl Softmax {
    /// Computes it, behind all work of the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn launch(&self) -> Result<()> {
        let BoundRows { handle, rows, log, x, y } = &**self.0;
        keep(&self.0);
        rows.softmax((handle, self.0.stream()), *log, x.pointer(), y.pointer())
    }
}
