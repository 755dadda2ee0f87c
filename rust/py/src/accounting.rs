//! Boundary of `dpmesh_privacy`.

use dpmesh_privacy::conversion::{self, Conversion};
use dpmesh_privacy::rdp::{self, FixedSizeBound};
use dpmesh_privacy::{KernelError, gdp};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arguments::one_of;
use crate::convert::{Array, read, run_native};

type Output<'py> = Bound<'py, PyArray1<f64>>;

/// Runs `account` on float64 arrays, each given with its name.
fn on_slices<'py, const N: usize>(
    py: Python<'py>,
    arrays: [(&str, &Array<'py>); N],
    account: impl FnOnce([&[f64]; N]) -> Result<Vec<f64>, KernelError> + Send,
) -> PyResult<Output<'py>> {
    let mut borrowed = Vec::with_capacity(N);
    for (name, array) in arrays {
        borrowed.push(read::<f64>(name, array)?);
    }
    let mut slices: [&[f64]; N] = [&[]; N];
    for (slice, array) in slices.iter_mut().zip(&borrowed) {
        *slice = array.as_slice()?;
    }
    Ok(run_native(py, || account(slices))?.into_pyarray(py))
}

#[pyfunction]
pub fn gdp_epsilons<'py>(py: Python<'py>, mu: &Array<'py>, delta: f64) -> PyResult<Output<'py>> {
    on_slices(py, [("mu", mu)], |[mu]| gdp::epsilons(mu, delta))
}

#[pyfunction]
pub fn gdp_log_deltas<'py>(
    py: Python<'py>,
    mu: &Array<'py>,
    epsilon: f64,
) -> PyResult<Output<'py>> {
    on_slices(py, [("mu", mu)], |[mu]| gdp::log_deltas(mu, epsilon))
}

#[pyfunction]
pub fn gaussian_noise_multiplier(py: Python<'_>, epsilon: f64, delta: f64) -> PyResult<f64> {
    run_native(py, || gdp::noise_to_sensitivity(epsilon, delta))
}

#[pyfunction]
pub fn rdp_gaussian<'py>(
    py: Python<'py>,
    noise: &Array<'py>,
    count: &Array<'py>,
    orders: &Array<'py>,
) -> PyResult<Output<'py>> {
    let arrays = [("noise", noise), ("count", count), ("orders", orders)];
    on_slices(py, arrays, |[s, n, orders]| rdp::gaussian(s, n, orders))
}

#[pyfunction]
pub fn rdp_laplace<'py>(
    py: Python<'py>,
    noise: &Array<'py>,
    count: &Array<'py>,
    orders: &Array<'py>,
) -> PyResult<Output<'py>> {
    let arrays = [("noise", noise), ("count", count), ("orders", orders)];
    on_slices(py, arrays, |[s, n, orders]| rdp::laplace(s, n, orders))
}

#[pyfunction]
pub fn rdp_poisson_gaussian<'py>(
    py: Python<'py>,
    rate: &Array<'py>,
    noise: &Array<'py>,
    count: &Array<'py>,
    orders: &Array<'py>,
) -> PyResult<Output<'py>> {
    let arrays = [
        ("rate", rate),
        ("noise", noise),
        ("count", count),
        ("orders", orders),
    ];
    on_slices(py, arrays, |[q, s, n, orders]| {
        rdp::poisson_gaussian(q, s, n, orders)
    })
}

#[pyfunction]
pub fn rdp_fixed_size_gaussian<'py>(
    py: Python<'py>,
    bound: &Bound<'py, PyAny>,
    rate: &Array<'py>,
    noise: &Array<'py>,
    count: &Array<'py>,
    orders: &Array<'py>,
) -> PyResult<Output<'py>> {
    let bounds = [
        ("dominating_pair", FixedSizeBound::DominatingPair),
        ("theorem_27", FixedSizeBound::Theorem27),
        ("theorem_9", FixedSizeBound::Theorem9),
    ];
    let bound = one_of("bound", bound, &bounds)?;
    let arrays = [
        ("rate", rate),
        ("noise", noise),
        ("count", count),
        ("orders", orders),
    ];
    on_slices(py, arrays, |[q, s, n, orders]| {
        rdp::fixed_size_gaussian(bound, q, s, n, orders)
    })
}

#[pyfunction]
pub fn rdp_to_epsilon<'py>(
    py: Python<'py>,
    orders: &Array<'py>,
    rdp: &Array<'py>,
    delta: f64,
    conversion: &Bound<'py, PyAny>,
) -> PyResult<(f64, usize)> {
    let conversions = [
        ("optimal", Conversion::Optimal),
        ("mironov", Conversion::Mironov),
    ];
    let conversion = one_of("conversion", conversion, &conversions)?;
    let (orders, rdp) = (read::<f64>("orders", orders)?, read::<f64>("rdp", rdp)?);
    let (orders, rdp) = (orders.as_slice()?, rdp.as_slice()?);
    let best = run_native(py, || conversion::epsilon(orders, rdp, delta, conversion))?;
    Ok((best.value, best.index))
}

#[pyfunction]
pub fn rdp_to_log_delta<'py>(
    py: Python<'py>,
    orders: &Array<'py>,
    rdp: &Array<'py>,
    epsilon: f64,
) -> PyResult<(f64, usize)> {
    let (orders, rdp) = (read::<f64>("orders", orders)?, read::<f64>("rdp", rdp)?);
    let (orders, rdp) = (orders.as_slice()?, rdp.as_slice()?);
    let best = run_native(py, || conversion::log_delta(orders, rdp, epsilon))?;
    Ok((best.value, best.index))
}
