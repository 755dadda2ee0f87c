//! By how much less an element counts for each step that it lies further away.

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
        let log = if r < 0.5 { r.ln() } else { (-rest).ln_1p() };
        Decay { r, rest, log }
    }

    pub(super) fn power(&self, k: usize) -> f64 {
        (self.log * k as f64).exp()
    }

    /// `1 - r^k`.
    pub(super) fn power_from_one(&self, k: usize) -> f64 {
        -(self.log * k as f64).exp_m1()
    }

    /// `r^0, r^1, ..`, with 0 for what is so small that it adds nothing and would make slow subnormal numbers.
    pub(super) fn powers(&self, count: usize) -> Vec<f64> {
        let first: [f64; 16] = std::array::from_fn(|k| self.power(k));
        let mut powers = vec![0.0; count];
        for (i, block) in powers.chunks_mut(16).enumerate() {
            let start = self.power(16 * i);
            if start < 1e-30 {
                break;
            }
            for (power, first) in block.iter_mut().zip(first) {
                let product = start * first;
                *power = if product < 1e-30 { 0.0 } else { product };
            }
        }
        powers
    }
}
