//! What a kernel needs of its host: emission's second result, beside the source.
//!
//! The description is plain data. A runtime encodes tensor maps and launches from it, and knows no kernel by name.

use crate::{Arch, Expr, Scalar, Var, convert::display, text::print::list};

/// How to launch a kernel. Expressions are over [`symbols`](Launch::symbols).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The name of the `extern "C"` function.
    pub entry: String,
    /// What to compile for.
    pub arch: Arch,
    /// The integers that the caller chooses.
    pub symbols: Vec<Var>,
    /// The kernel's parameters, in order.
    pub params: Vec<Param>,
    /// The number of blocks.
    pub grid: Expr,
    /// Blocks of a cluster; 1 where there are none.
    pub cluster: u32,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Whether the kernel waits for its predecessor itself (programmatic dependent launch).
    pub dependent: bool,
    /// Whether all blocks must be resident together, because they wait for each other (a cooperative launch).
    pub cooperative: bool,
    /// What must hold of the symbols and pointers; otherwise the kernel may not be launched.
    pub conditions: Vec<Condition>,
}

/// One parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param {
    /// A pointer to a tensor in global memory, which spans so many elements; and whether the kernel writes to it.
    #[allow(missing_docs)] // Of fields, which the line above names.
    Pointer { tensor: String, scalar: Scalar, len: Expr, written: bool },
    /// The value of a symbol, as a 32-bit integer.
    Symbol(Var),
    /// A tensor map (`CUtensorMap`), passed by value as a `__grid_constant__`.
    TensorMap(TensorMap),
}

/// A tensor map to encode (`cuTensorMapEncodeTiled`): axes from the fastest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMap {
    /// The tensor whose pointer it holds.
    pub tensor: String,
    /// The type of its elements.
    pub scalar: Scalar,
    /// The axes' sizes.
    pub sizes: Vec<Expr>,
    /// The distances along each axis but the first, whose stride is 1, in bytes.
    pub strides: Vec<Expr>,
    /// The sizes of the box that one instruction copies.
    pub window: Vec<u32>,
    /// The bytes of the swizzle: 0 for none, 32, 64 or 128.
    pub swizzle: u32,
}

/// What must hold for a launch, and is said where it does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Condition {
    /// The pointer of this tensor is a multiple of so many bytes.
    #[error("requires the pointer of %{0} to be a multiple of {1}")]
    Aligned(String, i64),
    /// The expression is a multiple of the number.
    #[error("requires {0} to be a multiple of {1}")]
    Multiple(Expr, i64),
}

display! {
    // A line each, parameters in order.
    Launch: |launch, f| {
        let Launch { entry, arch, grid, cluster, block, shared_bytes, .. } = launch;
        writeln!(f, "{entry} for {arch}")?;
        writeln!(f, "grid {grid}, cluster {cluster}, block {block}, shared {shared_bytes}")?;
        for param in &launch.params {
            writeln!(f, "{param}")?;
        }
        for condition in &launch.conditions {
            writeln!(f, "{condition}")?;
        }
        if launch.dependent {
            writeln!(f, "waits for its predecessor itself")?;
        }
        if launch.cooperative { writeln!(f, "all blocks are resident together") } else { Ok(()) }
    };
    Param: |param, f| match param {
        Param::Pointer { tensor, scalar, len, written } => {
            let access = if *written { "written" } else { "read" };
            write!(f, "pointer %{tensor}: {len} of {scalar}, {access}")
        }
        Param::Symbol(var) => write!(f, "symbol {var}"),
        Param::TensorMap(map) => {
            let TensorMap { tensor, scalar, sizes, strides, window, swizzle } = map;
            let (sizes, strides) = (list(sizes), list(strides));
            write!(
                f,
                "map of %{tensor}: [{sizes}] of {scalar}, [{strides}] bytes apart, \
                 window {window:?}, swizzle {swizzle}"
            )
        }
    };
}
