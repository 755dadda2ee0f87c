//! Boundary of `dpmesh_core::linear`.

use dpmesh_core::KernelError;
use dpmesh_core::linear::{
    Averaging, Batches, Clipping, Csr, Dense, Form, LinearModel, Loss, Objective, Step, Training,
    Walks, scores_into,
};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::convert::{PerRow, read, refused, row_len, run_native, write};
use crate::projection::norm;
use crate::{with_index, with_real};

type Array<'py> = Bound<'py, PyUntypedArray>;

// Variants are tried in their order, and one that does not fit costs microseconds: arrays, the usual case, come first.

/// A dense matrix, or the `(indptr, indices, values, columns)` of a sparse one.
#[derive(FromPyObject)]
enum Features<'py> {
    #[pyo3(transparent)]
    Dense(Array<'py>),
    Sparse(Array<'py>, Array<'py>, Array<'py>, usize),
}

/// Features, labels (float64; int64 if there are classes), loss, classes.
#[derive(FromPyObject)]
struct Model<'py>(Features<'py>, Array<'py>, String, Option<usize>);

/// The records of each node: `(indptr, indices)`, or as many for each in a row of its own.
#[derive(FromPyObject)]
enum BatchArguments<'py> {
    #[pyo3(transparent)]
    Equal(Array<'py>),
    Ragged(Array<'py>, Array<'py>),
}

/// Runs the body with `$batches` bound to the batches that it named.
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

/// The regularization and the divisor.
type AveragingArguments = (f64, Option<f64>);

/// The bound and the norm.
type ClippingArguments<'py> = (f64, Bound<'py, PyAny>);

fn to_averaging((regularization, divide_by): AveragingArguments) -> Averaging {
    Averaging {
        regularization,
        divide_by,
    }
}

fn to_clipping(arguments: Option<ClippingArguments<'_>>) -> PyResult<Option<Clipping>> {
    let Some((bound, name)) = arguments else {
        return Ok(None);
    };
    let norm = norm(&name)?;
    Ok(Some(Clipping { norm, bound }))
}

/// What makes an objective of the labels: `f64` for one score, `i64` for classes.
trait Labels: numpy::Element {
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

/// Runs the body natively, with `$x` bound to the features of type `$T`.
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

#[pyfunction]
fn linear_gradient<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    averaging: AveragingArguments,
    clipping: Option<ClippingArguments<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (averaging, clipping) = (to_averaging(averaging), to_clipping(clipping)?);
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let (params, mut out) = (read::<T>("params", params)?, write::<T>("out", out)?);
        let (params, out) = (params.as_slice()?, out.as_slice_mut()?);
        with_model!(py, model, T, m => {
            m.gradient_into(params, batches, averaging, clipping, out)
        })
    }))
}

/// The sizes and the radius.
type StepArguments<'py> = (Bound<'py, PyAny>, Option<f64>);

#[pyfunction]
fn linear_step<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    step: StepArguments<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    averaging: AveragingArguments,
    clipping: Option<ClippingArguments<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let sizes = PerRow::new("step_size", &step.0)?;
    let step = Step {
        sizes: sizes.as_slice()?,
        radius: step.1,
    };
    let (averaging, clipping) = (to_averaging(averaging), to_clipping(clipping)?);
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let (params, mut out) = (read::<T>("params", params)?, write::<T>("out", out)?);
        let (params, out) = (params.as_slice()?, out.as_slice_mut()?);
        with_model!(py, model, T, m => {
            m.step_into(params, step, batches, averaging, clipping, out)
        })
    }))
}

#[pyfunction]
fn linear_step_in_place<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    step: StepArguments<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    averaging: AveragingArguments,
    clipping: Option<ClippingArguments<'py>>,
) -> PyResult<()> {
    let sizes = PerRow::new("step_size", &step.0)?;
    let step = Step {
        sizes: sizes.as_slice()?,
        radius: step.1,
    };
    let (averaging, clipping) = (to_averaging(averaging), to_clipping(clipping)?);
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let mut params = write::<T>("params", params)?;
        let params = params.as_slice_mut()?;
        with_model!(py, model, T, m => {
            m.step_in_place(params, step, batches, averaging, clipping)
        })
    }))
}

fn to_form(name: Option<&str>) -> Result<Option<Form>, KernelError> {
    match name {
        None => Ok(None),
        Some("direct") => Ok(Some(Form::Direct)),
        Some("span") => Ok(Some(Form::Span)),
        Some(other) => {
            let got = format!("'{other}'");
            Err(KernelError::new("form", "'direct', 'span' or None", got))
        }
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn linear_training<'py>(
    py: Python<'py>,
    start: &Array<'py>,
    model: Model<'py>,
    walks: (Array<'py>, (Array<'py>, Array<'py>)),
    step_size: f64,
    radius: f64,
    regularization: f64,
    form: Option<String>,
    moves: &Array<'py>,
    losses: &Array<'py>,
) -> PyResult<()> {
    let (steps, (indptr, indices)) = &walks;
    let (steps, indptr) = (read("walks", steps)?, read("walks", indptr)?);
    let (steps, indptr) = (steps.as_slice()?, indptr.as_slice()?);
    let indices = read("walks", indices)?;
    let indices = indices.as_slice()?;
    let mut losses = write("losses", losses)?;
    let losses = losses.as_slice_mut()?;
    let (model, form) = (&model, form.as_deref());
    with_real!(start, T => {
        let (start, mut moves) = (read::<T>("start", start)?, write::<T>("moves", moves)?);
        let (start, moves) = (start.as_slice()?, moves.as_slice_mut()?);
        with_model!(py, model, T, m => {
            let training = Training {
                step_size,
                radius,
                averaging: Averaging { regularization, divide_by: None },
                form: to_form(form)?,
            };
            let walks = Walks::new(steps, Batches::new(indptr, indices)?)?;
            m.train_into(start, walks, training, moves, losses)
        })
    })
}

#[pyfunction]
fn linear_losses<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    averaging: AveragingArguments,
    out: &Array<'py>,
) -> PyResult<()> {
    let averaging = to_averaging(averaging);
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let params = read::<T>("params", params)?;
        let params = params.as_slice()?;
        with_model!(py, model, T, m => {
            m.losses_into(params, batches, averaging, out)
        })
    }))
}

#[pyfunction]
fn linear_class_losses<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    averaging: AveragingArguments,
    out: &Array<'py>,
) -> PyResult<()> {
    let averaging = to_averaging(averaging);
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let params = read::<T>("params", params)?;
        let params = params.as_slice()?;
        with_model!(py, model, T, m => {
            m.class_losses_into(params, batches, averaging, out)
        })
    }))
}

#[pyfunction]
fn linear_record_losses<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    model: Model<'py>,
    batches: BatchArguments<'py>,
    out: &Array<'py>,
) -> PyResult<()> {
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    let model = &model;
    with_batches!(batches => with_real!(params, T => {
        let params = read::<T>("params", params)?;
        let params = params.as_slice()?;
        with_model!(py, model, T, m => {
            m.record_losses_into(params, batches, out)
        })
    }))
}

#[pyfunction]
fn linear_count_correct<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    model: Model<'py>,
    out: &Array<'py>,
) -> PyResult<()> {
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    let model = &model;
    with_real!(params, T => {
        let params = read::<T>("params", params)?;
        let params = params.as_slice()?;
        with_model!(py, model, T, m => m.count_correct_into(params, out))
    })
}

#[pyfunction]
fn linear_scores<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    features: Features<'py>,
    out: &Array<'py>,
) -> PyResult<()> {
    let features = &features;
    with_real!(params, T => {
        let (params, mut out) = (read::<T>("params", params)?, write::<T>("out", out)?);
        let (params, out) = (params.as_slice()?, out.as_slice_mut()?);
        with_features!(py, features, T, x => scores_into(&x, params, out))
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(linear_gradient, module)?)?;
    module.add_function(wrap_pyfunction!(linear_step, module)?)?;
    module.add_function(wrap_pyfunction!(linear_step_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(linear_training, module)?)?;
    module.add_function(wrap_pyfunction!(linear_losses, module)?)?;
    module.add_function(wrap_pyfunction!(linear_class_losses, module)?)?;
    module.add_function(wrap_pyfunction!(linear_record_losses, module)?)?;
    module.add_function(wrap_pyfunction!(linear_count_correct, module)?)?;
    module.add_function(wrap_pyfunction!(linear_scores, module)?)
}
