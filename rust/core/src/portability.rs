//! Every kernel gives the same bits with each instruction set of this processor, and with portable code. (The kernels
//! of `qnet` and the ciphers have tests of their own.)

use std::fmt::Debug;

use crate::instructions::with_each_instruction_set;
use crate::linear::{
    Averaging, Batches, Clipping, Dense, Form, LinearModel, Loss, Objective, Training, Walks,
};
use crate::mixing::{MixingMatrix, mix_into};
use crate::noise::{Law, Noise, add_noise_in_place};
use crate::packing::{pack, unpack_into};
use crate::projection::{Norm, clip_rows_in_place, row_norms_into};
use crate::quantize::{Overflow, Quantizer, quantize_noisy_into};
use crate::smoothing::{Method, Smooth, smooth_rows_in_place};
use crate::stream::{Cipher, Key};
use crate::{Real, Sample, Wide};

const ROWS: usize = 5;
const DIM: usize = 1037;

fn numbers<T: Real>() -> Vec<T> {
    let value = |i: usize| T::from_f64((i as f64 * 0.7548776662).sin() * 3.0);
    (0..ROWS * DIM).map(value).collect()
}

/// Compares results as printed, which is exact.
fn check(work: impl Fn() -> Box<dyn Debug>) {
    let results = with_each_instruction_set(|| format!("{:?}", work()));
    for result in &results[1..] {
        assert!(*result == results[0]);
    }
}

fn check_all<T: Smooth + Sample + Wide>() {
    check(|| {
        let mut x = numbers::<T>();
        smooth_rows_in_place(&mut x, &[DIM - 7, 7], 2.0, Method::Recursion).unwrap();
        Box::new(x)
    });
    check(|| {
        let (mut x, mut norms) = (numbers::<T>(), [0.0; ROWS]);
        row_norms_into(&x, DIM, Norm::L1, &mut norms).unwrap();
        clip_rows_in_place(&mut x, DIM, Norm::L2, 1.5).unwrap();
        Box::new((x, norms))
    });
    for (rows, dim) in [(ROWS, DIM), (64, 5003), (3001, 53), (3001, 7)] {
        check(|| Box::new(mixed::<T>(rows, dim, far))); // whole rows, blocks of columns, short rows
    }
    for (rows, dim) in [(17, 33), (22, 700)] {
        check(|| Box::new(mixed::<T>(rows, dim, |_, rows| (0..rows).collect()))); // dense matrices
    }
    check(|| {
        let large = mixed::<T>(401, 16_500, near); // past the cache
        Box::new(large.iter().map(|v| v.to_f64().to_bits()).fold(0, hash))
    });
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        for law in [Law::Gaussian, Law::Laplace] {
            check(|| noise_and_quantize::<T>(cipher, law));
        }
    }
    check(|| linear_model::<T>(3));
    check(|| linear_model::<T>(11));
}

fn hash(hash: u64, bits: u64) -> u64 {
    (hash.rotate_left(5) ^ bits).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// Each row mixes half itself, a quarter the next row and a quarter another, far away if `stride` is more than 1.
fn near(row: usize, rows: usize) -> Vec<usize> {
    [row, row + 1, row + 3].map(|j| j % rows).to_vec()
}

fn far(row: usize, rows: usize) -> Vec<usize> {
    [row, row + 1, 7 * row + 3].map(|j| j % rows).to_vec()
}

fn mixed<T: Wide>(rows: usize, dim: usize, neighbours: fn(usize, usize) -> Vec<usize>) -> Vec<T> {
    let indices: Vec<usize> = (0..rows).flat_map(|row| neighbours(row, rows)).collect();
    let degree = indices.len() / rows;
    let indptr: Vec<usize> = (0..=rows).map(|row| degree * row).collect();
    let weights: Vec<T> = numbers::<T>()
        .into_iter()
        .cycle()
        .take(indices.len())
        .collect();
    let matrix = MixingMatrix::new(&indptr, &indices, &weights, rows).unwrap();
    let x: Vec<T> = numbers::<T>()
        .into_iter()
        .rev()
        .cycle()
        .take(rows * dim)
        .collect();
    let mut mixed = vec![T::ZERO; rows * dim];
    mix_into(&matrix, &x, dim, &mut mixed).unwrap();
    mixed
}

fn noise_and_quantize<T: Sample + 'static>(cipher: Cipher, law: Law) -> Box<dyn Debug> {
    let key = Key::new(cipher, &[7; 32]);
    let (stream, coins) = (key.stream(1, 0).unwrap(), key.stream(2, 0).unwrap());
    let noise = Noise {
        law,
        scales: &[2.0],
        stream: &stream,
        nodes: None,
    };
    let quantizer = Quantizer {
        step: 0.25,
        coins: &coins,
        nodes: None,
        overflow: Overflow::Saturate,
    };
    let mut noisy = numbers::<T>();
    add_noise_in_place(&mut noisy, DIM, &noise).unwrap();
    let (mut codes, mut wide) = (vec![0_i8; ROWS * DIM], vec![0_i32; ROWS * DIM]);
    quantize_noisy_into(&numbers::<T>(), DIM, &noise, &quantizer, &mut codes).unwrap();
    quantize_noisy_into(&numbers::<T>(), DIM, &noise, &quantizer, &mut wide).unwrap();
    let packed = pack(&codes, 5).unwrap();
    let mut unpacked = vec![0_i8; codes.len()];
    unpack_into(&packed, 5, &mut unpacked).unwrap();
    assert_eq!(unpacked, codes);
    Box::new((noisy, packed, wide))
}

fn linear_model<T: Wide>(classes: usize) -> Box<dyn Debug> {
    let (columns, records) = (37, 7);
    let features = numbers::<T>();
    let features = Dense::new(&features[..records * columns], columns).unwrap();
    let labels: Vec<i64> = (0..records as i64).map(|i| i % classes as i64).collect();
    let objective = Objective::OneVsAll {
        loss: Loss::Logistic,
        classes,
        labels: &labels,
    };
    let model = LinearModel::new(features, objective).unwrap();
    let batches = Batches::new(&[0, 7], &[0, 3, 1, 4, 2, 6, 5]).unwrap();
    let averaging = Averaging {
        regularization: 0.1,
        divide_by: None,
    };
    let clipping = Some(Clipping {
        norm: Norm::L2,
        bound: 1.0,
    });
    let params = &numbers::<T>()[..model.dim()];
    let (mut gradient, mut losses) = (params.to_vec(), [0.0]);
    model
        .gradient_into(params, batches, averaging, clipping, &mut gradient)
        .unwrap();
    model
        .losses_into(params, batches, averaging, &mut losses)
        .unwrap();
    let moves = [Form::Direct, Form::Span].map(|form| {
        let training = Training {
            step_size: 0.3,
            radius: 0.5,
            averaging,
            form: Some(form),
        };
        let batches = Batches::new(&[0, 7, 9], &[0, 3, 1, 4, 2, 6, 5, 3, 2]).unwrap();
        let walks = Walks::new(&[0, 2], batches).unwrap();
        let (mut moves, mut losses) = (params.to_vec(), [0.0]);
        model
            .train_into(params, walks, training, &mut moves, &mut losses)
            .unwrap();
        (moves, losses)
    });
    Box::new((gradient, losses, moves))
}

#[test]
fn all_kernels_give_the_same_bits_on_every_instruction_set() {
    check_all::<f32>();
    check_all::<f64>();
}
