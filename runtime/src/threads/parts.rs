//! What threads take apart by number: parts of slices that do not overlap, and memory of one thread at a time.

#![allow(unsafe_code)]

use smallvec::{Array, SmallVec};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something in so many parts, each of which may be handed to another thread.
///
/// # Safety
/// Parts of different numbers must not share anything that one of them can change.
pub(crate) unsafe trait Parts: Sync {
    /// A part.
    type Part;

    /// How many there are.
    fn len(&self) -> usize;

    /// A part.
    ///
    /// # Safety
    /// The number is below [`len`](Self::len), and while a part is in use its number is not given again.
    unsafe fn part(&self, number: usize) -> Self::Part;
}

/// Parts that threads share, each taken at most once by them all.
pub(super) struct Shared<P>(P);

impl<P: Parts> Shared<P> {
    pub(super) fn new(parts: P) -> Self {
        Self(parts)
    }

    /// A part. Only `each` and its like call this, and with each number once.
    pub(super) fn take(&self, number: usize) -> P::Part {
        assert!(number < self.0.len(), "there is such a part");
        // SAFETY: the number is one of a part, and sections run each of their parts once.
        unsafe { self.0.part(number) }
    }
}

/// A slice in chunks of so many elements, the last one perhaps of fewer.
pub(crate) struct Chunks<'a, T> {
    data: &'a [T],
    size: usize,
}

/// The same, to write.
pub(crate) struct ChunksMut<'a, T> {
    start: *mut T,
    elements: usize,
    size: usize,
    count: usize,
    life: PhantomData<&'a mut [T]>,
}

/// The elements of a slice, to write.
pub(crate) struct ItemsMut<'a, T>(ChunksMut<'a, T>);

/// A slice in chunks of `size` elements, the last one perhaps of fewer; none of chunks without elements.
pub(crate) fn chunks<T>(data: &[T], size: usize) -> Chunks<'_, T> {
    Chunks { data, size }
}

/// As [`chunks`], to write.
pub(crate) fn chunks_mut<T>(data: &mut [T], size: usize) -> ChunksMut<'_, T> {
    let count = data.len().checked_div(size).map_or(0, |_| data.len().div_ceil(size));
    so_many_mut(data, size, count)
}

/// So many chunks of `size` elements; the last ones may have fewer, or none.
pub(crate) fn so_many_mut<T>(data: &mut [T], size: usize, count: usize) -> ChunksMut<'_, T> {
    ChunksMut { start: data.as_mut_ptr(), elements: data.len(), size, count, life: PhantomData }
}

/// The elements of a slice, to write.
pub(crate) fn items_mut<T>(data: &mut [T]) -> ItemsMut<'_, T> {
    ItemsMut(chunks_mut(data, 1))
}

// SAFETY: chunks are mutable borrows of their elements, as slices are.
unsafe impl<T: Send> Send for ChunksMut<'_, T> {}
// SAFETY: sharing them gives nothing but parts that do not overlap, each to one thread.
unsafe impl<T: Send> Sync for ChunksMut<'_, T> {}

// SAFETY: nothing is written.
unsafe impl<'a, T: Sync> Parts for Chunks<'a, T> {
    type Part = &'a [T];

    fn len(&self) -> usize {
        if self.size == 0 { 0 } else { self.data.len().div_ceil(self.size) }
    }

    unsafe fn part(&self, number: usize) -> &'a [T] {
        let start = number * self.size;
        &self.data[start..self.data.len().min(start + self.size)]
    }
}

// SAFETY: chunks of different numbers do not overlap.
unsafe impl<'a, T: Send> Parts for ChunksMut<'a, T> {
    type Part = &'a mut [T];

    fn len(&self) -> usize {
        self.count
    }

    unsafe fn part(&self, number: usize) -> &'a mut [T] {
        let start = self.elements.min(number * self.size);
        let len = self.size.min(self.elements - start);
        // SAFETY: the chunk lies in the slice that `chunks_mut` borrowed, and the caller has no other with its elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

// SAFETY: elements of different numbers are different ones.
unsafe impl<'a, T: Send> Parts for ItemsMut<'a, T> {
    type Part = &'a mut T;

    fn len(&self) -> usize {
        self.0.len()
    }

    unsafe fn part(&self, number: usize) -> &'a mut T {
        // SAFETY: as the caller promises; a chunk has one element.
        unsafe { &mut self.0.part(number)[0] }
    }
}

macro_rules! tuples {
    ($(($($name:ident $place:tt),*))*) => {$(
        // SAFETY: parts of different numbers are made of parts of different numbers.
        unsafe impl<$($name: Parts),*> Parts for ($($name,)*) {
            type Part = ($($name::Part,)*);

            fn len(&self) -> usize {
                [$(self.$place.len()),*].into_iter().min().unwrap_or(0)
            }

            unsafe fn part(&self, number: usize) -> Self::Part {
                // SAFETY: as the caller promises; no one of them has fewer parts.
                unsafe { ($(self.$place.part(number),)*) }
            }
        }
    )*};
}

tuples! { (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4) }

// SAFETY: parts of different numbers are made of parts of different numbers.
unsafe impl<P: Parts, const N: usize> Parts for SmallVec<[P; N]>
where
    [P; N]: Array<Item = P>,
    [P::Part; N]: Array<Item = P::Part>,
{
    type Part = SmallVec<[P::Part; N]>;

    fn len(&self) -> usize {
        self.iter().map(Parts::len).min().unwrap_or(0)
    }

    unsafe fn part(&self, number: usize) -> Self::Part {
        // SAFETY: as the caller promises; no one of them has fewer parts.
        self.iter().map(|parts| unsafe { parts.part(number) }).collect()
    }
}

/// Parts of a slice, as long as each other, of which each thread has one for itself at a time.
pub(super) struct Slots<'a, S> {
    start: *mut S,
    /// Elements of each part.
    len: usize,
    taken: SmallVec<[AtomicBool; 64]>,
    life: PhantomData<&'a mut [S]>,
}

// SAFETY: a part goes to one thread at a time, which the flags see to.
unsafe impl<S: Send> Sync for Slots<'_, S> {}

impl<'a, S> Slots<'a, S> {
    /// So many parts of `len` elements each.
    ///
    /// # Panics
    /// If the slice has not as many.
    pub(super) fn of(values: &'a mut [S], len: usize, count: usize) -> Self {
        assert!(len.checked_mul(count).is_some_and(|all| all <= values.len()), "all have a part");
        let taken = (0..count).map(|_| AtomicBool::new(false)).collect();
        Self { start: values.as_mut_ptr(), len, taken, life: PhantomData }
    }

    /// The part of a slot, until it is dropped.
    pub(super) fn take(&self, slot: usize) -> Slot<'_, S> {
        let taken = &self.taken[slot];
        assert!(!taken.swap(true, Ordering::Acquire), "a slot is one thread's at a time");
        // SAFETY: there are so many parts, and the slice is borrowed for as long; nobody else has this one, for the
        // flag was not set.
        let part =
            unsafe { std::slice::from_raw_parts_mut(self.start.add(slot * self.len), self.len) };
        Slot { part, taken }
    }
}

/// A slot's part.
pub(super) struct Slot<'a, S> {
    part: &'a mut [S],
    taken: &'a AtomicBool,
}

impl<S> Deref for Slot<'_, S> {
    type Target = [S];

    fn deref(&self) -> &[S] {
        self.part
    }
}

impl<S> DerefMut for Slot<'_, S> {
    fn deref_mut(&mut self) -> &mut [S] {
        self.part
    }
}

impl<S> Drop for Slot<'_, S> {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}
