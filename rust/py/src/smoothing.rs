//! Boundary of `dpmesh_core::smoothing`.

use dpmesh_core::smoothing::{self, Method};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::arguments::{buffer, floats, integer, non_negative, one_of};
use crate::convert::{Array, row_len, run_native, run_native_into, unfit, write};
use crate::with_real;

/// How to solve the system: by the method named, otherwise by recursion for the first power and FFT for higher ones.
fn method(power: &Bound<'_, PyAny>, name: Option<&Bound<'_, PyAny>>) -> PyResult<Method> {
    let power = integer("power", power, 1)?;
    let fourier = Method::Fourier { power };
    let first = if power == 1 {
        Method::Recursion
    } else {
        fourier
    };
    let Some(name) = name else {
        return Ok(first);
    };
    let choices = [("recursion", Method::Recursion), ("fft", fourier)];
    let chosen = one_of("method", name, &choices)?;
    if chosen == Method::Recursion && power != 1 {
        let wanted = format!("'fft' for power {power}");
        return Err(unfit("method", &wanted, "'recursion'"));
    }
    Ok(chosen)
}

/// Without `blocks`, each row is one block.
#[pyfunction]
pub fn smooth<'py>(
    x: &Bound<'py, PyAny>,
    smoothing: &Bound<'py, PyAny>,
    power: &Bound<'py, PyAny>,
    blocks: Option<Vec<usize>>,
    method: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let x = &floats("x", x)?;
    let smoothing = non_negative("smoothing", smoothing)?;
    let method = self::method(power, method)?;
    let lengths = &blocks.unwrap_or_else(|| vec![row_len(x)])[..];
    let sum = lengths
        .iter()
        .fold(0_usize, |sum, length| sum.saturating_add(*length));
    if sum != row_len(x) {
        let wanted = format!("lengths that sum to the {} elements of a row", row_len(x));
        return Err(unfit("blocks", &wanted, format!("sum {sum}")));
    }
    let out = buffer(out, x)?;
    with_real!(x, T => run_native_into::<T, _>(x, &out, |x, out| match x {
        Some(x) => smoothing::smooth_rows_into(x, lengths, smoothing, method, out),
        None => smoothing::smooth_rows_in_place(out, lengths, smoothing, method),
    }))?;
    Ok(out)
}

#[pyfunction]
pub fn smoothing_spectrum<'py>(
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
pub fn effective_dimensions(
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
