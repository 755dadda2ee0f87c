//! Products of dense rows of either type with numbers of `f64`. Features of `f32` are converted in registers, as they
//! are read.

use std::array;

use pulp::{Simd, WithSimd};

use super::Dense;
use crate::cache::prefetch_to_l2;
use crate::projection::Norm;
use crate::wide::{DOUBLES, Wide};

/// Records that are read together: each number of the parameters and of the sums is then loaded once for all of them.
pub(super) const SIDE: usize = 4;
/// Rows of parameters that are read together.
const PAIR: usize = 2;
/// Features of a record whose products are added up before they are added to its score.
pub(super) const PART: usize = 512;

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
        let outputs = self.params.len() / self.x.columns;
        let groups = self.records.chunks(SIDE);
        for (group, out) in groups.zip(self.out.chunks_mut(SIDE * outputs)) {
            out.fill(0.0);
            if let Ok(group) = <[i64; SIDE]>::try_from(group) {
                add_scores(simd, self.x.rows(group), self.params, out);
            } else {
                for (&record, out) in group.iter().zip(out.chunks_exact_mut(outputs)) {
                    add_scores(simd, self.x.rows([record]), self.params, out);
                }
            }
        }
    }
}

/// Adds the records' inner products with all rows of parameters to their scores.
#[inline(always)]
fn add_scores<T: Wide, S: Simd, const R: usize>(
    simd: S,
    records: [&[T]; R],
    params: &[f64],
    out: &mut [f64],
) {
    let columns = records[0].len();
    let outputs = params.len() / columns;
    let paired = outputs - outputs % PAIR;
    for first in (0..columns).step_by(PART) {
        let len = PART.min(columns - first);
        let parts = records.map(|row| &row[first..][..len]);
        let part_of = |k: usize| &params[k * columns + first..][..len];
        for k in (0..paired).step_by(PAIR) {
            let sums = products(simd, parts, [part_of(k), part_of(k + 1)]);
            add_to_scores(&sums, k, out);
        }
        for k in paired..outputs {
            let sums = products(simd, parts, [part_of(k)]);
            add_to_scores(&sums, k, out);
        }
    }
}

/// Adds each record's sums to its scores from the `k`-th on.
#[inline(always)]
fn add_to_scores<const R: usize, const K: usize>(sums: &[[f64; K]; R], k: usize, out: &mut [f64]) {
    let outputs = out.len() / R;
    for (sums, scores) in sums.iter().zip(out.chunks_exact_mut(outputs)) {
        for (score, sum) in scores[k..].iter_mut().zip(sums) {
            *score += sum;
        }
    }
}

/// Inner products of each record with each row of parameters, which are as long: the lanes of whole vectors, then what
/// is left over.
#[inline(always)]
fn products<T: Wide, S: Simd, const R: usize, const K: usize>(
    simd: S,
    records: [&[T]; R],
    params: [&[f64]; K],
) -> [[f64; K]; R] {
    let records = records.map(<[T]>::as_chunks::<DOUBLES>);
    let params = params.map(S::as_simd_f64s);
    let mut lanes = [[simd.splat_f64s(0.0); K]; R];
    for c in 0..records[0].0.len() {
        for r in 0..R {
            let features = T::widened::<S>(&records[r].0[c]);
            for k in 0..K {
                lanes[r][k] = simd.mul_add_f64s(features, params[k].0[c], lanes[r][k]);
            }
        }
    }
    let mut sums = [[0.0; K]; R];
    for r in 0..R {
        for k in 0..K {
            sums[r][k] = simd.reduce_sum_f64s(lanes[r][k]);
            for (feature, &param) in records[r].1.iter().zip(params[k].1) {
                sums[r][k] = feature.to_f64().mul_add(param, sums[r][k]);
            }
        }
    }
    sums
}

/// For each record, the sum of its absolute values or squares: the bits of
/// [`sum_of_powers`](crate::projection::sum_of_powers) for rows of at most a block.
pub(super) struct PowersInF64<'a, T> {
    pub(super) x: Dense<'a, T>,
    pub(super) records: &'a [i64],
    pub(super) norm: Norm,
    pub(super) out: &'a mut [f64],
}

impl<T: Wide> WithSimd for PowersInF64<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let groups = self.records.chunks(SIDE);
        for (group, out) in groups.zip(self.out.chunks_mut(SIDE)) {
            if let Ok(group) = <[i64; SIDE]>::try_from(group) {
                out.copy_from_slice(&sums_of_powers(simd, self.x.rows(group), self.norm));
            } else {
                for (&record, out) in group.iter().zip(out) {
                    [*out] = sums_of_powers(simd, self.x.rows([record]), self.norm);
                }
            }
        }
    }
}

/// Sums of the powers of several records. The additions of one record wait for each other, those of several do not.
#[inline(always)]
fn sums_of_powers<T: Wide, S: Simd, const R: usize>(
    simd: S,
    records: [&[T]; R],
    norm: Norm,
) -> [f64; R] {
    let records = records.map(<[T]>::as_chunks::<DOUBLES>);
    let mut lanes = [simd.splat_f64s(0.0); R];
    for c in 0..records[0].0.len() {
        for r in 0..R {
            let features = T::widened::<S>(&records[r].0[c]);
            let powers = match norm {
                Norm::L1 => simd.abs_f64s(features),
                Norm::L2 => simd.mul_f64s(features, features),
            };
            lanes[r] = simd.add_f64s(lanes[r], powers);
        }
    }
    let mut sums = lanes.map(|lanes| simd.reduce_sum_f64s(lanes));
    for (sum, record) in sums.iter_mut().zip(records) {
        for feature in record.1 {
            let feature = feature.to_f64();
            *sum += match norm {
                Norm::L1 => feature.abs(),
                Norm::L2 => feature * feature,
            };
        }
    }
    sums
}

/// Adds to each row of the target the records, in order, times their factors for that row; those whose factors are all 0
/// are not read.
pub(super) struct SumsInF64<'a, T> {
    pub(super) x: Dense<'a, T>,
    /// Those to add, and any that are read next: these are prefetched.
    pub(super) records: &'a [i64],
    /// For each record to add, an element for each row of the target.
    pub(super) factors: &'a [f64],
    pub(super) target: &'a mut [f64],
}

impl<T: Wide> WithSimd for SumsInF64<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let outputs = self.target.len() / self.x.columns;
        for (nth, factors) in self.factors.chunks(SIDE * outputs).enumerate() {
            let records = &self.records[nth * SIDE..];
            let has_unread = factors.chunks_exact(outputs).any(is_zero);
            if factors.len() == SIDE * outputs && !has_unread {
                let group = array::from_fn(|r| records[r]);
                let next = array::from_fn(|r| *records.get(SIDE + r).unwrap_or(&group[r]));
                let (group, next): ([_; SIDE], [_; SIDE]) = (self.x.rows(group), self.x.rows(next));
                let prefetch =
                    |r: usize, column| prefetch_to_l2(next[r].as_ptr().wrapping_add(column));
                add_records(simd, group, factors, self.target, prefetch);
                continue;
            }
            for (&record, factors) in records.iter().zip(factors.chunks_exact(outputs)) {
                if !is_zero(factors) {
                    let record = self.x.rows([record]);
                    add_records(simd, record, factors, self.target, |_, _| ());
                }
            }
        }
    }
}

#[inline(always)]
fn is_zero(factors: &[f64]) -> bool {
    factors.iter().all(|&factor| factor == 0.0)
}

/// Adds the records' features, times their factors, to each row of the target. `prefetch(r, column)` may prefetch what
/// comes after record `r`.
#[inline(always)]
fn add_records<T: Wide, S: Simd, const R: usize>(
    simd: S,
    records: [&[T]; R],
    factors: &[f64],
    target: &mut [f64],
    prefetch: impl Fn(usize, usize),
) {
    let columns = records[0].len();
    let outputs = target.len() / columns;
    let factors_of = |k: usize| -> [f64; R] { array::from_fn(|r| factors[r * outputs + k]) };
    let mut pairs = target.chunks_exact_mut(PAIR * columns);
    for (nth, pair) in (&mut pairs).enumerate() {
        let k = nth * PAIR;
        let factors = [factors_of(k), factors_of(k + 1)];
        let (one, other) = pair.split_at_mut(columns);
        if k == 0 {
            add_products(simd, records, factors, [one, other], &prefetch);
        } else {
            add_products(simd, records, factors, [one, other], |_, _| ());
        }
    }
    let single = pairs.into_remainder();
    if !single.is_empty() {
        let factors = [factors_of(outputs - 1)];
        if outputs == 1 {
            add_products(simd, records, factors, [single], prefetch);
        } else {
            add_products(simd, records, factors, [single], |_, _| ());
        }
    }
}

/// Adds `factors[k][r]` times record `r` to row `k`, record after record.
#[inline(always)]
fn add_products<T: Wide, S: Simd, const R: usize, const K: usize>(
    simd: S,
    records: [&[T]; R],
    factors: [[f64; R]; K],
    rows: [&mut [f64]; K],
    prefetch: impl Fn(usize, usize),
) {
    let wide_factors = factors.map(|of_row| of_row.map(|factor| simd.splat_f64s(factor)));
    let records = records.map(<[T]>::as_chunks::<DOUBLES>);
    let rows = rows.map(S::as_mut_simd_f64s);
    for c in 0..records[0].0.len() {
        let features = records.map(|record| T::widened::<S>(&record.0[c]));
        for r in 0..R {
            prefetch(r, c * DOUBLES);
        }
        for k in 0..K {
            let mut sum = rows[k].0[c];
            for r in 0..R {
                sum = simd.mul_add_f64s(features[r], wide_factors[k][r], sum);
            }
            rows[k].0[c] = sum;
        }
    }
    for k in 0..K {
        for (j, slot) in rows[k].1.iter_mut().enumerate() {
            for r in 0..R {
                *slot = records[r].1[j].to_f64().mul_add(factors[k][r], *slot);
            }
        }
    }
}
