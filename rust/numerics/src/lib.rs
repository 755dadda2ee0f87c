#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod check;
pub mod cosine;
pub mod dispatch;
pub mod double_double;
pub mod error;
pub mod exponential;

pub use error::{ErrorKind, KernelError};
