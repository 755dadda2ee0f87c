//! Unbiased probabilistic quantization: a number becomes the integer code of one of the two multiples of a step next to
//! it.
//!
//! For `t = x / step`, rounded to `f64`, the code is `floor(t) + 1` with probability `t - floor(t)` and `floor(t)`
//! otherwise, so that the mean of `code * step` is `x` and its variance is that of [`variance_into`]. The coin is
//! compared with the fraction, never added to `t`, which would round it away for large `t`; it has 24 random bits for
//! `f32` and 53 for `f64`, and the probability of going up is the fraction rounded up to that many bits (Aysal, Coates,
//! Rabbat: Distributed average consensus with dithered quantization, IEEE Trans. Signal Processing 2008).
//!
//! # Guarantee
//! Quantized after a mechanism has added its noise, the codes are a function of its release and of independent coins:
//! they are at least as private.
//!
//! ```
//! use dpmesh_core::quantize::{Overflow, Quantizer, quantize_into};
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::generate(Cipher::Aes).unwrap();
//! let coins = key.stream(1, 0)?;
//! let quantizer = Quantizer::new(0.5, &coins, Overflow::Refuse);
//! let mut codes = [0_i16; 3];
//! quantize_into(&[1.0, -0.5, 0.7], 3, &quantizer, &mut codes)?;
//! assert_eq!(codes[..2], [2, -1]); // multiples of the step are kept
//! assert!(codes[2] == 1 || codes[2] == 2);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::noise::{Noise, Onto};
use crate::parallel::{BLOCK, Cut, Place, is_serial, share};
use crate::quantize::coin::{Coin, Compared, Counted, code};
use crate::sampling::{Chunk, LANES, Sampler, Source, Unit, Word, lanes};
use crate::stream::Stream;
use crate::{ErrorKind, KernelError, Real, Sample};

mod coin;

/// How numbers become codes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Quantizer<'a> {
    /// Distance of neighbouring levels, between 1e-150 and 1e150.
    pub step: f64,
    /// Where the coins come from: a stream that nothing else draws from.
    pub coins: &'a Stream,
    /// The node of each row; `None` for 0, 1, ..
    pub nodes: Option<&'a [u32]>,
    /// What becomes of codes that do not fit their type.
    pub overflow: Overflow,
}

impl<'a> Quantizer<'a> {
    /// A quantizer of levels `step` apart, for nodes 0, 1, ..
    pub fn new(step: f64, coins: &'a Stream, overflow: Overflow) -> Quantizer<'a> {
        Quantizer {
            step,
            coins,
            nodes: None,
            overflow,
        }
    }

    /// The same quantizer for the rows of these nodes; `None` for 0, 1, ..
    #[must_use]
    pub fn for_nodes(self, nodes: impl Into<Option<&'a [u32]>>) -> Quantizer<'a> {
        Quantizer {
            nodes: nodes.into(),
            ..self
        }
    }
}

/// What becomes of a code that does not fit its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// It is an error.
    Refuse,
    /// It becomes the nearest code of the type, which is biased, and is counted.
    Saturate,
}

/// The integer types of codes: `i8`, `i16`, `i32`, and `i64` within ±2^51, where `f64` still has fractions.
pub trait Code: Copy + Default + Display + PartialEq + Send + Sync + 'static {
    /// The lowest code.
    const LOWEST: i64;
    /// The highest code.
    const HIGHEST: i64;
    /// The integer, if it fits.
    #[doc(hidden)]
    fn truncated(code: i64) -> Self;
    #[doc(hidden)]
    fn widened(self) -> i64;
}

macro_rules! code {
    ($t:ty, $lowest:expr, $highest:expr) => {
        impl Code for $t {
            const LOWEST: i64 = $lowest as i64;
            const HIGHEST: i64 = $highest as i64;
            #[inline(always)]
            fn truncated(code: i64) -> $t {
                code as $t
            }
            #[inline(always)]
            #[allow(clippy::cast_lossless)]
            fn widened(self) -> i64 {
                self as i64
            }
        }
    };
}
code!(i8, i8::MIN, i8::MAX);
code!(i16, i16::MIN, i16::MAX);
code!(i32, i32::MIN, i32::MAX);
code!(i64, -(1_i64 << 51), (1_i64 << 51) - 1);

/// Quantizes the rows of `dim` elements of `x`; returns how many codes were saturated.
///
/// # Errors
/// If a value is not finite, or its code does not fit and the quantizer refuses that (the error names the first such
/// value and its row; the content of `out` is then undefined); if the step is not between 1e-150 and 1e150, the nodes
/// are not distinct or not one for each row, `x` is not a whole number of rows, or `out` is not as long as `x`.
pub fn quantize_into<T: Sample, C: Code>(
    x: &[T],
    dim: usize,
    quantizer: &Quantizer<'_>,
    out: &mut [C],
) -> Result<u64, KernelError> {
    quantize(x, dim, None, quantizer, out)
}

/// [`add_noise_into`](crate::noise::add_noise_into) and then [`quantize_into`], in one pass and with the same bits.
///
/// # Errors
/// As both, and if noise and coins come from streams of the same purpose and round.
pub fn quantize_noisy_into<T: Sample, C: Code>(
    x: &[T],
    dim: usize,
    noise: &Noise<'_>,
    quantizer: &Quantizer<'_>,
    out: &mut [C],
) -> Result<u64, KernelError> {
    if noise.stream.is_like(quantizer.coins) {
        let wanted = "a stream of another purpose or round than that of the noise";
        return Err(KernelError::new("coins", wanted, "one of the same"));
    }
    quantize(x, dim, Some(noise), quantizer, out)
}

fn quantize<T: Sample, C: Code>(
    x: &[T],
    dim: usize,
    noise: Option<&Noise<'_>>,
    quantizer: &Quantizer<'_>,
    out: &mut [C],
) -> Result<u64, KernelError> {
    if T::WORDS == 1 && C::HIGHEST <= Counted::HIGHEST {
        flip::<T, C, Counted>(x, dim, noise, quantizer, out)
    } else {
        flip::<T, C, Compared<T>>(x, dim, noise, quantizer, out)
    }
}

fn flip<T: Sample, C: Code, K: Coin>(
    x: &[T],
    dim: usize,
    noise: Option<&Noise<'_>>,
    quantizer: &Quantizer<'_>,
    out: &mut [C],
) -> Result<u64, KernelError> {
    let per_step = per_step(quantizer.step)?;
    let rows = rows("x", x.len(), dim)?;
    same_len("out", out.len(), x.len())?;
    let noise = noise
        .map(|noise| noise.source(Onto::Rows(x, dim), rows, dim, None))
        .transpose()?;
    let misfits = Mutex::new(Misfits::default());
    let flips = Flips::<T, C, K> {
        x,
        start: 0,
        dim,
        per_step,
        overflow: quantizer.overflow,
        misfits: &misfits,
        types: PhantomData,
    };
    let coins = Source::new(flips, quantizer.coins, quantizer.nodes, rows, dim)?;

    let most = x.len().min(BLOCK);
    let scratch = || {
        let noisy = if noise.is_some() { most } else { 0 };
        (vec![T::ZERO; noisy], Chunk::default(), Chunk::default())
    };
    let fill = |scratch: &mut (Vec<T>, _, _), place: Place, out: &mut [C]| {
        let (noisy, noise_chunk, coin_chunk) = scratch;
        let (start, len) = (place.row * dim + place.column, out.len());
        let dim = dim.min(len);
        let mut x = &x[start..start + len];
        if let Some(noise) = &noise {
            let noisy = &mut noisy[..len];
            noise.draw_tile(noise_chunk, noisy, dim, place);
            x = noisy;
        }
        let flips = Flips { x, start, ..flips };
        coins.with(flips).draw_tile(coin_chunk, out, dim, place);
    };
    let tiles = Cut::Tiles {
        dim,
        len: BLOCK,
        serial: is_serial(x.len()),
    };
    share(out, tiles, scratch, fill);

    let misfits = misfits.into_inner().unwrap_or_else(PoisonError::into_inner);
    misfits.saturated_or_error::<C>(dim)
}

/// Flips a coin for each number and stores the code that it decides.
#[derive(Clone, Copy)]
struct Flips<'a, T, C, K> {
    /// A part of a matrix of rows of `dim`, from element `start` on.
    x: &'a [T],
    start: usize,
    dim: usize,
    per_step: f64,
    overflow: Overflow,
    misfits: &'a Mutex<Misfits>,
    types: PhantomData<(C, K)>,
}

impl<T: Sample, C: Code, K: Coin> Sampler for Flips<'_, T, C, K> {
    type Sample = K;
    type Stored = C;

    fn unit(&self) -> Unit {
        Unit {
            samples: LANES,
            words: K::WORDS * LANES,
        }
    }

    #[inline(always)]
    fn draw(&self, words: &[Word], coins: &mut [K]) {
        let units = words
            .chunks_exact(K::WORDS * LANES)
            .zip(coins.chunks_exact_mut(LANES));
        for (words, coins) in units {
            let (high, low) = (lanes(words, 0), lanes(words, K::WORDS - 1));
            for l in 0..LANES {
                coins[l] = K::from_words([high[l], low[l]]);
            }
        }
    }

    #[inline(always)]
    fn store(&self, first: Place, coins: &[K], out: &mut [C]) {
        let first = first.row * self.dim + first.column;
        let x = &self.x[first - self.start..][..out.len()];
        let mut seen = 0;
        for ((&x, &coin), out) in x.iter().zip(coins).zip(&mut *out) {
            let code = coin.code(x.to_f64(), self.per_step);
            seen |= code.wrapping_sub(C::LOWEST) as u64;
            *out = C::truncated(code);
        }
        // `seen` is within the range exactly if every difference is: the number of codes is a power of 2.
        if seen > (C::HIGHEST - C::LOWEST) as u64 {
            self.settle(first, x, coins, out);
        }
    }
}

impl<T: Sample, C: Code, K: Coin> Flips<'_, T, C, K> {
    /// As `store`, one by one, for a part where not all codes fit.
    #[cold]
    #[inline(never)]
    fn settle(&self, first: usize, x: &[T], coins: &[K], out: &mut [C]) {
        let mut misfits = self.misfits.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, (&x, coin)) in x.iter().zip(coins).enumerate() {
            let code = code(x.to_f64(), coin.to_f64(), self.per_step);
            out[i] = misfits.settle(first + i, x, code, self.overflow);
        }
    }
}

/// Values whose codes do not fit.
#[derive(Default)]
struct Misfits {
    saturated: u64,
    /// Position, value and code of the first error.
    error: Option<(usize, f64, f64)>,
}

impl Misfits {
    /// The code to store for `code`.
    fn settle<T: Real, C: Code>(
        &mut self,
        position: usize,
        x: T,
        code: f64,
        overflow: Overflow,
    ) -> C {
        let fitting = code.clamp(C::LOWEST as f64, C::HIGHEST as f64);
        if code != fitting {
            if x.is_finite() && overflow == Overflow::Saturate {
                self.saturated += 1;
            } else if self.error.is_none_or(|(first, ..)| position < first) {
                self.error = Some((position, x.to_f64(), code));
            }
        }
        C::truncated(fitting as i64)
    }

    fn saturated_or_error<C: Code>(&self, dim: usize) -> Result<u64, KernelError> {
        let Some((position, x, code)) = self.error else {
            return Ok(self.saturated);
        };
        let row = position / dim;
        Err(if x.is_finite() {
            let wanted = format!("values with codes from {} to {}", C::LOWEST, C::HIGHEST);
            KernelError::new("x", wanted, format!("{x} of code {code} in row {row}"))
        } else {
            KernelError::new("x", "finite values", format!("{x} in row {row}"))
                .of_kind(ErrorKind::NotFinite)
        })
    }
}

/// `out = codes * step`, the numbers that the codes stand for.
///
/// # Errors
/// If the step is not between 1e-150 and 1e150, or `out` is not as long as `codes`.
pub fn dequantize_into<T: Real, C: Code>(
    codes: &[C],
    step: f64,
    out: &mut [T],
) -> Result<(), KernelError> {
    per_step(step)?;
    same_len("out", out.len(), codes.len())?;
    share(
        out,
        Cut::Blocks { len: BLOCK },
        || (),
        |(), place, out| {
            let codes = &codes[place.column..][..out.len()];
            vectorized!(for (out, code) in out.iter_mut().zip(codes) {
                *out = T::from_f64(code.widened() as f64 * step);
            });
        },
    );
    Ok(())
}

/// The variance `step^2 p (1 - p)` of each quantized number, where `p` is the probability that it goes up.
///
/// # Errors
/// If a value is not finite, the step is not between 1e-150 and 1e150, or `out` is not as long as `x`.
pub fn variance_into<T: Real>(x: &[T], step: f64, out: &mut [f64]) -> Result<(), KernelError> {
    let per_step = per_step(step)?;
    same_len("out", out.len(), x.len())?;
    if let Some(position) = x.iter().position(|x| !x.is_finite()) {
        let got = format!("{} at {position}", x[position]);
        let error = KernelError::new("x", "finite values", got);
        return Err(error.of_kind(ErrorKind::NotFinite));
    }
    share(
        out,
        Cut::Blocks { len: BLOCK },
        || (),
        |(), place, out| {
            let x = &x[place.column..][..out.len()];
            vectorized!(for (out, x) in out.iter_mut().zip(x) {
                let t = x.to_f64() * per_step;
                let p = t - t.floor();
                *out = step * step * (p * (1.0 - p));
            });
        },
    );
    Ok(())
}

/// `1 / step`, for a step whose square, like that of the result, does not overflow.
fn per_step(step: f64) -> Result<f64, KernelError> {
    if (1e-150..=1e150).contains(&step) {
        Ok(1.0 / step)
    } else {
        let wanted = "a number between 1e-150 and 1e150";
        Err(KernelError::new("step", wanted, step))
    }
}
