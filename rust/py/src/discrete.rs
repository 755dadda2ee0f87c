//! Boundary of `dpmesh_core::discrete`.

use dpmesh_core::discrete::{self, DiscreteLaw};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, unfit, write};
use crate::stream::Stream;

fn law(name: &str) -> PyResult<DiscreteLaw> {
    match name {
        "laplace" => Ok(DiscreteLaw::Laplace),
        "gaussian" => Ok(DiscreteLaw::Gaussian),
        other => Err(unfit(
            "law",
            "'laplace' or 'gaussian'",
            format!("'{other}'"),
        )),
    }
}

#[pyfunction]
fn discrete_noise<'py>(
    py: Python<'py>,
    law: &str,
    scale: f64,
    stream: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (law, stream, dim) = (self::law(law)?, &stream.get().kernel, row_len(out));
    let nodes = nodes.map(|nodes| read::<u32>("nodes", nodes)).transpose()?;
    let nodes = nodes.as_ref().map(|nodes| nodes.as_slice()).transpose()?;
    let mut out = write::<i64>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || {
        discrete::discrete_noise_into(law, scale, stream, nodes, dim, out)
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(discrete_noise, module)?)
}
