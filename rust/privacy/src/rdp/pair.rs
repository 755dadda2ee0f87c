//! The likelihood ratio of one sampled Gaussian, at a point and at its peaks.

use std::f64::consts::TAU;

/// `(1-q) N(0, s^2) + q N(1, s^2)` against `N(0, s^2)`, in the coordinate `t = x / s`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    /// q, in (0, 1)
    pub(super) rate: f64,
    /// s
    pub(super) sigma: f64,
}

/// The functions that moments are made of, at one `t`.
pub(super) struct Point {
    /// likelihood ratio minus 1
    pub(super) w: f64,
    /// ln(1 + w)
    pub(super) log_ratio: f64,
    /// ln of the density of `t` under `N(0, s^2)`
    pub(super) log_density: f64,
}

impl Pair {
    pub(super) fn at(self, t: f64) -> Point {
        let z = self.exponent(t);
        let w = self.rate * z.exp_m1();
        let log_ratio = if z < 30.0 {
            w.ln_1p()
        } else {
            self.rate.ln() + z + ((1.0 - self.rate) / self.rate * (-z).exp()).ln_1p()
        };
        Point {
            w,
            log_ratio,
            log_density: -0.5 * (t * t + TAU.ln()),
        }
    }

    /// `(2x - 1) / 2s^2`
    fn exponent(self, t: f64) -> f64 {
        (t - 0.5 / self.sigma) / self.sigma
    }

    /// Where `density * ratio^alpha` peaks, the lowest and the highest such `t`: `x = alpha p(x)`, with `p(x)`
    /// the chance that `x` was drawn from `N(1, s^2)`. The iterates move monotonically towards them.
    pub(super) fn peaks(self, alpha: f64) -> [f64; 2] {
        let log_odds = ((1.0 - self.rate) / self.rate).ln();
        [0.0, alpha / self.sigma].map(|start| {
            let mut t: f64 = start;
            for _ in 0..100 {
                let chance = 1.0 / (1.0 + (log_odds - self.exponent(t)).exp());
                let next = alpha / self.sigma * chance;
                let settled = (next - t).abs() < 0.1;
                t = next;
                if settled {
                    break;
                }
            }
            t
        })
    }

    /// Whether all but exp(-36) of the moment of order `alpha` is that of the unsampled Gaussian times
    /// `q^alpha`: the rest is lost to rounding.
    pub(super) fn shift_dominates(self, alpha: f64) -> bool {
        self.rate.ln() + self.half_excess(alpha) > 36.0
    }

    /// An upper bound on ln E[ratio^alpha], by Minkowski's inequality:
    /// `alpha ln((1-q) + q exp((alpha-1) / 2s^2))`. Exact to rounding where the shift dominates.
    pub(super) fn log_moment_bound(self, alpha: f64) -> f64 {
        let growth = self.half_excess(alpha);
        if growth < 36.0 {
            alpha * (self.rate * growth.exp_m1()).ln_1p()
        } else {
            let log_shift = self.rate.ln() + growth;
            alpha * (log_shift + ((1.0 - self.rate) * (-log_shift).exp()).ln_1p())
        }
    }

    /// `(alpha - 1) / 2s^2`
    fn half_excess(self, alpha: f64) -> f64 {
        0.5 * (alpha - 1.0) / (self.sigma * self.sigma)
    }

    /// A lower bound on ln E[h], the second-order term of the moment of order `alpha`.
    pub(super) fn log_second_order(self, alpha: f64) -> f64 {
        (0.5 * alpha * (alpha - 1.0)).ln()
            + 2.0 * self.rate.ln()
            + ln_exp_m1(1.0 / (self.sigma * self.sigma))
    }
}

/// `ln(exp(x) - 1)` for `x > 0`.
pub(super) fn ln_exp_m1(x: f64) -> f64 {
    if x < 1.0 {
        x.exp_m1().ln()
    } else if x < 40.0 {
        x + (-(-x).exp()).ln_1p()
    } else {
        x
    }
}
