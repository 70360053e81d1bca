//! Asking for memory before it is read.

#![allow(unsafe_code)]

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
