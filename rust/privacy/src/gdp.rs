//! Gaussian differential privacy: the exact cost of a Gaussian release of known shift.
//!
//! A release is `mu`-GDP if telling its two neighbouring data sets apart is as hard as telling N(0, 1) from
//! N(`mu`, 1): noise of standard deviation `sigma` on a query of L2 sensitivity `Delta` has `mu = Delta / sigma`.
//! Adaptive composition of `mu_1, mu_2, ...` is exactly `sqrt(mu_1^2 + mu_2^2 + ...)` (Dong, Roth and Su 2022,
//! Corollary 3.3), and
//!
//! `delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)`
//!
//! (Balle and Wang 2018, Theorem 8). Both terms carry the factor `phi(t)`, `t = epsilon/mu - mu/2`, and what
//! remains is one integral of a positive function, so that nothing cancels:
//!
//! `delta = phi(t) * integral over u > 0 of exp(-t u - u^2/2) (1 - exp(-mu u))`.

use crate::KernelError;
use crate::quadrature::integral;
use crate::root::smallest;
use dpmesh_numerics::check::{non_negative, open_probability, positive};

/// ln sqrt(2 pi)
const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// An integrand is followed until it has fallen to exp(-TAIL) of its start: beyond the last bit of the sum.
const TAIL: f64 = 42.0;

/// The logarithm of the smallest delta at which a `mu`-GDP release is (`epsilon`, delta)-DP.
///
/// # Errors
/// If `mu` or `epsilon` is not a finite number of at least 0.
pub fn log_delta(mu: f64, epsilon: f64) -> Result<f64, KernelError> {
    non_negative("mu", mu)?;
    non_negative("epsilon", epsilon)?;
    Ok(log_profile(mu, epsilon))
}

/// The smallest epsilon at which a `mu`-GDP release is (epsilon, `delta`)-DP: the first double at which
/// [`log_delta`] does not exceed `ln(delta)`.
///
/// # Errors
/// If `mu` is not a finite number of at least 0, or `delta` is not inside (0, 1).
pub fn epsilon(mu: f64, delta: f64) -> Result<f64, KernelError> {
    non_negative("mu", mu)?;
    open_probability("delta", delta)?;
    let target = delta.ln();
    smallest(|epsilon| log_profile(mu, epsilon) <= target)
        .ok_or_else(|| KernelError::new("mu", "a number whose epsilon is representable", mu))
}

/// [`log_delta`] of each `mu`.
///
/// # Errors
/// As [`log_delta`].
pub fn log_deltas(mu: &[f64], epsilon: f64) -> Result<Vec<f64>, KernelError> {
    each(mu, |mu| log_delta(mu, epsilon))
}

/// [`epsilon`] of each `mu`.
///
/// # Errors
/// As [`epsilon`].
pub fn epsilons(mu: &[f64], delta: f64) -> Result<Vec<f64>, KernelError> {
    each(mu, |mu| epsilon(mu, delta))
}

/// The values at each `mu`, several of them in a task.
fn each(
    mu: &[f64],
    value: impl Fn(f64) -> Result<f64, KernelError> + Sync,
) -> Result<Vec<f64>, KernelError> {
    let tasks = dpmesh_threads::map(mu.chunks(16), |mu| {
        mu.iter()
            .map(|&mu| value(mu))
            .collect::<Result<Vec<_>, _>>()
    });
    tasks
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map(|values| values.concat())
}

/// The analytic Gaussian mechanism (Balle and Wang 2018): the smallest noise (standard deviation
/// over L2 sensitivity) that makes one Gaussian release (`epsilon`, `delta`)-DP.
///
/// # Errors
/// If `epsilon` is not finite and greater than 0, or `delta` is not inside (0, 1).
pub fn noise_to_sensitivity(epsilon: f64, delta: f64) -> Result<f64, KernelError> {
    positive("epsilon", epsilon)?;
    open_probability("delta", delta)?;
    // a margin of a few roundings, so that `self::epsilon` of the result cannot exceed `epsilon`
    let target = delta.ln();
    let target = target - 1e-14 * (1.0 + target.abs());
    smallest(|sigma| sigma > 0.0 && log_profile(1.0 / sigma, epsilon) <= target)
        .ok_or_else(|| KernelError::new("epsilon", "a number that some noise attains", epsilon))
}

/// ln delta(epsilon), by the formula at the head of this module.
fn log_profile(mu: f64, epsilon: f64) -> f64 {
    if mu == 0.0 {
        return f64::NEG_INFINITY;
    }
    let t = epsilon / mu - 0.5 * mu;
    if t > 1e150 {
        return f64::NEG_INFINITY;
    }
    let log_density = -0.5 * t * t - LN_SQRT_2PI;
    if t >= -1.0 {
        log_density + mills_difference(t, mu).ln()
    } else if mu.is_infinite() {
        0.0
    } else {
        // delta is near 1: 1 - delta is a sum of two small positive terms
        (-log_density.exp() * (mills(-t) + mills(t + mu))).ln_1p()
    }
}

/// `(1 - Phi(t)) / phi(t)`: Mills' ratio, for `t >= -1`.
fn mills(t: f64) -> f64 {
    integral(0.0, reach(t), |u| (-u * (t + 0.5 * u)).exp())
}

/// `mills(t) - mills(t + mu)` without its cancellation at small `mu`, for `t >= -1`.
fn mills_difference(t: f64, mu: f64) -> f64 {
    let reach = reach(t);
    if mu * reach > 0.5 * TAIL {
        return mills(t) - mills(t + mu);
    }
    integral(0.0, reach, |u| {
        (-u * (t + 0.5 * u)).exp() * -(-mu * u).exp_m1()
    })
}

/// Where `t u + u^2/2 = TAIL`.
fn reach(t: f64) -> f64 {
    2.0 * TAIL / (t + (t * t + 2.0 * TAIL).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(got: f64, wanted: f64, tolerance: f64) {
        assert!(
            (got / wanted - 1.0).abs() <= tolerance,
            "got {got}, wanted {wanted}"
        );
    }

    #[test]
    fn known_values() {
        close(log_delta(1.0, 1.0).unwrap().exp(), 0.1269367375, 1e-9);
        close(epsilon(1.0, 1e-5).unwrap(), 4.377178096, 1e-9);
        close(epsilon(0.5, 1e-5).unwrap(), 1.993091404, 1e-9);
        close(noise_to_sensitivity(1.0, 1e-5).unwrap(), 3.7306316, 1e-7);
        // delta near 1, and a shift that leaves one of the two terms
        for (mu, epsilon, wanted) in [
            (10.0, 1.0, -9.4082066243329802e-7),
            (8.0, 30.0, -0.59855370047096896),
            (20.0, 200.0, -0.73375589709291535),
        ] {
            close(log_delta(mu, epsilon).unwrap(), wanted, 1e-13);
        }
    }

    #[test]
    fn without_epsilon_delta_is_the_total_variation() {
        // 2 Phi(mu/2) - 1 = erf(mu / sqrt(8)), about mu / sqrt(2 pi) at small mu
        close(
            log_delta(1e-6, 0.0).unwrap().exp(),
            1e-6 / std::f64::consts::TAU.sqrt(),
            1e-12,
        );
        close(
            log_delta(2.0, 0.0).unwrap().exp(),
            0.682_689_492_137_085_9,
            1e-14,
        );
        assert_eq!(log_delta(1e200, 0.0).unwrap(), 0.0);
    }

    #[test]
    fn nothing_released_costs_nothing() {
        assert_eq!(epsilon(0.0, 1e-300).unwrap(), 0.0);
        assert_eq!(log_delta(0.0, 0.0).unwrap(), f64::NEG_INFINITY);
    }

    #[test]
    fn bad_arguments_are_named() {
        let named = |error: KernelError| error.argument();
        assert_eq!(named(epsilon(f64::NAN, 0.1).unwrap_err()), "mu");
        assert_eq!(
            epsilon(-1.0, 0.1).unwrap_err().to_string(),
            "mu: wanted a finite number of at least 0, got -1"
        );
        assert_eq!(named(epsilon(1.0, 0.0).unwrap_err()), "delta");
        assert_eq!(named(epsilon(1.0, 1.0).unwrap_err()), "delta");
        assert_eq!(named(log_delta(-1.0, 0.1).unwrap_err()), "mu");
        assert_eq!(named(log_delta(1.0, f64::INFINITY).unwrap_err()), "epsilon");
        assert_eq!(
            named(noise_to_sensitivity(0.0, 0.1).unwrap_err()),
            "epsilon"
        );
        assert_eq!(named(noise_to_sensitivity(1.0, 1.0).unwrap_err()), "delta");
        assert_eq!(named(log_deltas(&[1.0, -1.0], 1.0).unwrap_err()), "mu");
        assert_eq!(named(epsilons(&[1.0], 2.0).unwrap_err()), "delta");
    }

    proptest! {
        #[test]
        fn the_profile_falls_in_epsilon_and_grows_in_mu(
            log_mu in -14.0_f64..5.0,
            log_epsilon in -14.0_f64..7.0,
            step in 1e-6_f64..1.0,
        ) {
            let (mu, epsilon) = (log_mu.exp(), log_epsilon.exp());
            let here = log_profile(mu, epsilon);
            prop_assert!(here <= 0.0);
            let slack = 1e-13 * here.abs().max(1.0);
            prop_assert!(log_profile(mu, epsilon * (1.0 + step)) <= here + slack);
            prop_assert!(log_profile(mu * (1.0 + step), epsilon) >= here - slack);
        }

        #[test]
        fn epsilon_is_the_first_that_keeps_delta(
            log_mu in -14.0_f64..5.0,
            log_target in -700.0_f64..-0.01,
        ) {
            let mu = log_mu.exp();
            let found = epsilon(mu, log_target.exp()).unwrap();
            prop_assert!(log_profile(mu, found) <= log_target + 1e-12);
            if found > 0.0 {
                prop_assert!(log_profile(mu, found * (1.0 - 1e-9)) >= log_target - 1e-6);
            }
        }

        #[test]
        fn epsilon_is_the_first_at_which_delta_is_just_kept(
            log_mu in -14.0_f64..3.0,
            t in -5.0_f64..37.0,
        ) {
            let mu = log_mu.exp();
            let delta = log_profile(mu, (mu * (t + 0.5 * mu)).max(0.0)).exp();
            let found = epsilon(mu, delta).unwrap();
            prop_assert!(log_profile(mu, found) <= delta.ln());
            prop_assert!(found == 0.0 || log_profile(mu, found.next_down()) > delta.ln());
        }

        #[test]
        fn the_noise_keeps_its_promise(log_target in -700.0_f64..-0.01, log_epsilon in -14.0_f64..7.0) {
            let (delta, target) = (log_target.exp(), log_epsilon.exp());
            let sigma = noise_to_sensitivity(target, delta).unwrap();
            prop_assert!(epsilon(1.0 / sigma, delta).unwrap() <= target);
            prop_assert!(epsilon(1.0 / (sigma * (1.0 - 1e-7)), delta).unwrap() > target);
        }
    }
}
