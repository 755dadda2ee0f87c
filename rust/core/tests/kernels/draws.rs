//! Uniform, Bernoulli and Rademacher draws have their distributions, and their values never change.

use crate::statistics::{TWO_SIDED, follows, stream, z_score};
use dpmesh_core::Sample;
use dpmesh_core::draws::{
    Rows, batch_ends_into, bernoulli_into, rademacher_into, sample_into, shuffle_into, uniform_into,
};
use dpmesh_core::stream::{Cipher, Stream};

const MILLION: usize = 1_000_000;

fn uniform<T: Sample>(stream: &Stream, n: usize) -> Vec<f64> {
    let mut draws = vec![T::ZERO; n];
    uniform_into(stream, None, n, &mut draws).unwrap();
    draws.into_iter().map(T::to_f64).collect()
}

fn bernoulli(p: f64, n: usize) -> Vec<bool> {
    let mut draws = vec![false; n];
    bernoulli_into(p, &stream(Cipher::Aes), None, n, &mut draws).unwrap();
    draws
}

fn rademacher(p: f64, n: usize) -> Vec<i8> {
    let mut draws = vec![0; n];
    rademacher_into(p, &stream(Cipher::Aes), None, n, &mut draws).unwrap();
    draws
}

#[test]
fn uniform_numbers_fill_the_unit_interval() {
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        for draws in [
            uniform::<f32>(&stream(cipher), MILLION),
            uniform::<f64>(&stream(cipher), MILLION),
        ] {
            assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
            assert!(follows(draws.clone(), |u| u));
            assert!(!follows(
                draws.into_iter().map(|u| u * 0.99).collect(),
                |u| u
            ));
        }
    }
}

#[test]
fn probabilities_are_right_and_wrong_ones_are_noticed() {
    let score = |draws: &dyn Fn(f64) -> Vec<f64>, p: f64, believed: f64| {
        z_score(draws(p).into_iter(), believed, believed * (1.0 - believed)).abs()
    };
    let trues = |p| bernoulli(p, MILLION).into_iter().map(f64::from).collect();
    let pluses = |p| {
        rademacher(p, MILLION)
            .into_iter()
            .map(|s| f64::from(s == 1))
            .collect()
    };
    let minuses = |p| {
        rademacher(p, MILLION)
            .into_iter()
            .map(|s| f64::from(s == -1))
            .collect()
    };
    for p in [0.0003, 0.1, 0.3, 0.5] {
        for draws in [&trues as &dyn Fn(f64) -> Vec<f64>, &pluses, &minuses] {
            assert!(score(draws, p, p) < TWO_SIDED);
            assert!(score(draws, p, p + 0.01) > TWO_SIDED);
        }
    }
    assert!(score(&trues, 0.9, 0.9) < TWO_SIDED);
}

#[test]
fn certain_events_are_certain() {
    assert!(bernoulli(0.0, 4096).iter().all(|b| !b));
    assert!(bernoulli(1.0, 4096).iter().all(|b| *b));
    assert!(rademacher(0.0, 4096).iter().all(|s| *s == 0));
    assert!(rademacher(0.5, 4096).iter().all(|s| *s != 0));
}

#[test]
fn values_are_those_of_every_earlier_version() {
    let stream = stream(Cipher::Aes);
    assert_eq!(
        uniform::<f32>(&stream, 3),
        [0.7452836036682129, 0.37094825506210327, 0.937929630279541]
    );
    assert_eq!(
        uniform::<f64>(&stream, 3),
        [0.7452836538385713, 0.3709483137854158, 0.9379296468301075]
    );
    assert_eq!(
        bernoulli(0.5, 12)
            .into_iter()
            .map(u8::from)
            .collect::<Vec<_>>(),
        [0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0]
    );
    assert_eq!(
        rademacher(0.4, 12),
        [-1, 1, 0, -1, -1, 0, -1, 1, 1, 1, 1, 0]
    );
}

#[test]
fn rows_are_those_of_their_nodes() {
    let stream = stream(Cipher::Aes);
    let nodes = [7, 0, 5];
    let mut rows = [[0.0_f64; 600]; 3];
    uniform_into(&stream, Some(&nodes), 600, rows.as_flattened_mut()).unwrap();
    for (node, row) in nodes.iter().zip(rows) {
        let mut alone = [0.0; 600];
        uniform_into(&stream, Some(&[*node]), 600, &mut alone).unwrap();
        assert_eq!(row, alone);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let stream = stream(Cipher::Aes);
    for p in [-0.1, 1.1, f64::NAN] {
        let error = bernoulli_into(p, &stream, None, 2, &mut [false; 2]).unwrap_err();
        assert_eq!(
            (error.argument(), error.wanted()),
            ("p", "a number in [0, 1]")
        );
    }
    for p in [-0.1, 0.6, f64::NAN] {
        let error = rademacher_into(p, &stream, None, 2, &mut [0; 2]).unwrap_err();
        assert_eq!(
            (error.argument(), error.wanted()),
            ("p", "a number in [0, 0.5]")
        );
    }
    let error = uniform_into(&stream, Some(&[1, 1]), 1, &mut [0.0_f64; 2]).unwrap_err();
    assert_eq!(error.argument(), "nodes");
    let error = uniform_into(&stream, None, 2, &mut [0.0_f32; 3]).unwrap_err();
    assert_eq!(error.argument(), "out");
}

#[test]
fn samples_are_the_places_of_the_smallest_numbers() {
    let stream = stream(Cipher::Aes);
    let counts = [700, 512, 5000];
    for size in [1, 3, 300, 512] {
        let mut samples = vec![0; counts.len() * size];
        sample_into(&counts, &stream, Some(&[3, 1, 2]), size, &mut samples).unwrap();
        for (i, node) in [3, 1, 2].into_iter().enumerate() {
            let mut coins = vec![0.0_f64; counts[i] as usize];
            uniform_into(&stream, Some(&[node]), coins.len(), &mut coins).unwrap();
            let mut places: Vec<i64> = (0..counts[i]).collect();
            places.sort_by(|&a, &b| coins[a as usize].total_cmp(&coins[b as usize]));
            places.truncate(size);
            places.sort_unstable();
            assert_eq!(samples[i * size..][..size], places);
        }
    }
    let error = sample_into(&[2, 1], &stream, None, 2, &mut [0; 4]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "counts: wanted at least 2, the size of a sample, got 1"
    );
    assert!(sample_into(&[2], &stream, None, 2, &mut [0; 4]).is_err());
    for count in [(1 << 33) + 1, 1 << 34, 1 << 61, i64::MAX] {
        let error = sample_into(&[count], &stream, None, 2, &mut [0; 2]).unwrap_err();
        let blocks = "counts: wanted at most 1073741824 blocks of a stream";
        assert!(error.to_string().starts_with(blocks), "{error}");
    }
}

#[test]
fn orders_are_those_of_the_numbers_on_any_number_of_threads() {
    let stream = stream(Cipher::Aes);
    let (size, passes) = (600, 3);
    let values: Vec<i64> = (0..8 * size).collect();
    let indptr: Vec<i64> = (0..=8).map(|i| i * size).collect();
    let rows = Rows::new(&indptr, &values);
    let nodes: Vec<u32> = (0..8).map(|i| 10 - i).collect();
    let length = passes * size - 100;
    let shuffled = |threads| {
        let mut out = vec![0; 8 * length as usize];
        dpmesh_threads::with_threads(threads, || {
            shuffle_into(rows, &[length; 8], &stream, Some(&nodes), &mut out)
        })
        .unwrap();
        out
    };
    let found = shuffled(1);
    assert_eq!(found, shuffled(3));
    for (i, (own, &node)) in found.chunks(length as usize).zip(&nodes).enumerate() {
        let mut coins = vec![0.0_f64; (passes * size) as usize];
        uniform_into(&stream, Some(&[node]), coins.len(), &mut coins).unwrap();
        for (own, coins) in own.chunks(size as usize).zip(coins.chunks(size as usize)) {
            let mut order: Vec<usize> = (0..size as usize).collect();
            order.sort_by(|&a, &b| coins[a].total_cmp(&coins[b]));
            let order = order.into_iter().map(|j| values[i * size as usize + j]);
            assert!(order.zip(own).all(|(expected, &found)| expected == found));
        }
    }
}

#[test]
fn orders_that_do_not_fit_are_refused() {
    let refused = |indptr: &[i64], lengths: &[i64], room: usize| {
        let values = &[5, 6, 7];
        let rows = Rows::new(indptr, values);
        let mut out = vec![0; room];
        let error = shuffle_into(rows, lengths, &stream(Cipher::Aes), None, &mut out);
        error.unwrap_err().argument()
    };
    for indptr in [&[0, 2, 1, 3][..], &[0, 2, 2], &[1, 2, 3], &[]] {
        assert_eq!(refused(indptr, &[1; 2], 2), "rows");
    }
    let indptr = [0, 3, 3];
    assert_eq!(refused(&indptr, &[1], 1), "lengths");
    assert_eq!(refused(&indptr, &[1, 0, 0], 1), "lengths");
    assert_eq!(refused(&indptr, &[1, 1], 2), "lengths"); // the second row is empty
    assert_eq!(refused(&indptr, &[-1, 0], 1), "lengths");
    assert_eq!(refused(&indptr, &[1 << 40, 0], 2), "lengths");
    assert_eq!(refused(&indptr, &[1, 0], 2), "out");
}

#[test]
fn batches_end_with_their_pass() {
    let mut ends = [-1; 8];
    batch_ends_into(&[5, 0, 1], &[4, 0, 3], 2, &mut ends).unwrap();
    assert_eq!(ends, [0, 2, 4, 5, 7, 8, 9, 10]);
    let refused = |sizes: &[i64], batches: &[i64], batch_size, out: &mut [i64]| {
        let error = batch_ends_into(sizes, batches, batch_size, out).unwrap_err();
        error.argument()
    };
    assert_eq!(refused(&[5], &[1], 0, &mut [0; 2]), "batch_size");
    assert_eq!(refused(&[5], &[1, 1], 1, &mut [0; 3]), "batches");
    assert_eq!(refused(&[5], &[2], 1, &mut [0; 2]), "batches");
    assert_eq!(refused(&[0], &[1], 1, &mut [0; 2]), "batches");
    assert_eq!(refused(&[5], &[-1], 1, &mut [0; 2]), "batches");
    assert_eq!(refused(&[5], &[1], 1, &mut [0; 3]), "out");
    assert_eq!(refused(&[], &[], 1, &mut []), "out");
    let most = i64::MAX;
    assert_eq!(refused(&[most, 1], &[1, 1], most, &mut [0; 3]), "sizes");
}
