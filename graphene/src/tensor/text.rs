//! How tensors print: `[2,2:2,16].[2,4:1,4].fp32.GL`, strides always.

use super::{Tensor, Threads, View, ViewOp};
use crate::{Layout, convert::display, text::print::joined};

display! {
    View: |view, f| {
        if view.levels().is_empty() {
            return f.write_str("[]");
        }
        for (i, level) in view.strided().modes().iter().enumerate() {
            let dot = if i > 0 { "." } else { "" };
            let sizes = joined(level.modes().iter().map(Layout::shape), ",");
            let strides = joined(level.modes().iter().map(Layout::stride), ",");
            write!(f, "{dot}[{sizes}:{strides}]")?;
        }
        Ok(())
    };
    Tensor: |tensor, f| {
        write!(f, "{}.{}.{}", tensor.view, tensor.scalar, tensor.memory)?;
        if let Some(swizzle) = &tensor.swizzle {
            write!(f, ".S<{},{},{}>", swizzle.bits(), swizzle.base(), swizzle.shift())?;
        }
        if let Some(peer) = &tensor.peer {
            write!(f, ".peer({peer})")?;
        }
        f.write_str(if tensor.constant { ".const" } else { "" })?;
        f.write_str(if tensor.scratch { ".scratch" } else { "" })
    };
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
