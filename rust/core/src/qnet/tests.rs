use proptest::prelude::*;
use pulp::{Scalar, WithSimd};

use super::step::{Rule, Step, Workspace};
use super::*;

const ADAM: Adam = Adam::new(0.01);

/// Pseudorandom numbers in [-1, 1].
fn numbers(seed: usize, len: usize) -> Vec<f32> {
    let at = |i| (i * 37 + seed * 101) as f64;
    (0..len)
        .map(|i| ((at(i) * 0.7548776662).sin() * (at(i) * 0.31 + 0.2).cos()) as f32)
        .collect()
}

/// Networks with their memory, and picks from it.
#[derive(Clone)]
struct Case {
    shape: Shape,
    adam: Adam,
    parameters: Vec<f32>,
    moments: [Vec<f32>; 2],
    steps: Vec<u32>,
    targets: Vec<f32>,
    states: Vec<f32>,
    actions: Vec<u8>,
    rewards: Vec<f32>,
    discounts: Vec<f32>,
    picks: Vec<u32>,
    learns: Vec<bool>,
    losses: Vec<f32>,
}

impl Case {
    fn new(shape: Shape, networks: usize, capacity: usize, batch: usize) -> Case {
        let (size, places) = (networks * shape.size(), networks * capacity);
        let mut case = Case {
            shape,
            adam: ADAM,
            parameters: numbers(1, size).iter().map(|w| 0.1 * w).collect(),
            moments: [vec![0.0; size], vec![0.0; size]],
            steps: vec![0; networks],
            targets: numbers(2, size).iter().map(|w| 0.1 * w).collect(),
            states: numbers(3, places * 2 * shape.inputs),
            actions: (0..places).map(|i| (i % 3 % 2) as u8).collect(),
            // Far from the values: where an error nearly cancels, its relative rounding has no bound.
            rewards: numbers(4, places).iter().map(|r| 10.0 + r).collect(),
            discounts: (0..places).map(|i| (i % 4) as f32 * 0.3).collect(),
            picks: (0..networks * batch)
                .map(|i| (i * 7 % capacity) as u32)
                .collect(),
            learns: vec![true; networks],
            losses: vec![f32::NAN; networks],
        };
        for values in [&mut case.parameters, &mut case.targets] {
            for network in values.chunks_mut(shape.size()) {
                network[shape.size() - LANES + ACTIONS..].fill(0.0);
            }
        }
        case
    }

    fn replay(&self) -> Replay<'_> {
        Replay::new(&self.states, &self.actions, &self.rewards, &self.discounts)
    }

    fn learn(&mut self) -> Result<(), KernelError> {
        let [first_moments, second_moments] = &mut self.moments;
        let trained = Trained::new(
            &mut self.parameters,
            first_moments,
            second_moments,
            &mut self.steps,
        );
        let replay = Replay::new(&self.states, &self.actions, &self.rewards, &self.discounts);
        learn_in_place(
            self.shape,
            self.adam,
            trained,
            &self.targets,
            replay,
            &self.picks,
            &self.learns,
            &mut self.losses,
        )
    }

    fn bits(&self) -> Vec<u32> {
        let all = [
            &self.parameters,
            &self.moments[0],
            &self.moments[1],
            &self.losses,
        ];
        all.into_iter().flatten().map(|v| v.to_bits()).collect()
    }
}

/// Place of the weight or bias number `row` of hidden unit `unit`.
fn place(shape: Shape, unit: usize, row: usize) -> usize {
    (unit / LANES * shape.group_rows() + row) * LANES + unit % LANES
}

/// Sum and output of each hidden unit, and the two values: straight from the definition.
fn slow_forward(shape: Shape, network: &[f64], x: &[f32]) -> (Vec<f64>, Vec<f64>, [f64; 2]) {
    let units = 0..shape.groups * LANES;
    let weight = |unit, row| network[place(shape, unit, row)];
    let sums: Vec<f64> = (units.clone())
        .map(|unit| {
            let terms = (0..shape.inputs).map(|k| weight(unit, k) * f64::from(x[k]));
            weight(unit, shape.inputs) + terms.sum::<f64>()
        })
        .collect();
    let slope = f64::from(shape.activation.negative_slope());
    let hidden: Vec<f64> = (sums.iter())
        .map(|&sum| if sum < 0.0 { slope * sum } else { sum })
        .collect();
    let value = |a| {
        let terms = (units.clone()).map(|unit| weight(unit, shape.inputs + 1 + a) * hidden[unit]);
        network[shape.size() - LANES + a] + terms.sum::<f64>()
    };
    let values = [value(0), value(1)];
    (sums, hidden, values)
}

/// Loss and gradient of one network, from the definition.
fn slow_gradient(case: &Case, i: usize, network: &[f64], target: &[f64]) -> (f64, Vec<f64>) {
    let shape = case.shape;
    let capacity = case.actions.len() / case.steps.len();
    let batch = case.picks.len() / case.steps.len();
    let mut gradient = vec![0.0; shape.size()];
    let mut loss = 0.0;
    for &pick in &case.picks[i * batch..(i + 1) * batch] {
        let j = i * capacity + pick as usize;
        let (x, next) =
            case.states[j * 2 * shape.inputs..][..2 * shape.inputs].split_at(shape.inputs);
        let (sums, hidden, values) = slow_forward(shape, network, x);
        let (_, _, next_values) = slow_forward(shape, target, next);
        let y = f64::from(case.rewards[j])
            + f64::from(case.discounts[j]) * next_values[0].max(next_values[1]);
        let a = usize::from(case.actions[j]);
        loss += (values[a] - y).powi(2) / batch as f64;
        let slope = 2.0 * (values[a] - y) / batch as f64;
        gradient[shape.size() - LANES + a] += slope;
        for unit in 0..hidden.len() {
            let outward = place(shape, unit, shape.inputs + 1 + a);
            gradient[outward] += slope * hidden[unit];
            let negative = f64::from(shape.activation.negative_slope());
            let back = slope * network[outward] * if sums[unit] > 0.0 { 1.0 } else { negative };
            gradient[place(shape, unit, shape.inputs)] += back;
            for (k, &x) in x.iter().enumerate() {
                gradient[place(shape, unit, k)] += back * f64::from(x);
            }
        }
    }
    (loss, gradient)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

fn distance(a: &[f32], b: &[f64]) -> f64 {
    let squares = a.iter().zip(b).map(|(&a, b)| (f64::from(a) - b).powi(2));
    squares.sum::<f64>().sqrt() / b.iter().map(|b| b * b).sum::<f64>().sqrt()
}

fn shapes() -> impl Strategy<Value = Shape> {
    let activations = prop::sample::select(vec![Activation::Linear, Activation::Relu]);
    (1_usize..40, 1_usize..4, activations).prop_map(|(inputs, groups, activation)| {
        Shape::new(inputs, groups * LANES, activation).unwrap()
    })
}

proptest! {
    #[test]
    fn values_are_those_of_the_definition(shape in shapes(), networks in 1_usize..5, samples in 1_usize..12) {
        let case = Case::new(shape, networks, samples, 1);
        let states = numbers(9, networks * samples * shape.inputs);
        let mut values = vec![f32::NAN; networks * samples * ACTIONS];
        values_into(shape, &case.parameters, &states, &mut values).unwrap();
        for i in 0..networks {
            let network = wide(&case.parameters[i * shape.size()..(i + 1) * shape.size()]);
            for s in i * samples..(i + 1) * samples {
                let state = &states[s * shape.inputs..(s + 1) * shape.inputs];
                let (_, hidden, expected) = slow_forward(shape, &network, state);
                // A sum of so many terms of at most this size, each rounded a few times.
                let size = hidden.iter().fold(1.0, |m: f64, h| m.max(h.abs()));
                let bound = size * hidden.len() as f64 * shape.inputs as f64 * 1e-7;
                for (a, expected) in expected.into_iter().enumerate() {
                    prop_assert!((f64::from(values[s * ACTIONS + a]) - expected).abs() <= bound);
                }
            }
        }
    }

    #[test]
    fn a_step_is_adam_on_the_squared_temporal_difference(
        shape in shapes(),
        networks in 1_usize..5,
        capacity in 1_usize..25,
        batch in 1_usize..23,
    ) {
        let mut case = Case::new(shape, networks, capacity, batch);
        let before = case.clone();
        case.learn().unwrap();
        for i in 0..networks {
            let own = i * shape.size()..(i + 1) * shape.size();
            let network = wide(&before.parameters[own.clone()]);
            let target = wide(&before.targets[own.clone()]);
            let (loss, gradient) = slow_gradient(&before, i, &network, &target);
            prop_assert!((f64::from(case.losses[i]) - loss).abs() <= 1e-5 * loss);
            let m: Vec<f64> = gradient.iter().map(|g| 0.1 * g).collect();
            let v: Vec<f64> = gradient.iter().map(|g| 0.001 * g * g).collect();
            prop_assert!(distance(&case.moments[0][own.clone()], &m) <= 1e-5);
            prop_assert!(distance(&case.moments[1][own.clone()], &v) <= 1e-5);
            // From the rounded moments: of a gradient that nearly cancels, rounding may change the sign.
            let moments = case.moments[0][own.clone()].iter().zip(&case.moments[1][own.clone()]);
            for ((w, new), (&m, &v)) in network.iter().zip(&case.parameters[own]).zip(moments) {
                let root = (f64::from(v) / 0.001).sqrt() + 1e-8;
                let expected = w - 0.01 * (f64::from(m) / 0.1) / root;
                prop_assert!((f64::from(*new) - expected).abs() <= 1e-7);
            }
            prop_assert_eq!(case.steps[i], 1);
        }
    }
}

#[test]
fn the_result_has_the_same_bits_on_any_number_of_threads() {
    let shape = Shape::new(52, 128, Activation::Relu).unwrap();
    let case = Case::new(shape, 23, 20, 10);
    let on = |threads| {
        let mut case = case.clone();
        dpmesh_threads::with_threads(threads, || {
            case.learn().unwrap();
            case.learn().unwrap();
        });
        case.bits()
    };
    let expected = on(1);
    assert!(on(2) == expected && on(7) == expected);
}

#[test]
fn the_result_has_the_same_bits_in_registers_of_any_width() {
    for activation in [Activation::Linear, Activation::Relu] {
        let shape = Shape::new(13, 32, activation).unwrap();
        let mut wide = Case::new(shape, 1, 9, 12);
        let mut narrow = wide.clone();
        wide.learn().unwrap();
        let memory = narrow.replay();
        let mut space = Workspace::new(shape, narrow.picks.len());
        space.enter(memory, &narrow.picks, shape.inputs);
        let [mut first_moments, mut second_moments] = narrow.moments.clone();
        let mut parameters = narrow.parameters.clone();
        let loss = Step {
            shape,
            rule: Rule::at(ADAM, 1),
            parameters: &mut parameters,
            first_moments: &mut first_moments,
            second_moments: &mut second_moments,
            target: &narrow.targets,
            memory,
            picks: &narrow.picks,
            space: &mut space,
        }
        .with_simd(Scalar);
        narrow.parameters = parameters;
        narrow.moments = [first_moments, second_moments];
        narrow.losses = vec![loss];
        assert!(wide.bits() == narrow.bits(), "{activation:?}");
    }
}

#[test]
fn a_network_that_does_not_learn_stays_as_it_is() {
    let shape = Shape::new(3, 16, Activation::Linear).unwrap();
    let before = Case::new(shape, 3, 4, 2);
    let mut case = before.clone();
    case.learns[1] = false;
    case.learn().unwrap();
    assert_eq!(case.steps, [1, 0, 1]);
    assert!(case.losses[1].is_nan() && !case.losses[0].is_nan());
    for (i, (new, old)) in (case.parameters.chunks(shape.size()))
        .zip(before.parameters.chunks(shape.size()))
        .enumerate()
    {
        assert_eq!(new == old, i == 1);
    }
}

#[test]
fn nan_is_passed_on() {
    let shape = Shape::new(2, 16, Activation::Relu).unwrap();
    let mut case = Case::new(shape, 2, 3, 3);
    case.states[0] = f32::NAN;
    let mut values = [0.0; 4];
    values_into(shape, &case.parameters, &case.states[..4], &mut values).unwrap();
    assert!(values[..2].iter().all(|v| v.is_nan()) && values[2..].iter().all(|v| !v.is_nan()));
    case.learn().unwrap();
    assert!(case.losses[0].is_nan() && !case.losses[1].is_nan());
}

#[test]
fn what_does_not_fit_is_named() {
    let named = |argument, change: fn(&mut Case)| {
        let shape = Shape::new(3, 16, Activation::Linear).unwrap();
        let mut case = Case::new(shape, 2, 4, 2);
        change(&mut case);
        let before = case.bits();
        assert_eq!(case.learn().unwrap_err().argument(), argument);
        assert_eq!(case.bits(), before, "{argument}");
    };
    named("parameters", |case| case.parameters.truncate(1));
    named("first_moments", |case| case.moments[0].truncate(1));
    named("second_moments", |case| case.moments[1].truncate(1));
    named("steps", |case| case.steps.push(0));
    named("targets", |case| case.targets.truncate(1));
    named("actions", |case| case.actions.truncate(1));
    named("actions", |case| case.actions[5] = 2);
    named("states", |case| case.states.push(0.0));
    named("rewards", |case| case.rewards.push(0.0));
    named("discounts", |case| case.discounts.push(0.0));
    named("picks", |case| case.picks.truncate(1));
    named("picks", |case| case.picks[1] = 4);
    named("learns", |case| case.learns.push(true));
    named("losses", |case| case.losses.push(0.0));
    named("picks", |case| case.picks.clear());
    named("learning_rate", |case| case.adam.learning_rate = 0.0);
    named("beta1", |case| case.adam.beta1 = 1.0);
    named("beta2", |case| case.adam.beta2 = f64::NAN);
    named("epsilon", |case| case.adam.epsilon = -1.0);
    let shape = |inputs, hidden| Shape::new(inputs, hidden, Activation::Relu);
    assert_eq!(shape(0, 16).unwrap_err().argument(), "inputs");
    assert_eq!(
        shape(1, 24).unwrap_err().to_string(),
        "hidden: wanted a positive multiple of 16, got 24"
    );
    let values = |parameters: &[f32], states: &[f32], values: &mut [f32]| {
        let shape = shape(3, 16).unwrap();
        let error = values_into(shape, parameters, states, values).unwrap_err();
        error.argument()
    };
    let parameters = [0.0; 2 * 7 * LANES];
    assert_eq!(
        values(&parameters[1..], &[0.0; 6], &mut [0.0; 4]),
        "parameters"
    );
    assert_eq!(values(&parameters, &[0.0; 5], &mut [0.0; 4]), "states");
    assert_eq!(values(&parameters, &[], &mut []), "states");
    assert_eq!(values(&parameters, &[0.0; 6], &mut [0.0; 3]), "values");
}
