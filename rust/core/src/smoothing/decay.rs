//! The factor by which an element counts less with each step away, and its powers; by the `libm` crate, whose bits are
//! the same on every platform.

use crate::Real;

/// Powers computed as products of each other.
pub(super) const STRIDE: usize = 16;

/// The powers of `r = (q-1)/(q+1)`, `q = sqrt(1 + 4s)`, accurate even where it is close to 1.
pub(super) struct Decay {
    pub(super) r: f64,
    /// `1 - r`.
    pub(super) rest: f64,
    /// `ln r`.
    pub(super) log: f64,
}

impl Decay {
    pub(super) fn new(smoothing: f64) -> Decay {
        let q = 2.0 * (0.25 + smoothing).sqrt();
        let rest = 2.0 / (q + 1.0);
        let r = smoothing * rest * rest;
        let log = if r < 0.5 {
            libm::log(r)
        } else {
            libm::log1p(-rest)
        };
        Decay { r, rest, log }
    }

    pub(super) fn power(&self, k: usize) -> f64 {
        libm::exp(self.log * k as f64)
    }

    /// `1 - r^k`.
    pub(super) fn power_from_one(&self, k: usize) -> f64 {
        -libm::expm1(self.log * k as f64)
    }

    /// `r^0, r^1, ..` up to `r^STRIDE`, by products, which cost less.
    pub(super) fn first_powers(&self) -> [f64; STRIDE + 1] {
        let mut powers = [1.0; STRIDE + 1];
        powers[1] = self.r;
        for k in 2..=STRIDE {
            powers[k] = powers[k / 2] * powers[k - k / 2];
        }
        powers
    }

    /// Appends `r^0, r^1, ..`, at least `count` of them or all down to 1e-30. Smaller ones would add nothing and make
    /// slow subnormal numbers: they are 0 or left out.
    pub(super) fn append_powers<A: Real>(&self, count: usize, powers: &mut Vec<A>) {
        let [first @ .., _] = self.first_powers();
        for k in (0..count).step_by(STRIDE) {
            let start = self.power(k);
            if start < 1e-30 {
                break;
            }
            powers.extend(first.map(|power| {
                let product = start * power;
                A::from_f64(if product < 1e-30 { 0.0 } else { product })
            }));
        }
    }
}
