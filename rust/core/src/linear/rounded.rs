//! Feature matrices of 8 bits a number, with a scale for every few numbers of a record.

use std::marker::PhantomData;

use super::clipped::PLACES;
use super::in_f64::SIDE;
use super::vectors::scale_in_place;
use super::{Dense, Features};
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::projection::{Norm, sum_of_powers};
use crate::wide::Wide;
use crate::{KernelError, Real};

/// Numbers of a record that share a scale.
pub const SHARED: usize = 64;

/// A matrix of the numbers `code * scale`, with one scale for [`SHARED`] codes of a record.
///
/// The products are rounded to `f32`. All kernels give the bits that a [`Dense`] matrix of these numbers gives, stored as
/// `T`.
#[derive(Debug, Clone, Copy)]
pub struct Rounded<'a, T> {
    codes: &'a [i8],
    scales: &'a [f32],
    /// Codes from the beginning of one record to that of the next; those beyond its columns are not read.
    stride: usize,
    columns: usize,
    number: PhantomData<T>,
}

impl<'a, T: Wide> Rounded<'a, T> {
    /// The matrix of the first `columns` of `stride` codes a record, with `stride / SHARED` scales a record, rounded up.
    ///
    /// # Errors
    /// If there are no columns, more than `stride`, or the codes and scales are not those of whole records.
    pub fn new(
        codes: &'a [i8],
        scales: &'a [f32],
        stride: usize,
        columns: usize,
    ) -> Result<Rounded<'a, T>, KernelError> {
        let records = rows("features.codes", codes.len(), stride)?;
        same_len(
            "features.scales",
            scales.len(),
            records * stride.div_ceil(SHARED),
        )?;
        if columns == 0 || columns > stride {
            let wanted = format!("from 1 to {stride} columns");
            return Err(KernelError::new("features", wanted, columns));
        }
        Ok(Rounded {
            codes,
            scales,
            stride,
            columns,
            number: PhantomData,
        })
    }

    /// Writes the numbers of a record.
    #[inline(always)]
    fn decode<V: Real>(&self, record: usize, row: &mut [V]) {
        let groups = self.stride.div_ceil(SHARED);
        let codes = &self.codes[record * self.stride..][..self.columns];
        let scales = &self.scales[record * groups..][..groups];
        let parts = row.chunks_mut(SHARED).zip(codes.chunks(SHARED));
        for ((row, codes), &scale) in parts.zip(scales) {
            for (number, &code) in row.iter_mut().zip(codes) {
                *number = V::from_f64(f64::from(f32::from(code) * scale));
            }
        }
    }

    /// The numbers of some records, one after the other, in `room`.
    #[inline(always)]
    fn decode_all<'r, V: Wide>(&self, records: &[i64], room: &'r mut Vec<V>) -> Dense<'r, V> {
        room.resize(records.len() * self.columns, V::ZERO);
        vectorized!(
            for (row, &record) in room.chunks_exact_mut(self.columns).zip(records) {
                self.decode(record as usize, row);
            }
        );
        Dense::of(room, self.columns)
    }

    /// The numbers of one record.
    #[inline(always)]
    fn row(&self, record: usize) -> Vec<T> {
        let mut row = vec![T::ZERO; self.columns];
        self.decode(record, &mut row);
        row
    }
}

impl<T: Wide> Features for Rounded<'_, T> {
    type Value = T;

    fn records(&self) -> usize {
        self.codes.len() / self.stride
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
    fn decoded<'r>(&self, records: &[i64], room: &'r mut Vec<f32>) -> Option<Dense<'r, f32>> {
        Some(self.decode_all(records, room))
    }

    #[inline(always)]
    fn sum_of_powers(&self, record: usize, kind: Norm) -> f64 {
        sum_of_powers(&self.row(record), kind)
    }

    #[inline(always)]
    fn write(&self, record: usize, row: &mut [T]) {
        self.decode(record, row);
    }

    #[inline(always)]
    fn score(&self, record: usize, params: &[T]) -> f64 {
        Dense::of(&self.row(record), self.columns).score(0, params)
    }

    #[inline(always)]
    fn add(&self, record: usize, factor: T, target: &mut [T]) {
        Dense::of(&self.row(record), self.columns).add(0, factor, target);
    }

    fn scores(&self, records: &[i64], params: &[T], scores: &mut [f64]) {
        let outputs = params.len() / self.columns;
        let mut room = Vec::<T>::new();
        for (records, scores) in records.chunks(SIDE).zip(scores.chunks_mut(SIDE * outputs)) {
            let rows = self.decode_all(records, &mut room);
            rows.scores(&PLACES[..records.len()], params, scores);
        }
    }

    fn add_scaled(&self, records: &[i64], factors: &[T], decay: f64, target: &mut [T]) {
        if records.is_empty() {
            return vectorized!(scale_in_place(target, decay));
        }
        let outputs = target.len() / self.columns;
        let mut room = Vec::<T>::new();
        let mut decay = decay;
        for (records, factors) in records.chunks(SIDE).zip(factors.chunks(SIDE * outputs)) {
            let rows = self.decode_all(records, &mut room);
            rows.add_scaled(&PLACES[..records.len()], factors, decay, target);
            decay = 1.0;
        }
    }

    fn scores_in_f64(&self, records: &[i64], params: &[f64], scores: &mut [f64]) {
        let outputs = params.len() / self.columns;
        let mut room = Vec::<f32>::new();
        for (records, scores) in records.chunks(SIDE).zip(scores.chunks_mut(SIDE * outputs)) {
            let rows = self.decode_all(records, &mut room);
            rows.scores_in_f64(&PLACES[..records.len()], params, scores);
        }
    }

    #[inline(always)]
    fn sums_of_powers(&self, records: &[i64], norm: Norm, sums: &mut [f64]) {
        let mut room = Vec::<f32>::new();
        for (records, sums) in records.chunks(SIDE).zip(sums.chunks_mut(SIDE)) {
            let rows = self.decode_all(records, &mut room);
            rows.sums_of_powers(&PLACES[..records.len()], norm, sums);
        }
    }

    fn add_scaled_in_f64(&self, records: &[i64], factors: &[f64], target: &mut [f64]) {
        let outputs = target.len() / self.columns;
        let mut room = Vec::<f32>::new();
        for (records, factors) in records.chunks(SIDE).zip(factors.chunks(SIDE * outputs)) {
            let records = &records[..factors.len() / outputs];
            let rows = self.decode_all(records, &mut room);
            rows.add_scaled_in_f64(&PLACES[..records.len()], factors, target);
        }
    }
}
