//! Weights that are computed rather than stored.
//!
//! Every element is a function of the seed, the tensor's name and the element's index, so any range of
//! any tensor can be made on its own, on any machine, by any number of threads, with the same bits.

use std::io;
use std::num::NonZero;

use bytes::Bytes;
use graphene_frontend::import::{ExternalData, ExternalDataError};

/// Bytes of one element; all zoo weights are f32.
const ELEMENT: u64 = 4;
/// Tensors start at multiples of this many bytes, so that a mapped file can be read in place.
const ALIGNMENT: u64 = 64;
/// Below this many bytes a range is filled on the calling thread alone.
const PARALLEL: usize = 1 << 20;
/// Increment of the splitmix64 sequence: the odd integer nearest to 2⁶⁴/φ (Steele et al., 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Limit on the bytes of one model's weights.
pub(crate) const LIMIT: u64 = 1 << 36;

/// The distribution of a weight's elements: near-normal, within ±3.47 standard deviations of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Init {
    /// Mean.
    pub mean: f32,
    /// Standard deviation.
    pub std: f32,
}

/// One weight: where it lies at the location, and how its elements are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    name: String,
    key: u64,
    offset: u64,
    elements: u64,
    init: Init,
}

impl Weight {
    /// Name of the initializer it belongs to.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// First byte at the location; a multiple of 64.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.elements * ELEMENT
    }

    fn value(&self, element: u64, scale: f32) -> f32 {
        // The sum of four uniform 16-bit numbers is near enough to normal, and exact until it is scaled.
        let bits = mix(self.key.wrapping_add(element.wrapping_mul(GOLDEN)));
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        (sum as i32 - 2 * 0xffff) as f32 * scale + self.init.mean
    }

    /// Fills `out` with this weight's bytes from byte `from` on, little-endian.
    fn fill(&self, from: u64, mut out: &mut [u8]) {
        // The standard deviation of the sum is 2¹⁶/√3.
        let scale = self.init.std * (1.732_050_8 / 65536.0);
        let mut element = from / ELEMENT;
        let skip = (from % ELEMENT) as usize;
        if skip != 0 {
            let bytes = self.value(element, scale).to_le_bytes();
            let taken = (bytes.len() - skip).min(out.len());
            out[..taken].copy_from_slice(&bytes[skip..skip + taken]);
            out = &mut out[taken..];
            element += 1;
        }
        let (whole, rest) = out.as_chunks_mut();
        for bytes in whole {
            *bytes = self.value(element, scale).to_le_bytes();
            element += 1;
        }
        let last = self.value(element, scale).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// All weights of a model, as the bytes of one external data location.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    seed: u64,
    location: String,
    weights: Vec<Weight>,
    length: u64,
}

impl Weights {
    pub(crate) fn new(location: String, seed: u64) -> Self {
        Self { seed, location, weights: Vec::new(), length: 0 }
    }

    /// Adds a weight of `elements` elements after the others and returns it, or `None` when that would
    /// pass the limit on a model's size.
    pub(crate) fn push(
        &mut self,
        name: String,
        path: &str,
        elements: u64,
        init: Init,
    ) -> Option<&Weight> {
        let offset = self.length.next_multiple_of(ALIGNMENT);
        let end = elements.checked_mul(ELEMENT)?.checked_add(offset)?;
        if end > LIMIT {
            return None;
        }
        self.weights.push(Weight { name, key: key(path, self.seed), offset, elements, init });
        self.length = end;
        self.weights.last()
    }

    /// The one location that the model's initializers refer to.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Bytes at the location.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Number of elements of all weights together.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(|weight| weight.elements).sum()
    }

    /// The weights in order of their offsets.
    pub fn iter(&self) -> std::slice::Iter<'_, Weight> {
        self.weights.iter()
    }

    /// Fills `out` with the location's bytes from `offset` on. Bytes between and beyond weights are zero.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        if out.len() < PARALLEL || threads == 1 {
            return self.fill_alone(offset, out);
        }
        let share = out.len().div_ceil(threads).next_multiple_of(ALIGNMENT as usize);
        std::thread::scope(|scope| {
            for (part, bytes) in out.chunks_mut(share).enumerate() {
                let start = offset.saturating_add((part * share) as u64);
                scope.spawn(move || self.fill_alone(start, bytes));
            }
        });
    }

    fn fill_alone(&self, offset: u64, out: &mut [u8]) {
        let end = offset.saturating_add(out.len() as u64);
        let mut done = 0;
        let first =
            self.weights.partition_point(|weight| weight.offset + weight.length() <= offset);
        for weight in self.weights[first..].iter().take_while(|weight| weight.offset < end) {
            let start = weight.offset.max(offset);
            let stop = (weight.offset + weight.length()).min(end);
            let (from, to) = ((start - offset) as usize, (stop - offset) as usize);
            out[done..from].fill(0);
            weight.fill(start - weight.offset, &mut out[from..to]);
            done = to;
        }
        out[done..].fill(0);
    }
}

impl ExternalData for Weights {
    /// Makes the bytes asked for; each call makes them anew, and nothing of them stays here.
    fn read(
        &self,
        location: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Bytes, ExternalDataError> {
        if location != self.location {
            let kind = io::ErrorKind::NotFound;
            return Err(ExternalDataError::Io { location: location.to_owned(), kind });
        }
        let end = length.map_or(self.length.max(offset), |length| offset.saturating_add(length));
        if end > self.length {
            let (location, size) = (location.to_owned(), self.length);
            return Err(ExternalDataError::Range { location, size, offset, end });
        }
        let mut bytes = vec![0; (end - offset) as usize];
        self.fill(offset, &mut bytes);
        Ok(Bytes::from(bytes))
    }
}

/// The key of a tensor: FNV-1a of its name, mixed with the seed.
fn key(path: &str, seed: u64) -> u64 {
    let name = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(name ^ mix(seed.wrapping_add(GOLDEN)))
}

/// The finaliser of splitmix64 (Steele et al., 2014; constants by Stafford).
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
