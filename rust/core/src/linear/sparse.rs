//! Feature matrices in compressed sparse rows.

use std::ops::Range;

use super::Features;
use super::vectors::scale_in_place;
use crate::error::same_len;
use crate::instructions::vectorized;
use crate::projection::{Norm, sum_of_powers};
use crate::wide::Wide;
use crate::{Index, KernelError, Real};

/// Features in compressed sparse rows: the values of record `r` and their columns are at `indptr[r]..indptr[r + 1]`;
/// columns rise within a row, each at most once.
#[derive(Debug, Clone, Copy)]
pub struct Csr<'a, T, I> {
    indptr: &'a [I],
    indices: &'a [I],
    values: &'a [T],
    columns: usize,
}

impl<'a, T: Real, I: Index> Csr<'a, T, I> {
    /// The matrix with these parts. A row is checked when a kernel first reads it.
    ///
    /// # Errors
    /// If there are no columns or no rows, or `indices` and `values` differ in length.
    pub fn new(
        indptr: &'a [I],
        indices: &'a [I],
        values: &'a [T],
        columns: usize,
    ) -> Result<Csr<'a, T, I>, KernelError> {
        same_len("values", values.len(), indices.len())?;
        if columns == 0 || indptr.len() < 2 {
            let got = format!("{} x {columns}", indptr.len().saturating_sub(1));
            return Err(KernelError::new("features", "at least 1 x 1", got));
        }
        Ok(Csr {
            indptr,
            indices,
            values,
            columns,
        })
    }

    #[inline(always)]
    fn range(&self, record: usize) -> Range<usize> {
        self.indptr[record].position()..self.indptr[record + 1].position()
    }

    #[inline(always)]
    fn row(&self, record: usize) -> (&'a [I], &'a [T]) {
        let range = self.range(record);
        (&self.indices[range.clone()], &self.values[range])
    }
}

impl<T: Wide, I: Index> Features for Csr<'_, T, I> {
    type Value = T;

    fn records(&self) -> usize {
        self.indptr.len() - 1
    }

    fn columns(&self) -> usize {
        self.columns
    }

    fn cost(&self) -> usize {
        self.values.len() / self.records() + 1
    }

    #[inline]
    fn check(&self, record: usize) -> Result<(), KernelError> {
        let range = self.range(record);
        let sound = range.start <= range.end && range.end <= self.indices.len() && {
            let columns = &self.indices[range];
            columns.iter().all(|c| c.position() < self.columns)
                && columns.is_sorted_by(|a, b| a < b)
        };
        if sound {
            Ok(())
        } else {
            let wanted = format!("rows of rising column indices below {}", self.columns);
            let got = format!("others in row {record}");
            Err(KernelError::new("features", wanted, got))
        }
    }

    #[inline(always)]
    fn sum_of_powers(&self, record: usize, kind: Norm) -> f64 {
        sum_of_powers(self.row(record).1, kind)
    }

    #[inline(always)]
    fn write(&self, record: usize, row: &mut [T]) {
        row.fill(T::ZERO);
        self.add(record, T::ONE, row);
    }

    #[inline(always)]
    fn score(&self, record: usize, params: &[T]) -> f64 {
        let (columns, values) = self.row(record);
        gathered_dot(columns, values, params).to_f64()
    }

    #[inline(always)]
    fn add(&self, record: usize, factor: T, target: &mut [T]) {
        if factor != T::ZERO {
            let (columns, values) = self.row(record);
            for (column, &value) in columns.iter().zip(values) {
                target[column.position()] += value * factor;
            }
        }
    }

    fn scores(&self, records: &[i64], params: &[T], scores: &mut [f64]) {
        let outputs = params.len() / self.columns;
        for (&record, scores) in records.iter().zip(scores.chunks_mut(outputs)) {
            for (score, row) in scores.iter_mut().zip(params.chunks(self.columns)) {
                *score = self.score(record as usize, row);
            }
        }
    }

    fn add_scaled(&self, records: &[i64], factors: &[T], decay: f64, target: &mut [T]) {
        vectorized!(scale_in_place(target, decay));
        let outputs = target.len() / self.columns;
        for (&record, factors) in records.iter().zip(factors.chunks(outputs)) {
            for (&factor, row) in factors.iter().zip(target.chunks_mut(self.columns)) {
                self.add(record as usize, factor, row);
            }
        }
    }

    fn scores_in_f64(&self, records: &[i64], params: &[f64], scores: &mut [f64]) {
        let outputs = params.len() / self.columns;
        for (&record, scores) in records.iter().zip(scores.chunks_mut(outputs)) {
            let (columns, values) = self.row(record as usize);
            for (score, row) in scores.iter_mut().zip(params.chunks(self.columns)) {
                let each = columns.iter().zip(values);
                *score = each
                    .map(|(column, value)| value.to_f64() * row[column.position()])
                    .sum();
            }
        }
    }

    #[inline(always)]
    fn sums_of_powers(&self, records: &[i64], norm: Norm, sums: &mut [f64]) {
        for (sum, &record) in sums.iter_mut().zip(records) {
            *sum = self.sum_of_powers(record as usize, norm);
        }
    }

    fn add_scaled_in_f64(&self, records: &[i64], factors: &[f64], target: &mut [f64]) {
        let outputs = target.len() / self.columns;
        for (&record, factors) in records.iter().zip(factors.chunks(outputs)) {
            let (columns, values) = self.row(record as usize);
            for (&factor, row) in factors.iter().zip(target.chunks_mut(self.columns)) {
                if factor != 0.0 {
                    for (column, value) in columns.iter().zip(values) {
                        row[column.position()] += value.to_f64() * factor;
                    }
                }
            }
        }
    }
}

/// Inner product of a sparse row with a dense one, in four independent sums.
#[inline(always)]
fn gathered_dot<T: Real, I: Index>(columns: &[I], values: &[T], row: &[T]) -> T {
    const LANES: usize = 4;
    let at = |column: I| row[column.position()];
    let mut lanes = [T::ZERO; LANES];
    let (whole_columns, rest_columns) = columns.as_chunks::<LANES>();
    let (whole_values, rest_values) = values.as_chunks::<LANES>();
    for (columns, values) in whole_columns.iter().zip(whole_values) {
        for ((lane, &column), &value) in lanes.iter_mut().zip(columns).zip(values) {
            *lane += value * at(column);
        }
    }
    for ((lane, &column), &value) in lanes.iter_mut().zip(rest_columns).zip(rest_values) {
        *lane += value * at(column);
    }
    (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
}
