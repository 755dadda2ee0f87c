#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![deny(missing_docs)]

use std::marker::PhantomData;

/// Bytes of a line, in which memory is written.
const LINE: usize = 64;

/// `f32` and `f64`: types that are nothing but their bytes.
pub trait Number: Copy + sealed::Sealed {}

impl Number for f32 {}
impl Number for f64 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Calls `work` with the [`Writer`] of the calling thread, and makes sure at the end that every thread sees what it
/// wrote.
#[inline(always)]
pub fn past_cache<'a, R>(work: impl FnOnce(&mut Writer<'a>) -> R) -> R {
    work(&mut Writer(PhantomData))
}

/// Writes past the cache. What it wrote stays borrowed, so that nobody reads it, until [`past_cache`] has returned.
#[derive(Debug)]
pub struct Writer<'a>(PhantomData<(&'a mut (), *const ())>);

impl<'a> Writer<'a> {
    /// Copies `from`, at best a kilobyte or more, to `to`.
    ///
    /// # Panics
    ///
    /// If they are not of the same length.
    #[inline]
    pub fn copy<T: Number>(&mut self, to: &'a mut [T], from: &[T]) {
        assert_eq!(to.len(), from.len());
        let head = to.as_ptr().align_offset(LINE).min(to.len());
        let (to_head, to) = to.split_at_mut(head);
        let (from_head, from) = from.split_at(head);
        let lines = to.len() - to.len() % (LINE / size_of::<T>());
        let (to_lines, to_tail) = to.split_at_mut(lines);
        let (from_lines, from_tail) = from.split_at(lines);
        to_head.copy_from_slice(from_head);
        copy_lines(to_lines, from_lines);
        to_tail.copy_from_slice(from_tail);
    }
}

impl Drop for Writer<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        fence();
    }
}

/// Copies whole lines, to where lines begin.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[allow(unsafe_code)]
fn copy_lines<T: Number>(to: &mut [T], from: &[T]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    assert!(to.is_empty() || to.as_ptr().align_offset(LINE) == 0);
    let len = LINE / size_of::<T>();
    for (to, from) in to.chunks_exact_mut(len).zip(from.chunks_exact(len)) {
        let to: *mut __m128i = to.as_mut_ptr().cast();
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY: both are a line long, four vectors, and `to` begins where a line does. A number is nothing but its
        // bytes. Every x86-64 processor has SSE2. Nobody reads `to` before `fence`: only `Writer::copy` calls this, for
        // slices that stay borrowed until the lifetime of the `Writer` ends. That is a parameter of `past_cache`, which
        // the call cannot outlive, and before it returns or unwinds it drops the `Writer`, on the same thread, as a
        // `Writer` can be neither taken from behind its reference nor sent.
        unsafe {
            let vectors = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), vector);
            }
        }
    }
}

/// Orders what was written past the cache before what this thread writes next.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
#[allow(unsafe_code)]
fn fence() {
    // SAFETY: every x86-64 processor has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn copy_lines<T: Number>(to: &mut [T], from: &[T]) {
    to.copy_from_slice(from);
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn fence() {}
