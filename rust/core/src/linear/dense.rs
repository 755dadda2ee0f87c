//! Row-major feature matrices.

use std::ops::RangeInclusive;

use super::Features;
use super::in_f64::{PowersInF64, SIDE, ScoresInF64, SumsInF64};
use super::tiles::{Scores, Sums};
use super::vectors::scale_in_place;
use crate::KernelError;
use crate::error::rows;
use crate::instructions::vectorized;
use crate::parallel::BLOCK;
use crate::projection::{Norm, sum_of_powers};
use crate::wide::{DOUBLES, Wide, in_wide_vectors};

/// Partial sums of the inner product of one record: few, so that short records fill them.
const LANES: usize = 8;

/// Lengths of rows whose powers are summed side by side: for shorter ones a call costs more, longer ones are summed in
/// blocks.
const SIDE_BY_SIDE: RangeInclusive<usize> = 2 * DOUBLES..=BLOCK;

/// A row-major matrix of features: one row for each record.
#[derive(Debug, Clone, Copy)]
pub struct Dense<'a, T> {
    values: &'a [T],
    pub(super) columns: usize,
}

impl<'a, T: Wide> Dense<'a, T> {
    /// The matrix with these values and this many columns.
    ///
    /// # Errors
    /// If `features` is not a whole number of rows.
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
    pub(super) fn rows<const R: usize>(&self, records: [i64; R]) -> [&'a [T]; R] {
        let mut rows = [self.values; R];
        for (row, record) in rows.iter_mut().zip(records) {
            *row = self.row(record as usize);
        }
        rows
    }
}

impl<T: Wide> Features for Dense<'_, T> {
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

    #[inline(always)]
    fn check(&self, _: usize) -> Result<(), KernelError> {
        Ok(())
    }

    #[inline(always)]
    fn sum_of_powers(&self, record: usize, kind: Norm) -> f64 {
        sum_of_powers(self.row(record), kind)
    }

    #[inline(always)]
    fn write(&self, record: usize, row: &mut [T]) {
        row.copy_from_slice(self.row(record));
    }

    #[inline(always)]
    fn score(&self, record: usize, params: &[T]) -> f64 {
        let (x, rest_x) = self.row(record).as_chunks::<LANES>();
        let (w, rest_w) = params.as_chunks();
        let mut lanes = [T::ZERO; LANES];
        for (x, w) in x.iter().zip(w) {
            multiply_add(x, w, &mut lanes);
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        let mut sum = ((a + e) + (c + g)) + ((b + f) + (d + h));
        for (&x, &w) in rest_x.iter().zip(rest_w) {
            sum = x.mul_add(w, sum);
        }
        sum.to_f64()
    }

    #[inline(always)]
    fn add(&self, record: usize, factor: T, target: &mut [T]) {
        let (x, rest_x) = self.row(record).as_chunks();
        let (slots, rest) = target.as_chunks_mut();
        for (slots, x) in slots.iter_mut().zip(x) {
            multiply_add(x, &[factor; LANES], slots);
        }
        for (slot, &x) in rest.iter_mut().zip(rest_x) {
            *slot = x.mul_add(factor, *slot);
        }
    }

    fn scores(&self, records: &[i64], params: &[T], scores: &mut [f64]) {
        in_wide_vectors(Scores {
            x: *self,
            records,
            params,
            out: scores,
        });
    }

    fn add_scaled(&self, records: &[i64], factors: &[T], decay: f64, target: &mut [T]) {
        if records.is_empty() {
            return vectorized!(scale_in_place(target, decay));
        }
        in_wide_vectors(Sums {
            x: *self,
            records,
            factors,
            decay,
            target,
        });
    }

    fn scores_in_f64(&self, records: &[i64], params: &[f64], scores: &mut [f64]) {
        in_wide_vectors(ScoresInF64 {
            x: *self,
            records,
            params,
            out: scores,
        });
    }

    #[inline(always)]
    fn sums_of_powers(&self, records: &[i64], norm: Norm, sums: &mut [f64]) {
        if records.len() < SIDE || !SIDE_BY_SIDE.contains(&self.columns) {
            for (sum, &record) in sums.iter_mut().zip(records) {
                *sum = self.sum_of_powers(record as usize, norm);
            }
            return;
        }
        in_wide_vectors(PowersInF64 {
            x: *self,
            records,
            norm,
            out: sums,
        });
    }

    fn add_scaled_in_f64(&self, records: &[i64], factors: &[f64], target: &mut [f64]) {
        in_wide_vectors(SumsInF64 {
            x: *self,
            records,
            factors,
            target,
        });
    }
}

#[inline(always)]
fn multiply_add<T: Wide>(a: &[T; LANES], b: &[T; LANES], lanes: &mut [T; LANES]) {
    // Zipped iterators would keep LLVM from putting the lanes into vector registers.
    for l in 0..LANES {
        lanes[l] = a[l].mul_add(b[l], lanes[l]);
    }
}
