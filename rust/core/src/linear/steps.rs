//! Gradient steps of a stack of nodes.

use std::sync::atomic::{AtomicBool, Ordering};

use super::model::RECORDS_PER_BLOCK;
use super::scratch::Scratch;
use super::vectors::{add_all, scale_in_place};
use super::{Averaging, Batches, Clipping, Features, LinearModel};
use crate::error::{non_negative, positive, same_len};
use crate::parallel::{for_each_group_or_within, vectorized};
use crate::projection::{Norm, clip, inlined_norm};
use crate::{KernelError, Real};

/// How far each node goes, and where it stays.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// One size for all nodes or one for each.
    pub sizes: &'a [f64],
    /// Of the ball around 0 onto which the parameters are projected after the step; `None` for no projection.
    pub radius: Option<f64>,
}

impl Step<'_> {
    fn check(&self, nodes: usize) -> Result<(), KernelError> {
        if self.sizes.len() != 1 {
            same_len("step_size", self.sizes.len(), nodes)?;
        }
        for &size in self.sizes {
            non_negative("step_size", size)?;
        }
        self.radius
            .map_or(Ok(()), |radius| positive("radius", radius))
    }

    #[inline(always)]
    fn size(&self, node: usize) -> f64 {
        self.sizes[if self.sizes.len() == 1 { 0 } else { node }]
    }
}

impl<F: Features> LinearModel<'_, F> {
    /// Moves each node's parameters by its step size against its gradient, which
    /// [`gradient_into`](Self::gradient_into) describes. Without regularization a step touches only the
    /// features that its batch holds.
    ///
    /// # Errors
    /// As [`gradient_into`](Self::gradient_into), if a setting of the step is out of range, and if parameters that are
    /// to be projected are not finite after the step.
    pub fn step_in_place(
        &self,
        params: &mut [F::Value],
        step: Step<'_>,
        batches: Batches<'_>,
        averaging: Averaging,
        clipping: Option<Clipping>,
    ) -> Result<(), KernelError> {
        self.check(params, batches)?;
        self.steps(None, step, batches, averaging, clipping, params)
    }

    /// As [`step_in_place`](Self::step_in_place), reading `params` and writing `out`.
    ///
    /// # Errors
    /// As [`step_in_place`](Self::step_in_place), and if `out` is not as long as `params`.
    pub fn step_into(
        &self,
        params: &[F::Value],
        step: Step<'_>,
        batches: Batches<'_>,
        averaging: Averaging,
        clipping: Option<Clipping>,
        out: &mut [F::Value],
    ) -> Result<(), KernelError> {
        self.check(params, batches)?;
        same_len("out", out.len(), params.len())?;
        self.steps(Some(params), step, batches, averaging, clipping, out)
    }

    /// Steps from `start`, or from where `params` are.
    fn steps(
        &self,
        start: Option<&[F::Value]>,
        step: Step<'_>,
        batches: Batches<'_>,
        averaging: Averaging,
        clipping: Option<Clipping>,
        params: &mut [F::Value],
    ) -> Result<(), KernelError> {
        averaging.check()?;
        clipping.as_ref().map_or(Ok(()), Clipping::check)?;
        step.check(batches.nodes())?;
        let cost = self.cost(batches);
        let all_finite = AtomicBool::new(true);
        for_each_group_or_within(params, self.dim(), cost, |first, rows| {
            let (mut scratch, mut finite) = (Scratch::new(), true);
            vectorized!(
                for (node, params) in (first..).zip(rows.chunks_exact_mut(self.dim())) {
                    if let Some(start) = start {
                        params.copy_from_slice(&start[node * self.dim()..][..self.dim()]);
                    }
                    let (size, batch) = (step.size(node), batches.of(node));
                    self.step_one(params, size, batch, averaging, clipping, &mut scratch);
                    if let Some(radius) = step.radius {
                        let length = inlined_norm(params, Norm::L2);
                        clip(params, length, radius);
                        finite &= length.is_finite();
                    }
                }
            );
            if !finite {
                all_finite.store(false, Ordering::Relaxed);
            }
        });
        if all_finite.into_inner() {
            return Ok(());
        }
        let wanted = "finite values after the step, to project";
        Err(KernelError::new("params", wanted, "NaN or infinity"))
    }

    /// Moves one node's parameters by a step on its batch.
    #[inline(always)]
    pub(super) fn step_one(
        &self,
        params: &mut [F::Value],
        step_size: f64,
        batch: &[i64],
        averaging: Averaging,
        clipping: Option<Clipping>,
        scratch: &mut Scratch<F::Value>,
    ) {
        let weight = -step_size * averaging.weight(batch);
        let decay = 1.0 - step_size * averaging.regularization;
        if let (&[record], 1) = (batch, self.objective.outputs()) {
            let mut slope = [self.features.score(record as usize, params)];
            self.slopes_in_place(batch, &mut slope, clipping, weight);
            scale_in_place(params, decay);
            let factor = F::Value::from_f64(slope[0]);
            self.features.add(record as usize, factor, params);
        } else if batch.len() <= RECORDS_PER_BLOCK {
            let factors = self.factors(params, batch, clipping, weight, scratch);
            scale_in_place(params, decay);
            self.features.add_scaled(batch, factors, params);
        } else {
            let partial = self.partial_gradients(params, batch, clipping, weight);
            scale_in_place(params, decay);
            add_all(&partial, params);
        }
    }
}
