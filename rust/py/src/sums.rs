//! Boundary of `dpmesh_core::sums`.

use dpmesh_core::{Real, sums};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, run_native, write};
use crate::with_real;

#[pyfunction]
pub fn weighted_sum<'py>(
    py: Python<'py>,
    terms: Vec<(f64, Bound<'py, PyUntypedArray>)>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    with_real!(out, T => {
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        let weights: Vec<T> = terms.iter().map(|(weight, _)| T::from_f64(*weight)).collect();
        let arrays = terms.iter().map(|(_, x)| read::<T>("terms", x));
        let arrays = arrays.collect::<PyResult<Vec<_>>>()?;
        let slices = arrays.iter().map(|x| Ok(x.as_slice()?)).collect::<PyResult<Vec<_>>>()?;
        run_native(py, || sums::weighted_sum_into(&weights, &slices, out))
    })
}

#[pyfunction]
pub fn column_sums<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let mut out = write::<f64>("out", out)?;
    let out = out.as_slice_mut()?;
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || sums::column_sums_into(x, out))
    })
}
