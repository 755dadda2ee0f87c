//! Evaluation of a linear model: losses and right answers, for one stack of nodes, shared among threads.

use super::model::RECORDS_AT_ONCE;
use super::scratch::on_lines;
use super::{Averaging, Batches, Features, LinearModel, Objective};
use crate::KernelError;
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{for_each, is_serial, map, share_rows};
use crate::projection::{Norm, norm};

/// Records that one task scores: their features stay in the L2 cache from the first outputs to the last.
pub(super) const RECORDS_PER_TASK: usize = 120;

impl<F: Features> LinearModel<'_, F> {
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

    /// The objective of each model of [`Objective::OneVsAll`] or [`Objective::Labels`] on its node's batch: a row of
    /// `out` for each node, an element for each class. They add up to what [`losses_into`](Self::losses_into) gives.
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
        let (Objective::OneVsAll { classes, .. } | Objective::Labels { classes, .. }) =
            self.objective
        else {
            let wanted = "one model for each class";
            return Err(KernelError::new("loss", wanted, "another objective"));
        };
        averaging.check()?;
        self.check(params, batches)?;
        same_len("out", out.len(), batches.nodes() * classes)?;
        let cost = self.cost(batches);
        share_rows(out, classes, cost, Vec::new, |memory, node, out| {
            let params = &params[node * self.dim..][..self.dim];
            let batch = batches.of(node);
            out.fill(0.0);
            vectorized!(for records in batch.chunks(RECORDS_AT_ONCE) {
                self.for_each_scored(params, records, memory, |_, record, scores| {
                    let losses = self.objective.values(record, scores);
                    let weight = self.weight(record);
                    out.iter_mut()
                        .zip(losses)
                        .for_each(|(sum, v)| *sum += weight * v);
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
                    losses[i] = self.weight(record) * self.objective.value(record, scores);
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
        let mut room = Vec::new();
        for (slot, params) in out.iter_mut().zip(params.chunks(self.dim)) {
            let params = on_lines(params, &mut room);
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
                sum += self.weight(record) * self.objective.value(record, scores);
            }
        ));
        sum
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
}
