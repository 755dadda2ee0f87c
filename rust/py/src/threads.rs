//! How many threads every kernel uses: one setting for the whole package.

use pyo3::prelude::*;

use crate::convert::{handle_signals, unfit};

/// Sets the number of threads that kernels use from now on.
#[pyfunction]
fn set_threads(count: usize) -> PyResult<()> {
    if count == 0 {
        return Err(unfit("count", "at least 1", count));
    }
    dpmesh_threads::set_threads(count);
    Ok(())
}

/// Number of threads that kernels use now.
#[pyfunction]
fn get_threads() -> usize {
    dpmesh_threads::threads()
}

#[pyfunction]
fn before_fork() {
    dpmesh_threads::before_fork();
}

#[pyfunction]
fn after_fork(is_child: bool) {
    dpmesh_threads::after_fork(is_child);
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    dpmesh_threads::on_pause(handle_signals);
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(get_threads, module)?)?;
    module.add_function(wrap_pyfunction!(before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(after_fork, module)?)
}
