//! Norms of rows, and clipping to them.

use super::{Element, around, assert_same, everywhere, numbers, whole_numbers};
use crate::Real;
use crate::parallel;
use crate::projection::{
    Norm, TURNS, all_finite, clip_rows_in_place, clip_rows_into, row_norms_into, sum_of_powers,
};

const KINDS: [Norm; 2] = [Norm::L1, Norm::L2];

fn sizes() -> Vec<usize> {
    around(&[parallel::TURNS, TURNS].concat())
}

fn power(value: impl Real, kind: Norm) -> f64 {
    match kind {
        Norm::L1 => value.to_f64().abs(),
        Norm::L2 => value.to_f64() * value.to_f64(),
    }
}

/// Before a root is taken, which hides low-order bits: of whole numbers, whose sum is exact in any order, and of
/// others, whose sum has the order of the blocks.
fn sums<T: Real>() {
    for dim in sizes() {
        for kind in KINDS {
            let x = whole_numbers::<T>(dim);
            let sum = everywhere((dim, kind), || vec![sum_of_powers(&x, kind)]);
            let expected: f64 = x.iter().map(|&v| power(v, kind)).sum();
            assert_same((dim, kind), &sum, &[expected]);
            let x = numbers::<T>(dim);
            everywhere((dim, kind), || vec![sum_of_powers(&x, kind)]);
        }
    }
}

#[test]
fn sums_before_the_root() {
    sums::<f32>();
    sums::<f64>();
}

fn norms_of_rows<T: Real>() {
    let long = sizes().into_iter().map(|dim| (3, dim));
    let short = around(parallel::TURNS).into_iter().map(|rows| (rows, 1));
    for (rows, dim) in long
        .chain(short)
        .chain([(65_537, 3), (9, 5_000), (1, 5_000)])
    {
        let x = whole_numbers::<T>(rows * dim);
        for kind in KINDS {
            let norms = everywhere((rows, dim), || {
                let mut norms = vec![f64::NAN; rows];
                row_norms_into(&x, dim, kind, &mut norms).unwrap();
                norms
            });
            let sum = |row: &[T]| kind.root(row.iter().map(|&v| power(v, kind)).sum());
            let expected: Vec<f64> = x.chunks(dim).map(sum).collect();
            assert_same((rows, dim), &norms, &expected);
        }
    }
}

#[test]
fn norms_of_the_rows_of_a_matrix() {
    norms_of_rows::<f32>();
    norms_of_rows::<f64>();
}

/// Each last number of a row is 100, and alone longer than the bound: a sum that ends early does not clip.
#[test]
fn no_number_is_left_out_of_a_norm() {
    for dim in sizes().into_iter().chain([5_000]) {
        for place in [0, dim / 2, dim - 1] {
            let mut x = vec![0.0_f32; dim];
            x[place] = 100.0;
            clip_rows_in_place(&mut x, dim, Norm::L2, 1.0).unwrap();
            assert_eq!(x[place], 1.0, "{dim}, {place}");
            x[place] = f32::NAN;
            assert!(!all_finite(&x), "{dim}, {place}");
        }
    }
}

/// Clips by a norm that `row_norms_into` gave, and compares that of the result with the bound: within one unit in its
/// last place for `f32`, and for `f64` within `units` of them, since the norm is itself a rounded sum.
fn clipped<T: Real + Element>(units: f64, epsilon: f64) {
    let shapes = sizes().into_iter().map(|dim| (2, dim));
    for (rows, dim) in shapes.chain([(65_537, 2), (700, 70), (40, 1_000)]) {
        let x = numbers::<T>(rows * dim);
        for (kind, bound) in [(Norm::L2, 0.7), (Norm::L1, 1.3)] {
            let mut norms = vec![0.0; rows];
            row_norms_into(&x, dim, kind, &mut norms).unwrap();
            let inside = everywhere((rows, dim, kind), || {
                let mut inside = x.clone();
                clip_rows_in_place(&mut inside, dim, kind, bound).unwrap();
                inside
            });
            let other = everywhere((rows, dim, kind), || {
                let mut other = vec![T::ZERO; x.len()];
                clip_rows_into(&x, dim, kind, bound, &mut other).unwrap();
                other
            });
            assert_same((rows, dim, kind), &other, &inside);
            for ((row, before), norm) in inside.chunks(dim).zip(x.chunks(dim)).zip(norms) {
                let factor = if norm > bound { bound / norm } else { 1.0 };
                let expected: Vec<T> = before
                    .iter()
                    .map(|v| T::from_f64(v.to_f64() * factor))
                    .collect();
                assert_same((rows, dim, kind), row, &expected);
                let length = kind.root(exact_sum(row.iter().map(|&v| power(v, kind))));
                assert!(
                    length <= bound * (1.0 + units * epsilon),
                    "{dim}, {kind:?}: {} units",
                    (length / bound - 1.0) / epsilon
                );
            }
        }
    }
}

/// A sum with a second number for what the first one's rounding loses (T. J. Dekker).
fn exact_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0);
    for term in terms {
        let next = sum + term;
        lost += if sum.abs() >= term {
            (sum - next) + term
        } else {
            (term - next) + sum
        };
        sum = next;
    }
    sum + lost
}

#[test]
fn rows_are_clipped_within_one_unit_in_the_last_place_of_their_bound() {
    clipped::<f32>(1.0, f64::from(f32::EPSILON));
    clipped::<f64>(2.0, f64::EPSILON);
}
