use super::*;
use proptest::prelude::*;

const LOSSES: [Loss; 6] = [
    Loss::Logistic,
    Loss::Hinge,
    Loss::Squared,
    Loss::Absolute,
    Loss::Huber,
    Loss::Poisson,
];

#[test]
fn extreme_margins_stay_exact() {
    for (margin, value, slope) in [
        (1e4, 0.0, 0.0),
        (-1e4, 1e4, -1.0),
        (40.0, (-40.0_f64).exp(), -(-40.0_f64).exp()),
        (0.0, 2.0_f64.ln(), -0.5),
        (-0.0, 2.0_f64.ln(), -0.5),
    ] {
        for y in [-1.0, 1.0] {
            let got = Loss::Logistic.value(y * margin, y);
            assert!((got - value).abs() <= 1e-15 * value, "{got} {value}");
            let got = Loss::Logistic.slope(y * margin, y);
            assert!((got - y * slope).abs() <= 1e-15 * slope.abs());
        }
    }
    let softmax = Objective::Softmax {
        classes: 3,
        labels: &[1],
    };
    let mut scores = [1e4, -1e4, 0.0];
    assert_eq!(softmax.value(0, &scores), 2e4);
    softmax.slopes_in_place(&[0], &mut scores);
    assert_eq!(scores, [1.0, -1.0, 0.0]);
    let mut scores = [-40.0, 0.0, -1e4];
    let tiny = (-40.0_f64).exp();
    assert!((softmax.value(0, &scores) - tiny).abs() <= 1e-15 * tiny);
    softmax.slopes_in_place(&[0], &mut scores);
    assert!((scores[1] + tiny).abs() <= 1e-15 * tiny);
}

#[test]
fn the_kink_of_the_hinge_has_slope_zero() {
    assert_eq!(Loss::Hinge.slope(1.0, 1.0), 0.0);
    assert_eq!(Loss::Hinge.slope(-1.0, -1.0), 0.0);
    assert_eq!(Loss::Hinge.slope(1.0 - f64::EPSILON, 1.0), -1.0);
}

#[test]
fn absolute_slopes_are_signs_and_zero_at_the_kink() {
    for target in [-2.5, 0.0, 1e300] {
        assert_eq!(Loss::Absolute.slope(target, target), 0.0);
        assert_eq!(Loss::Absolute.slope(target.next_up(), target), 1.0);
        assert_eq!(Loss::Absolute.slope(target.next_down(), target), -1.0);
    }
    assert_eq!(Loss::Absolute.value(-1.5, 2.0), 3.5);
}

#[test]
fn nan_is_passed_on() {
    for loss in LOSSES {
        assert!(loss.value(f64::NAN, 1.0).is_nan());
        assert!(loss.slope(f64::NAN, 1.0).is_nan());
    }
    let softmax = Objective::Softmax {
        classes: 2,
        labels: &[0],
    };
    let mut scores = [0.0, f64::NAN];
    assert!(softmax.value(0, &scores).is_nan());
    softmax.slopes_in_place(&[0], &mut scores);
    assert!(scores.iter().all(|s| s.is_nan()));
}

#[test]
fn equal_scores_point_to_the_first_class() {
    let right = |label: i64, scores: &[f64]| {
        let labels = [label];
        let classes = scores.len();
        Objective::Softmax {
            classes,
            labels: &labels,
        }
        .is_right(0, scores)
    };
    assert!(right(0, &[1.0, 1.0]) && !right(1, &[1.0, 1.0]));
    assert!(right(1, &[0.0, 2.0, 1.0]) && !right(2, &[0.0, 2.0, 1.0]));
}

proptest! {
    #[test]
    fn slopes_are_the_derivatives_of_the_values(
        scores in prop::collection::vec(-30.0_f64..30.0, 3),
        label in 0_i64..3,
    ) {
        let (real, class) = ([if label == 0 { -1.0 } else { 1.0 }], [label]);
        let objectives = LOSSES.iter().flat_map(|&loss| [
            Objective::Single { loss, labels: &real },
            Objective::OneVsAll { loss, classes: 3, labels: &class },
        ]);
        let softmax = Objective::Softmax { classes: 3, labels: &class };
        for objective in objectives.chain([softmax]) {
            let scores = &scores[..objective.outputs()];
            // Near kinks of values or slopes, at -2, .., 2, the difference quotient mixes two slopes.
            prop_assume!(scores.iter().all(|z| (z - z.round()).abs() > 1e-4));
            let mut slopes = scores.to_vec();
            objective.slopes_in_place(&[0], &mut slopes);
            for (k, slope) in slopes.iter().enumerate() {
                let step = 1e-5;
                let mut near = scores.to_vec();
                near[k] += step;
                let above = objective.value(0, &near);
                near[k] -= 2.0 * step;
                let difference = (above - objective.value(0, &near)) / (2.0 * step);
                // Rounding of values up to 450 over the step, and the third derivative.
                prop_assert!((slope - difference).abs() < 2e-8, "{objective:?}");
            }
        }
    }
}
