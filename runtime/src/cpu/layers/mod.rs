//! Matmuls with what follows them, as one launch.
//!
//! A [`Layer`] is one or more matrix products over one shape and the pointwise operations on them, its epilogue;
//! later layers may multiply what earlier ones made, which makes a chain of layers an MLP. A layer runs tile by
//! tile: a thread computes the matmuls of a tile, in the output's memory where it can, and runs the epilogue's
//! loop over it while it is in cache. Where weights were prepacked and the epilogue adds a bias or a residual and applies a
//! function, the matmul's kernel does that itself. The tiles of an MLP are rows, which one thread takes through all layers, so
//! that what lies between two layers never leaves its cache. Floats of 16 bits are multiplied in f32, but for prepacked
//! weights of bf16, by which what is multiplied may be rounded to bf16; matmuls are rounded once, and whatever follows
//! is rounded after each operation as if stored.

mod bind;
mod compile;
mod conv;
mod integers;
mod run;

pub(crate) use bind::BoundLayers;
pub(crate) use conv::{ConvLayer, ConvRead, Filters, channels_last};
pub(crate) use integers::{IntegerLayer, Zero};
pub(crate) use run::{loop_output, run_layers};

use super::loops::{Loop, Sum};
use super::prepacked::PackedWeight;
use graphene_frontend::dtype::DType;

/// Matmuls and their epilogues, one layer after the other.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Layers {
    /// The element type of all matmuls.
    dtype: DType,
    layers: Vec<Layer>,
    /// For each value that an earlier layer keeps for later ones, the number of that layer.
    kept: Vec<usize>,
}

/// Matmuls over one shape and a loop over that shape.
#[derive(Clone, PartialEq, Debug)]
struct Layer {
    matmuls: Vec<MatMul>,
    epilogue: Loop,
    /// What the epilogue reads.
    reads: Vec<Read>,
    /// What the epilogue writes.
    writes: Vec<Write>,
    /// The epilogue as what the kernel of the only matmul can do itself, if it is that.
    sum: Option<Sum>,
}

#[derive(Clone, PartialEq, Debug)]
struct MatMul {
    a: Left,
    /// The step's input of this number.
    b: usize,
    /// The same, where it was prepacked.
    prepacked: Option<PackedWeight>,
    /// The number of the write in whose memory the matmul is computed, if it is not beside it.
    place: Option<usize>,
}

/// A left operand.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Left {
    /// The step's input of this number.
    Input(usize),
    /// The kept value of this number.
    Kept(usize),
}

/// What an epilogue reads.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Read {
    /// The step's input of this number.
    Input(usize),
    /// The layer's matmul of this number.
    MatMul(usize),
    /// The kept value of this number.
    Kept(usize),
}

/// What an epilogue writes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Write {
    /// The step's output of this number.
    Output(usize),
    /// The kept value of this number.
    Kept(usize),
}

impl Layers {
    /// The name in profiles.
    pub(crate) fn name(&self) -> &'static str {
        let mut matmuls = self.layers.iter().flat_map(|layer| &layer.matmuls);
        let bf16 = matmuls.any(|matmul| matches!(matmul.prepacked, Some(PackedWeight::Bf16(_))));
        match (&self.layers[..], bf16) {
            ([layer], false) if layer.is_single() => "gemm",
            ([layer], true) if layer.is_single() => "bf16-gemm",
            ([_], false) => "gemm+epilogue",
            ([_], true) => "bf16-gemm+epilogue",
            (_, false) => "mlp",
            (_, true) => "bf16-mlp",
        }
    }

    /// How its weights are multiplied by, for profiles, if any were prepacked.
    pub(crate) fn algorithm(&self) -> Option<&'static str> {
        let mut matmuls = self.layers.iter().flat_map(|layer| &layer.matmuls);
        matmuls.find_map(|matmul| matmul.prepacked.as_ref()?.algorithm())
    }

    /// Whether the step's input of this number is read as it lies.
    pub(crate) fn reads(&self, input: usize) -> bool {
        self.layers.iter().any(|layer| {
            let reads = |matmul: &MatMul| {
                matmul.a == Left::Input(input) || matmul.b == input && matmul.prepacked.is_none()
            };
            layer.matmuls.iter().any(reads) || layer.reads.contains(&Read::Input(input))
        })
    }
}

impl Layer {
    /// Whether it is one matmul and nothing else.
    fn is_single(&self) -> bool {
        self.matmuls.len() == 1 && self.epilogue.len() == 0
    }

    /// Whether it is one matmul, computed where it is wanted, and nothing else.
    fn is_matmul(&self) -> bool {
        let [matmul] = &self.matmuls[..] else { return false };
        matmul.place.is_some() && self.writes.len() == 1 && self.epilogue.len() == 0
    }
}
