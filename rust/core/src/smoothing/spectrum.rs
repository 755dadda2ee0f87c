//! The eigenvalues of `A^-1` and the two effective dimensions that they add up to.

use std::f64::consts::PI;
use std::ops::Range;

use super::decay::Decay;
use crate::KernelError;
use crate::error::non_negative;
use crate::parallel::{BLOCK, Cut, is_serial, map, share};

/// Eigenvalues that are summed one by one: minutes.
const MOST_SUMMED: u64 = 1 << 36;

/// Sums over the spectrum of `A^-1`: on how many of the dimensions noise still acts after smoothing (paper,
/// Theorem 3).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct EffectiveDimensions {
    /// Sum of the eigenvalues, the paper's `d_sigma`.
    pub linear: f64,
    /// Sum of their squares, the paper's `d~_sigma`: the variance that smoothing leaves of unit noise.
    pub squared: f64,
}

/// The eigenvalues `1 / (1 + s (2 - 2 cos(2 pi i / d))^p)` of `A^-1` for `i` = 0 .. d-1, in the order of the Fourier
/// basis; `d` is the length of `out`.
///
/// # Errors
/// If `out` is empty, `smoothing` is negative or not finite, or `power` is 0.
pub fn spectrum_into(smoothing: f64, power: u32, out: &mut [f64]) -> Result<(), KernelError> {
    let spectrum = Spectrum::checked(out.len(), smoothing, power)?;
    share(
        out,
        Cut::Blocks { len: BLOCK },
        || (),
        |(), place, values| {
            for (i, value) in (place.column..).zip(values) {
                *value = spectrum.at(i);
            }
        },
    );
    Ok(())
}

/// The effective dimensions of a cycle of `dim` elements; in closed form for `power` = 1.
///
/// # Errors
/// If `dim` or `power` is 0, `smoothing` is negative or not finite, or `dim` is more than 2^36 for a `power` above 1.
pub fn effective_dimensions(
    dim: usize,
    smoothing: f64,
    power: u32,
) -> Result<EffectiveDimensions, KernelError> {
    let spectrum = Spectrum::checked(dim, smoothing, power)?;
    if power == 1 {
        return Ok(spectrum.closed_sums());
    }
    if dim as u64 > MOST_SUMMED {
        let wanted = format!("at most {MOST_SUMMED} for powers above 1");
        return Err(KernelError::new("dim", wanted, dim));
    }
    Ok(spectrum.sums())
}

/// The eigenvalues of `A^-1`.
pub(super) struct Spectrum {
    dim: usize,
    smoothing: f64,
    power: u32,
}

impl Spectrum {
    pub(super) fn new(dim: usize, smoothing: f64, power: u32) -> Spectrum {
        Spectrum {
            dim,
            smoothing,
            power,
        }
    }

    fn checked(dim: usize, smoothing: f64, power: u32) -> Result<Spectrum, KernelError> {
        non_negative("smoothing", smoothing)?;
        for (argument, value) in [("dim", dim), ("power", power as usize)] {
            if value == 0 {
                return Err(KernelError::new(argument, "at least 1", value));
            }
        }
        Ok(Spectrum::new(dim, smoothing, power))
    }

    /// Eigenvalue number `i`; `2 - 2 cos(2x) = 4 sin(x)^2` keeps its digits near 0.
    pub(super) fn at(&self, i: usize) -> f64 {
        if self.smoothing == 0.0 {
            return 1.0; // also where the power below is infinite
        }
        let sine = libm::sin(PI * i.min(self.dim - i) as f64 / self.dim as f64);
        let laplacian = libm::pow(4.0 * sine * sine, f64::from(self.power));
        1.0 / (1.0 + self.smoothing * laplacian)
    }

    fn sums(&self) -> EffectiveDimensions {
        let sums = |range: Range<usize>| {
            range
                .map(|i| self.at(i))
                .fold((0.0, 0.0), |(linear, squared), value| {
                    (linear + value, squared + value * value)
                })
        };
        let blocks = map(0..self.dim.div_ceil(BLOCK), is_serial(self.dim), |block| {
            sums(block * BLOCK..self.dim.min((block + 1) * BLOCK))
        });
        EffectiveDimensions {
            linear: blocks.iter().map(|sums| sums.0).sum(),
            squared: blocks.iter().map(|sums| sums.1).sum(),
        }
    }

    /// A row of `A^-1` is `(r^j + r^(d-j)) / (q (1 - r^d))`: its first element times `d` is the trace of `A^-1`, its
    /// squared norm times `d` that of `A^-2`.
    fn closed_sums(&self) -> EffectiveDimensions {
        let d = self.dim as f64;
        let s = self.smoothing.min(1e200); // so much leaves only the mean, and more would overflow
        let decay = Decay::new(s);
        let q = 2.0 * (0.25 + s).sqrt();
        let (around, rest) = (decay.power(self.dim), decay.power_from_one(self.dim));
        let once = (1.0 + around) / rest;
        let norm = once * (1.0 + 2.0 * s) / q + 2.0 * d * around / (rest * rest);
        EffectiveDimensions {
            linear: d / q * once,
            squared: d / (q * q) * norm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effective_dimensions_are_sums_over_the_spectrum() {
        for dim in [1, 2, 3, 10, 101, 5000] {
            for smoothing in [0.0, 0.3, 1.0, 1e3, 1e6] {
                for power in [1, 2] {
                    let mut spectrum = vec![0.0; dim];
                    spectrum_into(smoothing, power, &mut spectrum).unwrap();
                    let linear: f64 = spectrum.iter().sum();
                    let squared: f64 = spectrum.iter().map(|value| value * value).sum();
                    let sums = effective_dimensions(dim, smoothing, power).unwrap();
                    assert!((sums.linear / linear - 1.0).abs() < 1e-12);
                    assert!((sums.squared / squared - 1.0).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn the_mean_is_kept_and_both_halves_of_the_spectrum_are_the_same() {
        for (dim, smoothing, power) in [(7, 0.3, 1), (1000, 1e6, 1), (1001, 1e3, 2), (10, 1e300, 1)]
        {
            let mut spectrum = vec![0.0; dim];
            spectrum_into(smoothing, power, &mut spectrum).unwrap();
            assert_eq!(spectrum[0], 1.0);
            assert!(spectrum[1..].iter().eq(spectrum[1..].iter().rev()));
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let named = |smoothing, power, dim| {
            let error = spectrum_into(smoothing, power, &mut vec![0.0; dim]).unwrap_err();
            let sums = effective_dimensions(dim, smoothing, power);
            assert_eq!(sums.unwrap_err(), error);
            error.argument()
        };
        assert_eq!(named(-1.0, 1, 3), "smoothing");
        assert_eq!(named(1.0, 0, 3), "power");
        assert_eq!(named(1.0, 1, 0), "dim");
    }
}
