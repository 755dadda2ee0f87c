//! From a Rényi curve to epsilon and delta.

use crate::KernelError;
use dpmesh_numerics::check::{open_probability, positive, require};

/// The theorem that turns a Rényi divergence rho of order alpha into epsilon at delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conversion {
    /// `rho + ln(1 - 1/alpha) - ln(delta alpha) / (alpha - 1)` (Balle, Barthe, Gaboardi, Hsu and Sato 2020;
    /// Canonne, Kamath and Steinke 2020, Proposition 12).
    Optimal,
    /// `rho + ln(1/delta) / (alpha - 1)` (Mironov 2017, Proposition 3), as older papers used it.
    Mironov,
}

/// A guarantee, and the order that gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// Epsilon, or the logarithm of delta.
    pub value: f64,
    /// Index of the order that attains it.
    pub index: usize,
}

/// The smallest epsilon over the orders; 0 where the divergence is so small that delta alone covers it.
///
/// # Errors
/// If `delta` is not inside (0, 1), there is no order, one does not exceed 1, a divergence is negative or NaN,
/// or their lengths differ.
pub fn epsilon(
    orders: &[f64],
    rdp: &[f64],
    delta: f64,
    conversion: Conversion,
) -> Result<Converted, KernelError> {
    open_probability("delta", delta)?;
    let log_delta = delta.ln();
    smallest(orders, rdp, |alpha, rho| match conversion {
        // by the bound of Bretagnolle and Huber the total variation is at most sqrt(1 - exp(-KL))
        Conversion::Optimal if 0.5 * (-(-rho).exp_m1()).ln() <= log_delta => 0.0,
        Conversion::Optimal => {
            (rho + (-1.0 / alpha).ln_1p() - (log_delta + alpha.ln()) / (alpha - 1.0)).max(0.0)
        }
        Conversion::Mironov => rho - log_delta / (alpha - 1.0),
    })
}

/// The logarithm of the smallest delta over the orders, by the optimal conversion.
///
/// # Errors
/// As [`epsilon`], with `epsilon` finite and positive in place of delta.
pub fn log_delta(orders: &[f64], rdp: &[f64], epsilon: f64) -> Result<Converted, KernelError> {
    positive("epsilon", epsilon)?;
    smallest(orders, rdp, |alpha, rho| {
        let tail = (alpha - 1.0) * (rho - epsilon + (-1.0 / alpha).ln_1p()) - alpha.ln();
        let total_variation = 0.5 * (-(-rho).exp_m1()).ln();
        tail.min(total_variation)
    })
}

fn smallest(
    orders: &[f64],
    rdp: &[f64],
    value: impl Fn(f64, f64) -> f64,
) -> Result<Converted, KernelError> {
    if orders.is_empty() {
        return Err(KernelError::new("orders", "at least 1 order", 0));
    }
    if orders.len() != rdp.len() {
        let wanted = format!("one for each of {} orders", orders.len());
        return Err(KernelError::new("rdp", wanted, rdp.len()));
    }
    let mut best = Converted {
        value: f64::INFINITY,
        index: 0,
    };
    for (index, (&alpha, &rho)) in orders.iter().zip(rdp).enumerate() {
        let holds = alpha > 1.0 && alpha.is_finite();
        require(holds, "orders", "finite numbers greater than 1", alpha)?;
        require(rho >= 0.0, "rdp", "numbers of at least 0", rho)?;
        let value = value(alpha, rho);
        if value < best.value {
            best = Converted { value, index };
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ORDERS: [f64; 5] = [1.001, 1.5, 4.0, 64.0, 1e6];

    /// The curve of a Gaussian of multiplier `sigma`.
    fn curve(sigma: f64) -> Vec<f64> {
        ORDERS
            .iter()
            .map(|alpha| alpha / (2.0 * sigma * sigma))
            .collect()
    }

    proptest! {
        #[test]
        fn epsilon_and_delta_invert_each_other(log_sigma in -3.0_f64..6.0, log_delta in -600.0_f64..-1.0) {
            let rdp = curve(log_sigma.exp());
            let found = epsilon(&ORDERS, &rdp, log_delta.exp(), Conversion::Optimal).unwrap();
            let older = epsilon(&ORDERS, &rdp, log_delta.exp(), Conversion::Mironov).unwrap();
            prop_assert!(found.value <= older.value);
            if found.value > 0.0 {
                let back = super::log_delta(&ORDERS, &rdp, found.value).unwrap();
                prop_assert!((back.value - log_delta).abs() < 1e-9 * log_delta.abs());
                prop_assert_eq!(back.index, found.index);
            }
        }
    }

    #[test]
    fn delta_alone_covers_a_tiny_divergence() {
        // sqrt(1 - exp(-rho)) reaches delta at rho = 1.00005e-4; beyond, order 2 gives rho + ln(25).
        let found = |rho| epsilon(&[2.0], &[rho], 0.01, Conversion::Optimal).unwrap();
        assert_eq!(found(1.0000e-4).value, 0.0);
        assert!((found(1.0001e-4).value - (1.0001e-4 + 25_f64.ln())).abs() < 1e-14);
        let found = log_delta(&[2.0], &[1e-6], 1e-3).unwrap();
        assert!((found.value - 0.5 * (1e-6 - 0.5e-12_f64).ln()).abs() < 1e-12);
        let found = epsilon(&[2.0, 3.0], &[0.0, 0.0], 0.1, Conversion::Optimal).unwrap();
        assert_eq!((found.value, found.index), (0.0, 0));
        let found = epsilon(&ORDERS, &[f64::INFINITY; 5], 1e-5, Conversion::Optimal).unwrap();
        assert_eq!(found.value, f64::INFINITY);
    }

    #[test]
    fn bad_arguments_are_named() {
        let named = |orders: &[f64], rdp: &[f64], delta: f64| {
            epsilon(orders, rdp, delta, Conversion::Optimal)
                .unwrap_err()
                .argument()
        };
        assert_eq!(named(&[2.0], &[1.0], 0.0), "delta");
        assert_eq!(named(&[], &[], 0.5), "orders");
        assert_eq!(named(&[2.0, 3.0], &[1.0], 0.5), "rdp");
        assert_eq!(named(&[1.0], &[1.0], 0.5), "orders");
        assert_eq!(named(&[2.0], &[-1.0], 0.5), "rdp");
        assert_eq!(named(&[2.0], &[f64::NAN], 0.5), "rdp");
        assert_eq!(
            log_delta(&[2.0], &[1.0], 0.0).unwrap_err().argument(),
            "epsilon"
        );
    }
}
