//! Boundary of `dpmesh_core::mixing`.

use dpmesh_core::mixing::{self, MixingMatrix};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, run_native, write};
use crate::with_real;

#[pyfunction]
fn mix<'py>(
    py: Python<'py>,
    indptr: &Bound<'py, PyUntypedArray>,
    indices: &Bound<'py, PyUntypedArray>,
    weights: &Bound<'py, PyUntypedArray>,
    x: &Bound<'py, PyUntypedArray>,
    dim: usize,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let indptr = read::<usize>("indptr", indptr)?;
    let indices = read::<usize>("indices", indices)?;
    let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
    with_real!(x, T => {
        let (weights, x) = (read::<T>("weights", weights)?, read::<T>("x", x)?);
        let mut out = write::<T>("out", out)?;
        let (weights, x, out) = (weights.as_slice()?, x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || {
            let matrix = MixingMatrix::new(indptr, indices, weights, x.len() / dim.max(1))?;
            mixing::mix_into(&matrix, x, dim, out)
        })
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mix, module)?)
}
