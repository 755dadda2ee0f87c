//! Boundary of `dpmesh_core::projection`.

use dpmesh_core::projection::{self, Norm};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, unfit, write};
use crate::with_real;

pub fn norm(name: &str) -> PyResult<Norm> {
    match name {
        "l1" => Ok(Norm::L1),
        "l2" => Ok(Norm::L2),
        other => Err(unfit("norm", "'l1' or 'l2'", format!("'{other}'"))),
    }
}

#[pyfunction]
fn clip_rows<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    bound: f64,
    kind: &str,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (dim, kind) = (row_len(x), norm(kind)?);
    with_real!(x, T => {
        let (x, mut out) = (read::<T>("x", x)?, write::<T>("out", out)?);
        let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || projection::clip_rows_into(x, dim, kind, bound, out))
    })
}

#[pyfunction]
fn clip_rows_in_place<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    bound: f64,
    kind: &str,
) -> PyResult<()> {
    let (dim, kind) = (row_len(x), norm(kind)?);
    with_real!(x, T => {
        let mut x = write::<T>("x", x)?;
        let x = x.as_slice_mut()?;
        run_native(py, || projection::clip_rows_in_place(x, dim, kind, bound))
    })
}

#[pyfunction]
fn all_finite<'py>(py: Python<'py>, x: &Bound<'py, PyUntypedArray>) -> PyResult<bool> {
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || Ok(projection::all_finite(x)))
    })
}

#[pyfunction]
fn row_norms<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    kind: &str,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (dim, kind) = (row_len(x), norm(kind)?);
    let mut out = write::<f64>("out", out)?;
    let out = out.as_slice_mut()?;
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || projection::row_norms_into(x, dim, kind, out))
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(all_finite, module)?)?;
    module.add_function(wrap_pyfunction!(clip_rows, module)?)?;
    module.add_function(wrap_pyfunction!(clip_rows_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(row_norms, module)?)
}
