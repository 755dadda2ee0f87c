//! Mixing: each node's new vector is a weighted sum of its neighbours' vectors, `Y = A X`.
//!
//! Every element of `Y` is summed in the order of the row's entries, with separate rounding of product and sum,
//! whatever the number of threads and the width of the vector registers.

use rayon::prelude::*;

use crate::error::{rows, same_len};
use crate::parallel::vectorized;
use crate::{KernelError, Real};

/// Below this many products mixing stays on the calling thread: about 20 microseconds of work.
const SERIAL_BELOW: usize = 1 << 19;

/// Elements of `Y` that one task computes.
const BLOCK: usize = 1 << 14;

/// From this many columns on it pays to walk along the neighbours' rows side by side, which the processor
/// reads ahead, instead of adding them up a few columns at a time in registers.
const LONG: usize = 256;

/// Rows that are added up side by side.
const SIDE_BY_SIDE: usize = 8;

/// A sparse matrix of weights in compressed rows (CSR): row `i` has the entries `indptr[i]..indptr[i + 1]` of
/// `indices` (the columns, in any order) and `weights`.
#[derive(Debug, Clone, Copy)]
pub struct MixingMatrix<'a, T> {
    indptr: &'a [usize],
    indices: &'a [usize],
    weights: &'a [T],
    columns: usize,
}

impl<'a, T> MixingMatrix<'a, T> {
    /// The matrix of `columns` columns that these slices describe.
    ///
    /// # Errors
    /// If `indptr` does not rise from 0 to the number of `indices`, if there are not as many `weights` as
    /// `indices`, or if an index is not below `columns`.
    pub fn new(
        indptr: &'a [usize],
        indices: &'a [usize],
        weights: &'a [T],
        columns: usize,
    ) -> Result<MixingMatrix<'a, T>, KernelError> {
        same_len("weights", weights.len(), indices.len())?;
        let ends = [indptr.first(), indptr.last()];
        if ends != [Some(&0), Some(&indices.len())] || !indptr.is_sorted() {
            let wanted = format!("offsets that rise from 0 to {}", indices.len());
            return Err(KernelError::new("indptr", wanted, format!("{indptr:?}")));
        }
        match indices.iter().find(|&&column| column >= columns) {
            Some(column) => {
                let wanted = format!("columns below {columns}");
                Err(KernelError::new("indices", wanted, column))
            }
            None => Ok(MixingMatrix {
                indptr,
                indices,
                weights,
                columns,
            }),
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Columns and weights of row `i`.
    #[inline(always)]
    fn row(&self, i: usize) -> (&'a [usize], &'a [T]) {
        let entries = self.indptr[i]..self.indptr[i + 1];
        (&self.indices[entries.clone()], &self.weights[entries])
    }
}

/// `out = A X`, for `x` of one row of `dim` elements for each column of `a`, and `out` of one for each row.
///
/// # Errors
/// If `x` or `out` has not as many elements.
pub fn mix_into<T: Real>(
    a: &MixingMatrix<'_, T>,
    x: &[T],
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    rows("x", x.len(), dim)?;
    same_len("x", x.len(), a.columns * dim)?;
    same_len("out", out.len(), a.rows() * dim)?;
    let serial = a.indices.len() * dim < SERIAL_BELOW;
    let min_len = if serial { usize::MAX } else { 1 };
    let rows_per_block = (BLOCK / dim).max(1);
    out.par_chunks_mut(rows_per_block * dim)
        .with_min_len(min_len)
        .enumerate()
        .for_each(|(group, rows)| {
            // Several short rows in one piece, or one long row in several.
            rows.par_chunks_mut(BLOCK)
                .with_min_len(min_len)
                .enumerate()
                .for_each(|(piece, out)| {
                    let (first_row, first_column) = (group * rows_per_block, piece * BLOCK);
                    vectorized!(mix_block(a, x, dim, first_row, first_column, out));
                });
        });
    Ok(())
}

/// Fills whole rows of `Y` from `first_row` on, or a piece of that row from `first_column` on.
#[inline(always)]
fn mix_block<T: Real>(
    a: &MixingMatrix<'_, T>,
    x: &[T],
    dim: usize,
    first_row: usize,
    first_column: usize,
    out: &mut [T],
) {
    for (i, out) in out.chunks_mut(dim).enumerate() {
        let (indices, weights) = a.row(first_row + i);
        let part = |j: usize, from: usize, len: usize| &x[j * dim + first_column + from..][..len];
        if out.len() < LONG {
            mix_short(indices, weights, part, out);
        } else {
            mix_long(indices, weights, part, out);
        }
    }
}

/// Sums a few columns at a time in registers, over all entries.
#[inline(always)]
fn mix_short<'a, T: Real>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    out: &mut [T],
) {
    let (mut done, len) = (0, out.len());
    while len - done >= 32 {
        sum_columns::<T, 32>(indices, weights, &part, done, out);
        done += 32;
    }
    while len - done >= 8 {
        sum_columns::<T, 8>(indices, weights, &part, done, out);
        done += 8;
    }
    if len >= 8 {
        sum_columns::<T, 8>(indices, weights, &part, len - 8, out); // some of them once more
        done = len;
    }
    for column in done..len {
        sum_columns::<T, 1>(indices, weights, &part, column, out);
    }
}

#[inline(always)]
fn sum_columns<'a, T: Real, const C: usize>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    from: usize,
    out: &mut [T],
) {
    let mut sums = [T::ZERO; C];
    for (&j, &weight) in indices.iter().zip(weights) {
        for (sum, &x) in sums.iter_mut().zip(part(j, from, C)) {
            *sum += weight * x;
        }
    }
    out[from..from + C].copy_from_slice(&sums);
}

/// Sums all columns, over a few entries at a time.
#[inline(always)]
fn mix_long<'a, T: Real>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    out: &mut [T],
) {
    if indices.is_empty() {
        out.fill(T::ZERO);
    }
    let groups = indices
        .chunks(SIDE_BY_SIDE)
        .zip(weights.chunks(SIDE_BY_SIDE));
    for (group, (indices, weights)) in groups.enumerate() {
        let mut rows: [&[T]; SIDE_BY_SIDE] = [&[]; SIDE_BY_SIDE];
        for (row, &j) in rows.iter_mut().zip(indices) {
            *row = part(j, 0, out.len());
        }
        if group == 0 {
            sum_rows::<T, true>(weights, &rows, out);
        } else {
            sum_rows::<T, false>(weights, &rows, out);
        }
    }
}

/// `out` = (0 if `FROM_ZERO`, or else `out`) + the weighted sum of the first rows, one for each weight.
#[inline(always)]
fn sum_rows<T: Real, const FROM_ZERO: bool>(
    weights: &[T],
    rows: &[&[T]; SIDE_BY_SIDE],
    out: &mut [T],
) {
    match weights.len() {
        1 => sum_k_rows::<T, 1, FROM_ZERO>(weights, rows, out),
        2 => sum_k_rows::<T, 2, FROM_ZERO>(weights, rows, out),
        3 => sum_k_rows::<T, 3, FROM_ZERO>(weights, rows, out),
        4 => sum_k_rows::<T, 4, FROM_ZERO>(weights, rows, out),
        5 => sum_k_rows::<T, 5, FROM_ZERO>(weights, rows, out),
        6 => sum_k_rows::<T, 6, FROM_ZERO>(weights, rows, out),
        7 => sum_k_rows::<T, 7, FROM_ZERO>(weights, rows, out),
        _ => sum_k_rows::<T, SIDE_BY_SIDE, FROM_ZERO>(weights, rows, out),
    }
}

#[inline(always)]
fn sum_k_rows<T: Real, const K: usize, const FROM_ZERO: bool>(
    weights: &[T],
    rows: &[&[T]; SIDE_BY_SIDE],
    out: &mut [T],
) {
    // Arrays of known size, and rows of the same length as `out`: no checks are left in the loop.
    let mut fixed_weights = [T::ZERO; K];
    fixed_weights.copy_from_slice(weights);
    let mut fixed_rows: [&[T]; K] = [&[]; K];
    for (fixed, row) in fixed_rows.iter_mut().zip(rows) {
        *fixed = &row[..out.len()];
    }
    for (c, out) in out.iter_mut().enumerate() {
        let mut sum = if FROM_ZERO { T::ZERO } else { *out };
        for k in 0..K {
            sum += fixed_weights[k] * fixed_rows[k][c];
        }
        *out = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Row by row, entry by entry, as the definition says.
    fn slow<T: Real>(a: &MixingMatrix<'_, T>, x: &[T], dim: usize) -> Vec<T> {
        let mut out = vec![T::ZERO; a.rows() * dim];
        for (i, out) in out.chunks_mut(dim).enumerate() {
            let (indices, weights) = a.row(i);
            for (&j, &weight) in indices.iter().zip(weights) {
                for (c, out) in out.iter_mut().enumerate() {
                    *out += weight * x[j * dim + c];
                }
            }
        }
        out
    }

    fn numbers<T: Real>(len: usize, seed: u64) -> Vec<T> {
        let mut state = seed;
        let step = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            T::from_f64((state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0)
        };
        std::iter::repeat_with(step).take(len).collect()
    }

    /// Rows with the given numbers of entries, in no order and with repetitions.
    fn pattern(degrees: &[usize], columns: usize, seed: u64) -> (Vec<usize>, Vec<usize>) {
        let indptr = degrees.iter().scan(0, |end, degree| {
            *end += degree;
            Some(*end)
        });
        let entries = degrees.iter().sum();
        let index = |v: f64| ((0.5 + 0.5 * v) * columns as f64) as usize;
        let indices = numbers(entries, seed).into_iter().map(index).collect();
        (std::iter::once(0).chain(indptr).collect(), indices)
    }

    fn equals_slow<T: Real>(degrees: &[usize], columns: usize, dim: usize, seed: u64) {
        let (indptr, indices) = pattern(degrees, columns, seed);
        let weights: Vec<T> = numbers(indices.len(), seed + 1);
        let x: Vec<T> = numbers(columns * dim, seed + 2);
        let a = MixingMatrix::new(&indptr, &indices, &weights, columns).unwrap();
        let expected = slow(&a, &x, dim);
        for threads in [1, 2, 7] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let mut out = vec![T::from_f64(f64::NAN); degrees.len() * dim];
            pool.unwrap()
                .install(|| mix_into(&a, &x, dim, &mut out).unwrap());
            assert!(out == expected, "{degrees:?} {columns} {dim} {threads}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_bit_is_that_of_the_definition(
            degrees in prop::collection::vec(0_usize..20, 1..12),
            columns in 1_usize..12,
            dim in prop_oneof![1_usize..80, 200_usize..700],
            seed: u64,
        ) {
            equals_slow::<f32>(&degrees, columns, dim, seed);
            equals_slow::<f64>(&degrees, columns, dim, seed);
        }
    }

    #[test]
    fn many_threads_share_rows_and_pieces_of_rows() {
        equals_slow::<f32>(&[3; 2000], 2000, 97, 1);
        equals_slow::<f64>(&[5, 0, 17], 9, 50_021, 2);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let message = |indptr: &[usize], indices: &[usize], weights: &[f32]| {
            MixingMatrix::new(indptr, indices, weights, 2)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(&[0, 2, 1], &[0], &[1.0]),
            "indptr: wanted offsets that rise from 0 to 1, got [0, 2, 1]"
        );
        assert!(message(&[], &[], &[]).starts_with("indptr: wanted offsets"));
        assert!(message(&[1, 1], &[0], &[1.0]).starts_with("indptr: wanted offsets"));
        assert_eq!(
            message(&[0, 1], &[2], &[1.0]),
            "indices: wanted columns below 2, got 2"
        );
        assert_eq!(
            message(&[0, 1], &[0], &[]),
            "weights: wanted 1 elements, got 0"
        );
        let a = MixingMatrix::new(&[0, 1], &[1], &[1.0_f32], 2).unwrap();
        let wrong = |x: &[f32], dim, out: &mut [f32]| mix_into(&a, x, dim, out).unwrap_err();
        assert_eq!(
            wrong(&[1.0; 6], 2, &mut [0.0; 2]).to_string(),
            "x: wanted 4 elements, got 6"
        );
        assert_eq!(wrong(&[1.0; 4], 2, &mut [0.0; 4]).argument, "out");
        assert_eq!(wrong(&[1.0; 4], 0, &mut [0.0; 2]).argument, "dim");
    }
}
