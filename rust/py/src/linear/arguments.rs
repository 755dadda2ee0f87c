//! Features, records and settings as Python gives them.

use dpmesh_core::linear::{Averaging, Batches, Clipping};
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::arguments::{positive, real};
use crate::convert::{Array, Float, Read, float_type, read, refused, row_len, unfit};

/// A dense matrix, the `(indptr, indices, values, columns)` of a sparse one with indices of 32 bits, or the
/// `(codes, scales, columns)` of one in 8 bits.
// Variants are tried in order, and a mismatch costs microseconds: arrays, the usual case, come first.
#[derive(FromPyObject)]
pub enum Features {
    #[pyo3(transparent)]
    Dense(Py<PyUntypedArray>),
    Sparse(
        Py<PyUntypedArray>,
        Py<PyUntypedArray>,
        Py<PyUntypedArray>,
        usize,
    ),
    Rounded(Py<PyUntypedArray>, Py<PyUntypedArray>, usize),
}

impl Features {
    /// The type of the features: that of their array, and `f64` for those in 8 bits.
    pub(super) fn float(&self, py: Python<'_>) -> PyResult<Float> {
        match self {
            Features::Rounded(..) => Ok(Float::F64),
            Features::Dense(values) | Features::Sparse(_, _, values, _) => {
                float_type("features", values.bind(py))
            }
        }
    }

    pub(super) fn columns(&self, py: Python<'_>) -> usize {
        match self {
            Features::Dense(values) => row_len(values.bind(py)),
            Features::Sparse(.., columns) | Features::Rounded(.., columns) => *columns,
        }
    }
}

/// Runs the body by `run_native`, with `$x` bound to the features of type `$T`.
macro_rules! with_features {
    ($py:ident, $features:expr, $T:ident, $x:ident => $body:expr) => {
        match $features {
            Features::Dense(values) => {
                let columns = row_len(values.bind($py));
                let values = read::<$T>("features", values.bind($py))?;
                let values = values.as_slice()?;
                run_native($py, || {
                    let $x = Dense::new(values, columns)?;
                    $body
                })
            }
            Features::Sparse(indptr, indices, values, columns) => {
                let indptr = read::<i32>("features.indptr", indptr.bind($py))?;
                let indices = read::<i32>("features.indices", indices.bind($py))?;
                let values = read::<$T>("features", values.bind($py))?;
                let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
                let values = values.as_slice()?;
                run_native($py, || {
                    let $x = Csr::new(indptr, indices, values, *columns)?;
                    $body
                })
            }
            Features::Rounded(codes, scales, columns) => {
                let stride = row_len(codes.bind($py));
                let codes = read::<i8>("features.codes", codes.bind($py))?;
                let scales = read::<f32>("features.scales", scales.bind($py))?;
                let (codes, scales) = (codes.as_slice()?, scales.as_slice()?);
                run_native($py, || {
                    let $x = Rounded::<$T>::new(codes, scales, stride, *columns)?;
                    $body
                })
            }
        }
    };
}

/// The records of each node: a row of indices each, or `(indptr, indices)` where their numbers differ.
#[derive(FromPyObject)]
pub(super) enum BatchArguments<'py> {
    #[pyo3(transparent)]
    Equal(Array<'py>),
    Ragged(Array<'py>, Array<'py>),
}

/// The same, borrowed; the first is the number of nodes where each has as many records.
pub(super) enum BatchArrays<'py> {
    Equal(usize, Read<'py, i64>),
    Ragged(Read<'py, i64>, Read<'py, i64>),
}

fn one_for_each(nodes: usize, batches: usize) -> PyResult<()> {
    if batches == nodes {
        return Ok(());
    }
    let wanted = format!("one batch for each of {nodes} nodes");
    Err(unfit("batches", &wanted, batches))
}

impl<'py> BatchArrays<'py> {
    pub(super) fn new(arguments: &BatchArguments<'py>, nodes: usize) -> PyResult<BatchArrays<'py>> {
        Ok(match arguments {
            BatchArguments::Equal(indices) => {
                let [batches, _] = *indices.shape() else {
                    let got = format!("shape {}", indices.getattr("shape")?);
                    return Err(unfit("batches", "integers with 2 axes", got));
                };
                one_for_each(nodes, batches)?;
                BatchArrays::Equal(nodes, read("batches", indices)?)
            }
            BatchArguments::Ragged(indptr, indices) => {
                one_for_each(nodes, indptr.len().saturating_sub(1))?;
                BatchArrays::Ragged(read("batches", indptr)?, read("batches", indices)?)
            }
        })
    }

    pub(super) fn batches(&self) -> PyResult<Batches<'_>> {
        let batches = match self {
            BatchArrays::Equal(nodes, indices) => Batches::equal(*nodes, indices.as_slice()?),
            BatchArrays::Ragged(indptr, indices) => {
                Batches::new(indptr.as_slice()?, indices.as_slice()?)
            }
        };
        batches.map_err(refused)
    }
}

pub(super) type Number<'a, 'py> = &'a Bound<'py, PyAny>;

pub(super) fn averaging(
    regularization: Number<'_, '_>,
    divide_by: Option<Number<'_, '_>>,
) -> PyResult<Averaging> {
    let regularization = real("regularization", regularization)?;
    let divisor = divide_by.map(|m| real("divide_by", m)).transpose()?;
    Ok(Averaging::new(regularization).divided_by(divisor))
}

pub(super) fn clipping(
    bound: Option<Number<'_, '_>>,
    norm: &Bound<'_, PyAny>,
) -> PyResult<Option<Clipping>> {
    let norm = crate::projection::norm(norm)?;
    let bound = bound.map(|bound| positive("clipping_norm", bound));
    Ok(bound.transpose()?.map(|bound| Clipping::new(norm, bound)))
}
