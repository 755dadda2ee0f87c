//! Lengths that no slice has, and slices of length 0: refused or done, without a panic and without memory for them.

use dpmesh_core::complexity::suprema_into;
use dpmesh_core::discrete::{DiscreteDistribution, discrete_noise_into};
use dpmesh_core::draws::{sample_into, uniform_into};
use dpmesh_core::linear::{
    Averaging, Batches, Csr, Dense, LinearModel, Loss, Objective, scores_into,
};
use dpmesh_core::mixing::{MixingMatrix, mix_into, mix_noisy_into};
use dpmesh_core::noise::{Distribution, Noise, add_noise_in_place};
use dpmesh_core::packing::packed_sizes_into;
use dpmesh_core::projection::{Norm, clip_rows_in_place, row_norms_into};
use dpmesh_core::qnet::{Activation, LANES, Shape};
use dpmesh_core::quantize::{Overflow, Quantizer, quantize_into};
use dpmesh_core::smoothing::{Method, effective_dimensions, smooth_rows_in_place};
use dpmesh_core::stream::{Cipher, Key, Stream};

const HUGE: [usize; 4] = [usize::MAX, usize::MAX / 2, 1 << 60, 1 << 57];

const FOURIER: Method = Method::Fourier { power: 1 };

fn stream() -> Stream {
    Key::new(Cipher::Aes, &[7; 32]).stream(1, 0).unwrap()
}

fn noise(stream: &Stream) -> Noise<'_> {
    Noise::new(Distribution::Gaussian, &[1.0], stream)
}

#[test]
fn no_rows_of_a_huge_length() {
    let stream = stream();
    let noise = noise(&stream);
    let quantizer = Quantizer::new(1.0, &stream, Overflow::Refuse);
    let mut none = [0.0_f32; 0];
    for dim in HUGE {
        let done = [
            add_noise_in_place(&mut none, dim, &noise),
            uniform_into(&stream, None, dim, &mut none),
            discrete_noise_into(
                DiscreteDistribution::Laplace,
                1.0,
                &stream,
                None,
                dim,
                &mut [],
            ),
            clip_rows_in_place(&mut none, dim, Norm::L2, 1.0),
            row_norms_into(&none, dim, Norm::L2, &mut []),
            quantize_into(&none, dim, &quantizer, &mut [0_i8; 0]).map(drop),
            packed_sizes_into(&[0_i8; 0], dim, 3, &mut []),
            sample_into(&[], &stream, None, dim, &mut []),
            smooth_rows_in_place(&mut none, &[dim], 1.0, Method::Recursion),
            smooth_rows_in_place(&mut none, &[dim], 1.0, FOURIER),
            smooth_rows_in_place(&mut none, &[dim, dim], 1.0, FOURIER),
            suprema_into(&none, dim, 0.1, &stream, 0, &mut []),
        ];
        for result in done {
            if let Err(error) = result {
                assert!(["dim", "vectors"].contains(&error.argument()), "{error}");
            }
        }
    }
}

#[test]
fn matrices_with_columns_that_nothing_has() {
    let stream = stream();
    let noise = noise(&stream);
    for columns in HUGE {
        let matrix = MixingMatrix::<f32, usize>::new(&[0, 0], &[], &[], columns).unwrap();
        for dim in [2, 1 << 57] {
            let error = mix_into(&matrix, &[], dim, &mut []).unwrap_err();
            assert!(["x", "dim"].contains(&error.argument()), "{error}");
            assert!(mix_noisy_into(&matrix, &[], dim, &noise, &mut []).is_err());
        }
    }
    let error = MixingMatrix::<f32, usize>::new(&[0, 0], &[], &[], 0).unwrap_err();
    assert_eq!(error.argument(), "columns");
}

#[test]
fn linear_models_of_nothing_or_too_much() {
    let labels = [0_i64, 1];
    for classes in HUGE {
        let objective = Objective::Softmax {
            classes,
            labels: &labels,
        };
        let features = Dense::new(&[1.0_f64; 6], 3).unwrap();
        let model = LinearModel::new(features, objective).unwrap();
        assert!(model.count_correct_into(&[], &mut []).is_err());
        let columns = Csr::<f64, i64>::new(&[0, 0, 0], &[], &[], classes).unwrap();
        let model = LinearModel::new(columns, objective).unwrap();
        assert!(model.count_correct_into(&[], &mut []).is_err());
        assert!(scores_into(&columns, &[], &mut []).is_err());
    }
    let features = Dense::new(&[1.0_f64; 6], 3).unwrap();
    assert_eq!(scores_into(&features, &[], &mut []), Ok(()));

    let no_records = Dense::new(&[] as &[f64], 3).unwrap();
    let objective = Objective::Single {
        loss: Loss::Squared,
        labels: &[],
    };
    let model = LinearModel::new(no_records, objective).unwrap();
    let batches = Batches::new(&[0, 1], &[0]).unwrap();
    let error = model
        .gradient_into(
            &[0.0; 3],
            batches,
            Averaging::default(),
            None,
            &mut [0.0; 3],
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "batches: wanted records from 0 to -1, got 0"
    );
    let mut count = [7];
    assert_eq!(model.count_correct_into(&[0.0; 3], &mut count), Ok(()));
    assert_eq!(count, [0]);
}

#[test]
fn networks_and_spectra_of_huge_sizes() {
    for size in HUGE {
        let shape = Shape::new(size, LANES, Activation::Relu);
        assert_eq!(shape.unwrap_err().argument(), "inputs");
        let hidden = size / LANES * LANES;
        let shape = Shape::new(3, hidden, Activation::Relu);
        assert_eq!(shape.unwrap_err().argument(), "hidden");
        assert_eq!(
            effective_dimensions(size, 1.0, 2).unwrap_err().argument(),
            "dim"
        );
        assert!(effective_dimensions(size, 1.0, 1).is_ok());
    }
}
