//! One network's step: temporal differences, their gradient, Adam.
//!
//! The gradient of a register of weights is built and consumed at once, so that a parameter and its two moments
//! are read and written once a step. Meanwhile what the next network will need is prefetched: a step is short, and
//! waiting for memory would be a quarter of it.

use pulp::{Simd, WithSimd};

use super::pass::{Pass, registers_of_a_row};
use super::{ACTIONS, Adam, LANES, Replay, Shape};
use crate::cache::{LINE, prefetch};

/// Samples that share each read of the weights: their sums nearly fill the registers of AVX2, and are enough to
/// hide the latency of an addition.
const SAMPLES: usize = 10;

/// The memory of a step; made once for many networks.
pub(super) struct Workspace {
    now: Pass<SAMPLES>,
    next: Pass<SAMPLES>,
    /// Derivatives of the loss with respect to the values of `now`.
    slopes: Vec<[f32; ACTIONS]>,
}

impl Workspace {
    pub(super) fn new(shape: Shape, samples: usize) -> Workspace {
        let now = Pass::new(shape, samples);
        Workspace {
            slopes: vec![[0.0; ACTIONS]; now.values().len()],
            next: Pass::new(shape, samples),
            now,
        }
    }

    /// Takes in the states of the picked transitions.
    pub(super) fn enter(&mut self, memory: Replay<'_>, picks: &[u32], inputs: usize) {
        let pairs = || {
            memory
                .picked(picks, inputs)
                .map(|pair| pair.split_at(inputs))
        };
        self.now.enter(pairs().map(|(state, _)| state));
        self.next.enter(pairs().map(|(_, next)| next));
    }

    /// Fills the slopes of the picked transitions, and returns the mean of their squared errors.
    #[inline(always)]
    fn differentiate(&mut self, memory: Replay<'_>, picks: &[u32]) -> f32 {
        let share = 1.0 / picks.len() as f32;
        let mut squares = 0.0;
        for (s, &pick) in picks.iter().enumerate() {
            let i = pick as usize;
            let bootstrap = largest(self.next.values()[s]);
            let y = memory.discounts[i].mul_add(bootstrap, memory.rewards[i]);
            let action = usize::from(memory.actions[i]);
            let error = self.now.values()[s][action] - y;
            self.slopes[s] = [0.0; ACTIONS];
            self.slopes[s][action] = 2.0 * share * error;
            squares = error.mul_add(error, squares);
        }
        share * squares
    }
}

/// The larger value; NaN if there is one.
#[inline(always)]
fn largest([local, global]: [f32; ACTIONS]) -> f32 {
    if local > global || local.is_nan() {
        local
    } else {
        global
    }
}

/// Adam's constants in a network's step `t`.
#[derive(Clone, Copy)]
pub(super) struct Rule<T> {
    beta1: T,
    beta2: T,
    /// `1 - beta1` and `1 - beta2`.
    rest1: T,
    rest2: T,
    /// `-alpha / (1 - beta1^t)`: takes the bias out of the first moment.
    rate: T,
    /// `1 / sqrt(1 - beta2^t)`: takes it out of the second moment's root.
    root_scale: T,
    epsilon: T,
}

impl Rule<f32> {
    pub(super) fn at(adam: Adam, t: u32) -> Rule<f32> {
        let t = i32::try_from(t).unwrap_or(i32::MAX);
        let [beta1, beta2] = [adam.beta1, adam.beta2];
        Rule {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rest1: (1.0 - beta1) as f32,
            rest2: (1.0 - beta2) as f32,
            rate: (-adam.learning_rate / (1.0 - beta1.powi(t))) as f32,
            root_scale: (1.0 - beta2.powi(t)).sqrt().recip() as f32,
            epsilon: adam.epsilon as f32,
        }
    }

    #[inline(always)]
    fn splat<S: Simd>(self, simd: S) -> Rule<S::f32s> {
        Rule {
            beta1: simd.splat_f32s(self.beta1),
            beta2: simd.splat_f32s(self.beta2),
            rest1: simd.splat_f32s(self.rest1),
            rest2: simd.splat_f32s(self.rest2),
            rate: simd.splat_f32s(self.rate),
            root_scale: simd.splat_f32s(self.root_scale),
            epsilon: simd.splat_f32s(self.epsilon),
        }
    }
}

/// One step of one network; its value is the loss before it.
pub(super) struct Step<'a> {
    pub(super) shape: Shape,
    pub(super) rule: Rule<f32>,
    pub(super) parameters: &'a mut [f32],
    pub(super) first_moments: &'a mut [f32],
    pub(super) second_moments: &'a mut [f32],
    pub(super) target: &'a [f32],
    pub(super) memory: Replay<'a>,
    pub(super) picks: &'a [u32],
    pub(super) space: &'a mut Workspace,
}

impl WithSimd for Step<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let space = self.space;
        space.now.forward(simd, self.parameters);
        space.next.forward(simd, self.target);
        let loss = space.differentiate(self.memory, self.picks);
        let mut descent = Descent {
            simd,
            shape: self.shape,
            rule: self.rule.splat(simd),
            parameters: S::as_mut_simd_f32s(self.parameters).0,
            first_moments: S::as_mut_simd_f32s(self.first_moments).0,
            second_moments: S::as_mut_simd_f32s(self.second_moments).0,
            target: S::as_simd_f32s(self.target).0,
        };
        let registers = const { registers_of_a_row::<S>() };
        let group_registers = self.shape.group_rows() * registers;
        for g in 0..self.shape.groups {
            for r in 0..registers {
                let (x, hidden) = space.now.states_and_hidden::<S>(g, r);
                descent.group(g * group_registers + r, x, hidden, &space.slopes);
            }
        }
        let mut biases = [0.0; LANES];
        for slopes in &space.slopes {
            for (bias, slope) in biases.iter_mut().zip(slopes) {
                *bias += slope;
            }
        }
        let start = self.shape.groups * group_registers;
        for (r, gradient) in S::as_simd_f32s(&biases).0.iter().enumerate() {
            descent.register(start + r, *gradient);
        }
        loss
    }
}

/// The backward pass and Adam, a register at a time.
struct Descent<'a, S: Simd> {
    simd: S,
    shape: Shape,
    rule: Rule<S::f32s>,
    parameters: &'a mut [S::f32s],
    first_moments: &'a mut [S::f32s],
    second_moments: &'a mut [S::f32s],
    target: &'a [S::f32s],
}

impl<S: Simd> Descent<'_, S> {
    /// The step for one register of each row of a group, from register `start` on; replaces the hidden units with the
    /// derivatives of the loss with respect to their sums.
    #[inline(always)]
    fn group(
        &mut self,
        start: usize,
        x: &[[f32; SAMPLES]],
        hidden: &mut [S::f32s],
        slopes: &[[f32; ACTIONS]],
    ) {
        let simd = self.simd;
        let zero = simd.splat_f32s(0.0);
        let negative_slope = simd.splat_f32s(self.shape.activation.negative_slope());
        let inputs = self.shape.inputs;
        let row = |row| start + row * const { registers_of_a_row::<S>() };
        let [bias, local, global] = [row(inputs), row(inputs + 1), row(inputs + 2)];
        let [to_local, to_global] = [self.parameters[local], self.parameters[global]];
        let [mut bias_gradient, mut local_gradient, mut global_gradient] = [zero; 3];
        for (unit, slopes) in hidden.iter_mut().zip(slopes) {
            let local_slope = simd.splat_f32s(slopes[0]);
            let global_slope = simd.splat_f32s(slopes[1]);
            local_gradient = simd.mul_add_f32s(local_slope, *unit, local_gradient);
            global_gradient = simd.mul_add_f32s(global_slope, *unit, global_gradient);
            let back = simd.mul_f32s(local_slope, to_local);
            let back = simd.mul_add_f32s(global_slope, to_global, back);
            let positive = simd.greater_than_f32s(*unit, zero);
            *unit = simd.select_f32s(positive, back, simd.mul_f32s(negative_slope, back));
            bias_gradient = simd.add_f32s(bias_gradient, *unit);
        }
        let (back, _) = hidden.as_chunks::<SAMPLES>();
        for input in 0..inputs {
            // Two sums: half the latency.
            let [mut even, mut odd] = [zero; 2];
            for (x, back) in x.chunks_exact(inputs).zip(back) {
                let pairs = x[input].as_chunks::<2>().0.iter();
                for (x, back) in pairs.zip(back.as_chunks::<2>().0) {
                    even = simd.mul_add_f32s(simd.splat_f32s(x[0]), back[0], even);
                    odd = simd.mul_add_f32s(simd.splat_f32s(x[1]), back[1], odd);
                }
            }
            self.register(row(input), simd.add_f32s(even, odd));
        }
        self.register(bias, bias_gradient);
        self.register(local, local_gradient);
        self.register(global, global_gradient);
    }

    /// Adam's step for register `i`, whose gradient is `g`.
    #[inline(always)]
    fn register(&mut self, i: usize, g: S::f32s) {
        self.prefetch_next(i);
        let (simd, rule) = (self.simd, self.rule);
        let m = simd.mul_f32s(rule.beta1, self.first_moments[i]);
        let m = simd.mul_add_f32s(rule.rest1, g, m);
        let v = simd.mul_f32s(rule.beta2, self.second_moments[i]);
        let v = simd.mul_add_f32s(simd.mul_f32s(rule.rest2, g), g, v);
        let root = simd.mul_add_f32s(simd.sqrt_f32s(v), rule.root_scale, rule.epsilon);
        let ratio = simd.div_f32s(m, root);
        self.parameters[i] = simd.mul_add_f32s(ratio, rule.rate, self.parameters[i]);
        self.first_moments[i] = m;
        self.second_moments[i] = v;
    }

    /// Prefetches what corresponds to register `i` in the next network, half of it when `i` begins a cache line
    /// and half later, which spreads the load.
    #[inline(always)]
    fn prefetch_next(&self, i: usize) {
        let line = const { LINE / size_of::<S::f32s>() };
        let next = self.parameters.len() + i;
        if i.is_multiple_of(line) {
            prefetch(self.parameters, next);
            prefetch(self.target, next);
        }
        if i % line == line / 2 {
            prefetch(self.first_moments, next);
            prefetch(self.second_moments, next);
        }
    }
}
