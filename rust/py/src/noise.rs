//! Boundary of `dpmesh_core::noise`.

use dpmesh_core::noise::{self, Distribution, Noise};
use dpmesh_core::stream;
use pyo3::prelude::*;

use crate::arguments::{self, Nodes, buffer, float_rows, one_of, per_row, positive};
use crate::convert::{Array, PerRow, row_len, run_native, run_native_into, write};
use crate::with_real;

pub fn distribution(name: &Bound<'_, PyAny>) -> PyResult<Distribution> {
    let distributions = [
        ("gaussian", Distribution::Gaussian),
        ("laplace", Distribution::Laplace),
    ];
    one_of("distribution", name, &distributions)
}

/// The arguments that describe noise.
pub struct NoiseArguments<'a, 'py> {
    distribution: Distribution,
    scales: PerRow<'py>,
    stream: &'a stream::Stream,
    pub nodes: Nodes<'py>,
}

impl<'a, 'py> NoiseArguments<'a, 'py> {
    /// `argument` is the kernel's name for the stream.
    pub fn new(
        distribution: Distribution,
        scale: &Bound<'py, PyAny>,
        (argument, stream): (&str, &'a Bound<'py, PyAny>),
        nodes: Option<&Array<'py>>,
        rows: usize,
    ) -> PyResult<NoiseArguments<'a, 'py>> {
        Ok(NoiseArguments {
            distribution,
            scales: per_row("scale", scale, rows)?,
            stream: arguments::stream(argument, stream)?,
            nodes: Nodes::new(nodes)?,
        })
    }

    pub fn noise(&self) -> PyResult<Noise<'_>> {
        Ok(
            Noise::new(self.distribution, self.scales.as_slice()?, self.stream)
                .for_nodes(self.nodes.as_slice()?),
        )
    }
}

#[pyfunction]
pub fn add_noise<'py>(
    distribution: &Bound<'py, PyAny>,
    x: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: Option<&Bound<'py, PyAny>>,
    longest: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let longest = longest.map_or(Ok(f64::INFINITY), |longest| positive("longest", longest))?;
    let (x, rows) = &float_rows("x", x)?;
    let noise = NoiseArguments::new(
        self::distribution(distribution)?,
        scale,
        ("stream", stream),
        nodes,
        *rows,
    )?;
    let (noise, dim, out) = (noise.noise()?, row_len(x), buffer(out, x)?);
    with_real!(x, T => run_native_into::<T, _>(x, &out, |x, out| {
        noise::add_noise_up_to(longest, x, dim, &noise, out)
    }))?;
    Ok(out)
}

#[pyfunction]
#[pyo3(name = "noise")]
pub fn fill<'py>(
    py: Python<'py>,
    distribution: &Bound<'py, PyAny>,
    scale: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    nodes: Option<&Array<'py>>,
    out: &Array<'py>,
) -> PyResult<()> {
    let (_, rows) = float_rows("out", out)?;
    let noise = NoiseArguments::new(
        self::distribution(distribution)?,
        scale,
        ("stream", stream),
        nodes,
        rows,
    )?;
    let (noise, dim) = (noise.noise()?, row_len(out));
    with_real!(out, T => {
        let mut out = write::<T>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || noise::noise_into(&noise, dim, out))
    })
}
