//! Which records a node works on, and how their losses are combined.

use crate::error::{non_negative, positive};
use crate::projection::{Norm, check_bound};
use crate::{KernelError, Real};

/// The mini-batch of each node.
#[derive(Debug, Clone, Copy)]
pub struct Batches<'a> {
    starts: Starts<'a>,
    nodes: usize,
    indices: &'a [i64],
}

/// Where the batches begin among the indices, and the last one ends.
#[derive(Debug, Clone, Copy)]
enum Starts<'a> {
    At(&'a [i64]),
    Every(usize),
}

impl<'a> Batches<'a> {
    /// Batches of any length: the records `indices[indptr[i]..indptr[i + 1]]` for node `i`.
    ///
    /// # Errors
    /// If `indptr` does not rise from 0 to the length of `indices`.
    pub fn new(indptr: &'a [i64], indices: &'a [i64]) -> Result<Batches<'a>, KernelError> {
        let ends = (indptr.first(), indptr.last());
        if ends == (Some(&0), Some(&(indices.len() as i64))) && indptr.is_sorted() {
            Ok(Batches {
                starts: Starts::At(indptr),
                nodes: indptr.len() - 1,
                indices,
            })
        } else {
            let wanted = format!("an indptr that rises from 0 to {}", indices.len());
            Err(KernelError::new("batches", wanted, "one that does not"))
        }
    }

    /// Batches of the same length, one after the other.
    ///
    /// # Errors
    /// If the indices cannot be divided equally.
    pub fn equal(nodes: usize, indices: &'a [i64]) -> Result<Batches<'a>, KernelError> {
        if nodes == 0 || !indices.len().is_multiple_of(nodes) {
            let wanted = format!("the same number of records for each of {nodes} nodes");
            let got = format!("{} in all", indices.len());
            return Err(KernelError::new("batches", wanted, got));
        }
        Ok(Batches {
            starts: Starts::Every(indices.len() / nodes),
            nodes,
            indices,
        })
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    #[inline(always)]
    pub(super) fn of(&self, node: usize) -> &'a [i64] {
        match self.starts {
            Starts::At(indptr) => &self.indices[indptr[node] as usize..indptr[node + 1] as usize],
            Starts::Every(size) => &self.indices[node * size..][..size],
        }
    }

    /// The records of `nodes` nodes from `first` on, if each node has one.
    #[inline(always)]
    pub(super) fn singles(&self, first: usize, nodes: usize) -> Option<&'a [i64]> {
        match self.starts {
            Starts::Every(1) => Some(&self.indices[first..][..nodes]),
            _ => None,
        }
    }

    pub(super) fn records(&self) -> &'a [i64] {
        self.indices
    }
}

/// How the losses of a batch become one objective. The default is their mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Averaging {
    pub(super) regularization: f64,
    pub(super) divide_by: Option<f64>,
}

impl Averaging {
    /// The mean of a batch's losses, plus `regularization` times `|W|^2 / 2`. The objective of a node without records is
    /// its regularizer alone.
    pub const fn new(regularization: f64) -> Averaging {
        Averaging {
            regularization,
            divide_by: None,
        }
    }

    /// As this one, with the sum of the losses divided by a public constant; `None` for the length of the batch.
    #[must_use]
    pub fn divided_by(self, divisor: impl Into<Option<f64>>) -> Averaging {
        Averaging {
            divide_by: divisor.into(),
            ..self
        }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        non_negative("regularization", self.regularization)?;
        self.divide_by.map_or(Ok(()), |m| positive("divide_by", m))
    }

    #[inline(always)]
    pub(super) fn weight(&self, batch: &[i64]) -> f64 {
        1.0 / self.divide_by.unwrap_or(batch.len().max(1) as f64)
    }

    /// The factor by which a step of this size shrinks the parameters.
    #[inline(always)]
    pub(super) fn decay(&self, step_size: f64) -> f64 {
        1.0 - step_size * self.regularization
    }
}

/// The norm to which the gradient of each record's loss is clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clipping {
    pub(super) norm: Norm,
    pub(super) bound: f64,
}

impl Clipping {
    /// Clipping of this norm to `bound`, at least 1e-30: the squares of far smaller gradients vanish.
    pub const fn new(norm: Norm, bound: f64) -> Clipping {
        Clipping { norm, bound }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        check_bound("clipping_norm", self.bound)
    }

    /// The factor that clips a gradient of this norm; NaN for a norm that is not finite.
    #[inline(always)]
    pub(super) fn factor(&self, norm: f64) -> f64 {
        // Without branches: which of many norms near the bound exceed it is unpredictable.
        (self.bound / norm).min(1.0) + 0.0 * norm
    }
}

/// The factor of a record; 0 where it has too few bits left: rounded up, it would let the clipped gradient of a record
/// of the largest numbers out of its ball.
#[inline(always)]
pub(super) fn records_factor<T: Real>(factor: f64) -> T {
    let factor = T::from_f64(factor);
    if factor.abs() < T::MIN_POSITIVE {
        T::ZERO
    } else {
        factor
    }
}
