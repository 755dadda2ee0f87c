//! The Poisson-sampled Gaussian under add-remove: `D_alpha((1-q) N(0, s^2) + q N(1, s^2) || N(0, s^2))`, the
//! larger of the two directions at every order (Mironov, Talwar and Zhang 2019, Theorem 5).

use super::grid::Grid;
use super::pair::{Pair, ln_exp_m1};
use crate::vector::{log_sum_exp, sum_exp};

/// An order, and those parts of its sum that depend on it alone.
#[derive(Debug)]
pub(super) struct Order {
    alpha: f64,
    /// ln C(alpha, j) for j from 2, where the moment of an integer order is summed term by term
    log_binomials: Option<Vec<f64>>,
}

impl Order {
    /// Up to order 256 the binomial sum of an integer order takes less time; beyond it, quadrature does.
    pub(super) fn new(alpha: f64) -> Order {
        let summed = alpha <= 256.0 && alpha.fract() == 0.0;
        Order {
            alpha,
            log_binomials: summed.then(|| log_binomials(alpha as usize)),
        }
    }
}

/// ln C(n, j) for j from 2 to n.
pub(super) fn log_binomials(n: usize) -> Vec<f64> {
    let mut log = (n as f64).ln();
    let next = |j| {
        log += ((n + 1 - j) as f64 / j as f64).ln();
        log
    };
    (2..=n).map(next).collect()
}

/// The divergence of one round at each order.
pub(super) fn divergences(pair: Pair, orders: &[Order]) -> Vec<f64> {
    let mut moments = Moments::new(pair, orders);
    let divergence = |order: &Order| moments.log(order) / (order.alpha - 1.0);
    orders.iter().map(divergence).collect()
}

/// The moments of one round's likelihood ratio, with what its orders share.
struct Moments {
    pair: Pair,
    /// ln(exp(j (j-1) / 2s^2) - 1) for j from 2
    log_growths: Vec<f64>,
    grid: Option<Grid>,
    terms: Vec<f64>,
}

impl Moments {
    fn new(pair: Pair, orders: &[Order]) -> Moments {
        let open = || orders.iter().filter(|o| !pair.shift_dominates(o.alpha));
        let summed = open().filter_map(|o| o.log_binomials.as_ref().map(Vec::len));
        let growth = |k| ln_exp_m1(0.5 * (k * (k - 1)) as f64 / (pair.sigma * pair.sigma));
        let integrated =
            open().filter(|o| o.log_binomials.is_none() && Grid::reaches(pair, o.alpha));
        let largest = integrated.map(|o| o.alpha).reduce(f64::max);
        Moments {
            pair,
            log_growths: (2..summed.max().unwrap_or(0) + 2).map(growth).collect(),
            grid: largest.map(|alpha| Grid::whole_line(pair, alpha)),
            terms: Vec::new(),
        }
    }

    /// ln E[ratio^alpha]
    fn log(&mut self, order: &Order) -> f64 {
        let (pair, alpha) = (self.pair, order.alpha);
        match (&order.log_binomials, &mut self.grid) {
            _ if pair.shift_dominates(alpha) => pair.log_moment_bound(alpha),
            (Some(log_binomials), _) => {
                // E[ratio^alpha] - 1, term by term: each one is positive
                let (log_rate, log_rest) = (pair.rate.ln(), (-pair.rate).ln_1p());
                let factors = log_binomials.iter().zip(&self.log_growths);
                self.terms.clear();
                self.terms
                    .extend(factors.zip(2..).map(|((binomial, growth), j)| {
                        let j = f64::from(j);
                        binomial + j * log_rate + (alpha - j) * log_rest + growth
                    }));
                if pair.log_moment_bound(alpha) < 600.0 {
                    sum_exp(&self.terms).ln_1p()
                } else {
                    log_sum_exp(&self.terms)
                }
            }
            (None, Some(grid)) if Grid::reaches(pair, alpha) => grid.log_moment(alpha),
            _ => pair.log_moment_bound(alpha),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn sums_and_quadrature_agree(
            log_rate in -14.0_f64..-0.001,
            log_noise in -4.0_f64..8.0,
            order in 2_u32..=256,
        ) {
            let pair = Pair { rate: log_rate.exp(), sigma: log_noise.exp() };
            let alpha = f64::from(order);
            let summed = divergences(pair, &[Order::new(alpha)])[0] * (alpha - 1.0);
            let integrated = Grid::whole_line(pair, alpha).log_moment(alpha);
            prop_assert!((summed / integrated - 1.0).abs() < 1e-10, "{summed} {integrated}");
        }
    }
}
