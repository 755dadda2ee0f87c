//! Sums of clipped gradients in `f64` against their definition, and what one record adds at most.

use super::*;
use crate::double_double::DoubleDouble;
use crate::linear::clipped::NUMBERS_AT_ONCE;
use crate::linear::in_f64::{PART, SIDE};
use crate::linear::model::RECORDS_PER_BLOCK;
use crate::parallel::BLOCK;
use crate::wide::Wide;

const SUM: Averaging = Averaging {
    regularization: 0.0,
    divide_by: Some(1.0),
};

fn sums<F: Features>(
    model: &LinearModel<'_, F>,
    params: &[f64],
    batches: Batches<'_>,
    clipping: Clipping,
) -> Vec<f64> {
    let mut out = vec![f64::NAN; params.len()];
    model
        .clipped_sums_into(params, batches, clipping, &mut out)
        .unwrap();
    out
}

fn weighted<'a, F: Features>(
    features: F,
    objective: Objective<'a>,
    weights: &'a [f64],
) -> LinearModel<'a, F> {
    let model = LinearModel::new(features, objective).unwrap();
    model.weighted(weights).unwrap()
}

fn bits(x: &[f64]) -> Vec<u64> {
    x.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #[test]
    fn clipped_sums_are_sums_of_clipped_gradients(
        mut case in case(),
        bound in 0.05_f64..3.0,
        l1: bool,
        by_weight: bool,
    ) {
        let single: Vec<f32> = case.features.iter().map(|&v| v as f32).collect();
        case.features = single.iter().map(|&v| f64::from(v)).collect();
        let norm = if l1 { Norm::L1 } else { Norm::L2 };
        let clipping = Clipping { norm, bound };
        let (indptr, indices, values) = case.csr();
        let values_single: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let weights = vec![if by_weight { 0.5 } else { 1.0 }; case.classes.len()];
        let (ends, records) = (case.indptr(), case.batches.concat());
        let batches = Batches::new(&ends, &records).unwrap();
        for objective in case.objectives() {
            let dense = weighted(Dense::new(&case.features, case.columns).unwrap(), objective, &weights);
            let params = case.params(dense.dim());
            let got = sums(&dense, params, batches, clipping);
            if !by_weight {
                let each = params.chunks(dense.dim()).zip(&case.batches);
                let slow = |(w, batch): (&[f64], &Vec<i64>)| {
                    case.slow(&objective, w, batch, SUM, Some(clipping)).0
                };
                let expected: Vec<f64> = each.flat_map(slow).collect();
                prop_assert!(close(&got, &expected), "sums of {objective:?}");
            }
            let mut gradient = vec![f64::NAN; params.len()];
            dense.gradient_into(params, batches, SUM, Some(clipping), &mut gradient).unwrap();
            prop_assert!(close(&got, &gradient), "gradient of {objective:?}");

            let small = weighted(Dense::new(&single, case.columns).unwrap(), objective, &weights);
            prop_assert_eq!(bits(&sums(&small, params, batches, clipping)), bits(&got));
            let csr = Csr::new(&indptr, &indices, &values, case.columns).unwrap();
            let sparse = sums(&weighted(csr, objective, &weights), params, batches, clipping);
            prop_assert!(close(&sparse, &got), "sparse sums of {objective:?}");
            let csr = Csr::new(&indptr, &indices, &values_single, case.columns).unwrap();
            let small = sums(&weighted(csr, objective, &weights), params, batches, clipping);
            prop_assert_eq!(bits(&small), bits(&sparse));
        }
    }

    /// What a record adds has a norm of at most the bound, exactly, and at least the bound up to rounding if its
    /// gradient is longer.
    #[test]
    fn no_record_adds_more_than_the_bound(
        columns in 1_usize..80,
        outputs in 1_usize..4,
        seed: u32,
        exponents in (-140_i32..140, -8_i32..8),
        at_bound: bool,
        l1: bool,
    ) {
        let norm = if l1 { Norm::L1 } else { Norm::L2 };
        check_bound::<f64>(columns, outputs, seed, exponents, at_bound, norm)?;
        let small = (exponents.0.clamp(-30, 30), exponents.1);
        check_bound::<f32>(columns, outputs, seed, small, at_bound, norm)?;
    }
}

/// The sum of the absolute values or squares of a row, to 100 bits.
fn exact_power(row: &[f64], kind: Norm) -> DoubleDouble {
    let zero = DoubleDouble::from(0.0);
    row.iter().fold(zero, |sum, &v| match kind {
        Norm::L1 => sum + DoubleDouble::from(v.abs()),
        Norm::L2 => sum + DoubleDouble::product(v, v),
    })
}

fn is_at_most(a: DoubleDouble, b: DoubleDouble) -> bool {
    (b - a).to_f64() >= 0.0
}

fn check_bound<T: Wide>(
    columns: usize,
    outputs: usize,
    seed: u32,
    (size, of_bound): (i32, i32),
    at_bound: bool,
    norm: Norm,
) -> Result<(), TestCaseError> {
    let number = |i: usize| ((i as f64 + 1.0) * (f64::from(seed) + 0.5) * 0.618).sin();
    let scale = 2.0_f64.powi(size);
    let features: Vec<T> = (0..columns)
        .map(|i| T::from_f64(scale * number(i)))
        .collect();
    let row: Vec<f64> = features.iter().map(|v| v.to_f64()).collect();
    let targets = [1.0];
    let objective = match outputs {
        1 => Objective::Single {
            loss: Loss::Squared,
            labels: &targets,
        },
        classes => Objective::Softmax {
            classes,
            labels: &[0],
        },
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let params = vec![0.0; model.dim()];
    let batches = Batches::equal(1, &[0]).unwrap();
    let free = sums(&model, &params, batches, Clipping { norm, bound: 1e300 });
    let length = crate::projection::norm(&free, norm);
    let bounds = if at_bound {
        [length.next_down(), length, length.next_up()]
    } else {
        let bound = length * 2.0_f64.powi(of_bound) * 0.77;
        [bound, bound.next_up(), 1.3 * bound]
    };
    for bound in bounds {
        if !(1e-30..1e150).contains(&bound) {
            continue;
        }
        let got = sums(&model, &params, batches, Clipping { norm, bound });
        let most = match norm {
            Norm::L1 => DoubleDouble::from(bound),
            Norm::L2 => DoubleDouble::product(bound, bound),
        };
        prop_assert!(
            is_at_most(exact_power(&got, norm), most),
            "{bound:e}, {row:?}"
        );
        let reached = crate::projection::norm(&got, norm);
        let least = bound.min(length) * (1.0 - 1e-13);
        prop_assert!(reached >= least, "{reached:e} of {bound:e}");
    }
    Ok(())
}

/// Records of the largest and the smallest numbers, zeros, and numbers whose squares vanish beside slopes that overflow.
#[test]
fn extreme_records_stay_in_their_ball() {
    let numbers = [
        0.0,
        5e-324,
        1e-310,
        1e-200,
        1e-160,
        1e-90,
        1.0,
        1e90,
        1e154,
        1e155,
        1e200,
        1e300,
        f64::MAX,
    ];
    for norm in [Norm::L1, Norm::L2] {
        for bound in [1e-30, 0.5, 1e30] {
            let clipping = Clipping { norm, bound };
            for &a in &numbers {
                for &b in &numbers {
                    for &target in &numbers {
                        let features = [a, -b, a];
                        let (loss, labels) = (Loss::Squared, &[target][..]);
                        let objective = Objective::Single { loss, labels };
                        let dense = Dense::new(&features, 3).unwrap();
                        let model = LinearModel::new(dense, objective).unwrap();
                        let batches = Batches::equal(1, &[0]).unwrap();
                        let got = sums(&model, &[0.0; 3], batches, clipping);
                        let scaled: Vec<f64> = got.iter().map(|v| v / bound).collect();
                        let length = crate::projection::norm(&scaled, norm);
                        let case = (a, b, target, bound);
                        assert!(length <= 1.0 + 1e-15, "{case:?}: {length:e}");
                        if target > 0.0
                            && a.max(b) > 0.0
                            && target.log10() + a.max(b).log10() > 31.0
                        {
                            let lost = bound / a.max(b) < 1e-300; // no factor has so few bits
                            assert!(lost || length >= 1.0 - 1e-12, "{case:?}: {length:e}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_record_that_is_not_finite_adds_nothing_and_changes_nothing() {
    let columns = 5;
    let finite: Vec<f64> = (0..40 * columns).map(|i| (i as f64).sin()).collect();
    let labels: Vec<i64> = (0..41).map(|i| i % 3).collect();
    let objective = Objective::Softmax {
        classes: 3,
        labels: &labels,
    };
    let clipping = Clipping {
        norm: Norm::L2,
        bound: 0.3,
    };
    let params: Vec<f64> = (0..3 * columns).map(|i| (i as f64).cos()).collect();
    let without: Vec<i64> = (0..40).collect();
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut features = finite.clone();
        features.extend([0.0, bad, 1.0, 0.0, 2.0]);
        for place in [0, 7, 40] {
            let mut with = without.clone();
            with.insert(place, 40);
            let dense = Dense::new(&features, columns).unwrap();
            let model = LinearModel::new(dense, objective).unwrap();
            let got = [&with, &without].map(|records| {
                let batches = Batches::equal(1, records).unwrap();
                bits(&sums(&model, &params, batches, clipping))
            });
            assert_eq!(got[0], got[1], "{bad} at {place}");
        }
    }
    let dense = Dense::new(&finite, columns).unwrap();
    let objective = Objective::Softmax {
        classes: 3,
        labels: &labels[..40],
    };
    let model = LinearModel::new(dense, objective).unwrap();
    let batches = Batches::equal(1, &without).unwrap();
    let got = sums(&model, &[f64::NAN; 15], batches, clipping);
    assert_eq!(got, [0.0; 15]);
}

/// Around each number of records and columns at which the work is cut in another way.
#[test]
fn clipped_sums_have_the_same_bits_however_they_are_shared() {
    let sizes = [
        (RECORDS_PER_BLOCK - 1, 3),
        (RECORDS_PER_BLOCK, 3),
        (RECORDS_PER_BLOCK + 1, 3),
        (9_000, 40),
        (SIDE - 1, 3),
        (SIDE + 1, 3),
        (70, PART - 1),
        (70, PART),
        (70, PART + 1),
        (70, NUMBERS_AT_ONCE / 32 - 1),
        (70, NUMBERS_AT_ONCE / 32 + 1),
        (300, NUMBERS_AT_ONCE + 1),
    ];
    for (records, columns) in sizes {
        let number = |i: usize| (i as f32 * 0.37).sin();
        let features: Vec<f32> = (0..records * columns).map(number).collect();
        let wide: Vec<f64> = features.iter().map(|&v| f64::from(v)).collect();
        let labels: Vec<f64> = (0..records).map(|r| (r as f64).cos()).collect();
        let (loss, labels) = (Loss::Huber, labels.as_slice());
        let objective = Objective::Single { loss, labels };
        let (indptr, indices) = (
            [0, 2, records as i64],
            (0..records as i64).collect::<Vec<_>>(),
        );
        let batches = Batches::new(&indptr, &indices).unwrap();
        let params: Vec<f64> = (0..2 * columns).map(|i| (i as f64 * 0.1).cos()).collect();
        let clipping = Clipping {
            norm: Norm::L2,
            bound: 0.4,
        };
        let small = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
        let large = LinearModel::new(Dense::new(&wide, columns).unwrap(), objective).unwrap();
        let results = [1, 2, 7].map(|threads| {
            dpmesh_threads::with_threads(threads, || {
                let small = bits(&sums(&small, &params, batches, clipping));
                assert_eq!(small, bits(&sums(&large, &params, batches, clipping)));
                small
            })
        });
        assert_eq!(results[0], results[1], "{records} x {columns}");
        assert_eq!(results[0], results[2], "{records} x {columns}");
        let sets = crate::instructions::with_each_instruction_set(|| {
            bits(&sums(&small, &params, batches, clipping))
        });
        assert!(sets.iter().all(|set| *set == results[0]));
    }
}

#[test]
fn powers_of_several_records_have_the_bits_of_each_by_itself() {
    fn check<T: Wide>(columns: usize, norm: Norm) {
        let records: Vec<i64> = (0..=2 * SIDE as i64).rev().collect();
        let number = |i: usize| T::from_f64((i as f64 * 0.37).sin() * 3.0);
        let features: Vec<T> = (0..records.len() * columns).map(number).collect();
        let dense = Dense::new(&features, columns).unwrap();
        let alone: Vec<f64> = records
            .iter()
            .map(|&record| dense.sum_of_powers(record as usize, norm))
            .collect();
        let together = crate::instructions::with_each_instruction_set(|| {
            let mut sums = vec![f64::NAN; records.len()];
            dense.sums_of_powers(&records, norm, &mut sums);
            bits(&sums)
        });
        assert!(
            together.iter().all(|sums| *sums == bits(&alone)),
            "{columns} columns"
        );
    }
    for columns in [1, 7, 8, 9, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1] {
        for norm in [Norm::L1, Norm::L2] {
            check::<f32>(columns, norm);
            check::<f64>(columns, norm);
        }
    }
}
