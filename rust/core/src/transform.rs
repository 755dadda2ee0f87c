//! From random words to standard Gaussian and Laplace samples: branch-free scalar arithmetic, so that the compiler
//! vectorizes loops over it. Every step is rounded in one defined way (`mul_add` once, the rest as written), so that
//! the bits are the same on every processor.
//!
//! The polynomials are minimax fits; their errors are below the rounding of the type.

use std::f64::consts::{FRAC_PI_4, LN_2};

use crate::Real;

const SIGN: u32 = 1 << 31;
const TO_MINUS_30: f64 = 1.0 / (1_u64 << 30) as f64;
const TO_MINUS_31: f64 = 1.0 / (1_u64 << 31) as f64;
const TO_MINUS_32: f64 = 1.0 / (1_u64 << 32) as f64;

/// A floating-point type that noise can be drawn in.
pub trait Sample: Real {
    /// Words of a number from [0, 1), and of the angle of a Gaussian pair: as many as the type can resolve.
    #[doc(hidden)]
    const WORDS: usize;

    /// Two independent standard Gaussian samples by the Box-Muller transform. The 64 random bits of the radius
    /// let the tails reach 9.4; the angle has 32 bits for each of its [`WORDS`](Self::WORDS).
    #[doc(hidden)]
    fn gaussian(radius: [u32; 2], angle: [u32; 2]) -> [Self; 2];

    /// A standard Laplace sample, of density exp(-|z|) / 2: one bit for the sign and 63 for the magnitude, which
    /// reaches 44.
    #[doc(hidden)]
    fn laplace(words: [u32; 2]) -> Self;

    /// A number from [0, 1), with as many random bits as the type resolves near 1.
    #[doc(hidden)]
    fn uniform(words: [u32; 2]) -> Self;
}

impl Sample for f32 {
    const WORDS: usize = 1;

    #[inline(always)]
    fn gaussian(radius: [u32; 2], angle: [u32; 2]) -> [f32; 2] {
        const UNIT: f32 = (FRAC_PI_4 * TO_MINUS_31) as f32;
        let radius = (-2.0 * ln_f32(fraction_f32(radius, TO_MINUS_32 as f32))).sqrt();
        let [quadrant, _] = angle;
        // The two highest bits choose the quadrant, the others an angle in (-pi/4, pi/4), symmetric about 0.
        let x = ((quadrant << 2 | 2) as i32 as f32) * UNIT;
        let z = x * x;
        let s = z
            .mul_add(-1.951_759_3e-4, 8.332_181e-3)
            .mul_add(z, -0.166_666_55);
        let sin = (s * z).mul_add(x, x);
        let c = z
            .mul_add(2.443_948_3e-5, -1.388_737_8e-3)
            .mul_add(z, 4.166_664_7e-2);
        let cos = c.mul_add(z, -0.5).mul_add(z, 1.0);
        let cos = f32::from_bits(cos.to_bits() ^ (quadrant << 1 & SIGN));
        let [a, b] = if quadrant & SIGN == 0 {
            [cos, sin]
        } else {
            [sin, cos]
        };
        [radius * a, radius * b]
    }

    #[inline(always)]
    fn laplace([high, low]: [u32; 2]) -> f32 {
        let magnitude = ln_f32(fraction_f32([high & !SIGN, low], TO_MINUS_31 as f32));
        f32::from_bits(magnitude.to_bits() ^ (high & SIGN))
    }

    #[inline(always)]
    fn uniform([high, _]: [u32; 2]) -> f32 {
        (high >> 8) as f32 * (256.0 * TO_MINUS_32) as f32
    }
}

impl Sample for f64 {
    const WORDS: usize = 2;

    #[inline(always)]
    fn gaussian(radius: [u32; 2], angle: [u32; 2]) -> [f64; 2] {
        const UNIT: f64 = FRAC_PI_4 * TO_MINUS_31;
        let radius = (-2.0 * ln_f64(fraction_f64(radius, TO_MINUS_32))).sqrt();
        let [quadrant, low] = angle;
        // As for f32; the second word refines the angle.
        let low = f64::from(low).mul_add(UNIT * TO_MINUS_30, UNIT * TO_MINUS_30 / 2.0);
        let x = f64::from((quadrant << 2) as i32).mul_add(UNIT, low);
        let z = x * x;
        let w = z * z;
        let s0 = z.mul_add(8.333_333_333_322_565e-3, -0.166_666_666_666_666_33);
        let s1 = z.mul_add(2.755_731_372_222_217_6e-6, -1.984_126_982_990_822_1e-4);
        let s2 = z.mul_add(1.589_702_089_841_318_6e-10, -2.505_076_236_580_224_5e-8);
        let s = w.mul_add(w.mul_add(s2, s1), s0);
        let sin = (s * z).mul_add(x, x);
        let c0 = z.mul_add(-1.388_888_888_887_614_8e-3, 4.166_666_666_666_661e-2);
        let c1 = z.mul_add(-2.755_731_463_741_201e-7, 2.480_158_729_058_611_2e-5);
        let c2 = z.mul_add(-1.136_132_680_479_098_1e-11, 2.087_575_849_872_740_5e-9);
        let c = w.mul_add(w.mul_add(c2, c1), c0);
        let cos = w.mul_add(c, z.mul_add(-0.5, 1.0));
        let cos = f64::from_bits(cos.to_bits() ^ u64::from(quadrant << 1 & SIGN) << 32);
        let [a, b] = if quadrant & SIGN == 0 {
            [cos, sin]
        } else {
            [sin, cos]
        };
        [radius * a, radius * b]
    }

    #[inline(always)]
    fn laplace([high, low]: [u32; 2]) -> f64 {
        let magnitude = ln_f64(fraction_f64([high & !SIGN, low], TO_MINUS_31));
        f64::from_bits(magnitude.to_bits() ^ u64::from(high & SIGN) << 32)
    }

    #[inline(always)]
    fn uniform([high, low]: [u32; 2]) -> f64 {
        const TO_MINUS_53: f64 = 1.0 / (1_u64 << 53) as f64;
        f64::from(high).mul_add(TO_MINUS_32, f64::from(low >> 11) * TO_MINUS_53)
    }
}

/// `(high + (low + 1/2) / 2^32) * unit`: at least `unit / 2^33`, so that its logarithm is finite.
#[inline(always)]
fn fraction_f32([high, low]: [u32; 2], unit: f32) -> f32 {
    let low_unit = unit * TO_MINUS_32 as f32;
    (high as f32).mul_add(unit, (low as f32).mul_add(low_unit, low_unit / 2.0))
}

/// As [`fraction_f32`].
#[inline(always)]
fn fraction_f64([high, low]: [u32; 2], unit: f64) -> f64 {
    let low_unit = unit * TO_MINUS_32;
    f64::from(high).mul_add(unit, f64::from(low).mul_add(low_unit, low_unit / 2.0))
}

/// Natural logarithm of a normal positive number: `x = 2^e (1 + f)` with `1 + f` between the square roots of 1/2
/// and 2, `ln(1 + f) = f - f^2/2 + f^3 P(f)`.
#[inline(always)]
fn ln_f32(x: f32) -> f32 {
    const SQRT_HALF: i32 = 0x3f35_04f3;
    let bits = x.to_bits() as i32;
    let e = (bits - SQRT_HALF) >> 23;
    let f = f32::from_bits((bits - (e << 23)) as u32) - 1.0;
    let z = f * f;
    let p01 = f.mul_add(-0.250_008_2, 0.333_333_3);
    let p23 = f.mul_add(-0.166_234_04, 0.200_012_32);
    let p45 = f.mul_add(-0.131_597_41, 0.142_017_07);
    let p67 = f.mul_add(-0.076_356_545, 0.127_616_82);
    let p = z.mul_add(p67, p45).mul_add(z * z, z.mul_add(p23, p01));
    let head = z.mul_add(-0.5, (e as f32).mul_add(LN_2 as f32, f));
    (f * z).mul_add(p, head)
}

/// As [`ln_f32`], with `q = f / (2 + f)` and `ln(1 + f) = 2 artanh(q) = f - q (f - q^2 L(q^2))`.
#[inline(always)]
fn ln_f64(x: f64) -> f64 {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    const TWO_52: f64 = (1_u64 << 52) as f64;
    let bits = x.to_bits();
    let biased_e = (bits + (ONE - SQRT_HALF)) >> 52;
    // This converts a 64-bit integer to a float, for which there is no vector instruction before AVX-512.
    let e = f64::from_bits(biased_e | TWO_52.to_bits()) - (TWO_52 + 1023.0);
    let f = f64::from_bits(bits.wrapping_sub(biased_e.wrapping_sub(1023) << 52)) - 1.0;
    let q = f / (f + 2.0);
    let z = q * q;
    let w = z * z;
    let even = w.mul_add(0.147_919_515_683_525_82, 0.181_835_461_993_683_69);
    let even = w.mul_add(
        w.mul_add(even, 0.285_714_287_381_656_4),
        0.666_666_666_666_673,
    );
    let odd = w.mul_add(0.153_144_785_058_319_48, 0.222_221_989_573_429_87);
    let l = w.mul_add(odd, 0.399_999_999_994_369).mul_add(z, even);
    e.mul_add(LN_2, (-q).mul_add((-z).mul_add(l, f), f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Distance of `got` from `wanted` in units of the last place of f32 and f64.
    fn ulps(got: f64, wanted: f64, epsilon: f64) -> f64 {
        (got - wanted).abs() / (wanted.abs().max(f64::MIN_POSITIVE) * epsilon)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn logarithms_equal_those_of_the_standard_library(high: u32, low: u32, zeros in 0_u32..33) {
            let words = [high.checked_shr(zeros).unwrap_or(0), low];
            let x = fraction_f64(words, TO_MINUS_32);
            prop_assert!(ulps(ln_f64(x), x.ln(), f64::EPSILON) < 2.5, "{} {}", ln_f64(x), x.ln());
            let x = fraction_f32(words, TO_MINUS_32 as f32);
            let exact = f64::from(x).ln();
            prop_assert!(ulps(ln_f32(x).into(), exact, f32::EPSILON.into()) < 2.5);
        }

        #[test]
        fn pairs_equal_the_textbook_formula(high: u32, low: u32, angle: u32, refined: u32) {
            let formula = |fraction: f64, x: f64| {
                let radius = (-2.0 * fraction.ln()).sqrt();
                let cos = if angle & SIGN >> 1 == 0 { x.cos() } else { -x.cos() };
                let pair = [radius * cos, radius * x.sin()];
                if angle & SIGN == 0 { pair } else { [pair[1], pair[0]] }
            };
            let x = f64::from((angle << 2) as i32) * FRAC_PI_4 * TO_MINUS_31;
            let refinement = (f64::from(refined) + 0.5) * TO_MINUS_30 * FRAC_PI_4 * TO_MINUS_31;
            let wanted = formula(fraction_f64([high, low], TO_MINUS_32), x + refinement);
            let got = f64::gaussian([high, low], [angle, refined]);
            prop_assert!(ulps(got[0], wanted[0], f64::EPSILON) < 6.0, "{got:?} {wanted:?}");
            prop_assert!(ulps(got[1], wanted[1], f64::EPSILON) < 6.0, "{got:?} {wanted:?}");

            let fraction = fraction_f32([high, low], TO_MINUS_32 as f32);
            let wanted = formula(fraction.into(), x + 2.0 * FRAC_PI_4 * TO_MINUS_31);
            let got = f32::gaussian([high, low], [angle, 0]).map(f64::from);
            prop_assert!(ulps(got[0], wanted[0], f32::EPSILON.into()) < 6.0, "{got:?} {wanted:?}");
            prop_assert!(ulps(got[1], wanted[1], f32::EPSILON.into()) < 6.0, "{got:?} {wanted:?}");
        }
    }

    #[test]
    fn extreme_words_give_extreme_samples() {
        let none = [0, 0];
        let all = [u32::MAX, u32::MAX];
        assert!((f64::gaussian(none, none)[0] - (-2.0 * (-65.0 * LN_2)).sqrt()).abs() < 1e-8);
        assert!((f64::laplace(none).abs() - 64.0 * LN_2).abs() < 1e-12);
        assert!((f64::from(f32::laplace(none).abs()) - 64.0 * LN_2).abs() < 1e-5);
        assert_eq!(f32::gaussian(all, all), [0.0, 0.0]);
        assert_eq!(f64::laplace(all), 0.0);
    }
}
