//! Matrices of the crate `ndarray` as the kernels take them, and back, without a copy.
//!
//! ```
//! use dpmesh_core::projection::{Norm, clip_rows_in_place};
//! use dpmesh_core::views::rows_mut;
//! use ndarray::array;
//!
//! let mut gradients = array![[3.0_f64, 4.0], [0.3, 0.4]]; // of two nodes
//! let (rows, dim) = rows_mut(&mut gradients)?;
//! clip_rows_in_place(rows, dim, Norm::L2, 1.0)?;
//! assert!((gradients[[0, 1]] - 0.8).abs() < 1e-15);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use ndarray::{Array2, ArrayBase, Data, DataMut, Ix2};

use crate::error::rows as number_of_rows;
use crate::{ErrorKind, KernelError};

fn strided() -> KernelError {
    let wanted = "rows one after the other in memory (as_standard_layout copies them there)";
    KernelError::new("x", wanted, "another layout").of_kind(ErrorKind::Length)
}

/// The elements of a matrix in the order of its rows, and the length of a row.
///
/// # Errors
/// If the rows are not one after the other in memory.
pub fn rows<S: Data>(x: &ArrayBase<S, Ix2>) -> Result<(&[S::Elem], usize), KernelError> {
    let dim = x.ncols();
    Ok((x.as_slice().ok_or_else(strided)?, dim))
}

/// As [`rows`], for writing.
///
/// # Errors
/// As [`rows`].
pub fn rows_mut<S: DataMut>(
    x: &mut ArrayBase<S, Ix2>,
) -> Result<(&mut [S::Elem], usize), KernelError> {
    let dim = x.ncols();
    Ok((x.as_slice_mut().ok_or_else(strided)?, dim))
}

/// The matrix of whole rows of `dim` elements.
///
/// # Errors
/// If `values` is not a whole number of rows.
pub fn matrix<T>(values: Vec<T>, dim: usize) -> Result<Array2<T>, KernelError> {
    let count = number_of_rows("values", values.len(), dim)?;
    Array2::from_shape_vec((count, dim), values)
        .map_err(|error| KernelError::new("values", "rows of an array", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn rows_are_those_of_the_matrix_and_come_back() {
        let mut x = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
        assert_eq!(rows(&x), Ok((&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..], 3)));
        rows_mut(&mut x).unwrap().0[4] = 7.0;
        assert_eq!(x[[1, 1]], 7.0);
        assert_eq!(matrix(vec![1.0, 2.0, 3.0, 4.0, 7.0, 6.0], 3), Ok(x.clone()));
        assert_eq!(rows(&x.t()).unwrap_err().kind(), ErrorKind::Length);
        assert_eq!(matrix(vec![1.0; 5], 3).unwrap_err().argument(), "values");
    }
}
