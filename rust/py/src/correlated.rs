//! Boundary of `dpmesh_core::noise::correlated`.

use dpmesh_core::noise::Distribution;
use dpmesh_core::noise::correlated::{self, Earlier, Pair};
use pyo3::prelude::*;

use crate::arguments::{float_rows, stream as stream_of};
use crate::convert::{Array, read, row_len, run_native, write};
use crate::noise::NoiseArguments;
use crate::with_real;

#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn correlated_noise<'py>(
    py: Python<'py>,
    scale: &Bound<'py, PyAny>,
    weights: Vec<f64>,
    earlier: Vec<Array<'py>>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (_, rows) = float_rows("out", out)?;
    let noise = NoiseArguments::new(
        Distribution::Gaussian,
        scale,
        ("stream", stream),
        nodes,
        rows,
    )?;
    let (noise, dim) = (noise.noise()?, row_len(out));
    with_real!(out, T => {
        let arrays: PyResult<Vec<_>> = earlier.iter().map(|x| read::<T>("earlier", x)).collect();
        let arrays = arrays?;
        let rows: Result<Vec<_>, _> = arrays.iter().map(|x| x.as_slice()).collect();
        let earlier: Vec<_> = weights
            .iter()
            .zip(rows?)
            .map(|(&weight, rows)| Earlier::new(weight, rows))
            .collect();
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || correlated::correlated_noise_into(&noise, &earlier, dim, out))
    })
}

/// An end of -1 is a row that this process does not hold.
#[pyfunction]
pub fn add_pair_noise<'py>(
    py: Python<'py>,
    x: &Array<'py>,
    pairs: &Array<'py>,
    ends: &Array<'py>,
    scale: f64,
    stream: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let stream = stream_of("stream", stream)?;
    let dim = row_len(x);
    let (ids, ends) = (read::<u32>("pairs", pairs)?, read::<i64>("ends", ends)?);
    let row = |end: i64| u32::try_from(end).ok();
    let pairs: Vec<Pair> = ids
        .as_slice()?
        .iter()
        .zip(ends.as_slice()?.as_chunks::<2>().0)
        .map(|(&node, ends)| Pair::new(node, ends.map(row)))
        .collect();
    with_real!(x, T => {
        let mut x = write::<T>("x", x)?;
        let x = x.as_slice_mut()?;
        run_native(py, || correlated::add_pair_noise_in_place(x, dim, &pairs, scale, stream))
    })
}
