//! Arithmetic on whole parameter vectors.

use pulp::{Simd, WithSimd};

use crate::Real;
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, share};
use crate::wide::{Wide, in_wide_vectors};

/// `out = factor * x`; exactly 0 for the factor 0.
#[inline(always)]
pub(super) fn scale_into<T: Real>(x: &[T], factor: f64, out: &mut [T]) {
    if factor == 0.0 {
        out.fill(T::ZERO);
    } else {
        out.copy_from_slice(x);
        scale_in_place(out, factor);
    }
}

#[inline(always)]
pub(super) fn scale_in_place<T: Real>(x: &mut [T], factor: f64) {
    if factor != 1.0 {
        let factor = T::from_f64(factor);
        for v in x {
            *v *= factor;
        }
    }
}

/// Adds the parts to the target in order, and rounds once.
pub(super) fn add_all<T: Real>(parts: &[Vec<f64>], target: &mut [T]) {
    share(
        target,
        Cut::Blocks { len: BLOCK },
        || vec![0.0; BLOCK],
        |sums, place, target| {
            let sums = &mut sums[..target.len()];
            vectorized!({
                for (sum, t) in sums.iter_mut().zip(&*target) {
                    *sum = t.to_f64();
                }
                for part in parts {
                    let part = &part[place.column..][..target.len()];
                    sums.iter_mut().zip(part).for_each(|(sum, p)| *sum += p);
                }
                for (t, &sum) in target.iter_mut().zip(&*sums) {
                    *t = T::from_f64(sum);
                }
            });
        },
    );
}

/// `|a - b|`.
pub(super) fn distance<T: Wide>(a: &[T], b: &[T]) -> f64 {
    in_wide_vectors(SquaredDistance { a, b }).sqrt()
}

struct SquaredDistance<'a, T> {
    a: &'a [T],
    b: &'a [T],
}

impl<T: Wide> WithSimd for SquaredDistance<'_, T> {
    type Output = f64;

    /// Sums in `T` over blocks, and in `f64` over all of them.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        const VECTORS: usize = 8; // so that additions need not wait for each other
        let minus = T::splat(simd, -T::ONE);
        let mut sum = 0.0;
        for (a, b) in self.a.chunks(BLOCK).zip(self.b.chunks(BLOCK)) {
            let mut lanes = [T::splat(simd, T::ZERO); VECTORS];
            let ((a, rest_a), (b, rest_b)) = (T::vectors::<S>(a), T::vectors::<S>(b));
            let mut add = |l: usize, a, b| {
                let difference = T::multiply_add(simd, minus, b, a);
                lanes[l] = T::multiply_add(simd, difference, difference, lanes[l]);
            };
            let ((a, last_a), (b, last_b)) = (a.as_chunks::<VECTORS>(), b.as_chunks::<VECTORS>());
            for (a, b) in a.iter().zip(b) {
                for l in 0..VECTORS {
                    add(l, a[l], b[l]);
                }
            }
            for (&a, &b) in last_a.iter().zip(last_b) {
                add(0, a, b);
            }
            for lanes in lanes {
                sum += T::lane_sum(simd, lanes).to_f64();
            }
            for (&a, &b) in rest_a.iter().zip(rest_b) {
                sum += (a - b).to_f64().powi(2);
            }
        }
        sum
    }
}
