//! Discrete noise: the accepted candidates of each group, in order.

use super::{around, assert_same, everywhere, stream};
use crate::discrete::{DiscreteDistribution, TURNS, discrete_noise_into, one_by_one};
use crate::parallel;
use crate::stream::Cipher;

#[test]
fn discrete_noise_of_long_and_many_rows() {
    let stream = stream(Cipher::Aes);
    for (distribution, scale) in [
        (DiscreteDistribution::Laplace, 40.3),
        (DiscreteDistribution::Gaussian, 7.7),
    ] {
        let long = around(&[TURNS, &[parallel::BLOCK, parallel::SERIAL_BELOW]].concat());
        let shapes = long.into_iter().map(|dim| (2, dim));
        for (rows, dim) in shapes.chain([(16_500, 2), (700, 50), (65_537, 1)]) {
            let drawn = everywhere((distribution, rows, dim), || {
                let mut drawn = vec![0; rows * dim];
                discrete_noise_into(distribution, scale, &stream, None, dim, &mut drawn).unwrap();
                drawn
            });
            let expected =
                (0..rows).flat_map(|row| one_by_one(distribution, scale, &stream, row as u32, dim));
            assert_same(
                (distribution, rows, dim),
                &drawn,
                &expected.collect::<Vec<i64>>(),
            );
        }
    }
}
