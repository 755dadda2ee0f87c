//! Sums of arrays.

use super::{around, assert_same, everywhere, numbers};
use crate::Real;
use crate::parallel;
use crate::sums::{TURNS, column_sums_into, weighted_sum_into};

fn weighted_sums<T: Real + super::Element>() {
    for len in around(&[parallel::TURNS, TURNS].concat()) {
        let (weights, x) = (numbers::<T>(3), numbers::<T>(3 * len));
        let terms: Vec<&[T]> = x.chunks(len).collect();
        let sums = everywhere(len, || {
            let mut sums = vec![T::ZERO; len];
            weighted_sum_into(&weights, &terms, &mut sums).unwrap();
            sums
        });
        let defined = |i: usize| {
            (0..3)
                .map(|k| weights[k] * terms[k][i])
                .reduce(|a, b| a + b)
        };
        let expected: Vec<T> = (0..len).map(|i| defined(i).unwrap()).collect();
        assert_same(len, &sums, &expected);
    }
}

#[test]
fn weighted_sums_of_arrays() {
    weighted_sums::<f32>();
    weighted_sums::<f64>();
}

fn sums_of_columns<T: Real>() {
    let shapes = around(TURNS).into_iter().map(|dim| (5, dim));
    let shapes = shapes.chain(around(TURNS).into_iter().map(|dim| (80, dim)));
    for (rows, dim) in shapes.chain([(70_000, 1), (3, 70_000)]) {
        let x = numbers::<T>(rows * dim);
        let sums = everywhere((rows, dim), || {
            let mut sums = vec![f64::NAN; dim];
            column_sums_into(&x, &mut sums).unwrap();
            sums
        });
        let mut expected = vec![0.0; dim];
        for row in x.chunks(dim) {
            for (sum, value) in expected.iter_mut().zip(row) {
                *sum += value.to_f64();
            }
        }
        assert_same((rows, dim), &sums, &expected);
    }
}

#[test]
fn sums_of_the_columns_of_a_matrix() {
    sums_of_columns::<f32>();
    sums_of_columns::<f64>();
}
