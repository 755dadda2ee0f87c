//! Arguments of the Python API. One that already fits is taken as it is; any other goes to a check in Python, which
//! converts or refuses it.

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyTuple};

use crate::convert::{Array, PerRow, Read, read, unfit};
use crate::stream::Stream;

/// Calls a function of the Python package, looked up once.
macro_rules! by_python {
    ($py:expr, $module:literal, $function:literal, $arguments:expr) => {{
        static FUNCTION: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
        FUNCTION
            .import($py, concat!("dpmesh.", $module), $function)?
            .call1($arguments)?
    }};
}
pub(crate) use by_python;

/// Whether kernels take this value as it is: a non-empty C-contiguous array of float32 or float64.
#[pyfunction]
fn is_float_array(value: &Bound<'_, PyAny>) -> bool {
    as_array(value).is_some_and(|array| {
        let dtype = array.dtype();
        let is_float = dtype.kind() == b'f' && matches!(dtype.itemsize(), 4 | 8);
        is_float && is_native(&dtype) && array.ndim() > 0 && !array.is_empty()
    })
}

/// The value, if it is a C-contiguous, aligned array and not of a subclass.
fn as_array<'a, 'py>(value: &'a Bound<'py, PyAny>) -> Option<&'a Array<'py>> {
    let array = value.cast_exact::<PyUntypedArray>().ok();
    array.filter(|array| array.is_c_contiguous() && array.is_aligned())
}

fn is_native(dtype: &Bound<'_, PyArrayDescr>) -> bool {
    dtype.is_native_byteorder() != Some(false)
}

/// A non-empty C-contiguous array of float32 or float64.
pub fn floats<'py>(argument: &str, value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if is_float_array(value)
        && let Some(array) = as_array(value)
    {
        return Ok(array.clone());
    }
    let array = by_python!(value.py(), "_arrays", "floats", (argument, value));
    Ok(array.cast_into()?)
}

/// As [`floats`], of shape (dim,) or (rows, dim), and its number of rows.
pub fn float_rows<'py>(argument: &str, value: &Bound<'py, PyAny>) -> PyResult<(Array<'py>, usize)> {
    let array = floats(argument, value)?;
    let rows = match *array.shape() {
        [_] => 1,
        [rows, _] => rows,
        _ => {
            let got = format!("shape {}", array.getattr("shape")?);
            return Err(unfit(argument, "shape (dim,) or (rows, dim)", got));
        }
    };
    Ok((array, rows))
}

/// The array that a kernel fills: `out` if it has the shape and type of `like`, or a new one.
pub fn buffer<'py>(out: Option<&Bound<'py, PyAny>>, like: &Array<'py>) -> PyResult<Array<'py>> {
    filled(out, like.shape(), &like.dtype())
}

/// The array that a kernel fills: `out` if it has this shape and type, or a new one.
pub fn filled<'py>(
    out: Option<&Bound<'py, PyAny>>,
    shape: &[usize],
    dtype: &Bound<'py, PyArrayDescr>,
) -> PyResult<Array<'py>> {
    let fits = |array: &&Array<'_>| array.shape() == shape && array.dtype().is(dtype);
    if let Some(array) = out.and_then(as_array).filter(fits) {
        return Ok(array.clone());
    }
    let (py, shape) = (dtype.py(), PyTuple::new(dtype.py(), shape)?);
    let array = if out.is_none() {
        by_python!(py, "_memory", "empty", (shape, dtype))
    } else {
        by_python!(py, "_arrays", "filled", (out, shape, dtype))
    };
    Ok(array.cast_into()?)
}

/// The array of codes that a kernel fills: `out` if it holds integers in this shape, or a new one of `dtype`.
pub fn filled_with_codes<'py>(
    out: Option<&Bound<'py, PyAny>>,
    shape: &[usize],
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    let fits = |array: &&Array<'_>| {
        let dtype = array.dtype();
        array.shape() == shape && dtype.kind() == b'i' && is_native(&dtype)
    };
    if let Some(array) = out.and_then(as_array).filter(fits) {
        return Ok(array.clone());
    }
    let py = dtype.py();
    let dtype = by_python!(py, "_arrays", "code_type", (dtype, out));
    filled(out, shape, dtype.cast()?)
}

/// A finite number greater than 0.
pub fn positive(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    match value.cast_exact::<PyFloat>().map(PyFloatMethods::value) {
        Ok(number) if number > 0.0 && number < f64::INFINITY => Ok(number),
        _ => by_python!(value.py(), "_validate", "positive", (argument, value)).extract(),
    }
}

/// A finite number of at least 0.
pub fn non_negative(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    match value.cast_exact::<PyFloat>().map(PyFloatMethods::value) {
        Ok(number) if (0.0..f64::INFINITY).contains(&number) => Ok(number),
        _ => by_python!(value.py(), "_validate", "non_negative", (argument, value)).extract(),
    }
}

/// An integer of at least `at_least` and below 2**32.
pub fn integer(argument: &str, value: &Bound<'_, PyAny>, at_least: u32) -> PyResult<u32> {
    match value.extract::<u32>() {
        Ok(number) if number >= at_least && value.is_exact_instance_of::<PyInt>() => Ok(number),
        _ => {
            let arguments = (argument, value, at_least, 1_u64 << 32);
            by_python!(value.py(), "_validate", "integer", arguments).extract()
        }
    }
}

/// The choice with this name.
pub fn one_of<T: Copy>(
    argument: &str,
    value: &Bound<'_, PyAny>,
    choices: &[(&str, T)],
) -> PyResult<T> {
    let name = value.extract::<&str>().unwrap_or_default();
    if let Some((_, choice)) = choices.iter().find(|(known, _)| *known == name) {
        return Ok(*choice);
    }
    let names = PyTuple::new(value.py(), choices.iter().map(|(known, _)| known))?;
    by_python!(value.py(), "_validate", "one_of", (argument, value, names));
    Err(unfit(argument, "a text", value.repr()?))
}

/// A stream to draw from.
pub fn stream<'py>(argument: &str, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Stream>> {
    if let Ok(stream) = value.cast_exact::<Stream>() {
        return Ok(stream.clone());
    }
    let stream = by_python!(value.py(), "kernels._rows", "a_stream", (value, argument));
    Ok(stream.cast_into()?)
}

/// A number, or one for each row.
pub fn per_row<'py>(
    argument: &str,
    value: &Bound<'py, PyAny>,
    rows: usize,
) -> PyResult<PerRow<'py>> {
    if let Ok(number) = value.cast_exact::<PyFloat>() {
        return Ok(PerRow::All(number.value()));
    }
    let arguments = (argument, value, rows);
    let values = by_python!(value.py(), "kernels._rows", "per_row", arguments);
    PerRow::new(argument, &values)
}

/// The node of each row; without any they are 0, 1, ..
pub struct Nodes<'py>(Option<Read<'py, u32>>);

impl<'py> Nodes<'py> {
    pub fn new(value: Option<&Bound<'py, PyAny>>, rows: usize) -> PyResult<Nodes<'py>> {
        let Some(value) = value else {
            return Ok(Nodes(None));
        };
        let nodes = by_python!(value.py(), "kernels._rows", "node_ids", (value, rows));
        Ok(Nodes(Some(read("nodes", nodes.cast()?)?)))
    }

    pub fn as_slice(&self) -> PyResult<Option<&[u32]>> {
        Ok(self.0.as_ref().map(|nodes| nodes.as_slice()).transpose()?)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(is_float_array, module)?)
}
