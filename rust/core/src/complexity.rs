//! Transductive Rademacher complexity of a finite class of vectors, by Monte Carlo: Definition 4 of the paper on
//! decentralized SGD without replacement (after El-Yaniv and Pechyony).
//!
//! ```
//! use dpmesh_core::complexity::suprema_into;
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::generate(Cipher::Aes).unwrap();
//! let stream = key.stream(1, 0)?;
//! let vectors = [1.0_f64, 0.0, 0.0, 1.0]; // two of dimension 2
//! let mut suprema = [0.0; 100];
//! suprema_into(&vectors, 2, 0.25, &stream, 0, &mut suprema)?;
//! assert!(suprema.iter().all(|s| [-1.0, 0.0, 1.0].contains(s)));
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::draws::rademacher_into;
use crate::error::rows;
use crate::instructions::vectorized;
use crate::parallel::{is_serial, map};
use crate::stream::Stream;
use crate::{KernelError, Real};

/// For each draw of signs `r`, the largest `<r, v>` over the rows `v` of `vectors`.
///
/// Draw number `k` has `dim` independent signs, 1 and -1 with probability `p` each and otherwise 0, from the stream's
/// sequence `first + k`: draws made in several calls are those of one.
///
/// # Errors
/// If `vectors` is not a whole number of rows of `dim` elements, at least 1, `p` is not in [0, 1/2], or the draws reach
/// beyond sequence 2^32 - 1.
pub fn suprema_into<T: Real>(
    vectors: &[T],
    dim: usize,
    p: f64,
    stream: &Stream,
    first: u32,
    out: &mut [f64],
) -> Result<(), KernelError> {
    if rows("vectors", vectors.len(), dim)? == 0 {
        return Err(KernelError::new("vectors", "at least 1 row", 0));
    }
    if out.len() as u64 + u64::from(first) > 1 << 32 {
        let wanted = "draws up to number 2^32 - 1";
        return Err(KernelError::new("out", wanted, out.len()));
    }
    let draw = |k: usize| {
        let (mut draws, mut signs) = (vec![0_i8; dim], vec![T::ZERO; dim]);
        rademacher_into(p, stream, Some(&[first + k as u32]), dim, &mut draws)?;
        for (sign, draw) in signs.iter_mut().zip(draws) {
            *sign = T::from_f64(f64::from(draw));
        }
        let products = vectors.chunks(dim).map(|v| vectorized!(dot(v, &signs)));
        Ok(products.fold(f64::NEG_INFINITY, f64::max))
    };
    let suprema = map(0..out.len(), is_serial(vectors.len() * out.len()), draw);
    for (out, supremum) in out.iter_mut().zip(suprema) {
        *out = supremum?;
    }
    Ok(())
}

/// `<v, signs>` in `f64`, in eight lanes.
#[inline(always)]
fn dot<T: Real>(v: &[T], signs: &[T]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    let ((v, v_rest), (signs, signs_rest)) = (v.as_chunks::<LANES>(), signs.as_chunks::<LANES>());
    for (v, signs) in v.iter().zip(signs) {
        for ((lane, v), sign) in lanes.iter_mut().zip(v).zip(signs) {
            *lane += (*v * *sign).to_f64();
        }
    }
    for ((lane, v), sign) in lanes.iter_mut().zip(v_rest).zip(signs_rest) {
        *lane += (*v * *sign).to_f64();
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Cipher, Key};
    use proptest::prelude::*;

    fn stream() -> Stream {
        Key::new(Cipher::Aes, &[9; 32]).stream(10, 0).unwrap()
    }

    proptest! {
        #[test]
        fn it_is_the_largest_product_and_parts_make_the_whole(
            dim in 1_usize..40,
            count in 1_usize..6,
            draws in 1_usize..12,
            p in 0.0..0.5,
            values in prop::collection::vec(-10.0_f64..10.0, 240),
        ) {
            let (vectors, stream) = (&values[..dim * count], stream());
            let mut whole = vec![f64::NAN; draws];
            suprema_into(vectors, dim, p, &stream, 3, &mut whole).unwrap();
            for (k, &supremum) in whole.iter().enumerate() {
                let mut r = vec![0; dim];
                rademacher_into(p, &stream, Some(&[3 + k as u32]), dim, &mut r).unwrap();
                let slow = vectors
                    .chunks(dim)
                    .map(|v| v.iter().zip(&r).map(|(v, r)| v * f64::from(*r)).sum::<f64>())
                    .fold(f64::NEG_INFINITY, f64::max);
                prop_assert!((supremum - slow).abs() <= 1e-12 * (1.0 + slow.abs()));
                let mut part = [f64::NAN];
                suprema_into(vectors, dim, p, &stream, 3 + k as u32, &mut part).unwrap();
                prop_assert_eq!(part[0], supremum);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let argument = |vectors: &[f32], dim, p, first| {
            suprema_into(vectors, dim, p, &stream(), first, &mut [0.0; 2])
                .unwrap_err()
                .argument()
        };
        assert_eq!(argument(&[1.0; 3], 2, 0.1, 0), "vectors");
        assert_eq!(argument(&[], 2, 0.1, 0), "vectors");
        assert_eq!(argument(&[1.0; 2], 0, 0.1, 0), "dim");
        assert_eq!(argument(&[1.0; 2], 2, 0.6, 0), "p");
        assert_eq!(argument(&[1.0; 2], 2, f64::NAN, 0), "p");
        assert_eq!(argument(&[1.0; 2], 2, 0.1, u32::MAX), "out");
        let last = suprema_into(&[1.0; 2], 2, 0.1, &stream(), u32::MAX, &mut [0.0]);
        assert!(last.is_ok());
    }
}
