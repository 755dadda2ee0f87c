//! Laplacian smoothing: `u = A^-1 v` for the circulant `A = I + s L^p`, where `L` is the Laplacian of the cycle,
//! with first row `(2, -1, 0, .., 0, -1)`.
//!
//! It estimates a smooth vector from a noisy one (Liang, Wang, Gu, Osher and Yao, "Differentially Private Federated
//! Learning with Laplacian Smoothing", section 3.1, where `p = 1` and `s` is called sigma; general powers are those
//! of Osher et al., "Laplacian Smoothing Gradient Descent"). A row may be cut into blocks (the layers of a
//! network), each of which is a cycle of its own. The mean of every block is kept.
//!
//! On a cycle of one element `L` is 0; on one of two elements both neighbours are the same, and its first row is
//! `(2, -2)`.
//!
//! ```
//! use dpmesh_core::smoothing::{Method, smooth_rows_in_place};
//!
//! let mut row = [8.0_f64, 0.0, 0.0, 0.0];
//! smooth_rows_in_place(&mut row, &[4], 1.0, Method::Recursion)?;
//! assert!((row.iter().sum::<f64>() - 8.0).abs() < 1e-12); // the mean is kept
//! assert!(row[0] > row[1] && row[1] > row[2]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

mod decay;
#[cfg(feature = "fft")]
mod fourier;
mod kept;
mod recursion;
mod spectrum;
mod sweep;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vectors;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_vectors.rs"]
mod vectors;

pub use spectrum::{EffectiveDimensions, effective_dimensions, spectrum_into};
pub use vectors::Smooth;

use crate::KernelError;
#[cfg(feature = "fft")]
use crate::Real;
use crate::error::{non_negative, rows, same_len};
#[cfg(feature = "fft")]
use crate::parallel::{for_each, is_better_within, is_serial};

/// Lengths of whole tiles and chunks of `f64` and `f32`.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[128, 256, 128 * tiles::LANES, 256 * tiles::LANES];

/// How the system is solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Two first-order recursions, exact up to rounding, for the first power of the Laplacian: a few operations
    /// for each element, whatever the length and the smoothing.
    Recursion,
    /// By real Fourier transforms in `f64`, for any power of the Laplacian; with the feature `fft`.
    #[cfg(feature = "fft")]
    Fourier {
        /// The power `p`, at least 1.
        power: u32,
    },
}

/// Smooths each row of `x`; a row is cut into `blocks` of these lengths.
///
/// NaN and infinity spread within their block, at least as far as the smoothing reaches.
///
/// # Errors
/// If `smoothing` is negative or not finite, there is no block, a block or the power is 0, or `x` is not a whole number
/// of rows.
pub fn smooth_rows_in_place<T: Smooth>(
    x: &mut [T],
    blocks: &[usize],
    smoothing: f64,
    method: Method,
) -> Result<(), KernelError> {
    smooth_rows(None, x, blocks, smoothing, method)
}

/// As [`smooth_rows_in_place`], reading `x` and writing `out`.
///
/// # Errors
/// As [`smooth_rows_in_place`], and if `out` is not as long as `x`.
pub fn smooth_rows_into<T: Smooth>(
    x: &[T],
    blocks: &[usize],
    smoothing: f64,
    method: Method,
    out: &mut [T],
) -> Result<(), KernelError> {
    same_len("out", out.len(), x.len())?;
    smooth_rows(Some(x), out, blocks, smoothing, method)
}

/// Smooths `v` into `u`, or `u` in place without `v`.
fn smooth_rows<T: Smooth>(
    v: Option<&[T]>,
    u: &mut [T],
    blocks: &[usize],
    smoothing: f64,
    method: Method,
) -> Result<(), KernelError> {
    non_negative("smoothing", smoothing)?;
    if blocks.is_empty() {
        return Err(KernelError::new("blocks", "at least 1 length", 0));
    }
    if let Some(block) = blocks.iter().position(|&length| length == 0) {
        let got = format!("0 in block {block}");
        return Err(KernelError::new("blocks", "lengths of at least 1", got));
    }
    #[cfg(feature = "fft")]
    if method == (Method::Fourier { power: 0 }) {
        return Err(KernelError::new("power", "at least 1", 0));
    }
    let dim = blocks.iter().copied().fold(0, usize::saturating_add);
    if rows("x", u.len(), dim)? == 0 {
        return Ok(());
    }
    if smoothing == 0.0 {
        if let Some(v) = v {
            u.copy_from_slice(v);
        }
        return Ok(());
    }
    match method {
        Method::Recursion => recursion::smooth_rows(v, u, blocks, smoothing),
        #[cfg(feature = "fft")]
        Method::Fourier { power } => fourier::smooth_rows(v, u, blocks, smoothing, power),
    }
    Ok(())
}

/// Calls `work(scratch, v, u, block)` for each block of each row, where `v` is to be smoothed into `u`, or `u` in
/// place.
#[cfg(feature = "fft")]
fn for_each_cycle<T: Real, B: Sync, S>(
    v: Option<&[T]>,
    u: &mut [T],
    blocks: &[(usize, B)],
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Option<&[T]>, &mut [T], &B) + Sync,
) {
    let dim: usize = blocks.iter().map(|(length, _)| length).sum();
    let serial = is_serial(u.len()) || is_better_within(u.len() / dim, dim);
    let rows = u.chunks_mut(dim).enumerate();
    for_each(rows, serial, scratch, |scratch, (row, u)| {
        let (mut rest, mut start) = (u, row * dim);
        for (length, block) in blocks {
            let (u, after) = rest.split_at_mut(*length);
            work(scratch, v.map(|v| &v[start..start + length]), u, block);
            (rest, start) = (after, start + length);
        }
    });
}

#[cfg(all(test, feature = "fft"))]
mod tests {
    use super::*;
    use dpmesh_threads::with_threads;
    use proptest::prelude::*;

    /// A dense matrix, built from its definition, and Gaussian elimination.
    fn dense_solve(v: &[f64], smoothing: f64, power: u32) -> Vec<f64> {
        let d = v.len();
        let product = |a: &[Vec<f64>], b: &[Vec<f64>]| -> Vec<Vec<f64>> {
            let entry = |i: usize, j| (0..d).map(|k| a[i][k] * b[k][j]).sum();
            (0..d)
                .map(|i| (0..d).map(|j| entry(i, j)).collect())
                .collect()
        };
        let mut laplacian = vec![vec![0.0; d]; d];
        for (i, row) in laplacian.iter_mut().enumerate() {
            row[i] += 2.0;
            row[(i + 1) % d] -= 1.0;
            row[(i + d - 1) % d] -= 1.0;
        }
        let mut a = laplacian.clone();
        for _ in 1..power {
            a = product(&a, &laplacian);
        }
        let mut u = v.to_vec();
        for (i, row) in a.iter_mut().enumerate() {
            for value in row.iter_mut() {
                *value *= smoothing;
            }
            row[i] += 1.0;
        }
        // Positive definite: no pivots needed.
        for i in 0..d {
            for j in i + 1..d {
                let factor = a[j][i] / a[i][i];
                let row = a[i].clone();
                for (value, above) in a[j].iter_mut().zip(&row) {
                    *value -= factor * above;
                }
                u[j] -= factor * u[i];
            }
        }
        for i in (0..d).rev() {
            let known: f64 = (i + 1..d).map(|k| a[i][k] * u[k]).sum();
            u[i] = (u[i] - known) / a[i][i];
        }
        u
    }

    fn smoothed<T: Smooth>(v: &[T], blocks: &[usize], smoothing: f64, method: Method) -> Vec<T> {
        let mut into = vec![T::from_f64(f64::NAN); v.len()];
        smooth_rows_into(v, blocks, smoothing, method, &mut into).unwrap();
        let mut in_place = v.to_vec();
        smooth_rows_in_place(&mut in_place, blocks, smoothing, method).unwrap();
        assert_eq!(in_place, into);
        into
    }

    fn relative_error<T: Real>(u: &[T], expected: &[f64]) -> f64 {
        let size = expected
            .iter()
            .fold(f64::MIN_POSITIVE, |m, e| m.max(e.abs()));
        let error = |(u, e): (&T, &f64)| (u.to_f64() - e).abs() / size;
        u.iter().zip(expected).map(error).fold(0.0, f64::max)
    }

    const FOURIER: Method = Method::Fourier { power: 1 };

    /// Pseudorandom numbers in [-1, 1].
    fn signal(len: usize) -> Vec<f64> {
        let hash = |i: usize| {
            (i as u64 + 1)
                .wrapping_mul(0x9e3779b97f4a7c15)
                .rotate_left(29)
        };
        let hash = |i: usize| hash(hash(i) as usize);
        (0..len)
            .map(|i| hash(i) as i64 as f64 / i64::MAX as f64)
            .collect()
    }

    proptest! {
        #[test]
        fn both_methods_equal_a_dense_solve(
            v in prop::collection::vec(-1.0_f64..1.0, 1..24),
            log_smoothing in -8.0_f64..6.0,
            power in 1_u32..4,
        ) {
            let smoothing = 10_f64.powf(log_smoothing);
            let expected = dense_solve(&v, smoothing, power);
            // Elimination itself loses accuracy with the condition number.
            let condition = 1.0 + smoothing * 4_f64.powi(power as i32);
            let fourier = smoothed(&v, &[v.len()], smoothing, Method::Fourier { power });
            prop_assert!(relative_error(&fourier, &expected) <= 1e-13 + 1e-15 * condition);
            if power == 1 {
                let recursion = smoothed(&v, &[v.len()], smoothing, Method::Recursion);
                prop_assert!(relative_error(&recursion, &expected) <= 1e-13 + 1e-15 * condition);
            }
        }

        #[test]
        fn rows_and_blocks_are_independent(
            blocks in prop::collection::vec(1_usize..40, 1..5),
            count in 1_usize..40,
            smoothing in 0.0_f64..50.0,
            fourier: bool,
        ) {
            let method = if fourier { FOURIER } else { Method::Recursion };
            let v = signal(count * blocks.iter().sum::<usize>());
            let together = smoothed(&v, &blocks, smoothing, method);
            let mut rest = &v[..];
            let mut apart = Vec::new();
            while !rest.is_empty() {
                for &length in &blocks {
                    apart.extend(smoothed(&rest[..length], &[length], smoothing, method));
                    rest = &rest[length..];
                }
            }
            prop_assert_eq!(together, apart);
        }
    }

    #[test]
    fn the_recursion_equals_the_transform_at_every_length_and_smoothing() {
        for dim in [
            1, 2, 3, 5, 7, 8, 64, 127, 128, 129, 255, 256, 257, 509, 2047, 2048, 2049, 2055, 4096,
            4097, 4099, 7850, 8192, 40_009,
        ] {
            let v = signal(dim);
            let narrow: Vec<f32> = v.iter().map(|v| *v as f32).collect();
            let rounded: Vec<f64> = narrow.iter().map(|v| f64::from(*v)).collect();
            for smoothing in [
                0.0, 1e-320, 1e-9, 0.01, 0.5, 1.0, 10.0, 100.0, 101.0, 1e4, 1e6, 1e9,
            ] {
                let error = relative_error(
                    &smoothed(&v, &[dim], smoothing, Method::Recursion),
                    &smoothed(&v, &[dim], smoothing, FOURIER),
                );
                assert!(error <= 1e-12, "f64, d = {dim}, s = {smoothing}: {error}");
                let error = relative_error(
                    &smoothed(&narrow, &[dim], smoothing, Method::Recursion),
                    &smoothed(&rounded, &[dim], smoothing, FOURIER),
                );
                assert!(error <= 2e-6, "f32, d = {dim}, s = {smoothing}: {error}");
            }
        }
    }

    #[test]
    fn long_blocks_have_the_same_solution() {
        let v = signal((1 << 21) + 12_345);
        let narrow: Vec<f32> = v.iter().map(|v| *v as f32).collect();
        for smoothing in [1.0, 1e5] {
            let expected = smoothed(&v, &[v.len()], smoothing, FOURIER);
            let wide = smoothed(&v, &[v.len()], smoothing, Method::Recursion);
            let narrow = smoothed(&narrow, &[v.len()], smoothing, Method::Recursion);
            assert!(relative_error(&wide, &expected) <= 1e-12);
            assert!(relative_error(&narrow, &expected) <= 1e-6);
        }
    }

    #[test]
    fn one_element_stays_and_two_are_neighbours_twice() {
        assert_eq!(smoothed(&[3.0], &[1], 5.0, Method::Recursion), [3.0]);
        // (1 + 2s, -2s) applied to (a, b) with s = 1: 3a - 2b, 3b - 2a.
        let u = smoothed(
            &[3.0 * 5.0 - 2.0, 3.0 - 2.0 * 5.0],
            &[2],
            1.0,
            Method::Recursion,
        );
        assert!((u[0] - 5.0).abs() < 1e-14 && (u[1] - 1.0).abs() < 1e-14);
    }

    #[test]
    fn the_bits_are_the_same_on_any_number_of_threads() {
        let x: Vec<f32> = signal(300_021).iter().map(|v| *v as f32).collect();
        for (blocks, smoothing) in [
            (vec![300_021], 3.0),
            (vec![300_021], 1e4),
            (vec![17, 99_983, 7], 1.0),
            (vec![3], 1.0),
        ] {
            let on = |threads, method| {
                let u = with_threads(threads, || smoothed(&x, &blocks, smoothing, method));
                u.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            for method in [Method::Recursion, FOURIER] {
                assert_eq!(on(1, method), on(2, method));
                assert_eq!(on(1, method), on(7, method));
            }
        }
    }

    #[test]
    fn an_impulse_leaves_no_trail_of_subnormal_numbers() {
        fn subnormal<T: Smooth>(len: usize, smoothing: f64) -> usize {
            let mut x = vec![T::ZERO; len];
            x[len / 2] = T::ONE;
            let u = smoothed(&x, &[len], smoothing, Method::Recursion);
            let tiny = |u: &&T| **u != T::ZERO && u.abs() < T::MIN_POSITIVE;
            u.iter().filter(tiny).count()
        }
        // A few on either side, until the recursion is next checked.
        for smoothing in [0.1, 1.0, 10.0, 100.0] {
            assert!(subnormal::<f32>(20_000, smoothing) <= 64);
            assert!(subnormal::<f64>(20_000, smoothing) <= 64);
        }
        assert!(subnormal::<f64>(1_000_000, 1e4) <= 64);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let in_place = |blocks: &[usize], smoothing, method| {
            let error = smooth_rows_in_place(&mut [0.0; 6], blocks, smoothing, method);
            error.unwrap_err().to_string()
        };
        assert_eq!(
            in_place(&[4], 1.0, Method::Recursion),
            "x: wanted a multiple of dim = 4 elements, got 6"
        );
        assert_eq!(
            in_place(&[6, 0], 1.0, Method::Recursion),
            "blocks: wanted lengths of at least 1, got 0 in block 1"
        );
        assert_eq!(
            in_place(&[], 1.0, Method::Recursion),
            "blocks: wanted at least 1 length, got 0"
        );
        assert_eq!(
            in_place(&[6], -1.0, Method::Recursion),
            "smoothing: wanted a finite number of at least 0, got -1"
        );
        assert_eq!(
            in_place(&[6], 1.0, Method::Fourier { power: 0 }),
            "power: wanted at least 1, got 0"
        );
        let into = smooth_rows_into(&[0.0; 6], &[3], 1.0, Method::Recursion, &mut [0.0; 3]);
        assert_eq!(
            into.unwrap_err().to_string(),
            "out: wanted 6 elements, got 3"
        );
    }
}
