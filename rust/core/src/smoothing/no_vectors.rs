//! Stands in for `vectors.rs` on processors other than x86-64.

use pulp::bytemuck::Pod;

use crate::Real;

/// A floating-point type that smoothing computes in.
pub trait Smooth: Real + Pod {}

impl Smooth for f32 {}
impl Smooth for f64 {}
