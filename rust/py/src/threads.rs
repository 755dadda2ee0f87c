//! How many threads every kernel uses: one setting for the whole package.

use pyo3::prelude::*;

use crate::convert::unfit;

/// Sets the number of threads that kernels use from now on.
#[pyfunction]
pub fn set_threads(count: usize) -> PyResult<()> {
    if count == 0 {
        return Err(unfit("count", "at least 1", count));
    }
    dpmesh_threads::set_threads(count);
    Ok(())
}

/// Number of threads that kernels use now.
#[pyfunction]
pub fn get_threads() -> usize {
    dpmesh_threads::threads()
}

#[pyfunction]
pub fn before_fork() {
    dpmesh_threads::before_fork();
}

#[pyfunction]
pub fn after_fork(is_child: bool) {
    dpmesh_threads::after_fork(is_child);
}
