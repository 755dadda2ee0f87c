//! Tests of samplers. Each check raises a false alarm with probability 1e-6 over the choice of the key; the keys
//! are fixed, so that a result does not change from run to run.
#![allow(dead_code)] // Each test file takes what it needs.

use dpmesh_core::Sample;
use dpmesh_core::noise::{Distribution, Noise, noise_into};
use dpmesh_core::stream::{Cipher, Key, Stream};

/// Quantile of the standard Gaussian distribution at 1 - 1e-6 / 2.
pub const TWO_SIDED: f64 = 4.8916;
/// Quantile of the standard Gaussian distribution at 1 - 1e-6.
const ONE_SIDED: f64 = 4.7534;

pub fn stream(cipher: Cipher) -> Stream {
    Key::new(cipher, &[42; 32]).stream(1, 0).unwrap()
}

/// `n` samples of scale 1 from node 0.
pub fn standard<T: Sample>(distribution: Distribution, stream: &Stream, n: usize) -> Vec<T> {
    let noise = Noise::new(distribution, &[1.0], stream);
    let mut samples = vec![T::ZERO; n];
    noise_into(&noise, n, &mut samples).unwrap();
    samples
}

/// Standard deviations by which the mean of `values` misses `mean`, each value having variance `variance`.
pub fn z_score(values: impl Iterator<Item = f64>, mean: f64, variance: f64) -> f64 {
    let (mut n, mut sum) = (0.0, 0.0);
    for value in values {
        n += 1.0;
        sum += value - mean;
    }
    sum / (n * variance).sqrt()
}

/// Whether the Kolmogorov-Smirnov test accepts that `samples` follow the distribution with this distribution function.
pub fn follows(mut samples: Vec<f64>, distribution: impl Fn(f64) -> f64) -> bool {
    samples.sort_unstable_by(f64::total_cmp);
    let n = samples.len() as f64;
    let distance = |(i, x): (usize, &f64)| {
        let p = distribution(*x);
        (p - i as f64 / n).abs().max(((i + 1) as f64 / n - p).abs())
    };
    let largest = samples.iter().enumerate().map(distance).fold(0.0, f64::max);
    largest * n.sqrt() < ((2.0 / 1e-6_f64).ln() / 2.0).sqrt()
}

/// Whether the chi-square test accepts the counts. Cells with fewer than 10 expected are joined with the next.
pub fn counts_fit(counts: &[u64], probabilities: &[f64]) -> bool {
    let n: u64 = counts.iter().sum();
    let (mut cells, mut statistic) = (0.0, 0.0);
    let (mut seen, mut expected) = (0.0, 0.0);
    for (count, probability) in counts.iter().zip(probabilities) {
        seen += *count as f64;
        expected += probability * n as f64;
        if expected >= 10.0 {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1.0;
            (seen, expected) = (0.0, 0.0);
        }
    }
    let freedom: f64 = cells - 1.0;
    // Wilson and Hilferty's quantile of the chi-square distribution.
    let spread = 2.0 / (9.0 * freedom);
    statistic < freedom * (1.0 - spread + ONE_SIDED * spread.sqrt()).powi(3)
}

/// Whether `count` may come from the Poisson distribution with this mean (Chernoff's bounds: a little wider than exact).
pub fn is_poisson(count: u64, mean: f64) -> bool {
    let ratio = count as f64 / mean;
    let rate = if count == 0 {
        1.0
    } else {
        1.0 - ratio + ratio * ratio.ln()
    };
    mean * rate < (2.0 / 1e-6_f64).ln()
}
