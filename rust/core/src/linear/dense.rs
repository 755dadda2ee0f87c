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
        let outputs = target.len() / self.columns;
        vectorized!({
            let (fours, rest) = records.as_chunks::<4>();
            for (i, &four) in fours.iter().enumerate() {
                add_records(self, four, &factors[i * 4 * outputs..], outputs, target);
            }
            let done = fours.len() * 4;
            for (i, &record) in rest.iter().enumerate() {
                add_records(
                    self,
                    [record],
                    &factors[(done + i) * outputs..],
                    outputs,
                    target,
                );
            }
        });
    }
}

// The functions below are inlined into a closure that is compiled for vector instructions. They build
// arrays by loops: `array::map` and `array::from_fn` would be compiled apart from it.

/// Scores of all pairs of a record and a row of parameters: each record with four rows at a time, then
/// the remaining rows with four records at a time.
#[inline(always)]
fn score_all<T: Real>(x: &Dense<'_, T>, records: &[i64], params: &[T], scores: &mut [f64]) {
    let outputs = params.len() / x.columns;
    let row = |k: usize| &params[k * x.columns..(k + 1) * x.columns];
    let tiled = outputs - outputs % 4;
    for k in (0..tiled).step_by(4) {
        let rows = [row(k), row(k + 1), row(k + 2), row(k + 3)];
        for (&record, scores) in records.iter().zip(scores.chunks_exact_mut(outputs)) {
            let sums = dots(x.row(record as usize), rows);
            for (score, sum) in scores[k..k + 4].iter_mut().zip(sums) {
                *score = sum.to_f64();
            }
        }
    }
    let (fours, rest) = records.as_chunks::<4>();
    for k in tiled..outputs {
        for (i, &four) in fours.iter().enumerate() {
            for (r, sum) in dots(row(k), x.rows(four)).into_iter().enumerate() {
                scores[(4 * i + r) * outputs + k] = sum.to_f64();
            }
        }
        for (i, &record) in rest.iter().enumerate() {
            let [sum] = dots(row(k), x.rows([record]));
            scores[(4 * fours.len() + i) * outputs + k] = sum.to_f64();
        }
    }
}

/// Inner products of `a` with each of `b`, each summed in the same lanes.
#[inline(always)]
fn dots<T: Real, const N: usize>(a: &[T], b: [&[T]; N]) -> [T; N] {
    let mut lanes = [[T::ZERO; LANES]; N];
    let (whole, rest) = a.as_chunks();
    for (c, a) in whole.iter().enumerate() {
        for n in 0..N {
            multiply_add(a, &b[n].as_chunks().0[c], &mut lanes[n]);
        }
    }
    let mut sums = [T::ZERO; N];
    for n in 0..N {
        let lanes = &mut lanes[n];
        for ((lane, &a), &b) in lanes.iter_mut().zip(rest).zip(b[n].as_chunks::<LANES>().1) {
            *lane = a.mul_add(b, *lane);
        }
        let [a, b, c, d, e, f, g, h] = *lanes;
        sums[n] = ((a + e) + (c + g)) + ((b + f) + (d + h));
    }
    sums
}

#[inline(always)]
fn multiply_add<T: Real>(a: &[T; LANES], b: &[T; LANES], lanes: &mut [T; LANES]) {
    // Zipped iterators would keep LLVM from putting the lanes into vector registers.
    for l in 0..LANES {
        lanes[l] = a[l].mul_add(b[l], lanes[l]);
    }
}

/// Adds `factors[r][k] * x_r` to row `k` of the target, record after record.
#[inline(always)]
fn add_records<T: Real, const R: usize>(
    x: &Dense<'_, T>,
    records: [i64; R],
    factors: &[T],
    outputs: usize,
    target: &mut [T],
) {
    let rows = x.rows(records);
    for (k, target) in target.chunks_exact_mut(x.columns).enumerate() {
        let mut own = [T::ZERO; R];
        for (r, factor) in own.iter_mut().enumerate() {
            *factor = factors[r * outputs + k];
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
