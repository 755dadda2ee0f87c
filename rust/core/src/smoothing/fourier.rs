//! The solution by real Fourier transforms: `L^p` has the eigenvalues `(4 sin^2(pi k / d))^p` on the Fourier basis.

use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

use super::for_each_cycle;
use super::spectrum::Spectrum;
use crate::Real;

struct Transform {
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
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
    let mut planner = RealFftPlanner::new();
    let mut planned = |&length: &usize| {
        let spectrum = Spectrum::new(length, smoothing, power);
        let transform = Transform {
            forward: planner.plan_fft_forward(length),
            inverse: planner.plan_fft_inverse(length),
            factors: (0..=length / 2)
                .map(|k| spectrum.at(k) / length as f64)
                .collect(),
        };
        (length, transform)
    };
    let blocks: Vec<(usize, Transform)> = lengths.iter().map(&mut planned).collect();
    for_each_cycle(
        v,
        u,
        &blocks,
        Scratch::default,
        |scratch, v, u, transform| {
            transform.smooth(v, u, scratch);
        },
    );
}

impl Transform {
    fn smooth<T: Real>(&self, v: Option<&[T]>, u: &mut [T], scratch: &mut Scratch) {
        let Scratch {
            signal,
            spectrum,
            work,
        } = scratch;
        signal.clear();
        signal.extend(v.unwrap_or(u).iter().map(|v| v.to_f64()));
        spectrum.resize(self.factors.len(), Complex::default());
        let work_len = self
            .forward
            .get_scratch_len()
            .max(self.inverse.get_scratch_len());
        work.resize(work_len, Complex::default());

        self.forward
            .process_with_scratch(signal, spectrum, work)
            .expect(FITS);
        for (value, factor) in spectrum.iter_mut().zip(&self.factors) {
            *value *= factor;
        }
        self.inverse
            .process_with_scratch(spectrum, signal, work)
            .expect(FITS);
        for (u, value) in u.iter_mut().zip(signal) {
            *u = T::from_f64(*value);
        }
    }
}

const FITS: &str = "the buffers have the lengths that the plan asks for";
