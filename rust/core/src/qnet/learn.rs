//! One step of deep Q-learning for every network: checks the arguments and shares the networks among threads.

use pulp::Arch;

use super::step::{Rule, Step, Workspace};
use super::{ACTIONS, Shape, each};
use crate::KernelError;
use crate::cache::prefetch_all;
use crate::error::{positive, same_len};
use crate::parallel::for_each;

/// The optimizer of Kingma and Ba (2015), Algorithm 1, in their notation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    pub(super) learning_rate: f64,
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
}

impl Adam {
    /// Steps of this size, with the paper's other constants: `beta1` 0.9, `beta2` 0.999, `epsilon` 1e-8.
    pub const fn new(learning_rate: f64) -> Adam {
        Adam {
            learning_rate,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        }
    }

    /// The same with these decays of the first and the second moment.
    #[must_use]
    pub const fn with_betas(self, beta1: f64, beta2: f64) -> Adam {
        Adam {
            beta1,
            beta2,
            ..self
        }
    }

    /// The same with this number added to the root of the second moment.
    #[must_use]
    pub const fn with_epsilon(self, epsilon: f64) -> Adam {
        Adam { epsilon, ..self }
    }

    pub(super) fn check(self) -> Result<(), KernelError> {
        positive("learning_rate", self.learning_rate)?;
        positive("epsilon", self.epsilon)?;
        for (argument, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(KernelError::new(argument, "a number in [0, 1)", beta));
            }
        }
        Ok(())
    }
}

/// Networks that learn, and Adam's moments of their gradients; all are updated.
#[derive(Debug)]
pub struct Trained<'a> {
    parameters: &'a mut [f32],
    first_moments: &'a mut [f32],
    second_moments: &'a mut [f32],
    steps: &'a mut [u32],
}

impl<'a> Trained<'a> {
    /// Networks with these parameters, laid out as the [module](super) says, the moments of their gradients in the same
    /// layout, and the number of steps that each network has learned.
    pub fn new(
        parameters: &'a mut [f32],
        first_moments: &'a mut [f32],
        second_moments: &'a mut [f32],
        steps: &'a mut [u32],
    ) -> Trained<'a> {
        Trained {
            parameters,
            first_moments,
            second_moments,
            steps,
        }
    }

    /// The number of networks, if all lengths fit together.
    fn networks(&self, shape: Shape) -> Result<usize, KernelError> {
        let networks = shape.networks(self.parameters)?;
        let size = self.parameters.len();
        same_len("first_moments", self.first_moments.len(), size)?;
        same_len("second_moments", self.second_moments.len(), size)?;
        same_len("steps", self.steps.len(), networks)?;
        Ok(networks)
    }
}

/// Transitions that each network remembers, `[networks][capacity]`.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    states: &'a [f32],
    pub(super) actions: &'a [u8],
    pub(super) rewards: &'a [f32],
    pub(super) discounts: &'a [f32],
}

impl<'a> Replay<'a> {
    /// Transitions from their parts:
    ///
    /// - `states`: a state and the one that followed it, `[networks][capacity][2][inputs]`;
    /// - `actions`: 0 or 1;
    /// - `rewards`: what each action earned;
    /// - `discounts`: the weight of what comes after; 0 where the transition ended the run.
    pub fn new(
        states: &'a [f32],
        actions: &'a [u8],
        rewards: &'a [f32],
        discounts: &'a [f32],
    ) -> Replay<'a> {
        Replay {
            states,
            actions,
            rewards,
            discounts,
        }
    }

    /// The capacity, if all lengths fit together and all actions exist.
    fn capacity(self, shape: Shape, networks: usize) -> Result<usize, KernelError> {
        let places = self.actions.len();
        let capacity = each("actions", places, networks)?;
        same_len("states", self.states.len(), places * 2 * shape.inputs)?;
        same_len("rewards", self.rewards.len(), places)?;
        same_len("discounts", self.discounts.len(), places)?;
        match self.actions.iter().find(|&&a| usize::from(a) >= ACTIONS) {
            Some(action) => Err(KernelError::new("actions", "0 or 1", action)),
            None => Ok(capacity),
        }
    }

    fn of_network(self, i: usize, capacity: usize, inputs: usize) -> Replay<'a> {
        let places = i * capacity..(i + 1) * capacity;
        Replay {
            states: &self.states[places.start * 2 * inputs..places.end * 2 * inputs],
            actions: &self.actions[places.clone()],
            rewards: &self.rewards[places.clone()],
            discounts: &self.discounts[places],
        }
    }

    /// The picked states of one network, each with the one that followed it.
    pub(super) fn picked(self, picks: &[u32], inputs: usize) -> impl Iterator<Item = &'a [f32]> {
        let pair = 2 * inputs;
        picks
            .iter()
            .map(move |&pick| &self.states[pick as usize * pair..][..pair])
    }

    /// Prefetches the picked states.
    fn prefetch(self, picks: &[u32], inputs: usize) {
        for pair in self.picked(picks, inputs) {
            prefetch_all(pair, 0, pair.len());
        }
    }
}

/// The number of picks of each network, if all of them lie in a memory of this capacity.
fn batch_size(picks: &[u32], networks: usize, capacity: usize) -> Result<usize, KernelError> {
    let batch = each("picks", picks.len(), networks)?;
    match picks.iter().find(|&&pick| pick as usize >= capacity) {
        Some(pick) => {
            let wanted = format!("places below the capacity {capacity}");
            Err(KernelError::new("picks", wanted, pick))
        }
        None => Ok(batch),
    }
}

/// One gradient step of each network that `learns`, on the transitions at its `picks`, `[networks][batch]`:
/// Adam on the mean over the batch of
/// `(Q(state)[action] - reward - discount * max Q_target(next state))^2`, whose values before the step are the
/// `losses`.
///
/// Networks that do not learn stay as they are, and so do their losses.
///
/// # Errors
/// If lengths do not fit together, a pick lies outside the memory, an action is neither 0 nor 1, or Adam's
/// numbers are out of range; nothing is changed then.
pub fn learn_in_place(
    shape: Shape,
    adam: Adam,
    trained: Trained<'_>,
    targets: &[f32],
    replay: Replay<'_>,
    picks: &[u32],
    learns: &[bool],
    losses: &mut [f32],
) -> Result<(), KernelError> {
    adam.check()?;
    let networks = trained.networks(shape)?;
    same_len("targets", targets.len(), trained.parameters.len())?;
    let capacity = replay.capacity(shape, networks)?;
    let batch = batch_size(picks, networks, capacity)?;
    same_len("learns", learns.len(), networks)?;
    same_len("losses", losses.len(), networks)?;
    let (size, together) = (shape.size(), shape.networks_per_task());
    let tasks = trained
        .parameters
        .chunks_mut(together * size)
        .zip(trained.first_moments.chunks_mut(together * size))
        .zip(trained.second_moments.chunks_mut(together * size))
        .zip(trained.steps.chunks_mut(together))
        .zip(losses.chunks_mut(together));
    for_each(
        tasks.enumerate(),
        networks <= together,
        || Workspace::new(shape, batch),
        |space, (task, ((((parameters, first_moments), second_moments), steps), losses))| {
            let networks_of_task = parameters
                .chunks_mut(size)
                .zip(first_moments.chunks_mut(size))
                .zip(second_moments.chunks_mut(size))
                .zip(steps.iter_mut().zip(losses));
            for (i, (((parameters, first_moments), second_moments), (step, loss))) in
                (task * together..).zip(networks_of_task)
            {
                if !learns[i] {
                    continue;
                }
                *step = step.saturating_add(1);
                let memory_of = |i| replay.of_network(i, capacity, shape.inputs);
                let picks_of = |i| &picks[i * batch..(i + 1) * batch];
                let (memory, picks) = (memory_of(i), picks_of(i));
                space.enter(memory, picks, shape.inputs);
                if i + 1 < networks {
                    memory_of(i + 1).prefetch(picks_of(i + 1), shape.inputs);
                }
                *loss = Arch::new().dispatch(Step {
                    shape,
                    rule: Rule::at(adam, *step),
                    parameters,
                    first_moments,
                    second_moments,
                    target: &targets[i * size..(i + 1) * size],
                    memory,
                    picks,
                    space,
                });
            }
        },
    );
    Ok(())
}
