//! Attention for Hopper, fused (Graphene, Figure 14): `O = softmax(scale·Q·Kᵀ + mask)·V`, row by
//! row of Q, without the scores ever leaving the registers.
//!
//! Blocks are persistent: each takes one tile of queries of one head after the other. One warpgroup
//! produces: it copies the queries, and tiles of keys and values into the stages of two pipelines. The others consume:
//! each has 64 queries, and goes through the keys from the last tile to the first. While the tensor
//! cores compute the sum over the values of one tile, the weights of the next are made. Consumers
//! multiply in an order (ping-pong), so that one's weights are made beside another's matmuls.
//!
//! Queries, keys, values and the result have strides of their own for the batch, heads and rows;
//! elements of a row are contiguous. So a packed `[batch, row, 3, heads, dim]` is read in place.
//!
//! Levels:
//!
//! - kernel: O, of Q, K, V and the mask
//!   - load by a thread: a tile of queries, or a stage of keys or values, by the producer
//!   - tile by a warpgroup: 64 rows of O, of as many queries and of all keys and values of their head, by a consumer
//!     - stage by a warpgroup: scores, of queries and a stage of keys; or adds weights by a stage of values to the sums
//!     - registers by a warpgroup: weights of scores, with the largest ones and the weights' sums so far; and their rounding
//!     - epilogue by a warpgroup: the sums, finished, leave as rows of O
//!   - tile by a block: before Hopper, as many rows of O as all warps of a block have
//!     - load by a block: a tile of queries, or a stage of keys or values; queries to registers, weights to shared memory
//!     - stage by a block: scores, of queries and a stage of keys; or adds weights by a stage of values to the sums
//!     - registers by a block: weights of scores, with the largest ones and the weights' sums so far; and their rounding
//!     - epilogue by a block: the sums, finished, leave as rows of O
//!
//! Scale, cap and masks are instructions under the tile, or beside the producer where they are the same for all queries.

mod ampere;
mod consumer;
mod context;
mod decode;
mod operands;
mod producer;
mod scores;

use self::context::Context;
use self::operands::Given;
use super::fragments::{BARRIERS, GROUP, PRODUCER_REGISTERS, Panels, ROWS};
use super::tiled_mma;
use crate::schedule::{Spread, Units, round};
use crate::{
    Arch, AtLeast, Builder, Feature, Kernel, MultipleOf, Number, Result, Scalar, TensorId, WARP,
    Within, choose::ceil, error::AtMost, needs,
};

parameters! {
    /// The parameters of attention.
    pub struct Fmha {
        /// The type of queries, keys, values and the result: fp16 or bf16, or, but for Hopper's tensor
        /// cores, fp32. Scores, weights and sums are of single precision; weights are rounded to
        /// this type for their matmul with the values, or to TF32.
        pub scalar: Scalar = Scalar::F16,
        /// Whether matmuls of single precision are of TF32, rather than IEEE's.
        pub tf32: bool = false,
        /// What the kernel by warps is written for; it runs on newer ones, too.
        pub arch: Arch = Arch::Sm80,
        /// Elements of a query and of a key: two vectors of 16 bytes or more, at most 256. Tiles have zeros
        /// up to the next multiple of 16.
        pub head_dim: i64 = 64,
        /// Elements of a value: likewise.
        pub value_dim: i64 = 64,
        /// Consumer warpgroups, 1 to 3, with 64 queries each.
        pub consumers: i64 = 2,
        /// Keys of a tile: a multiple of 16, at most 256.
        pub keys: i64 = 128,
        /// Pipeline stages of keys, and of values.
        pub stages: i64 = 2,
        /// Queries of a tile of the kernel for few queries, 1 to 4.
        pub few: i64 = 1,
        /// Blocks of a cluster that share a head's keys in that kernel, 1 to 8.
        pub parts: i64 = 1,
        /// Multiplies the scores.
        pub scale: Number = Number(0.125),
        /// Scores become `softcap·tanh(score/softcap)`, before the mask.
        pub softcap: Option<Number> = None,
        /// What is added to the scores.
        pub mask: Mask = Mask::None,
        /// What the score of a key becomes that a mask of type `u8` forbids: -∞, or a finite number, so that a row all of whose
        /// keys are forbidden has the same weight for each of them. Keys beyond the last, and those that come after the query if
        /// it is `causal`, have a weight of 0 always. What a forbidden key's score was makes no difference where it is finite.
        pub fill: Number = Number(f64::NEG_INFINITY),
        /// Query i attends keys 0 to i only.
        pub causal: bool = false,
        /// Whether a row that may attend nowhere, or has a score that is no number, gives zeros rather
        /// than NaN. A NaN among the values becomes zero as well.
        pub guarded: bool = false,
    }
}

/// What is added to the scores. Of type `u8`, it says which keys may be attended: 0 forbids one, which adds -∞, or
/// makes its score [`Fmha::fill`]; otherwise it is added as it is, from the type of the queries or from `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Nothing.
    None,
    /// `[batch, keys]`, keys contiguous, the batch with the stride `mask_batch`, which may be 0.
    PerKey(Scalar),
    /// `[batch, heads, queries, keys]`, keys contiguous, the others with the strides `mask_batch`,
    /// `mask_head` and `mask_row`, each of which may be 0.
    Dense(Scalar),
}

/// Stages of keys, and of values, before Hopper.
const STAGES: i64 = 2;

impl Fmha {
    /// Queries of a tile.
    pub fn rows(&self) -> i64 {
        ROWS * self.consumers
    }

    /// The kernel, with the symbols batch, heads, kv_heads (which divides heads), queries, keys (at least 1), the number of
    /// blocks, and strides in elements: `q_batch`, `q_head`, `q_row`, likewise of k, v and o, and those of the mask.
    pub fn kernel(&self) -> Result<Kernel> {
        self.check()?;
        needs(self.scalar.bytes() == 2, "fp16 or bf16 operands", self.scalar)?;
        let mut k = Builder::new("fmha", Arch::Sm90a);
        let given = Given::new(&mut k, self, GROUP * (self.consumers + 1))?;
        let context = Context::new(&mut k, &given)?;
        k.role(context.groups, 0..self.consumers, |k| consumer::consume(&context, k))?;
        k.role(context.groups, self.consumers..self.consumers + 1, |k| context.produce(k))?;
        k.finish_as(given.header())
    }

    /// Bytes of shared memory that a block of that kernel uses, with what pipelines need beside their tiles.
    pub fn bytes(&self) -> u64 {
        let keys = self.stages * self.keys;
        let elements = (self.rows() + keys) * (self.head_width() + self.value_width());
        (elements * self.scalar.bytes() + keys * 4 + BARRIERS).unsigned_abs()
    }

    /// The kernel by warps, for any architecture, with the symbols of [`kernel`](Fmha::kernel): each of
    /// `consumers` four warps. It always has two stages, and needs no tensor map.
    pub fn ampere(&self) -> Result<Kernel> {
        self.check()?;
        ampere::kernel(self)
    }

    /// The kernel for few queries that attend all keys, by threads, for any architecture, with the symbols of
    /// [`kernel`](Fmha::kernel) but the number of blocks: each of `consumers` four warps.
    pub fn decode(&self) -> Result<Kernel> {
        self.check()?;
        needs(!self.causal, "queries that attend all keys", self.causal)?;
        needs(!self.tf32, "matmuls of single precision as IEEE has it", self.tf32)?;
        Within(1, 4).check("queries a tile", self.few)?;
        Within(1, 8).check("blocks that share keys", self.parts)?;
        AtMost(WARP).check("lanes that share a key", self.lanes_of_key())?;
        Within(1, 16).check("keys a lane", self.keys_of_lane())?;
        if self.parts > 1 {
            self.arch.needs(&[Feature::Cluster])?;
        }
        decode::kernel(self)
    }

    /// With so many keys a tile that each lane asks for eight vectors at once; for four where a tile has more than two queries,
    /// whose sums need registers as well. A tile has at least 16 keys.
    #[must_use]
    pub fn ahead(self) -> Fmha {
        let each = if self.few > 2 { 4 } else { 8 };
        Fmha { keys: (each * WARP / self.lanes_of_key()).max(16), ..self }
    }

    /// What the kernel by warps needs of an architecture.
    pub fn ampere_features(&self) -> &'static [Feature] {
        tiled_mma::features(self.arch, self.scalar, self.tf32)
    }

    /// Bytes of shared memory that a block of the kernel by warps uses.
    pub fn ampere_bytes(&self) -> u64 {
        let (keys, head, value) = (self.keys, self.head_width(), self.value_width());
        let weights =
            if self.is_by_threads() || self.is_by_quad_pairs() { self.rows() * keys } else { 0 };
        let elements = self.rows() * head + STAGES * keys * (head + value) + weights;
        (elements * self.scalar.bytes()).unsigned_abs()
    }

    /// Whether threads multiply, in the kernel by warps.
    fn is_by_threads(&self) -> bool {
        self.scalar == Scalar::F32 && !self.tf32
    }

    /// How rows of queries are spread over lanes. Threads that multiply read all operands from shared memory: of 64 keys and values of
    /// 64 elements a lane with four rows makes 12 reads where one with two makes 18. Eight lanes read four columns of a value each, so
    /// that its width has to be a multiple of 32.
    pub fn spread(&self) -> Spread {
        let fours = self.value_width() % (4 * Spread::FourRows.lanes()) == 0;
        if self.is_by_threads() && fours { Spread::FourRows } else { Spread::TwoRows }
    }

    /// The pairs of a tile's keys that a lane has of each row, and those of a value's elements.
    fn pairs(&self) -> [i64; 2] {
        [self.keys, self.value_width()].map(|columns| columns / self.spread().columns())
    }

    /// Whether quad pairs multiply, in the kernel by warps.
    fn is_by_quad_pairs(&self) -> bool {
        self.scalar == Scalar::F16 && self.arch.multiplies_by_quad_pairs()
    }

    fn check(&self) -> Result {
        let float = [Scalar::F16, Scalar::Bf16, Scalar::F32].contains(&self.scalar);
        needs(float, "fp16, bf16 or fp32 operands", self.scalar)?;
        needs(!self.tf32 || self.scalar == Scalar::F32, "fp32 operands for TF32", self.scalar)?;
        let unit = 16 / self.scalar.bytes();
        let fits = |size: i64| size % unit == 0 && (2 * unit..=256).contains(&size);
        let dims = [self.head_dim, self.value_dim];
        let what = "heads of 32 bytes or more, in a multiple of 16, and at most 256 elements";
        needs(dims.into_iter().all(fits), what, dims)?;
        MultipleOf(16).check("keys a tile", self.keys)?;
        AtMost(256).check("keys a tile", self.keys)?;
        AtLeast(1).check("stages", self.stages)?;
        Within(1, 3).check("consumers", self.consumers)?;
        needs(self.scale.0.is_finite(), "a finite scale", self.scale)?;
        let positive = |cap: Number| cap.0.is_finite() && cap.0 > 0.0;
        needs(self.softcap.is_none_or(positive), "a positive cap", self.softcap)?;
        let numbers = f64::from(f32::MIN)..=f64::from(f32::MAX);
        let fill = self.fill.0 == f64::NEG_INFINITY || numbers.contains(&self.fill.0);
        needs(fill, "a fill that is -∞ or a number of fp32", self.fill)?;
        let (Mask::PerKey(of) | Mask::Dense(of)) = self.mask else { return Ok(()) };
        let known = [Scalar::F32, Scalar::U8, self.scalar].contains(&of);
        needs(known, "a mask of fp32, u8 or the queries' type", of)
    }

    /// What scores count in when weights are made of them.
    fn units(&self) -> Units {
        match self.mask {
            Mask::None if self.softcap.is_none() && self.scale.0 > 0.0 => {
                Units::Binary(self.scale.0 * std::f64::consts::LOG2_E)
            }
            // A multiplication for each score either way, and no number that there is not in powers.
            Mask::Dense(scalar) if scalar != Scalar::U8 => Units::Natural,
            Mask::None | Mask::PerKey(_) | Mask::Dense(_) => Units::Powers,
        }
    }

    /// Whether the scores of forbidden keys become a finite number.
    fn fills(&self) -> bool {
        let selects = matches!(self.mask, Mask::PerKey(Scalar::U8) | Mask::Dense(Scalar::U8));
        selects && self.fill.0.is_finite()
    }

    /// Whether scores may be added to what fills them rather than become it: less than half of its last place, they are lost in
    /// the sum. Scores of finite queries and keys are: sums of at most 256 products of numbers below 2¹⁶.
    fn sinks(&self) -> bool {
        let small = self.scalar == Scalar::F16 && self.scale.0.abs() <= 1e6;
        self.fills() && small && matches!(self.mask, Mask::PerKey(_)) && self.fill.0 <= -1e30
    }

    /// What fills scores, in their units: it stays finite, whatever they count in.
    fn filling(&self) -> f64 {
        let unit = if self.units() == Units::Natural { 1.0 } else { std::f64::consts::LOG2_E };
        (self.fill.0 * unit).clamp(f32::MIN.into(), f32::MAX.into())
    }

    /// How tiles of queries (0), keys (1) and values (2) lie in shared memory, and a consumer's of the result (3).
    fn panels(&self, which: usize) -> Panels {
        let rows = [self.rows(), self.keys, self.keys, ROWS][which];
        let columns = if which < 2 { self.head_width() } else { self.value_width() };
        Panels { rows, columns, scalar: self.scalar }
    }

    /// Weights become the left operand of their matmul with the values: fragments of accumulators are fragments of operands.
    fn pack(&self, k: &mut Builder, from: TensorId, to: TensorId) -> Result {
        k.unroll_both([("j", self.keys / 8), ("half", 2)], |k, [j, half]| {
            let [to, from] = [k.index(to, "to", [half, j])?, k.index(from, "from", [half, j])?];
            round(k, to, from)
        })
    }

    /// The columns of tiles of queries and keys, and of values: as many as there are whole instructions for.
    fn head_width(&self) -> i64 {
        ceil(self.head_dim, 16) * 16
    }

    fn value_width(&self) -> i64 {
        ceil(self.value_dim, 16) * 16
    }
}
