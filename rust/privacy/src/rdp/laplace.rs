//! Laplace noise: `ln((a exp((a-1) e) + (a-1) exp(-a e)) / (2a-1)) / (a-1)` at order a and pure epsilon e.

use super::grid::ln_1p_sum;

/// The divergence at each order.
pub(super) fn divergences(epsilon: f64, orders: &[f64]) -> Vec<f64> {
    orders
        .iter()
        .map(|&alpha| log_moment(epsilon, alpha) / (alpha - 1.0))
        .collect()
}

fn log_moment(epsilon: f64, alpha: f64) -> f64 {
    let (up, down) = ((alpha - 1.0) * epsilon, -alpha * epsilon);
    let half = alpha - 0.5; // of 2 alpha - 1, which may overflow
    let (log_up, share) = ((0.5 * alpha / half).ln(), 0.5 * (alpha - 1.0) / half);
    if up > 1.0 {
        ln_1p_sum(share * down.exp() - 1.0, log_up + up)
    } else {
        // the linear terms of both exponentials cancel: leave them out
        (log_up.exp() * second_order(up) + share * second_order(down)).ln_1p()
    }
}

/// `exp(x) - 1 - x`
fn second_order(x: f64) -> f64 {
    if x.abs() > 0.5 {
        return x.exp_m1() - x;
    }
    let (mut term, mut sum) = (x, 0.0);
    for k in 2..18 {
        term *= x / f64::from(k);
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_order_costs_no_less_than_the_one_before() {
        for epsilon in [1e-300, 1e-9, 1.0, 1e9, 1e300, f64::INFINITY] {
            let costs = divergences(epsilon, &[2.0, 1e300, f64::MAX]);
            assert!(costs[0] >= 0.0 && costs.is_sorted(), "{epsilon}: {costs:?}");
        }
    }
}
