//! Boundary of `dpmesh_core::draws`.

use dpmesh_core::draws::{self, Rows};
use pyo3::prelude::*;

use crate::arguments::{self, Nodes};
use crate::convert::{Array, read, row_len, run_native, write};
use crate::with_real;

#[pyfunction]
pub fn uniform<'py>(
    py: Python<'py>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let (nodes, dim) = (nodes.as_slice()?, row_len(out));
    with_real!(out, T => {
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || draws::uniform_into(stream, nodes, dim, out))
    })
}

#[pyfunction]
pub fn bernoulli<'py>(
    py: Python<'py>,
    p: f64,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let (nodes, dim) = (nodes.as_slice()?, row_len(out));
    let mut out = write::<bool>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || draws::bernoulli_into(p, stream, nodes, dim, out))
}

#[pyfunction]
pub fn sample<'py>(
    py: Python<'py>,
    counts: &Array<'py>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let (nodes, size) = (nodes.as_slice()?, row_len(out));
    let (counts, mut out) = (read::<i64>("counts", counts)?, write::<i64>("out", out)?);
    let (counts, out) = (counts.as_slice()?, out.as_slice_mut()?);
    run_native(py, || draws::sample_into(counts, stream, nodes, size, out))
}

#[pyfunction]
pub fn shuffle<'py>(
    py: Python<'py>,
    rows: (Array<'py>, Array<'py>),
    lengths: &Array<'py>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (stream, nodes) = (arguments::stream("stream", stream)?, Nodes::new(nodes)?);
    let nodes = nodes.as_slice()?;
    let (indptr, values) = (read::<i64>("rows", &rows.0)?, read::<i64>("rows", &rows.1)?);
    let (indptr, values) = (indptr.as_slice()?, values.as_slice()?);
    let (lengths, mut out) = (read::<i64>("lengths", lengths)?, write::<i64>("out", out)?);
    let (lengths, out) = (lengths.as_slice()?, out.as_slice_mut()?);
    let rows = Rows::new(indptr, values);
    run_native(py, || {
        draws::shuffle_into(rows, lengths, stream, nodes, out)
    })
}

#[pyfunction]
pub fn batch_ends<'py>(
    py: Python<'py>,
    sizes: &Array<'py>,
    batches: &Array<'py>,
    batch_size: i64,
    out: &Array<'py>,
) -> PyResult<()> {
    let (sizes, batches) = (read("sizes", sizes)?, read("batches", batches)?);
    let (sizes, batches) = (sizes.as_slice()?, batches.as_slice()?);
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || {
        draws::batch_ends_into(sizes, batches, batch_size, out)
    })
}
