//! Noise that works together, against its definition written as loops.

use dpmesh_core::noise::correlated::{
    Earlier, Pair, add_pair_noise_in_place, correlated_noise_into,
};
use dpmesh_core::noise::{Distribution, Noise, noise_into};
use dpmesh_core::stream::{Cipher, Key, Stream};
use proptest::prelude::*;

fn stream(round: u32) -> Stream {
    Key::new(Cipher::Aes, &[7; 32]).stream(1, round).unwrap()
}

fn normal(nodes: &[u32], dim: usize, stream: &Stream) -> Vec<f64> {
    let mut out = vec![0.0; nodes.len() * dim];
    let noise = Noise::new(Distribution::Gaussian, &[1.0], stream).for_nodes(nodes);
    noise_into(&noise, dim, &mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn fresh_noise_and_weighted_rows(
        rows in 1_usize..6,
        dim in prop_oneof![1_usize..70, 500_usize..1100, 33_000_usize..33_100],
        weights in prop::collection::vec(-2.0..2.0_f64, 0..4),
        scale in 0.1..3.0_f64,
    ) {
        let stream = stream(2);
        let nodes: Vec<u32> = (0..rows as u32).collect();
        let past: Vec<Vec<f64>> = (0..weights.len())
            .map(|k| normal(&nodes, dim, &self::stream(100 + k as u32)))
            .collect();
        let earlier: Vec<_> = weights
            .iter()
            .zip(&past)
            .map(|(weight, rows)| Earlier::new(*weight, rows))
            .collect();
        let mut out = vec![0.0; rows * dim];
        let scales = [scale];
        let noise = Noise::new(Distribution::Gaussian, &scales, &stream);
        correlated_noise_into(&noise, &earlier, dim, &mut out).unwrap();
        let fresh = normal(&nodes, dim, &stream);
        for (i, got) in out.iter().enumerate() {
            let mut wanted = scale * fresh[i];
            for (weight, rows) in weights.iter().zip(&past) {
                wanted = weight.mul_add(rows[i], wanted);
            }
            prop_assert_eq!(*got, wanted);
        }
    }

    #[test]
    fn what_one_end_adds_the_other_subtracts(
        dim in prop_oneof![1_usize..70, 4000_usize..4700],
        links in prop::collection::btree_set((0_u32..6, 0_u32..6), 0..12),
        scale in 0.0..3.0_f64,
    ) {
        let stream = stream(3);
        let links: Vec<_> = links.into_iter().filter(|(i, j)| i != j).collect();
        let pairs: Vec<Pair> = links
            .iter()
            .map(|&(i, j)| Pair::new(10 * i + j, [Some(i), Some(j)]))
            .collect();
        let mut x = vec![0.5; 6 * dim];
        add_pair_noise_in_place(&mut x, dim, &pairs, scale, &stream).unwrap();
        let mut wanted = vec![0.5; 6 * dim];
        for &(i, j) in &links {
            for (k, z) in normal(&[10 * i + j], dim, &stream).into_iter().enumerate() {
                wanted[i as usize * dim + k] += scale * z;
                wanted[j as usize * dim + k] -= scale * z;
            }
        }
        prop_assert_eq!(&x, &wanted);
        // A process that holds node 2 alone gets the same bits for it.
        let held = |end: u32| (end == 2).then_some(0);
        let own: Vec<Pair> = links
            .iter()
            .filter(|(i, j)| *i == 2 || *j == 2)
            .map(|&(i, j)| Pair::new(10 * i + j, [held(i), held(j)]))
            .collect();
        let mut row = vec![0.5; dim];
        add_pair_noise_in_place(&mut row, dim, &own, scale, &stream).unwrap();
        prop_assert_eq!(&row[..], &wanted[2 * dim..3 * dim]);
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let stream = stream(0);
    let named = |distribution, nodes| Noise::new(distribution, &[1.0], &stream).for_nodes(nodes);
    let mut out = [0.0; 4];
    let refused = |noise: &Noise<'_>, weight, rows: &[f64]| {
        let earlier = [Earlier::new(weight, rows)];
        let result = correlated_noise_into(noise, &earlier, 2, &mut [0.0; 4]);
        result.unwrap_err().argument()
    };
    assert_eq!(
        refused(&named(Distribution::Laplace, None), 1.0, &[0.0; 4]),
        "distribution"
    );
    assert_eq!(
        refused(&named(Distribution::Gaussian, None), 1.0, &[0.0; 3]),
        "earlier"
    );
    assert_eq!(
        refused(&named(Distribution::Gaussian, None), f64::NAN, &[0.0; 4]),
        "weights"
    );
    let twice = Some(&[1, 1][..]);
    assert_eq!(
        refused(&named(Distribution::Gaussian, twice), 1.0, &[0.0; 4]),
        "nodes"
    );
    let mut pair = |node, ends: [Option<u32>; 2], scale| {
        let pairs = [Pair::new(0, [Some(0), Some(1)]), Pair::new(node, ends)];
        let result = add_pair_noise_in_place(&mut out, 2, &pairs, scale, &stream);
        result.unwrap_err().argument()
    };
    assert_eq!(pair(0, [None, None], 1.0), "nodes");
    assert_eq!(pair(1, [Some(2), None], 1.0), "ends");
    assert_eq!(pair(1, [Some(1), Some(1)], 1.0), "ends");
    assert_eq!(pair(1, [Some(0), None], -1.0), "scale");
    let some = stream.clone().for_nodes([3, 4].into());
    let result = add_pair_noise_in_place(&mut out, 2, &[], 1.0, &some);
    assert_eq!(result.unwrap_err().argument(), "stream");
}
