//! Boundary of `dpmesh_privacy`.

use dpmesh_privacy::gdp;
use numpy::{IntoPyArray, PyArray1, PyUntypedArray};
use pyo3::prelude::*;

use crate::convert::{read, run_native};

type Floats<'py> = Bound<'py, PyArray1<f64>>;

#[pyfunction]
fn gdp_epsilons<'py>(
    py: Python<'py>,
    mu: &Bound<'py, PyUntypedArray>,
    delta: f64,
) -> PyResult<Floats<'py>> {
    let mu = read::<f64>("mu", mu)?;
    let mu = mu.as_slice()?;
    Ok(run_native(py, || gdp::epsilons(mu, delta))?.into_pyarray(py))
}

#[pyfunction]
fn gdp_log_deltas<'py>(
    py: Python<'py>,
    mu: &Bound<'py, PyUntypedArray>,
    epsilon: f64,
) -> PyResult<Floats<'py>> {
    let mu = read::<f64>("mu", mu)?;
    let mu = mu.as_slice()?;
    Ok(run_native(py, || gdp::log_deltas(mu, epsilon))?.into_pyarray(py))
}

#[pyfunction]
fn gaussian_noise_multiplier(py: Python<'_>, epsilon: f64, delta: f64) -> PyResult<f64> {
    run_native(py, || gdp::noise_multiplier(epsilon, delta))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(gdp_epsilons, module)?)?;
    module.add_function(wrap_pyfunction!(gdp_log_deltas, module)?)?;
    module.add_function(wrap_pyfunction!(gaussian_noise_multiplier, module)?)
}
