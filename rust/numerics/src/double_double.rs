//! Numbers of about 106 bits, each the unevaluated sum of two `f64` (T. J. Dekker, 1971): for the few constants that
//! need more precision than `f64` has.

use std::f64::consts::LN_2;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// The sum of its two fields, the second at most half a unit in the last place of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DoubleDouble(f64, f64);

impl DoubleDouble {
    const LN_2: DoubleDouble = DoubleDouble(LN_2, 2.319_046_813_846_299_6e-17);

    /// `a + b`, exactly.
    #[must_use]
    pub fn sum(a: f64, b: f64) -> DoubleDouble {
        let sum = a + b;
        let b_part = sum - a;
        DoubleDouble(sum, (a - (sum - b_part)) + (b - b_part))
    }

    /// `a * b`, exactly.
    #[must_use]
    pub fn product(a: f64, b: f64) -> DoubleDouble {
        let product = a * b;
        DoubleDouble(product, a.mul_add(b, -product))
    }

    /// The nearest `f64`.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        self.0 + self.1
    }

    /// `self * 2^exponent`, exactly, within the range of `f64`.
    #[must_use]
    pub fn times_power_of_2(self, exponent: i32) -> DoubleDouble {
        let power = 2_f64.powi(exponent);
        DoubleDouble(self.0 * power, self.1 * power)
    }

    /// exp(-self) for a number of at least 0, with a relative error below 2^-101 up to 10; 0 from 700 on.
    #[must_use]
    pub fn exp_of_negative(self) -> DoubleDouble {
        if self.0 > 700.0 {
            return DoubleDouble(0.0, 0.0);
        }
        let twos = (self.0 / LN_2).round();
        let rest = DoubleDouble::LN_2 * DoubleDouble::from(twos) - self;
        // Taylor's series: 0.35^24 / 24! is below 2^-115.
        let mut exp = DoubleDouble::from(1.0);
        for k in (1..24).rev() {
            exp = DoubleDouble::from(1.0) + rest * exp / DoubleDouble::from(f64::from(k));
        }
        exp.times_power_of_2(-(twos as i32))
    }

    /// The nearest integer, for a number between 0 and 2^127.
    #[must_use]
    pub fn round(self) -> u128 {
        let whole = self.0.floor();
        (whole as i128 + ((self.0 - whole) + self.1).round() as i128) as u128
    }
}

impl From<f64> for DoubleDouble {
    fn from(value: f64) -> DoubleDouble {
        DoubleDouble(value, 0.0)
    }
}

impl Neg for DoubleDouble {
    type Output = DoubleDouble;
    fn neg(self) -> DoubleDouble {
        DoubleDouble(-self.0, -self.1)
    }
}

impl Add for DoubleDouble {
    type Output = DoubleDouble;
    fn add(self, other: DoubleDouble) -> DoubleDouble {
        let (high, low) = (Self::sum(self.0, other.0), Self::sum(self.1, other.1));
        let high = Self::sum(high.0, high.1 + low.0);
        Self::sum(high.0, high.1 + low.1)
    }
}

impl Sub for DoubleDouble {
    type Output = DoubleDouble;
    fn sub(self, other: DoubleDouble) -> DoubleDouble {
        self + -other
    }
}

impl Mul for DoubleDouble {
    type Output = DoubleDouble;
    fn mul(self, other: DoubleDouble) -> DoubleDouble {
        let product = Self::product(self.0, other.0);
        Self::sum(product.0, product.1 + (self.0 * other.1 + self.1 * other.0))
    }
}

impl Div for DoubleDouble {
    type Output = DoubleDouble;
    fn div(self, other: DoubleDouble) -> DoubleDouble {
        let first = self.0 / other.0;
        let rest = self - other * Self::from(first);
        let second = rest.0 / other.0;
        let rest = rest - other * Self::from(second);
        Self::sum(first, second) + Self::from(rest.0 / other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `digits / 2^128`, to 106 bits.
    fn fraction(digits: u128) -> DoubleDouble {
        let piece = |i: i32| {
            let piece = (digits >> (96 - 32 * i)) as u32;
            DoubleDouble::from(f64::from(piece)).times_power_of_2(-32 * (i + 1))
        };
        piece(3) + piece(2) + piece(1) + piece(0)
    }

    /// Digits from mpmath.
    #[test]
    fn exponentials_are_right_to_101_bits() {
        for (x, digits) in [
            (0.0, u128::MAX),
            (0.125, 0xe1eb_5127_6c11_0c3c_3eb1_269f_2f5d_4afa),
            (1.0, 0x5e2d_58d8_b3bc_df1a_bade_c782_9054_f90d),
            (3.0, 0xcbe_d866_6758_5764_a413_0191_c840_8680),
            (10.0, 0x2_f9af_36ac_8f93_538b_648e_aa13_10e5),
        ] {
            let (exp, wanted) = (DoubleDouble::from(x).exp_of_negative(), fraction(digits));
            let error = (exp - wanted) / wanted;
            assert!(error.0.abs() < 2_f64.powi(-101), "{x}: {error:?}");
        }
        assert_eq!(
            DoubleDouble::from(701.0).exp_of_negative(),
            DoubleDouble::from(0.0)
        );
    }

    #[test]
    fn integers_are_found_beyond_53_bits() {
        let number = DoubleDouble::sum(2_f64.powi(63), -0.75);
        assert_eq!(number.round(), (1 << 63) - 1);
        assert_eq!(DoubleDouble::from(2_f64.powi(126)).round(), 1 << 126);
        let third = DoubleDouble::from(1.0) / DoubleDouble::from(3.0);
        let rest = third * DoubleDouble::from(3.0) - DoubleDouble::from(1.0);
        assert!(rest.0.abs() < 2_f64.powi(-104));
    }
}
