//! Rejection: which discrete Laplace candidates become discrete Gaussian samples.

use super::GROUP;
use crate::double_double::DoubleDouble;

/// Acceptance of discrete Laplace candidates of scale sigma as Gaussian samples: with probability exp(-gamma),
/// `gamma(y) = ((|y| - sigma)^2 - (mode - sigma)^2) / (2 sigma^2) = (|y| - mode)(|y| + mode - 2 sigma) / (2 sigma^2)`,
/// where the `mode` is the integer nearest to sigma, so that `gamma` is 0 there and at least 0 elsewhere.
pub(super) struct Acceptance {
    sigma: f64,
    mode: i32,
}

impl Acceptance {
    /// Relative error that [`exp_of_negative`] of a rounded gamma may have, generously.
    const TOLERANCE: f64 = 1.0 / (1_u64 << 40) as f64;
    const TWO_64: f64 = 18_446_744_073_709_551_616.0;

    pub fn new(sigma: f64) -> Acceptance {
        Acceptance {
            sigma,
            mode: sigma.round() as i32,
        }
    }

    /// Whether each candidate's coin, a number below 2^64, is below `2^64 exp(-gamma)`. Where the coin is the whole
    /// part of that, the next of the `undecided` words is compared with the rest.
    #[inline(always)]
    pub fn decide(
        &self,
        candidates: &[i32; GROUP],
        coins: &[[u8; 8]],
        undecided: &mut impl Iterator<Item = u64>,
    ) -> [bool; GROUP] {
        let mode = f64::from(self.mode);
        let (shift, factor) = (mode - 2.0 * self.sigma, 0.5 / (self.sigma * self.sigma));
        let mut accepted = [false; GROUP];
        let mut close = [false; GROUP];
        for l in 0..GROUP {
            let y = f64::from(candidates[l].abs());
            let coin = u64::from_le_bytes(coins[l]);
            let coin = f64::from((coin >> 32) as u32)
                .mul_add((1_u64 << 32) as f64, f64::from(coin as u32));
            let limit = exp_of_negative((y - mode) * (y + shift) * factor) * Self::TWO_64;
            accepted[l] = coin < limit;
            close[l] = (coin - limit).abs() <= limit * Self::TOLERANCE + 1.0;
        }
        if close.contains(&true) {
            for l in 0..GROUP {
                if close[l] {
                    let coin = u64::from_le_bytes(coins[l]);
                    let excess = self.excess(candidates[l], coin);
                    accepted[l] = excess >= 1.0
                        || excess > 0.0
                            && undecided
                                .next()
                                .is_some_and(|word| (word as f64) < excess * Self::TWO_64);
                }
            }
        }
        accepted
    }

    /// `2^64 exp(-gamma) - coin`, with an error below 2^-20.
    #[cold]
    fn excess(&self, candidate: i32, coin: u64) -> f64 {
        let (y, mode) = (f64::from(candidate.abs()), f64::from(self.mode));
        let shifted = DoubleDouble::sum(y + mode, -2.0 * self.sigma);
        let twice_variance = DoubleDouble::product(self.sigma, self.sigma).times_power_of_2(1);
        let gamma = DoubleDouble::from(y - mode) * shifted / twice_variance;
        gamma.exp_of_negative().times_power_of_2(64).less(coin)
    }
}

/// 1 / k!, enough of them for Taylor's series: 0.35^14 / 14! is below 2^-57.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut terms = [1.0; 14];
    let mut k = 1;
    while k < terms.len() {
        terms[k] = terms[k - 1] / k as f64;
        k += 1;
    }
    terms
};

/// exp(-x) for a number of at least 0, with a relative error below 2^-45 up to 64.
#[inline(always)]
fn exp_of_negative(x: f64) -> f64 {
    use std::f64::consts::{LN_2, LOG2_E};
    // Adding it leaves an integer in the lowest bits, without an instruction for the conversion.
    const TO_INTEGER: f64 = 1.5 * (1_u64 << 52) as f64;
    let x = x.min(700.0);
    let shifted = (-x).mul_add(LOG2_E, TO_INTEGER);
    let twos = shifted - TO_INTEGER;
    let rest = twos.mul_add(-LN_2, -x);
    let mut exp = 0.0_f64;
    for coefficient in INVERSE_FACTORIALS.into_iter().rev() {
        exp = exp.mul_add(rest, coefficient);
    }
    let power = shifted
        .to_bits()
        .wrapping_sub(TO_INTEGER.to_bits())
        .wrapping_add(1023)
        << 52;
    exp * f64::from_bits(power)
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
            coin: u64,
        ) {
            let acceptance = Acceptance::new(sigma);
            let candidate = (place * sigma) as i32;
            let mut candidates = [0; GROUP];
            (candidates[3], candidates[4]) = (candidate, -candidate);
            let coins = [coin.to_le_bytes(); GROUP];
            let decided = acceptance.decide(&candidates, &coins, &mut std::iter::repeat(0));
            let exact = acceptance.excess(candidate, coin) > 0.0;
            prop_assert!(decided[3] == exact && decided[4] == exact);
            prop_assert_eq!(acceptance.excess(acceptance.mode, u64::MAX), 1.0);
        }

        #[test]
        fn equal_coins_are_decided_by_the_next_undecided_word(
            sigma in (1.0_f64..17.0).prop_map(f64::exp),
            place in 1.9_f64..3.0,
        ) {
            let acceptance = Acceptance::new(sigma);
            let candidate = (place * sigma) as i32;
            let probability = acceptance.excess(candidate, 0);
            let guess = probability as u64;
            let beside = acceptance.excess(candidate, guess).floor();
            let coin = (i128::from(guess) + beside as i128) as u64;
            let share = acceptance.excess(candidate, coin);
            prop_assert!((0.0..1.0).contains(&share));
            let with = |word: f64| {
                let words = &mut std::iter::once(word as u64);
                acceptance.decide(&[candidate; GROUP], &[coin.to_le_bytes(); GROUP], words)[0]
            };
            let word = share * Acceptance::TWO_64;
            prop_assert!(with(word * 0.999) || share < 1e-9);
            prop_assert!(!with(word * 1.001 + 1e10));
        }

        #[test]
        fn exponentials_are_within_half_their_tolerance(x in 0.0_f64..64.0) {
            let error = exp_of_negative(x) / (-x).exp() - 1.0;
            prop_assert!(error.abs() < Acceptance::TOLERANCE / 2.0);
        }
    }
}
