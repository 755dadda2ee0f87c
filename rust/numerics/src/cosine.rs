//! The cosine as branch-free scalar arithmetic, so that the compiler vectorizes loops over it; the bits are the same on
//! every processor.

use std::f64::consts::FRAC_2_PI;

/// The largest absolute value of an angle for [`cosine`].
pub const LARGEST_ANGLE: f64 = (1_u64 << 20) as f64;
/// Adding it to a number leaves the nearest integer in the lowest bits, without a conversion instruction.
const TO_INTEGER: f64 = 1.5 * (1_u64 << 52) as f64;
/// A quarter turn in two parts: the nearest number, and what is missing.
const QUARTER: [f64; 2] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];
/// Terms of each series: what is left out is below 2^-60 for angles of at most an eighth of a turn.
const TERMS: usize = 8;
/// The coefficients of `z = r^2` in `cos(r)` from `z` on, and in `sin(r) / r`: 1/2!, 1/4!, .. and 1/3!, 1/5!, .. with
/// alternating signs.
const COS: [f64; TERMS] = alternating_inverse_factorials(2);
const SIN: [f64; TERMS] = alternating_inverse_factorials(3);

/// -1/first!, 1/(first + 2)!, ..
const fn alternating_inverse_factorials(first: usize) -> [f64; TERMS] {
    let mut terms = [0.0; TERMS];
    let (mut factorial, mut k) = (1.0, 1);
    while k < first + 2 * TERMS {
        factorial *= k as f64;
        if k >= first && (k - first).is_multiple_of(2) {
            let nth = (k - first) / 2;
            terms[nth] = if nth.is_multiple_of(2) { -1.0 } else { 1.0 } / factorial;
        }
        k += 1;
    }
    terms
}

/// `cos(angle)` within 2^-52, for angles of at most [`LARGEST_ANGLE`].
///
/// The angle is reduced by the nearest number `n` of quarter turns. The first fused product leaves an exact difference:
/// it is a multiple of 2^-53 and below 1. The second rounds it once, by at most 2^-54; what its two parts lack is less than
/// 2^-106 n. The series round by less than 2^-53.
#[inline(always)]
#[must_use]
pub fn cosine(angle: f64) -> f64 {
    let shifted = angle.mul_add(FRAC_2_PI, TO_INTEGER);
    let quarters = shifted - TO_INTEGER;
    let rest = quarters.mul_add(-QUARTER[1], quarters.mul_add(-QUARTER[0], angle));
    let square = rest * rest;
    let cos = series(&COS, square).mul_add(square, 1.0);
    let sin = (series(&SIN, square) * square).mul_add(rest, rest);
    let quarters = shifted.to_bits(); // their lowest two bits
    let magnitude = if quarters & 1 == 0 { cos } else { sin };
    let is_negative = (quarters.wrapping_add(1) & 2) << 62;
    f64::from_bits(magnitude.to_bits() ^ is_negative)
}

/// A polynomial in `square`.
#[inline(always)]
fn series(coefficients: &[f64; TERMS], square: f64) -> f64 {
    let mut sum = 0.0_f64;
    for &coefficient in coefficients.iter().rev() {
        sum = sum.mul_add(square, coefficient);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{dispatch_on, instruction_sets};
    use proptest::prelude::*;
    use std::f64::consts::PI;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn cosines_are_within_the_stated_error(
            angle in prop_oneof![
                -10.0..10.0,
                -LARGEST_ANGLE..=LARGEST_ANGLE,
                (-60.0..0.0).prop_map(f64::exp2),
                // Around multiples of an eighth of a turn, where the quarter changes or a result is 0.
                (-1_000_000_i32..1_000_000, -1e-9..1e-9).prop_map(|(n, off)| f64::from(n) * PI / 4.0 + off),
            ],
        ) {
            // libm's is within 2^-53 of the exact one.
            let error = (cosine(angle) - libm::cos(angle)).abs();
            prop_assert!(error <= f64::EPSILON, "{angle}: {error:e}");
            prop_assert_eq!(cosine(angle).to_bits(), cosine(-angle).to_bits());
        }
    }

    #[test]
    fn whole_quarters_and_ends_are_right() {
        assert_eq!(cosine(0.0), 1.0);
        assert_eq!(cosine(-0.0), 1.0);
        for (quarters, wanted) in [(1, 0.0), (2, -1.0), (3, 0.0), (4, 1.0), (-2, -1.0)] {
            let angle = f64::from(quarters) * PI / 2.0;
            assert!((cosine(angle) - wanted).abs() < 1e-15, "{quarters}");
        }
        for angle in [LARGEST_ANGLE, -LARGEST_ANGLE] {
            assert!((cosine(angle) - libm::cos(angle)).abs() <= f64::EPSILON);
        }
        assert!(cosine(f64::NAN).is_nan());
        assert!(cosine(f64::INFINITY).is_nan());
    }

    #[test]
    fn vectors_have_the_bits_of_single_numbers() {
        let angles: Vec<f64> = (-500..500).map(|i| f64::from(i) * 0.7548).collect();
        let wanted: Vec<f64> = angles.iter().map(|&angle| cosine(angle)).collect();
        for set in instruction_sets() {
            let mut got = angles.clone();
            dispatch_on(
                set,
                #[inline(always)]
                || got.iter_mut().for_each(|angle| *angle = cosine(*angle)),
            );
            assert_eq!(got, wanted);
        }
    }
}
