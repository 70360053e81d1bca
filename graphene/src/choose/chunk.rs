//! Whether a copy can move 16 bytes at a time (Mirage, "Chunked Copy").

use crate::layout::Layout;

/// Bytes that one instruction moves at most.
pub const CHUNK: i64 = 16;

/// The mode along which elements of `bytes` bytes are copied 16 bytes at a time between two layouts of
/// one shape; `None` where they cannot be.
///
/// That is the innermost mode of both: the one longer than 1 with a stride of 1. Its size and every
/// other stride must be multiples of a chunk, so that chunks start at multiples of 16 bytes and none
/// reaches beyond its row. Modes are those of the outermost level, and each has one stride.
pub fn chunk(from: &Layout, to: &Layout, bytes: i64) -> Option<usize> {
    let elements = CHUNK / bytes.clamp(1, CHUNK);
    let (from, to) = (modes(from)?, modes(to)?);
    let innermost =
        |modes: &[(i64, i64)]| modes.iter().position(|&(size, stride)| size > 1 && stride == 1);
    let along = innermost(&from)?;
    let whole = |modes: &[(i64, i64)]| {
        modes.iter().enumerate().all(|(i, &(size, stride))| {
            if i == along { size % elements == 0 } else { size == 1 || stride % elements == 0 }
        })
    };
    let sizes = |modes: &[(i64, i64)]| modes.iter().map(|mode| mode.0).collect::<Vec<_>>();
    let alike = innermost(&to) == Some(along) && sizes(&from) == sizes(&to);
    (alike && whole(&from) && whole(&to)).then_some(along)
}

fn modes(layout: &Layout) -> Option<Vec<(i64, i64)>> {
    let modes = if layout.is_leaf() { std::slice::from_ref(layout) } else { layout.modes() };
    modes.iter().map(|mode| mode.is_leaf().then(|| mode.leaves()[0])).collect()
}
