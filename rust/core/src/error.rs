use std::fmt;

/// An argument that a kernel refuses: which one, what was wanted, what it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    /// Name of the argument, as in the kernel's signature.
    pub argument: &'static str,
    /// What the kernel wants.
    pub wanted: String,
    /// What it got.
    pub got: String,
}

impl KernelError {
    /// The error for `argument` when `wanted` was not met by `got`.
    pub fn new(
        argument: &'static str,
        wanted: impl Into<String>,
        got: impl fmt::Display,
    ) -> KernelError {
        KernelError {
            argument,
            wanted: wanted.into(),
            got: got.to_string(),
        }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelError {
            argument,
            wanted,
            got,
        } = self;
        write!(f, "{argument}: wanted {wanted}, got {got}")
    }
}

impl std::error::Error for KernelError {}

/// Fails unless `value` is finite and greater than zero.
pub(crate) fn positive(argument: &'static str, value: f64) -> Result<(), KernelError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(KernelError::new(
            argument,
            "a finite number greater than 0",
            value,
        ))
    }
}

/// Fails unless `value` is finite and at least zero.
pub(crate) fn non_negative(argument: &'static str, value: f64) -> Result<(), KernelError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(KernelError::new(
            argument,
            "a finite number of at least 0",
            value,
        ))
    }
}

/// Elements of the longest row: what kernels compute from the length of a row does not overflow, even if there is none.
const LONGEST_ROW: usize = isize::MAX as usize / 64;

/// Number of rows of `dim` elements in a slice of `len` elements; fails unless the rows are whole.
pub(crate) fn rows(argument: &'static str, len: usize, dim: usize) -> Result<usize, KernelError> {
    if dim == 0 {
        return Err(KernelError::new("dim", "at least 1", dim));
    }
    if dim > LONGEST_ROW {
        let wanted = format!("at most {LONGEST_ROW}");
        return Err(KernelError::new("dim", wanted, dim));
    }
    if !len.is_multiple_of(dim) {
        let wanted = format!("a multiple of dim = {dim} elements");
        return Err(KernelError::new(argument, wanted, len));
    }
    Ok(len / dim)
}

/// Fails unless `argument`, which has `len` elements, has `wanted`.
pub(crate) fn same_len(
    argument: &'static str,
    len: usize,
    wanted: usize,
) -> Result<(), KernelError> {
    if len == wanted {
        Ok(())
    } else {
        Err(KernelError::new(
            argument,
            format!("{wanted} elements"),
            len,
        ))
    }
}
