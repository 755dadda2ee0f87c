//! Sums of exponentials, several at a time: where the accountant spends its time.

use dpmesh_numerics::dispatch::{Arch, dispatch_on};
use dpmesh_numerics::exponential::exponential;

const LANES: usize = 8;

/// `sum(weight * (exp(factor * x) - 1))`, without cancellation where `factor * x` is small.
///
/// Where `factor * x` exceeds 700 the result is not meaningful.
pub(crate) fn sum_expm1(factor: f64, x: &[f64], weight: &[f64]) -> f64 {
    dispatch_on(
        Arch::new(),
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
    dispatch_on(
        Arch::new(),
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
