//! The kernels against loops over records, outputs and features.

use proptest::prelude::*;

use super::*;
use crate::projection::norm;

mod clipped;
mod refusals;
mod rounded;

/// A random problem: shapes, features with many zeros, ragged batches with empty and repeated records.
#[derive(Debug, Clone)]
struct Case {
    columns: usize,
    outputs: usize,
    features: Vec<f64>,
    classes: Vec<i64>,
    sets: Vec<i64>,
    signs: Vec<f64>,
    params: Vec<f64>,
    batches: Vec<Vec<i64>>,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1_usize..40, 1_usize..12, 1_usize..6, 2_usize..8);
    shape.prop_flat_map(|(columns, records, nodes, outputs)| {
        let value = prop_oneof![Just(0.0), -2.0_f64..2.0];
        (
            prop::collection::vec(value, columns * records),
            prop::collection::vec(0..outputs as i64, records),
            prop::collection::vec(0..1_i64 << outputs, records),
            prop::collection::vec(-1.0_f64..1.0, nodes * outputs * columns),
            prop::collection::vec(prop::collection::vec(0..records as i64, 0..9), nodes),
        )
            .prop_map(move |(features, classes, sets, params, batches)| Case {
                columns,
                outputs,
                signs: classes
                    .iter()
                    .map(|&c| if c == 0 { -1.0 } else { 1.0 })
                    .collect(),
                features,
                classes,
                sets,
                params,
                batches,
            })
    })
}

impl Case {
    fn objectives(&self) -> Vec<Objective<'_>> {
        let (labels, classes) = (self.classes.as_slice(), self.outputs);
        let mut all = vec![Objective::Softmax { classes, labels }];
        for loss in [
            Loss::Logistic,
            Loss::Hinge,
            Loss::Squared,
            Loss::Absolute,
            Loss::Huber,
        ] {
            let labels = self.signs.as_slice();
            all.push(Objective::Single { loss, labels });
            let labels = self.classes.as_slice();
            all.push(Objective::OneVsAll {
                loss,
                classes,
                labels,
            });
            let sets = self.sets.as_slice();
            all.push(Objective::Labels {
                loss,
                classes,
                sets,
            });
        }
        all
    }

    fn params(&self, dim: usize) -> &[f64] {
        &self.params[..dim * self.batches.len()]
    }

    fn indptr(&self) -> Vec<i64> {
        let ends = self.batches.iter().scan(0, |end, batch| {
            *end += batch.len() as i64;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    fn csr(&self) -> (Vec<i32>, Vec<i32>, Vec<f64>) {
        let (mut indptr, mut indices, mut values) = (vec![0], vec![], vec![]);
        for row in self.features.chunks(self.columns) {
            let stored = row.iter().enumerate().filter(|(_, v)| **v != 0.0);
            for (column, &value) in stored {
                indices.push(column as i32);
                values.push(value);
            }
            indptr.push(indices.len() as i32);
        }
        (indptr, indices, values)
    }

    fn row(&self, record: i64) -> &[f64] {
        &self.features[record as usize * self.columns..][..self.columns]
    }

    fn slow_scores(&self, record: i64, params: &[f64]) -> Vec<f64> {
        let dot = |w: &[f64]| self.row(record).iter().zip(w).map(|(x, w)| x * w).sum();
        params.chunks(self.columns).map(dot).collect()
    }

    /// Gradient and objective of one node, one number after the other.
    fn slow(
        &self,
        objective: &Objective<'_>,
        params: &[f64],
        batch: &[i64],
        averaging: Averaging,
        clipping: Option<Clipping>,
    ) -> (Vec<f64>, f64) {
        let divisor = averaging.divide_by.unwrap_or(batch.len().max(1) as f64);
        let mut gradient: Vec<f64> = params
            .iter()
            .map(|w| averaging.regularization * w)
            .collect();
        let mut value = 0.5 * averaging.regularization * params.iter().map(|w| w * w).sum::<f64>();
        for &record in batch {
            let mut slopes = self.slow_scores(record, params);
            value += objective.value(record as usize, &slopes) / divisor;
            objective.slopes_in_place(&[record], &mut slopes);
            let row = self.row(record);
            let own: Vec<f64> = slopes
                .iter()
                .flat_map(|s| row.iter().map(move |x| s * x))
                .collect();
            let factor = clipping.map_or(1.0, |c| (c.bound / norm(&own, c.norm)).min(1.0));
            for (g, v) in gradient.iter_mut().zip(own) {
                *g += factor * v / divisor;
            }
        }
        (gradient, value)
    }
}

fn close(got: &[f64], expected: &[f64]) -> bool {
    let largest = expected.iter().fold(1.0_f64, |m, v| m.max(v.abs()));
    let near = |(g, e): (&f64, &f64)| (g - e).abs() <= 1e-12 * largest;
    got.len() == expected.len() && got.iter().zip(expected).all(near)
}

/// Every kernel of one model against the oracle, into buffers with other content.
fn check<F: Features<Value = f64>>(
    case: &Case,
    model: &LinearModel<'_, F>,
    objective: &Objective<'_>,
    averaging: Averaging,
    clipping: Option<Clipping>,
) -> Result<(), TestCaseError> {
    let params = case.params(model.dim());
    let (indptr, indices) = (case.indptr(), case.batches.concat());
    let batches = Batches::new(&indptr, &indices).unwrap();
    let each = params.chunks(model.dim()).zip(&case.batches);
    let slow: Vec<_> = each
        .clone()
        .map(|(w, batch)| case.slow(objective, w, batch, averaging, clipping))
        .collect();

    let gradient: Vec<f64> = slow.iter().flat_map(|(g, _)| g.clone()).collect();
    let mut out = vec![f64::NAN; params.len()];
    model
        .gradient_into(params, batches, averaging, clipping, &mut out)
        .unwrap();
    prop_assert!(close(&out, &gradient), "gradient of {objective:?}");

    let steps: Vec<f64> = (0..batches.nodes()).map(|i| 0.1 * i as f64).collect();
    let mut moved = params.to_vec();
    model
        .step_in_place(
            &mut moved,
            Step {
                sizes: &steps,
                radius: None,
            },
            batches,
            averaging,
            clipping,
        )
        .unwrap();
    let expected: Vec<f64> = (0..params.len())
        .map(|j| params[j] - steps[j / model.dim()] * gradient[j])
        .collect();
    prop_assert!(close(&moved, &expected), "step of {objective:?}");

    let mut losses = vec![f64::NAN; batches.nodes()];
    model
        .losses_into(params, batches, averaging, &mut losses)
        .unwrap();
    let values: Vec<f64> = slow.iter().map(|(_, value)| *value).collect();
    prop_assert!(close(&losses, &values), "losses of {objective:?}");

    if let Objective::OneVsAll { classes, .. } | Objective::Labels { classes, .. } = objective {
        let mut each = vec![f64::NAN; classes * batches.nodes()];
        model
            .class_losses_into(params, batches, averaging, &mut each)
            .unwrap();
        let sums: Vec<f64> = each.chunks(*classes).map(|e| e.iter().sum()).collect();
        prop_assert!(close(&sums, &values), "class losses");
    }

    let mut records = vec![f64::NAN; indices.len()];
    model
        .record_losses_into(params, batches, &mut records)
        .unwrap();
    let single = each.flat_map(|(w, batch)| {
        batch
            .iter()
            .map(|&r| objective.value(r as usize, &case.slow_scores(r, w)))
    });
    prop_assert!(
        close(&records, &single.collect::<Vec<_>>()),
        "record losses"
    );

    let mut correct = vec![-1; batches.nodes()];
    model.count_correct_into(params, &mut correct).unwrap();
    for (w, count) in params.chunks(model.dim()).zip(correct) {
        let right = (0..case.classes.len() as i64)
            .filter(|&r| objective.is_right(r as usize, &case.slow_scores(r, w)));
        prop_assert_eq!(count, right.count() as i64);
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_kernels_equal_loops_on_dense_and_sparse_features(
        case in case(),
        regularization in prop_oneof![Just(0.0), 0.0_f64..2.0],
        divide_by in prop::option::of(0.5_f64..20.0),
        bound in prop::option::of(0.05_f64..3.0),
        l1: bool,
    ) {
        let averaging = Averaging { regularization, divide_by };
        let norm = if l1 { Norm::L1 } else { Norm::L2 };
        let clipping = bound.map(|bound| Clipping { norm, bound });
        let (indptr, indices, values) = case.csr();
        for objective in case.objectives() {
            let dense = Dense::new(&case.features, case.columns).unwrap();
            let model = LinearModel::new(dense, objective).unwrap();
            check(&case, &model, &objective, averaging, clipping)?;
            let sparse = Csr::new(&indptr, &indices, &values, case.columns).unwrap();
            let model = LinearModel::new(sparse, objective).unwrap();
            check(&case, &model, &objective, averaging, clipping)?;
            let params = case.params(model.dim());
            let mut scores = vec![f64::NAN; params.len() / case.columns * case.classes.len()];
            scores_into(&sparse, params, &mut scores).unwrap();
            let each = (0..case.classes.len() as i64).flat_map(|r| case.slow_scores(r, params));
            prop_assert!(close(&scores, &each.collect::<Vec<_>>()));
        }
    }
}

/// Sixty nodes with small batches, one with all of 3,000 records: both ways to share the work.
#[test]
fn results_have_the_same_bits_on_any_number_of_threads() {
    let (columns, records) = (40, 3000);
    let number = |i: usize| (i as f32 * 0.37).sin();
    let features: Vec<f32> = (0..records * columns).map(number).collect();
    let labels: Vec<i64> = (0..records as i64).map(|r| r % 3).collect();
    let objective = Objective::Softmax {
        classes: 3,
        labels: &labels,
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let params: Vec<f32> = (0..61 * model.dim()).map(number).collect();
    let indptr: Vec<i64> = (0..=60).map(|i| 50 * i).chain([6000]).collect();
    let indices: Vec<i64> = (0..3000).chain(0..3000).collect();
    let batches = Batches::new(&indptr, &indices).unwrap();
    let averaging = Averaging {
        regularization: 0.1,
        divide_by: None,
    };
    let work = || {
        let mut gradient = params.clone();
        model
            .gradient_into(&params, batches, averaging, None, &mut gradient)
            .unwrap();
        let mut moved = params.clone();
        model
            .step_in_place(
                &mut moved,
                Step {
                    sizes: &[0.1; 61],
                    radius: None,
                },
                batches,
                averaging,
                None,
            )
            .unwrap();
        let mut losses = vec![0.0; 61];
        model
            .losses_into(&params, batches, averaging, &mut losses)
            .unwrap();
        let bits = gradient
            .iter()
            .chain(&moved)
            .map(|v| v.to_bits())
            .collect::<Vec<_>>();
        (bits, losses.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
    };
    let on = |threads| dpmesh_threads::with_threads(threads, work);
    assert_eq!(on(1), on(2));
    assert_eq!(on(1), on(7));
}

/// With and without blocks of records the sums differ by rounding alone.
#[test]
fn a_large_batch_is_the_mean_of_its_records() {
    let (columns, records) = (9, 10_000);
    let features: Vec<f64> = (0..records * columns).map(|i| (i as f64).sin()).collect();
    let labels: Vec<f64> = (0..records).map(|r| (r as f64).cos()).collect();
    let objective = Objective::Single {
        loss: Loss::Squared,
        labels: &labels,
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let params = vec![0.5; columns];
    let gradient = |records: &[i64]| {
        let indptr = [0, records.len() as i64];
        let batches = Batches::new(&indptr, records).unwrap();
        let mut out = vec![0.0; columns];
        model
            .gradient_into(&params, batches, Averaging::default(), None, &mut out)
            .unwrap();
        out
    };
    let all: Vec<i64> = (0..records as i64).collect();
    let parts: Vec<Vec<f64>> = all.chunks(200).map(gradient).collect();
    let mean: Vec<f64> = (0..columns)
        .map(|j| parts.iter().map(|p| p[j]).sum::<f64>() / parts.len() as f64)
        .collect();
    assert!(close(&gradient(&all), &mean));
}

#[test]
fn clipping_passes_on_parameters_that_are_not_finite() {
    let features = [1.0, 2.0];
    let objective = Objective::Single {
        loss: Loss::Squared,
        labels: &[0.0],
    };
    let model = LinearModel::new(Dense::new(&features, 2).unwrap(), objective).unwrap();
    let batches = Batches::new(&[0, 1], &[0]).unwrap();
    let clipping = Some(Clipping {
        norm: Norm::L2,
        bound: 1.0,
    });
    let gradient = |w: f64| {
        let mut out = [0.0; 2];
        let params = [w, 0.0];
        model
            .gradient_into(&params, batches, Averaging::default(), clipping, &mut out)
            .unwrap();
        out
    };
    for w in [f64::NAN, f64::INFINITY] {
        assert!(gradient(w).iter().all(|v| v.is_nan()), "{w}");
    }
    let length = crate::projection::norm(&gradient(1e300), Norm::L2);
    assert!((length - 1.0).abs() <= 1e-15, "{length}");
}

#[test]
fn gradients_of_the_largest_records_stay_within_the_smallest_balls() {
    let norm = Norm::L2;
    for (bound, columns) in [(1.0, 1), (1e-3, 3), (1e-6, 100), (4.8e-7, 1), (3e-8, 3)] {
        let clipping = Some(Clipping { norm, bound });
        let features = vec![3e38_f32 / (columns as f32).sqrt(); columns];
        let (loss, labels) = (Loss::Logistic, &[1.0][..]);
        let objective = Objective::Single { loss, labels };
        let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
        let batches = Batches::new(&[0, 1], &[0]).unwrap();
        let mut moved = vec![0.0_f32; columns];
        let (sizes, radius) = (&[1.0][..], None);
        let step = Step { sizes, radius };
        model
            .step_in_place(&mut moved, step, batches, Averaging::default(), clipping)
            .unwrap();
        let scaled: Vec<f64> = moved.iter().map(|&v| f64::from(v) / bound).collect();
        let length = crate::projection::norm(&scaled, norm);
        assert!(length <= 1.0 + 1e-6, "{bound} {columns}: {length}");
    }
}

#[test]
fn a_gradient_is_clipped_from_its_bound_on() {
    let clipping = Clipping {
        norm: Norm::L2,
        bound: 0.1,
    };
    for norm in [0.0, f64::MIN_POSITIVE, 0.1 / 3.0, 0.1] {
        assert_eq!(clipping.factor(norm), 1.0);
    }
    for norm in [0.1_f64.next_up(), 1.0, f64::MAX] {
        assert_eq!(clipping.factor(norm), 0.1 / norm);
    }
    for norm in [f64::INFINITY, f64::NAN] {
        assert!(clipping.factor(norm).is_nan());
    }
}

/// Records of any finite numbers, alone and beside others: what one adds to a sum stays in its ball.
#[test]
fn records_of_any_finite_size_are_clipped() {
    fn check<T: Wide>(sizes: &[f64], columns: usize, outputs: usize, norm: Norm) {
        let bound = 0.5;
        let clipping = Some(Clipping { norm, bound });
        for &size in sizes {
            for at in [T::from_f64(0.5), T::from_f64(size)] {
                let mut features = vec![T::ONE; 3 * columns];
                features[columns..2 * columns].fill(T::from_f64(size));
                let signs = [1.0, -1.0, 1.0];
                let classes = [0, 1, 0];
                let objectives = [Loss::Logistic, Loss::Hinge, Loss::Squared, Loss::Huber];
                let objectives = objectives.map(|loss| match outputs {
                    1 => Objective::Single {
                        loss,
                        labels: &signs,
                    },
                    classes_of_all => Objective::OneVsAll {
                        loss,
                        classes: classes_of_all,
                        labels: &classes,
                    },
                });
                for objective in objectives {
                    let features = Dense::new(&features, columns).unwrap();
                    let model = LinearModel::new(features, objective).unwrap();
                    let params = vec![at; 2 * model.dim()];
                    // The large record alone, and the same batch with it and without.
                    let batches = Batches::new(&[0, 1, 3], &[1, 0, 2]).unwrap();
                    let averaging = Averaging {
                        regularization: 0.0,
                        divide_by: Some(1.0),
                    };
                    let mut gradient = vec![T::ZERO; params.len()];
                    model
                        .gradient_into(&params, batches, averaging, clipping, &mut gradient)
                        .unwrap();
                    let alone = &gradient[..model.dim()];
                    assert!(
                        alone.iter().all(|v| v.is_finite()),
                        "{size:e}, {objective:?}"
                    );
                    let length = crate::projection::norm(alone, norm);
                    assert!(length <= bound * (1.0 + 1e-6), "{size:e}: {length}");
                    let mut stepped = params.clone();
                    let step = Step {
                        sizes: &[1.0],
                        radius: Some(2.0),
                    };
                    model
                        .step_in_place(&mut stepped, step, batches, averaging, clipping)
                        .unwrap();
                    assert!(
                        stepped.iter().all(|v| v.is_finite()),
                        "{size:e}, {objective:?}"
                    );
                }
            }
        }
    }
    for norm in [Norm::L1, Norm::L2] {
        for (columns, outputs) in [(1, 1), (3, 1), (9, 2), (70, 6)] {
            check::<f64>(
                &[1e100, 1e154, 1e155, 1e200, 1e300, f64::MAX],
                columns,
                outputs,
                norm,
            );
            check::<f32>(&[1e18, 1e20, 1e30, 3e38], columns, outputs, norm);
        }
    }
}

/// The gradient of a record of more than 1e155 has the direction of the record and the length of the bound.
#[test]
fn a_large_record_is_scaled_to_the_bound() {
    for size in [1e154, 1e155, 1e200, 1e300] {
        let values = [0.6 * size, -0.8 * size];
        let features = Dense::new(&values, 2).unwrap();
        let (loss, labels) = (Loss::Logistic, &[1.0][..]);
        let model = LinearModel::new(features, Objective::Single { loss, labels }).unwrap();
        let clipping = Some(Clipping {
            norm: Norm::L2,
            bound: 2.0,
        });
        let batches = Batches::equal(1, &[0]).unwrap();
        let mut gradient = [0.0; 2];
        model
            .gradient_into(
                &[0.0; 2],
                batches,
                Averaging::default(),
                clipping,
                &mut gradient,
            )
            .unwrap();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-14;
        assert!(
            near(gradient[0], -1.2) && near(gradient[1], 1.6),
            "{size:e}: {gradient:?}"
        );
    }
}

/// A client whose training leaves the finite numbers moves no further than its ball, in either form.
#[test]
fn training_that_diverges_stays_in_its_ball() {
    for size in [1e100, 1e160, 1e300] {
        let values = [size, -size, 0.5 * size, 1.0];
        let features = Dense::new(&values, 2).unwrap();
        let (loss, labels) = (Loss::Squared, &[1.0, -1.0][..]);
        let model = LinearModel::new(features, Objective::Single { loss, labels }).unwrap();
        let order = [0, 1].repeat(20);
        let ends: Vec<i64> = (0..=40).collect();
        let walks = Walks::new(&[0, 40], Batches::new(&ends, &order).unwrap()).unwrap();
        for form in [Form::Direct, Form::Span] {
            let training = Training {
                step_size: 10.0,
                radius: 0.25,
                averaging: Averaging::default(),
                form: Some(form),
            };
            let (mut moves, mut losses) = ([f64::NAN; 2], [0.0]);
            model
                .train_into(&[0.1, 0.2], walks, training, &mut moves, &mut losses)
                .unwrap();
            assert!(
                norm(&moves, Norm::L2) <= 0.25 * (1.0 + 1e-12),
                "{size:e}: {moves:?}"
            );
        }
    }
}
