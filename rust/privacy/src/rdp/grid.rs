//! Moments of a sampled Gaussian's likelihood ratio, by quadrature.
//!
//! With `1 + w` the likelihood ratio, `E[w] = 0`, and the moment of order `1 + b` is `1 + E[h]` with
//! `h = (1 + w)^(1+b) - 1 - (1+b) w >= 0`: a positive integrand, so that moments near 1 keep their digits. It is
//! evaluated as `(1 + w) (exp(b ln(1 + w)) - 1) - b w`, and as a binomial series where `w` is small.

use std::f64::consts::PI;

use super::pair::Pair;
use crate::quadrature;
use crate::vector::{log_sum_exp, sum_expm1};

/// A standard normal is followed to this many standard deviations: 2e-18 lies beyond.
const TAIL: f64 = 8.7;

/// The grid covers about this many standard deviations of the noise, or fewer if no order reaches so far. What an order
/// has beyond the grid is gathered around its own peaks.
const NEAR: f64 = 64.0;

/// Where `(1 + w)^b` exceeds exp(LARGE), the other terms of `h` are lost in rounding.
const LARGE: f64 = 300.0;

/// Parts of the integrand below exp(-NEGLIGIBLE) of a peak, or of the integral, are left out.
const NEGLIGIBLE: f64 = 42.0;

/// Terms of the binomial series, for `|w|` up to 1/16 of the inverse order.
const SERIES_TERMS: usize = 12;

/// A quadrature rule on the half line from `start`: cells of one length, each with the same nodes.
#[derive(Debug)]
struct Rule {
    start: f64,
    length: f64,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    t: f64,
    weight: f64,
    log_weight: f64,
}

impl Rule {
    /// The trapezoidal rule for all `t`. Its relative error is about exp(y^2 / 2 - 2 pi y / step), where y is how far
    /// the integrand is followed into the complex plane: the density grows there as exp(y^2 / 2), and ln(1 + w) has
    /// its branch point at y = pi s. The step makes that error exp(-36).
    fn whole_line(pair: Pair) -> Rule {
        let sigma = pair.sigma.min(2.7);
        let step = 2.0 * PI * PI * sigma / (36.0 + 0.5 * (PI * sigma).powi(2));
        Rule::new(-TAIL, step, [(0.5 * step, step)].into_iter())
    }

    /// Gauss-Legendre rules for the half line where `w > 0`, in cells of at most 2.6 times the distance of that branch
    /// point.
    fn where_ratio_grows(pair: Pair) -> Rule {
        let length = 8.0 * pair.sigma.min(1.0);
        Rule::new(0.5 / pair.sigma, length, quadrature::nodes(0.0, length))
    }

    fn new(start: f64, length: f64, cell: impl Iterator<Item = (f64, f64)>) -> Rule {
        let node = |(t, weight): (f64, f64)| Node {
            t,
            weight,
            log_weight: weight.ln(),
        };
        Rule {
            start,
            length,
            nodes: cell.map(node).collect(),
        }
    }

    /// The cell in which `t` lies.
    fn find(&self, t: f64) -> usize {
        ((t - self.start) / self.length).max(0.0) as usize
    }

    fn nodes_of(&self, cell: usize) -> impl Iterator<Item = Node> {
        let from = self.start + cell as f64 * self.length;
        self.nodes.iter().map(move |node| Node {
            t: from + node.t,
            ..*node
        })
    }
}

/// The nodes that many orders share, in increasing `t` and `w`.
#[derive(Debug)]
pub(super) struct Grid {
    pair: Pair,
    rule: Rule,
    cells: usize,
    w: Vec<f64>,
    log_ratio: Vec<f64>,
    /// ln of the rule's weight times the density
    log_mass: Vec<f64>,
    /// mass * (1 + w)
    tilted: Vec<f64>,
    /// mass * w
    mean: Vec<f64>,
    small: Small,
}

/// The nodes with `|w| <= bound`, where the series is used.
#[derive(Debug, Default)]
struct Small {
    bound: f64,
    first: usize,
    end: usize,
    /// sums of mass * w^k, k from 2
    moments: [f64; SERIES_TERMS],
    /// sum of mass * w over the other nodes
    mean_of_others: f64,
}

impl Grid {
    /// Whether a grid of a reasonable size serves order `alpha`. Where it does not, either the order is
    /// within 1% of 1 and the noise a hundredth of the sensitivity, or `alpha / s` exceeds 1e8.
    pub(super) fn reaches(pair: Pair, alpha: f64) -> bool {
        pair.sigma >= 0.01 && alpha <= 1e8 * pair.sigma
    }

    /// The expectation over all `t`, for orders up to `largest`.
    pub(super) fn whole_line(pair: Pair, largest: f64) -> Grid {
        Grid::new(pair, Rule::whole_line(pair), largest)
    }

    /// The part of the expectation where `w > 0`, for orders up to `largest`.
    pub(super) fn where_ratio_grows(pair: Pair, largest: f64) -> Grid {
        Grid::new(pair, Rule::where_ratio_grows(pair), largest)
    }

    fn new(pair: Pair, rule: Rule, largest: f64) -> Grid {
        let end = (largest / pair.sigma).min(NEAR.max(2.0 / pair.sigma)) + TAIL;
        let cells = rule.find(end) + 1;
        let nodes = (0..cells).flat_map(|cell| rule.nodes_of(cell));
        let (mut w, mut log_ratio, mut log_mass) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tilted, mut mean) = (Vec::new(), Vec::new());
        for node in nodes {
            let point = pair.at(node.t);
            w.push(point.w);
            log_ratio.push(point.log_ratio);
            log_mass.push(node.log_weight + point.log_density);
            if point.w < 1e10 {
                let mass = node.weight * point.log_density.exp();
                tilted.push(mass * (1.0 + point.w));
                mean.push(mass * point.w);
            } else {
                let product = (node.log_weight + point.log_density + point.log_ratio).exp();
                tilted.push(product);
                mean.push(product);
            }
        }
        Grid {
            pair,
            rule,
            cells,
            w,
            log_ratio,
            log_mass,
            tilted,
            mean,
            small: Small::default(),
        }
    }

    /// `ln(1 + E[h])`: the logarithm of the moment of order `alpha`.
    pub(super) fn log_moment(&mut self, alpha: f64) -> f64 {
        self.use_series_for(alpha);
        let mut logs = Vec::new();
        let sum = self.excess(alpha - 1.0, self.nodes_for(alpha), &mut logs);
        self.gather_beyond(alpha, &mut logs);
        ln_1p_sum(sum.max(0.0), log_sum_exp(&logs)) // E[h] may be below the smallest double
    }

    /// `ln(1 + E[h] + E[h'])`, with `h'` that of order `1 - alpha`.
    pub(super) fn log_symmetrised_moment(&mut self, alpha: f64) -> f64 {
        self.use_series_for(alpha + 1.0);
        let mut logs = Vec::new();
        let end = self.nodes_for(alpha);
        let sum = self.excess(alpha - 1.0, end, &mut logs) + self.excess(-alpha, end, &mut logs);
        self.gather_beyond(alpha, &mut logs);
        ln_1p_sum(sum.max(0.0), log_sum_exp(&logs))
    }

    /// The number of nodes that cover what order `alpha` weighs: its peaks lie below `alpha / s`.
    fn nodes_for(&self, alpha: f64) -> usize {
        let cells = self.rule.find(alpha / self.pair.sigma + TAIL) + 1;
        cells.min(self.cells) * self.rule.nodes.len()
    }

    /// `E[h]` over the nodes before `end`: the sum, except for large terms, whose logarithms are pushed to `logs`.
    fn excess(&self, b: f64, end: usize, logs: &mut Vec<f64>) -> f64 {
        let small = &self.small;
        let end = end.max(small.end);
        let large = self.log_ratio[..end].partition_point(|l| b * l < LARGE);
        let large = large.max(small.end);
        let mut sum = -b * small.mean_of_others;
        let mut binomial = 1.0 + b;
        for (k, moment) in small.moments.iter().enumerate() {
            binomial *= (b - k as f64) / (k as f64 + 2.0);
            sum += binomial * moment;
        }
        for part in [0..small.first, small.end..large] {
            sum += sum_expm1(b, &self.log_ratio[part.clone()], &self.tilted[part]);
        }
        logs.extend((large..end).map(|i| self.log_mass[i] + (1.0 + b) * self.log_ratio[i]));
        sum
    }

    /// Chooses the nodes on which the series in `w` serves orders up to `order`.
    fn use_series_for(&mut self, order: f64) {
        let bound = 16.0_f64.powf(-1.0 - (order.ln() / 16.0_f64.ln()).ceil());
        if self.small.bound == bound {
            return;
        }
        let first = self.w.partition_point(|&w| w < -bound);
        let end = self.w.partition_point(|&w| w <= bound);
        let mut moments = [0.0; SERIES_TERMS];
        for i in first..end {
            let mut term = self.mean[i];
            for moment in &mut moments {
                term *= self.w[i];
                *moment += term;
            }
        }
        let others = self.mean[..first].iter().chain(&self.mean[end..]);
        self.small = Small {
            bound,
            first,
            end,
            moments,
            mean_of_others: others.sum(),
        };
    }

    /// Pushes the logarithms of what `density * ratio^alpha` has beyond the shared cells.
    fn gather_beyond(&self, alpha: f64, logs: &mut Vec<f64>) {
        let end = self.rule.start + self.cells as f64 * self.rule.length;
        if alpha / self.pair.sigma + TAIL <= end {
            return;
        }
        let log_value = |t| {
            let point = self.pair.at(t);
            point.log_density + alpha * point.log_ratio
        };
        let second_order = self.pair.log_second_order(alpha);
        let mut from = self.cells;
        for peak in self.pair.peaks(alpha) {
            let threshold = log_value(peak).max(second_order) - NEGLIGIBLE;
            let mut matters = |cell| {
                let nodes = self.rule.nodes_of(cell);
                let values = nodes.map(|node| node.log_weight + log_value(node.t));
                let before = logs.len();
                logs.extend(values);
                logs[before..].iter().any(|&log| log > threshold)
            };
            let first = self.rule.find(peak).max(from);
            let mut last = first;
            while matters(last) {
                last += 1;
            }
            (from..first).rev().find(|&cell| !matters(cell));
            from = last + 1;
        }
    }
}

/// `ln(1 + sum + exp(log))`
pub(super) fn ln_1p_sum(sum: f64, log: f64) -> f64 {
    if log < LARGE {
        (sum + log.exp()).ln_1p()
    } else {
        log + ((1.0 + sum) * (-log).exp()).ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair::Point;
    use super::super::{FixedSizeBound, fixed_size_gaussian, poisson_gaussian};
    use super::*;
    use proptest::prelude::*;

    /// The logarithm of the moment by the trapezoidal rule up to beyond the last peak, with nodes so close that nothing need be
    /// known of where the integrand lies.
    fn slow_log_moment(pair: Pair, alpha: f64) -> f64 {
        let step = 0.2 * pair.sigma.min(1.0);
        let nodes = ((alpha / pair.sigma + 2.0 * TAIL) / step) as usize;
        let (mut sum, mut logs) = (0.0, Vec::new());
        for i in 0..nodes {
            let Point {
                w,
                log_ratio,
                log_density,
            } = pair.at(i as f64 * step - TAIL);
            let log_mass = log_density + step.ln();
            if alpha * log_ratio > 40.0 {
                logs.push(log_mass + alpha * log_ratio);
            } else if (alpha * w).abs() > 1e-3 {
                sum += log_mass.exp() * ((alpha * log_ratio).exp_m1() - alpha * w);
            } else {
                let series = [5.0, 4.0, 3.0]
                    .into_iter()
                    .fold(1.0, |rest, k| 1.0 + (alpha - k + 1.0) / k * w * rest);
                sum += log_mass.exp() * 0.5 * alpha * (alpha - 1.0) * w * w * series;
            }
        }
        let top = logs.iter().copied().fold(0.0, f64::max);
        let scaled: f64 = logs.iter().map(|log| (log - top).exp()).sum();
        if top > 0.0 {
            top + (scaled + (1.0 + sum) * (-top).exp()).ln()
        } else {
            (sum + scaled).ln_1p()
        }
    }

    /// Large moments lie where the ratio grows: there the dominating pair has the same.
    fn check(pair: Pair, alpha: f64) -> Result<(), TestCaseError> {
        let slow = slow_log_moment(pair, alpha);
        let Pair { rate, sigma } = pair;
        let poisson = poisson_gaussian(&[rate], &[sigma], &[1.0], &[alpha]).unwrap();
        let pair = FixedSizeBound::DominatingPair;
        let fixed = fixed_size_gaussian(pair, &[rate], &[sigma], &[1.0], &[alpha]).unwrap();
        for divergence in if slow > 50.0 {
            vec![poisson[0], fixed[0]]
        } else {
            poisson
        } {
            let found = (alpha - 1.0) * divergence;
            let close = (found / slow - 1.0).abs() < 1e-10;
            prop_assert!(close, "{rate} {sigma} {alpha}: {found}, slowly {slow}");
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// `excess` is ln of the unsampled Gaussian's moment times `q^alpha`: the far peak is a large or a small part.
        #[test]
        fn what_lies_beyond_the_grid_is_gathered(
            log_noise in -2.0_f64..3.0,
            reach in 64.1_f64..90.0,
            excess in -60.0_f64..60.0,
        ) {
            let sigma = log_noise.exp();
            let alpha = reach * sigma;
            let log_rate = excess / alpha - 0.5 * (alpha - 1.0) / (sigma * sigma);
            check(Pair { rate: log_rate.exp(), sigma }, alpha)?;
        }

        #[test]
        fn peaks_far_beyond_the_grid_are_found(
            log_rate in -20.0_f64..-0.001,
            log_noise in -2.0_f64..16.0,
            log_reach in 4.2_f64..9.0,
        ) {
            let pair = Pair { rate: log_rate.exp(), sigma: log_noise.exp() };
            check(pair, log_reach.exp() * pair.sigma)?;
        }
    }
}
