//! Discrete Laplace variables: in floating point, and exactly where that may be wrong.

use super::UNIT;
use crate::Sample;
use crate::double_double::DoubleDouble;

/// Up to this magnitude, floating point finds a standard Laplace sample with an error below [`TOLERANCE`]: from half of
/// 2^-63 in the uniform number, which is at least exp(-16), and from rounding.
const SURE: f64 = 16.0;
const TOLERANCE: f64 = 1.0 / (1_u64 << 40) as f64;

/// The distribution with P(k) proportional to exp(-|k| / scale).
pub(super) struct Laplace {
    scale: f64,
    /// `-scale ln((1 + exp(-1 / scale)) / 2)`: the magnitude for a uniform number of 1, before it is cut to an integer.
    shift: f64,
}

/// A unit of Laplace variables, aligned to cache lines: single numbers are read right after vectors are stored, and
/// would have to wait for a vector that straddles two lines.
#[repr(align(64))]
pub(super) struct Candidates(pub [i64; UNIT]);

impl Laplace {
    pub fn new(scale: f64) -> Laplace {
        let log_mean = libm::log1p(libm::exp(-1.0 / scale)) - std::f64::consts::LN_2;
        Laplace {
            scale,
            shift: -scale * log_mean,
        }
    }

    /// Variables from a sign and 63 bits each; where these do not decide, the bits of `more(lane)` follow them.
    #[inline(always)]
    pub fn candidates(&self, words: &[[u8; 8]; UNIT], more: impl Fn(usize) -> u64) -> Candidates {
        let (mut candidates, close) = self.quick(words);
        if close.contains(&true) {
            for (l, word) in words.iter().enumerate() {
                if close[l] {
                    let word = u64::from_le_bytes(*word);
                    let magnitude = self.magnitude(word << 1 >> 1, more(l));
                    candidates.0[l] = if word >> 63 == 0 {
                        magnitude
                    } else {
                        -magnitude
                    };
                }
            }
        }
        candidates
    }

    /// Variables as floating point finds them, and whether each may be wrong.
    #[inline(always)]
    fn quick(&self, words: &[[u8; 8]; UNIT]) -> (Candidates, [bool; UNIT]) {
        const TO_INTEGER: f64 = (1_u64 << 52) as f64;
        let tolerance = self.scale * TOLERANCE;
        let (mut candidates, mut close) = (Candidates([0; UNIT]), [false; UNIT]);
        for (l, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let sample = f64::laplace([(word >> 32) as u32, word as u32]);
            let magnitude = sample.abs().mul_add(self.scale, self.shift);
            // Adding it leaves the nearest integer in the lowest bits.
            let shifted = magnitude + TO_INTEGER;
            let nearest = shifted - TO_INTEGER;
            let whole =
                (shifted.to_bits() - TO_INTEGER.to_bits()) as i64 - i64::from(magnitude < nearest);
            let minus = (word as i64) >> 63;
            candidates.0[l] = (whole ^ minus) - minus;
            close[l] = (magnitude - nearest).abs() <= tolerance || sample.abs() > SURE;
        }
        (candidates, close)
    }

    /// The magnitude from a uniform number of 63 high and 64 low bits.
    #[cold]
    pub fn magnitude(&self, high: u64, low: u64) -> i64 {
        let uniform = u128::from(high) << 64 | u128::from(low);
        let fraction = (uniform as f64 + 0.5) / 2_f64.powi(127);
        let nearest = (self.shift - self.scale * libm::log(fraction)).round();
        let nearest = nearest.max(1.0);
        nearest as i64 - i64::from(uniform >= self.threshold(nearest))
    }

    /// The probability of a magnitude of at least `k`, in units of 2^-127.
    pub fn threshold(&self, k: f64) -> u128 {
        let decay = |k| {
            let exponent = DoubleDouble::from(k) / DoubleDouble::from(self.scale);
            exponent.exp_of_negative()
        };
        let twice_mean = DoubleDouble::from(1.0) + decay(1.0);
        (decay(k) / twice_mean).times_power_of_2(128).round()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// round(2^128 exp(-k / scale) / (1 + exp(-1 / scale))), from mpmath.
    #[test]
    fn thresholds_are_right_to_101_bits() {
        for (scale, k, wanted) in [
            (1.0, 1.0, 0x44d9_5851_52ea_1935_dae2_3bc7_349e_e58b),
            (1.0, 7.0, 0x2b_b059_46f1_2661_290a_e66e_9d18_965e),
            (300.5, 1.0, 0x7fc9_7a43_30e6_0a33_efae_257b_5f14_2264),
            (300.5, 5000.0, 0x7f_c706_4a51_b7bd_1848_f7fa_a54b),
            (
                2_f64.powi(25),
                3.0 * 2_f64.powi(25),
                0x65f_6c34_cb87_387f_3d14_64de_2b91_85e9,
            ),
        ] {
            let error = Laplace::new(scale).threshold(k).abs_diff(wanted);
            assert!(error <= wanted >> 101, "{scale} {k}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Tries numbers at a threshold and up to twice as far from it as counts as close.
        #[test]
        fn quick_magnitudes_are_the_exact_ones(
            scale in (-3.9_f64..17.3).prop_map(f64::exp),
            place in 0.0_f64..30.0,
            widths in -2.0_f64..2.0,
            beside in -3_i64..3,
            more: u64,
            minus: bool,
        ) {
            let noise = Laplace::new(scale);
            let threshold = (noise.threshold((place * scale).ceil().max(1.0)) >> 64) as i64;
            let beside = (threshold as f64 * TOLERANCE * widths) as i64 + beside;
            let word = (threshold + beside).clamp(0, i64::MAX) as u64;
            let words = [(word | u64::from(minus) << 63).to_le_bytes(); UNIT];
            let (quick, close) = noise.quick(&words);
            let exact = noise.magnitude(word, more);
            let exact = if minus { -exact } else { exact };
            prop_assert!(close[1] || quick.0[1] == exact);
        }

        #[test]
        fn magnitudes_change_at_the_thresholds(
            scale in (-3.9_f64..17.3).prop_map(f64::exp),
            place in 0.0_f64..60.0,
        ) {
            let noise = Laplace::new(scale);
            let k = (place * scale).floor().max(1.0);
            let threshold = noise.threshold(k);
            let magnitude = |uniform: u128| noise.magnitude((uniform >> 64) as u64, uniform as u64);
            prop_assert!(magnitude(threshold) < k as i64 && k as i64 <= magnitude(threshold - 1));
        }
    }

    #[test]
    fn close_numbers_are_decided_by_64_more_bits() {
        let noise = Laplace::new(300.5);
        let threshold = noise.threshold(1000.0);
        let mut words = [1_u64 << 62; UNIT];
        (words[5], words[10]) = ((threshold >> 64) as u64, (threshold >> 64) as u64 | 1 << 63);
        let with = |more: u64| {
            let Candidates(values) = noise.candidates(&words.map(u64::to_le_bytes), |_| more);
            [values[5], values[10]]
        };
        let more = threshold as u64;
        assert_eq!([with(more - 1), with(more)], [[1000, -1000], [999, -999]]);
    }
}
