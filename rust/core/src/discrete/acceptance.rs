//! Rejection: which discrete Laplace candidates become discrete Gaussian samples.

use super::UNIT;
use crate::double_double::DoubleDouble;
use crate::exponential::exp_of_negative;

/// Acceptance of discrete Laplace candidates of scale sigma as Gaussian samples: with probability exp(-gamma),
/// `gamma(y) = ((|y| - sigma)^2 - (mode - sigma)^2) / (2 sigma^2) = (|y| - mode)(|y| + mode - 2 sigma) / (2 sigma^2)`,
/// where the `mode` is the integer nearest to sigma, so that `gamma` is 0 there and at least 0 elsewhere.
pub(super) struct Acceptance {
    sigma: f64,
    mode: f64,
}

/// Which candidates of a unit are accepted.
#[repr(align(64))]
pub(super) struct Accepted(pub [bool; UNIT]);

impl Acceptance {
    /// A generous bound of the relative error of [`exp_of_negative`] of a rounded gamma.
    const TOLERANCE: f64 = 1.0 / (1_u64 << 38) as f64;

    pub fn new(sigma: f64) -> Acceptance {
        Acceptance {
            sigma,
            mode: sigma.round(),
        }
    }

    /// Whether each candidate's coin is below `exp(-gamma)`. Where its first 32 bits do not decide, those of
    /// `more(lane)` follow them.
    #[inline(always)]
    pub fn decide(
        &self,
        candidates: &[i64; UNIT],
        coins: &[[u8; 4]; UNIT],
        more: impl Fn(usize) -> u64,
    ) -> Accepted {
        const TO_FLOAT: f64 = (1_u64 << 52) as f64;
        let (shift, factor) = (
            self.mode - 2.0 * self.sigma,
            0.5 / (self.sigma * self.sigma),
        );
        let (mut accepted, mut close) = (Accepted([false; UNIT]), [false; UNIT]);
        for l in 0..UNIT {
            let y = f64::from_bits(candidates[l].unsigned_abs() | TO_FLOAT.to_bits()) - TO_FLOAT;
            let coin = f64::from(u32::from_le_bytes(coins[l])) + 0.5;
            let gamma = (y - self.mode) * (y + shift) * factor;
            let limit = exp_of_negative(gamma) * (1_u64 << 32) as f64;
            accepted.0[l] = coin < limit;
            close[l] = (coin - limit).abs() <= limit.mul_add(Self::TOLERANCE, 0.5);
        }
        if close.contains(&true) {
            for l in 0..UNIT {
                if close[l] {
                    let coin = u128::from(u32::from_le_bytes(coins[l])) << 64 | u128::from(more(l));
                    accepted.0[l] = coin < self.threshold(candidates[l]);
                }
            }
        }
        accepted
    }

    /// `exp(-gamma)` in units of 2^-96.
    #[cold]
    fn threshold(&self, candidate: i64) -> u128 {
        let y = candidate.unsigned_abs() as f64;
        let shifted = DoubleDouble::sum(y + self.mode, -2.0 * self.sigma);
        let twice_variance = DoubleDouble::product(self.sigma, self.sigma).times_power_of_2(1);
        let gamma = DoubleDouble::from(y - self.mode) * shifted / twice_variance;
        gamma.exp_of_negative().times_power_of_2(96).round()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn quick_decisions_are_the_exact_ones(
            sigma in (-5.0_f64..17.0).prop_map(f64::exp),
            place in 0.0_f64..10.0,
            beside in -2_i64..3,
            anywhere: Option<u32>,
        ) {
            let acceptance = Acceptance::new(sigma);
            let candidate = (place * sigma) as i64;
            let threshold = acceptance.threshold(candidate);
            let limit = ((threshold >> 64) as i64 + beside).clamp(0, u32::MAX.into());
            let coin = anywhere.unwrap_or(limit as u32);
            let mut candidates = [0; UNIT];
            (candidates[3], candidates[4]) = (candidate, -candidate);
            for more in [0, threshold as u64, u64::MAX] {
                let exact = (u128::from(coin) << 64 | u128::from(more)) < threshold;
                let decided = acceptance.decide(&candidates, &[coin.to_le_bytes(); UNIT], |_| more);
                prop_assert!(decided.0[3] == exact && decided.0[4] == exact);
            }
            prop_assert_eq!(acceptance.threshold(acceptance.mode as i64), 1 << 96);
        }
    }
}
