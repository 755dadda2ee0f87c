//! Cosines of many angles, of which random Fourier features are made.

use dpmesh_numerics::cosine::{LARGEST_ANGLE, cosine};

use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, share};
use crate::projection::is_within;

/// Replaces each angle by its cosine, within 2^-52: the same bits on every processor and for any number of threads. NaN
/// and infinity become NaN.
///
/// ```
/// let mut angles = [0.0, std::f64::consts::PI];
/// dpmesh_core::cosines::cosines_in_place(&mut angles);
/// assert_eq!(angles, [1.0, -1.0]);
/// ```
pub fn cosines_in_place(angles: &mut [f64]) {
    let blocks = Cut::Blocks { len: BLOCK };
    share(
        angles,
        blocks,
        || (),
        |(), _, block| {
            vectorized!(cosines_of_block(block));
        },
    );
}

#[inline(always)]
fn cosines_of_block(block: &mut [f64]) {
    if !is_within(block, LARGEST_ANGLE) {
        return some_large(block);
    }
    for angle in block {
        *angle = cosine(*angle);
    }
}

#[cold]
#[inline(never)]
fn some_large(block: &mut [f64]) {
    for angle in block {
        *angle = if angle.abs() <= LARGEST_ANGLE {
            cosine(*angle)
        } else {
            libm::cos(*angle)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::with_each_instruction_set;

    #[test]
    fn cosines_have_the_same_bits_everywhere_beside_any_angles() {
        for len in [1, 7, BLOCK, BLOCK + 1, 5 * BLOCK + 3] {
            let angles: Vec<f64> = (0..len).map(|i| (i as f64 - 300.0) * 0.37).collect();
            let alone: Vec<u64> = angles
                .iter()
                .map(|&angle| cosine(angle).to_bits())
                .collect();
            let mut with_large = angles.clone();
            with_large[len / 2] = 1e300;
            for threads in [1, 3] {
                dpmesh_threads::with_threads(threads, || {
                    let bits = |angles: &[f64]| {
                        let mut cosines = angles.to_vec();
                        cosines_in_place(&mut cosines);
                        cosines.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    };
                    for got in with_each_instruction_set(|| bits(&angles)) {
                        assert_eq!(got, alone);
                    }
                    let mut got = bits(&with_large);
                    assert_eq!(got[len / 2], libm::cos(1e300).to_bits());
                    got[len / 2] = alone[len / 2];
                    assert_eq!(got, alone);
                });
            }
        }
    }

    #[test]
    fn what_is_not_finite_becomes_nan() {
        let mut angles = [f64::NAN, f64::INFINITY, 0.0, f64::NEG_INFINITY];
        cosines_in_place(&mut angles);
        assert_eq!(angles[2], 1.0);
        assert!([0, 1, 3].iter().all(|&i| angles[i].is_nan()));
    }
}
