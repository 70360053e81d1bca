//! Asking for memory before it is read.

#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks for the lines of so many elements from one on, as [`prefetch`] does.
#[inline(always)]
pub(in crate::cpu) fn prefetch_all<T>(elements: &[T], first: usize, len: usize) {
    let step = LINE / size_of::<T>();
    (first..first + len).step_by(step).for_each(|index| prefetch(elements, index));
}

/// Asks for the line of an element, into the second-level cache; where there is no instruction for it, nothing. The element
/// may lie behind the slice: nothing is read.
#[inline(always)]
pub(in crate::cpu) fn prefetch<T>(elements: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let at = elements.as_ptr().wrapping_add(index);
        // SAFETY: SSE is part of x86-64, and a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (elements, index);
}
