//! The one root search of this crate.

/// The smallest non-negative double for which `holds` is true, which must be false below some point and
/// true from there on; `None` if it is false everywhere.
///
/// Bisects over the doubles themselves: at most 64 steps, the result exact at any magnitude.
pub(crate) fn smallest(holds: impl Fn(f64) -> bool) -> Option<f64> {
    if holds(0.0) {
        return Some(0.0);
    }
    let (mut fails, mut passes) = (0, f64::MAX.to_bits());
    if !holds(f64::MAX) {
        return None;
    }
    while passes - fails > 1 {
        let middle = fails + (passes - fails) / 2;
        if holds(f64::from_bits(middle)) {
            passes = middle;
        } else {
            fails = middle;
        }
    }
    Some(f64::from_bits(passes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_threshold_is_found_exactly(bits in 0..=f64::MAX.to_bits()) {
            let threshold = f64::from_bits(bits);
            prop_assert_eq!(smallest(|x| x >= threshold), Some(threshold));
        }
    }

    #[test]
    fn no_threshold_is_said() {
        assert_eq!(smallest(|_| false), None);
    }
}
