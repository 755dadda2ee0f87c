//! Unbiased probabilistic quantization: numbers become integer codes, the multiples of a step next to them.
//!
//! For `t = x / step`, rounded to `f64`, the code is `floor(t) + 1` with probability `t - floor(t)` and `floor(t)`
//! otherwise, so that the mean of `code * step` is `x` and its variance [`variance_into`]. The coin is compared with the
//! fraction, never added to `t`, which would round it away for large `t`; it has 24 random bits for `f32` and 53 for `f64`,
//! and the probability of going up is the fraction rounded up to so many (Aysal, Coates, Rabbat: Distributed average
//! consensus with dithered quantization, IEEE Trans. Signal Processing 2008).
//!
//! # Guarantee
//! What is quantized after the noise of a mechanism is a function of its release and of independent coins: it has
//! at least the mechanism's privacy.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use crate::error::{rows, same_len};
use crate::noise::{Noise, Onto};
use crate::parallel::{BLOCK, for_each_tile, is_serial, vectorized};
use crate::sampling::{CHUNK, Chunk, LANES, Place, Sampler, Source, Unit, Word, lanes};
use crate::stream::Stream;
use crate::{KernelError, Real, Sample};

/// Elements of a long row that are quantized at once: with their coins they leave room in the first-level cache for
/// what the processor asks for ahead.
const TILE: usize = 2 * CHUNK;

/// How numbers become codes.
#[derive(Debug, Clone, Copy)]
pub struct Quantizer<'a> {
    /// Distance of neighbouring levels, between 1e-150 and 1e150.
    pub step: f64,
    /// Where the coins come from: a stream that nothing else draws from.
    pub coins: &'a Stream,
    /// The node of each row; `None` for 0, 1, ..
    pub nodes: Option<&'a [u32]>,
    /// What becomes of codes that their type does not hold.
    pub overflow: Overflow,
}

/// What becomes of a code that its type does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It is an error.
    Refuse,
    /// The nearest code of the type takes its place, and is counted: it is biased.
    Saturate,
}

/// The integers that codes are stored in: `i8`, `i16`, `i32`, and `i64` up to 2^51, where `f64` still has fractions.
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
/// row and value; what `out` then holds is not defined); if the step is not between 1e-150 and 1e150, the nodes
/// are not distinct or not one for each row, `x` is no whole number of rows, or `out` is not as long.
pub fn quantize_into<T: Sample, C: Code>(
    x: &[T],
    dim: usize,
    quantizer: &Quantizer<'_>,
    out: &mut [C],
) -> Result<u64, KernelError> {
    quantize(x, dim, None, quantizer, out)
}

/// As [`quantize_into`] after [`add_noise_into`](crate::noise::add_noise_into), to the bit, in one pass.
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
    let per_step = per_step(quantizer.step)?;
    let rows = rows("x", x.len(), dim)?;
    same_len("out", out.len(), x.len())?;
    let noise = noise
        .map(|noise| noise.source(Onto::Rows(x, dim), rows, dim, None))
        .transpose()?;
    let coins = Coins::<T>(PhantomData);
    let coins = Source::new(coins, quantizer.coins, quantizer.nodes, rows, dim)?;
    let misfits = Mutex::new(Misfits::default());

    let tile = if noise.is_none() && dim > BLOCK {
        TILE
    } else {
        BLOCK
    };
    let most = x.len().min(tile);
    let scratch = || {
        let noisy = if noise.is_some() { most } else { 0 };
        (vec![T::ZERO; noisy], vec![T::ZERO; most], Chunk::default())
    };
    let fill = |scratch: &mut (Vec<T>, Vec<T>, Chunk<T>), row, column, out: &mut [C]| {
        let (noisy, coin, chunk) = scratch;
        let (start, len) = (row * dim + column, out.len());
        let (place, dim) = (Place { row, column }, dim.min(len));
        let mut x = &x[start..start + len];
        if let Some(noise) = &noise {
            let noisy = &mut noisy[..len];
            noise.draw_tile(chunk, noisy, dim, place);
            x = noisy;
        }
        let coin = &mut coin[..len];
        coins.draw_tile(chunk, coin, dim, place);
        if !vectorized!(quantize_all(x, coin, per_step, out)) {
            let mut misfits = misfits.lock().unwrap_or_else(PoisonError::into_inner);
            for i in 0..len {
                let code = code(x[i], coin[i], per_step);
                out[i] = misfits.settle(start + i, x[i], code, quantizer.overflow);
            }
        }
    };
    for_each_tile(out, dim, tile, is_serial(x.len()), scratch, fill);

    let misfits = misfits.into_inner().unwrap_or_else(PoisonError::into_inner);
    misfits.saturated_or_error::<C>(dim)
}

/// The code of `x` as a float, for a coin from [0, 1).
#[inline(always)]
fn code<T: Real>(x: T, coin: T, per_step: f64) -> f64 {
    let t = x.to_f64() * per_step;
    let floor = t.floor();
    floor + if coin.to_f64() < t - floor { 1.0 } else { 0.0 }
}

/// Whether all codes fit; if not, `out` is not defined.
#[inline(always)]
fn quantize_all<T: Real, C: Code>(x: &[T], coin: &[T], per_step: f64, out: &mut [C]) -> bool {
    // Added to a whole number below 2^51 it leaves that number in the low bits; there is no vector instruction
    // before AVX-512 that makes a 64-bit integer of a float. What is larger, infinite or NaN shows in the high bits.
    const SHIFT: f64 = 1.5 * (1_u64 << 52) as f64;
    let mut seen = 0;
    for ((&x, &coin), out) in x.iter().zip(coin).zip(out) {
        let bits = (code(x, coin, per_step) + SHIFT).to_bits() as i64;
        let code = bits.wrapping_sub(SHIFT.to_bits() as i64);
        seen |= code.wrapping_sub(C::LOWEST) as u64;
        *out = C::truncated(code);
    }
    seen <= (C::HIGHEST - C::LOWEST) as u64 // one less than a power of 2
}

/// Values whose codes do not fit.
#[derive(Default)]
struct Misfits {
    saturated: u64,
    /// Position, value and code of the first that is an error.
    error: Option<(usize, f64, f64)>,
}

impl Misfits {
    /// What stands for `code`.
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
        })
    }
}

/// Uniform numbers from [0, 1).
struct Coins<T>(PhantomData<T>);

impl<T: Sample> Sampler for Coins<T> {
    type Sample = T;
    type Stored = T;

    fn unit(&self) -> Unit {
        Unit {
            samples: LANES,
            words: T::WORDS * LANES,
        }
    }

    #[inline(always)]
    fn draw(&self, words: &[Word], samples: &mut [T]) {
        let units = words
            .chunks_exact(T::WORDS * LANES)
            .zip(samples.chunks_exact_mut(LANES));
        for (words, samples) in units {
            let (high, low) = (lanes(words, 0), lanes(words, T::WORDS - 1));
            for l in 0..LANES {
                samples[l] = T::uniform([high[l], low[l]]);
            }
        }
    }

    #[inline(always)]
    fn store(&self, _: Place, samples: &[T], part: &mut [T]) {
        part.copy_from_slice(samples);
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
    for_each_piece(out, |start, out| {
        let codes = &codes[start..start + out.len()];
        vectorized!(for (out, code) in out.iter_mut().zip(codes) {
            *out = T::from_f64(code.widened() as f64 * step);
        });
    });
    Ok(())
}

/// The variance `step^2 p (1 - p)` of each quantized number, `p` being the probability that it goes up.
///
/// # Errors
/// If a value is not finite, the step is not between 1e-150 and 1e150, or `out` is not as long as `x`.
pub fn variance_into<T: Real>(x: &[T], step: f64, out: &mut [f64]) -> Result<(), KernelError> {
    let per_step = per_step(step)?;
    same_len("out", out.len(), x.len())?;
    if let Some(position) = x.iter().position(|x| !x.is_finite()) {
        let got = format!("{} at {position}", x[position]);
        return Err(KernelError::new("x", "finite values", got));
    }
    for_each_piece(out, |start, out| {
        let x = &x[start..start + out.len()];
        vectorized!(for (out, x) in out.iter_mut().zip(x) {
            let t = x.to_f64() * per_step;
            let p = t - t.floor();
            *out = step * step * (p * (1.0 - p));
        });
    });
    Ok(())
}

fn for_each_piece<T: Send>(x: &mut [T], work: impl Fn(usize, &mut [T]) + Send + Sync) {
    let (len, serial) = (x.len().max(1), is_serial(x.len()));
    for_each_tile(
        x,
        len,
        BLOCK,
        serial,
        || (),
        |(), _, start, piece| work(start, piece),
    );
}

/// `1 / step`, without overflow, also of the square.
fn per_step(step: f64) -> Result<f64, KernelError> {
    if (1e-150..=1e150).contains(&step) {
        Ok(1.0 / step)
    } else {
        let wanted = "a number between 1e-150 and 1e150";
        Err(KernelError::new("step", wanted, step))
    }
}
