//! Quantization: unbiased, of the stated variance, and the same bits for any threads and any cut of the rows.

use crate::statistics::{TWO_SIDED, z_score};
use dpmesh_core::noise::{Distribution, Noise, add_noise_in_place};
use dpmesh_core::quantize::{
    Code, Overflow, Quantizer, dequantize_into, quantize_into, quantize_noisy_into, variance_into,
};
use dpmesh_core::stream::{Cipher, Key, Stream};
use dpmesh_core::{KernelError, Sample};
use proptest::prelude::*;

const MILLION: usize = 1_000_000;

fn stream(purpose: u32) -> Stream {
    let key = Key::new(Cipher::Aes, &std::array::from_fn(|i| i as u8));
    key.stream(purpose, 0).unwrap()
}

fn quantizer(step: f64, coins: &Stream) -> Quantizer<'_> {
    Quantizer::new(step, coins, Overflow::Refuse)
}

fn quantized<T: Sample, C: Code>(x: &[T], step: f64) -> Vec<C> {
    let mut codes = vec![C::default(); x.len()];
    quantize_into(x, x.len(), &quantizer(step, &stream(2)), &mut codes).unwrap();
    codes
}

fn noisy_codes<T: Sample>(x: &[T], dim: usize, scales: &[f64], step: f64) -> Vec<i32> {
    let (noise, coins) = (stream(1), stream(2));
    let noise = Noise::new(Distribution::Gaussian, scales, &noise);
    let mut codes = vec![0; x.len()];
    quantize_noisy_into(x, dim, &noise, &quantizer(step, &coins), &mut codes).unwrap();
    codes
}

/// Numbers whose fractions in steps of 0.3 are spread over [0, 1).
fn spread<T: Sample>() -> Vec<T> {
    (0..MILLION)
        .map(|i| T::from_f64(30.0 * (i as f64).sin()))
        .collect()
}

/// The z-scores of the mean error, of its correlation with the fraction, and of its square; errors are in steps.
fn scores<T: Sample>(x: &[T], step: f64, codes: &[i32]) -> [f64; 3] {
    let draws: Vec<[f64; 3]> = x
        .iter()
        .zip(codes)
        .map(|(x, &code)| {
            let t = x.to_f64() / step;
            let p = t - t.floor();
            [f64::from(code) - t, p, p * (1.0 - p)]
        })
        .collect();
    let mean = |f: fn(&[f64; 3]) -> f64| draws.iter().map(f).sum::<f64>() / MILLION as f64;
    let z = |f: fn(&[f64; 3]) -> f64, variance| z_score(draws.iter().map(f), 0.0, variance);
    [
        z(|[error, _, _]| *error, mean(|[_, _, v]| *v)),
        z(
            |[error, p, _]| error * (p - 0.5),
            mean(|[_, p, v]| v * (p - 0.5).powi(2)),
        ),
        // E (error^2 - v)^2 = v (1 - 3 v) - v^2 for a coin of variance v = p (1 - p).
        z(
            |[error, _, v]| error * error - v,
            mean(|[_, _, v]| v * (1.0 - 4.0 * v)),
        ),
    ]
}

#[test]
fn codes_are_unbiased_with_the_stated_variance_and_errors_do_not_follow_the_fraction() {
    fn check<T: Sample>() {
        let x = spread::<T>();
        let codes = quantized::<T, i32>(&x, 0.3);
        for z in scores(&x, 0.3, &codes) {
            assert!(z.abs() < TWO_SIDED, "{z}");
        }
    }
    check::<f32>();
    check::<f64>();
}

#[test]
fn the_scores_notice_other_roundings() {
    let x = spread::<f64>();
    let with = |round: fn(f64, f64) -> f64| -> Vec<i32> {
        let coins = quantized::<f64, i32>(&vec![0.5; MILLION], 1.0);
        let steps = x.iter().map(|x| x / 0.3);
        steps
            .zip(coins)
            .map(|(t, coin)| round(t, f64::from(coin)) as i32)
            .collect()
    };
    let noticed = |codes: &[i32], score: usize| {
        assert!(scores(&x, 0.3, codes)[score].abs() > TWO_SIDED);
    };
    noticed(&with(|t, _| (t + 0.01).round()), 0);
    noticed(&with(|t, _| t.round()), 1);
    noticed(&with(|t, coin| t.floor() + coin), 1);
    noticed(&with(|t, coin| t.floor() + coin), 2);
    let right = quantized::<f64, i32>(&x, 0.3);
    let sometimes_up: Vec<i32> = (0..)
        .zip(right)
        .map(|(i, code)| code + i32::from(i % 250 == 0))
        .collect();
    noticed(&sometimes_up, 0);
}

#[test]
fn a_number_goes_to_its_two_neighbours_as_computed_by_hand() {
    let codes: Vec<i8> = quantized(&vec![-2.3_f64; MILLION], 0.5);
    let count = |code| codes.iter().filter(|&&c| c == code).count();
    assert_eq!(count(-5) + count(-4), MILLION);
    let up = codes.iter().map(|&code| f64::from(code + 5));
    assert!(z_score(up, 0.4, 0.24).abs() < TWO_SIDED);
    let mut variance = [0.0];
    variance_into(&[-2.3_f64], 0.5, &mut variance).unwrap();
    assert!((variance[0] - 0.06).abs() < 1e-15);
}

/// P(code = m) = h(a + 1) - 2 h(a) + h(a - 1) with a = x - m, h(u) = u Phi(u/s) + s phi(u/s), computed elsewhere.
#[test]
fn noisy_codes_have_their_exact_distribution() {
    let codes = noisy_codes(&vec![0.37_f32; MILLION], MILLION, &[1.3], 1.0);
    for (code, probability) in [(1, 0.263_005_429_2), (0, 0.282_032_359_3)] {
        let hits = codes.iter().map(|&c| f64::from(u8::from(c == code)));
        let z = |p: f64| z_score(hits.clone(), p, p * (1.0 - p)).abs();
        assert!(z(probability) < TWO_SIDED);
        assert!(z(probability * 1.02) > TWO_SIDED); // expected at 12
    }
}

#[test]
fn levels_stay_where_they_are() {
    let levels: Vec<f32> = (-3000..3000).map(|m| m as f32 * 0.25).collect();
    let expected: Vec<i16> = (-3000..3000).collect();
    assert_eq!(quantized::<f32, i16>(&levels, 0.25), expected);
    assert_eq!(quantized::<f32, i32>(&[2_f32.powi(30)], 1.0), [1 << 30]);
}

fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    dpmesh_threads::with_threads(threads, work)
}

#[test]
fn codes_are_the_same_on_any_number_of_threads_and_in_one_pass_with_the_noise() {
    fn check<T: Sample>(rows: usize, dim: usize) {
        let x: Vec<T> = (0..rows * dim)
            .map(|i| T::from_f64((i as f64).cos()))
            .collect();
        let scales: Vec<f64> = (0..rows).map(|row| row as f64 * 0.1).collect();
        let codes = || noisy_codes(&x, dim, &scales, 0.01);
        let mut noisy = x.clone();
        let drawn = stream(1);
        let noise = Noise::new(Distribution::Gaussian, &scales, &drawn);
        add_noise_in_place(&mut noisy, dim, &noise).unwrap();
        let mut apart = vec![0; x.len()];
        quantize_into(&noisy, dim, &quantizer(0.01, &stream(2)), &mut apart).unwrap();
        for threads in [1, 2, 7] {
            assert!(
                on_threads(threads, codes) == apart,
                "{rows} {dim} {threads}"
            );
        }
    }
    for (rows, dim) in [(1, 1), (5, 3), (20_000, 7), (70, 600), (3, 50_001)] {
        check::<f32>(rows, dim);
        check::<f64>(rows, dim);
    }
}

proptest! {
    #[test]
    fn codes_are_floor_or_ceiling_and_depend_on_node_and_place_alone(
        x in prop::collection::vec(-1e6_f64..1e6, 1..700),
        log_step in -6_i32..8,
        nodes in prop::collection::hash_set(any::<u32>(), 1..5),
    ) {
        let (step, coins) = (2_f64.powi(log_step), stream(2));
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let rows = x.repeat(nodes.len());
        let mut codes = vec![0_i64; rows.len()];
        let together = quantizer(step, &coins).for_nodes(nodes.as_slice());
        quantize_into(&rows, x.len(), &together, &mut codes).unwrap();
        for (node, row) in nodes.iter().zip(codes.chunks(x.len())) {
            for (x, &code) in x.iter().zip(row) {
                let t = x / step;
                prop_assert!(code == t.floor() as i64 || code == t.ceil() as i64, "{x} {code}");
            }
            let mut alone = vec![0_i64; x.len()];
            let ids = [*node];
            let one = together.for_nodes(ids.as_slice());
            quantize_into(&x, x.len(), &one, &mut alone).unwrap();
            prop_assert_eq!(row, &alone[..]);
        }
    }

    #[test]
    fn dequantizing_multiplies_by_the_step(codes in prop::collection::vec(any::<i32>(), 0..70), step in 1e-3..1e3) {
        let mut values = vec![f64::NAN; codes.len()];
        dequantize_into(&codes, step, &mut values).unwrap();
        for (value, code) in values.iter().zip(codes) {
            prop_assert_eq!(*value, f64::from(code) * step);
        }
    }
}

/// The coin of place `i`: one word for `f32`, two that lie 8 apart for `f64`.
fn coin(words: &[u32], i: usize, two: bool) -> f64 {
    let unit = |word: u32| f64::from(word) / 2_f64.powi(32);
    if two {
        let (high, low) = (words[i / 8 * 16 + i % 8], words[i / 8 * 16 + 8 + i % 8]);
        unit(high) + f64::from(low >> 11) / 2_f64.powi(53)
    } else {
        unit(words[i] >> 8 << 8)
    }
}

#[test]
fn codes_come_from_the_words_of_the_stream() {
    fn check<T: Sample, C: Code + Into<f64>>(two: bool) {
        let x: Vec<T> = spread()[..1000].to_vec();
        let mut words = vec![0; 2000];
        stream(2).words_into(0, 0, &mut words).unwrap();
        for (i, code) in quantized::<T, C>(&x, 0.25).into_iter().enumerate() {
            let t = x[i].to_f64() / 0.25;
            let up = coin(&words, i, two) < t - t.floor();
            assert_eq!(code.into(), t.floor() + f64::from(u8::from(up)));
        }
    }
    check::<f32, i8>(false);
    check::<f32, i32>(false);
    check::<f64, i8>(true);
    check::<f64, i32>(true);
}

/// A change of these values breaks the repetition of runs.
#[test]
fn codes_of_a_key_never_change() {
    let x: Vec<f64> = (0..12).map(|i| f64::from(i) * 0.37 - 2.0).collect();
    let narrow: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    let golden = [-2, -1, -2, -1, -1, 0, 0, 1, 1, 1, 2, 2];
    assert_eq!(quantized::<f64, i32>(&x, 1.0), golden);
    let golden = [-2, -1, -2, -1, -1, 0, 0, 1, 1, 2, 2, 2];
    assert_eq!(quantized::<f32, i32>(&narrow, 1.0), golden);
}

#[test]
fn what_does_not_fit_is_refused_or_counted() {
    fn ends<C: Code + std::fmt::Debug>(lowest: C, highest: C) {
        let (low, high) = (C::LOWEST as f64, C::HIGHEST as f64);
        let coins = stream(2);
        let mut codes = [C::default(); 3];
        quantize_into(&[low, 0.0, high], 3, &quantizer(1.0, &coins), &mut codes).unwrap();
        assert!(codes == [lowest, C::default(), highest]);
        for (x, wrong) in [([low - 1.0, 0.0, 1.0], 0), ([0.0, high + 1.0, -1e300], 1)] {
            let error = quantize_into(&x, 1, &quantizer(1.0, &coins), &mut codes).unwrap_err();
            let wanted = format!(
                "x: wanted values with codes from {} to {}",
                C::LOWEST,
                C::HIGHEST
            );
            assert_eq!(
                error.to_string(),
                format!(
                    "{wanted}, got {} of code {} in row {wrong}",
                    x[wrong], x[wrong]
                )
            );
        }
        let saturating = Quantizer::new(1.0, &coins, Overflow::Saturate);
        let count = quantize_into(&[-1e300, 0.0, 1e300], 3, &saturating, &mut codes);
        assert_eq!(count, Ok(2));
        assert!(codes == [lowest, C::default(), highest]);
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for quantizer in [saturating, quantizer(1.0, &coins)] {
                let error = quantize_into(&[0.0, x, 1.0], 1, &quantizer, &mut codes).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    format!("x: wanted finite values, got {x} in row 1")
                );
            }
        }
    }
    ends(i8::MIN, i8::MAX);
    ends(i16::MIN, i16::MAX);
    ends(i32::MIN, i32::MAX);
    ends(-(1_i64 << 51), (1_i64 << 51) - 1);
}

#[test]
fn many_wrong_values_name_the_first_on_any_number_of_threads() {
    let mut x = vec![0.0_f32; 200_000];
    (x[70_003], x[150_000]) = (1e9, f32::NAN);
    let coins = stream(2);
    for threads in [1, 2, 7] {
        let error = on_threads(threads, || {
            quantize_into(&x, 1000, &quantizer(1.0, &coins), &mut vec![0_i8; x.len()])
        });
        let got = "1000000000 of code 1000000000 in row 70";
        assert_eq!(error.unwrap_err().got(), got);
    }
}

#[test]
fn other_wrong_arguments_are_named() {
    let coins = stream(2);
    let argument = |result: Result<u64, KernelError>| result.unwrap_err().argument();
    let mut codes = [0_i8; 2];
    for step in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-200, 1e200] {
        assert_eq!(
            argument(quantize_into(
                &[1.0, 2.0],
                1,
                &quantizer(step, &coins),
                &mut codes
            )),
            "step"
        );
        assert_eq!(
            dequantize_into(&codes, step, &mut [0.0; 2])
                .unwrap_err()
                .argument(),
            "step"
        );
        assert_eq!(
            variance_into(&[1.0], step, &mut [0.0])
                .unwrap_err()
                .argument(),
            "step"
        );
    }
    let fine = quantizer(1.0, &coins);
    assert_eq!(argument(quantize_into(&[1.0], 1, &fine, &mut codes)), "out");
    assert_eq!(
        argument(quantize_into(&[1.0, 2.0], 0, &fine, &mut codes)),
        "dim"
    );
    let twice = fine.for_nodes([3, 3].as_slice());
    assert_eq!(
        argument(quantize_into(&[1.0, 2.0], 1, &twice, &mut codes)),
        "nodes"
    );
    let noise = Noise::new(Distribution::Gaussian, &[1.0], &coins);
    assert_eq!(
        argument(quantize_noisy_into(
            &[1.0, 2.0],
            1,
            &noise,
            &fine,
            &mut codes
        )),
        "coins"
    );
    assert_eq!(
        variance_into(&[f32::NAN], 1.0, &mut [0.0])
            .unwrap_err()
            .argument(),
        "x"
    );
    assert_eq!(
        variance_into(&[1.0], 1.0, &mut [0.0; 2])
            .unwrap_err()
            .argument(),
        "out"
    );
    assert_eq!(
        dequantize_into(&codes, 1.0, &mut [0.0])
            .unwrap_err()
            .argument(),
        "out"
    );
}
