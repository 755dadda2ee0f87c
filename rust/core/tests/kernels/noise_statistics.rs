//! The noise has its distribution, tails included, and streams are uncorrelated.

use crate::statistics::{TWO_SIDED, follows, is_poisson, standard, stream, z_score};
use dpmesh_core::Sample;
use dpmesh_core::noise::{Distribution, Noise, noise_into};
use dpmesh_core::stream::{Cipher, Key};

const MILLION: usize = 1_000_000;

fn cumulative(distribution: Distribution, x: f64) -> f64 {
    match distribution {
        Distribution::Gaussian => libm::erfc(-x / 2_f64.sqrt()) / 2.0,
        Distribution::Laplace if x < 0.0 => x.exp() / 2.0,
        Distribution::Laplace => 1.0 - (-x).exp() / 2.0,
        other => panic!("no distribution of {other:?}"),
    }
}

/// E |z|^k of the standard distributions.
fn absolute_moment(distribution: Distribution, k: i32) -> f64 {
    match (distribution, k) {
        (Distribution::Gaussian, 1) => (2.0 / std::f64::consts::PI).sqrt(),
        (Distribution::Gaussian, k) => (1..k).step_by(2).map(f64::from).product(),
        (Distribution::Laplace, k) => (1..=k).map(f64::from).product(),
        (other, _) => panic!("no moments of {other:?}"),
    }
}

fn each_distribution_and_cipher(check: impl Fn(Distribution, Cipher)) {
    for distribution in [Distribution::Gaussian, Distribution::Laplace] {
        for cipher in [Cipher::Aes, Cipher::ChaCha20] {
            check(distribution, cipher);
        }
    }
}

fn as_f64<T: Sample>(samples: Vec<T>) -> Vec<f64> {
    samples.into_iter().map(T::to_f64).collect()
}

#[test]
fn the_distribution_is_that_of_the_textbook() {
    each_distribution_and_cipher(|distribution, cipher| {
        let stream = stream(cipher);
        let cdf = |x| cumulative(distribution, x);
        assert!(follows(
            as_f64(standard::<f32>(distribution, &stream, MILLION)),
            cdf
        ));
        assert!(follows(
            as_f64(standard::<f64>(distribution, &stream, MILLION)),
            cdf
        ));
        let shifted = standard::<f64>(distribution, &stream, MILLION)
            .into_iter()
            .map(|z| z + 0.01);
        assert!(!follows(shifted.collect(), cdf));
    });
}

#[test]
fn moments_are_right_and_a_scale_wrong_by_1_percent_is_noticed() {
    fn check<T: Sample>(distribution: Distribution, cipher: Cipher) {
        let samples = as_f64(standard::<T>(distribution, &stream(cipher), MILLION));
        let score = |k: i32, scale: f64| {
            let mean = absolute_moment(distribution, k);
            let variance = absolute_moment(distribution, 2 * k) - mean * mean;
            z_score(
                samples.iter().map(|z| (scale * z).abs().powi(k)),
                mean,
                variance,
            )
        };
        for k in [1, 2, 4] {
            assert!(
                score(k, 1.0).abs() < TWO_SIDED,
                "{distribution:?} {cipher:?}: moment {k}"
            );
        }
        let mean = z_score(
            samples.iter().copied(),
            0.0,
            absolute_moment(distribution, 2),
        );
        assert!(mean.abs() < TWO_SIDED);
        for wrong in [0.99, 1.01] {
            assert!(score(1, wrong).abs() > TWO_SIDED && score(2, wrong).abs() > TWO_SIDED);
        }
    }
    each_distribution_and_cipher(check::<f32>);
    each_distribution_and_cipher(check::<f64>);
}

#[test]
fn tails_beyond_five_sigma_are_there() {
    const N: usize = 1 << 26;
    fn check<T: Sample>(distribution: Distribution, thresholds: [f64; 2]) {
        let samples = standard::<T>(distribution, &stream(Cipher::Aes), N);
        for threshold in thresholds {
            let mean = 2.0 * cumulative(distribution, -threshold) * N as f64;
            let beyond = |z: &&T| z.abs() > T::from_f64(threshold);
            let count = samples.iter().filter(beyond).count() as u64;
            assert!(
                is_poisson(count, mean),
                "{distribution:?}: {count} beyond {threshold}, not {mean}"
            );
        }
    }
    check::<f32>(Distribution::Gaussian, [4.0, 5.0]);
    check::<f64>(Distribution::Gaussian, [4.0, 5.0]);
    check::<f32>(Distribution::Laplace, [10.0, 15.0]);
    check::<f64>(Distribution::Laplace, [10.0, 15.0]);
}

/// Correlations of samples and of their squares, each a Gaussian of variance 1 / n if there is none.
fn uncorrelated(a: &[f64], b: &[f64]) -> bool {
    let products = || a.iter().zip(b);
    let plain = z_score(products().map(|(a, b)| a * b), 0.0, 1.0);
    let squares = z_score(
        products().map(|(a, b)| (a * a - 1.0) * (b * b - 1.0)),
        0.0,
        4.0,
    );
    plain.abs() < TWO_SIDED && squares.abs() < TWO_SIDED
}

#[test]
fn samples_of_one_stream_are_uncorrelated() {
    let check = |samples: Vec<f64>| {
        for lag in [1, 2, 7, 8, 9, 16, 64, 512, 4096] {
            assert!(uncorrelated(&samples, &samples[lag..]), "lag {lag}");
        }
    };
    check(as_f64(standard::<f32>(
        Distribution::Gaussian,
        &stream(Cipher::Aes),
        MILLION,
    )));
    check(standard::<f64>(
        Distribution::Gaussian,
        &stream(Cipher::ChaCha20),
        MILLION,
    ));
}

#[test]
fn streams_are_uncorrelated() {
    let draw = |key: u8, purpose, round, node: u32| {
        let stream = Key::new(Cipher::Aes, &[key; 32])
            .stream(purpose, round)
            .unwrap();
        let nodes = Some(&[node][..]);
        let noise = Noise::new(Distribution::Gaussian, &[1.0], &stream).for_nodes(nodes);
        let mut samples = vec![0.0; MILLION];
        noise_into(&noise, MILLION, &mut samples).unwrap();
        samples
    };
    let one = draw(1, 1, 0, 0);
    assert!(uncorrelated(&one, &draw(2, 1, 0, 0)));
    assert!(uncorrelated(&one, &draw(1, 2, 0, 0)));
    assert!(uncorrelated(&one, &draw(1, 1, 1, 0)));
    assert!(uncorrelated(&one, &draw(1, 1, 0, 1)));
    assert!(!uncorrelated(&one, &draw(1, 1, 0, 0)));
}
