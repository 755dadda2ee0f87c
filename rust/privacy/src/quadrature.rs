//! Gauss-Legendre quadrature.

use std::sync::LazyLock;

const POINTS: usize = 32;

/// Nodes and weights of the rule with [`POINTS`] points on [0, 1].
static RULE: LazyLock<[(f64, f64); POINTS]> = LazyLock::new(|| {
    std::array::from_fn(|i| {
        let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (POINTS as f64 + 0.5)).cos();
        let mut slope = 0.0;
        for _ in 0..8 {
            let (value, derivative) = legendre(x);
            x -= value / derivative;
            slope = derivative;
        }
        (0.5 * (1.0 - x), 1.0 / ((1.0 - x * x) * slope * slope))
    })
});

/// The Legendre polynomial of degree [`POINTS`] and its derivative, by the three-term recurrence.
fn legendre(x: f64) -> (f64, f64) {
    let (mut previous, mut value) = (1.0, x);
    for n in 2..=POINTS {
        let n = n as f64;
        (previous, value) = (
            value,
            ((2.0 * n - 1.0) * x * value - (n - 1.0) * previous) / n,
        );
    }
    let n = POINTS as f64;
    (value, n * (previous - x * value) / (1.0 - x * x))
}

/// Nodes and weights on [`from`, `to`].
pub(crate) fn nodes(from: f64, to: f64) -> impl Iterator<Item = (f64, f64)> {
    let length = to - from;
    RULE.iter()
        .map(move |&(x, w)| (from + length * x, length * w))
}

/// The integral of `f` from `from` to `to`: exact to rounding where `f` varies by no more than a factor of about
/// `exp(40)` and has no nearby singularity.
pub(crate) fn integral(from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
    nodes(from, to).map(|(x, w)| w * f(x)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polynomials_and_steep_exponentials_are_exact() {
        for degree in 0..=63 {
            let exact = 2.0_f64.powi(degree + 1) / f64::from(degree + 1);
            let value = integral(0.0, 2.0, |x| x.powi(degree));
            assert!((value / exact - 1.0).abs() < 1e-13, "degree {degree}");
        }
        let value = integral(0.0, 42.0, |x| (-x).exp());
        assert!((value - 1.0).abs() < 1e-14, "{value}");
    }
}
