//! Noise that depends on that of earlier rounds, and noise between partners.

use super::noise::samples;
use super::{Element, around, assert_same, everywhere, numbers, stream};
use crate::noise::correlated::{
    Earlier, PAIRS, Pair, TURNS, add_pair_noise_in_place, correlated_noise_into,
};
use crate::noise::{Distribution, Noise};
use crate::stream::Cipher;
use crate::{Sample, parallel, sampling};

fn in_time<T: Sample + Element>() {
    let stream = stream(Cipher::Aes);
    let long = around(&[sampling::TURNS, &[parallel::SERIAL_BELOW]].concat());
    let shapes = long.into_iter().map(|dim| (2, dim));
    for (rows, dim) in shapes.chain([(700, 33), (9_001, 2)]) {
        let (first, second) = (numbers::<T>(rows * dim), numbers::<T>(rows * dim + 5));
        let second = &second[5..];
        let scales: Vec<f64> = (0..rows).map(|row| 0.3 + row as f64 * 1.1e-5).collect();
        let noise = Noise::new(Distribution::Gaussian, &scales, &stream);
        let earlier = [(0.7, first.as_slice()), (-0.21, second)];
        let earlier = earlier.map(|(weight, rows)| Earlier::new(weight, rows));
        let drawn = everywhere((rows, dim), || {
            let mut drawn = vec![T::ZERO; rows * dim];
            correlated_noise_into(&noise, &earlier, dim, &mut drawn).unwrap();
            drawn
        });
        let mut expected = Vec::with_capacity(rows * dim);
        for (row, &scale) in scales.iter().enumerate() {
            let fresh = samples::<T>(Distribution::Gaussian, &stream, row as u32, dim);
            for (column, z) in fresh.into_iter().enumerate() {
                let place = row * dim + column;
                let sum = T::from_f64(0.7).mul_add(first[place], T::from_f64(scale) * z);
                expected.push(T::from_f64(-0.21).mul_add(second[place], sum));
            }
        }
        assert_same((rows, dim), &drawn, &expected);
    }
}

#[test]
fn noise_correlated_in_time() {
    in_time::<f32>();
    in_time::<f64>();
}

fn between_partners<T: Sample + Element>() {
    let stream = stream(Cipher::Aes);
    let few = around(TURNS).into_iter().map(|dim| (3, dim, 5));
    let many = around(PAIRS).into_iter().map(|pairs| (40, TURNS[0], pairs));
    for (rows, dim, count) in few.chain(many) {
        // The first end goes around the rows; the second is another row, and sometimes elsewhere.
        let pair = |number: usize| Pair {
            node: 1_000_003 + 7 * number as u32,
            ends: [
                Some((number % rows) as u32),
                (number % 5 != 3).then_some(((number + 1 + number % (rows - 1)) % rows) as u32),
            ],
        };
        let pairs: Vec<Pair> = (0..count).map(pair).collect();
        let pairs: Vec<Pair> = pairs
            .into_iter()
            .filter(|p| p.ends[0] != p.ends[1])
            .collect();
        let x = numbers::<T>(rows * dim);
        let noisy = everywhere((rows, dim, count), || {
            let mut noisy = x.clone();
            add_pair_noise_in_place(&mut noisy, dim, &pairs, 0.37, &stream).unwrap();
            noisy
        });
        let mut expected = x;
        for pair in &pairs {
            let samples = samples::<T>(Distribution::Gaussian, &stream, pair.node, dim);
            for (end, sign) in pair.ends.into_iter().zip([T::ONE, -T::ONE]) {
                if let Some(row) = end {
                    let row = &mut expected[row as usize * dim..][..dim];
                    for (x, &z) in row.iter_mut().zip(&samples) {
                        *x += sign * (T::from_f64(0.37) * z);
                    }
                }
            }
        }
        assert_same((rows, dim, count), &noisy, &expected);
    }
}

#[test]
fn noise_between_partners() {
    between_partners::<f32>();
    between_partners::<f64>();
}
