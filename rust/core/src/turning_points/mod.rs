//! Each kernel against its definition at its turning points: the sizes at which its code takes another path.
//!
//! A kernel module lists those sizes as `TURNS`, made of the constants that choose the path. The tests here run it just
//! below, at and above each of them, in `f32` and `f64`, on 1, 2 and 7 threads, with each instruction set of this
//! processor, and compare the result with a loop that follows the definition: bit for bit, or with numbers whose sums
//! are exact. What no memory holds (counters of a stream) is tested from a start there.

#[cfg(feature = "secure")]
mod codes;
mod correlated;
mod discrete;
mod draws;
#[cfg(feature = "linear")]
mod linear;
mod mixing;
#[cfg(feature = "qnet")]
mod networks;
mod noise;
mod norms;
mod smoothing;
mod stream;
mod sums;

use dpmesh_threads::with_threads;

use crate::Real;
use crate::instructions::with_each_instruction_set;
use crate::stream::{Cipher, Key, Stream};

const THREADS: [usize; 3] = [1, 2, 7];

/// The sizes just below, at and just above each turning point.
fn around(turns: &[usize]) -> Vec<usize> {
    let near = turns.iter().flat_map(|&turn| [turn - 1, turn, turn + 1]);
    let mut sizes: Vec<usize> = near.filter(|&size| size > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// An element of a result, compared by its bits.
trait Element: Copy {
    fn bits(self) -> u64;
}

macro_rules! element {
    ($($t:ty: $value:ident => $bits:expr),+ $(,)?) => {
        $(impl Element for $t {
            fn bits(self) -> u64 {
                let $value = self;
                $bits
            }
        })+
    };
}
element!(
    f32: v => u64::from(v.to_bits()),
    f64: v => v.to_bits(),
    i8: v => v as u64,
    i16: v => v as u64,
    i32: v => v as u64,
    i64: v => v as u64,
    u8: v => u64::from(v),
    u32: v => u64::from(v),
    u64: v => v,
    bool: v => u64::from(v),
);

/// The result of `kernel`, after checking that it has the same bits with each instruction set on any number of threads.
fn everywhere<E: Element>(size: impl std::fmt::Debug, kernel: impl Fn() -> Vec<E>) -> Vec<E> {
    let results =
        THREADS.map(|threads| with_threads(threads, || with_each_instruction_set(&kernel)));
    let mut results = results.into_iter().flatten();
    let first = results.next().unwrap();
    for (number, other) in results.enumerate() {
        let what = format!(
            "{size:?}, instruction set and threads number {}",
            number + 1
        );
        assert_same(what, &other, &first);
    }
    first
}

/// Fails, naming the first difference, unless the results have the same bits.
fn assert_same<E: Element>(size: impl std::fmt::Debug, result: &[E], expected: &[E]) {
    assert_eq!(result.len(), expected.len(), "{size:?}");
    let pairs = result.iter().zip(expected);
    let differs = pairs.map(|(a, b)| a.bits() != b.bits()).position(|d| d);
    assert_eq!(differs, None, "the first difference at {size:?}");
}

/// Numbers of no pattern in [-3, 3].
fn numbers<T: Real>(len: usize) -> Vec<T> {
    let number = |i: usize| {
        let hash = (i as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        hash.wrapping_mul(0xbf58_476d_1ce4_e5b9) as i64 as f64 / i64::MAX as f64
    };
    (0..len).map(|i| T::from_f64(3.0 * number(i))).collect()
}

/// Whole numbers from -4 to 4 without 0, whose sums and products are exact in any order.
fn whole_numbers<T: Real>(len: usize) -> Vec<T> {
    let whole = |v: T| {
        let magnitude = (v.to_f64().abs() * 4.0 / 3.0).ceil().clamp(1.0, 4.0);
        T::from_f64(magnitude.copysign(v.to_f64()))
    };
    numbers(len).into_iter().map(whole).collect()
}

fn stream(cipher: Cipher) -> Stream {
    Key::new(cipher, &std::array::from_fn(|i| i as u8 ^ 0x5a))
        .stream(3, 2)
        .unwrap()
}
