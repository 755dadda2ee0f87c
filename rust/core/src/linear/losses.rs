//! Losses of one record as functions of its scores, and their slopes, in `f64`.
//!
//! `log1p` comes from the `libm` crate, whose bits are the same on every platform.

use std::hint::select_unpredictable;

use crate::KernelError;
use crate::exponential::exp_of_negative;

/// A loss of one score `z = <w, x>` and its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// `log(1 + exp(-y z))` for labels `y` of -1 and +1.
    Logistic,
    /// `max(0, 1 - y z)` for labels `y` of -1 and +1. At the kink `y z = 1` the subgradient is 0.
    Hinge,
    /// `(z - y)^2 / 2` for real targets `y`.
    Squared,
    /// `|z - y|` for real targets `y`. At the kink `z = y` the subgradient is 0.
    Absolute,
    /// `(z - y)^2 / 2` where `|z - y|` is at most 1, and `|z - y| - 1/2` beyond, for real targets `y`.
    Huber,
    /// `exp(z) - y z` up to `z = 0`, and its tangent `1 + (1 - y) z` beyond, for shares `y` in [0, 1] of the largest
    /// count: `exp(z)` is the expected one.
    Poisson,
}

impl Loss {
    #[inline(always)]
    fn value(self, score: f64, target: f64) -> f64 {
        match self {
            Loss::Logistic => {
                let margin = target * score;
                libm::log1p(exp_of_negative(margin.abs())) + negative_part(margin)
            }
            Loss::Hinge => negative_part(target * score - 1.0),
            Loss::Squared => 0.5 * (score - target) * (score - target),
            Loss::Absolute => (score - target).abs(),
            Loss::Huber => {
                let residual = (score - target).abs();
                let square = 0.5 * residual * residual;
                select_unpredictable(residual <= 1.0, square, residual - 0.5)
            }
            Loss::Poisson => {
                let expected = exp_of_negative(negative_part(score));
                expected + negative_part(-score) - target * score
            }
        }
    }

    /// Derivative with respect to the score.
    #[inline(always)]
    fn slope(self, score: f64, target: f64) -> f64 {
        match self {
            Loss::Logistic => {
                let margin = target * score;
                let small = exp_of_negative(margin.abs());
                let numerator = if margin > 0.0 { small } else { 1.0 };
                -target * numerator / (1.0 + small)
            }
            // `0.0 * score` is NaN if the score is not finite.
            Loss::Hinge => select_unpredictable(target * score < 1.0, -target, 0.0 * score),
            Loss::Squared => score - target,
            Loss::Absolute => {
                let residual = score - target;
                // Comparison fails at the kink, and for NaN, which is passed on.
                let sign = 1.0_f64.copysign(residual);
                select_unpredictable(residual.abs() > 0.0, sign, residual)
            }
            Loss::Huber => (score - target).clamp(-1.0, 1.0),
            Loss::Poisson => exp_of_negative(negative_part(score)) - target,
        }
    }

    #[inline(always)]
    fn check(self, target: f64) -> Result<(), KernelError> {
        let (fits, wanted) = match self {
            Loss::Logistic | Loss::Hinge => (target.abs() == 1.0, "labels of -1 or +1"),
            Loss::Squared | Loss::Absolute | Loss::Huber => (target.is_finite(), "finite targets"),
            Loss::Poisson => (
                (0.0..=1.0).contains(&target),
                "counts as shares of their bound, from 0 to 1",
            ),
        };
        if fits {
            Ok(())
        } else {
            Err(KernelError::new("labels", wanted, target))
        }
    }
}

/// `max(0, -x)`, NaN for NaN.
#[inline(always)]
fn negative_part(x: f64) -> f64 {
    if x >= 0.0 { 0.0 } else { -x }
}

/// What a linear model is trained for: a loss, and the label of each record.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Objective<'a> {
    /// One score.
    Single {
        /// Its loss.
        loss: Loss,
        /// Labels as the loss takes them.
        labels: &'a [f64],
    },
    /// One model for each class, with target +1 in the records of its class and -1 in the others; the
    /// losses of the models add up.
    OneVsAll {
        /// The loss of each model; not that of counts.
        loss: Loss,
        /// Number of models.
        classes: usize,
        /// Classes, from 0 to `classes - 1`.
        labels: &'a [i64],
    },
    /// One model for each label, with target +1 in the records that have it and -1 in the others; the losses
    /// of the models add up.
    Labels {
        /// The loss of each model; not that of counts.
        loss: Loss,
        /// Number of models, at most [`MOST_LABELS`].
        classes: usize,
        /// The labels of each record: label k is bit k.
        sets: &'a [i64],
    },
    /// One score for each class; `log(sum_k exp(z_k)) - z_label`.
    Softmax {
        /// Number of scores.
        classes: usize,
        /// Classes, from 0 to `classes - 1`.
        labels: &'a [i64],
    },
}

/// Labels that a set of 64 bits with a sign can hold.
pub const MOST_LABELS: usize = 63;

impl Objective<'_> {
    /// Number of scores of one record, and of rows of one node's parameters.
    #[inline(always)]
    pub fn outputs(&self) -> usize {
        match *self {
            Objective::Single { .. } => 1,
            Objective::OneVsAll { classes, .. }
            | Objective::Labels { classes, .. }
            | Objective::Softmax { classes, .. } => classes,
        }
    }

    /// Number of records with a label.
    pub(crate) fn records(&self) -> usize {
        match self {
            Objective::Single { labels, .. } => labels.len(),
            Objective::OneVsAll { labels, .. } | Objective::Softmax { labels, .. } => labels.len(),
            Objective::Labels { sets, .. } => sets.len(),
        }
    }

    /// Fails unless the record's label fits the loss.
    #[inline(always)]
    pub(crate) fn check(&self, record: usize) -> Result<(), KernelError> {
        match *self {
            Objective::Single { loss, labels } => loss.check(labels[record]),
            Objective::OneVsAll {
                classes, labels, ..
            }
            | Objective::Softmax { classes, labels } => {
                let label = labels[record];
                if 0 <= label && (label as usize) < classes {
                    Ok(())
                } else {
                    let wanted = format!("classes from 0 to {}", classes.wrapping_sub(1));
                    Err(KernelError::new("labels", wanted, label))
                }
            }
            Objective::Labels { classes, sets, .. } => {
                let set = sets[record];
                if 0 <= set && (classes >= MOST_LABELS || set < 1 << classes) {
                    Ok(())
                } else {
                    let wanted = format!("sets of {classes} labels, of bit k each");
                    Err(KernelError::new("labels", wanted, set))
                }
            }
        }
    }

    /// Loss of one record.
    #[inline(always)]
    pub(crate) fn value(&self, record: usize, scores: &[f64]) -> f64 {
        match *self {
            Objective::Single { loss, labels } => loss.value(scores[0], labels[record]),
            Objective::OneVsAll { .. } | Objective::Labels { .. } => {
                self.values(record, scores).sum()
            }
            Objective::Softmax { labels, .. } => {
                let top = first_largest(scores);
                let others = scores.iter().enumerate().filter(|&(k, _)| k != top);
                let excess: f64 = others.map(|(_, &z)| exp_of_negative(scores[top] - z)).sum();
                libm::log1p(excess) + (scores[top] - scores[labels[record] as usize])
            }
        }
    }

    /// Losses of one record under each model of [`Objective::OneVsAll`] or [`Objective::Labels`].
    ///
    /// # Panics
    /// For any other objective.
    #[inline(always)]
    pub(crate) fn values(&self, record: usize, scores: &[f64]) -> impl Iterator<Item = f64> {
        let (loss, label, in_sets) = match *self {
            Objective::OneVsAll { loss, labels, .. } => (loss, labels[record], false),
            Objective::Labels { loss, sets, .. } => (loss, sets[record], true),
            _ => unreachable!("one loss for each model: only one-vs-all has models"),
        };
        scores.iter().enumerate().map(move |(k, &score)| {
            let has = if in_sets {
                (label >> k) & 1 == 1
            } else {
                k as i64 == label
            };
            loss.value(score, if has { 1.0 } else { -1.0 })
        })
    }

    /// Overwrites the scores of some records with the derivatives of their losses.
    #[inline(always)]
    pub(crate) fn slopes_in_place(&self, records: &[i64], scores: &mut [f64]) {
        match *self {
            Objective::Single { loss, labels } => {
                for (score, &record) in scores.iter_mut().zip(records) {
                    *score = loss.slope(*score, labels[record as usize]);
                }
            }
            Objective::OneVsAll {
                loss,
                classes,
                labels,
            } => {
                for (scores, &record) in scores.chunks_exact_mut(classes).zip(records) {
                    for (score, target) in scores.iter_mut().zip(targets(labels[record as usize])) {
                        *score = loss.slope(*score, target);
                    }
                }
            }
            Objective::Labels {
                loss,
                classes,
                sets,
            } => {
                for (scores, &record) in scores.chunks_exact_mut(classes).zip(records) {
                    for (score, target) in scores.iter_mut().zip(members(sets[record as usize])) {
                        *score = loss.slope(*score, target);
                    }
                }
            }
            Objective::Softmax { classes, labels } => {
                for scores in scores.chunks_exact_mut(classes) {
                    let top = largest(scores);
                    for z in scores {
                        *z = top - *z;
                    }
                }
                for z in scores.iter_mut() {
                    *z = exp_of_negative(*z);
                }
                for (scores, &record) in scores.chunks_exact_mut(classes).zip(records) {
                    let label = labels[record as usize] as usize;
                    let mut others = 0.0;
                    for (k, &z) in scores.iter().enumerate() {
                        others += select_unpredictable(k == label, 0.0, z);
                    }
                    let all = scores[label] + others;
                    for p in scores.iter_mut() {
                        *p /= all;
                    }
                    // p - 1, without cancellation where p is close to 1.
                    scores[label] = -others / all;
                }
            }
        }
    }

    /// Whether the scores predict the record's label: by the sign of a single score (0 counts as -1), or by the largest
    /// of several (the first of equals). Of labels, all must be right.
    #[inline(always)]
    pub(crate) fn is_right(&self, record: usize, scores: &[f64]) -> bool {
        match *self {
            Objective::Single { labels, .. } => (scores[0] > 0.0) == (labels[record] > 0.0),
            Objective::OneVsAll { labels, .. } | Objective::Softmax { labels, .. } => {
                first_largest(scores) == labels[record] as usize
            }
            Objective::Labels { sets, .. } => {
                let mut each = scores.iter().zip(members(sets[record]));
                each.all(|(&score, target)| (score > 0.0) == (target > 0.0))
            }
        }
    }
}

/// The targets of the one-vs-all models for a record of class `label`.
#[inline(always)]
fn targets(label: i64) -> impl Iterator<Item = f64> {
    (0_i64..).map(move |k| if k == label { 1.0 } else { -1.0 })
}

/// The targets of the models of the labels in a set.
#[inline(always)]
fn members(set: i64) -> impl Iterator<Item = f64> {
    (0..MOST_LABELS).map(move |k| if (set >> k) & 1 == 1 { 1.0 } else { -1.0 })
}

#[inline(always)]
fn first_largest(scores: &[f64]) -> usize {
    let (mut top, mut largest) = (0, scores[0]);
    for (k, &z) in scores.iter().enumerate().skip(1) {
        let larger = z > largest;
        top = select_unpredictable(larger, k, top);
        largest = select_unpredictable(larger, z, largest);
    }
    top
}

/// The number at [`first_largest`], found without branches.
#[inline(always)]
fn largest(scores: &[f64]) -> f64 {
    let larger = |top, &z| if z > top { z } else { top };
    scores[1..].iter().fold(scores[0], larger)
}

#[cfg(test)]
mod tests;
