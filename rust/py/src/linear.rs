//! Boundary of `dpmesh_core::linear`.

use dpmesh_core::linear::{
    self, Averaging, Batches, Clipping, Csr, Dense, Form, Loss, Objective, Rounded, Step, Training,
    Walks,
};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, dtype};
use pyo3::prelude::*;

use crate::arguments::{buffer, empty, floats, one_of, per_row, positive};
use crate::convert::{Array, Float, Read, read, row_len, run_native, unfit, write};
use crate::with_real;

#[macro_use]
mod arguments;
use arguments::{BatchArguments, BatchArrays, Features, Number, averaging, clipping};

/// Labels: real numbers for one score, integers for classes.
enum Labels<'py> {
    Real(Read<'py, f64>),
    Classes(Read<'py, i64>),
}

/// The loss by the models that it is of.
#[derive(Clone, Copy)]
enum Kind {
    /// One model, or one for each class.
    Of(Loss),
    /// A logistic model for each label, of which a record may have several.
    Multilabel,
    /// One model of all classes.
    Softmax,
}

/// Native part of `dpmesh.kernels.LinearModel`: records, labels and loss, shared by many nodes.
#[pyclass(frozen, module = "dpmesh._core")]
pub(crate) struct LinearModel {
    features: Features,
    labels: Py<PyUntypedArray>,
    loss: Kind,
    classes: Option<usize>,
    /// Weight of each record's loss.
    weights: Option<Py<PyUntypedArray>>,
}

/// Runs the body by `run_native`, with `$m` bound to the model `$self` of parameters of type `$T`.
macro_rules! with_model {
    ($self:ident, $py:ident, $T:ident, $m:ident => $body:expr) => {{
        let labels = $self.labels($py)?;
        let objective = $self.objective(&labels)?;
        let weights = $self.weights.as_ref();
        let weights = weights.map(|w| read::<f64>("weights", w.bind($py))).transpose()?;
        let weights = weights.as_ref().map(|w| w.as_slice()).transpose()?;
        with_features!($py, &$self.features, $T, x => {
            let m = linear::LinearModel::new(x, objective)?;
            let $m = match weights {
                Some(weights) => m.weighted(weights)?,
                None => m,
            };
            $body
        })
    }};
}

/// Runs the body with `$m` bound to the model, `$params` to the elements of an array and `$T` to their type.
macro_rules! at_params {
    ($self:ident, $py:ident, $params:ident, $T:ident, $m:ident => $body:expr) => {
        with_real!($params, $T => {
            let $params = read::<$T>("params", $params)?;
            let $params = $params.as_slice()?;
            with_model!($self, $py, $T, $m => $body)
        })
    };
}

#[pymethods]
impl LinearModel {
    #[new]
    #[pyo3(signature = (features, labels, loss, classes, weights = None))]
    fn new(
        features: Features,
        labels: Py<PyUntypedArray>,
        loss: &Bound<'_, PyAny>,
        classes: Option<usize>,
        weights: Option<Py<PyUntypedArray>>,
    ) -> PyResult<LinearModel> {
        let losses = [
            ("logistic", Kind::Of(Loss::Logistic)),
            ("hinge", Kind::Of(Loss::Hinge)),
            ("squared", Kind::Of(Loss::Squared)),
            ("absolute", Kind::Of(Loss::Absolute)),
            ("huber", Kind::Of(Loss::Huber)),
            ("poisson", Kind::Of(Loss::Poisson)),
            ("multilabel", Kind::Multilabel),
            ("softmax", Kind::Softmax),
        ];
        let loss = one_of("loss", loss, &losses)?;
        if !matches!(loss, Kind::Of(_)) && classes.is_none() {
            let wanted = "the number of classes for the losses 'softmax' and 'multilabel'";
            return Err(unfit("classes", wanted, "None"));
        }
        if let (Kind::Of(Loss::Poisson), Some(classes)) = (loss, classes) {
            return Err(unfit("classes", "None for the loss 'poisson'", classes));
        }
        Ok(LinearModel {
            features,
            labels,
            loss,
            classes,
            weights,
        })
    }

    fn gradient<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        batches: BatchArguments<'py>,
        regularization: Number<'_, 'py>,
        divide_by: Option<Number<'_, 'py>>,
        clipping_norm: Option<Number<'_, 'py>>,
        norm: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Array<'py>> {
        let params = &self.params("params", params)?;
        let averaging = averaging(regularization, divide_by)?;
        let clipping = clipping(clipping_norm, norm)?;
        let (batches, out) = (
            BatchArrays::new(&batches, params.shape()[0])?,
            buffer(out, params)?,
        );
        let batches = batches.batches()?;
        with_real!(params, T => {
            let (params, mut out) = (read::<T>("params", params)?, write::<T>("out", &out)?);
            let (params, out) = (params.as_slice()?, out.as_slice_mut()?);
            with_model!(self, py, T, m => m.gradient_into(params, batches, averaging, clipping, out))
        })?;
        Ok(out)
    }

    /// Return each node's sum of clipped record gradients, in float64 for features of either type.
    fn clipped_sums<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        batches: BatchArguments<'py>,
        clipping_norm: Number<'_, 'py>,
        norm: &Bound<'py, PyAny>,
    ) -> PyResult<Array<'py>> {
        let params = &floats("params", params)?;
        self.check_shape("params", params)?;
        let bound = positive("clipping_norm", clipping_norm)?;
        let clipping = Clipping::new(crate::projection::norm(norm)?, bound);
        let batches = BatchArrays::new(&batches, params.shape()[0])?;
        let batches = batches.batches()?;
        let sums = empty(params.shape(), &dtype::<f64>(py))?;
        let params = read::<f64>("params", params)?;
        let params = params.as_slice()?;
        let mut out = write("sums", &sums)?;
        let out = out.as_slice_mut()?;
        match self.features.float(py)? {
            Float::F32 => {
                with_model!(self, py, f32, m => m.clipped_sums_into(params, batches, clipping, out))
            }
            Float::F64 => {
                with_model!(self, py, f64, m => m.clipped_sums_into(params, batches, clipping, out))
            }
        }?;
        Ok(sums)
    }

    fn step<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        step_size: Number<'_, 'py>,
        batches: BatchArguments<'py>,
        regularization: Number<'_, 'py>,
        divide_by: Option<Number<'_, 'py>>,
        clipping_norm: Option<Number<'_, 'py>>,
        norm: &Bound<'py, PyAny>,
        radius: Option<Number<'_, 'py>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Array<'py>> {
        let params = &self.params("params", params)?;
        let averaging = averaging(regularization, divide_by)?;
        let clipping = clipping(clipping_norm, norm)?;
        let sizes = per_row("step_size", step_size, params.shape()[0])?;
        let radius = radius.map(|radius| positive("radius", radius));
        let step = Step::new(sizes.as_slice()?).within(radius.transpose()?);
        let (batches, out) = (
            BatchArrays::new(&batches, params.shape()[0])?,
            buffer(out, params)?,
        );
        let batches = batches.batches()?;
        with_real!(params, T => {
            let start = if params.is(&out) { None } else { Some(read::<T>("params", params)?) };
            let start = start.as_ref().map(|start| start.as_slice()).transpose()?;
            let mut out = write::<T>("out", &out)?;
            let out = out.as_slice_mut()?;
            with_model!(self, py, T, m => match start {
                None => m.step_in_place(out, step, batches, averaging, clipping),
                Some(start) => m.step_into(start, step, batches, averaging, clipping, out),
            })
        })?;
        Ok(out)
    }

    /// Return the nodes' updates, and their objectives on their first batches at the start.
    fn train<'py>(
        &self,
        py: Python<'py>,
        start: &Bound<'py, PyAny>,
        walks: (Array<'py>, (Array<'py>, Array<'py>)),
        step_size: f64,
        radius: f64,
        regularization: f64,
        form: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Array<'py>, Array<'py>)> {
        let start = &self.params("start", start)?;
        let (steps, (indptr, indices)) = &walks;
        let nodes = steps.len().saturating_sub(1);
        let moves = empty(&[nodes, row_len(start)], &start.dtype())?;
        let losses = empty(&[nodes], &dtype::<f64>(py))?;
        let (steps, indptr) = (read("walks", steps)?, read("walks", indptr)?);
        let (steps, indptr) = (steps.as_slice()?, indptr.as_slice()?);
        let indices = read("walks", indices)?;
        let indices = indices.as_slice()?;
        let forms = [("direct", Form::Direct), ("span", Form::Span)];
        let form = form.map(|name| one_of("form", name, &forms)).transpose()?;
        with_real!(start, T => {
            let (start, mut moves) = (read::<T>("start", start)?, write::<T>("moves", &moves)?);
            let (start, moves) = (start.as_slice()?, moves.as_slice_mut()?);
            let mut losses = write("losses", &losses)?;
            let losses = losses.as_slice_mut()?;
            with_model!(self, py, T, m => {
                let training = Training::new(step_size, radius)
                    .with_averaging(Averaging::new(regularization))
                    .with_form(form);
                let walks = Walks::new(steps, Batches::new(indptr, indices)?)?;
                m.train_into(start, walks, training, moves, losses)
            })
        })?;
        Ok((moves, losses))
    }

    /// Return the objective of each node, or of each one-vs-all model of each node.
    fn losses<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        batches: BatchArguments<'py>,
        regularization: Number<'_, 'py>,
        divide_by: Option<Number<'_, 'py>>,
        of_classes: bool,
    ) -> PyResult<Array<'py>> {
        let params = &self.params("params", params)?;
        let averaging = averaging(regularization, divide_by)?;
        let batches = BatchArrays::new(&batches, params.shape()[0])?;
        let batches = batches.batches()?;
        let shape = [params.shape()[0], self.classes.unwrap_or(1)];
        let shape = if of_classes { &shape[..] } else { &shape[..1] };
        let losses = empty(shape, &dtype::<f64>(py))?;
        let mut out = write("losses", &losses)?;
        let out = out.as_slice_mut()?;
        at_params!(self, py, params, T, m => if of_classes {
            m.class_losses_into(params, batches, averaging, out)
        } else {
            m.losses_into(params, batches, averaging, out)
        })?;
        Ok(losses)
    }

    fn record_losses<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
        batches: BatchArguments<'py>,
    ) -> PyResult<Array<'py>> {
        let params = &self.params("params", params)?;
        let (BatchArguments::Equal(records) | BatchArguments::Ragged(_, records)) = &batches;
        let losses = empty(records.shape(), &dtype::<f64>(py))?;
        let mut out = write("losses", &losses)?;
        let out = out.as_slice_mut()?;
        let batches = BatchArrays::new(&batches, params.shape()[0])?;
        let batches = batches.batches()?;
        at_params!(self, py, params, T, m => m.record_losses_into(params, batches, out))?;
        Ok(losses)
    }

    fn count_correct<'py>(
        &self,
        py: Python<'py>,
        params: &Bound<'py, PyAny>,
    ) -> PyResult<Array<'py>> {
        let params = &self.params("params", params)?;
        let correct = empty(&params.shape()[..1], &dtype::<i64>(py))?;
        let mut out = write("correct", &correct)?;
        let out = out.as_slice_mut()?;
        at_params!(self, py, params, T, m => m.count_correct_into(params, out))?;
        Ok(correct)
    }
}

impl LinearModel {
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Labels<'py>> {
        let labels = self.labels.bind(py);
        match self.classes {
            None => read("labels", labels).map(Labels::Real),
            Some(_) => read("labels", labels).map(Labels::Classes),
        }
    }

    fn objective<'a>(&self, labels: &'a Labels<'_>) -> PyResult<Objective<'a>> {
        let classes = self.classes.unwrap_or(1);
        Ok(match (labels, self.loss) {
            (Labels::Real(labels), kind) => Objective::Single {
                loss: if let Kind::Of(loss) = kind {
                    loss
                } else {
                    Loss::Logistic
                },
                labels: labels.as_slice()?,
            },
            (Labels::Classes(labels), Kind::Softmax) => Objective::Softmax {
                classes,
                labels: labels.as_slice()?,
            },
            (Labels::Classes(labels), Kind::Multilabel) => Objective::Labels {
                loss: Loss::Logistic,
                classes,
                sets: labels.as_slice()?,
            },
            (Labels::Classes(labels), Kind::Of(loss)) => Objective::OneVsAll {
                loss,
                classes,
                labels: labels.as_slice()?,
            },
        })
    }

    /// The parameters, if they have the shape and the type that fit the features.
    fn params<'py>(&self, argument: &str, value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        let params = floats(argument, value)?;
        self.check_shape(argument, &params)?;
        let py = value.py();
        let dtype = params.dtype();
        let own = match self.features.float(py)? {
            Float::F32 => numpy::dtype::<f32>(py),
            Float::F64 => numpy::dtype::<f64>(py),
        };
        if !dtype.is_equiv_to(&own) {
            let wanted = format!("{dtype}, the type of {argument}");
            return Err(unfit("features", &wanted, own));
        }
        Ok(params)
    }

    /// Fails unless parameters have the shape that fits the features.
    fn check_shape(&self, argument: &str, params: &Array<'_>) -> PyResult<()> {
        let py = params.py();
        let [_, dim] = *params.shape() else {
            let got = format!("shape {}", params.getattr("shape")?);
            return Err(unfit(argument, "2 axes", got));
        };
        let (outputs, columns) = (self.classes.unwrap_or(1), self.features.columns(py));
        let fit = outputs.saturating_mul(columns);
        if dim != fit {
            let wanted = format!("shape (nodes, {fit}), {outputs} x {columns} for each node");
            let got = format!("shape {}", params.getattr("shape")?);
            return Err(unfit(argument, &wanted, got));
        }
        Ok(())
    }
}

#[pyfunction]
pub fn linear_scores<'py>(
    py: Python<'py>,
    params: &Array<'py>,
    features: Features,
    out: &Array<'py>,
) -> PyResult<()> {
    with_real!(params, T => {
        let (params, mut out) = (read::<T>("params", params)?, write::<T>("out", out)?);
        let (params, out) = (params.as_slice()?, out.as_slice_mut()?);
        with_features!(py, &features, T, x => linear::scores_into(&x, params, out))
    })
}
