#![doc = include_str!("../README.md")]
//!
//! # Conventions
//!
//! - A stack of vectors, one for each node, is a row-major slice of length `rows * dim` beside its `dim`.
//! - A kernel on real vectors is generic over `f32` and `f64` ([`Real`]), but for Q-networks, which are in `f32`. It
//!   takes any length from 1 up, and returns [`KernelError`] for arguments that do not fit; it does not panic.
//! - A kernel named `.._in_place` overwrites its argument, one named `.._into` fills a given buffer.
//! - Threads share work in blocks whose size does not depend on their number, so that a result has the same bits for
//!   any number of threads.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cache;
mod chacha20;
mod double_double;
mod error;
mod exponential;
mod index;
mod instructions;
mod parallel;
mod real;
mod sampling;
mod transform;
#[cfg(test)]
mod turning_points;
mod wide;

pub mod complexity;
pub mod discrete;
pub mod draws;
pub mod linear;
pub mod masking;
pub mod mixing;
pub mod noise;
pub mod packing;
pub mod projection;
pub mod qnet;
pub mod quantize;
pub mod smoothing;
pub mod stream;
pub mod sums;

pub use error::KernelError;
pub use index::Index;
pub use real::Real;
pub use transform::Sample;
pub use wide::Wide;
