//! Arithmetic on whole parameter vectors.

use crate::Real;
use crate::parallel::{BLOCK, for_each_block, vectorized};

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

/// Adds the parts to the target in their order.
pub(super) fn add_all<T: Real>(parts: &[Vec<T>], target: &mut [T]) {
    for_each_block(
        target,
        BLOCK,
        || (),
        |(), i, target| {
            for part in parts {
                let part = &part[i * BLOCK..][..target.len()];
                vectorized!(target.iter_mut().zip(part).for_each(|(t, &p)| *t += p));
            }
        },
    );
}
