//! The coins that decide whether a code goes up, and the resulting codes.

use crate::Sample;

/// A number from [0, 1) that decides whether a code goes up.
pub(super) trait Coin: Copy + Default + Send + Sync {
    /// Random words that make a coin, one or two.
    const WORDS: usize;
    fn from_words(words: [u32; 2]) -> Self;
    fn to_f64(self) -> f64;
    /// The code of `x`, or a number beyond the codes of the type if it does not fit.
    fn code(self, x: f64, per_step: f64) -> i64;
}

/// The code of `x` as a float, for a coin from [0, 1).
#[inline(always)]
pub(super) fn code(x: f64, coin: f64, per_step: f64) -> f64 {
    let t = x * per_step;
    let floor = t.floor();
    floor + if coin < t - floor { 1.0 } else { 0.0 }
}

/// A coin that is compared with the fraction.
#[derive(Clone, Copy, Default)]
pub(super) struct Compared<T>(T);

impl<T: Sample> Coin for Compared<T> {
    const WORDS: usize = T::WORDS;

    #[inline(always)]
    fn from_words(words: [u32; 2]) -> Self {
        Compared(T::uniform(words))
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.0.to_f64()
    }

    #[inline(always)]
    fn code(self, x: f64, per_step: f64) -> i64 {
        let bits = (code(x, self.to_f64(), per_step) + SHIFT).to_bits() as i64;
        bits.wrapping_sub(SHIFT.to_bits() as i64)
    }
}

/// The coin of an `f32` in steps of 2^-24: for codes of few bits, beside which 24 bits of fraction fit.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted(u32);

impl Counted {
    const BITS: u32 = 24;
    const STEPS: f64 = (1_u32 << Self::BITS) as f64;
    /// The highest code that it is used for; up to 2^27 would do.
    pub const HIGHEST: i64 = i16::MAX as i64;
}

impl Coin for Counted {
    const WORDS: usize = 1;

    #[inline(always)]
    fn from_words([word, _]: [u32; 2]) -> Self {
        Counted(word >> (u32::BITS - Self::BITS))
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.0) / Self::STEPS
    }

    /// Counted in steps: the code goes up if the fraction, rounded up, is more than the coin, which is if adding
    /// `STEPS - 1 - coin` to it makes one more whole.
    #[inline(always)]
    fn code(self, x: f64, per_step: f64) -> i64 {
        let counted = (x * (per_step * Self::STEPS)).ceil() + (SHIFT + Self::STEPS - 1.0);
        let bits = counted.to_bits().wrapping_sub(u64::from(self.0));
        (bits >> Self::BITS) as i64 - (SHIFT.to_bits() >> Self::BITS) as i64
    }
}

/// Adding it to a whole number below 2^51 leaves that number in the low bits: before AVX-512 no vector instruction
/// converts a float to a 64-bit integer. Numbers that are larger, infinite or NaN show in the high bits.
const SHIFT: f64 = 1.5 * (1_u64 << 52) as f64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAST: u32 = (1 << Counted::BITS) - 1;

    fn coins() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), Just(1), Just(LAST), 0..=LAST]
    }

    /// Fails unless counting gives the code that comparing gives or, where that is too large, one beyond its types.
    fn check(x: f32, coin: u32, per_step: f64) -> Result<(), TestCaseError> {
        let (x, coin) = (f64::from(x), Counted(coin));
        let (wanted, got) = (code(x, coin.to_f64(), per_step), coin.code(x, per_step));
        if wanted.abs() < f64::from(1 << 26) {
            prop_assert_eq!(got as f64, wanted);
        } else {
            prop_assert!(!(-Counted::HIGHEST - 1..=Counted::HIGHEST).contains(&got));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn counting_is_comparing(
            whole in -40_000_i32..40_000, eighths in 0_u8..8, coin in coins(), step in 0.1_f64..10.0
        ) {
            check(whole as f32 + f32::from(eighths) / 8.0, coin, 1.0)?;
            check(whole as f32, coin, 1.0 / step)?;
        }

        #[test]
        fn no_number_gets_the_code_of_another(
            bits: u32, coin in coins(), digits in -150_i32..=150
        ) {
            check(f32::from_bits(bits), coin, 10_f64.powi(digits))?;
            for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN, -0.0] {
                check(x, coin, 10_f64.powi(digits))?;
            }
        }
    }

    #[test]
    fn as_many_coins_go_up_as_the_fraction_has_steps() {
        let fraction = 3.0 / Counted::STEPS;
        let codes = |x: f64| [0, 1, 2, 3, LAST].map(|coin| Counted(coin).code(x, 1.0));
        assert_eq!(codes(5.0 + fraction), [6, 6, 6, 5, 5]);
        assert_eq!(codes(-6.0 + fraction), [-5, -5, -5, -6, -6]);
        assert_eq!(codes(5.0 + 0.9 * fraction), [6, 6, 6, 5, 5]);
        assert_eq!(codes(7.0), [7; 5]);
        assert_eq!(codes(-7.0), [-7; 5]);
    }
}
