//! Norms of rows, and scaling of rows back into a ball: clipping of gradients, projection of parameters.
//!
//! Clipping to a norm and projecting onto the centred ball of that radius are the same map,
//! `x * min(1, bound / |x|)` in L2. In L1 they differ: [`clip_rows_in_place`] with [`Norm::L1`] scales the
//! row (it keeps the direction), which bounds the L1 norm but is not the nearest point of the L1 ball.
//!
//! ```
//! use dpmesh_core::projection::{Norm, clip_rows_in_place};
//!
//! let mut rows = [3.0, 4.0, 0.3, 0.4];
//! clip_rows_in_place(&mut rows, 2, Norm::L2, 1.0)?;
//! assert_eq!(rows, [0.6000000000000001, 0.8, 0.3, 0.4]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, map_blocks, share, sum_blocks};
use crate::{ErrorKind, KernelError, Real};

/// The norm of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Norm {
    /// Sum of absolute values.
    L1,
    /// Euclidean norm.
    L2,
}

impl Norm {
    /// The norm of a row with this [`sum_of_powers`].
    #[inline(always)]
    pub(crate) fn root(self, sum: f64) -> f64 {
        match self {
            Norm::L1 => sum,
            Norm::L2 => sum.sqrt(),
        }
    }
}

/// The norm of a row of up to this many elements is inlined: a call would cost more.
const SHORT: usize = 64;

/// Lengths of rows at which their norms are computed in another way.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[LANES, SHORT];

/// The least norm that rows are clipped to. Far below it the squares of an `f64` row vanish, and the elements of an
/// `f32` row have too few digits to stay within.
const SMALLEST_BOUND: f64 = 1e-30;

/// Fails unless rows can be clipped to this norm.
pub(crate) fn check_bound(argument: &'static str, bound: f64) -> Result<(), KernelError> {
    if bound.is_finite() && bound >= SMALLEST_BOUND {
        return Ok(());
    }
    let wanted = format!("a finite number of at least {SMALLEST_BOUND:e}");
    Err(KernelError::new(argument, wanted, format!("{bound:e}")))
}

/// The norm of one row, summed in `f64`; NaN or infinite exactly if an element is, or if the norm is beyond `f64`.
pub fn norm<T: Real>(row: &[T], kind: Norm) -> f64 {
    root_or_large(outlined_sum(row, kind), row, kind)
}

/// The norm of a row, from its [`sum_of_powers`].
#[inline(always)]
fn root_or_large<T: Real>(sum: f64, row: &[T], kind: Norm) -> f64 {
    if sum < f64::INFINITY {
        kind.root(sum)
    } else {
        large_norm(row, kind)
    }
}

/// Factor of the numbers of a row whose sum of squares overflows: that of the products does not.
const DOWN: f64 = f64::from_bits((1023 - 600) << 52); // 2^-600

/// The norm of a row whose sum of powers is not finite.
#[cold]
#[inline(never)]
fn large_norm<T: Real>(row: &[T], kind: Norm) -> f64 {
    norm_down(row, kind) / DOWN
}

/// The norm of `row` times [`DOWN`], which is finite if the row is.
fn norm_down<T: Real>(row: &[T], kind: Norm) -> f64 {
    let power = |v: &T| match kind {
        Norm::L1 => (v.to_f64() * DOWN).abs(),
        Norm::L2 => square(v.to_f64() * DOWN),
    };
    kind.root(row.iter().map(power).sum())
}

/// The [`sum_of_powers`] of a row of any length, as a function call.
fn outlined_sum<T: Real>(row: &[T], kind: Norm) -> f64 {
    match kind {
        Norm::L1 => sum_blocks(row, |block| {
            sum(block, f64::abs, vectorized!(lanes(block, f64::abs)))
        }),
        Norm::L2 => sum_blocks(row, |block| {
            sum(block, square, vectorized!(lanes(block, square)))
        }),
    }
}

/// The [`norm`] of a row, short or long, for loops over rows inside `vectorized!`.
#[inline(always)]
pub(crate) fn inlined_norm<T: Real>(row: &[T], kind: Norm) -> f64 {
    root_or_large(sum_of_powers(row, kind), row, kind)
}

/// The sum of absolute values or squares whose [`root`](Norm::root) is the norm: the roots of several rows are best
/// taken together.
#[inline(always)]
pub(crate) fn sum_of_powers<T: Real>(row: &[T], kind: Norm) -> f64 {
    if row.len() > SHORT {
        return outlined_sum(row, kind);
    }
    match kind {
        Norm::L1 => sum(row, f64::abs, lanes(row, f64::abs)),
        Norm::L2 => sum(row, square, lanes(row, square)),
    }
}

#[inline(always)]
fn square(v: f64) -> f64 {
    v * v
}

/// Whether no element is NaN or infinite.
pub fn all_finite<T: Real>(x: &[T]) -> bool {
    let finite = map_blocks(x, BLOCK, |block| vectorized!(is_finite(block)));
    finite.iter().all(|&block| block)
}

/// As [`all_finite`], for a block inside `vectorized!`.
#[inline(always)]
pub(crate) fn is_finite<T: Real>(block: &[T]) -> bool {
    is_within(block, T::MAX)
}

/// Whether no element of a block is NaN or has an absolute value above `largest`; inside `vectorized!`.
#[inline(always)]
pub(crate) fn is_within<T: Real>(block: &[T], largest: T) -> bool {
    const LANES: usize = 32;
    let mut beyond = [T::ZERO; LANES];
    let (parts, rest) = block.as_chunks::<LANES>();
    for part in parts {
        for l in 0..LANES {
            beyond[l] = if part[l].abs() <= largest {
                beyond[l]
            } else {
                T::ONE
            };
        }
    }
    beyond.iter().all(|&b| b == T::ZERO) && rest.iter().all(|v| v.abs() <= largest)
}

/// The norm of each row of `dim` elements.
///
/// # Errors
/// If `x` is not a whole number of rows, or `out` does not have one element for each row.
pub fn row_norms_into<T: Real>(
    x: &[T],
    dim: usize,
    kind: Norm,
    out: &mut [f64],
) -> Result<(), KernelError> {
    same_len("out", out.len(), rows("x", x.len(), dim)?)?;
    let rows = Cut::RowsOrWithin { dim: 1, cost: dim };
    share(
        out,
        rows,
        || (),
        |(), first, norms| {
            let rows = x[first.row * dim..].chunks_exact(dim);
            vectorized!(for (norm, row) in norms.iter_mut().zip(rows.clone()) {
                *norm = inlined_norm(row, kind);
            });
        },
    );
    Ok(())
}

/// Scales each row of `x` whose norm exceeds `bound` to the norm `bound`; leaves the others as they are.
///
/// The scaled norm may exceed `bound` by the rounding of `T`, about `1e-7` relative in `f32`. Rows of any finite numbers
/// are clipped, also where the norm is beyond `f64`.
///
/// # Errors
/// If `bound` is not finite and at least 1e-30, `x` is not a whole number of rows, or an element is NaN or infinite; `x`
/// is then unchanged.
pub fn clip_rows_in_place<T: Real>(
    x: &mut [T],
    dim: usize,
    kind: Norm,
    bound: f64,
) -> Result<(), KernelError> {
    let norms = finite_norms(x, dim, kind, bound)?;
    share(
        x,
        Cut::Rows { dim, cost: dim },
        || (),
        |(), first, rows| {
            vectorized!(
                for (row, &norm) in rows.chunks_exact_mut(dim).zip(&norms[first.row..]) {
                    clip(row, kind, norm, bound);
                }
            );
        },
    );
    Ok(())
}

/// As [`clip_rows_in_place`], reading `x` and writing `out`.
///
/// # Errors
/// As [`clip_rows_in_place`], and if `out` is not as long as `x`.
pub fn clip_rows_into<T: Real>(
    x: &[T],
    dim: usize,
    kind: Norm,
    bound: f64,
    out: &mut [T],
) -> Result<(), KernelError> {
    same_len("out", out.len(), x.len())?;
    let norms = finite_norms(x, dim, kind, bound)?;
    share(
        out,
        Cut::Rows { dim, cost: dim },
        || (),
        |(), first, rows| {
            let from = x[first.row * dim..]
                .chunks_exact(dim)
                .zip(&norms[first.row..]);
            vectorized!(
                for (row, (from, &norm)) in rows.chunks_exact_mut(dim).zip(from.clone()) {
                    row.copy_from_slice(from);
                    clip(row, kind, norm, bound);
                }
            );
        },
    );
    Ok(())
}

/// The norm of each row; fails if the bound is too small, or an element is NaN or infinite.
fn finite_norms<T: Real>(
    x: &[T],
    dim: usize,
    kind: Norm,
    bound: f64,
) -> Result<Vec<f64>, KernelError> {
    check_bound("bound", bound)?;
    let mut norms = vec![0.0; rows("x", x.len(), dim)?];
    row_norms_into(x, dim, kind, &mut norms)?;
    let is_refused = |row: &usize| {
        let row = *row;
        !norms[row].is_finite() && !all_finite(&x[row * dim..][..dim])
    };
    match (0..norms.len()).find(is_refused) {
        Some(row) => Err(KernelError::new(
            "x",
            "finite values",
            format!("norm {} in row {row}", norms[row]),
        )
        .of_kind(ErrorKind::NotFinite)),
        None => Ok(norms),
    }
}

/// Scales a row, whose norm this is, down to the bound. Each number is rounded once.
#[inline(always)]
pub(crate) fn clip<T: Real>(row: &mut [T], kind: Norm, norm: f64, bound: f64) {
    if norm > bound {
        let factor = bound / norm;
        if norm == f64::INFINITY {
            clip_large(row, kind, bound);
        } else if factor >= f64::MIN_POSITIVE {
            for v in row {
                *v = T::from_f64(factor * v.to_f64());
            }
        } else {
            // The factor has too few bits left: rounded up, it would leave the row outside the ball.
            for v in row {
                *v = T::from_f64(v.to_f64() / norm * bound);
            }
        }
    }
}

/// Scales a row whose norm is beyond `f64` down to the bound.
#[cold]
#[inline(never)]
fn clip_large<T: Real>(row: &mut [T], kind: Norm, bound: f64) {
    let factor = bound / norm_down(row, kind);
    for v in row {
        *v = T::from_f64(v.to_f64() * DOWN * factor);
    }
}

/// Independent sums, which the compiler keeps in vector registers as long as it does not see them added together.
const LANES: usize = 8;

/// Sums of `f(v)` over the elements that fill whole vectors.
#[inline(always)]
fn lanes<T: Real>(block: &[T], f: impl Fn(f64) -> f64) -> [f64; LANES] {
    let mut lanes = [0.0; LANES];
    for chunk in block.as_chunks::<LANES>().0 {
        // Zipped iterators would keep LLVM from putting the lanes into one vector register.
        for l in 0..LANES {
            lanes[l] += f(chunk[l].to_f64());
        }
    }
    lanes
}

/// Sum of `f(v)`, given its [`lanes`].
#[inline(always)]
fn sum<T: Real>(block: &[T], f: impl Fn(f64) -> f64, lanes: [f64; LANES]) -> f64 {
    let [a, b, c, d, e, g, h, i] = lanes;
    let mut sum = ((a + e) + (c + h)) + ((b + g) + (d + i));
    for v in block.as_chunks::<LANES>().1 {
        sum += f(v.to_f64());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slow_norm(row: &[f64], kind: Norm) -> f64 {
        match kind {
            Norm::L1 => row.iter().map(|v| v.abs()).sum(),
            Norm::L2 => row.iter().map(|v| v * v).sum::<f64>().sqrt(),
        }
    }

    proptest! {
        #[test]
        fn clipping_bounds_the_norm_and_keeps_the_direction(
            dim in 1_usize..70,
            count in 1_usize..6,
            bound in 1e-3_f64..1e3,
            l1: bool,
            seed in prop::collection::vec(-1e3_f64..1e3, 420),
        ) {
            let kind = if l1 { Norm::L1 } else { Norm::L2 };
            let x = &seed[..dim * count];
            let mut clipped = x.to_vec();
            clip_rows_in_place(&mut clipped, dim, kind, bound).unwrap();
            let mut copied = vec![f64::NAN; x.len()];
            clip_rows_into(x, dim, kind, bound, &mut copied).unwrap();
            prop_assert_eq!(&clipped, &copied);
            for (before, after) in x.chunks(dim).zip(clipped.chunks(dim)) {
                let n = slow_norm(before, kind);
                let factor = if n > bound { bound / n } else { 1.0 };
                for (b, a) in before.iter().zip(after) {
                    prop_assert!((b * factor - a).abs() <= 1e-14 * b.abs());
                }
            }
        }
    }

    #[test]
    fn the_longest_rows_are_clipped_to_the_smallest_balls() {
        fn check<T: Real>(largest: f64, bounds: &[f64]) {
            for (&bound, dim) in bounds.iter().zip([1, 3, 100, 1000].into_iter().cycle()) {
                let mut row = vec![T::from_f64(largest / (dim as f64).sqrt()); dim];
                clip_rows_in_place(&mut row, dim, Norm::L2, bound).unwrap();
                let scaled: Vec<f64> = row.iter().map(|v| v.to_f64() / bound).collect();
                let ratio = slow_norm(&scaled, Norm::L2);
                assert!(
                    (1.0 - 1e-6..=1.0 + 1e-6).contains(&ratio),
                    "{bound}: {ratio}"
                );
            }
        }
        check::<f32>(3e38, &[1.0, 1e-3, 1e-6, 4.8e-7, 3e-8, 1e-9, 1e-20, 1e-30]);
        check::<f64>(1e153, &[1.0, 1e-20, 1e-30]);
        check::<f64>(1e155, &[1.0, 1e-20, 1e-30, 1e150, 1e154]);
        check::<f64>(1.7e308, &[1.0, 1e-20, 1e-30, 1e150, 1e300]);
    }

    #[test]
    fn norms_are_finite_as_far_as_they_are_numbers() {
        let large = 2_f64.powi(600);
        assert_eq!(norm(&[3.0 * large, -4.0 * large], Norm::L2), 5.0 * large);
        assert_eq!(norm(&[1.7e308; 100], Norm::L2), f64::INFINITY);
        assert_eq!(norm(&[1.7e308, 1.7e308], Norm::L1), f64::INFINITY);
        assert!(norm(&[1e200, f64::NAN], Norm::L2).is_nan());
        assert_eq!(norm(&[1e200, f64::INFINITY], Norm::L2), f64::INFINITY);
        let mut norms = [0.0; 2];
        let rows = [3.0 * large, 4.0 * large, 0.3, 0.4];
        row_norms_into(&rows, 2, Norm::L2, &mut norms).unwrap();
        assert_eq!(norms, [5.0 * large, 0.5]);
        let mut rows = [1.7e308; 20];
        clip_rows_in_place(&mut rows, 10, Norm::L1, 5.0).unwrap();
        assert!(rows.iter().all(|v| (v - 0.5).abs() <= 1e-15));
        let mut infinite = [1e300, f64::INFINITY];
        assert!(clip_rows_in_place(&mut infinite, 2, Norm::L2, 1.0).is_err());
    }

    #[test]
    fn the_largest_numbers_are_finite_and_none_beyond() {
        fn check<T: Real>() {
            for (len, place) in [(1, 0), (31, 30), (32, 5), (100, 40), (100, 99)] {
                let mut x = vec![T::MAX; len];
                assert!(all_finite(&x));
                for beyond in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                    x[place] = T::from_f64(beyond);
                    assert!(!all_finite(&x));
                }
            }
        }
        check::<f32>();
        check::<f64>();
    }

    #[test]
    fn the_norm_has_the_same_bits_on_any_number_of_threads() {
        let x: Vec<f32> = (0..200_003).map(|i| (i as f32 * 0.37).sin()).collect();
        let on = |threads| dpmesh_threads::with_threads(threads, || norm(&x, Norm::L2)).to_bits();
        assert_eq!(on(1), on(2));
        assert_eq!(on(1), on(7));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = clip_rows_in_place(&mut [1.0, f64::NAN], 2, Norm::L2, 1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "x: wanted finite values, got norm NaN in row 0"
        );
        let error = clip_rows_in_place(&mut [1.0_f32, 2.0], 2, Norm::L2, -1.0).unwrap_err();
        assert_eq!(error.argument(), "bound");
        let error = clip_rows_in_place(&mut [3e-170, 4e-170], 2, Norm::L2, 1e-170).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bound: wanted a finite number of at least 1e-30, got 1e-170"
        );
        let error = clip_rows_in_place(&mut [1.0_f32, 2.0, 3.0], 2, Norm::L2, 1.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "x: wanted a multiple of dim = 2 elements, got 3"
        );
        assert_eq!(
            clip_rows_into(&[1.0_f32, 2.0], 0, Norm::L2, 1.0, &mut [0.0; 2])
                .unwrap_err()
                .argument(),
            "dim"
        );
        let unequal = [
            clip_rows_into(&[1.0_f32; 4], 2, Norm::L2, 1.0, &mut [0.0; 2]),
            row_norms_into(&[1.0_f32; 8], 2, Norm::L2, &mut [0.0; 2]),
        ];
        assert_eq!(
            unequal.map(|result| result.unwrap_err().to_string()),
            [
                "out: wanted 4 elements, got 2",
                "out: wanted 4 elements, got 2"
            ]
        );
    }
}
