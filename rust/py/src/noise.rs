//! Boundary of `dpmesh_core::noise`.

use dpmesh_core::noise::{self, Law, Noise};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, unfit, write};
use crate::stream::Stream;
use crate::with_real;

pub fn law(name: &str) -> PyResult<Law> {
    match name {
        "gaussian" => Ok(Law::Gaussian),
        "laplace" => Ok(Law::Laplace),
        other => Err(unfit(
            "law",
            "'gaussian' or 'laplace'",
            format!("'{other}'"),
        )),
    }
}

/// Runs the body with `$noise` bound to the noise that the arguments describe.
macro_rules! with_noise {
    ($law:ident, $scales:ident, $stream:ident, $nodes:ident, $noise:ident => $body:expr) => {{
        let scales = $crate::convert::PerRow::new("scale", $scales)?;
        let nodes = $nodes
            .map(|nodes| read::<u32>("nodes", nodes))
            .transpose()?;
        let $noise = Noise {
            law: $crate::noise::law($law)?,
            scales: scales.as_slice()?,
            stream: &$stream.get().kernel,
            nodes: nodes.as_ref().map(|nodes| nodes.as_slice()).transpose()?,
        };
        $body
    }};
}
pub(crate) use with_noise;

#[pyfunction]
#[pyo3(signature = (x, law, scales, stream, nodes, out))]
fn add_noise<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    law: &str,
    scales: &Bound<'py, PyAny>,
    stream: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let dim = row_len(x);
    with_noise!(law, scales, stream, nodes, noise => with_real!(x, T => {
        let (x, mut out) = (read::<T>("x", x)?, write::<T>("out", out)?);
        let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || noise::add_noise_into(x, dim, &noise, out))
    }))
}

#[pyfunction]
#[pyo3(signature = (x, law, scales, stream, nodes))]
fn add_noise_in_place<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    law: &str,
    scales: &Bound<'py, PyAny>,
    stream: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
) -> PyResult<()> {
    let dim = row_len(x);
    with_noise!(law, scales, stream, nodes, noise => with_real!(x, T => {
        let mut x = write::<T>("x", x)?;
        let x = x.as_slice_mut()?;
        run_native(py, || noise::add_noise_in_place(x, dim, &noise))
    }))
}

#[pyfunction]
#[pyo3(name = "noise", signature = (law, scales, stream, nodes, out))]
fn fill<'py>(
    py: Python<'py>,
    law: &str,
    scales: &Bound<'py, PyAny>,
    stream: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let dim = row_len(out);
    with_noise!(law, scales, stream, nodes, noise => with_real!(out, T => {
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || noise::noise_into(&noise, dim, out))
    }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(add_noise, module)?)?;
    module.add_function(wrap_pyfunction!(add_noise_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(fill, module)?)
}
