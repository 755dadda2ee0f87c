//! Sums of arrays, element by element.
//!
//! ```
//! use dpmesh_core::sums::weighted_sum_into;
//!
//! let mut sum = [0.0; 2];
//! weighted_sum_into(&[2.0, 0.5], &[&[1.0, 2.0], &[4.0, 8.0]], &mut sum)?;
//! assert_eq!(sum, [4.0, 8.0]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, for_each, is_serial, share};
use crate::{KernelError, Real};

/// `out = sum_k weights[k] * terms[k]`, each element summed in the order of the terms.
///
/// # Errors
/// If there is no term, the number of weights is not that of the terms, or a term is not as long as `out`.
pub fn weighted_sum_into<T: Real>(
    weights: &[T],
    terms: &[&[T]],
    out: &mut [T],
) -> Result<(), KernelError> {
    same_len("weights", weights.len(), terms.len())?;
    for term in terms {
        same_len("terms", term.len(), out.len())?;
    }
    let ((&first_weight, weights), (first, terms)) = weights
        .split_first()
        .zip(terms.split_first())
        .ok_or_else(|| KernelError::new("terms", "at least 1", 0))?;
    share(
        out,
        Cut::Blocks { len: BLOCK },
        || (),
        |(), place, out| {
            let part = place.column..place.column + out.len();
            vectorized!({
                for (sum, &x) in out.iter_mut().zip(&first[part.clone()]) {
                    *sum = first_weight * x;
                }
                for (&weight, term) in weights.iter().zip(terms) {
                    for (sum, &x) in out.iter_mut().zip(&term[part.clone()]) {
                        *sum += weight * x;
                    }
                }
            });
        },
    );
    Ok(())
}

/// Columns summed together: their sums stay in the L1 cache.
const COLUMNS: usize = 512;

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[COLUMNS];

/// The sum of each column of `x`, whose rows have as many elements as `out`; in `f64`, in the order of the rows.
///
/// # Errors
/// If `x` is not a whole number of rows.
pub fn column_sums_into<T: Real>(x: &[T], out: &mut [f64]) -> Result<(), KernelError> {
    let dim = out.len();
    rows("x", x.len(), dim)?;
    let blocks = out.chunks_mut(COLUMNS).enumerate();
    for_each(
        blocks,
        is_serial(x.len()),
        || (),
        |(), (block, out)| {
            out.fill(0.0);
            vectorized!(for row in x.chunks_exact(dim) {
                for (sum, &v) in out.iter_mut().zip(&row[block * COLUMNS..]) {
                    *sum += v.to_f64();
                }
            });
        },
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn elements_are_summed_in_order(len in 0_usize..3 * BLOCK, count in 1_usize..5) {
            let number = |i: usize| ((i as f32) * 0.7548).sin();
            let numbers: Vec<f32> = (0..count * len).map(number).collect();
            let weights: Vec<f32> = (0..count).map(|k| number(k + 7)).collect();
            let terms: Vec<&[f32]> = (0..count).map(|k| &numbers[k * len..][..len]).collect();
            let mut sums = vec![f32::NAN; len];
            weighted_sum_into(&weights, &terms, &mut sums).unwrap();
            for (j, sum) in sums.into_iter().enumerate() {
                let products = (0..count).map(|k| weights[k] * terms[k][j]);
                prop_assert_eq!(sum, products.reduce(|a, b| a + b).unwrap());
            }
        }
    }

    #[test]
    fn columns_are_summed_in_the_order_of_the_rows_on_any_number_of_threads() {
        let (count, dim) = (70, COLUMNS + 3);
        let x: Vec<f32> = (0..count * dim).map(|i| (i as f32 * 0.37).sin()).collect();
        let expected: Vec<f64> = (0..dim)
            .map(|j| x[j..].iter().step_by(dim).map(|&v| f64::from(v)).sum())
            .collect();
        for threads in [1, 2, 7] {
            let mut sums = vec![f64::NAN; dim];
            dpmesh_threads::with_threads(threads, || column_sums_into(&x, &mut sums)).unwrap();
            assert_eq!(sums, expected);
        }
        let error = column_sums_into(&x[1..], &mut vec![0.0; dim]).unwrap_err();
        assert_eq!(error.argument(), "x");
    }

    #[test]
    fn bad_input_is_an_error() {
        let error = |weights: &[f64], terms: &[&[f64]]| {
            let result = weighted_sum_into(weights, terms, &mut [0.0; 2]);
            result.unwrap_err().to_string()
        };
        let x = [1.0, 2.0];
        assert_eq!(error(&[], &[]), "terms: wanted at least 1, got 0");
        assert_eq!(error(&[1.0], &[]), "weights: wanted 0 elements, got 1");
        assert_eq!(error(&[1.0], &[&x[1..]]), "terms: wanted 2 elements, got 1");
    }
}
