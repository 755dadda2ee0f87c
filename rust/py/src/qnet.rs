//! Boundary of `dpmesh_core::qnet`.

use dpmesh_core::qnet::{self, Activation, Adam, Replay, Shape, Trained};
use pyo3::prelude::*;

use crate::arguments::one_of;
use crate::convert::{Array, read, row_len, run_native, write};

fn activation(name: &Bound<'_, PyAny>) -> PyResult<Activation> {
    let choices = [("linear", Activation::Linear), ("relu", Activation::Relu)];
    one_of("activation", name, &choices)
}

#[pyfunction]
pub fn q_values<'py>(
    py: Python<'py>,
    parameters: &Array<'py>,
    states: &Array<'py>,
    hidden: usize,
    activation: &Bound<'py, PyAny>,
    values: &Array<'py>,
) -> PyResult<()> {
    let (inputs, activation) = (row_len(states), self::activation(activation)?);
    let (parameters, states) = (read("parameters", parameters)?, read("states", states)?);
    let mut values = write("values", values)?;
    let (parameters, states) = (parameters.as_slice()?, states.as_slice()?);
    let values = values.as_slice_mut()?;
    run_native(py, || {
        let shape = Shape::new(inputs, hidden, activation)?;
        qnet::values_into(shape, parameters, states, values)
    })
}

/// Parameters, first moments, second moments, steps.
type TrainedArrays<'py> = (Array<'py>, Array<'py>, Array<'py>, Array<'py>);

/// States, actions, rewards, discounts.
type ReplayArrays<'py> = (Array<'py>, Array<'py>, Array<'py>, Array<'py>);

/// Learning rate, beta1, beta2, epsilon.
type AdamNumbers = (f64, f64, f64, f64);

#[pyfunction]
pub fn q_learn<'py>(
    py: Python<'py>,
    trained: TrainedArrays<'py>,
    targets: &Array<'py>,
    replay: ReplayArrays<'py>,
    picks: &Array<'py>,
    learns: &Array<'py>,
    hidden: usize,
    activation: &Bound<'py, PyAny>,
    adam: AdamNumbers,
    losses: &Array<'py>,
) -> PyResult<()> {
    let (inputs, activation) = (row_len(&replay.0), self::activation(activation)?);
    let mut parameters = write("parameters", &trained.0)?;
    let mut first_moments = write("first_moments", &trained.1)?;
    let mut second_moments = write("second_moments", &trained.2)?;
    let mut steps = write("steps", &trained.3)?;
    let trained = Trained::new(
        parameters.as_slice_mut()?,
        first_moments.as_slice_mut()?,
        second_moments.as_slice_mut()?,
        steps.as_slice_mut()?,
    );
    let (states, actions) = (read("states", &replay.0)?, read("actions", &replay.1)?);
    let rewards = read("rewards", &replay.2)?;
    let discounts = read("discounts", &replay.3)?;
    let replay = Replay::new(
        states.as_slice()?,
        actions.as_slice()?,
        rewards.as_slice()?,
        discounts.as_slice()?,
    );
    let (targets, picks) = (read("targets", targets)?, read("picks", picks)?);
    let (targets, picks) = (targets.as_slice()?, picks.as_slice()?);
    let (learns, mut losses) = (read("learns", learns)?, write("losses", losses)?);
    let (learns, losses) = (learns.as_slice()?, losses.as_slice_mut()?);
    let (learning_rate, beta1, beta2, epsilon) = adam;
    let adam = Adam::new(learning_rate)
        .with_betas(beta1, beta2)
        .with_epsilon(epsilon);
    run_native(py, || {
        let shape = Shape::new(inputs, hidden, activation)?;
        qnet::learn_in_place(shape, adam, trained, targets, replay, picks, learns, losses)
    })
}
