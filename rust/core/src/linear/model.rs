//! The work on one stack of nodes, shared among threads.

use super::batches::records_factor;
use super::scratch::Scratch;
use super::vectors::{add_all, scale_into};
use super::{Averaging, Batches, Clipping, Features, Objective};
use crate::error::{rows, same_len};
use crate::parallel::{
    BLOCK, for_each, for_each_group_or_within, for_each_row_with, is_serial, map, vectorized,
};
use crate::projection::{Norm, inlined_norm, norm};
use crate::{KernelError, Real};

/// Records that one task scores: their features stay in the second-level cache from the first outputs to the last.
pub(super) const RECORDS_PER_TASK: usize = 120;
/// Records of one partial gradient, unless a batch has more than [`MOST_BLOCKS`] times as many.
pub(super) const RECORDS_PER_BLOCK: usize = 256;
/// Largest number of partial gradients of one node: bounds their memory.
const MOST_BLOCKS: usize = 32;
/// Records whose features stay in the cache from their scores to their gradients.
const RECORDS_AT_ONCE: usize = 32;
/// Elements that take as long as what there is to do for any node, however short its parameters.
const NODE: usize = 32;

/// Features, and the objective of their records.
#[derive(Debug)]
pub struct LinearModel<'a, F> {
    pub(super) features: F,
    pub(super) objective: Objective<'a>,
    dim: usize,
}

impl<'a, F: Features> LinearModel<'a, F> {
    /// The model of these features and this objective.
    ///
    /// # Errors
    /// If there is not one label for each record, or there are less than two classes.
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
        let dim = outputs * features.columns();
        Ok(LinearModel {
            features,
            objective,
            dim,
        })
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
        let cost = self.cost(batches);
        for_each_group_or_within(out, self.dim, cost, |first, rows| {
            let mut scratch = Scratch::new();
            vectorized!(
                for (node, out) in (first..).zip(rows.chunks_exact_mut(self.dim)) {
                    let params = &params[node * self.dim..][..self.dim];
                    let batch = batches.of(node);
                    scale_into(params, averaging.regularization, out);
                    let weight = averaging.weight(batch);
                    if batch.len() <= RECORDS_PER_BLOCK {
                        self.add_gradients(params, batch, clipping, weight, out, &mut scratch);
                    } else {
                        let partial = self.partial_gradients(params, batch, clipping, weight);
                        add_all(&partial, out);
                    }
                }
            );
        });
        Ok(())
    }

    /// Each node's objective at its row of `params`.
    ///
    /// # Errors
    /// As [`gradient_into`](Self::gradient_into).
    pub fn losses_into(
        &self,
        params: &[F::Value],
        batches: Batches<'_>,
        averaging: Averaging,
        out: &mut [f64],
    ) -> Result<(), KernelError> {
        averaging.check()?;
        same_len("out", out.len(), batches.nodes())?;
        let mut losses = vec![0.0; batches.records().len()];
        self.record_losses_into(params, batches, &mut losses)?;
        let mut losses = losses.as_slice();
        for (node, (slot, params)) in out.iter_mut().zip(params.chunks(self.dim)).enumerate() {
            let batch = batches.of(node);
            let (own, others) = losses.split_at(batch.len());
            losses = others;
            *slot = own.iter().sum::<f64>() * averaging.weight(batch);
            if averaging.regularization > 0.0 {
                let length = norm(params, Norm::L2);
                *slot += 0.5 * averaging.regularization * length * length;
            }
        }
        Ok(())
    }

    /// The objective of each model of [`Objective::OneVsAll`] on its node's batch: a row of `out` for each
    /// node, an element for each class. They add up to what [`losses_into`](Self::losses_into) gives.
    ///
    /// # Errors
    /// As [`gradient_into`](Self::gradient_into), and for any other objective.
    pub fn class_losses_into(
        &self,
        params: &[F::Value],
        batches: Batches<'_>,
        averaging: Averaging,
        out: &mut [f64],
    ) -> Result<(), KernelError> {
        let Objective::OneVsAll { classes, .. } = self.objective else {
            let wanted = "one model for each class";
            return Err(KernelError::new("loss", wanted, "another objective"));
        };
        averaging.check()?;
        self.check(params, batches)?;
        same_len("out", out.len(), batches.nodes() * classes)?;
        let cost = self.cost(batches);
        for_each_row_with(out, classes, cost, Vec::new, |memory, node, out| {
            let params = &params[node * self.dim..][..self.dim];
            let batch = batches.of(node);
            out.fill(0.0);
            vectorized!(for records in batch.chunks(RECORDS_AT_ONCE) {
                self.for_each_scored(params, records, memory, |_, record, scores| {
                    let losses = self.objective.values(record, scores);
                    out.iter_mut().zip(losses).for_each(|(sum, v)| *sum += v);
                });
            });
            let models = params.chunks(self.features.columns());
            for (slot, model) in out.iter_mut().zip(models) {
                *slot *= averaging.weight(batch);
                if averaging.regularization > 0.0 {
                    *slot += 0.5 * averaging.regularization * norm(model, Norm::L2).powi(2);
                }
            }
        });
        Ok(())
    }

    /// Loss of each record of the batches, in their order, at the parameters of the batch's node.
    ///
    /// # Errors
    /// As [`gradient_into`](Self::gradient_into).
    pub fn record_losses_into(
        &self,
        params: &[F::Value],
        batches: Batches<'_>,
        mut out: &mut [f64],
    ) -> Result<(), KernelError> {
        self.check(params, batches)?;
        same_len("out", out.len(), batches.records().len())?;
        let mut tasks = Vec::with_capacity(batches.nodes());
        for node in 0..batches.nodes() {
            for records in batches.of(node).chunks(RECORDS_PER_TASK) {
                let (losses, rest) = out.split_at_mut(records.len());
                tasks.push((node, records, losses));
                out = rest;
            }
        }
        let work = |memory: &mut _, (node, records, losses): (usize, &[i64], &mut [f64])| {
            let params = &params[node * self.dim..][..self.dim];
            vectorized!(self.for_each_scored(
                params,
                records,
                memory,
                #[inline(always)]
                |i, record, scores| {
                    losses[i] = self.objective.value(record, scores);
                }
            ));
        };
        let cost = batches.records().len() * self.objective.outputs() * self.features.cost();
        for_each(tasks.into_iter(), is_serial(cost), Vec::new, work);
        Ok(())
    }

    /// How many of all records each row of `params` classifies correctly: by the sign of its score (0 counts
    /// as -1), or by the largest score (the first of equals).
    ///
    /// # Errors
    /// As [`gradient_into`](Self::gradient_into).
    pub fn count_correct_into(
        &self,
        params: &[F::Value],
        out: &mut [i64],
    ) -> Result<(), KernelError> {
        same_len("out", out.len(), rows("params", params.len(), self.dim)?)?;
        let records: Vec<i64> = (0..self.features.records() as i64).collect();
        self.check_records(&records)?;
        let serial = is_serial(records.len() * self.objective.outputs() * self.features.cost());
        for (slot, params) in out.iter_mut().zip(params.chunks(self.dim)) {
            let blocks = map(records.chunks(RECORDS_PER_TASK), serial, |records| {
                let mut right = 0;
                let mut memory = Vec::new();
                vectorized!(self.for_each_scored(
                    params,
                    records,
                    &mut memory,
                    #[inline(always)]
                    |_, record, scores| {
                        right += i64::from(self.objective.is_right(record, scores));
                    }
                ));
                right
            });
            *slot = blocks.iter().sum();
        }
        Ok(())
    }

    /// Sum of the records' losses at `params`.
    pub(super) fn sum_of_losses(&self, params: &[F::Value], records: &[i64]) -> f64 {
        let (mut sum, mut memory) = (0.0, Vec::new());
        vectorized!(self.for_each_scored(
            params,
            records,
            &mut memory,
            #[inline(always)]
            |_, record, scores| {
                sum += self.objective.value(record, scores);
            }
        ));
        sum
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

    /// What [`add_gradients`](Self::add_gradients) adds, in parts that depend on the data alone.
    #[inline(never)]
    pub(super) fn partial_gradients(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
    ) -> Vec<Vec<F::Value>> {
        let block = RECORDS_PER_BLOCK.max(records.len().div_ceil(MOST_BLOCKS));
        map(records.chunks(block), false, |records| {
            let (mut part, mut scratch) = (vec![F::Value::ZERO; self.dim], Scratch::new());
            vectorized!(self.add_gradients(
                params,
                records,
                clipping,
                weight,
                &mut part,
                &mut scratch
            ));
            part
        })
    }

    /// Derivatives of the records' losses in their scores, clipped, times `weight`.
    #[inline(always)]
    pub(super) fn factors<'s>(
        &self,
        params: &[F::Value],
        records: &[i64],
        clipping: Option<Clipping>,
        weight: f64,
        scratch: &'s mut Scratch<F::Value>,
    ) -> &'s [F::Value] {
        let Scratch { scores, factors } = scratch;
        scores.clear();
        scores.resize(records.len() * self.objective.outputs(), 0.0);
        self.features.scores(records, params, scores);
        self.slopes_in_place(records, scores, clipping, weight);
        factors.clear();
        factors.extend(scores.iter().map(|&s| records_factor::<F::Value>(s)));
        factors
    }

    /// Overwrites the scores of some records with the derivatives of their losses in them, clipped, times `weight`.
    #[inline(always)]
    pub(super) fn slopes_in_place(
        &self,
        records: &[i64],
        scores: &mut [f64],
        clipping: Option<Clipping>,
        weight: f64,
    ) {
        self.objective.slopes_in_place(records, scores);
        let each = scores.chunks_exact_mut(self.objective.outputs());
        for (slopes, &record) in each.zip(records) {
            let factor = self.factor(record, slopes, clipping, weight);
            for slope in slopes {
                *slope *= factor;
            }
        }
    }

    /// What the derivatives of a record's loss are multiplied with: `weight`, less if its gradient is clipped.
    #[inline(always)]
    pub(super) fn factor(
        &self,
        record: i64,
        slopes: &[f64],
        clipping: Option<Clipping>,
        weight: f64,
    ) -> f64 {
        clipping.map_or(weight, |clip| {
            let powers = self.features.sum_of_powers(record as usize, clip.norm);
            weight * clip.factor(inlined_norm(slopes, clip.norm) * clip.norm.root(powers))
        })
    }

    /// Calls `work(position, record, scores)` for each of the records; `memory` is for the scores.
    #[inline(always)]
    fn for_each_scored(
        &self,
        params: &[F::Value],
        records: &[i64],
        memory: &mut Vec<f64>,
        mut work: impl FnMut(usize, usize, &mut [f64]),
    ) {
        let outputs = self.objective.outputs();
        memory.clear();
        memory.resize(records.len() * outputs, 0.0);
        self.features.scores(records, params, memory);
        for (i, (&record, scores)) in records.iter().zip(memory.chunks_mut(outputs)).enumerate() {
            work(i, record as usize, scores);
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
                let wanted = format!("records from 0 to {}", count - 1);
                Err(KernelError::new("batches", wanted, record))
            }
        };
        let serial = is_serial(records.len() * self.features.cost());
        let blocks = map(records.chunks(BLOCK), serial, |block| {
            block.iter().try_for_each(check)
        });
        blocks.into_iter().collect()
    }
}
