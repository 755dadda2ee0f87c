//! Linear models: losses, gradients and gradient steps for a stack of nodes, each on its own mini-batch
//! of the records of one shared feature matrix.
//!
//! Node `i` has the parameters `W_i`, one row of `columns` elements for each output (one output for a
//! binary label or a real target, one for each class in [`Objective::OneVsAll`], [`Objective::Labels`]
//! and [`Objective::Softmax`]). Its objective on a batch `B` with divisor `m` is
//!
//! ```text
//! f_i(W) = (1/m) sum_{r in B} loss(W x_r, y_r)  +  (regularization / 2) |W|^2
//! ```
//!
//! where `m` is the length of the batch unless a public constant is given. The loss of a record may have a weight in
//! [0, 1].
//!
//! Clipping applies to the gradient of each record's loss with respect to all of `W`: with several outputs it bounds
//! their joint norm, that of all that one record contributes. With the slopes `s = dloss/dz` that gradient is the outer
//! product of `s` and `x_r`, so its norm is `|s| |x_r|`, in L1 as in L2.
//!
//! ```
//! use dpmesh_core::linear::{Averaging, Batches, Dense, LinearModel, Loss, Objective};
//!
//! let features = Dense::new(&[1.0, 0.0, 0.0, 1.0], 2)?; // two records
//! let objective = Objective::Single { loss: Loss::Squared, labels: &[1.0, -2.0] };
//! let model = LinearModel::new(features, objective)?;
//! let batches = Batches::equal(2, &[0, 1])?; // a record for each of two nodes
//! let averaging = Averaging::new(0.01); // the mean loss, and a regularizer
//! let mut gradients = [0.0; 4];
//! model.gradient_into(&[0.0; 4], batches, averaging, None, &mut gradients)?;
//! assert_eq!(gradients, [-1.0, 0.0, 0.0, 2.0]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

mod batches;
mod clipped;
mod dense;
mod evaluation;
mod in_f64;
mod losses;
mod model;
mod rounded;
mod scores;
mod scratch;
mod sparse;
mod steps;
#[cfg(test)]
mod tests;
mod tiles;
mod training;
mod vectors;

use crate::KernelError;
use crate::projection::Norm;
use crate::wide::Wide;

pub use batches::{Averaging, Batches, Clipping};
pub use dense::Dense;
pub use losses::{Loss, MOST_LABELS, Objective};
pub use model::LinearModel;
pub use rounded::{Rounded, SHARED};
pub use scores::scores_into;
pub use sparse::Csr;
pub use steps::Step;
pub use training::{Form, Training, Walks};

/// Records that a batch, a partial gradient or a task has.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[
    model::RECORDS_AT_ONCE,
    evaluation::RECORDS_PER_TASK,
    model::RECORDS_PER_BLOCK,
    model::MOST_BLOCKS * model::RECORDS_PER_BLOCK,
];

/// A matrix of features with one row for each record.
///
/// The methods that take records expect them in range and [checked](Self::check). Those for one record are
/// `#[inline(always)]`, for callers inside `vectorized!`: a record may be so short that a call would count.
pub trait Features: Sync {
    /// Type of the features, and of a model's parameters.
    type Value: Wide;
    /// Number of records.
    fn records(&self) -> usize;
    /// Number of features of a record.
    fn columns(&self) -> usize;
    /// About how many features of a record are stored.
    fn cost(&self) -> usize;
    /// Fails unless the record is well-formed.
    ///
    /// # Errors
    /// If its place or its columns are out of range, or its columns do not rise.
    fn check(&self, record: usize) -> Result<(), KernelError>;
    /// The records' features as rows in `room`, to be read several times; `None` if they are stored as rows of numbers
    /// already, or are sparse.
    #[inline(always)]
    fn decoded<'r>(&self, _records: &[i64], _room: &'r mut Vec<f32>) -> Option<Dense<'r, f32>> {
        None
    }
    /// Sum of one record's absolute values, for the L1 norm, or squares, for the L2 norm.
    fn sum_of_powers(&self, record: usize, norm: Norm) -> f64;
    /// Writes all of a record's features.
    fn write(&self, record: usize, row: &mut [Self::Value]);
    /// Score of one record under one row of parameters.
    fn score(&self, record: usize, params: &[Self::Value]) -> f64;
    /// Adds one record times a factor to one row of parameters.
    fn add(&self, record: usize, factor: Self::Value, target: &mut [Self::Value]);
    /// Writes the scores of the records, record after record, one for each row of `params`.
    fn scores(&self, records: &[i64], params: &[Self::Value], scores: &mut [f64]);
    /// Multiplies `target` by `decay` and adds to each of its rows the records, in order, times their factors for that
    /// row.
    fn add_scaled(
        &self,
        records: &[i64],
        factors: &[Self::Value],
        decay: f64,
        target: &mut [Self::Value],
    );
    /// As [`scores`](Self::scores), for parameters in `f64` and with arithmetic in `f64`: the same bits whatever the type
    /// of the features.
    fn scores_in_f64(&self, records: &[i64], params: &[f64], scores: &mut [f64]);
    /// Writes the [`sum_of_powers`](Self::sum_of_powers) of each of the records; inside `vectorized!`.
    fn sums_of_powers(&self, records: &[i64], norm: Norm, sums: &mut [f64]);
    /// Adds to each row of `target` the records, in order, times their factors for that row, in `f64`. Records whose
    /// factors are all 0 are not read; those without factors, at the end, are read next.
    fn add_scaled_in_f64(&self, records: &[i64], factors: &[f64], target: &mut [f64]);
}
