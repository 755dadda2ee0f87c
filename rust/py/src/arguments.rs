//! Arguments of the Python API that fit: any other is refused, and its Python function converts it before.

use dpmesh_core::stream;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, dtype};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyTuple};

use crate::convert::{Array, PerRow, Read, read, unfit};
use crate::stream::Stream;

/// Whether kernels take this value as it is: a non-empty C-contiguous array of float32 or float64.
#[pyfunction]
pub fn is_float_array(value: &Bound<'_, PyAny>) -> bool {
    as_array(value).is_some_and(|array| {
        let dtype = array.dtype();
        let is_float = dtype.kind() == b'f' && matches!(dtype.itemsize(), 4 | 8);
        is_float && is_native(&dtype) && array.ndim() > 0 && !array.is_empty()
    })
}

/// Whether kernels take this value as it is: a C-contiguous array of int64.
#[pyfunction]
pub fn is_index_array(value: &Bound<'_, PyAny>) -> bool {
    as_array(value).is_some_and(|array| array.dtype().is_equiv_to(&dtype::<i64>(value.py())))
}

/// The value, if it is a C-contiguous, aligned array and not of a subclass.
fn as_array<'a, 'py>(value: &'a Bound<'py, PyAny>) -> Option<&'a Array<'py>> {
    value.cast_exact().ok().filter(|array| is_plain(array))
}

fn is_plain(array: &Array<'_>) -> bool {
    array.is_c_contiguous() && array.is_aligned()
}

fn is_native(dtype: &Bound<'_, PyArrayDescr>) -> bool {
    dtype.is_native_byteorder() != Some(false)
}

/// A non-empty C-contiguous array of float32 or float64.
pub fn floats<'py>(argument: &str, value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    if is_float_array(value) {
        return Ok(value.cast::<PyUntypedArray>()?.clone());
    }
    let wanted = "a C-contiguous array of float32 or float64, not empty";
    Err(unfit(argument, wanted, described(value)?))
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
    let Some(out) = out else {
        return empty(shape, dtype);
    };
    if let Ok(array) = out.cast::<PyUntypedArray>()
        && (is_plain(array) && array.shape() == shape && array.dtype().is_equiv_to(dtype))
    {
        return Ok(array.clone());
    }
    let shape = PyTuple::new(dtype.py(), shape)?;
    let wanted = format!("an array of {dtype} and shape {shape}, writeable and C-contiguous");
    Err(unfit("out", &wanted, described(out)?))
}

/// A new array of undefined values.
pub fn empty<'py>(shape: &[usize], dtype: &Bound<'py, PyArrayDescr>) -> PyResult<Array<'py>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let shape = PyTuple::new(dtype.py(), shape)?;
    let empty = EMPTY.import(dtype.py(), "numpy", "empty")?;
    Ok(empty.call1((shape, dtype))?.cast_into()?)
}

/// The array of codes that a kernel fills: `out` if it holds integers in this shape, or a new one of `dtype`.
pub fn filled_with_codes<'py>(
    out: Option<&Bound<'py, PyAny>>,
    shape: &[usize],
    dtype: &Bound<'py, PyArrayDescr>,
) -> PyResult<Array<'py>> {
    let own = out.and_then(|out| out.cast::<PyUntypedArray>().ok());
    let own = own.map(PyUntypedArrayMethods::dtype);
    let codes = own.filter(|own| own.kind() == b'i' && is_native(own));
    filled(out, shape, codes.as_ref().unwrap_or(dtype))
}

/// What an argument is, for messages: type and shape of an array, otherwise its class.
fn described(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let Ok(array) = value.cast::<PyUntypedArray>() else {
        return Ok(value.get_type().name()?.to_string());
    };
    let layout = if array.is_c_contiguous() {
        ""
    } else {
        "strided "
    };
    Ok(format!(
        "{layout}{} {}",
        array.dtype(),
        array.getattr("shape")?
    ))
}

/// A real number.
pub fn real(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(number) = value.cast_exact::<PyFloat>() {
        return Ok(number.value());
    }
    let is_number = !value.is_instance_of::<PyBool>() && !value.is_instance_of::<PyUntypedArray>();
    match value.extract() {
        Ok(number) if is_number => Ok(number),
        _ => Err(unfit(argument, "a finite number", value.repr()?)),
    }
}

/// A finite number greater than 0.
pub fn positive(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let number = real(argument, value)?;
    if number > 0.0 && number < f64::INFINITY {
        return Ok(number);
    }
    let wanted = "a finite number greater than 0";
    Err(unfit(argument, wanted, value.repr()?))
}

/// A finite number of at least 0.
pub fn non_negative(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let number = real(argument, value)?;
    if (0.0..f64::INFINITY).contains(&number) {
        return Ok(number);
    }
    let wanted = "a finite number of at least 0";
    Err(unfit(argument, wanted, value.repr()?))
}

/// An integer of at least `at_least` and below 2**32.
pub fn integer(argument: &str, value: &Bound<'_, PyAny>, at_least: u32) -> PyResult<u32> {
    match value.extract() {
        Ok(number) if number >= at_least && !value.is_instance_of::<PyBool>() => Ok(number),
        _ => {
            let wanted = format!("an integer of at least {at_least} and below 2**32");
            Err(unfit(argument, &wanted, value.repr()?))
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
    let names: Vec<_> = choices
        .iter()
        .map(|(known, _)| format!("'{known}'"))
        .collect();
    let wanted = format!("one of {}", names.join(", "));
    Err(unfit(argument, &wanted, value.repr()?))
}

/// A stream to draw from.
pub fn stream<'a>(argument: &str, value: &'a Bound<'_, PyAny>) -> PyResult<&'a stream::Stream> {
    if let Ok(stream) = value.cast_exact::<Stream>() {
        return Ok(&stream.get().kernel);
    }
    let wanted = "a Stream, as key.stream(purpose) gives";
    Err(unfit(argument, wanted, value.get_type().name()?))
}

/// A number, or one for each row.
pub fn per_row<'py>(
    argument: &str,
    value: &Bound<'py, PyAny>,
    rows: usize,
) -> PyResult<PerRow<'py>> {
    let Ok(array) = value.cast::<PyUntypedArray>() else {
        return real(argument, value).map(PerRow::All);
    };
    if !matches!(*array.shape(), [count] if count == 1 || count == rows) {
        let wanted = format!("a number or one for each of {rows} rows");
        let got = format!("shape {}", array.getattr("shape")?);
        return Err(unfit(argument, &wanted, got));
    }
    read(argument, array).map(PerRow::Each)
}

/// The node of each row; without any they are 0, 1, ..
pub struct Nodes<'py>(Option<Read<'py, u32>>);

impl<'py> Nodes<'py> {
    pub fn new(nodes: Option<&Array<'py>>) -> PyResult<Nodes<'py>> {
        let nodes = nodes.map(|nodes| read("nodes", nodes));
        Ok(Nodes(nodes.transpose()?))
    }

    pub fn as_slice(&self) -> PyResult<Option<&[u32]>> {
        Ok(self.0.as_ref().map(|nodes| nodes.as_slice()).transpose()?)
    }
}
