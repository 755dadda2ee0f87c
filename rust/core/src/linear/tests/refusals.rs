//! What does not fit a model is refused.

use super::*;

#[test]
fn what_does_not_fit_is_named() {
    let features = [1.0, 2.0, 3.0, 4.0];
    let dense = Dense::new(&features, 2).unwrap();
    let (signs, classes) = ([1.0, -1.0], [0, 2]);
    let single = |labels| Objective::Single {
        loss: Loss::Hinge,
        labels,
    };
    let softmax = |classes| Objective::Softmax {
        classes,
        labels: &[0, 2],
    };
    let text = |result: Result<LinearModel<'_, Dense<'_, f64>>, KernelError>| {
        result.unwrap_err().to_string()
    };
    assert_eq!(
        text(LinearModel::new(dense, single(&signs[..1]))),
        "labels: wanted 2 labels, one for each record, got 1"
    );
    assert_eq!(
        text(LinearModel::new(dense, softmax(1))),
        "classes: wanted at least 2, got 1"
    );

    let gradient = |objective, indices: &[i64], averaging, clipping| {
        let model = LinearModel::new(dense, objective).unwrap();
        let params = vec![0.0; model.dim()];
        let indptr = [0, indices.len() as i64];
        let batches = Batches::new(&indptr, indices).unwrap();
        let mut out = params.clone();
        let result = model.gradient_into(&params, batches, averaging, clipping, &mut out);
        result.unwrap_err().to_string()
    };
    let plain = Averaging::default();
    assert_eq!(
        gradient(single(&signs), &[0, 2], plain, None),
        "batches: wanted records from 0 to 1, got 2"
    );
    assert_eq!(
        gradient(single(&signs), &[-1], plain, None),
        "batches: wanted records from 0 to 1, got -1"
    );
    assert_eq!(
        gradient(single(&[1.0, 0.5]), &[1], plain, None),
        "labels: wanted labels of -1 or +1, got 0.5"
    );
    assert_eq!(
        gradient(
            Objective::Softmax {
                classes: 2,
                labels: &classes
            },
            &[1],
            plain,
            None
        ),
        "labels: wanted classes from 0 to 1, got 2"
    );
    let averaging = Averaging {
        regularization: -1.0,
        divide_by: None,
    };
    assert_eq!(
        gradient(single(&signs), &[0], averaging, None),
        "regularization: wanted a finite number of at least 0, got -1"
    );
    let averaging = Averaging {
        regularization: 0.0,
        divide_by: Some(0.0),
    };
    assert_eq!(
        gradient(single(&signs), &[0], averaging, None),
        "divide_by: wanted a finite number greater than 0, got 0"
    );
    let clipping = Some(Clipping {
        norm: Norm::L2,
        bound: f64::NAN,
    });
    assert_eq!(
        gradient(single(&signs), &[0], plain, clipping),
        "clipping_norm: wanted a finite number of at least 1e-30, got NaN"
    );
    assert!(Batches::new(&[0, 2, 1], &[0]).is_err());
    assert!(Batches::new(&[], &[]).is_err());
    assert!(Batches::equal(2, &[0]).is_err());
    assert!(Batches::equal(0, &[]).is_err());
}

#[test]
fn steps_refuse_what_gradients_refuse_and_settings_of_their_own() {
    let (loss, labels) = (Loss::Hinge, &[1.0][..]);
    let dense = Dense::new(&[1.0, 2.0], 2).unwrap();
    let model = LinearModel::new(dense, Objective::Single { loss, labels }).unwrap();
    let refused = |sizes: &[f64], radius, regularization, bound, records: &[i64], len| {
        let averaging = Averaging {
            regularization,
            divide_by: None,
        };
        let norm = Norm::L2;
        let clipping = Some(Clipping { norm, bound });
        let batches = Batches::equal(1, records).unwrap();
        let (step, params) = (Step { sizes, radius }, [0.0; 2]);
        let mut out = vec![0.0; len];
        let stepped = model.step_into(&params, step, batches, averaging, clipping, &mut out);
        if len == 2 {
            let moved = model.step_in_place(&mut out, step, batches, averaging, clipping);
            assert_eq!(moved, stepped);
        } else {
            let found = model.gradient_into(&params, batches, averaging, clipping, &mut out);
            assert_eq!(found, stepped);
        }
        stepped.unwrap_err().argument()
    };
    assert_eq!(refused(&[0.1; 2], None, 0.0, 1.0, &[0], 2), "step_size");
    assert_eq!(refused(&[-0.1], None, 0.0, 1.0, &[0], 2), "step_size");
    assert_eq!(refused(&[0.1], Some(0.0), 0.0, 1.0, &[0], 2), "radius");
    assert_eq!(refused(&[0.1], None, -0.1, 1.0, &[0], 2), "regularization");
    assert_eq!(refused(&[0.1], None, 0.0, 0.0, &[0], 2), "clipping_norm");
    assert_eq!(refused(&[0.1], None, 0.0, 1.0, &[1], 2), "batches");
    assert_eq!(refused(&[0.1], None, 0.0, 1.0, &[0], 3), "out");
}

#[test]
fn the_other_kernels_refuse_buffers_of_other_lengths() {
    let labels = &[0_i64][..];
    let (classes, loss) = (2, Loss::Hinge);
    let dense = Dense::new(&[1.0, 2.0], 2).unwrap();
    let objective = Objective::OneVsAll {
        loss,
        classes,
        labels,
    };
    let model = LinearModel::new(dense, objective).unwrap();
    let (params, plain) = ([0.0; 4], Averaging::default());
    let batches = Batches::equal(1, &[0]).unwrap();
    let out = || [0.0; 5];
    let results = [
        model.losses_into(&params, batches, plain, &mut out()),
        model.class_losses_into(&params, batches, plain, &mut out()),
        model.record_losses_into(&params, batches, &mut out()),
        model.count_correct_into(&params, &mut [0; 2]),
        scores_into(&dense, &params, &mut out()),
    ];
    for result in results {
        assert_eq!(result.unwrap_err().argument(), "out");
    }
    let negative = Averaging {
        regularization: -1.0,
        divide_by: None,
    };
    let refused = model.losses_into(&params, batches, negative, &mut [0.0]);
    assert_eq!(refused.unwrap_err().argument(), "regularization");
}

#[test]
fn sparse_rows_are_checked_before_they_are_read() {
    let sparse = |indptr: &[i64], indices: &[i64]| {
        let values = vec![1.0; indices.len()];
        scores_into(
            &Csr::new(indptr, indices, &values, 2).unwrap(),
            &[1.0, 1.0],
            &mut [0.0],
        )
    };
    assert!(sparse(&[0, 2], &[0, 1]).is_ok());
    for (indptr, indices) in [
        (&[0, 2], &[0, 0][..]),
        (&[0, 2], &[1, 0]),
        (&[0, 1], &[2]),
        (&[0, 1], &[-1]),
        (&[0, 3], &[0]),
        (&[-1, 1], &[0]),
        (&[1, 0], &[0]),
    ] {
        let error = sparse(indptr, indices).unwrap_err();
        assert_eq!(
            error.to_string(),
            "features: wanted rows of rising column indices below 2, got others in row 0"
        );
    }
}
