//! Boundary of `dpmesh_core::quantize` and `dpmesh_core::packing`.

use dpmesh_core::quantize::{Overflow, Quantizer, dequantize_into, quantize_into};
use dpmesh_core::{KernelError, packing};
use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{self, Nodes, filled_with_codes, float_rows, positive};
use crate::convert::{Array, read, row_len, run_native, write};
use crate::{with_code, with_real};

/// The codes, and how many of them were saturated.
#[pyfunction]
pub fn quantize<'py>(
    x: &Bound<'py, PyAny>,
    step: &Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
    saturate: bool,
    dtype: &Bound<'py, PyArrayDescr>,
    nodes: Option<&Array<'py>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Array<'py>, u64)> {
    let (x, _) = &float_rows("x", x)?;
    let nodes = Nodes::new(nodes)?;
    let (py, dim) = (x.py(), row_len(x));
    let quantizer = Quantizer::new(
        positive("step", step)?,
        arguments::stream("stream", stream)?,
        if saturate {
            Overflow::Saturate
        } else {
            Overflow::Refuse
        },
    )
    .for_nodes(nodes.as_slice()?);
    let codes = &filled_with_codes(out, x.shape(), dtype)?;
    let saturated = with_real!(x, T => with_code!(codes, C => {
        let (x, mut out) = (read::<T>("x", x)?, write::<C>("out", codes)?);
        let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || quantize_into(x, dim, &quantizer, out))
    }))?;
    Ok((codes.clone(), saturated))
}

#[pyfunction]
pub fn dequantize<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyUntypedArray>,
    step: f64,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    with_real!(out, T => with_code!(codes, C => {
        let (codes, mut out) = (read::<C>("codes", codes)?, write::<T>("out", out)?);
        let (codes, out) = (codes.as_slice()?, out.as_slice_mut()?);
        run_native(py, || dequantize_into(codes, step, out))
    }))
}

#[pyfunction]
pub fn bits_needed<'py>(py: Python<'py>, codes: &Bound<'py, PyUntypedArray>) -> PyResult<u32> {
    with_code!(codes, C => {
        let codes = read::<C>("codes", codes)?;
        let codes = codes.as_slice()?;
        run_native(py, || Ok::<_, KernelError>(packing::bits_needed(codes)))
    })
}

#[pyfunction]
pub fn packed_sizes<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyUntypedArray>,
    bits: u32,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let dim = row_len(codes);
    let mut out = write::<u64>("out", out)?;
    let out = out.as_slice_mut()?;
    with_code!(codes, C => {
        let codes = read::<C>("codes", codes)?;
        let codes = codes.as_slice()?;
        run_native(py, || packing::packed_sizes_into(codes, dim, bits, out))
    })
}

#[pyfunction]
pub fn pack<'py>(
    py: Python<'py>,
    codes: &Bound<'py, PyUntypedArray>,
    bits: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let message = with_code!(codes, C => {
        let codes = read::<C>("codes", codes)?;
        let codes = codes.as_slice()?;
        run_native(py, || packing::pack(codes, bits))
    })?;
    Ok(PyBytes::new(py, &message))
}

#[pyfunction]
pub fn unpack<'py>(
    py: Python<'py>,
    message: &[u8],
    bits: u32,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    with_code!(out, C => {
        let mut out = write::<C>("out", out)?;
        let out = out.as_slice_mut()?;
        run_native(py, || packing::unpack_into(message, bits, out))
    })
}
