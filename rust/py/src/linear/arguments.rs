//! Arguments of linear models: features and labels, batches, settings.

use dpmesh_core::KernelError;
use dpmesh_core::linear::{Averaging, Clipping, Loss, Objective};
use pyo3::prelude::*;

use crate::convert::Array;
use crate::projection::norm;

// Variants are tried in order, and a mismatch costs microseconds: arrays, the usual case, come first.

/// A dense matrix, or the `(indptr, indices, values, columns)` of a sparse one.
#[derive(FromPyObject)]
pub enum Features<'py> {
    #[pyo3(transparent)]
    Dense(Array<'py>),
    Sparse(Array<'py>, Array<'py>, Array<'py>, usize),
}

/// Features, labels (float64; int64 if there are classes), loss, classes.
#[derive(FromPyObject)]
pub struct Model<'py>(
    pub Features<'py>,
    pub Array<'py>,
    pub String,
    pub Option<usize>,
);

/// The records of each node: a row of indices each, or `(indptr, indices)` where their numbers differ.
#[derive(FromPyObject)]
pub enum BatchArguments<'py> {
    #[pyo3(transparent)]
    Equal(Array<'py>),
    Ragged(Array<'py>, Array<'py>),
}

/// Runs the body with `$batches`, which held these arguments, bound to the [`Batches`].
macro_rules! with_batches {
    ($batches:ident => $body:expr) => {
        match &$batches {
            BatchArguments::Ragged(indptr, indices) => {
                let (indptr, indices) = (read("batches", indptr)?, read("batches", indices)?);
                let $batches = Batches::new(indptr.as_slice()?, indices.as_slice()?);
                let $batches = $batches.map_err(refused)?;
                $body
            }
            BatchArguments::Equal(indices) => {
                let nodes = indices.shape().first().copied().unwrap_or(0);
                let indices = read("batches", indices)?;
                let $batches = Batches::equal(nodes, indices.as_slice()?).map_err(refused)?;
                $body
            }
        }
    };
}
pub(super) use with_batches;

/// The regularization and the divisor.
pub type AveragingArguments = (f64, Option<f64>);

/// The bound and the norm.
pub type ClippingArguments<'py> = (f64, Bound<'py, PyAny>);

pub fn to_averaging((regularization, divide_by): AveragingArguments) -> Averaging {
    Averaging {
        regularization,
        divide_by,
    }
}

pub fn to_clipping(arguments: Option<ClippingArguments<'_>>) -> PyResult<Option<Clipping>> {
    let Some((bound, name)) = arguments else {
        return Ok(None);
    };
    let norm = norm(&name)?;
    Ok(Some(Clipping { norm, bound }))
}

/// Types of labels, which decide the objective: `f64` for one score, `i64` for classes.
pub trait Labels: numpy::Element {
    fn objective<'a>(
        labels: &'a [Self],
        loss: &str,
        classes: usize,
    ) -> Result<Objective<'a>, KernelError>;
}

fn binary_loss(name: &str) -> Result<Loss, KernelError> {
    match name {
        "logistic" => Ok(Loss::Logistic),
        "hinge" => Ok(Loss::Hinge),
        "squared" => Ok(Loss::Squared),
        other => {
            let wanted = "'logistic', 'hinge' or 'squared', or 'softmax' with classes";
            Err(KernelError::new("loss", wanted, format!("'{other}'")))
        }
    }
}

impl Labels for f64 {
    fn objective<'a>(
        labels: &'a [f64],
        loss: &str,
        _: usize,
    ) -> Result<Objective<'a>, KernelError> {
        let loss = binary_loss(loss)?;
        Ok(Objective::Single { loss, labels })
    }
}

impl Labels for i64 {
    fn objective<'a>(
        labels: &'a [i64],
        loss: &str,
        classes: usize,
    ) -> Result<Objective<'a>, KernelError> {
        if loss == "softmax" {
            return Ok(Objective::Softmax { classes, labels });
        }
        let loss = binary_loss(loss)?;
        Ok(Objective::OneVsAll {
            loss,
            classes,
            labels,
        })
    }
}

/// Runs the body by `run_native`, with `$x` bound to the features of type `$T`.
macro_rules! with_features {
    ($py:ident, $features:expr, $T:ident, $x:ident => $body:expr) => {
        match $features {
            Features::Dense(values) => {
                let columns = row_len(values);
                let values = read::<$T>("features", values)?;
                let values = values.as_slice()?;
                run_native($py, || {
                    let $x = Dense::new(values, columns)?;
                    $body
                })
            }
            Features::Sparse(indptr, indices, values, columns) => with_index!(indices, I => {
                let indptr = read::<I>("features.indptr", indptr)?;
                let indices = read::<I>("features.indices", indices)?;
                let values = read::<$T>("features", values)?;
                let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
                let values = values.as_slice()?;
                run_native($py, || {
                    let $x = Csr::new(indptr, indices, values, *columns)?;
                    $body
                })
            }),
        }
    };
}
pub(super) use with_features;

/// Runs the body with `$m` bound to the model, whose parameters have type `$T`.
macro_rules! with_model {
    ($py:ident, $model:ident, $T:ident, $m:ident => $body:expr) => {{
        let Model(features, labels, loss, classes) = $model;
        match classes {
            None => with_model!(@labels $py, f64, features, labels, loss, 1, $T, $m => $body),
            Some(k) => with_model!(@labels $py, i64, features, labels, loss, *k, $T, $m => $body),
        }
    }};
    (@labels $py:ident, $L:ty, $features:ident, $labels:ident, $loss:ident, $classes:expr,
     $T:ident, $m:ident => $body:expr) => {{
        let labels = read::<$L>("labels", $labels)?;
        let labels = labels.as_slice()?;
        let (loss, classes) = ($loss.as_str(), $classes);
        with_features!($py, $features, $T, x => {
            let $m = LinearModel::new(x, <$L>::objective(labels, loss, classes)?)?;
            $body
        })
    }};
}
pub(super) use with_model;

/// The sizes and the radius.
pub type StepArguments<'py> = (Bound<'py, PyAny>, Option<f64>);
