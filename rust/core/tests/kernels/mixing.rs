//! Mixing equals its definition, whatever the threads, and mixing noisy rows equals noise before mixing.

use dpmesh_core::mixing::{MixingMatrix, mix_into, mix_noisy_into};
use dpmesh_core::noise::{Distribution, Noise, add_noise_in_place};
use dpmesh_core::stream::{Cipher, Key};
use dpmesh_core::{Real, Sample, Wide};
use proptest::prelude::*;

/// Row by row, entry by entry, as the definition says.
fn slow<T: Real>(
    indptr: &[usize],
    indices: &[usize],
    weights: &[T],
    x: &[T],
    dim: usize,
) -> Vec<T> {
    let mut out = vec![T::ZERO; (indptr.len() - 1) * dim];
    for (ends, out) in indptr.windows(2).zip(out.chunks_mut(dim)) {
        for entry in ends[0]..ends[1] {
            for (c, out) in out.iter_mut().enumerate() {
                *out = weights[entry].mul_add(x[indices[entry] * dim + c], *out);
            }
        }
    }
    out
}

fn numbers<T: Real>(len: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let step = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        T::from_f64((state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
    };
    std::iter::repeat_with(step).take(len).collect()
}

/// Rows with the given numbers of entries, in no order and with repetitions.
fn pattern(degrees: &[usize], columns: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let indptr = degrees.iter().scan(0, |end, degree| {
        *end += degree;
        Some(*end)
    });
    let entries = degrees.iter().sum();
    let index = |v: f64| ((0.5 + 0.5 * v) * columns as f64) as usize;
    let indices = numbers(entries, seed).into_iter().map(index).collect();
    (std::iter::once(0).chain(indptr).collect(), indices)
}

/// `rows` rows with entries in the same `width` of twice as many columns, in no order and with repetitions.
fn dense(rows: usize, width: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let indptr = (0..=rows).map(|i| width * i).collect();
    (indptr, pattern(&[width], 2 * width, seed).1.repeat(rows))
}

/// Each node takes from itself, the one before and two after.
fn ring(nodes: usize) -> (Vec<usize>, Vec<usize>) {
    let neighbours = |i| [i + nodes - 1, i, i + 1, i + 2].map(|j| j % nodes);
    let indptr = (0..=nodes).map(|i| 4 * i).collect();
    (indptr, (0..nodes).flat_map(neighbours).collect())
}

fn equals_slow<T: Wide>(degrees: &[usize], columns: usize, dim: usize, seed: u64) {
    matrix_equals_slow::<T>(&pattern(degrees, columns, seed), columns, dim, seed);
}

fn matrix_equals_slow<T: Wide>(
    (indptr, indices): &(Vec<usize>, Vec<usize>),
    columns: usize,
    dim: usize,
    seed: u64,
) {
    let weights: Vec<T> = numbers(indices.len(), seed + 1);
    let x: Vec<T> = numbers(columns * dim, seed + 2);
    let a = MixingMatrix::new(indptr, indices, &weights, columns).unwrap();
    let expected = slow(indptr, indices, &weights, &x, dim);
    let [short_indptr, short_indices] =
        [indptr, indices].map(|part| part.iter().map(|&i| i as i32).collect::<Vec<_>>());
    let short = MixingMatrix::new(&short_indptr, &short_indices, &weights, columns).unwrap();
    let mut out = vec![T::from_f64(f64::NAN); expected.len()];
    mix_into(&short, &x, dim, &mut out).unwrap();
    assert!(out == expected, "{columns} {dim}, 32 bits");
    for threads in [1, 2, 7] {
        let mut out = vec![T::from_f64(f64::NAN); expected.len()];
        dpmesh_threads::with_threads(threads, || mix_into(&a, &x, dim, &mut out).unwrap());
        assert!(out == expected, "{columns} {dim} {threads}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_bit_is_that_of_the_definition(
        degrees in prop::collection::vec(0_usize..20, 1..12),
        columns in 1_usize..12,
        dim in prop_oneof![1_usize..80, 200_usize..700],
        seed in 0..1_u64 << 60,
    ) {
        equals_slow::<f32>(&degrees, columns, dim, seed);
        equals_slow::<f64>(&degrees, columns, dim, seed);
    }

    #[test]
    fn every_bit_of_dense_matrices_is_that_of_the_definition(
        rows in 1_usize..30,
        width in 14_usize..40,
        dim in prop_oneof![1_usize..200, 500_usize..1500],
        seed in 0..1_u64 << 60,
    ) {
        matrix_equals_slow::<f32>(&dense(rows, width, seed), 2 * width, dim, seed);
        matrix_equals_slow::<f64>(&dense(rows, width, seed), 2 * width, dim, seed);
    }
}

#[test]
fn many_threads_share_rows_and_pieces_of_rows() {
    equals_slow::<f32>(&[3; 2000], 2000, 97, 1);
    equals_slow::<f64>(&[5, 0, 17], 9, 50_021, 2);
    equals_slow::<f64>(&[5, 0, 17], 9, 90_001, 2);
}

#[test]
fn few_nodes_share_blocks_of_columns() {
    equals_slow::<f32>(&[5; 64], 60, 4096, 3);
    equals_slow::<f64>(&[3, 0, 20, 1], 64, 2_077, 4);
    for dim in 2_304..2_330 {
        equals_slow::<f32>(&[3; 66], 64, dim, 5); // a last block of any number of columns
    }
    equals_slow::<f32>(&[3; 64], 64, 47_236, 6); // from memory
    equals_slow::<f64>(&[3; 64], 64, 23_001, 7);
}

#[test]
fn tasks_share_rows_of_dense_matrices() {
    equals_slow::<f32>(&[64; 64], 64, 300, 8);
    equals_slow::<f64>(&[64; 65], 64, 1_000, 9); // more rows than columns
    equals_slow::<f64>(&[200; 200], 200, 600, 10);
    equals_slow::<f32>(&[17, 0, 40], 30, 2_400, 11);
    equals_slow::<f32>(&[300; 3], 300, 5_000, 12); // fewer
    matrix_equals_slow::<f32>(&dense(201, 150, 13), 300, 650, 13); // all in the same columns
    matrix_equals_slow::<f64>(&dense(65, 64, 14), 128, 1_000, 14);
}

#[test]
fn large_results_are_written_past_the_cache() {
    matrix_equals_slow::<f32>(&ring(1_025), 1_025, 6_500, 5); // more than 24 MiB
    matrix_equals_slow::<f64>(&ring(300), 300, 12_289, 6);
}

fn fused_equals_separate<T: Sample + Wide>(nodes: usize, dim: usize, noise: Noise<'_>) {
    let (indptr, indices) = pattern(&vec![3; nodes + 2], nodes, 1);
    let weights: Vec<T> = numbers(indices.len(), 2);
    let a = MixingMatrix::new(&indptr, &indices, &weights, nodes).unwrap();
    let x: Vec<T> = numbers(nodes * dim, 3);
    let mut noisy = x.clone();
    add_noise_in_place(&mut noisy, dim, &noise).unwrap();
    let mut separate = vec![T::ZERO; (nodes + 2) * dim];
    mix_into(&a, &noisy, dim, &mut separate).unwrap();
    for threads in [1, 2, 7] {
        let mut fused = vec![T::from_f64(f64::NAN); separate.len()];
        let mix = || mix_noisy_into(&a, &x, dim, &noise, &mut fused).unwrap();
        dpmesh_threads::with_threads(threads, mix);
        assert!(fused == separate, "{nodes} {dim} {threads}");
    }
}

#[test]
fn noise_while_mixing_is_noise_before_mixing() {
    let stream = Key::new(Cipher::Aes, &[3; 32]).stream(1, 0).unwrap();
    for (nodes, dim) in [(1, 1), (5, 10), (40, 700), (1, 1_100_000), (700, 1500)] {
        let nodes_of_rows: Vec<u32> = (0..nodes as u32).rev().collect();
        let scales: Vec<f64> = (0..nodes).map(|i| i as f64).collect();
        for distribution in [Distribution::Gaussian, Distribution::Laplace] {
            let noise =
                Noise::new(distribution, &scales, &stream).for_nodes(nodes_of_rows.as_slice());
            fused_equals_separate::<f32>(nodes, dim, noise);
            fused_equals_separate::<f64>(nodes, dim, noise.for_nodes(None));
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let message = |indptr: &[usize], indices: &[usize], weights: &[f32]| {
        MixingMatrix::new(indptr, indices, weights, 2)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        message(&[0, 2, 1], &[0], &[1.0]),
        "indptr: wanted offsets that rise from 0 to 1, got [0, 2, 1]"
    );
    assert_eq!(
        message(&[0], &[], &[]),
        "indptr: wanted at least 1 row, got none"
    );
    assert!(message(&[], &[], &[]).starts_with("indptr: wanted offsets"));
    assert!(message(&[1, 1], &[0], &[1.0]).starts_with("indptr: wanted offsets"));
    assert_eq!(
        message(&[0, 1], &[2], &[1.0]),
        "indices: wanted columns below 2, got 2"
    );
    let negative = MixingMatrix::new(&[0, 1], &[-1], &[1.0_f32], 2).unwrap_err();
    assert_eq!(negative.argument(), "indices");
    let falling = MixingMatrix::new(&[0, -1, 1], &[0], &[1.0_f32], 2).unwrap_err();
    assert_eq!(falling.argument(), "indptr");
    assert_eq!(
        message(&[0, 1], &[0], &[]),
        "weights: wanted 1 elements, got 0"
    );
    let a = MixingMatrix::new(&[0, 1], &[1], &[1.0_f32], 2).unwrap();
    let wrong = |x: &[f32], dim, out: &mut [f32]| mix_into(&a, x, dim, out).unwrap_err();
    assert_eq!(
        wrong(&[1.0; 6], 2, &mut [0.0; 2]).to_string(),
        "x: wanted 4 elements, got 6"
    );
    assert_eq!(wrong(&[1.0; 4], 2, &mut [0.0; 4]).argument(), "out");
    assert_eq!(wrong(&[1.0; 4], 0, &mut [0.0; 2]).argument(), "dim");
}

#[test]
fn noise_while_mixing_refuses_what_mixing_refuses() {
    let a = MixingMatrix::new(&[0, 1], &[1], &[1.0_f32], 2).unwrap();
    let key = Key::new(Cipher::Aes, &[7; 32]);
    let stream = key.stream(1, 0).unwrap();
    let noise = Noise::new(Distribution::Gaussian, &[1.0], &stream);
    for dim in [2, 200_000] {
        for (nodes, rows) in [(3, 1), (1, 1), (2, 2), (2, 0)] {
            let (x, mut out) = (vec![1.0; nodes * dim], vec![0.0; rows * dim]);
            let refused = mix_noisy_into(&a, &x, dim, &noise, &mut out);
            assert!(refused.is_err());
            assert_eq!(refused, mix_into(&a, &x, dim, &mut out));
        }
    }
}
