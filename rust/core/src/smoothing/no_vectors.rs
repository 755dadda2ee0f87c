//! In place of `vectors.rs` on processors that it is not written for.

use pulp::bytemuck::Pod;

use crate::Real;

/// A floating-point type that smoothing computes in.
pub trait Smooth: Real + Pod {}

impl Smooth for f32 {}
impl Smooth for f64 {}
