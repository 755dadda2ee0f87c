//! Boundary of `dpmesh_core::draws`.

use dpmesh_core::draws::{self, Rows};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, write};
use crate::stream::Stream;
use crate::with_real;

type Nodes<'a, 'py> = Option<&'a Bound<'py, PyUntypedArray>>;

/// Runs the body with `$nodes` as a slice.
macro_rules! with_nodes {
    ($nodes:ident => $body:expr) => {{
        let nodes = $nodes
            .map(|nodes| read::<u32>("nodes", nodes))
            .transpose()?;
        let $nodes = nodes.as_ref().map(|nodes| nodes.as_slice()).transpose()?;
        $body
    }};
}

#[pyfunction]
fn uniform<'py>(
    py: Python<'py>,
    stream: &Bound<'py, Stream>,
    nodes: Nodes<'_, 'py>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (stream, dim) = (&stream.get().kernel, row_len(out));
    with_nodes!(nodes => with_real!(out, T => {
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || draws::uniform_into(stream, nodes, dim, out))
    }))
}

#[pyfunction]
fn bernoulli<'py>(
    py: Python<'py>,
    p: f64,
    stream: &Bound<'py, Stream>,
    nodes: Nodes<'_, 'py>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (stream, dim) = (&stream.get().kernel, row_len(out));
    let mut out = write::<bool>("out", out)?;
    let out = out.as_slice_mut()?;
    with_nodes!(nodes => run_native(py, || draws::bernoulli_into(p, stream, nodes, dim, out)))
}

#[pyfunction]
fn rademacher<'py>(
    py: Python<'py>,
    p: f64,
    stream: &Bound<'py, Stream>,
    nodes: Nodes<'_, 'py>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (stream, dim) = (&stream.get().kernel, row_len(out));
    let mut out = write::<i8>("out", out)?;
    let out = out.as_slice_mut()?;
    with_nodes!(nodes => run_native(py, || draws::rademacher_into(p, stream, nodes, dim, out)))
}

#[pyfunction]
fn sample<'py>(
    py: Python<'py>,
    counts: &Bound<'py, PyUntypedArray>,
    stream: &Bound<'py, Stream>,
    nodes: Nodes<'_, 'py>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (stream, size) = (&stream.get().kernel, row_len(out));
    let (counts, mut out) = (read::<i64>("counts", counts)?, write::<i64>("out", out)?);
    let (counts, out) = (counts.as_slice()?, out.as_slice_mut()?);
    with_nodes!(nodes => run_native(py, || draws::sample_into(counts, stream, nodes, size, out)))
}

#[pyfunction]
fn shuffle<'py>(
    py: Python<'py>,
    rows: (Bound<'py, PyUntypedArray>, Bound<'py, PyUntypedArray>),
    lengths: &Bound<'py, PyUntypedArray>,
    stream: &Bound<'py, Stream>,
    nodes: Nodes<'_, 'py>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let stream = &stream.get().kernel;
    let (indptr, values) = (read::<i64>("rows", &rows.0)?, read::<i64>("rows", &rows.1)?);
    let (indptr, values) = (indptr.as_slice()?, values.as_slice()?);
    let (lengths, mut out) = (read::<i64>("lengths", lengths)?, write::<i64>("out", out)?);
    let (lengths, out) = (lengths.as_slice()?, out.as_slice_mut()?);
    let rows = Rows { indptr, values };
    with_nodes!(nodes => run_native(py, || {
        draws::shuffle_into(rows, lengths, stream, nodes, out)
    }))
}

#[pyfunction]
fn batch_ends<'py>(
    py: Python<'py>,
    sizes: &Bound<'py, PyUntypedArray>,
    batches: &Bound<'py, PyUntypedArray>,
    batch_size: i64,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let (sizes, batches) = (read("sizes", sizes)?, read("batches", batches)?);
    let (sizes, batches) = (sizes.as_slice()?, batches.as_slice()?);
    let mut out = write("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || {
        draws::batch_ends_into(sizes, batches, batch_size, out)
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(uniform, module)?)?;
    module.add_function(wrap_pyfunction!(bernoulli, module)?)?;
    module.add_function(wrap_pyfunction!(rademacher, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    module.add_function(wrap_pyfunction!(shuffle, module)?)?;
    module.add_function(wrap_pyfunction!(batch_ends, module)?)
}
