#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![deny(missing_docs)]

use std::marker::PhantomData;

/// Bytes of a cache line.
const LINE: usize = 64;

/// `f32` and `f64`: types without padding or pointers.
pub trait Number: Copy + sealed::Sealed {}

impl Number for f32 {}
impl Number for f64 {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Calls `work` with a [`Writer`]; when it returns, every thread sees what was written.
#[inline(always)]
pub fn past_cache<'a, R>(work: impl FnOnce(&mut Writer<'a>) -> R) -> R {
    work(&mut Writer(PhantomData))
}

/// Writes past the cache. What it wrote stays borrowed, so that nobody reads it, until [`past_cache`] returns.
#[derive(Debug)]
pub struct Writer<'a>(PhantomData<(&'a mut (), *const ())>);

impl<'a> Writer<'a> {
    /// Copies `from` to `to`; worth it from about a kilobyte on.
    ///
    /// # Panics
    ///
    /// If their lengths differ.
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

/// Copies whole cache lines; `to` must begin with one.
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
        // SAFETY: both chunks are a line long, which is four vectors, and `to` is aligned to a line. A `Number` has no
        // padding. Every x86-64 processor has SSE2. Nobody reads `to` before `fence`: only `Writer::copy` calls this,
        // on slices borrowed for the `'a` of the `Writer`. `'a` is a lifetime parameter of `past_cache`, so it lasts
        // until the call ends; and before that call returns or unwinds it drops the `Writer`, on the same thread: a
        // `Writer` can be neither moved out of its reference nor sent to another thread.
        unsafe {
            let vectors = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, vector) in vectors.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), vector);
            }
        }
    }
}

/// Orders this thread's writes past the cache before its later writes.
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
