//! Memory that a thread keeps between runs: a kernel takes what it needs and gives it back, so that only the first run
//! of some sizes asks the system for any.
//!
//! What the parts of a section work in is taken before the section by the thread that leads it, for all of them: which
//! thread runs which part is a matter of timing, what a run takes is not.

use crate::error::{Error, Result};
use bytemuck::{AnyBitPattern, NoUninit, Zeroable};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Values that are few: more than eight need memory of their own.
pub(crate) type Few<T> = SmallVec<[T; 8]>;

/// Elements where they lie, or beside.
pub(crate) enum Numbers<'a, T> {
    Lent(&'a [T]),
    Own(Buffer<T>),
}

impl<T: AnyBitPattern + NoUninit> Deref for Numbers<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Lent(elements) => elements,
            Self::Own(elements) => elements,
        }
    }
}

/// A cache line, to which memory is aligned.
#[derive(Clone, Copy, Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// Memory that nobody uses, in no order.
    static FREE: RefCell<Vec<Vec<Line>>> = RefCell::new(Vec::with_capacity(32));
}

/// So many elements, whatever they were last. They go back to the thread when this is dropped.
pub(crate) struct Buffer<T> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

/// Elements with any values, on a boundary of cache lines.
///
/// # Errors
/// [`Error::Memory`] if the system does not give them.
pub(crate) fn take<T: AnyBitPattern + NoUninit>(len: usize) -> Result<Buffer<T>> {
    const { assert!(align_of::<T>() <= align_of::<Line>()) }
    let bytes = len.saturating_mul(size_of::<T>());
    let count = bytes.div_ceil(size_of::<Line>());
    let kept = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        // The smallest that is large enough, else the largest.
        let key = |lines: &Vec<Line>| (lines.len() < count, lines.len().abs_diff(count));
        let best = (0..free.len()).min_by_key(|&i| key(&free[i]));
        best.map(|best| free.swap_remove(best))
    });
    let mut lines = kept.ok().flatten().unwrap_or_default();
    if lines.len() < count {
        drop(lines);
        let made = bytemuck::allocation::try_zeroed_vec(count);
        lines = made.map_err(|()| Error::Memory { bytes })?;
    }
    Ok(Buffer { lines, len, of: PhantomData })
}

/// Elements that are all zero.
///
/// # Errors
/// As for [`take`].
pub(crate) fn zeros<T: AnyBitPattern + NoUninit>(len: usize) -> Result<Buffer<T>> {
    let mut buffer = take(len)?;
    buffer.fill(T::zeroed());
    Ok(buffer)
}

impl<T: AnyBitPattern + NoUninit> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let used = (self.len * size_of::<T>()).div_ceil(size_of::<Line>());
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines[..used]);
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: AnyBitPattern + NoUninit> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that ends keeps nothing.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

/// Memory of a kind of its own that a thread keeps.
pub(crate) trait Kept: Default + 'static {
    /// Those that nobody uses, as many together as were asked for.
    fn free() -> &'static LocalKey<RefCell<Vec<Vec<Self>>>>;
}

/// So many values, whatever they were last. They go back to the thread when this is dropped.
pub(crate) struct Slots<S: Kept>(Vec<S>);

/// So many values that were used before, or are new. Each kind says what it must be made to fit.
pub(crate) fn slots<S: Kept>(count: usize) -> Slots<S> {
    let kept = S::free().try_with(|free| free.borrow_mut().pop());
    let mut values = kept.ok().flatten().unwrap_or_default();
    if values.len() < count {
        values.resize_with(count, S::default);
    }
    Slots(values)
}

impl<S: Kept> Deref for Slots<S> {
    type Target = [S];

    fn deref(&self) -> &[S] {
        &self.0
    }
}

impl<S: Kept> DerefMut for Slots<S> {
    fn deref_mut(&mut self) -> &mut [S] {
        &mut self.0
    }
}

impl<S: Kept> Drop for Slots<S> {
    fn drop(&mut self) {
        let values = std::mem::take(&mut self.0);
        let _ = S::free().try_with(|free| free.borrow_mut().push(values));
    }
}

/// So many elements of a vector that grows, whatever they were last.
pub(crate) fn sized<T: Clone + Zeroable>(vector: &mut Vec<T>, len: usize) -> &mut [T] {
    if vector.len() < len {
        vector.resize(len, T::zeroed());
    }
    &mut vector[..len]
}

/// Lets a thread keep values of a type.
macro_rules! kept {
    ($($type:ty),*) => {$(
        impl $crate::cpu::scratch::Kept for $type {
            fn free() -> &'static std::thread::LocalKey<std::cell::RefCell<Vec<Vec<Self>>>> {
                thread_local! {
                    static FREE: std::cell::RefCell<Vec<Vec<$type>>> =
                        const { std::cell::RefCell::new(Vec::new()) };
                }
                &FREE
            }
        }
    )*};
}
pub(crate) use kept;
