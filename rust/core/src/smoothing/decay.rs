//! By how much less an element counts for each step that it lies further away.

/// The powers of `r = (q-1)/(q+1)`, `q = sqrt(1 + 4s)`, accurate even where it is close to 1.
pub(super) struct Decay {
    r: f64,
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
        let log = if r < 0.5 { r.ln() } else { (-rest).ln_1p() };
        Decay { r, rest, log }
    }

    pub(super) fn power(&self, k: usize) -> f64 {
        if k == 1 {
            self.r
        } else {
            (self.log * k as f64).exp()
        }
    }

    /// `1 - r^k`.
    pub(super) fn power_from_one(&self, k: usize) -> f64 {
        -(self.log * k as f64).exp_m1()
    }
}
