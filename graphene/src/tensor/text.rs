//! How tensors print: `[2,2:2,16].[2,4:1,4].fp32.GL`, strides always.

use std::fmt;

use super::{Tensor, Threads, View, ViewOp};
use crate::{Layout, convert::display, text::print::joined};

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.levels().is_empty() {
            return f.write_str("[]");
        }
        for (i, level) in self.strided().modes().iter().enumerate() {
            let dot = if i > 0 { "." } else { "" };
            let sizes = joined(level.modes().iter().map(Layout::shape), ",");
            let strides = joined(level.modes().iter().map(Layout::stride), ",");
            write!(f, "{dot}[{sizes}:{strides}]")?;
        }
        Ok(())
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.view, self.scalar, self.memory)?;
        if let Some(swizzle) = &self.swizzle {
            write!(f, ".S<{},{},{}>", swizzle.bits(), swizzle.base(), swizzle.shift())?;
        }
        if let Some(peer) = &self.peer {
            write!(f, ".peer({peer})")?;
        }
        f.write_str(if self.constant { ".const" } else { "" })?;
        f.write_str(if self.scratch { ".scratch" } else { "" })
    }
}

display! {
    Threads: |threads, f| write!(f, "{}.{}", threads.view, threads.agent);
    // As it follows the name of what it is applied to.
    ViewOp: |op, f| match op {
        ViewOp::Tile(tiles) => write!(f, ".tile({})", joined(tiles, ", ")),
        ViewOp::Index(coords) => write!(f, "[{}]", joined(coords, ", ")),
        ViewOp::Reshape(depth, dims) => write!(f, ".reshape({depth}, {})", joined(dims, ", ")),
        ViewOp::Scalar => f.write_str(".scalar()"),
        ViewOp::Peer(block) => write!(f, ".peer({block})"),
    };
}
