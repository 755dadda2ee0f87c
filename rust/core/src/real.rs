use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// The floating-point types of the kernels: `f32` and `f64`.
pub trait Real:
    Copy
    + Debug
    + Default
    + Display
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + SubAssign
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
    + Sum
    + dpmesh_store::Number
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The smallest positive normal number.
    const MIN_POSITIVE: Self;
    /// The largest finite number.
    const MAX: Self;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// The same value as `f64`, exactly.
    fn to_f64(self) -> f64;
    /// `self * a + b`, rounded once, on every processor.
    #[must_use]
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Absolute value.
    #[must_use]
    fn abs(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const MIN_POSITIVE: Self = <$t>::MIN_POSITIVE;
            const MAX: Self = <$t>::MAX;
            #[inline(always)]
            #[allow(clippy::cast_lossless)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            #[allow(clippy::cast_lossless)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                <$t>::mul_add(self, a, b)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
        }
    };
}
real!(f32);
real!(f64);
