//! Linear models of whole numbers, whose scores, slopes and sums are exact in any order.

use super::{Element, around, assert_same, everywhere, whole_numbers};
use crate::linear::{
    Averaging, Batches, Clipping, Dense, Form, LinearModel, Loss, Objective, Step, TURNS, Training,
    Walks,
};
use crate::projection::Norm;
use crate::{Wide, parallel};

/// Whole numbers of at most `most`.
fn small<T: Wide>(len: usize, most: f64) -> Vec<T> {
    let shrunk = |v: T| T::from_f64(v.to_f64().clamp(-most, most));
    whole_numbers(len).into_iter().map(shrunk).collect()
}

/// Zeros of either sign are the same number.
fn without_minus_0<T: Wide>(x: &[T]) -> Vec<T> {
    x.iter().map(|&v| v + T::ZERO).collect()
}

struct Case {
    columns: usize,
    /// One for a single output, or the number of models.
    outputs: usize,
    /// Records of each node's batch.
    batches: Vec<usize>,
}

/// The sum of the losses.
fn sum() -> Averaging {
    Averaging::default().divided_by(1.0)
}

/// Gradient and sum of the squared losses of a batch, one number after the other.
fn defined<T: Wide>(
    features: &[T],
    columns: usize,
    params: &[T],
    batch: &[i64],
    label: impl Fn(usize, usize) -> f64,
) -> (Vec<T>, f64) {
    let mut gradient = vec![0.0; params.len()];
    let mut sum = 0.0;
    for &record in batch {
        let x = &features[record as usize * columns..][..columns];
        for (k, w) in params.chunks(columns).enumerate() {
            let score: f64 = x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64()).sum();
            let slope = score - label(record as usize, k);
            sum += 0.5 * slope * slope;
            for (g, x) in gradient[k * columns..][..columns].iter_mut().zip(x) {
                *g += slope * x.to_f64();
            }
        }
    }
    assert!(
        gradient.iter().all(|g| g.abs() < 2_f64.powi(23)),
        "not exact"
    );
    (
        gradient.into_iter().map(|g| T::from_f64(g + 0.0)).collect(),
        sum,
    )
}

/// A bound far beyond all gradients clips none.
fn check_clipped<T: Wide + Element>(
    model: &LinearModel<'_, Dense<'_, T>>,
    size: impl std::fmt::Debug + Copy,
    params: &[T],
    batches: Batches<'_>,
    gradients: &[T],
) {
    let clipping = Clipping::new(Norm::L2, 1e12);
    let mut clipped = vec![T::ZERO; params.len()];
    model
        .gradient_into(params, batches, sum(), Some(clipping), &mut clipped)
        .unwrap();
    assert_same(size, &without_minus_0(&clipped), gradients);
    let wide = |x: &[T]| x.iter().map(|v| v.to_f64()).collect::<Vec<f64>>();
    let start = wide(params);
    let sums = everywhere(size, || {
        let mut sums = vec![f64::NAN; params.len()];
        model
            .clipped_sums_into(&start, batches, clipping, &mut sums)
            .unwrap();
        sums
    });
    assert_same(size, &without_minus_0(&sums), &wide(gradients));
}

fn check<T: Wide + Element>(case: &Case) {
    let Case {
        columns,
        outputs,
        ref batches,
    } = *case;
    let size = (columns, outputs, batches);
    let count = batches.iter().copied().max().unwrap_or(0) + 3;
    let nodes = batches.len();
    // Mostly zeros, so that sums of products stay below 2^24.
    let sparse = |(i, v): (usize, T)| {
        if i % 7 == 0 || columns < 8 {
            v
        } else {
            T::ZERO
        }
    };
    let features: Vec<T> = small::<T>(count * columns, 1.0)
        .into_iter()
        .enumerate()
        .map(sparse)
        .collect();
    let params = small::<T>(nodes * outputs * columns, 2.0);
    let targets: Vec<f64> = (0..count).map(|i| (i % 5) as f64 - 2.0).collect();
    let classes: Vec<i64> = (0..count).map(|i| (i % outputs.max(1)) as i64).collect();
    let objective = if outputs == 1 {
        Objective::Single {
            loss: Loss::Squared,
            labels: &targets,
        }
    } else {
        Objective::OneVsAll {
            loss: Loss::Squared,
            classes: outputs,
            labels: &classes,
        }
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let mut indptr = vec![0];
    let mut records = Vec::new();
    for (node, &batch) in batches.iter().enumerate() {
        records.extend((0..batch).map(|i| ((i * 5 + node) % count) as i64));
        indptr.push(records.len() as i64);
    }
    let all = Batches::new(&indptr, &records).unwrap();

    let labels = |record: usize, k: usize| match outputs {
        1 => targets[record],
        _ if classes[record] as usize == k => 1.0,
        _ => -1.0,
    };
    let batch_of = |node: usize| &records[indptr[node] as usize..indptr[node + 1] as usize];
    let each = params.chunks(outputs * columns).enumerate();
    let (gradients, losses): (Vec<Vec<T>>, Vec<f64>) = each
        .map(|(node, params)| defined(&features, columns, params, batch_of(node), labels))
        .unzip();
    let gradients = gradients.concat();
    let gradient = everywhere(size, || {
        let mut gradient = vec![T::ZERO; params.len()];
        model
            .gradient_into(&params, all, sum(), None, &mut gradient)
            .unwrap();
        gradient
    });
    assert_same(size, &without_minus_0(&gradient), &gradients);
    check_clipped(&model, size, &params, all, &gradients);
    let values = everywhere(size, || {
        let mut values = vec![0.0; nodes];
        model.losses_into(&params, all, sum(), &mut values).unwrap();
        values
    });
    assert_same(size, &without_minus_0(&values), &losses);
    let stepped = everywhere(size, || {
        let mut stepped = params.clone();
        let step = Step::new(&[0.5]);
        model
            .step_in_place(&mut stepped, step, all, sum(), None)
            .unwrap();
        stepped
    });
    let moved = |(&w, &g): (&T, &T)| w - T::from_f64(0.5) * g + T::ZERO;
    let expected: Vec<T> = params.iter().zip(&gradients).map(moved).collect();
    assert_same(size, &without_minus_0(&stepped), &expected);
}

fn models<T: Wide + Element>() {
    for batch in around(TURNS) {
        check::<T>(&Case {
            columns: 3,
            outputs: 1,
            batches: vec![batch, 2],
        });
    }
    for batch in around(&[33, 120, 256]) {
        check::<T>(&Case {
            columns: 9,
            outputs: 6,
            batches: vec![batch, 1],
        });
    }
    for columns in around(&[8, 16, 32, 64, 128]) {
        for outputs in [1, 4, 5, 10, 11] {
            check::<T>(&Case {
                columns,
                outputs,
                batches: vec![1, 6, 0, 40],
            });
        }
    }
    for columns in around(&[parallel::BLOCK, parallel::SERIAL_BELOW]) {
        check::<T>(&Case {
            columns,
            outputs: 1,
            batches: vec![3, 300],
        });
    }
    for nodes in around(&[32, 64, 1 << 10]) {
        check::<T>(&Case {
            columns: 5,
            outputs: 1,
            batches: vec![1; nodes],
        });
    }
}

#[test]
fn gradients_losses_and_steps() {
    models::<f32>();
    models::<f64>();
}

/// Clipped gradients of single records, whose norm is within one unit in the last place of the bound.
fn clipped<T: Wide + Element>(epsilon: f64) {
    for columns in around(&[8, 64, parallel::BLOCK]) {
        let features = super::numbers::<T>(4 * columns);
        let objective = Objective::Single {
            loss: Loss::Squared,
            labels: &[9.0, -9.0, 5.0, 7.0],
        };
        let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
        let batches = Batches::equal(4, &[0, 1, 2, 3]).unwrap();
        let params = vec![T::ZERO; 4 * columns];
        for (norm, bound) in [(Norm::L2, 0.7), (Norm::L1, 1.3)] {
            let clipping = Some(Clipping::new(norm, bound));
            let gradient = everywhere((columns, norm), || {
                let mut gradient = vec![T::ZERO; params.len()];
                model
                    .gradient_into(&params, batches, sum(), clipping, &mut gradient)
                    .unwrap();
                gradient
            });
            for row in gradient.chunks(columns) {
                let length = crate::projection::norm(row, norm);
                assert!(
                    (length / bound - 1.0).abs() <= 4.0 * epsilon,
                    "{columns}: {length}"
                );
            }
        }
    }
}

#[test]
fn gradients_clipped_to_their_bound() {
    clipped::<f32>(f64::from(f32::EPSILON));
    clipped::<f64>(f64::EPSILON);
}

/// Local training in both forms, which agree up to rounding, around the largest Gram matrix.
#[test]
fn walks_in_the_span_and_directly() {
    for records in around(&[32, 1_024]) {
        let columns = 6;
        let features = super::numbers::<f64>(records * columns);
        let labels: Vec<f64> = (0..records).map(|i| (i % 3) as f64 - 1.0).collect();
        let objective = Objective::Single {
            loss: Loss::Squared,
            labels: &labels,
        };
        let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
        let order: Vec<i64> = (0..records as i64).collect();
        let half = records as i64 / 2;
        let (steps, ends) = ([0, 2, 2], [0, half, records as i64]);
        let walks = Walks::new(&steps, Batches::new(&ends, &order).unwrap()).unwrap();
        let start = super::numbers::<f64>(columns);
        let moves = [Form::Direct, Form::Span].map(|form| {
            everywhere((records, form), || {
                let training = Training::new(0.1, 0.4).with_form(form);
                let (mut moves, mut losses) = (vec![0.0; 2 * columns], [0.0; 2]);
                model
                    .train_into(&start, walks, training, &mut moves, &mut losses)
                    .unwrap();
                moves
            })
        });
        for (direct, span) in moves[0].iter().zip(&moves[1]) {
            assert!((direct - span).abs() < 1e-11, "{records}: {direct}, {span}");
        }
    }
}

/// Losses with exponentials, several classes and clipping: the same bits everywhere.
fn logistic_models<T: Wide + Element>(classes: usize) {
    let (columns, records) = (37, 7);
    let features = super::numbers::<T>(records * columns);
    let labels: Vec<i64> = (0..records as i64).map(|i| i % classes as i64).collect();
    let objective = Objective::OneVsAll {
        loss: Loss::Logistic,
        classes,
        labels: &labels,
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let averaging = Averaging::new(0.1);
    let clipping = Some(Clipping::new(Norm::L2, 1.0));
    let params = super::numbers::<T>(model.dim());
    let batches = Batches::new(&[0, 7], &[0, 3, 1, 4, 2, 6, 5]).unwrap();
    everywhere(classes, || {
        let mut gradient = params.clone();
        model
            .gradient_into(&params, batches, averaging, clipping, &mut gradient)
            .unwrap();
        gradient
    });
    everywhere(classes, || {
        let mut losses = vec![0.0];
        model
            .losses_into(&params, batches, averaging, &mut losses)
            .unwrap();
        losses
    });
    let batches = Batches::new(&[0, 7, 9], &[0, 3, 1, 4, 2, 6, 5, 3, 2]).unwrap();
    let walks = Walks::new(&[0, 2], batches).unwrap();
    for form in [Form::Direct, Form::Span] {
        everywhere((classes, form), || {
            let training = Training::new(0.3, 0.5)
                .with_averaging(averaging)
                .with_form(form);
            let (mut moves, mut losses) = (params.clone(), [0.0]);
            model
                .train_into(&params, walks, training, &mut moves, &mut losses)
                .unwrap();
            moves
        });
    }
}

#[test]
fn logistic_models_of_several_classes() {
    logistic_models::<f32>(3);
    logistic_models::<f64>(3);
    logistic_models::<f32>(11);
    logistic_models::<f64>(11);
}
