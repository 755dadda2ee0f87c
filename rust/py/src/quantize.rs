//! Boundary of `dpmesh_core::quantize` and `dpmesh_core::packing`.

use dpmesh_core::noise::Noise;
use dpmesh_core::quantize::{
    Overflow, Quantizer, dequantize_into, quantize_into, quantize_noisy_into, variance_into,
};
use dpmesh_core::{KernelError, packing};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{read, row_len, run_native, write};
use crate::noise::with_noise;
use crate::stream::Stream;
use crate::{with_code, with_real};

fn overflow(saturate: bool) -> Overflow {
    if saturate {
        Overflow::Saturate
    } else {
        Overflow::Refuse
    }
}

#[pyfunction]
#[pyo3(signature = (x, step, coins, nodes, saturate, out))]
fn quantize<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    step: f64,
    coins: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    saturate: bool,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<u64> {
    quantize_rows(py, x, step, coins, nodes, saturate, None, out)
}

#[pyfunction]
#[pyo3(signature = (x, law, scales, stream, step, coins, nodes, saturate, out))]
fn quantize_noisy<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    law: &str,
    scales: &Bound<'py, PyAny>,
    stream: &Bound<'py, Stream>,
    step: f64,
    coins: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    saturate: bool,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<u64> {
    with_noise!(law, scales, stream, nodes, noise => {
        quantize_rows(py, x, step, coins, nodes, saturate, Some(&noise), out)
    })
}

fn quantize_rows<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    step: f64,
    coins: &Bound<'py, Stream>,
    nodes: Option<&Bound<'py, PyUntypedArray>>,
    saturate: bool,
    noise: Option<&Noise<'_>>,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<u64> {
    let dim = row_len(x);
    let nodes = nodes.map(|nodes| read::<u32>("nodes", nodes)).transpose()?;
    let quantizer = Quantizer {
        step,
        coins: &coins.get().kernel,
        nodes: nodes.as_ref().map(|nodes| nodes.as_slice()).transpose()?,
        overflow: overflow(saturate),
    };
    with_real!(x, T => with_code!(out, C => {
        let (x, mut out) = (read::<T>("x", x)?, write::<C>("out", out)?);
        let (x, out) = (x.as_slice()?, out.as_slice_mut()?);
        run_native(py, || match noise {
            None => quantize_into(x, dim, &quantizer, out),
            Some(noise) => quantize_noisy_into(x, dim, noise, &quantizer, out),
        })
    }))
}

#[pyfunction]
fn dequantize<'py>(
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
fn quantization_variance<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyUntypedArray>,
    step: f64,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let mut out = write::<f64>("out", out)?;
    let out = out.as_slice_mut()?;
    with_real!(x, T => {
        let x = read::<T>("x", x)?;
        let x = x.as_slice()?;
        run_native(py, || variance_into(x, step, out))
    })
}

#[pyfunction]
fn bits_needed<'py>(py: Python<'py>, codes: &Bound<'py, PyUntypedArray>) -> PyResult<u32> {
    with_code!(codes, C => {
        let codes = read::<C>("codes", codes)?;
        let codes = codes.as_slice()?;
        run_native(py, || Ok::<_, KernelError>(packing::bits_needed(codes)))
    })
}

#[pyfunction]
fn packed_sizes<'py>(
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
fn pack<'py>(
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
fn unpack<'py>(
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(quantize, module)?)?;
    module.add_function(wrap_pyfunction!(quantize_noisy, module)?)?;
    module.add_function(wrap_pyfunction!(dequantize, module)?)?;
    module.add_function(wrap_pyfunction!(quantization_variance, module)?)?;
    module.add_function(wrap_pyfunction!(bits_needed, module)?)?;
    module.add_function(wrap_pyfunction!(packed_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(pack, module)?)?;
    module.add_function(wrap_pyfunction!(unpack, module)?)
}
