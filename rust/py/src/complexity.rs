//! Boundary of `dpmesh_core::complexity`.

use dpmesh_core::complexity;
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::arguments;
use crate::convert::{read, row_len, run_native, write};
use crate::with_real;

#[pyfunction]
pub fn rademacher_suprema<'py>(
    py: Python<'py>,
    vectors: &Bound<'py, PyUntypedArray>,
    p: f64,
    stream: &Bound<'py, PyAny>,
    first: u32,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (stream, dim) = (arguments::stream("stream", stream)?, row_len(vectors));
    let mut out = write::<f64>("out", out)?;
    let out = out.as_slice_mut()?;
    with_real!(vectors, T => {
        let vectors = read::<T>("vectors", vectors)?;
        let vectors = vectors.as_slice()?;
        run_native(py, || complexity::suprema_into(vectors, dim, p, stream, first, out))
    })
}
