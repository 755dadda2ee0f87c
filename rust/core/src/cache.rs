//! Cache lines: memory that begins at one, and hints which to load.

use crate::Real;

/// Bytes of a cache line, and of the widest vector register.
pub(crate) const LINE: usize = 64;

/// `len` elements of `room`, with any content, that begin at a cache line.
pub(crate) fn at_line<T: Real>(room: &mut Vec<T>, len: usize) -> &mut [T] {
    let line = LINE / size_of::<T>();
    room.resize(len + line, T::ZERO);
    let start = room.as_ptr().align_offset(LINE).min(line);
    &mut room[start..][..len]
}

/// Prefetches the cache line of an element, inside the slice or not: a hint, without effect on results.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    prefetch_into::<T, 1>(slice.as_ptr().wrapping_add(index));
}

/// As [`prefetch`], for `len` elements from `first` on.
#[inline(always)]
pub(crate) fn prefetch_all<T>(slice: &[T], first: usize, len: usize) {
    let line = LINE / size_of::<T>();
    for number in 0..len.div_ceil(line) {
        prefetch(slice, first + number * line);
    }
}

/// Prefetches the cache line of a place into the L2 cache only: for data needed later than that of [`prefetch`].
#[inline(always)]
pub(crate) fn prefetch_to_l2<T>(place: *const T) {
    prefetch_into::<T, 2>(place);
}

/// Prefetches the cache line of a place into the caches from this level on.
#[inline(always)]
fn prefetch_into<T, const LEVEL: u8>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    if let Some(sse) = pulp::core_arch::x86::Sse::try_new() {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1};
        match LEVEL {
            1 => sse._mm_prefetch::<_MM_HINT_T0>(place.cast()),
            _ => sse._mm_prefetch::<_MM_HINT_T1>(place.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
