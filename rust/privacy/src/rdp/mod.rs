//! Rényi differential privacy: the divergence of one round at each order, summed over rounds that may all
//! differ.
//!
//! A mechanism is (alpha, rho)-RDP if the Rényi divergence of order alpha between its distributions on neighbouring data sets is
//! at most rho; adaptive composition adds up the rhos at each order (Mironov 2017). The functions below take one value
//! for each round, and with `count` how often that round happens, and return the sum at each order. Rounds with equal
//! parameters are evaluated once.

mod fixed_size;
mod grid;
mod laplace;
mod pair;
mod poisson;

use std::collections::BTreeMap;

use dpmesh_threads::map;

use crate::KernelError;
use dpmesh_numerics::check::{non_negative, positive, require};
pub use fixed_size::FixedSizeBound;
use pair::Pair;

/// Rounds that one task sums, so that the result does not depend on the number of threads.
const ROUNDS_PER_TASK: usize = 16;

/// Gaussian noise: `alpha / 2s^2` at the noise multiplier `s`, exact.
///
/// # Errors
/// If a noise multiplier is not finite and positive, a count negative, an order not finite or not above 1, or
/// the lengths differ.
pub fn gaussian(noise: &[f64], count: &[f64], orders: &[f64]) -> Result<Vec<f64>, KernelError> {
    check(&[], noise, count, orders)?;
    let halves = noise.iter().zip(count).map(|(s, n)| 0.5 * n / (s * s));
    let sum: f64 = halves.sum();
    Ok(orders.iter().map(|alpha| alpha * sum).collect())
}

/// Laplace noise, exact (Mironov 2017, Proposition 6).
///
/// # Errors
/// As [`gaussian`].
pub fn laplace(noise: &[f64], count: &[f64], orders: &[f64]) -> Result<Vec<f64>, KernelError> {
    check(&[], noise, count, orders)?;
    Ok(sum_rounds(&[], noise, count, orders.len(), |_, s| {
        laplace::divergences(1.0 / s, orders)
    }))
}

/// Gaussian noise on a Poisson sample, under add-remove: exact at every order, integer or not.
///
/// # Errors
/// As [`gaussian`], and if a sampling rate is not in (0, 1].
pub fn poisson_gaussian(
    rate: &[f64],
    noise: &[f64],
    count: &[f64],
    orders: &[f64],
) -> Result<Vec<f64>, KernelError> {
    check(rate, noise, count, orders)?;
    let prepared: Vec<_> = orders.iter().map(|&a| poisson::Order::new(a)).collect();
    Ok(sum_sampled(rate, noise, count, orders, |pair| {
        poisson::divergences(pair, &prepared)
    }))
}

/// Gaussian noise on a sample of fixed size drawn without replacement, under replace-one: an upper bound.
/// The noise multiplier is that of the replace-one sensitivity.
///
/// # Errors
/// As [`poisson_gaussian`], and if an order exceeds 65536 in one of the two theorems, whose sums have as many
/// terms.
pub fn fixed_size_gaussian(
    bound: FixedSizeBound,
    rate: &[f64],
    noise: &[f64],
    count: &[f64],
    orders: &[f64],
) -> Result<Vec<f64>, KernelError> {
    check(rate, noise, count, orders)?;
    if bound == FixedSizeBound::DominatingPair {
        return Ok(sum_sampled(rate, noise, count, orders, |pair| {
            fixed_size::dominating_pair(pair, orders)
        }));
    }
    let wanted = "orders up to 65536, for the sums of this theorem";
    for &alpha in orders {
        require(alpha <= fixed_size::LARGEST_SUMMED, "orders", wanted, alpha)?;
    }
    let improved = bound == FixedSizeBound::Theorem27;
    let prepared = fixed_size::Orders::new(orders);
    Ok(sum_sampled(rate, noise, count, orders, |pair| {
        fixed_size::theorem(pair, improved, &prepared)
    }))
}

/// [`sum_rounds`] of a sampled Gaussian; without sampling it is the Gaussian.
fn sum_sampled(
    rate: &[f64],
    noise: &[f64],
    count: &[f64],
    orders: &[f64],
    divergences: impl Fn(Pair) -> Vec<f64> + Sync,
) -> Vec<f64> {
    sum_rounds(rate, noise, count, orders.len(), |rate, sigma| {
        if rate == 1.0 {
            let half = 0.5 / (sigma * sigma);
            orders.iter().map(|alpha| alpha * half).collect()
        } else {
            divergences(Pair { rate, sigma })
        }
    })
}

/// The sum over rounds of `count * divergences(rate, noise)`, each distinct round evaluated once; `rate` may
/// be empty, for rounds without sampling.
fn sum_rounds(
    rate: &[f64],
    noise: &[f64],
    count: &[f64],
    orders: usize,
    divergences: impl Fn(f64, f64) -> Vec<f64> + Sync,
) -> Vec<f64> {
    let mut distinct: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let rates = rate.iter().copied().chain(std::iter::repeat(1.0));
    for ((rate, noise), count) in rates.zip(noise).zip(count) {
        *distinct
            .entry((rate.to_bits(), noise.to_bits()))
            .or_default() += count;
    }
    let rounds: Vec<_> = distinct.into_iter().filter(|&(_, n)| n > 0.0).collect();
    let task = |rounds: &[((u64, u64), f64)]| {
        let mut sums = vec![0.0; orders];
        for &((rate, noise), count) in rounds {
            let terms = divergences(f64::from_bits(rate), f64::from_bits(noise));
            sums.iter_mut()
                .zip(terms)
                .for_each(|(sum, term)| *sum += count * term);
        }
        sums
    };
    let partial = map(rounds.chunks(ROUNDS_PER_TASK), task);
    let mut total = vec![0.0; orders];
    for sums in partial {
        total
            .iter_mut()
            .zip(sums)
            .for_each(|(total, sum)| *total += sum);
    }
    total
}

fn check(rate: &[f64], noise: &[f64], count: &[f64], orders: &[f64]) -> Result<(), KernelError> {
    for (argument, values) in [("rate", rate), ("count", count)] {
        if values.len() != noise.len() && !(argument == "rate" && values.is_empty()) {
            let wanted = format!("one for each of {} rounds", noise.len());
            return Err(KernelError::new(argument, wanted, values.len()));
        }
    }
    for &q in rate {
        require(q > 0.0 && q <= 1.0, "rate", "a number in (0, 1]", q)?;
    }
    for &s in noise {
        positive("noise", s)?;
    }
    for &n in count {
        non_negative("count", n)?;
    }
    for &alpha in orders {
        let holds = alpha > 1.0 && alpha.is_finite();
        require(holds, "orders", "finite numbers greater than 1", alpha)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dpmesh_threads::with_threads;
    use proptest::prelude::*;

    fn poisson(rate: f64, noise: f64, order: f64) -> f64 {
        poisson_gaussian(&[rate], &[noise], &[1.0], &[order]).unwrap()[0]
    }

    fn fixed(bound: FixedSizeBound, rate: f64, noise: f64, order: f64) -> f64 {
        fixed_size_gaussian(bound, &[rate], &[noise], &[1.0], &[order]).unwrap()[0]
    }

    fn dominating(rate: f64, noise: f64, order: f64) -> f64 {
        fixed(FixedSizeBound::DominatingPair, rate, noise, order)
    }

    #[test]
    fn known_values() {
        let close = |got: f64, wanted: f64, digits: f64| {
            assert!((got / wanted - 1.0).abs() < digits, "{got} {wanted}");
        };
        close(poisson(0.2, 1.6, 3.3), 0.034902451, 1e-7);
        close(poisson(0.05, 1.5, 3.0), 0.0021635751, 1e-7);
        close(poisson(0.01, 4.0, 20.0), 6.526313e-05, 1e-6);
        close(dominating(0.05, 1.3, 4.0), 0.0060140418, 1e-7);
        close(dominating(0.2, 1.6, 2.0), 0.023703403, 1e-7);
        close(
            fixed(FixedSizeBound::Theorem27, 0.05, 1.3, 4.0),
            0.017771606,
            1e-7,
        );
        close(
            fixed(FixedSizeBound::Theorem9, 0.2, 1.6, 2.0),
            0.073682219,
            1e-7,
        );
        assert_eq!(gaussian(&[4.0], &[3.0], &[2.0]).unwrap(), [0.1875]);
        // By quadrature and sums in 60 to 400 digits.
        for (rate, noise, order, wanted) in [
            (0.01, 0.3, 1.5, 0.109_452_481_710_675_9),
            (1e-6, 0.1, 300.5, 15_011.138_360_859_204),
            (0.001, 0.3, 20.5, 106.626_889_749_446_13),
            (0.5, 3.0, 1000.5, 54.889_492_658_845_87),
            (1e-3, 0.02, 1.5, 1_854.276_734_163_053_6),
            (0.01, 0.1, 1.1, 9.293_677_539_705_053),
        ] {
            close(poisson(rate, noise, order), wanted, 1e-13);
        }
        // Orders that weigh what lies far out, or beyond the grid.
        for (rate, noise, order, [add_remove, replace]) in [
            (1e-6, 1.0, 32.5, [1.995_901_826_817_471_8; 2]),
            (1e-6, 1.0, 100.1, [36.095_079_648_312_57; 2]),
            (0.1, 10.0, 1000.5, [2.698_022_994_634_746; 2]),
            (1e-4, 10.0, 4000.5, [10.789_856_755_071_747; 2]),
            (
                0.001,
                30.0,
                3000.5,
                [1.673_452_048_337_548e-6, 1.712_420_794_421_613e-6],
            ),
        ] {
            close(poisson(rate, noise, order), add_remove, 1e-12);
            close(dominating(rate, noise, order), replace, 1e-12);
        }
        for (rate, noise, order, wanted) in [
            (0.01, 4.0, 256.0, 3.379_500_574_721_463_8),
            (0.001, 10.0, 256.0, 5.220_764_012_120_274e-6),
            (0.3, 2.0, 7.25, 0.317_490_089_378_593_8),
            (0.05, 0.5, 3.5, 3.292_080_399_641_955_5),
            (0.01, 5.0, 60.0, 5.205_055_411_824_959e-4),
            (0.01, 4.0, 257.0, 3.410_809_772_609_634_2),
        ] {
            let found = fixed(FixedSizeBound::Theorem27, rate, noise, order);
            close(found, wanted, 1e-13);
        }
        for (noise, order, wanted) in [
            (0.5, 2.0, 1.595_773_500_587_617_8),
            (0.5, 1.2, 1.279_666_578_964_539),
            (1.0 / 0.3, 2.0, 0.079_590_067_169_134_18),
        ] {
            close(
                laplace(&[noise], &[1.0], &[order]).unwrap()[0],
                wanted,
                1e-13,
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn curves_are_bounded_and_monotone(
            log_rate in -14.0_f64..0.0,
            log_noise in -7.0_f64..14.0,
            log_excess in -7.0_f64..18.0,
            step in 1e-3_f64..1.0,
        ) {
            let (rate, noise) = (log_rate.exp(), log_noise.exp());
            let order = 1.0 + log_excess.exp();
            for curve in [poisson, dominating] {
                let here = curve(rate, noise, order);
                let slack = here * 1e-9;
                prop_assert!(here > 0.0 && here.is_finite());
                prop_assert!(here <= order / (2.0 * noise * noise) * (1.0 + 1e-9));
                // where quadrature does not reach, bounds stand in, which are right only up to a factor
                let reached = noise > 0.011 && order < 1e7 * noise;
                if reached {
                    prop_assert!(curve(rate, noise, order * (1.0 + step)) >= here - slack);
                    prop_assert!(curve(rate, noise * (1.0 + step), order) <= here + slack);
                    prop_assert!(curve((rate * (1.0 + step)).min(1.0), noise, order) >= here - slack);
                }
            }
            prop_assert!(poisson(rate, noise, order) <= dominating(rate, noise, order) * (1.0 + 1e-9));
        }

        #[test]
        fn the_theorems_bound_the_dominating_pair(
            log_rate in -14.0_f64..-0.01,
            log_noise in -3.0_f64..8.0,
            order in 1.01_f64..300.0,
        ) {
            let (rate, noise) = (log_rate.exp(), log_noise.exp());
            let nine = fixed(FixedSizeBound::Theorem9, rate, noise, order);
            let improved = fixed(FixedSizeBound::Theorem27, rate, noise, order);
            prop_assert!(improved <= nine * (1.0 + 1e-12));
            prop_assert!(dominating(rate, noise, order) <= improved * (1.0 + 1e-9));
        }
    }

    #[test]
    fn rounds_add_up_in_any_order_on_any_number_of_threads() {
        let rate: Vec<f64> = (1..=100).map(|i| 0.001 * f64::from(i % 40 + 1)).collect();
        let noise: Vec<f64> = (1..=100).map(|i| 0.5 + 0.1 * f64::from(i % 7)).collect();
        let (count, orders) = (vec![3.0; 100], [1.5, 2.0, 30.0, 1000.0]);
        let on = |threads: usize, reversed: bool| {
            let (mut rate, mut noise) = (rate.clone(), noise.clone());
            if reversed {
                rate.reverse();
                noise.reverse();
            }
            with_threads(threads, || {
                poisson_gaussian(&rate, &noise, &count, &orders).unwrap()
            })
        };
        assert_eq!(on(1, false), on(4, true));
        let slow: f64 = rate
            .iter()
            .zip(&noise)
            .map(|(&q, &s)| 3.0 * poisson(q, s, 1.5))
            .sum();
        assert!((on(1, false)[0] / slow - 1.0).abs() < 1e-12);
    }

    #[test]
    fn without_sampling_it_is_the_gaussian() {
        assert_eq!(
            poisson(1.0, 2.0, 3.5),
            gaussian(&[2.0], &[1.0], &[3.5]).unwrap()[0]
        );
        assert_eq!(dominating(1.0, 2.0, 3.5), 3.5 / 8.0);
    }

    #[test]
    fn laplace_lies_between_its_two_limits() {
        for noise in [1e-3, 0.5, 1.0, 30.0, 1e6, 1e9] {
            let orders = [1.0 + 1e-6, 1.5, 2.0, 10.0, 1e3, 1e12];
            let curve = laplace(&[noise], &[1.0], &orders).unwrap();
            assert!(curve.is_sorted());
            for (alpha, rho) in orders.iter().zip(&curve) {
                let pure: f64 = 1.0 / noise;
                assert!(*rho <= pure.min(0.5 * alpha * pure * pure) * (1.0 + 1e-12));
                // the Kullback-Leibler divergence, e - 1 + exp(-e)
                assert!(*rho >= (pure + (-pure).exp_m1()) * (1.0 - 1e-6) - 1e-24);
            }
            assert!(curve[5] >= 1.0 / noise - 1e-12);
        }
    }

    #[test]
    fn bad_arguments_are_named() {
        let named = |rate: &[f64], noise: &[f64], count: &[f64], orders: &[f64]| {
            poisson_gaussian(rate, noise, count, orders)
                .unwrap_err()
                .argument()
        };
        assert_eq!(named(&[0.0], &[1.0], &[1.0], &[2.0]), "rate");
        assert_eq!(named(&[1.1], &[1.0], &[1.0], &[2.0]), "rate");
        assert_eq!(named(&[0.5, 0.5], &[1.0], &[1.0], &[2.0]), "rate");
        assert_eq!(named(&[0.5], &[f64::NAN], &[1.0], &[2.0]), "noise");
        assert_eq!(named(&[0.5], &[1.0], &[-1.0], &[2.0]), "count");
        assert_eq!(named(&[0.5], &[1.0], &[1.0, 2.0], &[2.0]), "count");
        assert_eq!(named(&[0.5], &[1.0], &[1.0], &[1.0]), "orders");
        let theorem = |rate, order| {
            fixed_size_gaussian(FixedSizeBound::Theorem9, &[rate], &[1.0], &[1.0], &[order])
        };
        assert!(theorem(0.5, 65536.0).is_ok());
        assert_eq!(theorem(0.5, 65537.0).unwrap_err().argument(), "orders");
        assert_eq!(theorem(0.0, 2.0).unwrap_err().argument(), "rate");
        for unsampled in [gaussian, laplace] {
            let named = |noise, count, order| {
                let error = unsampled(&[noise], &[count], &[order]).unwrap_err();
                error.argument()
            };
            assert_eq!(named(0.0, 1.0, 2.0), "noise");
            assert_eq!(named(1.0, -1.0, 2.0), "count");
            assert_eq!(named(1.0, 1.0, 1.0), "orders");
        }
    }
}
