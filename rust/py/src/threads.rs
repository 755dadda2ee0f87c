//! The pool that every kernel runs on: one setting for the whole package.

use std::sync::{Arc, RwLock};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::convert::unfit;

static POOL: RwLock<Option<Arc<ThreadPool>>> = RwLock::new(None);

/// Runs `work` on the package's pool; before [`set_threads`], on rayon's own pool of all cores.
pub fn install<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool = POOL.read().ok().and_then(|pool| pool.clone());
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// Number of threads that kernels use from now on.
///
/// Before the first kernel it is rayon's own pool that is built so: work for one thread alone then stays on the
/// calling one, where another pool takes it over to a thread of its own, some 10 microseconds away.
#[pyfunction]
fn set_threads(count: usize) -> PyResult<()> {
    if count == 0 {
        return Err(unfit("count", "at least 1", count));
    }
    let builder = || {
        ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("dpmesh-{i}"))
    };
    if builder().build_global().is_ok() {
        return Ok(());
    }
    let pool = builder()
        .build()
        .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    if let Ok(mut slot) = POOL.write() {
        *slot = Some(Arc::new(pool));
    }
    Ok(())
}

/// Number of threads that kernels use now.
#[pyfunction]
fn get_threads() -> usize {
    install(rayon::current_num_threads)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(get_threads, module)?)
}
