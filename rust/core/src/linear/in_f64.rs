//! Products of dense rows of either type with numbers of `f64`. Parts of a few rows are converted at a time, and stay in
//! the cache until they are used.

use pulp::{Simd, WithSimd};

use super::Dense;
use super::tiles::{add_products, products};
use crate::wide::Wide;

/// Records that are read together: each number of the parameters and of the sums is then loaded once for all of them.
pub(super) const SIDE: usize = 4;
/// Rows of parameters that are read together.
const PAIR: usize = 2;
/// Features of a record that are converted at a time.
pub(super) const PART: usize = 512;

type Room = [[f64; PART]; SIDE];

/// For each record, its inner products with the rows of parameters.
pub(super) struct ScoresInF64<'a, T> {
    pub(super) x: Dense<'a, T>,
    pub(super) records: &'a [i64],
    pub(super) params: &'a [f64],
    /// For each record, an element for each row of parameters.
    pub(super) out: &'a mut [f64],
}

impl<T: Wide> WithSimd for ScoresInF64<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let columns = self.x.columns;
        let outputs = self.params.len() / columns;
        let mut room: Room = [[0.0; PART]; SIDE];
        let groups = self.records.chunks(SIDE);
        for (group, out) in groups.zip(self.out.chunks_mut(SIDE * outputs)) {
            out.fill(0.0);
            for first in (0..columns).step_by(PART) {
                let len = PART.min(columns - first);
                convert(self.x, group, first, len, &mut room);
                if group.len() == SIDE {
                    let rows = room.each_ref().map(|row| &row[..len]);
                    add_scores::<S, SIDE>(simd, rows, self.params, columns, first, out);
                } else {
                    for (row, out) in room.iter().zip(out.chunks_exact_mut(outputs)) {
                        add_scores::<S, 1>(simd, [&row[..len]], self.params, columns, first, out);
                    }
                }
            }
        }
    }
}

/// Converts a part of the records' features.
#[inline(always)]
fn convert<T: Wide>(x: Dense<'_, T>, records: &[i64], first: usize, len: usize, room: &mut Room) {
    for (room, &record) in room.iter_mut().zip(records) {
        let [row] = x.rows([record]);
        for (wide, value) in room[..len].iter_mut().zip(&row[first..][..len]) {
            *wide = value.to_f64();
        }
    }
}

/// Adds what a part of the records' features adds to their scores.
#[inline(always)]
fn add_scores<S: Simd, const R: usize>(
    simd: S,
    rows: [&[f64]; R],
    params: &[f64],
    columns: usize,
    first: usize,
    out: &mut [f64],
) {
    let outputs = params.len() / columns;
    let part = |k: usize| &params[k * columns + first..][..rows[0].len()];
    let whole = outputs / PAIR * PAIR;
    for k in (0..whole).step_by(PAIR) {
        let sums: [[f64; PAIR]; R] = products(simd, rows, [part(k), part(k + 1)], |_, _| ());
        for (r, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                out[r * outputs + k + j] += sum;
            }
        }
    }
    for k in whole..outputs {
        let sums: [[f64; 1]; R] = products(simd, rows, [part(k)], |_, _| ());
        for (r, [sum]) in sums.into_iter().enumerate() {
            out[r * outputs + k] += sum;
        }
    }
}

/// Adds to each row of the target the records, in order, times their factors for that row; those whose factors are all 0
/// are not read.
pub(super) struct SumsInF64<'a, T> {
    pub(super) x: Dense<'a, T>,
    pub(super) records: &'a [i64],
    /// For each record, an element for each row of the target.
    pub(super) factors: &'a [f64],
    pub(super) target: &'a mut [f64],
}

impl<T: Wide> WithSimd for SumsInF64<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let columns = self.x.columns;
        let outputs = self.target.len() / columns;
        let mut room: Room = [[0.0; PART]; SIDE];
        let groups = self.records.chunks(SIDE);
        for (group, factors) in groups.zip(self.factors.chunks(SIDE * outputs)) {
            let together = group.len() == SIDE && !factors.chunks_exact(outputs).any(is_zero);
            for first in (0..columns).step_by(PART) {
                let len = PART.min(columns - first);
                convert(self.x, group, first, len, &mut room);
                if together {
                    let rows = room.each_ref().map(|row| &row[..len]);
                    add_rows::<S, SIDE>(simd, rows, factors, self.target, columns, first);
                } else {
                    for (row, factors) in room.iter().zip(factors.chunks_exact(outputs)) {
                        if !is_zero(factors) {
                            let rows = [&row[..len]];
                            add_rows::<S, 1>(simd, rows, factors, self.target, columns, first);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn is_zero(factors: &[f64]) -> bool {
    factors.iter().all(|&factor| factor == 0.0)
}

/// Adds a part of the records' features, times their factors, to the same part of each row of the target.
#[inline(always)]
fn add_rows<S: Simd, const R: usize>(
    simd: S,
    rows: [&[f64]; R],
    factors: &[f64],
    target: &mut [f64],
    columns: usize,
    first: usize,
) {
    let len = rows[0].len();
    let outputs = target.len() / columns;
    for (nth, pair) in target.chunks_mut(PAIR * columns).enumerate() {
        let k = nth * PAIR;
        if pair.len() == PAIR * columns {
            let mut of_rows = [[0.0; PAIR]; R];
            for (r, of_row) in of_rows.iter_mut().enumerate() {
                of_row.copy_from_slice(&factors[r * outputs + k..][..PAIR]);
            }
            let (one, other) = pair.split_at_mut(columns);
            let parts = [&mut one[first..][..len], &mut other[first..][..len]];
            add_products::<f64, S, R, PAIR, false>(simd, rows, of_rows, 1.0, parts);
        } else {
            let mut of_rows = [[0.0; 1]; R];
            for (r, of_row) in of_rows.iter_mut().enumerate() {
                of_row[0] = factors[r * outputs + k];
            }
            let parts = [&mut pair[first..][..len]];
            add_products::<f64, S, R, 1, false>(simd, rows, of_rows, 1.0, parts);
        }
    }
}
