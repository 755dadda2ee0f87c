//! Boundary of `dpmesh_core::discrete`.

use dpmesh_core::discrete::{self, DiscreteDistribution};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::arguments::{self, Nodes, one_of};
use crate::convert::{Array, row_len, run_native, write};

fn distribution(name: &Bound<'_, PyAny>) -> PyResult<DiscreteDistribution> {
    let distributions = [
        ("laplace", DiscreteDistribution::Laplace),
        ("gaussian", DiscreteDistribution::Gaussian),
    ];
    one_of("distribution", name, &distributions)
}

#[pyfunction]
pub fn discrete_noise<'py>(
    py: Python<'py>,
    distribution: &Bound<'py, PyAny>,
    scale: f64,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (distribution, dim) = (self::distribution(distribution)?, row_len(out));
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let nodes = nodes.as_slice()?;
    let mut out = write::<i64>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || {
        discrete::discrete_noise_into(distribution, scale, stream, nodes, dim, out)
    })
}
