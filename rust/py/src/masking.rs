//! Boundary of `dpmesh_core::masking`.

use dpmesh_core::masking::{self, Pair};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods};

use crate::convert::{read, refused, run_native, unfit, write};

#[pyfunction]
pub fn mask_and_pack<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyUntypedArray>,
    pairs: Vec<(Bound<'py, PyBytes>, bool)>,
    bits: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let pairs: Vec<Pair> = pairs
        .iter()
        .map(|(secret, subtracts)| match secret.as_bytes().try_into() {
            Ok(secret) => Ok(Pair::new(secret, *subtracts)),
            Err(_) => Err(unfit("secret", "32 bytes", secret.as_bytes().len())),
        })
        .collect::<PyResult<_>>()?;
    let values = read::<i64>("values", values)?;
    let values = values.as_slice()?;
    let length = masking::masked_bytes(values.len(), bits).map_err(refused)?;
    PyBytes::new_with(py, length, |out| {
        run_native(py, || {
            masking::mask_and_pack_into(values, &pairs, bits, out)
        })
    })
}

#[pyfunction]
pub fn unpack_sum<'py>(
    py: Python<'py>,
    messages: Vec<Bound<'py, PyBytes>>,
    bits: u32,
    out: &Bound<'py, PyUntypedArray>,
) -> PyResult<()> {
    let messages: Vec<&[u8]> = messages.iter().map(PyBytesMethods::as_bytes).collect();
    let mut out = write::<i64>("out", out)?;
    let out = out.as_slice_mut()?;
    run_native(py, || masking::unpack_sum_into(&messages, bits, out))
}
