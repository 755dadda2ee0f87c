//! Many small Q-networks as one batch: each node has its own network with `inputs` inputs, one hidden layer
//! and the values of two actions as outputs; all of them are evaluated, or trained, in one call.
//!
//! # Layout
//!
//! A network is [`Shape::rows`] rows of [`LANES`] numbers, and networks stand one after another. Hidden units
//! come in groups of [`LANES`], one in each lane, and all rows of a group are together, so that a pass over a
//! network reads its memory once and in order:
//!
//! ```text
//! for each group   `inputs` rows   weights from input 0, 1, ..
//!                  1 row           biases
//!                  2 rows          weights to value 0 and to value 1
//! at the end       1 row           biases of the two values, then zeros
//! ```
//!
//! ```
//! use dpmesh_core::qnet::{Activation, LANES, Shape, values_into};
//!
//! let shape = Shape::new(3, LANES, Activation::Relu)?;
//! let networks = vec![0.1; 2 * shape.rows() * LANES];
//! let mut values = [0.0; 2 * 2]; // of two actions, for each network's own state
//! values_into(shape, &networks, &[1.0, 0.0, 2.0, 0.0, 0.0, 0.0], &mut values)?;
//! assert_eq!(values[0], values[1]);
//! assert!(values[0] > values[2]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

mod learn;
mod pass;
mod step;
#[cfg(test)]
mod tests;

use crate::KernelError;
use crate::error::same_len;
use crate::parallel::{SERIAL_BELOW, for_each};

use pass::Pass;

pub use learn::{Adam, Replay, Trained, learn_in_place};

/// Hidden units in a group: as many as the widest vector registers hold.
pub const LANES: usize = 16;

/// Values of a network.
pub const ACTIONS: usize = 2;

/// What a hidden unit makes of its weighted sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// The sum itself.
    Linear,
    /// The sum where it is positive, else 0; NaN stays NaN.
    Relu,
}

impl Activation {
    /// Slope below 0; above it is 1.
    const fn negative_slope(self) -> f32 {
        match self {
            Activation::Linear => 1.0,
            Activation::Relu => 0.0,
        }
    }
}

/// The most inputs, and the most hidden units: their products do not overflow.
const LARGEST: usize = 1 << 24;

/// The sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    inputs: usize,
    groups: usize,
    activation: Activation,
}

impl Shape {
    /// Networks of `inputs` inputs and `hidden` hidden units.
    ///
    /// # Errors
    /// If `inputs` is 0, `hidden` is not a positive multiple of [`LANES`], or one of them exceeds 2^24.
    pub fn new(inputs: usize, hidden: usize, activation: Activation) -> Result<Shape, KernelError> {
        if inputs == 0 {
            return Err(KernelError::new("inputs", "at least 1", inputs));
        }
        for (argument, value) in [("inputs", inputs), ("hidden", hidden)] {
            if value > LARGEST {
                let wanted = format!("at most {LARGEST}");
                return Err(KernelError::new(argument, wanted, value));
            }
        }
        Ok(Shape {
            inputs,
            groups: each("hidden", hidden, LANES)?,
            activation,
        })
    }

    /// Rows of [`LANES`] numbers of one network.
    pub const fn rows(self) -> usize {
        self.groups * self.group_rows() + 1
    }

    const fn group_rows(self) -> usize {
        self.inputs + 1 + ACTIONS
    }

    /// Numbers of one network.
    const fn size(self) -> usize {
        self.rows() * LANES
    }

    /// Number of networks in `parameters`, at least 1.
    fn networks(self, parameters: &[f32]) -> Result<usize, KernelError> {
        each("parameters", parameters.len(), self.size())
    }

    /// How many networks a thread takes at a time: sharing fewer costs more than it saves.
    pub(crate) const fn networks_per_task(self) -> usize {
        SERIAL_BELOW.div_ceil(self.size())
    }
}

/// How many times `unit` fits into `len` elements; fails unless that is a whole number of at least 1.
fn each(argument: &'static str, len: usize, unit: usize) -> Result<usize, KernelError> {
    if len > 0 && len.is_multiple_of(unit) {
        Ok(len / unit)
    } else {
        let wanted = format!("a positive multiple of {unit}");
        Err(KernelError::new(argument, wanted, len))
    }
}

/// Values of both actions, `[networks][samples][2]`, in the `states` of each network,
/// `[networks][samples][inputs]`.
///
/// # Errors
/// If the lengths of the slices do not fit together.
pub fn values_into(
    shape: Shape,
    parameters: &[f32],
    states: &[f32],
    values: &mut [f32],
) -> Result<(), KernelError> {
    let networks = shape.networks(parameters)?;
    let samples = each("states", states.len(), networks * shape.inputs)?;
    same_len("values", values.len(), networks * samples * ACTIONS)?;
    let (size, states_of_one, values_of_one) =
        (shape.size(), samples * shape.inputs, samples * ACTIONS);
    let together = shape.networks_per_task();
    let tasks = values
        .chunks_mut(together * values_of_one)
        .zip(parameters.chunks(together * size))
        .zip(states.chunks(together * states_of_one));
    for_each(
        tasks,
        networks <= together,
        || Pass::<1>::new(shape, samples),
        |pass, ((values, parameters), states)| {
            let networks = parameters.chunks(size).zip(states.chunks(states_of_one));
            for (values, (parameters, states)) in values.chunks_mut(values_of_one).zip(networks) {
                pass.enter(states.chunks(shape.inputs));
                pass.run(parameters);
                values.copy_from_slice(pass.values().as_flattened());
            }
        },
    );
    Ok(())
}
