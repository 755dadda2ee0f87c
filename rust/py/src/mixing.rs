//! Boundary of `dpmesh_core::mixing`.

use dpmesh_core::mixing::{self, MixingMatrix};
use numpy::PyUntypedArrayMethods;
use pyo3::prelude::*;

use crate::arguments::filled;
use crate::convert::{Array, read, run_native, write};
use crate::with_real;

/// `indptr`, `indices` and `data` of a CSR matrix with indices of 32 bits.
type Rows<'py> = (Array<'py>, Array<'py>, Array<'py>);

#[pyfunction]
pub fn mix<'py>(
    rows: Rows<'py>,
    x: &Array<'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let (indptr, indices, weights) = &rows;
    let nodes = x.shape().first().copied().unwrap_or(0);
    let dim = x.len().checked_div(nodes).unwrap_or(0);
    let mut shape = x.shape().to_vec();
    if let Some(rows) = shape.first_mut() {
        *rows = indptr.len().saturating_sub(1);
    }
    let mixed = filled(out, &shape, &x.dtype())?;
    with_real!(x, T => {
        let indptr = read::<i32>("indptr", indptr)?;
        let indices = read::<i32>("indices", indices)?;
        let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
        let (weights, x) = (read::<T>("weights", weights)?, read::<T>("x", x)?);
        let mut out = write::<T>("out", &mixed)?;
        let (weights, x, out) = (weights.as_slice()?, x.as_slice()?, out.as_slice_mut()?);
        run_native(mixed.py(), || {
            let matrix = MixingMatrix::new(indptr, indices, weights, nodes)?;
            mixing::mix_into(&matrix, x, dim, out)
        })
    })?;
    Ok(mixed)
}
