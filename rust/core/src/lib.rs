#![doc = include_str!("../README.md")]
//!
//! # Conventions
//!
//! - A stack of vectors, one for each node, is a row-major slice of length `rows * dim` beside its `dim`.
//! - Features: `linear`, `qnet`, `fft` and `secure`, all on by default, and `ndarray`. Who wants noise alone depends with
//!   `default-features = false`.
//! - A kernel on real vectors is generic over `f32` and `f64` ([`Real`]), but for Q-networks, which are in `f32`. It
//!   takes any length from 1 up, and returns [`KernelError`] for arguments that do not fit; it does not panic.
//! - A kernel named `.._in_place` overwrites its argument, one named `.._into` fills a given buffer.
//! - Threads share work in blocks whose size does not depend on their number, so that a result has the same bits for
//!   any number of threads.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(all(
        feature = "fft",
        feature = "linear",
        feature = "qnet",
        feature = "secure"
    )),
    allow(dead_code)
)]

pub(crate) use dpmesh_numerics::{check as error, double_double, exponential};

mod cache;
mod chacha20;
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
pub mod cosines;
pub mod discrete;
pub mod draws;
#[cfg(feature = "linear")]
pub mod linear;
#[cfg(feature = "secure")]
pub mod masking;
pub mod mixing;
pub mod noise;
pub mod packing;
pub mod projection;
#[cfg(feature = "qnet")]
pub mod qnet;
pub mod quantize;
pub mod smoothing;
pub mod stream;
pub mod sums;
#[cfg(feature = "ndarray")]
pub mod views;

pub use dpmesh_numerics::{ErrorKind, KernelError};
pub use index::Index;
pub use real::Real;
pub use transform::Sample;
pub use wide::Wide;
