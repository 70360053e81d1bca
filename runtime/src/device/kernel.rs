//! Kernels, and their launches with buffers and sizes.

use super::bind::{self, Value};
use super::sys::capture::Used;
use super::sys::launch::{Function, Shape, Slot, encode, launch};
use super::sys::recording::keep;
use super::{Buffer, Cubin, Device, Stream};
use crate::error::Result;
use graphene_ir::launch::{Launch, Param};
use std::sync::Arc;

/// A kernel that is loaded on a device.
pub struct Kernel {
    function: Function,
    launch: Launch,
    device: Device,
}

impl Kernel {
    pub(super) fn load(device: &Device, cubin: &Cubin, launch: &Launch) -> Result<Kernel> {
        let sizes = bind::sizes(launch);
        let function = Function::load(device.context(), cubin.image(), launch, sizes)?;
        Ok(Kernel { function, launch: launch.clone(), device: device.clone() })
    }

    /// Its name in the source.
    pub fn name(&self) -> &str {
        &self.launch.entry
    }

    /// Gives a launch on a stream its tensors and sizes, by name; what the kernel does not ask for is left aside.
    ///
    /// # Errors
    ///
    /// [`Error::Unbound`](crate::Error::Unbound) for what is not given, [`Error::Symbol`](crate::Error::Symbol) for a
    /// value outside its range, [`Error::Condition`](crate::Error::Condition) for one that does not hold,
    /// [`Error::Short`](crate::Error::Short) for a buffer that ends before its tensor,
    /// [`Error::Foreign`](crate::Error::Foreign) for one of another stream or device,
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a read-only one that would be written,
    /// [`Error::Grid`](crate::Error::Grid) for a number of blocks that cannot be launched, and
    /// [`Error::Device`](crate::Error::Device) for a tensor map that the driver refuses.
    pub fn bind(
        &self,
        stream: &Stream,
        buffers: &[(&str, &Buffer)],
        symbols: &[(&str, i64)],
    ) -> Result<Bound> {
        stream.check_device("the kernel", &self.device)?;
        for (name, buffer) in buffers {
            stream.check_own(name, buffer)?;
        }
        for param in &self.launch.params {
            let Param::Pointer { tensor, written: true, .. } = param else { continue };
            let mut given = buffers.iter().filter(|(name, _)| name == tensor);
            given.try_for_each(|(_, buffer)| buffer.check_writable())?;
        }
        let span = |buffer: &Buffer| bind::Span { pointer: buffer.pointer(), bytes: buffer.len() };
        let tensors: Vec<_> = buffers.iter().map(|&(name, buffer)| (name, span(buffer))).collect();
        let values = bind::values(&self.launch, &tensors, symbols)?;
        let slot = |value| {
            Ok(match value {
                Value::Pointer(pointer) => Slot::Pointer(pointer),
                Value::Symbol(value) => Slot::Symbol(value),
                Value::Map(map) => Slot::Map(Box::new(encode(&map)?)),
            })
        };
        let slots = values.params.into_iter().map(slot).collect::<Result<_>>()?;
        let shape = Shape {
            grid: values.grid,
            cluster: self.launch.cluster,
            block: self.launch.block,
            shared_bytes: self.launch.shared_bytes,
            dependent: self.launch.dependent,
            cooperative: self.launch.cooperative,
        };
        let launched = Launched {
            name: self.launch.entry.clone(),
            function: self.function.clone(),
            shape,
            slots,
            _buffers: buffers.iter().map(|&(_, buffer)| buffer.clone()).collect(),
        };
        Ok(Bound(Arc::new(Used::new(stream.shared(), launched))))
    }
}

/// A kernel with all that a launch needs.
pub struct Bound(Arc<Used<Launched>>);

struct Launched {
    name: String,
    function: Function,
    shape: Shape,
    slots: Vec<Slot>,
    /// Kept, so that the pointers stay good.
    _buffers: Vec<Buffer>,
}

impl Bound {
    /// The name of its kernel.
    pub fn kernel(&self) -> &str {
        &self.0.name
    }

    /// Launches, behind all that was launched on the stream before, and does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`](crate::Error::Device).
    pub fn launch(&self) -> Result<()> {
        keep(&self.0);
        launch(self.0.stream(), &self.0.function, self.0.shape, &self.0.slots)
    }
}
