//! Local training: each node takes its own sequence of gradient steps away from one common model, within a
//! ball around it.
//!
//! ```text
//! w <- w_0 + clip(w - step_size * gradient(w) - w_0, radius)        for each batch of the node's walk
//! ```
//!
//! Two forms give the same moves up to rounding. [`Form::Direct`] updates the parameters. [`Form::Span`] uses that a
//! move never leaves the span of `w_0` and of the node's records, `w - w_0 = b W_0 + C^T X`: with the Gram matrix
//! `X X^T` of these records, the cost of a step depends on their number but not on their length.

use super::scratch::{Scratch, on_lines};
use super::vectors::{distance, scale_in_place, scale_into};
use super::{Averaging, Batches, Dense, Features, LinearModel};
use crate::error::{non_negative, same_len};
use crate::instructions::vectorized;
use crate::parallel::{BLOCK, for_each, is_serial};
use crate::projection::{Norm, all_finite, check_bound, clip_rows_in_place, norm};
use crate::{KernelError, Real};
use dpmesh_threads::pause;

/// Largest number of records whose Gram matrix a thread holds.
const MOST_RECORDS_IN_SPAN: usize = 1024;
/// Rows of a Gram matrix are padded to a multiple of this many elements, so that loops have no remainder. That is
/// several vectors, so that additions need not wait for each other.
const PADDING: usize = 32;
/// Rows of a Gram matrix that are computed together.
const ROWS_AT_ONCE: usize = 5;

/// The mini-batches of all nodes in the order of their steps: node `i` takes the steps
/// `steps[i]..steps[i + 1]`, one for each of these batches.
#[derive(Debug, Clone, Copy)]
pub struct Walks<'a> {
    steps: &'a [i64],
    batches: Batches<'a>,
}

impl<'a> Walks<'a> {
    /// The walks with these parts.
    ///
    /// # Errors
    /// If `steps` does not rise from 0 to the number of batches.
    pub fn new(steps: &'a [i64], batches: Batches<'a>) -> Result<Walks<'a>, KernelError> {
        let ends = (steps.first(), steps.last());
        if ends == (Some(&0), Some(&(batches.nodes() as i64))) && steps.is_sorted() {
            Ok(Walks { steps, batches })
        } else {
            let wanted = format!("steps that rise from 0 to {}", batches.nodes());
            Err(KernelError::new("walks", wanted, "ones that do not"))
        }
    }

    fn nodes(&self) -> usize {
        self.steps.len() - 1
    }

    /// The batches of one node.
    fn of(&self, node: usize) -> impl Iterator<Item = &'a [i64]> + Clone + use<'a> {
        let batches = self.batches;
        let steps = self.steps[node] as usize..self.steps[node + 1] as usize;
        steps.map(move |step| batches.of(step))
    }
}

/// How a node's steps are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// By updates of the parameters.
    Direct,
    /// In the span of the node's records.
    Span,
}

/// The constants of local training.
#[derive(Debug, Clone, Copy)]
pub struct Training {
    pub(super) step_size: f64,
    pub(super) radius: f64,
    pub(super) averaging: Averaging,
    pub(super) form: Option<Form>,
}

impl Training {
    /// Steps of one size on the mean loss of each batch, none of which leaves the ball of this L2 radius around the
    /// common model. Each node takes the form of fewer operations.
    pub fn new(step_size: f64, radius: f64) -> Training {
        Training {
            step_size,
            radius,
            averaging: Averaging::default(),
            form: None,
        }
    }

    /// The same training on losses that become an objective in this way.
    #[must_use]
    pub fn with_averaging(self, averaging: Averaging) -> Training {
        Training { averaging, ..self }
    }

    /// The same training in this form; `None` for the one of fewer operations, node by node.
    #[must_use]
    pub fn with_form(self, form: impl Into<Option<Form>>) -> Training {
        Training {
            form: form.into(),
            ..self
        }
    }
}

impl<F: Features> LinearModel<'_, F> {
    /// Trains each node on its walk from the common model `start`: its move goes to its row of `moves`, its
    /// objective on its first batch at `start` to `losses` (NaN for a node without steps).
    ///
    /// # Errors
    /// If the shapes of the arguments do not fit each other, a batch names a record that does not exist, a
    /// record's label does not fit the loss, or a setting is out of range.
    pub fn train_into(
        &self,
        start: &[F::Value],
        walks: Walks<'_>,
        training: Training,
        moves: &mut [F::Value],
        losses: &mut [f64],
    ) -> Result<(), KernelError> {
        non_negative("step_size", training.step_size)?;
        check_bound("radius", training.radius)?;
        training.averaging.check()?;
        same_len("start", start.len(), self.dim())?;
        same_len("moves", moves.len(), walks.nodes() * self.dim())?;
        same_len("losses", losses.len(), walks.nodes())?;
        self.check_records(walks.batches.records())?;
        let mut room = Vec::new();
        let start = on_lines(start, &mut room);
        let start_square = norm(start, Norm::L2).powi(2);
        let penalty = 0.5 * training.averaging.regularization * start_square;
        let work = |(): &mut (), (node, (out, loss)): (usize, (&mut [F::Value], &mut f64))| {
            let batches = walks.of(node);
            *loss = batches.clone().next().map_or(f64::NAN, |first| {
                self.sum_of_losses(start, first) * training.averaging.weight(first) + penalty
            });
            if let Some(own) = self.span(training.form, batches.clone()) {
                self.walk_in_span(start, start_square, &own, batches.clone(), training, out);
                if all_finite(out) {
                    return;
                }
            }
            self.walk(start, batches, training, out);
        };
        let cost = walks.batches.records().len() * self.objective.outputs() * self.features.cost();
        let all = moves.chunks_mut(self.dim()).zip(losses).enumerate();
        for_each(all, is_serial(cost), || (), work);
        Ok(())
    }

    /// The records of a node, if it is to be trained in their span.
    fn span<'b>(
        &self,
        form: Option<Form>,
        batches: impl Iterator<Item = &'b [i64]> + Clone,
    ) -> Option<Vec<i64>> {
        if form == Some(Form::Direct) {
            return None;
        }
        let own = distinct(batches.clone());
        let uses = batches.map(<[i64]>::len).sum();
        let form = form.unwrap_or_else(|| self.cheaper(own.len(), uses));
        (form == Form::Span && !own.is_empty()).then_some(own)
    }

    /// The form with fewer products of elements, for a node whose records are used `uses` times in all.
    fn cheaper(&self, records: usize, uses: usize) -> Form {
        let outputs = self.objective.outputs();
        let in_span = records * (records / 2 + 2 * outputs);
        if records <= MOST_RECORDS_IN_SPAN && in_span < 2 * uses * outputs {
            Form::Span
        } else {
            Form::Direct
        }
    }

    fn walk<'b>(
        &self,
        start: &[F::Value],
        batches: impl Iterator<Item = &'b [i64]>,
        training: Training,
        out: &mut [F::Value],
    ) {
        let averaging = training.averaging;
        let mut scratch = Scratch::new();
        out.copy_from_slice(start);
        for batch in batches {
            pause();
            let step = training.step_size;
            vectorized!(self.step_one(out, step, batch, averaging, None, &mut scratch));
            let length = distance(out, start);
            if !length.is_finite() {
                pull_far(out, start, training.radius);
            } else if length > training.radius {
                let factor = F::Value::from_f64(training.radius / length);
                vectorized!(pull(out, start, factor));
            }
        }
        vectorized!(for (w, &start) in out.iter_mut().zip(start) {
            *w -= start;
        });
    }

    /// Instead of the parameters `W = (1 + b) W_0 + C^T X` it keeps `b`, `C` and the scores `Z = C^T X X^T`.
    fn walk_in_span<'b>(
        &self,
        start: &[F::Value],
        start_square: f64,
        own: &[i64],
        batches: impl Iterator<Item = &'b [i64]>,
        training: Training,
        out: &mut [F::Value],
    ) {
        let (n, outputs) = (own.len(), self.objective.outputs());
        let width = n.next_multiple_of(PADDING);
        let (eta, averaging) = (training.step_size, training.averaging);
        let decay = 1.0 - eta * averaging.regularization;
        let gram = self.gram(own, width);
        let mut scores = vec![0.0; n * outputs];
        self.features.scores(own, start, &mut scores);

        // A row for each output.
        let mut start_scores = vec![0.0; outputs * width];
        for (i, scores) in scores.chunks(outputs).enumerate() {
            for (k, &score) in scores.iter().enumerate() {
                start_scores[k * width + i] = score;
            }
        }
        let mut b = 0.0;
        let mut c = vec![F::Value::ZERO; outputs * width];
        let mut z = vec![F::Value::ZERO; outputs * width];
        let (mut places, mut factors) = (Vec::new(), Vec::new());
        for batch in batches {
            pause();
            let weight = -eta * averaging.weight(batch);
            places.clear();
            places.extend(batch.iter().map(|&record| place(own, record)));
            scores.clear();
            scores.resize(places.len() * outputs, 0.0);
            let rows = start_scores.chunks(width).zip(z.chunks(width));
            for (k, (start_scores, z)) in rows.enumerate() {
                for (score, &i) in each(outputs, k, &mut scores).zip(&places) {
                    *score = (1.0 + b) * start_scores[i as usize] + z[i as usize].to_f64();
                }
            }
            vectorized!(self.slopes(batch, &mut scores));
            factors.clear();
            factors.extend(scores.iter().map(|s| F::Value::from_f64(weight * s)));
            b = decay * b - eta * averaging.regularization;
            vectorized!(scale_in_place(&mut c, decay));
            for (k, c) in c.chunks_mut(width).enumerate() {
                for (&mut factor, &i) in each(outputs, k, &mut factors).zip(&places) {
                    c[i as usize] += factor;
                }
            }
            Dense::of(&gram, width).add_scaled(&places, &factors, decay, &mut z);

            let square = sum(vectorized!(products(&c, &z))); // |C^T X|^2
            let product = sum(vectorized!(products(&c, &start_scores))); // <C^T X, W_0>
            let length = (square + b * (2.0 * product + b * start_square))
                .max(0.0)
                .sqrt();
            if length > training.radius {
                let factor = training.radius / length;
                b *= factor;
                vectorized!(scale_in_place(&mut c, factor));
                vectorized!(scale_in_place(&mut z, factor));
            }
        }
        vectorized!(scale_into(start, b, out));
        let mut of_records = vec![F::Value::ZERO; n * outputs];
        for (k, c) in c.chunks(width).enumerate() {
            each(outputs, k, &mut of_records)
                .zip(c)
                .for_each(|(slot, &c)| *slot = c);
        }
        self.features.add_scaled(own, &of_records, 1.0, out);
    }

    /// Inner products of all pairs of these records, in rows of `width` elements.
    fn gram(&self, records: &[i64], width: usize) -> Vec<F::Value> {
        let (n, columns) = (records.len(), self.features.columns());
        let mut gram = vec![F::Value::ZERO; n * width];
        let mut rows = vec![F::Value::ZERO; ROWS_AT_ONCE * columns];
        let mut products = vec![0.0; n * ROWS_AT_ONCE];
        for first in (0..n).step_by(ROWS_AT_ONCE) {
            pause();
            let others = &records[first..];
            let some = &others[..ROWS_AT_ONCE.min(others.len())];
            let rows = &mut rows[..some.len() * columns];
            for (&record, row) in some.iter().zip(rows.chunks_mut(columns)) {
                self.features.write(record as usize, row);
            }
            let products = &mut products[..others.len() * some.len()];
            self.features.scores(others, rows, products);
            for (j, products) in (first..n).zip(products.chunks(some.len())) {
                for (i, &product) in (first..n).zip(products) {
                    let product = F::Value::from_f64(product);
                    gram[i * width + j] = product;
                    gram[j * width + i] = product;
                }
            }
        }
        gram
    }
}

/// The records of all batches, ascending, each once.
fn distinct<'b>(batches: impl Iterator<Item = &'b [i64]>) -> Vec<i64> {
    let mut records: Vec<i64> = batches.flatten().copied().collect();
    records.sort_unstable();
    records.dedup();
    records
}

/// The elements for output `k`, one of each record.
fn each<T>(outputs: usize, k: usize, of_records: &mut [T]) -> impl Iterator<Item = &mut T> {
    of_records.iter_mut().skip(k).step_by(outputs)
}

/// Partial sums of the inner product of two padded rows, which is their [`sum`]. The compiler keeps them in vector
/// registers as long as it does not see them added together.
#[inline(always)]
fn products<A: Real, B: Real>(a: &[A], b: &[B]) -> [f64; PADDING] {
    let mut lanes = [0.0; PADDING];
    let ((a, _), (b, _)) = (a.as_chunks::<PADDING>(), b.as_chunks::<PADDING>());
    for (a, b) in a.iter().zip(b) {
        for l in 0..PADDING {
            lanes[l] += a[l].to_f64() * b[l].to_f64();
        }
    }
    lanes
}

fn sum(lanes: [f64; PADDING]) -> f64 {
    lanes.iter().sum()
}

/// `w <- start + factor * (w - start)`.
#[inline(always)]
fn pull<T: Real>(w: &mut [T], start: &[T], factor: T) {
    // From the end: what the length was summed over last is still in the cache.
    for (w, start) in w.chunks_mut(BLOCK).zip(start.chunks(BLOCK)).rev() {
        for (w, &start) in w.iter_mut().zip(start) {
            *w = start + factor * (*w - start);
        }
    }
}

/// As [`pull`], onto the ball of this radius, where the square of the distance is not finite. A walk that ends in NaN
/// or infinity starts again: its client moves no further than any other, and ends no run.
#[cold]
#[inline(never)]
fn pull_far<T: Real>(w: &mut [T], start: &[T], radius: f64) {
    let distances = w.iter().zip(start);
    let mut far = distances
        .map(|(w, start)| w.to_f64() - start.to_f64())
        .collect::<Vec<f64>>();
    if clip_rows_in_place(&mut far, w.len(), Norm::L2, radius).is_err() {
        far.fill(0.0);
    }
    for ((w, &start), far) in w.iter_mut().zip(start).zip(far) {
        *w = start + T::from_f64(far);
    }
}

/// The place of a record among these.
fn place(own: &[i64], record: i64) -> i64 {
    own.partition_point(|&r| r < record) as i64
}
