//! Vectors of 512 bits on every processor, in one register or several, so that a sum has the same lanes everywhere.

#[cfg(target_arch = "x86_64")]
use pulp::Arch;
use pulp::{Scalar, Scalar512b, Simd, WithSimd};

use crate::Real;
use crate::instructions::instruction_set;

/// Numbers of `f64` in a vector.
pub(crate) const DOUBLES: usize = 8;

/// A floating-point type that kernels compute with in vectors.
pub trait Wide: Real {
    #[doc(hidden)]
    type Vector<S: Simd>: Copy;
    #[doc(hidden)]
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// The whole vectors of a row, and the numbers left over.
    #[doc(hidden)]
    fn vectors<S: Simd>(row: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    #[doc(hidden)]
    fn vectors_mut<S: Simd>(row: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]);
    /// `a * b + c`, rounded once.
    #[doc(hidden)]
    fn multiply_add<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The numbers as a vector of `f64`.
    #[doc(hidden)]
    #[inline(always)]
    fn widened<S: Simd>(numbers: &[Self; DOUBLES]) -> S::f64s {
        pulp::cast(numbers.map(Self::to_f64))
    }
    /// The sum of all lanes: the two halves are added first, then the halves of that, ..
    #[doc(hidden)]
    fn lane_sum<S: Simd>(simd: S, vector: Self::Vector<S>) -> Self;
}

macro_rules! wide {
    ($t:ty, $vector:ident, $splat:ident, $of:ident, $of_mut:ident, $fma:ident, $sum:ident) => {
        impl Wide for $t {
            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }
            #[inline(always)]
            fn vectors<S: Simd>(row: &[Self]) -> (&[S::$vector], &[Self]) {
                S::$of(row)
            }
            #[inline(always)]
            fn vectors_mut<S: Simd>(row: &mut [Self]) -> (&mut [S::$vector], &mut [Self]) {
                S::$of_mut(row)
            }
            #[inline(always)]
            fn multiply_add<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                simd.$fma(a, b, c)
            }
            #[inline(always)]
            fn lane_sum<S: Simd>(simd: S, vector: S::$vector) -> Self {
                simd.$sum(vector)
            }
        }
    };
}
wide!(
    f32,
    f32s,
    splat_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    mul_add_f32s,
    reduce_sum_f32s
);
wide!(
    f64,
    f64s,
    splat_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    mul_add_f64s,
    reduce_sum_f64s
);

/// Does the work, compiled for the widest vector instructions of this processor; all that it calls must be
/// `#[inline(always)]`.
pub(crate) fn in_wide_vectors<W: WithSimd>(work: W) -> W::Output {
    match instruction_set() {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => Simd::vectorize(simd, work),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => Simd::vectorize(simd, On(pulp::x86::V3_512b(simd), work)),
        _ => On(Scalar512b, work).with_simd(Scalar),
    }
}

/// Work done with the vectors of `S`, whichever it is called with.
struct On<S, W>(S, W);

impl<T: Simd, W: WithSimd> WithSimd for On<T, W> {
    type Output = W::Output;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> W::Output {
        self.1.with_simd(self.0)
    }
}
