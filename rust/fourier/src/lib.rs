#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::fmt;
use std::sync::Arc;

use realfft::{
    ComplexToReal, ComplexToRealEven, ComplexToRealOdd, RealToComplex, RealToComplexEven,
    RealToComplexOdd,
};
use rustfft::FftPlanner;
pub use rustfft::num_complex::Complex;

/// Plans transforms, and keeps the parts that several lengths share.
pub struct Planner {
    planner: FftPlanner<f64>,
}

impl Default for Planner {
    fn default() -> Planner {
        Planner {
            planner: FftPlanner::new(),
        }
    }
}

impl Planner {
    /// Plan the transform of `length` real numbers and its inverse.
    pub fn plan(&mut self, length: usize) -> RealTransform {
        let planner = &mut self.planner;
        if length.is_multiple_of(2) {
            // By a complex transform of half the length.
            RealTransform {
                forward: Arc::new(RealToComplexEven::new(length, planner)),
                inverse: Arc::new(ComplexToRealEven::new(length, planner)),
            }
        } else {
            RealTransform {
                forward: Arc::new(RealToComplexOdd::new(length, planner)),
                inverse: Arc::new(ComplexToRealOdd::new(length, planner)),
            }
        }
    }
}

impl fmt::Debug for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planner").finish_non_exhaustive()
    }
}

/// The Fourier transform of a given number of real numbers, and its inverse. Neither normalizes.
#[derive(Clone)]
pub struct RealTransform {
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
}

impl RealTransform {
    /// The number of real numbers.
    pub fn length(&self) -> usize {
        self.forward.len()
    }

    /// The number of complex coefficients: those of frequencies 0 to `length / 2`.
    pub fn spectrum_length(&self) -> usize {
        self.length() / 2 + 1
    }

    /// Zeros of the spectrum's length.
    pub fn new_spectrum(&self) -> Vec<Complex<f64>> {
        vec![Complex::default(); self.spectrum_length()]
    }

    /// The length of the scratch space that both directions accept.
    pub fn scratch_length(&self) -> usize {
        let forward = self.forward.get_scratch_len();
        let inverse = self.inverse.get_scratch_len();
        forward.max(inverse)
    }

    /// Zeros of the scratch space's length.
    pub fn new_scratch(&self) -> Vec<Complex<f64>> {
        vec![Complex::default(); self.scratch_length()]
    }

    /// Transform `signal` into `spectrum`. The signal serves as scratch space: it is overwritten.
    ///
    /// # Panics
    /// If the lengths are not those of `length`, `spectrum_length` and at least `scratch_length`.
    pub fn forward(
        &self,
        signal: &mut [f64],
        spectrum: &mut [Complex<f64>],
        scratch: &mut [Complex<f64>],
    ) {
        self.forward
            .process_with_scratch(signal, spectrum, scratch)
            .expect("the buffers have the plan's lengths");
    }

    /// Transform `spectrum` into `signal`, `length` times the inverse of `forward`. The spectrum is overwritten.
    ///
    /// # Panics
    /// If the lengths are not those of `forward`, or the coefficient of frequency 0 (or of `length / 2`) is not real.
    pub fn inverse(
        &self,
        spectrum: &mut [Complex<f64>],
        signal: &mut [f64],
        scratch: &mut [Complex<f64>],
    ) {
        self.inverse
            .process_with_scratch(spectrum, signal, scratch)
            .expect("the buffers have the plan's lengths, and real ends");
    }
}

impl fmt::Debug for RealTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RealTransform")
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    fn signal(length: usize) -> Vec<f64> {
        (0..length).map(|i| ((i * i) as f64 * 0.7).sin()).collect()
    }

    #[test]
    fn the_spectrum_is_that_of_the_definition() {
        let mut planner = Planner::default();
        for length in [1, 2, 3, 5, 8, 12, 31, 64, 90, 101] {
            let transform = planner.plan(length);
            let values = signal(length);
            let mut spectrum = transform.new_spectrum();
            transform.forward(
                &mut values.clone(),
                &mut spectrum,
                &mut transform.new_scratch(),
            );
            for (k, found) in spectrum.iter().enumerate() {
                let expected: Complex<f64> = values
                    .iter()
                    .enumerate()
                    .map(|(i, &value)| {
                        let angle = -TAU * ((i * k) % length) as f64 / length as f64;
                        Complex::from_polar(value, angle)
                    })
                    .sum();
                assert!((found - expected).norm() < 1e-12 * length as f64);
            }
        }
    }

    #[test]
    fn the_inverse_gives_the_signal_times_its_length() {
        let mut planner = Planner::default();
        for length in [1, 2, 7, 16, 45, 997] {
            let transform = planner.plan(length);
            let values = signal(length);
            let mut spectrum = transform.new_spectrum();
            let mut scratch = transform.new_scratch();
            transform.forward(&mut values.clone(), &mut spectrum, &mut scratch);
            let mut back = vec![0.0; length];
            transform.inverse(&mut spectrum, &mut back, &mut scratch);
            for (value, found) in values.iter().zip(&back) {
                assert!((found / length as f64 - value).abs() < 1e-13);
            }
        }
    }
}
