//! Checks of arguments.

use crate::{ErrorKind, KernelError};

/// What is wanted, if it holds (which it never does for NaN).
///
/// # Errors
/// If it does not hold.
pub fn require(
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
///
/// # Errors
/// If `value` is none.
pub fn positive(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value > 0.0 && value.is_finite();
    require(holds, argument, "a finite number greater than 0", value)
}

/// A finite number of at least 0.
///
/// # Errors
/// If `value` is none.
pub fn non_negative(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value >= 0.0 && value.is_finite();
    require(holds, argument, "a finite number of at least 0", value)
}

/// A probability strictly between 0 and 1.
///
/// # Errors
/// If `value` is none.
pub fn open_probability(argument: &'static str, value: f64) -> Result<(), KernelError> {
    let holds = value > 0.0 && value < 1.0;
    require(holds, argument, "a number in (0, 1)", value)
}

/// Elements of the longest row: what kernels compute from the length of a row does not overflow, even if there is none.
const LONGEST_ROW: usize = isize::MAX as usize / 64;

/// Number of rows of `dim` elements in a slice of `len` elements.
///
/// # Errors
/// Unless the rows are whole, and not too long.
pub fn rows(argument: &'static str, len: usize, dim: usize) -> Result<usize, KernelError> {
    if dim == 0 {
        return Err(KernelError::new("dim", "at least 1", dim));
    }
    if dim > LONGEST_ROW {
        let wanted = format!("at most {LONGEST_ROW}");
        return Err(KernelError::new("dim", wanted, dim));
    }
    if !len.is_multiple_of(dim) {
        let wanted = format!("a multiple of dim = {dim} elements");
        return Err(KernelError::new(argument, wanted, len).of_kind(ErrorKind::Length));
    }
    Ok(len / dim)
}

/// As many elements as are wanted.
///
/// # Errors
/// Unless `len`, the number of elements of `argument`, is `wanted`.
pub fn same_len(argument: &'static str, len: usize, wanted: usize) -> Result<(), KernelError> {
    if len == wanted {
        Ok(())
    } else {
        let error = KernelError::new(argument, format!("{wanted} elements"), len);
        Err(error.of_kind(ErrorKind::Length))
    }
}
