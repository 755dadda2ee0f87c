//! The only crossing between Python and the kernels: arrays in, errors out, the GIL released.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;

use dpmesh_core::KernelError;
use numpy::{
    Element, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::claim::Claimed;

/// An array of any type.
pub type Array<'py> = Bound<'py, PyUntypedArray>;

/// Runs `work` with the GIL released. A kernel's error becomes a `ValueError`, a panic (a bug of ours) a
/// `RuntimeError`. A handler of a signal that raises stops the work.
pub fn run_native<R: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<R, KernelError> + Send,
) -> PyResult<R> {
    let result = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(refused(error)),
        Err(panic) => Err(panic.downcast::<PyErr>().map_or_else(
            |_| PyRuntimeError::new_err("a dpmesh kernel panicked; please report it"),
            |raised| *raised,
        )),
    }
}

/// Lets Python handle signals that have come, and unwinds with what a handler raises.
pub fn handle_signals() {
    if let Some(raised) = Python::try_attach(|py| py.check_signals().err()).flatten() {
        resume_unwind(Box::new(raised));
    }
}

/// The `ValueError` of a kernel that refused its arguments.
pub fn refused(error: KernelError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The `ValueError` for `argument` when `wanted` was not met by `got`.
pub fn unfit(argument: &str, wanted: &str, got: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{argument}: wanted {wanted}, got {got}"))
}

/// An array that a kernel reads.
pub type Read<'py, T> = Claimed<PyReadonlyArrayDyn<'py, T>>;

/// An array that a kernel writes.
pub type Written<'py, T> = Claimed<PyReadwriteArrayDyn<'py, T>>;

/// Borrows an array for reading.
pub fn read<'py, T: Element>(
    argument: &str,
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Read<'py, T>> {
    let wanted = "an array that nothing else writes to";
    let array = typed::<T>(argument, array)?;
    let borrowed = array.try_readonly();
    let borrowed = borrowed.map_err(|error| unfit(argument, wanted, error))?;
    Claimed::new(array, borrowed, false).ok_or_else(|| unfit(argument, wanted, SHARED))
}

/// Borrows an array for writing.
pub fn write<'py, T: Element>(
    argument: &str,
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Written<'py, T>> {
    let wanted = "a writeable array of its own";
    let array = typed::<T>(argument, array)?;
    let borrowed = array.try_readwrite();
    let borrowed = borrowed.map_err(|error| unfit(argument, wanted, error))?;
    Claimed::new(array, borrowed, true).ok_or_else(|| unfit(argument, wanted, SHARED))
}

const SHARED: &str = "one in the memory of another";

fn typed<'a, 'py, T: Element>(
    argument: &str,
    array: &'a Bound<'py, PyUntypedArray>,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    if !(array.is_c_contiguous() && array.is_aligned()) {
        let got = "a strided or unaligned one";
        return Err(unfit(argument, "a C-contiguous, aligned array", got));
    }
    array.cast::<PyArrayDyn<T>>().map_err(|_| {
        let wanted = format!("dtype {}", T::get_dtype(array.py()));
        unfit(argument, &wanted, array.dtype())
    })
}

/// Runs a kernel that reads `x` and fills `out`, arrays of one type and shape. Where both are the same memory the
/// kernel gets no `x` and works in place.
pub fn run_native_into<T: Element, R: Send>(
    x: &Array<'_>,
    out: &Array<'_>,
    kernel: impl FnOnce(Option<&[T]>, &mut [T]) -> Result<R, KernelError> + Send,
) -> PyResult<R> {
    let py = x.py();
    let in_place = x.is(out) || typed::<T>("x", x)?.data() == typed::<T>("out", out)?.data();
    let x = (!in_place).then(|| read::<T>("x", x)).transpose()?;
    let mut out = write::<T>("out", out)?;
    let x = x.as_ref().map(|x| x.as_slice()).transpose()?;
    let out = out.as_slice_mut()?;
    run_native(py, || kernel(x, out))
}

/// The length of a row, which is that of the last axis; 1 if the array is 0-dimensional.
pub fn row_len(array: &Bound<'_, PyUntypedArray>) -> usize {
    array.shape().last().copied().unwrap_or(1)
}

/// The floating-point types that kernels take.
pub enum Float {
    F32,
    F64,
}

/// Which of them an array holds, in either byte order: [`read`] and [`write`] refuse the foreign one.
pub fn float_type(argument: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<Float> {
    let dtype = array.dtype();
    match (dtype.kind(), dtype.itemsize()) {
        (b'f', 4) => Ok(Float::F32),
        (b'f', 8) => Ok(Float::F64),
        _ => Err(unfit(argument, "dtype float32 or float64", dtype)),
    }
}

/// A number for all rows, or one for each.
pub enum PerRow<'py> {
    All(f64),
    Each(Read<'py, f64>),
}

impl PerRow<'_> {
    pub fn as_slice(&self) -> PyResult<&[f64]> {
        match self {
            PerRow::All(value) => Ok(slice::from_ref(value)),
            PerRow::Each(values) => Ok(values.as_slice()?),
        }
    }
}

/// Runs the body with `T` bound to the floating-point type of the array, a variable named as the argument.
#[macro_export]
macro_rules! with_real {
    ($array:ident, $T:ident => $body:expr) => {
        match $crate::convert::float_type(stringify!($array), $array)? {
            $crate::convert::Float::F32 => {
                type $T = f32;
                $body
            }
            $crate::convert::Float::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

/// Runs the body with `T` bound to the type of an array of integer codes, a variable named as the argument.
#[macro_export]
macro_rules! with_code {
    ($array:ident, $T:ident => $body:expr) => {{
        let dtype = numpy::PyUntypedArrayMethods::dtype($array);
        let kind = numpy::PyArrayDescrMethods::kind(&dtype);
        match (kind, numpy::PyArrayDescrMethods::itemsize(&dtype)) {
            (b'i', 1) => {
                type $T = i8;
                $body
            }
            (b'i', 2) => {
                type $T = i16;
                $body
            }
            (b'i', 4) => {
                type $T = i32;
                $body
            }
            (b'i', 8) => {
                type $T = i64;
                $body
            }
            _ => Err($crate::convert::unfit(
                stringify!($array),
                "dtype int8, int16, int32 or int64",
                dtype,
            )),
        }
    }};
}
