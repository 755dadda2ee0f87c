//! The solution by real Fourier transforms: `L^p` has the eigenvalues `(4 sin^2(pi k / d))^p` on the Fourier basis.

use dpmesh_fourier::{Complex, Planner, RealTransform};

use super::for_each_cycle;
use super::spectrum::Spectrum;
use crate::Real;

struct Filter {
    transform: RealTransform,
    /// Eigenvalues of the inverse, divided by the length: the transforms do not normalize.
    factors: Vec<f64>,
}

#[derive(Default)]
struct Scratch {
    signal: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    work: Vec<Complex<f64>>,
}

pub(super) fn smooth_rows<T: Real>(
    v: Option<&[T]>,
    u: &mut [T],
    lengths: &[usize],
    smoothing: f64,
    power: u32,
) {
    let mut planner = Planner::default();
    let mut planned = |&length: &usize| {
        let spectrum = Spectrum::new(length, smoothing, power);
        let filter = Filter {
            transform: planner.plan(length),
            factors: (0..=length / 2)
                .map(|k| spectrum.at(k) / length as f64)
                .collect(),
        };
        (length, filter)
    };
    let blocks: Vec<(usize, Filter)> = lengths.iter().map(&mut planned).collect();
    for_each_cycle(v, u, &blocks, Scratch::default, |scratch, v, u, filter| {
        filter.smooth(v, u, scratch);
    });
}

impl Filter {
    fn smooth<T: Real>(&self, v: Option<&[T]>, u: &mut [T], scratch: &mut Scratch) {
        let Scratch {
            signal,
            spectrum,
            work,
        } = scratch;
        signal.clear();
        signal.extend(v.unwrap_or(u).iter().map(|v| v.to_f64()));
        spectrum.resize(self.factors.len(), Complex::default());
        work.resize(self.transform.scratch_length(), Complex::default());

        self.transform.forward(signal, spectrum, work);
        for (value, factor) in spectrum.iter_mut().zip(&self.factors) {
            *value *= factor;
        }
        self.transform.inverse(spectrum, signal, work);
        for (u, value) in u.iter_mut().zip(signal) {
            *u = T::from_f64(*value);
        }
    }
}
