//! Boundary of `dpmesh_core::discrete`.

use dpmesh_core::discrete::{self, DiscreteLaw};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::arguments::one_of;
use crate::convert::{read, row_len, run_native, write};
use crate::stream::Stream;

fn law(name: &Bound<'_, PyAny>) -> PyResult<DiscreteLaw> {
    let laws = [
        ("laplace", DiscreteLaw::Laplace),
        ("gaussian", DiscreteLaw::Gaussian),
    ];
    one_of("law", name, &laws)
}

#[pyfunction]
fn discrete_noise<'py>(
    py: Python<'py>,
    law: &Bound<'py, PyAny>,
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
