//! Q-networks and suprema: each one alone, and all together.

use super::{around, assert_same, everywhere, numbers, stream};
use crate::complexity::suprema_into;
use crate::draws::rademacher_into;
use crate::parallel;
use crate::qnet::{ACTIONS, Activation, LANES, Shape, values_into};
use crate::stream::Cipher;

#[test]
fn values_of_many_networks() {
    let (inputs, samples) = (3, 2);
    let shape = Shape::new(inputs, LANES, Activation::Relu).unwrap();
    let size = shape.rows() * LANES;
    for networks in around(&[shape.networks_per_task(), 2 * shape.networks_per_task()]) {
        let parameters = numbers::<f32>(networks * size);
        let states = numbers::<f32>(networks * samples * inputs);
        let values = everywhere(networks, || {
            let mut values = vec![0.0; networks * samples * ACTIONS];
            values_into(shape, &parameters, &states, &mut values).unwrap();
            values
        });
        let all = parameters.chunks(size).zip(states.chunks(samples * inputs));
        for ((parameters, states), values) in all.zip(values.chunks(samples * ACTIONS)) {
            let mut alone = vec![0.0; samples * ACTIONS];
            values_into(shape, parameters, states, &mut alone).unwrap();
            assert_same(networks, values, &alone);
        }
    }
}

#[test]
fn suprema_over_long_and_many_vectors() {
    let stream = stream(Cipher::Aes);
    for dim in around(&[8, 512, parallel::BLOCK]) {
        let vectors = super::whole_numbers::<f32>(3 * dim);
        for draws in [1, 40] {
            let suprema = everywhere((dim, draws), || {
                let mut suprema = vec![0.0; draws];
                suprema_into(&vectors, dim, 0.3, &stream, 65_530, &mut suprema).unwrap();
                suprema
            });
            let supremum = |draw: usize| {
                let mut signs = vec![0; dim];
                let node = [65_530 + draw as u32];
                rademacher_into(0.3, &stream, Some(&node), dim, &mut signs).unwrap();
                let product = |v: &[f32]| {
                    let terms = v.iter().zip(&signs);
                    terms
                        .map(|(&v, &sign)| f64::from(v) * f64::from(sign))
                        .sum()
                };
                vectors
                    .chunks(dim)
                    .map(product)
                    .fold(f64::NEG_INFINITY, f64::max)
            };
            let expected: Vec<f64> = (0..draws).map(supremum).collect();
            assert_same((dim, draws), &suprema, &expected);
        }
    }
}
