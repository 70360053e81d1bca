//! Copies by single threads from global to shared memory: asynchronous ones, in groups; on architectures without them loads
//! and stores, which are done at once.

use super::pointwise::{each, vector};
use crate::{Builder, Feature, Group, Header, Kind, Operand, Result, TensorId, Test};

fn is_asynchronous(k: &Builder) -> bool {
    k.arch().has(Feature::CpAsync)
}

/// What consists of such copies.
pub fn copying(k: &Builder, header: Header) -> Header {
    if is_asynchronous(k) { header.async_() } else { header }
}

/// Begins to copy neighbours, all or none of which lie within: zeros where there is nothing.
pub fn begin_copy(k: &mut Builder, to: TensorId, from: TensorId) -> Result {
    if is_asynchronous(k) {
        return k.add(Header::alone(Kind::Move, to, from).async_());
    }
    let of = k.tensor_of(from)?;
    let (n, scalar) = (of.view.size().constant().unwrap_or(1), of.scalar);
    let words = vector(k, "words", n, scalar)?;
    each(k, n, |k, i| k.init(Operand::at(words, [i]), 0.0))?;
    k.if_(Test::Inside(from.into()), |k| k.move_(words, from))?;
    k.move_(to, words)
}

/// All copies since the group before are one.
pub fn commit_copies(k: &mut Builder) -> Result {
    if is_asynchronous(k) { k.alone(Kind::Commit(Group::Copy), (), ()) } else { Ok(()) }
}

/// Waits for all groups of copies but the so many youngest.
pub fn wait_for_copies(k: &mut Builder, youngest: i64) -> Result {
    let wait = Kind::WaitGroup(Group::Copy, youngest, false);
    if is_asynchronous(k) { k.alone(wait, (), ()) } else { Ok(()) }
}
