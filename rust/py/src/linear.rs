//! Boundary of `dpmesh_core::linear`.

mod arguments;

use dpmesh_core::linear::{
    Averaging, Batches, Csr, Dense, Form, LinearModel, Step, Training, Walks, scores_into,
};
use numpy::PyUntypedArrayMethods;
use pyo3::prelude::*;

use self::arguments::{
    AveragingArguments, BatchArguments, ClippingArguments, Features, Labels, Model, StepArguments,
    to_averaging, to_clipping, with_batches, with_features, with_model,
};
use crate::arguments::one_of;
use crate::convert::{Array, PerRow, read, refused, row_len, run_native, write};
use crate::{with_index, with_real};

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

#[pyfunction]
fn linear_training<'py>(
    py: Python<'py>,
    start: &Array<'py>,
    model: Model<'py>,
    walks: (Array<'py>, (Array<'py>, Array<'py>)),
    step_size: f64,
    radius: f64,
    regularization: f64,
    form: Option<&Bound<'py, PyAny>>,
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
    let forms = [("direct", Form::Direct), ("span", Form::Span)];
    let form = form.map(|name| one_of("form", name, &forms)).transpose()?;
    let model = &model;
    with_real!(start, T => {
        let (start, mut moves) = (read::<T>("start", start)?, write::<T>("moves", moves)?);
        let (start, moves) = (start.as_slice()?, moves.as_slice_mut()?);
        with_model!(py, model, T, m => {
            let training = Training {
                step_size,
                radius,
                averaging: Averaging { regularization, divide_by: None },
                form,
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
