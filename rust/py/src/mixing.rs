//! Boundary of `dpmesh_core::mixing`.

use dpmesh_core::mixing::{self, MixingMatrix};
use dpmesh_core::noise::Noise;
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::convert::{read, row_len, run_native, write};
use crate::noise::with_noise;
use crate::stream::Stream;
use crate::{with_index, with_real};

#[pyfunction]
#[pyo3(signature = (indptr, indices, weights, x, dim, out))]
fn mix<'py>(
    py: Python<'py>,
    indptr: &Bound<'py, PyUntypedArray>,
    indices: &Bound<'py, PyUntypedArray>,
    weights: &Bound<'py, PyUntypedArray>,
    x: &Bound<'py, PyUntypedArray>,
    dim: usize,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    mix_rows(py, [indptr, indices, weights], x, dim, None, out)
}

#[pyfunction]
#[pyo3(signature = (indptr, indices, weights, x, law, scales, stream, nodes, out))]
fn mix_noisy<'py>(
    py: Python<'py>,
    indptr: &Bound<'py, PyUntypedArray>,
    indices: &Bound<'py, PyUntypedArray>,
    weights: &Bound<'py, PyUntypedArray>,
    x: &Bound<'py, PyUntypedArray>,
    law: &str,
    scales: &Bound<'py, PyAny>,
    stream: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let dim = row_len(x);
    with_noise!(law, scales, stream, nodes, noise => {
        mix_rows(py, [indptr, indices, weights], x, dim, Some(&noise), out)
    })
}

fn mix_rows<'py>(
    py: Python<'py>,
    [indptr, indices, weights]: [&Bound<'py, PyUntypedArray>; 3],
    x: &Bound<'py, PyUntypedArray>,
    dim: usize,
    noise: Option<&Noise<'_>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    with_index!(indices, I => with_real!(x, T => {
        let indptr = read::<I>("indptr", indptr)?;
        let indices = read::<I>("indices", indices)?;
        let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
        let (weights, x) = (read::<T>("weights", weights)?, read::<T>("x", x)?);
        let mut out = write::<T>("out", out)?;
        let (weights, x, out) = (weights.as_slice()?, x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || {
            let matrix = MixingMatrix::new(indptr, indices, weights, x.len() / dim.max(1))?;
            match noise {
                None => mixing::mix_into(&matrix, x, dim, out),
                Some(noise) => mixing::mix_noisy_into(&matrix, x, dim, noise, out),
            }
        })
    }))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mix, module)?)?;
    module.add_function(wrap_pyfunction!(mix_noisy, module)?)
}
