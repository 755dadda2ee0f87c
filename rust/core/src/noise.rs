//! Gaussian and Laplace noise for the rows of a matrix, each row from the cryptographic stream of its own node.
//!
//! Element `j` of a row depends on (key, cipher, purpose, round, node, `j`), the distribution and the type, and on nothing
//! else.
//!
//! # Guarantee
//! A sample is a deterministic function of 64 to 128 bits (63 or 64 of them for the magnitude) of a stream that cannot
//! be told from a random one without the key. It follows the distribution up to the rounding of its type; the mass
//! beyond the largest sample is about 2^-64. A sum rounded to floating point is *not* exactly differentially private:
//! which sums are possible depends on the value under the noise (Mironov, CCS 2012). Where that matters, add discrete
//! noise to values on a grid ([`crate::discrete`]).
//!
//! ```
//! use dpmesh_core::noise::{Distribution, Noise, add_noise_in_place};
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::generate(Cipher::Aes).unwrap();
//! let mut x = [0.5_f64; 6]; // two nodes, three coordinates
//! let stream = key.stream(1, 0)?; // of round 0: each round has its own
//! let noise = Noise::new(Distribution::Laplace, &[2.0], &stream);
//! add_noise_in_place(&mut x, 3, &noise)?;
//! assert_ne!(x, [0.5; 6]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

pub mod correlated;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cache::prefetch_all;
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::Place;
use crate::projection::{Norm, all_finite, is_within, row_norms_into};
use crate::sampling::{LANES, Sampler, Source, Unit, Word, from_pairs, lanes};
use crate::stream::Stream;
use crate::{ErrorKind, KernelError, Real, Sample};

/// The distribution of the noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distribution {
    /// Mean 0 and standard deviation `scale`.
    Gaussian,
    /// Density proportional to exp(-|z| / scale): mean 0 and standard deviation `sqrt(2) * scale`.
    Laplace,
}

/// The noise of the rows of a matrix.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Noise<'a> {
    /// The distribution, up to its scale.
    pub distribution: Distribution,
    /// One scale for all rows or one for each; 0 means no noise.
    pub scales: &'a [f64],
    /// Source of the randomness. Drawing from the same stream again gives the same noise.
    pub stream: &'a Stream,
    /// The node of each row; `None` for 0, 1, ..
    pub nodes: Option<&'a [u32]>,
}

impl<'a> Noise<'a> {
    /// Noise of a distribution, at one scale for all rows or one for each, for nodes 0, 1, ..
    pub fn new(distribution: Distribution, scales: &'a [f64], stream: &'a Stream) -> Noise<'a> {
        Noise {
            distribution,
            scales,
            stream,
            nodes: None,
        }
    }

    /// The same noise for the rows of these nodes; `None` for 0, 1, ..
    #[must_use]
    pub fn for_nodes(self, nodes: impl Into<Option<&'a [u32]>>) -> Noise<'a> {
        Noise {
            nodes: nodes.into(),
            ..self
        }
    }
}

/// Adds noise to the rows of `dim` elements of `x`.
///
/// # Errors
/// If a scale is negative or not finite (in `T`), there is neither one scale nor one for each row, the nodes are
/// not distinct or not one for each row, `x` is not a whole number of rows, or a noisy element is NaN or infinite. The
/// content of the rows is then undefined.
pub fn add_noise_in_place<T: Sample>(
    x: &mut [T],
    dim: usize,
    noise: &Noise<'_>,
) -> Result<(), KernelError> {
    add_noise_up_to(f64::INFINITY, None, dim, noise, x)
}

/// As [`add_noise_in_place`], reading `x` and writing `out`.
///
/// # Errors
/// As [`add_noise_in_place`], and if `out` is not as long as `x`.
pub fn add_noise_into<T: Sample>(
    x: &[T],
    dim: usize,
    noise: &Noise<'_>,
    out: &mut [T],
) -> Result<(), KernelError> {
    add_noise_up_to(f64::INFINITY, Some(x), dim, noise, out)
}

/// As [`add_noise_into`], or [`add_noise_in_place`] without `x`, where no noisy row may be longer than `longest`.
///
/// Length is the norm in which the noise gives privacy: L1 for Laplace, L2 for Gaussian. Whether a row is refused is a
/// function of the noisy row alone: it reveals no more of `x`.
///
/// # Errors
/// As [`add_noise_into`], and if a noisy row is longer than `longest`.
pub fn add_noise_up_to<T: Sample>(
    longest: f64,
    x: Option<&[T]>,
    dim: usize,
    noise: &Noise<'_>,
    out: &mut [T],
) -> Result<(), KernelError> {
    let onto = match x {
        Some(x) => {
            same_len("out", out.len(), x.len())?;
            Onto::Rows(x, dim)
        }
        None => Onto::Itself,
    };
    draw(onto, "x", out, dim, noise, longest)
}

/// Fills `out` with the noise that [`add_noise_in_place`] would add to its rows of `dim` elements.
///
/// # Errors
/// As [`add_noise_in_place`].
pub fn noise_into<T: Sample>(
    noise: &Noise<'_>,
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    draw(Onto::Nothing, "out", out, dim, noise, f64::INFINITY)
}

/// Draws noise onto rows, and fails if a noisy row is not finite or longer than `longest`. Errors name `x` by `argument`.
fn draw<T: Sample>(
    onto: Onto<'_, T>,
    argument: &'static str,
    x: &mut [T],
    dim: usize,
    noise: &Noise<'_>,
    longest: f64,
) -> Result<(), KernelError> {
    let rows = rows(argument, x.len(), dim)?;
    let bounds = Bounds::new(noise.distribution, longest, dim);
    noise
        .source(onto, rows, dim, Some(&bounds))?
        .draw(x, dim, Place::default());
    bounds.check(x, dim)
}

/// Bounds of noisy rows, checked as the rows are drawn.
pub(crate) struct Bounds<T> {
    norm: Norm,
    longest: f64,
    /// A row is not too long if none of its elements is larger than this.
    largest: T,
    /// False once a row may be too long or not finite: [`check`](Self::check) then looks at all rows.
    kept: AtomicBool,
}

impl<T: Real> Bounds<T> {
    /// The bounds of rows that need only be finite.
    pub(crate) fn finite() -> Bounds<T> {
        Bounds::new(Distribution::Gaussian, f64::INFINITY, 1)
    }

    fn new(distribution: Distribution, longest: f64, dim: usize) -> Bounds<T> {
        let (norm, of_ones) = match distribution {
            Distribution::Gaussian => (Norm::L2, (dim as f64).sqrt()),
            Distribution::Laplace => (Norm::L1, dim as f64),
        };
        Bounds {
            norm,
            longest,
            largest: T::from_f64((longest / of_ones).min(T::MAX.to_f64())),
            kept: AtomicBool::new(true),
        }
    }

    /// Fails if an element was NaN or infinite.
    pub(crate) fn check_finite(self) -> Result<(), KernelError> {
        if self.kept.into_inner() {
            return Ok(());
        }
        Err(KernelError::new("x", "finite values", "NaN or infinity").of_kind(ErrorKind::NotFinite))
    }

    /// Fails if one of the drawn rows is not finite or too long.
    fn check(self, x: &[T], dim: usize) -> Result<(), KernelError> {
        if self.kept.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !all_finite(x) {
            return self.check_finite();
        }
        let mut norms = vec![0.0; x.len() / dim];
        row_norms_into(x, dim, self.norm, &mut norms)?;
        if norms.iter().all(|&norm| norm <= self.longest) {
            return Ok(());
        }
        let wanted = format!("rows of norm at most {} with their noise", self.longest);
        Err(KernelError::new("x", wanted, "a longer one"))
    }
}

impl<'a> Noise<'a> {
    /// The noise of a matrix of `rows` rows of `dim` elements, which records in `bounds` whether rows keep to them.
    pub(crate) fn source<T: Sample>(
        &self,
        onto: Onto<'a, T>,
        rows: usize,
        dim: usize,
        bounds: Option<&'a Bounds<T>>,
    ) -> Result<Source<'a, Scaled<'a, T>>, KernelError> {
        let sampler = Scaled {
            distribution: self.distribution,
            scales: scales_in(self.scales, rows)?,
            onto,
            bounds,
        };
        Source::new(sampler, self.stream, self.nodes, rows, dim)
    }
}

/// The scales as `T`; fails if the conversion loses one, such as 1e-50, which would mean no noise in `f32`.
fn scales_in<T: Sample>(scales: &[f64], rows: usize) -> Result<Vec<T>, KernelError> {
    if scales.len() != 1 && scales.len() != rows {
        let wanted = format!("1 number or {rows}, one for each row");
        return Err(KernelError::new("scale", wanted, scales.len()));
    }
    let convert = |&scale: &f64| {
        let converted = T::from_f64(scale);
        if scale >= 0.0 && converted.is_finite() && (converted > T::ZERO || scale == 0.0) {
            Ok(converted)
        } else {
            let wanted = "finite numbers of at least 0, in the type of the samples";
            Err(KernelError::new("scale", wanted, scale))
        }
    };
    scales.iter().map(convert).collect()
}

/// The numbers that noise is added to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Onto<'a, T> {
    /// Nothing: the noise itself is stored.
    Nothing,
    /// The rows that the result replaces.
    Itself,
    /// Other rows, and the number of elements of each.
    Rows(&'a [T], usize),
}

/// Noise times the scale of its row.
pub(crate) struct Scaled<'a, T> {
    distribution: Distribution,
    scales: Vec<T>,
    onto: Onto<'a, T>,
    /// Bounds of the noisy rows; `None` for no check.
    bounds: Option<&'a Bounds<T>>,
}

impl<T: Sample> Sampler for Scaled<'_, T> {
    type Sample = T;
    type Stored = T;

    fn unit(&self) -> Unit {
        match self.distribution {
            Distribution::Gaussian => Unit {
                samples: 2 * LANES,
                words: (2 + T::WORDS) * LANES,
            },
            Distribution::Laplace => Unit {
                samples: LANES,
                words: 2 * LANES,
            },
        }
    }

    #[inline(always)]
    fn draw(&self, words: &[Word], samples: &mut [T]) {
        let Unit {
            words: n,
            samples: m,
        } = self.unit();
        let units = words.chunks_exact(n).zip(samples.chunks_exact_mut(m));
        match self.distribution {
            Distribution::Gaussian => {
                for (words, samples) in units {
                    gaussian_unit(words, samples);
                }
            }
            Distribution::Laplace => from_pairs(
                words,
                samples,
                #[inline(always)]
                |words| T::laplace(words),
            ),
        }
    }

    fn rows_are_alike(&self) -> bool {
        self.scales.len() == 1
    }

    fn prefetch(&self, Place { row, column }: Place, len: usize) {
        if let Onto::Rows(rows, dim) = self.onto {
            prefetch_all(rows, row * dim + column, len);
        }
    }

    #[inline(always)]
    fn store(&self, first: Place, samples: &[T], part: &mut [T]) {
        let Place { row, column } = first;
        let scale = self.scales[if self.rows_are_alike() { 0 } else { row }];
        match self.onto {
            Onto::Nothing => {
                for (out, z) in part.iter_mut().zip(samples) {
                    *out = scale * *z;
                }
            }
            Onto::Itself => {
                for (x, z) in part.iter_mut().zip(samples) {
                    *x = scale.mul_add(*z, *x);
                }
            }
            Onto::Rows(rows, dim) => {
                let rows = &rows[row * dim + column..];
                for ((out, z), x) in part.iter_mut().zip(samples).zip(rows) {
                    *out = scale.mul_add(*z, *x);
                }
            }
        }
    }

    fn stored(&self, part: &[T]) {
        if let Some(bounds) = self.bounds
            && !vectorized!(is_within(part, bounds.largest))
        {
            bounds.kept.store(false, Ordering::Relaxed);
        }
    }
}

/// Makes a unit of Gaussian samples. Each of 8 lanes of words gives a pair of samples: that of lane `l` becomes samples
/// `l` and `8 + l`.
#[inline(always)]
fn gaussian_unit<T: Sample>(words: &[Word], samples: &mut [T]) {
    let (high, low) = (lanes(words, 0), lanes(words, 1));
    let (angle, finer) = (lanes(words, 2), lanes(words, 1 + T::WORDS));
    let mut pairs = [[T::ZERO; LANES]; 2];
    for l in 0..LANES {
        [pairs[0][l], pairs[1][l]] = T::gaussian([high[l], low[l]], [angle[l], finer[l]]);
    }
    samples.copy_from_slice(pairs.as_flattened());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::{dispatch_on, instruction_sets};

    #[test]
    fn the_bits_do_not_depend_on_the_processor() {
        const UNITS: usize = 100;
        fn check<T: Sample + PartialEq>(distribution: Distribution) {
            let scales = vec![T::from_f64(0.3)];
            let sampler = Scaled {
                distribution,
                scales,
                onto: Onto::Itself,
                bounds: None,
            };
            let Unit { samples, words } = sampler.unit();
            let mut state = 1_u32;
            let mut word = || {
                state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                (state ^ state >> 15).to_le_bytes()
            };
            let words: Vec<Word> = (0..UNITS * words).map(|_| word()).collect();
            let noised = |set| {
                let mut z = vec![T::ZERO; UNITS * samples];
                let mut x = vec![T::from_f64(0.7); z.len()];
                dispatch_on(
                    set,
                    #[inline(always)]
                    || {
                        sampler.draw(&words, &mut z);
                        sampler.store(Place::default(), &z, &mut x);
                    },
                );
                (z, x)
            };
            let mut results = instruction_sets().into_iter().map(noised);
            let portable = results.next().unwrap();
            assert!(results.all(|result| result == portable));
        }
        check::<f32>(Distribution::Gaussian);
        check::<f64>(Distribution::Gaussian);
        check::<f32>(Distribution::Laplace);
        check::<f64>(Distribution::Laplace);
    }
}
