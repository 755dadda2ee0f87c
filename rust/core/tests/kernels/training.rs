//! Local training: the same bits on any number of threads, in either form, and refusals.

use dpmesh_core::linear::{
    Averaging, Batches, Dense, Form, LinearModel, Loss, Objective, Training, Walks,
};

const COLUMNS: usize = 40;
const RECORDS: usize = 600;
const CLASSES: usize = 3;

fn number(i: usize) -> f32 {
    (i as f32 * 0.37).sin()
}

#[test]
fn moves_have_the_same_bits_on_any_number_of_threads() {
    let features: Vec<f32> = (0..RECORDS * COLUMNS).map(number).collect();
    let labels: Vec<i64> = (0..RECORDS as i64).map(|r| r % CLASSES as i64).collect();
    let objective = Objective::Softmax {
        classes: CLASSES,
        labels: &labels,
    };
    let model = LinearModel::new(Dense::new(&features, COLUMNS).unwrap(), objective).unwrap();
    let start: Vec<f32> = (0..model.dim()).map(number).collect();
    // Fifty nodes with twelve steps on ten of twelve records each, one with three steps on all records.
    let steps: Vec<i64> = (0..=50).map(|i| 12 * i).chain([603]).collect();
    let lengths = std::iter::repeat_n(10, 600).chain([600, 600, 600]);
    let mut indptr = vec![0_i64];
    indptr.extend(lengths.scan(0, |end, length| {
        *end += length;
        Some(*end)
    }));
    let small =
        (0..600_i64).flat_map(|step| (0..10).map(move |i| step / 12 * 12 + (step + i) % 12));
    let indices: Vec<i64> = small.chain((0..3).flat_map(|_| 0..600)).collect();
    let batches = Batches::new(&indptr, &indices).unwrap();
    let walks = Walks::new(&steps, batches).unwrap();
    let train = |threads: usize, form| {
        let training = Training::new(0.3, 0.5)
            .with_averaging(Averaging::new(0.01))
            .with_form(form);
        let (mut moves, mut losses) = (vec![f32::NAN; 51 * model.dim()], vec![f64::NAN; 51]);
        let work = || model.train_into(&start, walks, training, &mut moves, &mut losses);
        dpmesh_threads::with_threads(threads, work).unwrap();
        (moves, losses)
    };
    for form in [None, Some(Form::Direct), Some(Form::Span)] {
        let (moves, losses) = train(1, form);
        assert!(losses.iter().all(|loss| loss.is_finite()));
        for threads in [2, 7] {
            let (others, other_losses) = train(threads, form);
            assert!(
                moves
                    .iter()
                    .zip(&others)
                    .all(|(a, b)| a.to_bits() == b.to_bits())
            );
            assert_eq!(losses, other_losses);
        }
    }
    let (direct, _) = train(1, Some(Form::Direct));
    let (span, _) = train(1, Some(Form::Span));
    assert!(direct.iter().zip(&span).all(|(a, b)| (a - b).abs() < 1e-5));
}

#[test]
fn walks_that_do_not_fit_their_batches_are_refused() {
    let batches = Batches::new(&[0, 1, 2], &[0, 0]).unwrap();
    assert!(Walks::new(&[0, 2], batches).is_ok());
    for steps in [&[][..], &[0, 1], &[1, 2], &[0, 2, 1, 2]] {
        let error = Walks::new(steps, batches).unwrap_err();
        assert_eq!(
            error.to_string(),
            "walks: wanted steps that rise from 0 to 2, got ones that do not"
        );
    }
}

#[test]
fn what_does_not_fit_a_training_is_named() {
    let (loss, labels) = (Loss::Hinge, &[1.0][..]);
    let dense = Dense::new(&[1.0, 2.0], 2).unwrap();
    let model = LinearModel::new(dense, Objective::Single { loss, labels }).unwrap();
    let walks = Walks::new(&[0, 1], Batches::equal(1, &[0]).unwrap()).unwrap();
    let refused = |step_size, radius, start: &[f64], moves, losses| {
        let training = Training::new(step_size, radius);
        let (mut moves, mut losses) = (vec![0.0; moves], vec![0.0; losses]);
        let result = model.train_into(start, walks, training, &mut moves, &mut losses);
        result.unwrap_err().argument()
    };
    assert_eq!(refused(-1.0, 1.0, &[0.0; 2], 2, 1), "step_size");
    assert_eq!(refused(1.0, 0.0, &[0.0; 2], 2, 1), "radius");
    assert_eq!(refused(1.0, 1.0, &[0.0; 3], 2, 1), "start");
    assert_eq!(refused(1.0, 1.0, &[0.0; 2], 3, 1), "moves");
    assert_eq!(refused(1.0, 1.0, &[0.0; 2], 2, 2), "losses");
}
