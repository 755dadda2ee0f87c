//! The exponential function as branch-free scalar arithmetic, so that the compiler vectorizes loops over it; the bits
//! are the same on every processor, as in `transform`.

use std::f64::consts::LOG2_E;

/// The largest argument with a result other than 0: `exp(-708.39)` is just above the smallest positive normal number.
const END: f64 = 708.39;
/// Adding it to a number leaves the nearest integer in the lowest bits, without a conversion instruction.
const TO_INTEGER: f64 = 1.5 * (1_u64 << 52) as f64;
/// `ln 2` in two parts, the first with so few bits that its products with the integers here are exact.
const LN_2: [f64; 2] = [
    f64::from_bits(0x3fe6_2e42_fee0_0000),
    1.908_214_929_270_587_7e-10,
];
/// `Q` of `exp(r) = 1 + r + r^2 Q(r)` for `|r| <= ln(2) / 2`: a minimax fit, whose relative error of 2^-57 in `exp(r)`
/// is below the rounding.
const SERIES: [f64; 10] = [
    0.500_000_000_000_001_1,
    0.166_666_666_666_664_1,
    0.041_666_666_666_529_19,
    0.008_333_333_333_495_629,
    0.001_388_888_894_392_252_1,
    0.000_198_412_695_047_511_3,
    2.480_149_276_291_336_8e-5,
    2.755_758_735_630_108e-6,
    2.763_037_857_990_357e-7,
    2.499_996_052_185_428e-8,
];

/// `exp(-x)` for a number of at least 0, within 1.25 units in the last place; 0 from 708.39 on.
///
/// Half a unit comes from the last sum and, where the result is just below a power of two, a quarter each from its
/// second term and from `rest`; the rounding of the series and the error of its fit are less than another quarter.
#[inline(always)]
#[must_use]
pub fn exp_of_negative(x: f64) -> f64 {
    let shifted = (-x).mul_add(LOG2_E, TO_INTEGER);
    let twos = shifted - TO_INTEGER;
    let rest = twos.mul_add(-LN_2[1], twos.mul_add(-LN_2[0], -x));
    let mut q = 0.0_f64;
    for coefficient in SERIES.into_iter().rev() {
        q = q.mul_add(rest, coefficient);
    }
    let exp = 1.0 + (rest * rest).mul_add(q, rest);
    let power = shifted
        .to_bits()
        .wrapping_sub(TO_INTEGER.to_bits())
        .wrapping_add(1023)
        << 52;
    if x > END {
        0.0
    } else {
        exp * f64::from_bits(power)
    }
}

/// 1/2!, 1/3!, ... 1/13!
const INVERSE_FACTORIALS: [f64; 12] = {
    let (mut inverses, mut factorial, mut k) = ([0.0; 12], 1.0, 0);
    while k < 12 {
        factorial *= (k + 2) as f64;
        inverses[k] = 1.0 / factorial;
        k += 1;
    }
    inverses
};

/// `(scale, grown)` with `exp(x) = scale + grown`, `scale` a power of two and `|grown| < scale / 2`; for `x`
/// up to 700. Branchless, so that the compiler can keep it in vector registers; right to 2 units in the
/// last place, of `exp(x)` and of `exp(x) - 1` alike.
#[inline(always)]
#[must_use]
pub fn exponential(x: f64) -> (f64, f64) {
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    const ROUND: f64 = 1.5 * (1_u64 << 52) as f64; // adding it leaves the nearest integer in the last bits
    let x = if x < -700.0 { -700.0 } else { x };
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    // exp(r) - 1 - r = r^2 (1/2! + r/3! + ...), |r| <= ln(2)/2, in pairs, so that the products overlap
    let c = &INVERSE_FACTORIALS;
    let pair = |k: usize| r.mul_add(c[k + 1], c[k]);
    let r2 = r * r;
    let four = |k: usize| r2.mul_add(pair(k + 2), pair(k));
    let r4 = r2 * r2;
    let tail = r4.mul_add(r4.mul_add(four(8), four(4)), four(0));
    let scale = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    (scale, scale * r2.mul_add(tail, r))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{dispatch_on, instruction_sets};
    use crate::double_double::DoubleDouble;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn exponentials_are_within_the_stated_units_in_the_last_place(
            x in prop_oneof![0.0..600.0, 0.0..2.0, (-60.0..0.0).prop_map(f64::exp2)],
        ) {
            const PARTS: f64 = 1024.0;
            let got = exp_of_negative(x);
            let part = (got.next_up() - got) / PARTS;
            let exact = DoubleDouble::from(x).exp_of_negative() / DoubleDouble::from(part);
            let error = exact.round().abs_diff((got / part) as u128);
            prop_assert!(error < (1.25 * PARTS) as u128, "{x}: {error}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_exact() {
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert_eq!(exp_of_negative(-0.0), 1.0);
        assert!(exp_of_negative(END) >= f64::MIN_POSITIVE);
        assert!((exp_of_negative(END) / libm::exp(-END) - 1.0).abs() <= f64::EPSILON);
        for x in [END.next_up(), 1e4, 1e300, f64::INFINITY] {
            assert_eq!(exp_of_negative(x), 0.0);
        }
        assert!(exp_of_negative(f64::NAN).is_nan());
    }

    #[test]
    fn vectors_have_the_bits_of_single_numbers() {
        let x: Vec<f64> = (0..1000).map(|i| f64::from(i) * 0.7548).collect();
        let wanted: Vec<f64> = x.iter().map(|&x| exp_of_negative(x)).collect();
        for set in instruction_sets() {
            let mut got = x.clone();
            dispatch_on(
                set,
                #[inline(always)]
                || got.iter_mut().for_each(|x| *x = exp_of_negative(*x)),
            );
            assert_eq!(got, wanted);
        }
    }
}
