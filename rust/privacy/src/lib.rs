#![doc = include_str!("../README.md")]
//!
//! # Conventions
//!
//! - A *noise multiplier* is the standard deviation of the noise divided by the sensitivity, and the
//!   sensitivity is that of the neighbouring relation which the function names. A factor 2 between adding
//!   or removing a record and replacing one is the caller's: nothing here applies it.
//! - Probabilities are kept as logarithms, and small numbers are sums of positive terms, so that the results hold at
//!   delta 1e-300 and at epsilon 1e-9.
//! - A root search ends between two neighbouring numbers and returns the one that keeps the guarantee.
//! - A function returns [`KernelError`] for arguments that do not fit; it does not panic.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod quadrature;
mod root;
mod vector;

pub mod conversion;
pub mod gdp;
pub mod rdp;
pub mod views;

pub use dpmesh_numerics::{ErrorKind, KernelError};
