//! How tensors print: `[2,2:2,16].[2,4:1,4].fp32.GL`, strides always.

use std::fmt;

use super::{Coord, Dim, Tensor, Threads, Tile, View, ViewOp};
use crate::index::Expr;

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.levels().is_empty() {
            return f.write_str("[]");
        }
        for (i, level) in self.levels().iter().enumerate() {
            let dims = |pick: &dyn Fn(&super::Leaf) -> Expr| {
                level.iter().map(|dim| tree(dim, pick)).collect::<Vec<_>>().join(",")
            };
            let dot = if i > 0 { "." } else { "" };
            let sizes = dims(&|leaf| leaf.size.clone());
            write!(f, "{dot}[{sizes}:{}]", dims(&|leaf| self.stride(leaf)))?;
        }
        Ok(())
    }
}

fn tree(dim: &Dim, pick: &dyn Fn(&super::Leaf) -> Expr) -> String {
    match dim {
        Dim::Leaf(leaf) => pick(leaf).to_string(),
        Dim::Tuple(dims) => {
            let parts: Vec<_> = dims.iter().map(|dim| tree(dim, pick)).collect();
            format!("({})", parts.join(","))
        }
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
        if self.constant { f.write_str(".const") } else { Ok(()) }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.view, self.agent)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tile::Whole => f.write_str("_"),
            Tile::Modes(modes) => match modes[..] {
                [(size, 1)] => write!(f, "{size}"),
                _ => f.write_str(&modes_text(modes)),
            },
        }
    }
}

/// `2:1` for one mode, `(2,2):(1,4)` for several.
fn modes_text(modes: &[(i64, i64)]) -> String {
    let list = |pick: fn(&(i64, i64)) -> i64| {
        modes.iter().map(|mode| pick(mode).to_string()).collect::<Vec<_>>().join(",")
    };
    match modes {
        [(size, stride)] => format!("{size}:{stride}"),
        _ => format!("({}):({})", list(|mode| mode.0), list(|mode| mode.1)),
    }
}

impl fmt::Display for Coord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Coord::At(at) => at.fmt(f),
            Coord::Tuple(coords) => write!(f, "({})", comma(coords)),
        }
    }
}

/// As it follows the name of what it is applied to.
impl fmt::Display for ViewOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewOp::Tile(tiles) => write!(f, ".tile({})", comma(tiles)),
            ViewOp::Index(coords) => write!(f, "[{}]", comma(coords)),
            ViewOp::Reshape(depth, dims) => {
                let dims: Vec<_> = dims.iter().map(|modes| modes_text(modes)).collect();
                write!(f, ".reshape({depth}, {})", dims.join(", "))
            }
            ViewOp::Scalar => f.write_str(".scalar()"),
            ViewOp::Peer(block) => write!(f, ".peer({block})"),
        }
    }
}

fn comma<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
