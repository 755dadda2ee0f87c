//! `rand_distr` on a keyed stream draws what our samplers draw.

use crate::statistics::standard;
use dpmesh_core::discrete::{DiscreteDistribution, discrete_noise_into};
use dpmesh_core::noise;
use dpmesh_core::stream::{Cipher, Key, Stream};
use rand_distr::{Distribution, Exp1, Geometric, StandardNormal};

const MILLION: usize = 1_000_000;

/// Whether the test of Kolmogorov and Smirnov accepts that two samples of one length have one distribution. It raises
/// a false alarm with probability at most 1e-6, for discrete distributions, too: P(D > t sqrt(2 / n)) is at most
/// 2 exp(-2 t^2) for n >= 458 (Wei and Dudley, 2012).
fn agree(mut a: Vec<f64>, mut b: Vec<f64>) -> bool {
    a.sort_unstable_by(f64::total_cmp);
    b.sort_unstable_by(f64::total_cmp);
    let (mut i, mut j, mut largest) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        i += a[i..].iter().take_while(|x| **x == value).count();
        j += b[j..].iter().take_while(|x| **x == value).count();
        largest = largest.max(i.abs_diff(j));
    }
    let n = a.len() as f64;
    largest as f64 / n < ((2.0 / 1e-6_f64).ln() / 2.0).sqrt() * (2.0 / n).sqrt()
}

fn streams() -> [[Stream; 2]; 2] {
    [Cipher::Aes, Cipher::ChaCha20].map(|cipher| {
        let key = Key::new(cipher, &[42; 32]);
        [1, 2].map(|purpose| key.stream(purpose, 0).unwrap())
    })
}

fn assert_agree(ours: Vec<f64>, theirs: Vec<f64>) {
    let wrong = theirs.iter().map(|z| 1.05 * z).collect();
    assert!(!agree(ours.clone(), wrong));
    assert!(agree(ours, theirs));
}

#[test]
fn gaussian_and_laplace_noise_agree_with_theirs() {
    for [ours, theirs] in streams() {
        let mut words = theirs.words_of(0);
        let normal = StandardNormal.sample_iter(&mut words).take(MILLION);
        assert_agree(
            standard(noise::Distribution::Gaussian, &ours, MILLION),
            normal.collect(),
        );
        let mut exponential = || -> f64 { Exp1.sample(&mut words) };
        let laplace = (0..MILLION).map(|_| exponential() - exponential());
        assert_agree(
            standard(noise::Distribution::Laplace, &ours, MILLION),
            laplace.collect(),
        );
    }
}

#[test]
fn discrete_laplace_noise_agrees_with_a_difference_of_geometrics() {
    let scale = 40.0_f64;
    for [ours, theirs] in streams() {
        let mut words = theirs.words_of(0);
        let geometric = Geometric::new(1.0 - (-1.0 / scale).exp()).unwrap();
        let mut count = || geometric.sample(&mut words) as f64;
        let differences = (0..MILLION).map(|_| count() - count()).collect();
        let mut drawn = vec![0; MILLION];
        discrete_noise_into(
            DiscreteDistribution::Laplace,
            scale,
            &ours,
            None,
            MILLION,
            &mut drawn,
        )
        .unwrap();
        assert_agree(drawn.into_iter().map(|k| k as f64).collect(), differences);
    }
}
