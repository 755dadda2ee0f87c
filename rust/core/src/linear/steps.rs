//! Gradient steps of a stack of nodes.

use std::slice::{from_mut, from_ref};
use std::sync::atomic::{AtomicBool, Ordering};

use super::batches::records_factor;
use super::model::{RECORDS_PER_BLOCK, is_exact};
use super::scratch::Scratch;
use super::vectors::{add_all, scale_in_place};
use super::{Averaging, Batches, Clipping, Features, LinearModel};
use crate::error::{non_negative, same_len};
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, Cut, share};
use crate::projection::{Norm, check_bound, clip, inlined_norm, is_finite, norm, sum_of_powers};
use crate::{ErrorKind, KernelError, Real};

/// Nodes with short parameters that step side by side: while the sums of one wait for each other, the next ones
/// proceed.
const SIDE_BY_SIDE: usize = 32;

/// How far each node goes, and the ball that it stays in.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub(super) sizes: &'a [f64],
    pub(super) radius: Option<f64>,
}

impl<'a> Step<'a> {
    /// A step of one size for all nodes or one for each, without projection.
    pub const fn new(sizes: &'a [f64]) -> Step<'a> {
        Step {
            sizes,
            radius: None,
        }
    }

    /// The same step, after which the parameters are projected onto the ball of this radius around 0; `None` for no
    /// projection.
    #[must_use]
    pub fn within(self, radius: impl Into<Option<f64>>) -> Step<'a> {
        Step {
            radius: radius.into(),
            ..self
        }
    }

    fn check(&self, nodes: usize) -> Result<(), KernelError> {
        if self.sizes.len() != 1 {
            same_len("step_size", self.sizes.len(), nodes)?;
        }
        for &size in self.sizes {
            non_negative("step_size", size)?;
        }
        self.radius
            .map_or(Ok(()), |radius| check_bound("radius", radius))
    }

    #[inline(always)]
    fn size(&self, node: usize) -> f64 {
        self.sizes[if self.sizes.len() == 1 { 0 } else { node }]
    }
}

impl<F: Features> LinearModel<'_, F> {
    /// Moves each node's parameters against its gradient, that of [`gradient_into`](Self::gradient_into), times its
    /// step size. Without regularization a step touches only the features that its batch holds.
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

    /// Writes `params`, a step from `start` or, without it, from `params` themselves.
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
        let (dim, outputs) = (self.dim(), self.objective.outputs());
        let cost = self.cost(batches);
        let together = (BLOCK / dim).clamp(1, SIDE_BY_SIDE) * dim;
        let all_finite = AtomicBool::new(true);
        let nodes = Cut::RowsOrWithin { dim, cost };
        share(params, nodes, Scratch::new, |scratch, place, rows| {
            let mut finite = true;
            vectorized!(for (i, rows) in rows.chunks_mut(together).enumerate() {
                let first = place.row + i * together / dim;
                if let Some(start) = start {
                    rows.copy_from_slice(&start[first * dim..][..rows.len()]);
                }
                let singles = batches.singles(first, rows.len() / dim);
                if let (Some(records), &[size], 1) = (singles, step.sizes, outputs) {
                    self.step_on_singles(rows, size, records, averaging, clipping);
                } else {
                    for (node, params) in (first..).zip(rows.chunks_exact_mut(dim)) {
                        let (size, batch) = (step.size(node), batches.of(node));
                        self.step_one(params, size, batch, averaging, clipping, scratch);
                    }
                }
                if let Some(radius) = step.radius {
                    finite &= project_rows(rows, dim, radius);
                }
            });
            if !finite {
                all_finite.store(false, Ordering::Relaxed);
            }
        });
        if all_finite.into_inner() {
            return Ok(());
        }
        let wanted = "finite values after the step, to project";
        Err(KernelError::new("params", wanted, "NaN or infinity").of_kind(ErrorKind::NotFinite))
    }

    /// Moves one node's parameters by a step on its batch.
    ///
    /// In `f32` gradients are added up on their own, and once onto the parameters: each addition to these would be
    /// rounded as they are.
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
        let decay = averaging.decay(step_size);
        if let (&[_], 1) = (batch, self.objective.outputs()) {
            self.step_on_singles(params, step_size, batch, averaging, clipping);
        } else if batch.len() > RECORDS_PER_BLOCK {
            let partial = self.partial_gradients(params, batch, clipping, weight);
            scale_in_place(params, decay);
            add_all(&partial, params);
        } else if batch.len() <= 1 || is_exact::<F::Value>() {
            let factors = self.factors(params, batch, clipping, weight, scratch);
            self.features.add_scaled(batch, factors, decay, params);
        } else {
            let sum = self.sum_of_gradients(params, batch, clipping, weight, scratch);
            let decay = F::Value::from_f64(decay);
            for (param, &sum) in params.iter_mut().zip(sum) {
                *param = *param * decay + sum;
            }
        }
    }

    /// Moves a few nodes with one output, each by a step on a single record of its own.
    #[inline(always)]
    fn step_on_singles(
        &self,
        params: &mut [F::Value],
        step_size: f64,
        records: &[i64],
        averaging: Averaging,
        clipping: Option<Clipping>,
    ) {
        let mut slopes = [0.0; SIDE_BY_SIDE];
        let slopes = &mut slopes[..records.len()];
        let rows = params.chunks_exact(self.dim());
        for (slope, (&record, params)) in slopes.iter_mut().zip(records.iter().zip(rows)) {
            *slope = self.features.score(record as usize, params);
        }
        self.slopes(records, slopes);
        let mut powers = [0.0; SIDE_BY_SIDE];
        if let Some(clip) = clipping {
            for (powers, &record) in powers.iter_mut().zip(records) {
                *powers = self.features.sum_of_powers(record as usize, clip.norm);
            }
        }
        let weight = -step_size * averaging.weight(&records[..1]);
        for (slope, powers) in slopes.iter_mut().zip(powers) {
            *slope *= clipping.map_or(weight, |clip| {
                let length = inlined_norm(from_ref(slope), clip.norm);
                weight * clip.factor(length * clip.norm.root(powers))
            });
        }
        if let Some(clip) = clipping
            && !is_finite(slopes)
        {
            let rows = params.chunks_exact(self.dim());
            for (slope, (&record, params)) in slopes.iter_mut().zip(records.iter().zip(rows)) {
                if !slope.is_finite() {
                    self.clip_large(params, record, from_mut(slope), clip, weight);
                }
            }
        }
        scale_in_place(params, averaging.decay(step_size));
        let rows = params.chunks_exact_mut(self.dim());
        for (&slope, (&record, params)) in slopes.iter().zip(records.iter().zip(rows)) {
            let factor = records_factor(slope);
            self.features.add(record as usize, factor, params);
        }
    }
}

/// Projects each of a few rows onto the ball of this radius; returns whether all were finite.
#[inline(always)]
fn project_rows<T: Real>(rows: &mut [T], dim: usize, radius: f64) -> bool {
    let mut norms = [0.0; SIDE_BY_SIDE];
    for (powers, row) in norms.iter_mut().zip(rows.chunks_exact(dim)) {
        *powers = sum_of_powers(row, Norm::L2);
    }
    for norm in &mut norms {
        *norm = Norm::L2.root(*norm);
    }
    if !norms.iter().all(|norm| norm.is_finite()) {
        return project_large_rows(rows, dim, radius);
    }
    for (row, norm) in rows.chunks_exact_mut(dim).zip(norms) {
        clip(row, Norm::L2, norm, radius);
    }
    true
}

/// As [`project_rows`], where a sum of squares is not finite.
#[cold]
#[inline(never)]
fn project_large_rows<T: Real>(rows: &mut [T], dim: usize, radius: f64) -> bool {
    let mut all_finite = true;
    for row in rows.chunks_exact_mut(dim) {
        all_finite &= is_finite(row);
        clip(row, Norm::L2, norm(row, Norm::L2), radius);
    }
    all_finite
}
