//! Sums of exponentials, several at a time: where the accountant spends its time.

use pulp::{Arch, NullaryFnOnce};

const LANES: usize = 8;

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

/// `sum(weight * (exp(factor * x) - 1))`, without cancellation where `factor * x` is small.
///
/// Where `factor * x` exceeds 700 the result is not meaningful.
pub(crate) fn sum_expm1(factor: f64, x: &[f64], weight: &[f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || {
            sum_lanes(x, weight, |x, w| {
                let (scale, grown) = exponential(factor * x);
                w * (grown + (scale - 1.0))
            })
        },
    )
}

/// `sum(exp(x))`, for `x` up to 700.
pub(crate) fn sum_exp(x: &[f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || {
            sum_lanes(x, x, |x, _| {
                let (scale, grown) = exponential(x);
                scale + grown
            })
        },
    )
}

/// `ln(sum(exp(x)))`; minus infinity for no terms.
pub(crate) fn log_sum_exp(x: &[f64]) -> f64 {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top.is_infinite() {
        return top;
    }
    let below: Vec<f64> = x.iter().map(|x| x - top).collect();
    top + sum_exp(&below).ln()
}

/// `(scale, grown)` with `exp(x) = scale + grown`, `scale` a power of two and `|grown| < scale / 2`; for `x`
/// up to 700. Branchless, so that the compiler can keep it in vector registers; right to 2 units in the
/// last place, of `exp(x)` and of `exp(x) - 1` alike.
#[inline(always)]
fn exponential(x: f64) -> (f64, f64) {
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

/// Sum of `f(x, y)` in independent lanes, the same on every processor.
#[inline(always)]
fn sum_lanes(x: &[f64], y: &[f64], f: impl Fn(f64, f64) -> f64) -> f64 {
    let (x_whole, x_rest) = x.as_chunks::<LANES>();
    let (y_whole, y_rest) = y.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (x, y) in x_whole.iter().zip(y_whole) {
        for i in 0..LANES {
            lanes[i] += f(x[i], y[i]);
        }
    }
    let rest: f64 = x_rest.iter().zip(y_rest).map(|(&x, &y)| f(x, y)).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Runs `work`, whose parts are all inlined into it, compiled for the widest vectors of this processor.
fn dispatch(work: impl FnMut() -> f64) -> f64 {
    struct Inlined<F>(F);
    impl<F: FnMut() -> f64> NullaryFnOnce for Inlined<F> {
        type Output = f64;
        #[inline(always)]
        fn call(mut self) -> f64 {
            (self.0)()
        }
    }
    Arch::new().dispatch(Inlined(work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_term_is_expm1(x in -750.0_f64..700.0, tiny in -1e-9_f64..1e-9) {
            for x in [x, tiny] {
                let exact = x.exp_m1();
                let slack = 1e-15 * exact.abs();
                prop_assert!((sum_expm1(1.0, &[x], &[1.0]) - exact).abs() <= slack);
            }
        }

        #[test]
        fn sums_agree_with_the_standard_library(
            x in prop::collection::vec(-800.0_f64..800.0, 0..50),
        ) {
            let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let plain = top + x.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
            let value = log_sum_exp(&x);
            prop_assert!(value == plain || (value - plain).abs() <= 1e-15 * plain.abs().max(1.0));
        }
    }
}
