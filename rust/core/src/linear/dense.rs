//! Row-major feature matrices.

use super::Features;
use super::tiles::{Scores, Sums};
use crate::KernelError;
use crate::error::rows;
use crate::projection::{Norm, norm};
use crate::wide::{Wide, in_wide_vectors};

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

    fn check(&self, _: usize) -> Result<(), KernelError> {
        Ok(())
    }

    fn norm(&self, record: usize, kind: Norm) -> f64 {
        norm(self.row(record), kind)
    }

    fn scores(&self, records: &[i64], params: &[T], scores: &mut [f64]) {
        in_wide_vectors(Scores {
            x: *self,
            records,
            params,
            out: scores,
        });
    }

    fn add_scaled(&self, records: &[i64], factors: &[T], target: &mut [T]) {
        in_wide_vectors(Sums {
            x: *self,
            records,
            factors,
            target,
        });
    }
}
