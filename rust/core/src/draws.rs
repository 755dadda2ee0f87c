//! Uniform, Bernoulli and Rademacher draws for the rows of a matrix, samples without replacement and random orders,
//! each row from the stream of its own node.
//! A draw takes 64 bits of the stream; its probabilities are exact to 2^-63.
//!
//! ```
//! use dpmesh_core::draws::bernoulli_into;
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::generate(Cipher::Aes).unwrap();
//! let mut takes_part = [false; 1000]; // of one node, in a thousand rounds
//! bernoulli_into(0.5, &key.stream(1, 0)?, None, 1000, &mut takes_part)?;
//! let rounds = takes_part.iter().filter(|drawn| **drawn).count();
//! assert!((300..700).contains(&rounds));
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

mod orders;

use crate::error::rows;
use crate::parallel::Place;
use crate::sampling::{LANES, Sampler, Source, Unit, Word, from_pairs};
use crate::stream::Stream;
use crate::{KernelError, Sample};

#[cfg(test)]
pub(crate) use orders::TURNS;
pub use orders::{Rows, batch_ends_into, sample_into, shuffle_into};

/// Fills the rows of `dim` elements of `out` with numbers from [0, 1): multiples of 2^-24 in `f32`, of 2^-53 in
/// `f64`. A node's row begins at the same place of its sequence in every call.
///
/// # Errors
/// If `out` is not a whole number of rows, or the nodes are not distinct or not one for each row.
pub fn uniform_into<T: Sample>(
    stream: &Stream,
    nodes: Option<&[u32]>,
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    let draw = Draw(
        #[inline(always)]
        |words| T::uniform(words),
    );
    fill(draw, stream, nodes, dim, out)
}

/// Fills `out` with draws that are true with probability `p`.
///
/// # Errors
/// As [`uniform_into`], and if `p` is not in [0, 1].
pub fn bernoulli_into(
    p: f64,
    stream: &Stream,
    nodes: Option<&[u32]>,
    dim: usize,
    out: &mut [bool],
) -> Result<(), KernelError> {
    let limit = limit(p, 1.0)?;
    let draw = Draw(
        #[inline(always)]
        |words| highest_63_bits(words) < limit,
    );
    fill(draw, stream, nodes, dim, out)
}

/// Fills `out` with draws that are 1 and -1 with probability `p` each, and 0 otherwise.
///
/// # Errors
/// As [`uniform_into`], and if `p` is not in [0, 1/2].
pub fn rademacher_into(
    p: f64,
    stream: &Stream,
    nodes: Option<&[u32]>,
    dim: usize,
    out: &mut [i8],
) -> Result<(), KernelError> {
    let limit = 2 * limit(p, 0.5)?;
    let draw = Draw(
        #[inline(always)]
        |words: [u32; 2]| {
            let sign = 1 - 2 * (words[1] & 1) as i8;
            if highest_63_bits(words) < limit {
                sign
            } else {
                0
            }
        },
    );
    fill(draw, stream, nodes, dim, out)
}

/// `p * 2^63`; fails unless `p` is between 0 and `largest`.
fn limit(p: f64, largest: f64) -> Result<u64, KernelError> {
    if (0.0..=largest).contains(&p) {
        Ok((p * (1_u64 << 63) as f64) as u64)
    } else {
        Err(KernelError::new(
            "p",
            format!("a number in [0, {largest}]"),
            p,
        ))
    }
}

#[inline(always)]
fn highest_63_bits([high, low]: [u32; 2]) -> u64 {
    u64::from(high) << 31 | u64::from(low >> 1)
}

fn fill<T: Copy + Default + Send>(
    draw: Draw<impl Fn([u32; 2]) -> T + Sync>,
    stream: &Stream,
    nodes: Option<&[u32]>,
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    let rows = rows("out", out.len(), dim)?;
    Source::new(draw, stream, nodes, rows, dim)?.draw(out, dim, Place::default());
    Ok(())
}

/// One sample from two words.
struct Draw<F>(F);

impl<T: Copy + Default + Send, F: Fn([u32; 2]) -> T + Sync> Sampler for Draw<F> {
    type Sample = T;
    type Stored = T;

    fn unit(&self) -> Unit {
        Unit {
            samples: LANES,
            words: 2 * LANES,
        }
    }

    #[inline(always)]
    fn draw(&self, words: &[Word], samples: &mut [T]) {
        from_pairs(words, samples, &self.0);
    }

    #[inline(always)]
    fn store(&self, _: Place, samples: &[T], part: &mut [T]) {
        part.copy_from_slice(samples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bits_but_the_lowest_count() {
        assert_eq!(highest_63_bits([u32::MAX, u32::MAX]), u64::MAX >> 1);
        assert_eq!(highest_63_bits([1 << 31, 0]), 1 << 62);
        assert_eq!(highest_63_bits([1, 0]), 1 << 31);
        assert_eq!(highest_63_bits([0, 1 << 31]), 1 << 30);
        assert_eq!(highest_63_bits([0, 3]), 1);
    }
}
