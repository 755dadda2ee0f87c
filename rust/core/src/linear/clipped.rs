//! Sums of records' clipped gradients in `f64`, from features of either type.
//!
//! The gradient of a record's loss is the outer product of its slopes `s` and its features `x`, so its norm is `|s| |x|`,
//! in L1 as in L2. The sum over a batch is a product of two matrices, and no gradient is ever stored.
//!
//! # What one record adds
//!
//! A record adds `(f s) x` with a factor `f` in [0, 1]. Its norm, for the numbers `f s` and `x` as they are stored, is at
//! most the bound `C`, not `C` up to rounding. With `u = 2^-53`, `m` slopes and `d` features, the computed norms of `s`
//! and `x` are at least `1 - (m + 2) u` and `1 - (d + 2) u` times the exact ones: each is a sum of at most `m` or `d`
//! rounded terms that are not negative, in any order, and a root. Their product, the quotient `f`, and `f` times a slope
//! are rounded once each. So `f` is computed for the bound `(1 - (m + d + 16) u) C`, which leaves a norm of at most `C`
//! after all of these, and after the product of factor and feature, were it rounded on its own. Squares that vanish or
//! overflow are kept out: outside of [`ORDINARY`], numbers are divided by the largest of them before they are squared.
//! A product `f s` with too few bits left is 0.
//!
//! A record whose features or slopes are NaN or infinite adds nothing, and neither does it change what others add.

use super::batches::records_factor;
use super::in_f64::SIDE;
use super::model::{MOST_BLOCKS, RECORDS_AT_ONCE, RECORDS_PER_BLOCK};
use super::vectors::add_all;
use super::{Batches, Clipping, Features, LinearModel};
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{Cut, map, share};
use crate::projection::{Norm, is_finite, sum_of_powers};
use crate::{KernelError, Real};

/// Sums of squares and of absolute values whose terms neither overflow nor vanish where they count, and by whose products
/// the least bound can be divided.
const ORDINARY: std::ops::RangeInclusive<f64> = 1e-100..=1e100;
/// Features that stay in the cache from their records' scores to their gradients.
pub(super) const NUMBERS_AT_ONCE: usize = 1 << 13;

/// Indices of decoded records among those that are decoded together.
pub(super) const PLACES: [i64; RECORDS_AT_ONCE] = {
    let mut places = [0; RECORDS_AT_ONCE];
    let mut place = 0;
    while place < RECORDS_AT_ONCE {
        places[place] = place as i64;
        place += 1;
    }
    places
};

/// Memory that a thread keeps from one block of records to the next.
#[derive(Debug, Default)]
struct Room {
    /// Features of the records, where they are decoded.
    rows: Vec<f32>,
    /// Sums of the powers of the records' features.
    powers: Vec<f64>,
    /// Scores, then slopes, then clipped slopes.
    slopes: Vec<f64>,
}

impl<F: Features> LinearModel<'_, F> {
    /// Sum of the clipped gradients of the losses of each node's records, at its row of `params`, in `f64`.
    ///
    /// Each record adds a vector of norm at most the clipping's bound, and exactly 0 if its gradient is not finite. The
    /// result depends neither on the number of threads nor on whether the same features are stored as `f32` or `f64`.
    ///
    /// # Errors
    /// If the shapes of the arguments do not fit each other, a batch names a record that does not exist, a record's
    /// label does not fit the loss, or the bound is out of range.
    pub fn clipped_sums_into(
        &self,
        params: &[f64],
        batches: Batches<'_>,
        clipping: Clipping,
        out: &mut [f64],
    ) -> Result<(), KernelError> {
        clipping.check()?;
        let nodes = rows("params", params.len(), self.dim)?;
        if nodes != batches.nodes() {
            let wanted = format!("one batch for each of {nodes} nodes");
            return Err(KernelError::new("batches", wanted, batches.nodes()));
        }
        self.check_records(batches.records())?;
        same_len("out", out.len(), params.len())?;
        let clipping = self.with_room_for_rounding(clipping);
        let (dim, cost) = (self.dim, self.cost(batches));
        let cut = Cut::RowsOrWithin { dim, cost };
        share(out, cut, Room::default, |room, first, rows| {
            for (node, out) in (first.row..).zip(rows.chunks_exact_mut(dim)) {
                let params = &params[node * dim..][..dim];
                let batch = batches.of(node);
                out.fill(0.0);
                if batch.len() <= RECORDS_PER_BLOCK {
                    self.add_clipped(params, batch, clipping, out, room);
                    continue;
                }
                let block = RECORDS_PER_BLOCK.max(batch.len().div_ceil(MOST_BLOCKS));
                let sums = map(batch.chunks(block), false, |records| {
                    let mut sum = vec![0.0; dim];
                    self.add_clipped(params, records, clipping, &mut sum, &mut Room::default());
                    sum
                });
                add_all(&sums, out);
            }
        });
        Ok(())
    }

    /// The clipping whose bound is smaller by what the rounding of a record's norm and factors can amount to.
    fn with_room_for_rounding(&self, clipping: Clipping) -> Clipping {
        let roundings = (self.objective.outputs() + self.features.columns() + 16) as f64;
        Clipping {
            bound: clipping.bound * (1.0 - roundings * (f64::EPSILON / 2.0)),
            ..clipping
        }
    }

    /// Adds the clipped gradients of the records to `target`, one after the other.
    fn add_clipped(
        &self,
        params: &[f64],
        records: &[i64],
        clipping: Clipping,
        target: &mut [f64],
        room: &mut Room,
    ) {
        let outputs = self.objective.outputs();
        let at_once = NUMBERS_AT_ONCE / self.features.cost().max(1) / SIDE * SIDE;
        let at_once = at_once.clamp(SIDE, RECORDS_AT_ONCE);
        let Room {
            rows,
            powers,
            slopes,
        } = room;
        let mut left = records;
        while !left.is_empty() {
            let records = &left[..at_once.min(left.len())];
            slopes.clear();
            slopes.resize(records.len() * outputs, 0.0);
            powers.resize(records.len(), 0.0);
            let decoded = self.features.decoded(records, rows);
            let places = &PLACES[..records.len()];
            match &decoded {
                Some(rows) => rows.scores_in_f64(places, params, slopes),
                None => self.features.scores_in_f64(records, params, slopes),
            }
            vectorized!({
                self.slopes(records, slopes);
                match &decoded {
                    Some(rows) => rows.sums_of_powers(places, clipping.norm, powers),
                    None => self.features.sums_of_powers(records, clipping.norm, powers),
                }
                let each = slopes.chunks_exact_mut(outputs).zip(&*powers);
                for ((slopes, &powers), &record) in each.zip(records) {
                    let of_slopes = sum_of_powers(slopes, clipping.norm);
                    if ORDINARY.contains(&powers) && ORDINARY.contains(&of_slopes) {
                        let length = clipping.norm.root(of_slopes) * clipping.norm.root(powers);
                        let factor = (clipping.bound / length).min(1.0);
                        for slope in slopes {
                            *slope = records_factor(*slope * factor);
                        }
                    } else {
                        self.clip_extreme(record as usize, slopes, clipping);
                    }
                }
            });
            match &decoded {
                Some(rows) => rows.add_scaled_in_f64(places, slopes, target),
                None => self.features.add_scaled_in_f64(left, slopes, target),
            }
            left = &left[records.len()..];
        }
    }

    /// Clips the slopes of a record of any numbers, by norms of numbers that are at most 1; 0 if they are not all finite.
    #[cold]
    #[inline(never)]
    fn clip_extreme(&self, record: usize, slopes: &mut [f64], clipping: Clipping) {
        let mut row = vec![F::Value::ZERO; self.features.columns()];
        self.features.write(record, &mut row);
        if !(is_finite(&row) && is_finite(slopes)) {
            slopes.fill(0.0);
            return;
        }
        let features: Vec<f64> = row.iter().map(|v| v.to_f64()).collect();
        let (largest_slope, of_slopes) = scaled_norm(slopes, clipping.norm);
        let (largest_feature, of_features) = scaled_norm(&features, clipping.norm);
        // Infinite for features close to 0, and too small for any factor beside those beyond all bounds.
        let most = clipping.bound / (of_slopes * of_features) / largest_feature;
        let length = largest_slope.min(most);
        for slope in slopes {
            *slope = if length > 0.0 {
                records_factor(*slope / largest_slope * length)
            } else {
                0.0
            };
        }
    }
}

/// The largest absolute value of a row, and the norm of the row divided by it; (0, 0) of a row of zeros.
fn scaled_norm(row: &[f64], kind: Norm) -> (f64, f64) {
    let largest = row.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
    if largest == 0.0 {
        return (0.0, 0.0);
    }
    let scaled: Vec<f64> = row.iter().map(|v| v / largest).collect();
    (largest, kind.root(sum_of_powers(&scaled, kind)))
}
