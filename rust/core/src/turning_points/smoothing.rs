//! Smoothing: the solution, put into the equation that defines it.

use super::{Element, around, everywhere, numbers};
use crate::parallel;
use crate::smoothing::{Method, Smooth, TURNS, smooth_rows_into};

/// The largest residual of `(1 + 2 s) u_i - s u_(i-1) - s u_(i+1) = v_i`, relative to the numbers in it.
fn residual<T: Smooth>(v: &[T], u: &[T], smoothing: f64) -> f64 {
    let at = |i: usize| u[i % u.len()].to_f64();
    let largest = u.iter().fold(0.0_f64, |m, u| m.max(u.to_f64().abs()));
    let residual = |i: usize| {
        let neighbours = at(i + u.len() - 1) + at(i + 1);
        let left = (1.0 + 2.0 * smoothing) * at(i) - smoothing * neighbours;
        (left - v[i].to_f64()).abs()
    };
    let most = (0..u.len()).map(residual).fold(0.0, f64::max);
    most / ((1.0 + 4.0 * smoothing) * largest)
}

/// `tolerance` is for the rounding of the solution and of the equation.
fn check<T: Smooth + Element>(rows: usize, blocks: &[usize], tolerance: f64) {
    let dim: usize = blocks.iter().sum();
    let v = numbers::<T>(rows * dim);
    for smoothing in [0.3, 20.0, 2e4] {
        let u = everywhere((rows, blocks, smoothing), || {
            let mut u = vec![T::ZERO; v.len()];
            smooth_rows_into(&v, blocks, smoothing, Method::Recursion, &mut u).unwrap();
            u
        });
        for (v, u) in v.chunks(dim).zip(u.chunks(dim)) {
            let mut start = 0;
            for &length in blocks {
                let part = start..start + length;
                let wrong = residual(&v[part.clone()], &u[part], smoothing);
                assert!(
                    wrong < tolerance,
                    "{rows}, {blocks:?}, {smoothing}: {wrong}"
                );
                start += length;
            }
        }
    }
}

fn all<T: Smooth + Element>(tolerance: f64) {
    for length in around(&[TURNS, &[parallel::SERIAL_BELOW, 1 << 17]].concat()) {
        if length > 2 {
            check::<T>(1, &[length], tolerance);
        }
    }
    for rows in around(&[16, 32, 800]) {
        check::<T>(rows, &[37, 5], tolerance);
    }
    check::<T>(3, &[4_097, 3, 300], tolerance);
}

#[test]
fn smoothed_rows() {
    all::<f32>(4.0 * f64::from(f32::EPSILON));
    all::<f64>(16.0 * f64::EPSILON);
}

#[test]
fn smoothed_rows_from_memory() {
    for length in [(1 << 21) - 1, (1 << 21) + 4_097] {
        let v = numbers::<f32>(length);
        let mut u = vec![0.0; length];
        dpmesh_threads::with_threads(7, || {
            smooth_rows_into(&v, &[length], 5.0, Method::Recursion, &mut u).unwrap();
        });
        assert!(residual(&v, &u, 5.0) < 4.0 * f64::from(f32::EPSILON));
    }
}
