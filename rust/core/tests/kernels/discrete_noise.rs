//! Discrete noise has its exact distribution, and its values never change.

use crate::statistics::{TWO_SIDED, counts_fit, stream, z_score};
use dpmesh_core::discrete::{DiscreteDistribution, discrete_noise_into};
use dpmesh_core::stream::{Cipher, Stream};
use proptest::prelude::*;

const MILLION: usize = 1_000_000;
const DISTRIBUTIONS: [DiscreteDistribution; 2] = [
    DiscreteDistribution::Laplace,
    DiscreteDistribution::Gaussian,
];

fn draw(
    distribution: DiscreteDistribution,
    scale: f64,
    stream: &Stream,
    nodes: &[u32],
    dim: usize,
) -> Vec<i64> {
    let mut samples = vec![i64::MIN; nodes.len() * dim];
    discrete_noise_into(distribution, scale, stream, Some(nodes), dim, &mut samples).unwrap();
    samples
}

/// Probabilities of -range..=range; the mass beyond is below 1e-15.
fn probabilities(distribution: DiscreteDistribution, scale: f64, range: i64) -> Vec<f64> {
    let weight = |k: i64| match distribution {
        DiscreteDistribution::Laplace => (-(k.abs() as f64) / scale).exp(),
        DiscreteDistribution::Gaussian => (-(k as f64 / scale).powi(2) / 2.0).exp(),
        other => panic!("no probabilities of {other:?}"),
    };
    let weights: Vec<f64> = (-range..=range).map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

/// How often each of -range..=range occurs.
fn counts(samples: &[i64], range: i64) -> Vec<u64> {
    let mut counts = vec![0; 2 * range as usize + 1];
    for sample in samples {
        counts[(sample + range) as usize] += 1;
    }
    counts
}

#[test]
fn counts_fit_the_exact_law_and_not_that_of_a_scale_wrong_by_1_percent() {
    for distribution in DISTRIBUTIONS {
        for scale in [0.3, 0.7, 1.0, 2.5, 10.0, 131.7, 3000.0] {
            for cipher in [Cipher::Aes, Cipher::ChaCha20] {
                let samples = draw(distribution, scale, &stream(cipher), &[0], MILLION);
                let range = (40.0 * scale) as i64 + 1;
                let counts = counts(&samples, range);
                assert!(
                    counts_fit(&counts, &probabilities(distribution, scale, range)),
                    "{distribution:?} {scale}"
                );
            }
        }
        let counts = counts(
            &draw(distribution, 2.5, &stream(Cipher::Aes), &[0], MILLION),
            101,
        );
        for wrong in [0.99 * 2.5, 1.01 * 2.5] {
            assert!(
                !counts_fit(&counts, &probabilities(distribution, wrong, 101)),
                "{distribution:?}"
            );
        }
    }
}

#[test]
fn large_scales_have_the_moments_of_the_continuous_laws() {
    for scale in [1e5, f64::from(1 << 25)] {
        for (distribution, second, fourth) in [
            (DiscreteDistribution::Laplace, 2.0, 24.0),
            (DiscreteDistribution::Gaussian, 1.0, 3.0),
        ] {
            let samples = draw(distribution, scale, &stream(Cipher::Aes), &[0], MILLION);
            let z = || samples.iter().map(|&k| k as f64 / scale);
            assert!(z_score(z(), 0.0, second).abs() < TWO_SIDED);
            let squares = |factor: f64| {
                z_score(
                    z().map(|z| (factor * z).powi(2)),
                    second,
                    fourth - second * second,
                )
            };
            assert!(squares(1.0).abs() < TWO_SIDED);
            assert!(squares(0.99).abs() > TWO_SIDED && squares(1.01).abs() > TWO_SIDED);
        }
    }
}

#[test]
fn neighbours_and_streams_are_uncorrelated() {
    for distribution in DISTRIBUTIONS {
        let samples = |node| draw(distribution, 3.0, &stream(Cipher::Aes), &[node], MILLION);
        let (a, b) = (samples(0), samples(1));
        let variance = a.iter().map(|k| (k * k) as f64).sum::<f64>() / MILLION as f64;
        let score = |b: &[i64]| {
            let products = a.iter().zip(b).map(|(a, b)| (a * b) as f64);
            z_score(products, 0.0, variance * variance).abs()
        };
        assert!(score(&b) < TWO_SIDED);
        for lag in [1, 2, 15, 16, 17, 1024] {
            assert!(score(&a[lag..]) < TWO_SIDED, "{distribution:?}: lag {lag}");
        }
    }
}

proptest! {
    #[test]
    fn a_value_depends_on_its_node_and_place_alone(
        nodes in prop::collection::hash_set(any::<u32>(), 1..5),
        dim in prop_oneof![1_usize..200, 1_usize..4000],
        longer in 0_usize..300,
        scale in 0.0_f64..50.0,
        gaussian: bool,
    ) {
        let (distribution, stream) = (DISTRIBUTIONS[usize::from(gaussian)], stream(Cipher::Aes));
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let together = draw(distribution, scale, &stream, &nodes, dim);
        for (node, row) in nodes.iter().zip(together.chunks(dim)) {
            prop_assert_eq!(row, &draw(distribution, scale, &stream, &[*node], dim + longer)[..dim]);
        }
    }
}

#[test]
fn values_are_the_same_on_any_number_of_threads() {
    let on = |threads, distribution, rows: u32, dim| {
        let nodes: Vec<u32> = (0..rows).collect();
        dpmesh_threads::with_threads(threads, || {
            draw(distribution, 9.5, &stream(Cipher::Aes), &nodes, dim)
        })
    };
    for distribution in DISTRIBUTIONS {
        for (rows, dim) in [(1, 300_001), (500, 301)] {
            let alone = on(1, distribution, rows, dim);
            assert!(
                on(2, distribution, rows, dim) == alone && on(7, distribution, rows, dim) == alone
            );
        }
    }
}

#[test]
fn values_are_those_of_every_earlier_version() {
    let of = |distribution, scale, cipher| {
        draw(distribution, scale, &stream(cipher), &[5], 201)[195..].to_vec()
    };
    assert_eq!(
        of(DiscreteDistribution::Laplace, 10.0, Cipher::Aes),
        [-3, -19, 0, -10, 5, 0]
    );
    assert_eq!(
        of(DiscreteDistribution::Gaussian, 10.0, Cipher::Aes),
        [-1, 12, -5, 5, 4, -1]
    );
    assert_eq!(
        of(DiscreteDistribution::Laplace, 1e6, Cipher::ChaCha20),
        [1117446, 341654, -281592, -424550, -973709, -1193799]
    );
    assert_eq!(
        of(DiscreteDistribution::Gaussian, 1e6, Cipher::ChaCha20),
        [753732, -1121259, 266880, -468994, -425589, 352377]
    );
}

#[test]
fn what_does_not_fit_is_named() {
    let error = |scale, nodes: Option<&[u32]>, dim| {
        let mut out = [0; 6];
        let distribution = DiscreteDistribution::Laplace;
        discrete_noise_into(
            distribution,
            scale,
            &stream(Cipher::Aes),
            nodes,
            dim,
            &mut out,
        )
        .unwrap_err()
        .to_string()
    };
    for scale in [-1.0, f64::NAN, f64::INFINITY, 3.4e7] {
        assert!(
            error(scale, None, 2).starts_with("scale: wanted a number of at least 0 and at most")
        );
    }
    assert_eq!(
        error(1.0, Some(&[1, 2]), 2),
        "nodes: wanted one for each of 3 rows, got 2"
    );
    assert_eq!(
        error(1.0, Some(&[1, 2, 1]), 2),
        "nodes: wanted distinct nodes, got 1 twice"
    );
    assert_eq!(
        error(1.0, None, 4),
        "out: wanted a multiple of dim = 4 elements, got 6"
    );
    assert!(
        draw(
            DiscreteDistribution::Gaussian,
            0.0,
            &stream(Cipher::Aes),
            &[1],
            9
        )
        .iter()
        .all(|k| *k == 0)
    );
}

#[test]
fn a_row_is_as_long_as_its_stream_and_no_longer() {
    for distribution in [
        DiscreteDistribution::Laplace,
        DiscreteDistribution::Gaussian,
    ] {
        // No rows: the length alone is refused.
        let drawn =
            |dim| discrete_noise_into(distribution, 1.0, &stream(Cipher::Aes), None, dim, &mut []);
        drawn(1 << 30).unwrap();
        let error = drawn((1 << 30) + 1).unwrap_err();
        assert_eq!(error.argument(), "dim");
        let blocks = "at most 1073741824 blocks of a stream for each node";
        assert_eq!(error.wanted(), blocks);
    }
}
