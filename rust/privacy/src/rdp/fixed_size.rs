//! The Gaussian on a sample of fixed size, drawn without replacement, under replace-one. The noise multiplier
//! is that of the replace-one sensitivity.

use std::collections::BTreeSet;

use super::grid::{Grid, ln_1p_sum};
use super::pair::{Pair, ln_exp_m1};
use super::poisson::log_binomials;
use crate::vector::log_sum_exp;

/// How the divergence is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FixedSizeBound {
    /// Exact for the pair whose profile dominates the mechanism's in both directions:
    /// `H_e((1-q) N(0, s^2) + q N(1, s^2) || N(0, s^2))` for e >= 1 and its mirror image below
    /// (Zhu, Dong and Wang 2022). The tightest, at any order.
    DominatingPair,
    /// Theorem 27 of Wang, Balle and Kasiviswanathan (2019), as dp-accounting evaluates it: from order 257 on
    /// the terms are those of Theorem 9.
    Theorem27,
    /// Theorem 9 of the same, which needs no moments of the Gaussian's likelihood ratio.
    Theorem9,
}

/// Integer orders up to here are summed term by term in the two theorems.
pub(super) const LARGEST_SUMMED: f64 = 65536.0;

/// An even moment is summed up to this many standard deviations around its peaks: 2e-18 of it lies beyond.
const REACH: f64 = 9.5;

/// A peak below exp(-NEGLIGIBLE) of the other is left out.
const NEGLIGIBLE: f64 = 45.0;

/// Theorem 27 improves on Theorem 9 up to this order.
const IMPROVED_UP_TO: usize = 256;

/// The divergence of the dominating pair at each order.
///
/// With `1 + w` the likelihood ratio of [`Pair`], the integral of `exp((alpha-1) e)` against the profile is
/// that of `h` of orders `alpha` and `1 - alpha` over `w > 0`.
pub(super) fn dominating_pair(pair: Pair, orders: &[f64]) -> Vec<f64> {
    let integrated = |alpha: &&f64| !pair.shift_dominates(**alpha) && Grid::reaches(pair, **alpha);
    let largest = orders.iter().filter(integrated).copied().reduce(f64::max);
    let mut grid = largest.map(|alpha| Grid::where_ratio_grows(pair, alpha));
    let mut log_moment = |alpha: f64| match &mut grid {
        Some(grid) if integrated(&&alpha) => grid.log_symmetrised_moment(alpha),
        // h of order 1 - alpha is at most (alpha - 1) w, and E[w] over w > 0 at most q
        _ => ln_1p_sum(
            (alpha - 1.0) * pair.rate - 1.0,
            pair.log_moment_bound(alpha),
        ),
    };
    orders
        .iter()
        .map(|&alpha| log_moment(alpha) / (alpha - 1.0))
        .collect()
}

/// Orders, and the integers next to them.
#[derive(Debug)]
pub(super) struct Orders {
    alphas: Vec<f64>,
    /// n and ln C(n, j) for j from 2, each integer order once, in increasing order
    integers: Vec<(usize, Vec<f64>)>,
}

impl Orders {
    pub(super) fn new(alphas: &[f64]) -> Orders {
        let around = alphas
            .iter()
            .flat_map(|alpha| [alpha.floor(), alpha.ceil()]);
        let distinct: BTreeSet<usize> = around.map(|n| n as usize).collect();
        Orders {
            alphas: alphas.to_vec(),
            integers: distinct
                .into_iter()
                .map(|n| (n, log_binomials(n)))
                .collect(),
        }
    }
}

/// The bound of Theorem 27 or 9 at each order; between integers the logarithm of the moment is interpolated,
/// as it is convex (Corollary 10).
pub(super) fn theorem(pair: Pair, improved: bool, orders: &Orders) -> Vec<f64> {
    let longest = orders.integers.last().map_or(0, |(_, log)| log.len());
    let plain = plain_terms(pair, longest);
    let better = if improved {
        improved_terms(pair, &plain)
    } else {
        Vec::new()
    };
    let log_rate = pair.rate.ln();
    let log_moment = |(n, log_binomials): &(usize, Vec<f64>)| {
        let terms = if improved && *n <= IMPROVED_UP_TO {
            &better
        } else {
            &plain
        };
        let factors = log_binomials.iter().zip(terms).zip(2..);
        let logs: Vec<f64> = factors
            .map(|((binomial, term), j)| binomial + term + f64::from(j) * log_rate)
            .collect();
        ln_1p_sum(0.0, log_sum_exp(&logs))
    };
    let log_moments: Vec<f64> = orders.integers.iter().map(log_moment).collect();
    let at = |n: f64| log_moments[orders.integers.partition_point(|(m, _)| *m < n as usize)];
    let divergence = |&alpha: &f64| {
        let (below, above) = (at(alpha.floor()), at(alpha.ceil()));
        if above.is_infinite() {
            return above;
        }
        (below + alpha.fract() * (above - below)) / (alpha - 1.0)
    };
    orders.alphas.iter().map(divergence).collect()
}

/// ln of the factor of `q^j C(n, j)` in Theorem 9, for j from 2.
fn plain_terms(pair: Pair, count: usize) -> Vec<f64> {
    let variance = pair.sigma * pair.sigma;
    let second = (4.0_f64.ln() + ln_exp_m1(1.0 / variance)).min(2.0_f64.ln() + 1.0 / variance);
    let other = |j: usize| 2.0_f64.ln() + 0.5 * (j * (j - 1)) as f64 / variance;
    (2..count + 2)
        .map(|j| if j == 2 { second } else { other(j) })
        .collect()
}

/// The same for Theorem 27, where from j = 3 on `4 sqrt(m_a m_b)` may be smaller, with `m_l` the moment
/// `E[(ratio - 1)^l]` of the unsampled Gaussian and `a <= j <= b` the even numbers next to j.
fn improved_terms(pair: Pair, plain: &[f64]) -> Vec<f64> {
    let count = plain.len().min(IMPROVED_UP_TO - 1);
    let even = log_even_moments(pair.sigma, count / 2 + 1);
    let better = |(i, &term): (usize, &f64)| match i + 2 {
        2 => term,
        j => term.min(4.0_f64.ln() + 0.5 * (even[j / 2 - 1] + even[j.div_ceil(2) - 1])),
    };
    plain.iter().enumerate().take(count).map(better).collect()
}

/// ln E[(exp((2x - 1) / 2s^2) - 1)^l], x from N(0, s^2), for l = 2, 4, ... : `count` of them.
///
/// As finite differences of `exp(l (l-1) / 2s^2)` they would cancel; as integrals they are positive. Where
/// `exp(-(l-1) / 2s^2)` is lost in rounding, so is the 1, and the moment is that of the ratio itself.
fn log_even_moments(sigma: f64, count: usize) -> Vec<f64> {
    let variance = sigma * sigma;
    let is_plain = |l: f64| l - 1.0 > 2.0 * variance * 80.0;
    let orders = || (1..=count).map(|k| 2.0 * k as f64);
    let largest = orders().rev().find(|&l| !is_plain(l)).unwrap_or(0.0);
    // density * |ratio - 1|^l has one peak where the ratio is below 1 and one where it is above, between
    // -sqrt(l) and l/s + sqrt(l); it falls off from each at least as fast as a normal density
    let (start, step) = (-largest.sqrt() - REACH, 0.5);
    let nodes = ((largest / sigma - 2.0 * start) / step) as usize;
    let (mut log_ratios, mut log_densities) = (Vec::new(), Vec::new());
    for t in (0..nodes).map(|k| start + k as f64 * step) {
        log_ratios.push(((t - 0.5 / sigma) / sigma).exp_m1().abs().ln());
        log_densities.push((step / std::f64::consts::TAU.sqrt()).ln() - 0.5 * t * t);
    }
    let reach = (REACH / step) as usize;
    let above = ((0.5 / sigma - start) / step).ceil() as usize; // the first node with a ratio above 1
    let (mut left, mut right, mut logs) = (above - 1, above, Vec::new());
    let log_moment = |l: f64| {
        if is_plain(l) {
            return 0.5 * l * (l - 1.0) / variance;
        }
        let log = |i: usize| l * log_ratios[i] + log_densities[i];
        while left > 0 && log(left - 1) > log(left) {
            left -= 1;
        }
        while right + 1 < nodes && log(right + 1) > log(right) {
            right += 1;
        }
        let around = |peak: usize| peak.saturating_sub(reach)..(peak + reach + 1).min(nodes);
        logs.clear();
        logs.extend(around(right).filter(|&i| i >= above).map(log));
        if log(left) > log(right) - NEGLIGIBLE {
            logs.extend(around(left).filter(|&i| i < above).map(log));
        }
        log_sum_exp(&logs)
    };
    orders().map(log_moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn noise_whose_square_is_0_costs_everything() {
        let pair = Pair {
            rate: 1e-3,
            sigma: 1e-170,
        };
        let orders = [1.5, 2.0, 7.25, 256.0, 300.5];
        for improved in [false, true] {
            let costs = theorem(pair, improved, &Orders::new(&orders));
            assert_eq!(costs, [f64::INFINITY; 5]);
        }
        assert_eq!(dominating_pair(pair, &orders), [f64::INFINITY; 5]);
    }

    proptest! {
        /// The oracle sums over all nodes, close to each other, and looks for no peak.
        #[test]
        fn even_moments_are_integrals(log_noise in -2.0_f64..7.0, count in 1_usize..129) {
            let (sigma, l) = (log_noise.exp(), 2.0 * count as f64);
            let found = log_even_moments(sigma, count)[count - 1];
            let (start, step) = (-l.sqrt() - 10.0, 0.1);
            let nodes = ((l / sigma - 2.0 * start) / step) as usize;
            let log = |i: usize| {
                let t = start + (i as f64 + 0.5) * step;
                let exponent = (t - 0.5 / sigma) / sigma;
                let log_ratio = if exponent > 40.0 { exponent } else { exponent.exp_m1().abs().ln() };
                l * log_ratio - 0.5 * t * t
            };
            let logs: Vec<f64> = (0..nodes).map(log).collect();
            let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logs.iter().map(|log| (log - top).exp()).sum();
            let slow = top + (sum * step / std::f64::consts::TAU.sqrt()).ln();
            prop_assert!((found - slow).abs() < 1e-11 * slow.abs().max(1.0), "{found}, slowly {slow}");
        }
    }
}
