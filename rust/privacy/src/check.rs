//! Checks of arguments that all accountants share.

use crate::KernelError;

/// Fails with `wanted` unless `holds` (which NaN never does).
pub(crate) fn require(
    holds: bool,
    argument: &'static str,
    wanted: &str,
    got: f64,
) -> Result<(), KernelError> {
    if holds {
        Ok(())
    } else {
        Err(KernelError::new(argument, wanted, got))
    }
}

/// A finite number greater than 0.
pub(crate) fn positive(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value > 0.0 && value.is_finite();
    require(holds, argument, "a finite number greater than 0", value)
}

/// A finite number of at least 0.
pub(crate) fn non_negative(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value >= 0.0 && value.is_finite();
    require(holds, argument, "a finite number of at least 0", value)
}

/// A probability strictly between 0 and 1.
pub(crate) fn open_probability(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value > 0.0 && value < 1.0;
    require(holds, argument, "a number in (0, 1)", value)
}
