//! Discrete Laplace and Gaussian noise: added to integers (counts, codes), it has none of the leaks of floating point.
//! Each row comes from the stream of its own node.
//!
//! # How
//! The magnitude of a discrete Laplace variable is at least `k` with probability
//! `2 exp(-k / scale) / (1 + exp(-1 / scale))`. So it can be the largest `k` for which a uniform number is below that
//! threshold, which is the integer part of the magnitude of a continuous Laplace sample, scaled and shifted. Floating
//! point finds it, except for the few samples within its error of an integer: for these 64 more random bits are drawn,
//! and the uniform number of 127 bits is compared with the threshold, which is computed to 100 bits. Gaussian samples
//! are chosen among Laplace ones by rejection (Canonne, Kamath and Steinke, 2020).
//!
//! # Guarantee
//! The distribution of a sample is within 2^-73 of the exact one in total variation: all thresholds together contribute
//! `scale * 2^-101`, at most 2^-76, the tail 2^-85 and, for Gaussian samples, the coin 2^-94; rejection triples their
//! sum. For n samples of a mechanism that is (epsilon, delta)-private with exact ones, add
//! `(1 + exp(epsilon)) n 2^-73` to delta.
//!
//! ```
//! use dpmesh_core::discrete::{DiscreteDistribution, discrete_noise_into};
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::generate(Cipher::Aes).unwrap();
//! let stream = key.stream(1, 0)?;
//! let mut noise = [0_i64; 8]; // two nodes, four counts each
//! discrete_noise_into(DiscreteDistribution::Gaussian, 20.0, &stream, None, 4, &mut noise)?;
//! assert!(noise.iter().all(|z| z.abs() < 400));
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

mod acceptance;
mod laplace;

use acceptance::Acceptance;
use laplace::Laplace;

use crate::KernelError;
use crate::error::rows;
use crate::instructions::vectorized;
use crate::parallel::{Cut, share};
use crate::sampling::Nodes;
use crate::stream::{BLOCK_BYTES, Stream};

/// Candidates whose random bits lie together: first the words of all of them, then their coins.
const UNIT: usize = 16;

/// Samples that are drawn one after the other from candidates of their own. A row is cut into such groups, and its
/// values depend on this number.
const GROUP: usize = 1024;

/// Candidates of a group. At least 69% are accepted, so that there are too few with probability below 2^-200.
const CANDIDATES: usize = 2 * GROUP;

/// Candidates whose bits are drawn from the stream in one go.
const CHUNK: usize = 512;

/// Rows of up to this many samples are drawn several at a time.
const SHORT: usize = 128;

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[UNIT, SHORT, CHUNK, GROUP, 2 * GROUP];

/// The block of the stream from which on each candidate has 16 more bytes, which decide where its first bits do not.
const MORE: usize = 1 << 29;

/// Largest scale.
const LARGEST_SCALE: f64 = (1 << 25) as f64;

/// Below this scale P(0) is within 2^-74 of 1.
const NEGLIGIBLE_SCALE: f64 = 0.019;

/// The distribution of noise on the integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscreteDistribution {
    /// P(k) proportional to exp(-|k| / scale).
    Laplace,
    /// P(k) proportional to exp(-k^2 / (2 scale^2)).
    Gaussian,
}

/// Fills the rows of `dim` elements of `out` with noise, row `i` from node `nodes[i]` (`i` itself for `None`). A
/// `scale` of 0 means no noise.
///
/// # Errors
/// If `scale` is not between 0 and 2^25, `out` is not a whole number of rows, or the nodes are not distinct or not one
/// for each row.
pub fn discrete_noise_into(
    distribution: DiscreteDistribution,
    scale: f64,
    stream: &Stream,
    nodes: Option<&[u32]>,
    dim: usize,
    out: &mut [i64],
) -> Result<(), KernelError> {
    let nodes = Nodes::new(nodes, stream, rows("out", out.len(), dim)?)?;
    if !(0.0..=LARGEST_SCALE).contains(&scale) {
        let wanted = format!("a number of at least 0 and at most {LARGEST_SCALE}");
        return Err(KernelError::new("scale", wanted, scale));
    }
    if scale < NEGLIGIBLE_SCALE {
        out.fill(0);
        return Ok(());
    }
    let noise = DiscreteNoise::new(distribution, scale);
    Stream::holds("dim", (MORE + dim.div_ceil(GROUP) * CANDIDATES / 4) as u64)?;
    let bytes = || vec![0; noise.bytes_of(CHUNK)];
    if dim <= SHORT {
        let rows = CHUNK / noise.candidates_for(dim);
        let blocks = Cut::Blocks { len: rows * dim };
        share(out, blocks, bytes, |bytes, place, x| {
            let first = place.column / dim;
            let node_of = |row| nodes.of(first + row);
            noise.draw_short_rows(stream, node_of, dim, x, bytes);
        });
    } else {
        share(out, Cut::Parts { dim }, bytes, |bytes, place, x| {
            for (group, x) in (place.column / GROUP..).zip(x.chunks_mut(GROUP)) {
                let from = Candidate {
                    stream,
                    node: nodes.of(place.row),
                    number: group * CANDIDATES,
                };
                noise.draw(from, x, bytes);
            }
        });
    }
    Ok(())
}

/// One of the candidates of a node.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    stream: &'a Stream,
    node: u32,
    number: usize,
}

impl Candidate<'_> {
    fn after(self, candidates: usize) -> Self {
        Candidate {
            number: self.number + candidates,
            ..self
        }
    }

    /// 64 more bits for its magnitude, and 64 more for its coin.
    #[cold]
    fn more(self) -> [u64; 2] {
        let mut block = [0; BLOCK_BYTES];
        let number = (MORE + self.number / 4) as u32;
        self.stream.fill(self.node, number, &mut block);
        let words = block.as_chunks().0.as_chunks().0[self.number % 4];
        words.map(u64::from_le_bytes)
    }
}

/// A distribution with its constants.
struct DiscreteNoise {
    laplace: Laplace,
    acceptance: Option<Acceptance>,
}

impl DiscreteNoise {
    fn new(distribution: DiscreteDistribution, scale: f64) -> DiscreteNoise {
        DiscreteNoise {
            laplace: Laplace::new(scale),
            acceptance: (distribution == DiscreteDistribution::Gaussian)
                .then(|| Acceptance::new(scale)),
        }
    }

    /// Bytes of this many candidates, whole units: a word of 64 bits each, and for rejection a coin of 32 bits.
    fn bytes_of(&self, candidates: usize) -> usize {
        candidates * if self.acceptance.is_some() { 12 } else { 8 }
    }

    /// The block of the stream in which a unit begins.
    fn block(&self, candidate: usize) -> usize {
        self.bytes_of(candidate / UNIT * UNIT) / BLOCK_BYTES
    }

    /// About as many candidates as this many samples need, whole units and at most a [`CHUNK`].
    fn candidates_for(&self, samples: usize) -> usize {
        let likely = if self.acceptance.is_some() {
            samples * 4 / 3 + 2
        } else {
            samples
        };
        likely.next_multiple_of(UNIT).min(CHUNK)
    }

    fn draw_short_rows(
        &self,
        stream: &Stream,
        node_of: impl Fn(usize) -> u32,
        dim: usize,
        x: &mut [i64],
        bytes: &mut [u8],
    ) {
        let candidates = self.candidates_for(dim);
        let row_bytes = self.bytes_of(candidates);
        let bytes = &mut bytes[..x.len() / dim * row_bytes];
        stream.fill_rows(&node_of, 0, row_bytes, bytes);
        let rows = x
            .chunks_exact_mut(dim)
            .zip(bytes.chunks_exact_mut(row_bytes));
        for (row, (x, bytes)) in rows.enumerate() {
            let from = Candidate {
                stream,
                node: node_of(row),
                number: 0,
            };
            let kept = vectorized!(self.choose(from, bytes, x));
            self.draw(from.after(candidates), &mut x[kept..], bytes);
        }
    }

    /// Fills `x` with samples from the candidates from `from` on; `bytes` is memory for their random bits.
    fn draw(&self, mut from: Candidate<'_>, mut x: &mut [i64], bytes: &mut [u8]) {
        while !x.is_empty() {
            let candidates = self.candidates_for(x.len());
            let bytes = &mut bytes[..self.bytes_of(candidates)];
            from.stream
                .fill(from.node, self.block(from.number) as u32, bytes);
            let kept = vectorized!(self.choose(from, bytes, x));
            x = &mut x[kept..];
            from = from.after(candidates);
        }
    }

    /// Puts accepted candidates into `x`, as many as it has room for, and returns how many.
    #[inline(always)]
    fn choose(&self, from: Candidate<'_>, bytes: &[u8], x: &mut [i64]) -> usize {
        let mut kept = 0;
        for (i, bytes) in bytes.chunks_exact(self.bytes_of(UNIT)).enumerate() {
            let (from, free) = (from.after(i * UNIT), &mut x[kept..]);
            kept += if let Some(free) = free.first_chunk_mut() {
                self.choose_unit(from, bytes, free)
            } else {
                let mut unit = [0; UNIT];
                let last = self.choose_unit(from, bytes, &mut unit).min(free.len());
                free[..last].copy_from_slice(&unit[..last]);
                last
            };
        }
        kept
    }

    /// Puts the accepted candidates of one unit at the front of `x`, and returns how many.
    #[inline(always)]
    fn choose_unit(&self, from: Candidate<'_>, bytes: &[u8], x: &mut [i64; UNIT]) -> usize {
        let (words, coins) = bytes.split_at(8 * UNIT);
        let words = words.as_chunks().0.first_chunk().unwrap();
        let candidates = self.laplace.candidates(words, |l| from.after(l).more()[0]);
        let values = &candidates.0;
        let Some(acceptance) = &self.acceptance else {
            *x = *values;
            return UNIT;
        };
        let coins = coins.as_chunks().0.first_chunk().unwrap();
        let accepted = acceptance.decide(values, coins, |l| from.after(l).more()[1]);
        let mut kept = 0;
        for (l, value) in values.iter().enumerate() {
            // The next one overwrites it if it is not accepted.
            x[kept % UNIT] = *value;
            kept += usize::from(accepted.0[l]);
        }
        kept
    }
}

/// The first `dim` samples of a node, unit after unit of candidates: what the kernel computes in larger pieces.
#[cfg(test)]
pub(crate) fn one_by_one(
    distribution: DiscreteDistribution,
    scale: f64,
    stream: &Stream,
    node: u32,
    dim: usize,
) -> Vec<i64> {
    let noise = DiscreteNoise::new(distribution, scale);
    let mut bytes = vec![0; noise.bytes_of(UNIT)];
    let mut samples = Vec::new();
    for group in 0..dim.div_ceil(GROUP) {
        let end = dim.min((group + 1) * GROUP);
        let numbers = (CANDIDATES * group..).step_by(UNIT);
        for number in numbers {
            let mut unit = [0; UNIT];
            stream.fill(node, noise.block(number) as u32, &mut bytes);
            let from = Candidate {
                stream,
                node,
                number,
            };
            let accepted = noise.choose_unit(from, &bytes, &mut unit);
            samples.extend(&unit[..accepted]);
            if samples.len() >= end {
                samples.truncate(end);
                break;
            }
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::with_each_instruction_set;
    use crate::stream::{Cipher, Key};

    fn stream() -> Stream {
        Key::new(Cipher::Aes, &[3; 32]).stream(1, 0).unwrap()
    }

    #[test]
    fn each_candidate_has_64_more_bits_of_its_own() {
        let noise = DiscreteNoise::new(DiscreteDistribution::Laplace, 300.5);
        let threshold = noise.laplace.threshold(1000.0);
        let high = (threshold >> 64) as u64;
        let from = Candidate {
            stream: &stream(),
            node: 7,
            number: 48,
        };
        let mut words = [1_u64 << 62; UNIT];
        (words[5], words[10]) = (high, high | 1 << 63);
        let bytes = words.map(u64::to_le_bytes);
        let mut x = [0; UNIT];
        assert_eq!(noise.choose(from, bytes.as_flattened(), &mut x), UNIT);
        let magnitude = |lane: usize| {
            let mut bytes = [0; BLOCK_BYTES];
            from.stream
                .fill(7, ((1 << 29) + (48 + lane) / 4) as u32, &mut bytes);
            let more = bytes.as_chunks().0[(48 + lane) % 4 * 2];
            noise.laplace.magnitude(high, u64::from_le_bytes(more))
        };
        assert_eq!([x[5], x[10]], [magnitude(5), -magnitude(10)]);
    }

    #[test]
    fn values_are_the_same_on_every_instruction_set() {
        for (distribution, scale) in [
            (DiscreteDistribution::Laplace, 1e5),
            (DiscreteDistribution::Gaussian, 7.3),
        ] {
            let drawn = || {
                let (mut long, mut short) = (vec![0; 30_000], vec![0; 3_000]);
                discrete_noise_into(distribution, scale, &stream(), None, 30_000, &mut long)
                    .unwrap();
                discrete_noise_into(distribution, scale, &stream(), None, 10, &mut short).unwrap();
                (long, short)
            };
            let results = with_each_instruction_set(drawn);
            assert!(results.iter().all(|result| result == &results[0]));
        }
    }
}
