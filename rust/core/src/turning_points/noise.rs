//! Independent noise, sample by sample from the words of its node.

use super::{Element, around, assert_same, everywhere, numbers, stream};
use crate::noise::{Distribution, Noise, add_noise_in_place, add_noise_into, noise_into};
use crate::sampling::{LANES, TURNS};
use crate::stream::{Cipher, Stream};
use crate::{Sample, parallel};

/// The first `dim` samples of a node, by the layout of its stream.
pub(super) fn samples<T: Sample>(
    distribution: Distribution,
    stream: &Stream,
    node: u32,
    dim: usize,
) -> Vec<T> {
    let (of_unit, words_of_unit) = match distribution {
        Distribution::Gaussian => (2 * LANES, (2 + T::WORDS) * LANES),
        Distribution::Laplace => (LANES, 2 * LANES),
    };
    let units = dim.div_ceil(of_unit);
    let mut words = vec![0; units * words_of_unit];
    stream.words_into(node, 0, &mut words).unwrap();
    let mut samples = Vec::with_capacity(units * of_unit);
    for unit in words.chunks(words_of_unit) {
        let word = |group: usize, lane: usize| unit[group * LANES + lane];
        match distribution {
            Distribution::Gaussian => {
                let pair = |lane| {
                    let angle = [word(2, lane), word(1 + T::WORDS, lane)];
                    T::gaussian([word(0, lane), word(1, lane)], angle)
                };
                samples.extend((0..LANES).map(|lane| pair(lane)[0]));
                samples.extend((0..LANES).map(|lane| pair(lane)[1]));
            }
            Distribution::Laplace => {
                samples.extend((0..LANES).map(|lane| T::laplace([word(0, lane), word(1, lane)])));
            }
        }
    }
    samples.truncate(dim);
    samples
}

/// Scales that are no powers of two, another one for each row.
fn scales(rows: usize) -> Vec<f64> {
    (0..rows).map(|row| 0.3 + row as f64 * 1.1e-5).collect()
}

fn check<T: Sample + Element>(
    distribution: Distribution,
    cipher: Cipher,
    (rows, dim): (usize, usize),
    scales: &[f64],
    nodes: Option<&[u32]>,
) {
    let (stream, size) = (stream(cipher), (distribution, rows, dim, scales.len()));
    let noise = Noise::new(distribution, scales, &stream).for_nodes(nodes);
    let x = numbers::<T>(rows * dim);
    let added = everywhere(size, || {
        let mut added = vec![T::ZERO; x.len()];
        add_noise_into(&x, dim, &noise, &mut added).unwrap();
        added
    });
    let mut expected = Vec::with_capacity(x.len());
    let mut alone = Vec::with_capacity(x.len());
    for (row, x) in x.chunks(dim).enumerate() {
        let node = nodes.map_or(row as u32, |nodes| nodes[row]);
        let scale = T::from_f64(scales[row % scales.len()]);
        let samples = samples::<T>(distribution, &stream, node, dim);
        expected.extend(samples.iter().zip(x).map(|(&z, &x)| scale.mul_add(z, x)));
        alone.extend(samples.into_iter().map(|z| scale * z));
    }
    assert_same(size, &added, &expected);
    let (mut in_place, mut filled) = (x.clone(), vec![T::ZERO; x.len()]);
    add_noise_in_place(&mut in_place, dim, &noise).unwrap();
    assert_same(size, &in_place, &expected);
    noise_into(&noise, dim, &mut filled).unwrap();
    assert_same(size, &filled, &alone);
}

const DISTRIBUTIONS: [Distribution; 2] = [Distribution::Gaussian, Distribution::Laplace];

fn long_rows<T: Sample + Element>() {
    for dim in around(&[TURNS, parallel::TURNS].concat()) {
        for distribution in DISTRIBUTIONS {
            check::<T>(
                distribution,
                Cipher::Aes,
                (2, dim),
                &scales(2),
                Some(&[u32::MAX, 1 << 16]),
            );
        }
    }
    check::<T>(
        Distribution::Gaussian,
        Cipher::ChaCha20,
        (1, 5_003),
        &[0.7],
        None,
    );
}

#[test]
fn noise_of_long_rows() {
    long_rows::<f32>();
    long_rows::<f64>();
}

/// Rows up to those whose number takes more than 16 bits.
fn many_rows<T: Sample + Element>() {
    for dim in [1, 3, 9, 17] {
        for rows in around(&[32, 64, 1024 / dim, 16_384 / dim]) {
            check::<T>(
                Distribution::Gaussian,
                Cipher::Aes,
                (rows, dim),
                &scales(rows),
                None,
            );
            check::<T>(
                Distribution::Laplace,
                Cipher::Aes,
                (rows, dim),
                &[0.3],
                None,
            );
        }
    }
    for rows in around(&[1 << 16]) {
        check::<T>(
            Distribution::Laplace,
            Cipher::Aes,
            (rows, 1),
            &scales(rows),
            None,
        );
    }
    check::<T>(
        Distribution::Gaussian,
        Cipher::ChaCha20,
        (300, 20),
        &scales(300),
        None,
    );
}

#[test]
fn noise_of_many_rows_with_a_scale_each() {
    many_rows::<f32>();
    many_rows::<f64>();
}
