//! Boundary of `dpmesh_core::mixing`.

use dpmesh_core::mixing::{self, MixingMatrix};
use dpmesh_core::noise::Noise;
use numpy::PyUntypedArrayMethods;
use pyo3::prelude::*;

use crate::arguments::filled;
use crate::convert::{Array, read, run_native, write};
use crate::noise::{self, NoiseArguments};
use crate::with_real;

/// `indptr`, `indices` and `data` of a CSR matrix with indices of 32 bits.
type Rows<'py> = (Array<'py>, Array<'py>, Array<'py>);

#[pyfunction]
pub fn mix<'py>(
    rows: Rows<'py>,
    x: &Array<'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    mix_rows(&rows, x, None, out)
}

#[pyfunction]
pub fn mix_noisy<'py>(
    rows: Rows<'py>,
    x: &Array<'py>,
    law: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let noise = NoiseArguments::new(
        noise::law(law)?,
        scale,
        ("stream", stream),
        nodes,
        nodes_of(x),
    )?;
    mix_rows(&rows, x, Some(&noise.noise()?), out)
}

/// The number of nodes that the rows of `x` belong to.
fn nodes_of(x: &Array<'_>) -> usize {
    x.shape().first().copied().unwrap_or(0)
}

fn mix_rows<'py>(
    (indptr, indices, weights): &Rows<'py>,
    x: &Array<'py>,
    noise: Option<&Noise<'_>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let nodes = nodes_of(x);
    let dim = x.len().checked_div(nodes).unwrap_or(0);
    let mut shape = x.shape().to_vec();
    if let Some(rows) = shape.first_mut() {
        *rows = indptr.len().saturating_sub(1);
    }
    let mixed = filled(out, &shape, &x.dtype())?;
    with_real!(x, T => {
        let indptr = read::<i32>("indptr", indptr)?;
        let indices = read::<i32>("indices", indices)?;
        let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
        let (weights, x) = (read::<T>("weights", weights)?, read::<T>("x", x)?);
        let mut out = write::<T>("out", &mixed)?;
        let (weights, x, out) = (weights.as_slice()?, x.as_slice()?, out.as_slice_mut()?);
        run_native(mixed.py(), || {
            let matrix = MixingMatrix::new(indptr, indices, weights, nodes)?;
            match noise {
                None => mixing::mix_into(&matrix, x, dim, out),
                Some(noise) => mixing::mix_noisy_into(&matrix, x, dim, noise, out),
            }
        })
    })?;
    Ok(mixed)
}
