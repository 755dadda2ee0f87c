//! In place of `vectors.rs` on processors that it is not written for.

use super::sweep::{Lanes, Outside, Reach, Sweep, Tiles};
use crate::Real;

/// A floating-point type that smoothing computes in.
pub trait Smooth: Real {}

impl Smooth for f32 {}
impl Smooth for f64 {}

/// There is none.
#[derive(Clone, Copy)]
pub(super) enum Vectors {}

impl Vectors {
    pub(super) fn try_new() -> Option<Vectors> {
        None
    }

    pub(super) fn forward<T: Real, A: Smooth, const TILE: usize>(
        self,
        _sweep: &Sweep<A>,
        _v: &Tiles<T, TILE>,
        _y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        match self {}
    }

    pub(super) fn backward<T: Real, A: Smooth, const TILE: usize>(
        self,
        _sweep: &Sweep<A>,
        _y: &[Lanes<A>],
        _outside: &Outside<Lanes<A>>,
        _u: &mut Tiles<T, TILE>,
    ) {
        match self {}
    }
}
