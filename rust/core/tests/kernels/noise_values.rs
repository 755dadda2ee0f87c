//! Which value is where: the same for any number of threads, any cut of the rows, and every version.

use dpmesh_core::noise::{
    Distribution, Noise, add_noise_in_place, add_noise_into, add_noise_up_to, noise_into,
};
use dpmesh_core::projection::{Norm, row_norms_into};
use dpmesh_core::stream::{Cipher, Key, Stream};
use dpmesh_core::{KernelError, Sample};
use proptest::prelude::*;

fn stream(cipher: Cipher) -> Stream {
    Key::new(cipher, &std::array::from_fn(|i| i as u8))
        .stream(1, 2)
        .unwrap()
}

fn draw<T: Sample>(
    distribution: Distribution,
    stream: &Stream,
    nodes: &[u32],
    dim: usize,
) -> Vec<T> {
    let noise = Noise::new(distribution, &[1.0], stream).for_nodes(nodes);
    let mut samples = vec![T::ZERO; nodes.len() * dim];
    noise_into(&noise, dim, &mut samples).unwrap();
    samples
}

fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    dpmesh_threads::with_threads(threads, work)
}

#[test]
fn values_are_the_same_on_any_number_of_threads() {
    fn check<T: Sample + PartialEq>(distribution: Distribution, cipher: Cipher) {
        let stream = stream(cipher);
        for (rows, dim) in [(20_000_u32, 3), (100, 700), (1, 50_001), (3, 40_000)] {
            let nodes: Vec<u32> = (0..rows).collect();
            let draw = || draw::<T>(distribution, &stream, &nodes, dim);
            let alone = on_threads(1, draw);
            assert!(on_threads(2, draw) == alone && on_threads(7, draw) == alone);
        }
    }
    check::<f32>(Distribution::Gaussian, Cipher::Aes);
    check::<f64>(Distribution::Gaussian, Cipher::Aes);
    check::<f32>(Distribution::Laplace, Cipher::ChaCha20);
    check::<f64>(Distribution::Laplace, Cipher::ChaCha20);
}

proptest! {
    #[test]
    fn a_value_depends_on_its_node_and_place_alone(
        nodes in prop::collection::hash_set(any::<u32>(), 1..40),
        dim in 1_usize..1200,
        longer in 0_usize..1200,
        gaussian: bool,
        aes: bool,
    ) {
        let distribution = if gaussian { Distribution::Gaussian } else { Distribution::Laplace };
        let stream = stream(if aes { Cipher::Aes } else { Cipher::ChaCha20 });
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let together = draw::<f32>(distribution, &stream, &nodes, dim);
        for (node, row) in nodes.iter().zip(together.chunks(dim)) {
            let alone = draw::<f32>(distribution, &stream, &[*node], dim + longer);
            prop_assert_eq!(row, &alone[..dim]);
        }
    }

    #[test]
    fn adding_is_filling_times_the_scale_of_the_row(
        rows in 1_usize..20,
        dim in 1_usize..600,
        scale in 0.0_f64..10.0,
        per_row: bool,
    ) {
        let stream = stream(Cipher::Aes);
        let scales: Vec<f64> = (0..if per_row { rows } else { 1 }).map(|i| scale * i as f64).collect();
        let noise = Noise::new(Distribution::Laplace, &scales, &stream);
        let x: Vec<f64> = (0..rows * dim).map(|i| (i as f64).cos()).collect();
        let mut z = vec![f64::NAN; x.len()];
        noise_into(&Noise::new(noise.distribution, &[1.0], &stream).for_nodes(noise.nodes), dim, &mut z).unwrap();
        let mut sum = vec![f64::NAN; x.len()];
        add_noise_into(&x, dim, &noise, &mut sum).unwrap();
        let mut in_place = x.clone();
        add_noise_in_place(&mut in_place, dim, &noise).unwrap();
        prop_assert_eq!(&sum, &in_place);
        for (i, ((x, z), sum)) in x.iter().zip(&z).zip(&sum).enumerate() {
            prop_assert_eq!(*sum, scales[if per_row { i / dim } else { 0 }].mul_add(*z, *x));
        }
    }
}

#[test]
fn a_noisy_element_that_is_not_finite_is_found_wherever_it_is() {
    let stream = stream(Cipher::Aes);
    let noise = Noise::new(Distribution::Gaussian, &[1.0], &stream);
    for (rows, dim) in [(1, 1), (5, 10), (3, 601), (2, 40_000)] {
        for bad in [0, rows * dim / 2, rows * dim - 1] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![f32::MAX / 2.0; rows * dim];
                add_noise_in_place(&mut x, dim, &noise).unwrap();
                x[bad] = value;
                let error = add_noise_in_place(&mut x, dim, &noise).unwrap_err();
                let message = "x: wanted finite values, got NaN or infinity";
                assert_eq!(error.to_string(), message);
            }
        }
    }
}

/// Elements 0, 7, 8 and 600 of node 5. A change here breaks reproducibility: say so in the changelog.
#[test]
fn values_are_those_of_every_earlier_version() {
    fn values<T: Sample>(distribution: Distribution, cipher: Cipher) -> [f64; 4] {
        let row = draw::<T>(distribution, &stream(cipher), &[5], 601);
        [0, 7, 8, 600].map(|i| row[i].to_f64())
    }
    let got = [
        values::<f32>(Distribution::Gaussian, Cipher::Aes),
        values::<f64>(Distribution::Gaussian, Cipher::Aes),
        values::<f32>(Distribution::Laplace, Cipher::Aes),
        values::<f64>(Distribution::Laplace, Cipher::Aes),
        values::<f32>(Distribution::Gaussian, Cipher::ChaCha20),
        values::<f64>(Distribution::Gaussian, Cipher::ChaCha20),
        values::<f32>(Distribution::Laplace, Cipher::ChaCha20),
        values::<f64>(Distribution::Laplace, Cipher::ChaCha20),
    ];
    assert_eq!(got, GOLDEN);
}

const GOLDEN: [[f64; 4]; 8] = [
    [
        0.28420642018318176,
        -0.26882168650627136,
        2.1640379428863525,
        0.6243664026260376,
    ],
    [
        0.2842064347475408,
        -0.2688216786631428,
        2.1640378641518865,
        -0.46394156608468823,
    ],
    [
        -1.6887693405151367,
        0.5699502825737,
        3.180467128753662,
        0.0371086560189724,
    ],
    [
        -1.6887694069575379,
        0.5699502859531814,
        3.180466968448659,
        0.037108682890944794,
    ],
    [
        2.570378065109253,
        -1.6838138103485107,
        -0.5973202586174011,
        -0.4511847496032715,
    ],
    [
        2.57037797386887,
        -1.6838137921421725,
        -0.5973201914778031,
        0.4852119761605738,
    ],
    [
        -2.788670063018799,
        -0.9321559071540833,
        -0.8502240180969238,
        -0.4133601188659668,
    ],
    [
        -2.7886699892887146,
        -0.9321559033593556,
        -0.8502239908601553,
        -0.4133601376388177,
    ],
];

#[test]
fn what_does_not_fit_is_named() {
    let stream = stream(Cipher::Aes);
    let error = |scales: &[f64], nodes: Option<&[u32]>, dim| {
        let noise = Noise::new(Distribution::Gaussian, scales, &stream).for_nodes(nodes);
        let add = add_noise_in_place(&mut [0.0_f32; 6], dim, &noise);
        add.map_err(|error: KernelError| error.to_string())
            .unwrap_err()
    };
    for scale in [-1.0, f64::NAN, f64::INFINITY, 1e-50, 1e300] {
        assert!(error(&[scale], None, 2).starts_with("scale: wanted finite numbers of at least 0"));
    }
    assert_eq!(
        error(&[1.0, 1.0], None, 2),
        "scale: wanted 1 number or 3, one for each row, got 2"
    );
    assert_eq!(
        error(&[1.0], Some(&[1, 2]), 2),
        "nodes: wanted one for each of 3 rows, got 2"
    );
    assert_eq!(
        error(&[1.0], Some(&[1, 2, 1]), 2),
        "nodes: wanted distinct nodes, got 1 twice"
    );
    assert_eq!(
        error(&[1.0], None, 4),
        "x: wanted a multiple of dim = 4 elements, got 6"
    );
    assert_eq!(error(&[1.0], None, 0), "dim: wanted at least 1, got 0");
    let noise = Noise::new(Distribution::Laplace, &[1.0], &stream);
    let unequal = add_noise_into(&[0.0_f32; 2], 2, &noise, &mut [0.0; 3]).unwrap_err();
    assert_eq!(unequal.to_string(), "out: wanted 2 elements, got 3");
}

#[test]
fn noisy_rows_are_no_longer_than_the_longest() {
    fn check<T: Sample>() {
        let stream = Key::new(Cipher::Aes, &[7; 32]).stream(1, 0).unwrap();
        for (distribution, norm) in [
            (Distribution::Gaussian, Norm::L2),
            (Distribution::Laplace, Norm::L1),
        ] {
            let noise = Noise::new(distribution, &[1.5], &stream);
            let (mut noisy, mut norms) = (vec![T::ONE; 3 * 100], [0.0; 3]);
            add_noise_in_place(&mut noisy, 100, &noise).unwrap();
            row_norms_into(&noisy, 100, norm, &mut norms).unwrap();
            let longest = norms.iter().copied().fold(0.0, f64::max);
            let drawn = |longest, x: &mut [T]| add_noise_up_to(longest, None, 100, &noise, x);
            let mut x = vec![T::ONE; 3 * 100];
            drawn(longest, &mut x).unwrap();
            assert_eq!(x, noisy);
            let mut x = vec![T::ONE; 3 * 100];
            let error = drawn(longest * 0.999, &mut x).unwrap_err();
            assert_eq!((error.argument(), error.got()), ("x", "a longer one"));
        }
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn a_row_is_as_long_as_its_stream_and_no_longer() {
    fn check<T: Sample>(distribution: Distribution, longest: usize) {
        let stream = stream(Cipher::Aes);
        let noise = Noise::new(distribution, &[1.0], &stream);
        // No rows: the length alone is refused.
        noise_into::<T>(&noise, longest, &mut []).unwrap();
        let error = noise_into::<T>(&noise, longest + 1, &mut []).unwrap_err();
        assert_eq!(error.argument(), "dim");
        let blocks = "at most 1073741824 blocks of a stream for each node";
        assert_eq!(error.wanted(), blocks);
    }
    check::<f32>(Distribution::Laplace, 1 << 33);
    check::<f64>(Distribution::Laplace, 1 << 33);
    check::<f32>(Distribution::Gaussian, (1 << 31) / 3 * 16);
    check::<f64>(Distribution::Gaussian, 1 << 33);
}

#[test]
fn nodes_are_counted_among_those_of_the_stream_and_are_distinct_there() {
    let held = |nodes: [u32; 3]| stream(Cipher::Aes).for_nodes(nodes.into());
    let draw = |stream: &Stream, nodes: &[u32]| {
        let noise = Noise::new(Distribution::Laplace, &[1.0], stream).for_nodes(nodes);
        let mut samples = vec![0.0_f64; 2 * nodes.len()];
        noise_into(&noise, 2, &mut samples).map(|()| samples)
    };
    let whole = draw(&stream(Cipher::Aes), &[9, 4]).unwrap();
    assert_eq!(draw(&held([4, 7, 9]), &[2, 0]).unwrap(), whole);
    let error = |nodes, named: &[u32]| draw(&held(nodes), named).unwrap_err().to_string();
    assert_eq!(
        error([4, 7, 4], &[0, 2]),
        "nodes: wanted distinct nodes, got 4 twice"
    );
    assert_eq!(
        error([4, 7, 9], &[0, 3]),
        "nodes: wanted nodes below 3, as many as the key is for, got 3"
    );
}
