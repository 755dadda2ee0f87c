//! Boundary of `dpmesh_core::discrete`.

use dpmesh_core::discrete::{self, DiscreteLaw};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::arguments::{self, Nodes, one_of};
use crate::convert::{Array, row_len, run_native, write};

fn law(name: &Bound<'_, PyAny>) -> PyResult<DiscreteLaw> {
    let laws = [
        ("laplace", DiscreteLaw::Laplace),
        ("gaussian", DiscreteLaw::Gaussian),
    ];
    one_of("law", name, &laws)
}

#[pyfunction]
pub fn discrete_noise<'py>(
    py: Python<'py>,
    law: &Bound<'py, PyAny>,
    scale: f64,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (law, dim) = (self::law(law)?, row_len(out));
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let nodes = nodes.as_slice()?;
    let mut out = write::<i64>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || {
        discrete::discrete_noise_into(law, scale, stream, nodes, dim, out)
    })
}
