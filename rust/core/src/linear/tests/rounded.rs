//! Features in 8 bits against the same numbers as a dense matrix of `f64`: the same bits everywhere.

use super::*;
use crate::instructions::with_each_instruction_set;

/// Codes of records whose rows have room for more, their scales, and the numbers that they stand for.
struct Stored {
    codes: Vec<i8>,
    scales: Vec<f32>,
    stride: usize,
    columns: usize,
    numbers: Vec<f64>,
}

impl Stored {
    fn of(records: usize, columns: usize, room: usize) -> Stored {
        let stride = columns + room;
        let groups = stride.div_ceil(SHARED);
        let code = |i: usize| (127.0 * (0.7 * i as f64).sin()).round() as i8;
        let codes: Vec<i8> = (0..records * stride).map(code).collect();
        let scale = |i: usize| ((1.3 * i as f64).cos() / 700.0) as f32;
        let scales: Vec<f32> = (0..records * groups).map(scale).collect();
        let number = |i: usize| {
            let (record, column) = (i / columns, i % columns);
            let scale = scales[record * groups + column / SHARED];
            f64::from(f32::from(codes[record * stride + column]) * scale)
        };
        let numbers = (0..records * columns).map(number).collect();
        Stored {
            codes,
            scales,
            stride,
            columns,
            numbers,
        }
    }

    fn rounded(&self) -> Rounded<'_, f64> {
        Rounded::new(&self.codes, &self.scales, self.stride, self.columns).unwrap()
    }
}

fn bits(x: &[f64]) -> Vec<u64> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// What all kernels that read features return, in one row of bits.
fn all_results<F: Features<Value = f64>>(features: F) -> Vec<u64> {
    let records = features.records();
    let columns = features.columns();
    let labels: Vec<i64> = (0..records as i64).map(|r| r % 3).collect();
    let mut results = Vec::new();
    let softmax = Objective::Softmax {
        classes: 3,
        labels: &labels,
    };
    let params: Vec<f64> = (0..2 * 3 * columns).map(|i| (i as f64).sin()).collect();
    let mut scores = vec![0.0; 6 * records];
    scores_into(&features, &params, &mut scores).unwrap();
    results.extend(bits(&scores));
    let mut row = vec![0.0; columns];
    features.write(records - 1, &mut row);
    features.add(0, 0.3, &mut row);
    results.extend(bits(&row));
    results.push(features.score(1, &params[..columns]).to_bits());
    for norm in [Norm::L1, Norm::L2] {
        results.push(features.sum_of_powers(2, norm).to_bits());
    }

    let model = LinearModel::new(features, softmax).unwrap();
    let half = records as i64 / 2;
    let order: Vec<i64> = (0..records as i64).rev().collect();
    let indptr = [0, half, records as i64];
    let batches = Batches::new(&indptr, &order).unwrap();
    let mut sums = vec![0.0; params.len()];
    for bound in [1e-3, 1e3] {
        let clipping = Clipping::new(Norm::L2, bound);
        model
            .clipped_sums_into(&params, batches, clipping, &mut sums)
            .unwrap();
        results.extend(bits(&sums));
        let averaging = Averaging::new(0.1);
        model
            .gradient_into(&params, batches, averaging, Some(clipping), &mut sums)
            .unwrap();
        results.extend(bits(&sums));
        let step = Step::new(&[0.5]);
        model
            .step_into(&params, step, batches, averaging, Some(clipping), &mut sums)
            .unwrap();
        results.extend(bits(&sums));
    }
    let mut losses = vec![0.0; records];
    model
        .record_losses_into(&params, batches, &mut losses)
        .unwrap();
    results.extend(bits(&losses));
    let mut correct = [0; 2];
    model.count_correct_into(&params, &mut correct).unwrap();
    results.extend(correct.map(|count| count as u64));
    let steps = [0, 1, 2];
    let walks = Walks::new(&steps, batches).unwrap();
    for form in [Form::Direct, Form::Span] {
        let training = Training::new(0.1, 1.0).with_form(Some(form));
        let mut losses = [0.0; 2];
        let start = &params[..3 * columns];
        model
            .train_into(start, walks, training, &mut sums, &mut losses)
            .unwrap();
        results.extend(bits(&sums));
        results.extend(bits(&losses));
    }
    results
}

#[test]
fn kernels_of_8_bits_have_the_bits_of_the_same_numbers_in_64() {
    for (columns, room) in [
        (1, 0),
        (3, 5),
        (SHARED - 1, 1),
        (SHARED, 0),
        (SHARED, 1),
        (2 * SHARED + 7, 3),
        (301, 19),
    ] {
        for records in [4, 37, 600] {
            let stored = Stored::of(records, columns, room);
            let dense = Dense::new(&stored.numbers, columns).unwrap();
            let wanted = all_results(dense);
            for results in with_each_instruction_set(|| all_results(stored.rounded())) {
                assert!(results == wanted, "{records} records of {columns}");
            }
        }
    }
}

#[test]
fn codes_and_scales_of_other_shapes_are_refused() {
    let stored = Stored::of(4, SHARED + 2, 1);
    let new = |codes: usize, scales: usize, stride: usize, columns: usize| {
        Rounded::<f64>::new(
            &stored.codes[..codes],
            &stored.scales[..scales],
            stride,
            columns,
        )
        .map(|x| x.records())
        .map_err(|error| error.to_string())
    };
    let (codes, scales, stride) = (stored.codes.len(), stored.scales.len(), stored.stride);
    assert_eq!(new(codes, scales, stride, SHARED + 2), Ok(4));
    for refused in [
        new(codes - 1, scales, stride, 1),
        new(codes, scales - 1, stride, 1),
        new(codes, scales, stride, stride + 1),
        new(codes, scales, stride, 0),
    ] {
        assert!(refused.unwrap_err().starts_with("features"));
    }
    assert!(new(codes, scales, 0, 0).unwrap_err().starts_with("dim"));
}
