//! Row-major feature matrices.

use super::Features;
use crate::error::rows;
use crate::parallel::vectorized;
use crate::projection::{Norm, norm};
use crate::{KernelError, Real};

/// Sums of one inner product: one or two vector registers, whose number does not show in the bits.
const LANES: usize = 8;

/// A row-major matrix of features: one row for each record.
#[derive(Debug, Clone, Copy)]
pub struct Dense<'a, T> {
    values: &'a [T],
    columns: usize,
}

impl<'a, T: Real> Dense<'a, T> {
    /// The matrix with these values and this many columns.
    ///
    /// # Errors
    /// If `features` is no whole number of rows.
    pub fn new(features: &'a [T], columns: usize) -> Result<Dense<'a, T>, KernelError> {
        rows("features", features.len(), columns)?;
        Ok(Dense {
            values: features,
            columns,
        })
    }

    /// The matrix of whole rows of `columns` values, at least 1.
    pub(super) fn of(values: &'a [T], columns: usize) -> Dense<'a, T> {
        Dense { values, columns }
    }

    #[inline(always)]
    fn row(&self, record: usize) -> &'a [T] {
        &self.values[record * self.columns..(record + 1) * self.columns]
    }

    #[inline(always)]
    fn rows<const R: usize>(&self, records: [i64; R]) -> [&'a [T]; R] {
        let mut rows = [self.values; R];
        for (row, record) in rows.iter_mut().zip(records) {
            *row = self.row(record as usize);
        }
        rows
    }
}

impl<T: Real> Features for Dense<'_, T> {
    type Value = T;

    fn records(&self) -> usize {
        self.values.len() / self.columns
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn cost(&self) -> usize {
        self.columns
    }

    fn check(&self, _: usize) -> Result<(), KernelError> {
        Ok(())
    }

    fn norm(&self, record: usize, kind: Norm) -> f64 {
        norm(self.row(record), kind)
    }

    fn scores(&self, records: &[i64], params: &[T], scores: &mut [f64]) {
        vectorized!(score_all(self, records, params, scores));
    }

    fn add_scaled(&self, records: &[i64], factors: &[T], target: &mut [T]) {
        vectorized!(add_all(self, records, factors, target));
    }
}

// The functions below are inlined into a closure that is compiled for vector instructions. They build
// arrays by loops: `array::map` and `array::from_fn` would be compiled apart from it.

/// Scores of all pairs of a record and a row of parameters: as many sums side by side as there are registers for.
/// Several records are read from memory at the same time, which takes less than one after the other.
#[inline(always)]
fn score_all<T: Real>(x: &Dense<'_, T>, records: &[i64], params: &[T], scores: &mut [f64]) {
    let outputs = params.len() / x.columns;
    let (fours, rest) = records.as_chunks::<4>();
    let (of_fours, scores) = scores.split_at_mut(4 * fours.len() * outputs);
    let (twos, rest) = rest.as_chunks::<2>();
    let (of_twos, of_rest) = scores.split_at_mut(2 * twos.len() * outputs);
    for (&four, scores) in fours.iter().zip(of_fours.chunks_exact_mut(4 * outputs)) {
        if size_of::<T>() <= 4 {
            score_some::<T, 4, 2>(x, four, params, scores);
        } else {
            score_some::<T, 4, 1>(x, four, params, scores);
        }
    }
    for (&two, scores) in twos.iter().zip(of_twos.chunks_exact_mut(2 * outputs)) {
        if size_of::<T>() <= 4 {
            score_some::<T, 2, 4>(x, two, params, scores);
        } else {
            score_some::<T, 2, 2>(x, two, params, scores);
        }
    }
    for (&record, scores) in rest.iter().zip(of_rest.chunks_exact_mut(outputs)) {
        score_some::<T, 1, 4>(x, [record], params, scores);
    }
}

/// Scores of `R` records: with `K` rows of parameters at a time, then with the remaining ones.
#[inline(always)]
fn score_some<T: Real, const R: usize, const K: usize>(
    x: &Dense<'_, T>,
    records: [i64; R],
    params: &[T],
    scores: &mut [f64],
) {
    let (records, outputs) = (x.rows(records), params.len() / x.columns);
    let tiled = outputs - outputs % K;
    for k in (0..tiled).step_by(K) {
        score_tile::<T, R, K>(records, &params[k * x.columns..], k, scores);
    }
    for k in tiled..outputs {
        score_tile::<T, R, 1>(records, &params[k * x.columns..], k, scores);
    }
}

/// Scores of `R` records with the first `K` rows of `params`, which are rows `k` and on of all.
#[inline(always)]
fn score_tile<T: Real, const R: usize, const K: usize>(
    records: [&[T]; R],
    params: &[T],
    k: usize,
    scores: &mut [f64],
) {
    let mut rows = [params; K];
    for (row, values) in rows.iter_mut().zip(params.chunks_exact(records[0].len())) {
        *row = values;
    }
    let outputs = scores.len() / R;
    for (sums, scores) in dots(records, rows)
        .iter()
        .zip(scores.chunks_exact_mut(outputs))
    {
        for (score, sum) in scores[k..k + K].iter_mut().zip(sums) {
            *score = sum.to_f64();
        }
    }
}

/// Inner products of each of `a` with each of `b`, all of the same length and summed in the same lanes.
#[inline(always)]
fn dots<T: Real, const M: usize, const N: usize>(a: [&[T]; M], b: [&[T]; N]) -> [[T; N]; M] {
    let mut lanes = [[[T::ZERO; LANES]; N]; M];
    let chunks = a[0].len() / LANES;
    let (a, rest_a) = in_chunks(a, chunks);
    let (b, rest_b) = in_chunks(b, chunks);
    for c in 0..chunks {
        for m in 0..M {
            for n in 0..N {
                multiply_add(&a[m][c], &b[n][c], &mut lanes[m][n]);
            }
        }
    }
    let mut sums = [[T::ZERO; N]; M];
    for m in 0..M {
        for n in 0..N {
            let lanes = &mut lanes[m][n];
            for ((lane, &a), &b) in lanes.iter_mut().zip(rest_a[m]).zip(rest_b[n]) {
                *lane = a.mul_add(b, *lane);
            }
            let [a, b, c, d, e, f, g, h] = *lanes;
            sums[m][n] = ((a + e) + (c + g)) + ((b + f) + (d + h));
        }
    }
    sums
}

/// The rows as so many chunks each, and what is left of them.
#[inline(always)]
fn in_chunks<T, const N: usize>(rows: [&[T]; N], chunks: usize) -> ([&[[T; LANES]]; N], [&[T]; N]) {
    let (mut whole, mut rest): ([&[[T; LANES]]; N], [&[T]; N]) = ([&[]; N], [&[]; N]);
    for n in 0..N {
        let (chunked, left) = rows[n].as_chunks();
        (whole[n], rest[n]) = (&chunked[..chunks], left);
    }
    (whole, rest)
}

#[inline(always)]
fn multiply_add<T: Real>(a: &[T; LANES], b: &[T; LANES], lanes: &mut [T; LANES]) {
    // Zipped iterators would keep LLVM from putting the lanes into vector registers.
    for l in 0..LANES {
        lanes[l] = a[l].mul_add(b[l], lanes[l]);
    }
}

/// Adds to each row of the target the records times their factors for it: as many records at a time as there are
/// registers for.
#[inline(always)]
fn add_all<T: Real>(x: &Dense<'_, T>, records: &[i64], factors: &[T], target: &mut [T]) {
    let outputs = target.len() / x.columns;
    let (eights, rest) = records.as_chunks::<8>();
    let (of_eights, factors) = factors.split_at(8 * eights.len() * outputs);
    let (twos, rest) = rest.as_chunks::<2>();
    let (of_twos, of_rest) = factors.split_at(2 * twos.len() * outputs);
    for (&eight, factors) in eights.iter().zip(of_eights.chunks_exact(8 * outputs)) {
        add_records(x, eight, factors, target);
    }
    for (&two, factors) in twos.iter().zip(of_twos.chunks_exact(2 * outputs)) {
        add_records(x, two, factors, target);
    }
    for (&record, factors) in rest.iter().zip(of_rest.chunks_exact(outputs)) {
        add_records(x, [record], factors, target);
    }
}

/// Adds `factors[r][k] * x_r` to row `k` of the target, record after record.
#[inline(always)]
fn add_records<T: Real, const R: usize>(
    x: &Dense<'_, T>,
    records: [i64; R],
    factors: &[T],
    target: &mut [T],
) {
    let (records, outputs) = (x.rows(records), target.len() / x.columns);
    for (k, target) in target.chunks_exact_mut(x.columns).enumerate() {
        let (mut own, mut rows) = ([T::ZERO; R], records);
        for r in 0..R {
            own[r] = factors[r * outputs + k];
            rows[r] = &rows[r][..target.len()];
        }
        if own == [T::ZERO; R] {
            continue;
        }
        for (j, slot) in target.iter_mut().enumerate() {
            let mut sum = *slot;
            for r in 0..R {
                sum = rows[r][j].mul_add(own[r], sum);
            }
            *slot = sum;
        }
    }
}
