//! Boundary of `dpmesh_core::cosines`.

use dpmesh_core::cosines::cosines_in_place;
use pyo3::prelude::*;

use crate::arguments::{buffer, floats};
use crate::convert::{Array, run_native_into};

#[pyfunction]
pub fn cosines<'py>(
    angles: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Array<'py>> {
    let angles = &floats("angles", angles)?;
    let out = buffer(out, angles)?;
    run_native_into::<f64, _>(angles, &out, |angles, out| {
        if let Some(angles) = angles {
            out.copy_from_slice(angles);
        }
        cosines_in_place(out);
        Ok(())
    })?;
    Ok(out)
}
