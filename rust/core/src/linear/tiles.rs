//! Products of a few records with a few rows of parameters, held in registers together, so that each number is used
//! several times once read. The bits do not depend on which of them share a tile.

use std::array;

use pulp::{Simd, WithSimd};

use super::Dense;
use super::model::RECORDS_AT_ONCE;
use crate::cache::{LINE, prefetch, prefetch_to_l2};
use crate::wide::Wide;

/// Rows of a tile, and its records if there are enough registers.
const SIDE: usize = 5;

/// Rows of a tile of two records, if there are enough registers and many records. The rows stay in the L1 cache; the
/// records, which may come from memory, are read once for all of them. The next two records are prefetched into the L1
/// cache, later ones into the L2 cache: the L1 cache waits for too few lines at a time to hide the latency of memory.
const MANY_ROWS: usize = 2 * SIDE;
/// From this number on, records are many: a gradient works on fewer at once, which are in a cache.
const MANY_RECORDS: usize = RECORDS_AT_ONCE + 1;

/// Work on all pairs of a record and a row, tile by tile.
trait Tiles {
    /// The records, and the number of rows.
    fn sizes(&self) -> (&[i64], usize);

    /// Works on the `R` records from `first` on and the `K` rows from `k` on.
    fn tile<S: Simd, const R: usize, const K: usize>(&mut self, simd: S, first: usize, k: usize);

    /// Works on the rows from `start` on; if there are few registers, with `FEW` records in a tile.
    #[inline(always)]
    fn all_from<S: Simd, const FEW: usize>(&mut self, simd: S, start: usize) {
        let outputs = self.sizes().1;
        let tiled = outputs - (outputs - start) % SIDE;
        for k in (start..tiled).step_by(SIDE) {
            if S::REGISTER_COUNT >= 32 {
                self.rows::<S, SIDE, SIDE>(simd, k);
            } else {
                self.rows::<S, FEW, SIDE>(simd, k);
            }
        }
        for k in tiled..outputs {
            self.rows::<S, SIDE, 1>(simd, k);
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const R: usize, const K: usize>(&mut self, simd: S, k: usize) {
        let records = self.sizes().0.len();
        let grouped = records - records % R;
        for first in (0..grouped).step_by(R) {
            self.tile::<S, R, K>(simd, first, k);
        }
        for first in grouped..records {
            self.tile::<S, 1, K>(simd, first, k);
        }
    }
}

/// Inner products of all pairs of a record and a row of parameters.
pub(super) struct Scores<'a, T> {
    pub(super) x: Dense<'a, T>,
    pub(super) records: &'a [i64],
    pub(super) params: &'a [T],
    /// For each record, an element for each row of parameters.
    pub(super) out: &'a mut [f64],
}

impl<T: Wide> WithSimd for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (records, outputs) = self.sizes();
        let mut first = 0;
        if S::REGISTER_COUNT >= 32 && records.len() >= MANY_RECORDS {
            first = outputs - outputs % MANY_ROWS;
            for k in (0..first).step_by(MANY_ROWS) {
                self.rows::<S, 2, MANY_ROWS>(simd, k);
            }
        }
        self.all_from::<S, 1>(simd, first);
    }
}

impl<T: Wide> Tiles for Scores<'_, T> {
    #[inline(always)]
    fn sizes(&self) -> (&[i64], usize) {
        (self.records, self.params.len() / self.x.columns)
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const K: usize>(&mut self, simd: S, first: usize, k: usize) {
        let columns = self.x.columns;
        let outputs = self.params.len() / columns;
        let mut rows = [self.params; K];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &self.params[(k + i) * columns..][..columns];
        }
        let x = self.x.rows(group::<R>(self.records, first));
        let sums = if k == 0 && first + R < self.records.len() {
            let next = self.x.rows(group_or_last::<R>(self.records, first + R));
            if K == MANY_ROWS {
                let later = self.x.rows(group_or_last::<R>(self.records, first + 3 * R));
                products(simd, x, rows, |r, c| {
                    prefetch(next[r], c);
                    prefetch_to_l2(later[r].as_ptr().wrapping_add(c));
                })
            } else {
                products(simd, x, rows, |r, c| prefetch(next[r], c))
            }
        } else {
            products(simd, x, rows, |_, _| ())
        };
        for (r, sums) in sums.into_iter().enumerate() {
            let scores = &mut self.out[(first + r) * outputs + k..][..K];
            for (score, sum) in scores.iter_mut().zip(sums) {
                *score = sum.to_f64();
            }
        }
    }
}

#[inline(always)]
fn group<const R: usize>(records: &[i64], first: usize) -> [i64; R] {
    array::from_fn(|r| records[first + r])
}

/// As [`group`], with the last record in place of those beyond it.
#[inline(always)]
fn group_or_last<const R: usize>(records: &[i64], first: usize) -> [i64; R] {
    array::from_fn(|r| records[(first + r).min(records.len() - 1)])
}

/// Inner products of each of `a` with each of `b`: the lanes of whole vectors, then what is left over.
/// `prefetch(i, column)` may prefetch what comes after row `i` of `a`.
#[inline(always)]
pub(super) fn products<T: Wide, S: Simd, const A: usize, const B: usize>(
    simd: S,
    a: [&[T]; A],
    b: [&[T]; B],
    prefetch: impl Fn(usize, usize),
) -> [[T; B]; A] {
    let (a, b) = (split::<T, S, A>(a), split::<T, S, B>(b));
    let mut lanes = [[T::splat(simd, T::ZERO); B]; A];
    for c in 0..a[0].whole.len().min(b[0].whole.len()) {
        for i in 0..A {
            prefetch(i, c * (LINE / size_of::<T>()));
            for j in 0..B {
                lanes[i][j] = T::multiply_add(simd, a[i].whole[c], b[j].whole[c], lanes[i][j]);
            }
        }
    }
    let mut sums = [[T::ZERO; B]; A];
    for i in 0..A {
        for j in 0..B {
            sums[i][j] = T::lane_sum(simd, lanes[i][j]);
        }
    }
    if !a[0].rest.is_empty() {
        // Separate from the sums of lanes, so that those are computed side by side.
        for i in 0..A {
            for j in 0..B {
                for (&a, &b) in a[i].rest.iter().zip(b[j].rest) {
                    sums[i][j] = a.mul_add(b, sums[i][j]);
                }
            }
        }
    }
    sums
}

/// A row's vectors, and what is left over.
#[derive(Clone, Copy)]
struct Split<'a, T: Wide, S: Simd> {
    whole: &'a [T::Vector<S>],
    rest: &'a [T],
}

/// Splits rows that are equally long.
#[inline(always)]
fn split<T: Wide, S: Simd, const N: usize>(rows: [&[T]; N]) -> [Split<'_, T, S>; N] {
    let (whole, rest) = T::vectors(rows[0]);
    let mut all = [Split { whole, rest }; N];
    for (split, row) in all.iter_mut().zip(rows) {
        let (vectors, rest) = T::vectors(row);
        let whole = &vectors[..whole.len()]; // a length that the compiler knows to be equal
        *split = Split { whole, rest };
    }
    all
}

/// Multiplies a target by `decay` and adds to each of its rows the records, in order and at least one, times their
/// factors for that row.
pub(super) struct Sums<'a, T> {
    pub(super) x: Dense<'a, T>,
    pub(super) records: &'a [i64],
    /// For each record, an element for each row of the target.
    pub(super) factors: &'a [T],
    pub(super) decay: f64,
    pub(super) target: &'a mut [T],
}

impl<T: Wide> WithSimd for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        self.all_from::<S, 2>(simd, 0);
    }
}

impl<T: Wide> Tiles for Sums<'_, T> {
    #[inline(always)]
    fn sizes(&self) -> (&[i64], usize) {
        (self.records, self.target.len() / self.x.columns)
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const K: usize>(&mut self, simd: S, first: usize, k: usize) {
        let columns = self.x.columns;
        let outputs = self.target.len() / columns;
        let mut factors = [[T::ZERO; K]; R];
        for (r, factors) in factors.iter_mut().enumerate() {
            factors.copy_from_slice(&self.factors[(first + r) * outputs + k..][..K]);
        }
        let mut rows = self.target[k * columns..].chunks_exact_mut(columns);
        let rows = array::from_fn(|_| rows.next().expect("as many rows as outputs"));
        let x = self.x.rows(group::<R>(self.records, first));
        if first == 0 && self.decay != 1.0 {
            let decay = T::from_f64(self.decay);
            add_products::<_, _, R, K, true>(simd, x, factors, decay, rows);
        } else {
            add_products::<_, _, R, K, false>(simd, x, factors, T::ONE, rows);
        }
    }
}

/// Multiplies the rows by `decay`, which is 1 unless `DECAYS`, and adds `factors[r][k] * x[r]` to row `k`, record after
/// record.
#[inline(always)]
pub(super) fn add_products<T: Wide, S: Simd, const R: usize, const K: usize, const DECAYS: bool>(
    simd: S,
    x: [&[T]; R],
    factors: [[T; K]; R],
    decay: T,
    rows: [&mut [T]; K],
) {
    // Adding -0 leaves every product as it is, even -0.
    let (wide_decay, nothing) = (T::splat(simd, decay), T::splat(simd, -T::ZERO));
    let mut wide = [[T::splat(simd, T::ZERO); K]; R];
    for r in 0..R {
        for k in 0..K {
            wide[r][k] = T::splat(simd, factors[r][k]);
        }
    }
    let x = split::<T, S, R>(x);
    let count = x[0].whole.len();
    let rows = rows.map(|row| {
        let (whole, rest) = T::vectors_mut::<S>(row);
        (&mut whole[..count], rest)
    });
    for c in 0..count {
        let mut values = [wide[0][0]; R];
        for r in 0..R {
            values[r] = x[r].whole[c];
        }
        for k in 0..K {
            let mut sum = rows[k].0[c];
            if DECAYS {
                sum = T::multiply_add(simd, sum, wide_decay, nothing);
            }
            for r in 0..R {
                sum = T::multiply_add(simd, values[r], wide[r][k], sum);
            }
            rows[k].0[c] = sum;
        }
    }
    for k in 0..K {
        for (j, slot) in rows[k].1.iter_mut().enumerate() {
            *slot *= decay;
            for r in 0..R {
                *slot = x[r].rest[j].mul_add(factors[r][k], *slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::with_each_instruction_set;
    use crate::linear::Features;

    #[test]
    fn scores_do_not_depend_on_the_tile_or_the_instruction_set() {
        fn check<T: Wide>() {
            let (count, columns, outputs) = (2 * MANY_RECORDS - 1, 19, MANY_ROWS + SIDE + 1);
            let numbers = |len: usize| (0..len).map(|i| T::from_f64((i as f64 * 0.618).sin()));
            let features: Vec<T> = numbers(count * columns).collect();
            let params: Vec<T> = numbers(outputs * columns).collect();
            let records: Vec<i64> = (0..count as i64).collect();
            let scored = |at_once: usize| {
                let mut scores = vec![f64::NAN; count * outputs];
                let parts = scores.chunks_mut(at_once * outputs);
                for (records, scores) in records.chunks(at_once).zip(parts) {
                    Dense::of(&features, columns).scores(records, &params, scores);
                }
                scores
            };
            let alone = scored(1);
            assert!(alone.iter().all(|score| score.is_finite()));
            for scores in with_each_instruction_set(|| scored(count)) {
                assert_eq!(scores, alone);
            }
        }
        check::<f32>();
        check::<f64>();
    }

    /// 0 times infinity is NaN, and shows whether a record with factors of 0 was added.
    #[test]
    fn records_with_factors_of_0_are_added_on_every_instruction_set() {
        let (count, columns, outputs) = (13, 3, 2 * SIDE + 1);
        let is_unused = |record: usize| record % 4 == 1;
        let feature = |i: usize| {
            if is_unused(i / columns) {
                f64::INFINITY
            } else {
                i as f64
            }
        };
        let factor = |i: usize| {
            if is_unused(i / outputs) {
                0.0
            } else {
                (i as f64).sin()
            }
        };
        let features: Vec<f64> = (0..count * columns).map(feature).collect();
        let factors: Vec<f64> = (0..count * outputs).map(factor).collect();
        let records: Vec<i64> = (0..count as i64).collect();
        for sums in with_each_instruction_set(|| {
            let mut sums = vec![0.0; outputs * columns];
            Dense::of(&features, columns).add_scaled(&records, &factors, 1.0, &mut sums);
            sums
        }) {
            assert!(sums.iter().all(|sum| sum.is_nan()));
        }
    }
}
