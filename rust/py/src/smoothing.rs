//! Boundary of `dpmesh_core::smoothing`.

use dpmesh_core::smoothing::{self, Method};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, write};
use crate::with_real;

/// The recursion, or Fourier transforms for a given power.
fn method(power: Option<u32>) -> Method {
    power.map_or(Method::Recursion, |power| Method::Fourier { power })
}

/// A row is one block if there are none.
#[pyfunction]
fn smooth<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    blocks: Option<Vec<usize>>,
    smoothing: f64,
    power: Option<u32>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (row, method) = ([row_len(x)], method(power));
    let blocks = blocks.as_deref().unwrap_or(&row);
    with_real!(x, T => {
        let (x, mut out) = (read::<T>("x", x)?, write::<T>("out", out)?);
        let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || smoothing::smooth_rows_into(x, blocks, smoothing, method, out))
    })
}

#[pyfunction]
fn smooth_in_place<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    blocks: Option<Vec<usize>>,
    smoothing: f64,
    power: Option<u32>,
) -> PyResult<()> {
    let (row, method) = ([row_len(x)], method(power));
    let blocks = blocks.as_deref().unwrap_or(&row);
    with_real!(x, T => {
        let mut x = write::<T>("x", x)?;
        let x = x.as_slice_mut()?;
        run_native(py, || smoothing::smooth_rows_in_place(x, blocks, smoothing, method))
    })
}

#[pyfunction]
fn smoothing_spectrum<'py>(
    py: Python<'py>,
    smoothing: f64,
    power: u32,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let mut out = write::<f64>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || smoothing::spectrum_into(smoothing, power, out))
}

#[pyfunction]
fn effective_dimensions(
    py: Python<'_>,
    dim: usize,
    smoothing: f64,
    power: u32,
) -> PyResult<(f64, f64)> {
    let sums = run_native(py, || {
        smoothing::effective_dimensions(dim, smoothing, power)
    })?;
    Ok((sums.linear, sums.squared))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(smooth, module)?)?;
    module.add_function(wrap_pyfunction!(smooth_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(smoothing_spectrum, module)?)?;
    module.add_function(wrap_pyfunction!(effective_dimensions, module)?)
}
