//! Functions of a byte, as tables of their results.

use std::fmt;

/// The 256 results of a function of a byte, by the byte's bits.
#[derive(Clone, PartialEq)]
pub(crate) struct Table {
    reals: [f32; 256],
    bytes: Option<Bytes>,
}

/// Results that are bytes: whole numbers from 0 to 255, or from -128 to 127.
#[derive(Clone, PartialEq)]
pub(super) struct Bytes {
    /// What is added to them.
    pub(super) least: f32,
    /// Four to a word, the first one in the lowest bits.
    pub(super) words: [u32; 64],
}

impl Table {
    /// The table of these results.
    pub(crate) fn new(reals: [f32; 256]) -> Self {
        let least = if reals.iter().any(|&x| x < 0.0) { -128.0 } else { 0.0 };
        // Neither what is no number nor -0 is among these.
        let is_byte = |&x: &f32| (f32::from((x - least) as u8) + least).to_bits() == x.to_bits();
        let bytes = reals.iter().all(is_byte).then(|| {
            let byte = |at: usize| u32::from((reals[at] - least) as u8);
            let word = |word: usize| (0..4).map(|at| byte(4 * word + at) << (8 * at)).sum();
            Bytes { least, words: std::array::from_fn(word) }
        });
        Self { reals, bytes }
    }

    /// The result of a byte, which is a whole number of -128 to 255.
    #[inline(always)]
    pub(crate) fn of(&self, x: f32) -> f32 {
        self.reals[usize::from(x as i32 as u8)]
    }

    /// All results.
    pub(crate) fn reals(&self) -> &[f32; 256] {
        &self.reals
    }

    /// The results as bytes, if they are.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        self.bytes.as_ref()
    }

    /// Whether all results are whole numbers of -128 to 255.
    pub(crate) fn is_of_bytes(&self) -> bool {
        self.bytes.is_some()
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table[{}, …, {}]", self.reals[0], self.reals[255])
    }
}
