//! The extension module `dpmesh._core`. Its functions take the arguments of the Python API, check them, release the
//! GIL, call a kernel and return the result. They hold no arithmetic.
//!
//! Free-threaded Python is safe: classes are frozen, the team of threads is behind a lock, and an array that a kernel
//! writes is borrowed exclusively.

mod accounting;
mod arguments;
mod claim;
mod complexity;
mod convert;
mod correlated;
mod discrete;
mod draws;
mod linear;
mod masking;
mod mixing;
mod noise;
mod projection;
mod qnet;
mod quantize;
mod smoothing;
mod stream;
mod sums;
mod threads;
mod views;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    threads::register(module)?;
    accounting::register(module)?;
    arguments::register(module)?;
    complexity::register(module)?;
    correlated::register(module)?;
    discrete::register(module)?;
    draws::register(module)?;
    linear::register(module)?;
    masking::register(module)?;
    mixing::register(module)?;
    noise::register(module)?;
    projection::register(module)?;
    qnet::register(module)?;
    quantize::register(module)?;
    smoothing::register(module)?;
    stream::register(module)?;
    sums::register(module)?;
    views::register(module)
}
