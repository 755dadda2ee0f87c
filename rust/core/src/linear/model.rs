//! A linear model: its gradients, for one stack of nodes, shared among threads.

use std::mem::take;

use super::batches::records_factor;
use super::scratch::Scratch;
use super::vectors::{add_all, scale_into};
use super::{Averaging, Batches, Clipping, Features, MOST_LABELS, Objective};
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, is_serial, map, share};
use crate::projection::{inlined_norm, is_finite, norm};
use crate::{ErrorKind, KernelError, Real};

/// Records of one partial gradient, unless a batch has more than [`MOST_BLOCKS`] times as many.
pub(super) const RECORDS_PER_BLOCK: usize = 256;
/// Largest number of partial gradients of one node: bounds their memory.
pub(super) const MOST_BLOCKS: usize = 32;
/// Records whose features stay in the cache from their scores to their gradients.
pub(super) const RECORDS_AT_ONCE: usize = 32;
/// The fixed cost of a node, in elements of its parameters.
const NODE: usize = 32;

/// Whether sums in this type are as exact as in `f64`.
pub(super) fn is_exact<T>() -> bool {
    size_of::<T>() == size_of::<f64>()
}

/// Features, and the objective of their records.
#[derive(Debug)]
pub struct LinearModel<'a, F> {
    pub(super) features: F,
    pub(super) objective: Objective<'a>,
    weights: Option<&'a [f64]>,
    pub(super) dim: usize,
}

impl<'a, F: Features> LinearModel<'a, F> {
    /// The model of these features and this objective.
    ///
    /// # Errors
    /// If there is not one label for each record, there are less than two classes, or more than
    /// [`MOST_LABELS`] labels.
    pub fn new(features: F, objective: Objective<'a>) -> Result<Self, KernelError> {
        let (records, labels) = (features.records(), objective.records());
        if records != labels {
            let wanted = format!("{records} labels, one for each record");
            return Err(KernelError::new("labels", wanted, labels));
        }
        let outputs = objective.outputs();
        if outputs < 2 && !matches!(objective, Objective::Single { .. }) {
            return Err(KernelError::new("classes", "at least 2", outputs));
        }
        if outputs > MOST_LABELS && matches!(objective, Objective::Labels { .. }) {
            let wanted = format!("at most {MOST_LABELS} labels");
            return Err(KernelError::new("classes", wanted, outputs));
        }
        let dim = outputs.saturating_mul(features.columns()); // too much for any parameters
        Ok(LinearModel {
            features,
            objective,
            weights: None,
            dim,
        })
    }

    /// The model whose records' losses are multiplied by these weights, one for each record. Bounds on gradients hold for
    /// weights from 0 to 1.
    ///
    /// # Errors
    /// If there is not one for each record.
    pub fn weighted(mut self, weights: &'a [f64]) -> Result<Self, KernelError> {
        same_len("weights", weights.len(), self.features.records())?;
        self.weights = Some(weights);
        Ok(self)
    }

    /// Length of the parameters of one node: outputs times features.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Gradient of each node's objective at its row of `params`.
    ///
    /// # Errors
    /// If the shapes of the arguments do not fit each other, a batch names a record that does not exist,
    /// a record's label does not fit the loss, or a setting is out of range.
    pub fn gradient_into(
        &self,
        params: &[F::Value],
        batches: Batches<'_>,
        averaging: Averaging,
        clipping: Option<Clipping>,
        out: &mut [F::Value],
    ) -> Result<(), KernelError> {
        averaging.check()?;
        clipping.as_ref().map_or(Ok(()), Clipping::check)?;
        self.check(params, batches)?;
        same_len("out", out.len(), params.len())?;
        let (dim, cost) = (self.dim, self.cost(batches));
        let nodes = Cut::RowsOrWithin { dim, cost };
        share(out, nodes, Scratch::new, |scratch, first, rows| {
            vectorized!(
                for (node, out) in (first.row..).zip(rows.chunks_exact_mut(self.dim)) {
                    let params = &params[node * self.dim..][..self.dim];
                    let batch = batches.of(node);
                    scale_into(params, averaging.regularization, out);
                    let weight = averaging.weight(batch);
                    if batch.len() > RECORDS_PER_BLOCK {
                        let partial = self.partial_gradients(params, batch, clipping, weight);
                        add_all(&partial, out);
                    } else if batch.len() <= 1
                        || is_exact::<F::Value>()
                        || averaging.regularization == 0.0
                    {
                        self.add_gradients(params, batch, clipping, weight, out, scratch);
                    } else {
                        let sum = self.sum_of_gradients(params, batch, clipping, weight, scratch);
                        out.iter_mut().zip(sum).for_each(|(out, &sum)| *out += sum);
                    }
                }
            );
        });
        Ok(())
    }

    /// Adds `weight` times the clipped gradients of the records to `target`.
    #[inline(always)]
    fn add_gradients(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
        target: &mut [F::Value],
        scratch: &mut Scratch<F::Value>,
    ) {
        for records in records.chunks(RECORDS_AT_ONCE) {
            let factors = self.factors(params, records, clipping, weight, scratch);
            self.features.add_scaled(records, factors, 1.0, target);
        }
    }

    /// What [`add_gradients`](Self::add_gradients) adds, on its own.
    #[inline(always)]
    pub(super) fn sum_of_gradients<'s>(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
        scratch: &'s mut Scratch<F::Value>,
    ) -> &'s [F::Value] {
        let mut sum = take(&mut scratch.sum);
        sum.clear();
        sum.resize(self.dim, F::Value::ZERO);
        self.add_gradients(params, records, clipping, weight, &mut sum, scratch);
        scratch.sum = sum;
        &scratch.sum
    }

    /// What [`add_gradients`](Self::add_gradients) adds, as a sum of parts; how they are cut depends on the data alone.
    ///
    /// At most [`RECORDS_PER_BLOCK`] gradients in a row are added up in float32, the rest in float64: in place of one
    /// record, another then moves the sum by its own gradient, up to 0.2% (docs/privacy/pitfalls.md).
    #[inline(never)]
    pub(super) fn partial_gradients(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
    ) -> Vec<Vec<f64>> {
        let block = RECORDS_PER_BLOCK.max(records.len().div_ceil(MOST_BLOCKS));
        let at_once = if is_exact::<F::Value>() {
            block
        } else {
            RECORDS_PER_BLOCK
        };
        map(records.chunks(block), false, |records| {
            let mut sum = vec![0.0; self.dim];
            let (mut part, mut scratch) = (vec![F::Value::ZERO; self.dim], Scratch::new());
            for records in records.chunks(at_once) {
                part.fill(F::Value::ZERO);
                vectorized!({
                    self.add_gradients(params, records, clipping, weight, &mut part, &mut scratch);
                    for (sum, part) in sum.iter_mut().zip(&part) {
                        *sum += part.to_f64();
                    }
                });
            }
            sum
        })
    }

    /// Derivatives of the records' losses with respect to their scores, clipped, times `weight`.
    #[inline(always)]
    pub(super) fn factors<'s>(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
        scratch: &'s mut Scratch<F::Value>,
    ) -> &'s [F::Value] {
        let Scratch {
            scores, factors, ..
        } = scratch;
        scores.clear();
        scores.resize(records.len() * self.objective.outputs(), 0.0);
        self.features.scores(records, params, scores);
        self.slopes_in_place(params, records, scores, clipping, weight);
        factors.clear();
        factors.extend(scores.iter().map(|&s| records_factor::<F::Value>(s)));
        factors
    }

    /// Overwrites the scores of some records with the derivatives of their weighted losses.
    #[inline(always)]
    pub(super) fn slopes(&self, records: &[i64], scores: &mut [f64]) {
        self.objective.slopes_in_place(records, scores);
        if let Some(weights) = self.weights {
            let each = scores.chunks_exact_mut(self.objective.outputs());
            for (slopes, &record) in each.zip(records) {
                let weight = weights[record as usize];
                for slope in slopes.iter_mut() {
                    *slope *= weight;
                }
            }
        }
    }

    /// The weight of a record's loss.
    #[inline(always)]
    pub(super) fn weight(&self, record: usize) -> f64 {
        self.weights.map_or(1.0, |weights| weights[record])
    }

    /// Overwrites the scores of some records with the derivatives of their losses, clipped, times `weight`.
    #[inline(always)]
    pub(super) fn slopes_in_place(
        &self,
        params: &[F::Value],
        batch: &[i64],
        scores: &mut [f64],
        clipping: Option<Clipping>,
        weight: f64,
    ) {
        self.slopes(batch, scores);
        let outputs = self.objective.outputs();
        let groups = batch.chunks(RECORDS_AT_ONCE);
        for (records, slopes) in groups.zip(scores.chunks_mut(RECORDS_AT_ONCE * outputs)) {
            let Some(clip) = clipping else {
                for slope in slopes {
                    *slope *= weight;
                }
                continue;
            };
            let mut powers = [0.0; RECORDS_AT_ONCE];
            let powers = &mut powers[..records.len()];
            self.features.sums_of_powers(records, clip.norm, powers);
            for (slopes, powers) in slopes.chunks_exact_mut(outputs).zip(powers) {
                let length = inlined_norm(slopes, clip.norm) * clip.norm.root(*powers);
                let factor = weight * clip.factor(length);
                for slope in slopes {
                    *slope *= factor;
                }
            }
        }
        if let Some(clip) = clipping
            && !is_finite(scores)
        {
            let each = scores.chunks_exact_mut(self.objective.outputs());
            for (slopes, &record) in each.zip(batch) {
                if !is_finite(slopes) {
                    self.clip_large(params, record, slopes, clip, weight);
                }
            }
        }
    }

    /// Writes the clipped slopes of a record of any finite size, times `weight`: those of a record whose gradient is
    /// beyond `f64` are scaled first, and one whose scores are has none. So a single record neither ends a run nor makes
    /// it NaN; parameters that are not finite do.
    #[cold]
    #[inline(never)]
    pub(super) fn clip_large(
        &self,
        params: &[F::Value],
        record: i64,
        slopes: &mut [f64],
        clip: Clipping,
        weight: f64,
    ) {
        if !is_finite(params) {
            slopes.fill(f64::NAN);
            return;
        }
        for (slope, params) in slopes
            .iter_mut()
            .zip(params.chunks(self.features.columns()))
        {
            *slope = self.features.score(record as usize, params);
        }
        self.slopes(&[record], slopes);
        let mut row = vec![F::Value::ZERO; self.features.columns()];
        self.features.write(record as usize, &mut row);
        let (of_slopes, of_row) = (norm(slopes, clip.norm), norm(&row, clip.norm));
        if !(of_slopes < f64::INFINITY && is_finite(&row)) {
            slopes.fill(0.0);
            return;
        }
        let bound = if of_row < f64::INFINITY {
            clip.bound / of_row
        } else {
            0.0 // of more than 10^308 in all: what is left of it is less than 10^-308
        };
        let factor = if of_slopes > bound {
            bound / of_slopes
        } else {
            1.0
        };
        for slope in slopes {
            *slope *= weight * factor;
        }
    }

    /// About how many elements the work for one node touches.
    pub(super) fn cost(&self, batches: Batches<'_>) -> usize {
        let records = batches.records().len() / batches.nodes().max(1);
        NODE + self.dim + records * self.objective.outputs() * self.features.cost()
    }

    /// Fails unless the parameters, the batches and the records that they name fit the model.
    pub(super) fn check(
        &self,
        params: &[F::Value],
        batches: Batches<'_>,
    ) -> Result<(), KernelError> {
        let nodes = rows("params", params.len(), self.dim)?;
        if nodes != batches.nodes() {
            let wanted = format!("one batch for each of {nodes} nodes");
            return Err(KernelError::new("batches", wanted, batches.nodes()));
        }
        self.check_records(batches.records())
    }

    pub(super) fn check_records(&self, records: &[i64]) -> Result<(), KernelError> {
        let count = self.features.records();
        let check = |&record: &i64| {
            if 0 <= record && (record as usize) < count {
                self.features.check(record as usize)?;
                self.objective.check(record as usize)
            } else {
                let wanted = format!("records from 0 to {}", count as i64 - 1);
                Err(KernelError::new("batches", wanted, record).of_kind(ErrorKind::Index))
            }
        };
        let serial = is_serial(records.len() * self.features.cost());
        let blocks = map(records.chunks(BLOCK), serial, |block| {
            block.iter().try_for_each(check)
        });
        blocks.into_iter().collect()
    }
}
