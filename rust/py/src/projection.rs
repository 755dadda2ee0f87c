//! Boundary of `dpmesh_core::projection`.

use dpmesh_core::projection::{self, Norm};
use numpy::{PyUntypedArrayMethods, dtype};
use pyo3::prelude::*;

use crate::arguments::{buffer, filled, floats, one_of, positive};
use crate::convert::{Array, read, row_len, run_native, run_native_into, write};
use crate::with_real;

pub fn norm(name: &Bound<'_, PyAny>) -> PyResult<Norm> {
    one_of("norm", name, &[("l1", Norm::L1), ("l2", Norm::L2)])
}

#[pyfunction]
pub fn clip_rows<'py>(
    x: &Bound<'py, PyAny>,
    bound: &Bound<'py, PyAny>,
    norm: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let x = &floats("x", x)?;
    let bound = positive("bound", bound)?;
    let norm = self::norm(norm)?;
    let (dim, out) = (row_len(x), buffer(out, x)?);
    with_real!(x, T => run_native_into::<T, _>(x, &out, |x, out| match x {
        Some(x) => projection::clip_rows_into(x, dim, norm, bound, out),
        None => projection::clip_rows_in_place(out, dim, norm, bound),
    }))?;
    Ok(out)
}

#[pyfunction]
pub fn all_finite<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<bool> {
    let x = &floats("x", x)?;
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || Ok(projection::all_finite(x)))
    })
}

#[pyfunction]
pub fn row_norms<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    norm: &Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    let x = &floats("x", x)?;
    let norm = self::norm(norm)?;
    let dim = row_len(x);
    let norms = filled(None, &x.shape()[..x.ndim() - 1], &dtype::<f64>(py))?;
    let mut out = write::<f64>("out", &norms)?;
    let out = out.as_slice_mut()?;
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || projection::row_norms_into(x, dim, norm, out))
    })?;
    Ok(norms)
}
