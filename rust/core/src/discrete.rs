//! Discrete Laplace and Gaussian noise on the integers: what is added to integers (counts, codes) without the leaks of
//! floating point. Each row comes from the stream of its own node.
//!
//! # How
//! The binary digits of a geometric variable G, P(G = g) ~ exp(-g / scale), are independent, and digit `k` is 1 with
//! probability 1 / (1 + exp(2^k / scale)): a comparison of random bits with a constant. The difference of two such
//! variables follows the discrete Laplace law. Gaussian samples are chosen among Laplace ones by rejection (Canonne,
//! Kamath and Steinke, 2020). Comparisons are exact, lazily: 16 bits decide nearly always, and 64 more where they are
//! equal to the constant's, which is computed to 90 bits.
//!
//! # Guarantee
//! The law of a sample is within 2^-73 of the textbook's in total variation: 2^-80 for each of at most 62 digits, 2^-80
//! for each tail, and for Gaussian samples 2^-80 for the coin, three times all that because of the rejection; running
//! out of what decides equal bits has 2^-100 a group. For n samples of a mechanism that would be (epsilon, delta)
//! private, `(1 + exp(epsilon)) n 2^-73` belongs in delta.

mod acceptance;

use acceptance::Acceptance;

use crate::KernelError;
use crate::double_double::DoubleDouble;
use crate::error::rows;
use crate::parallel::{for_each_part, vectorized};
use crate::sampling::Nodes;
use crate::stream::{BLOCK_BYTES, Stream};

/// Samples that are drawn together; where a row is cut into them is part of the definition of the values.
const GROUP: usize = 64;

/// Most binary digits of a geometric variable, so that a difference fits `i32`.
const MOST_DIGITS: usize = 31;

/// Largest scale: its geometric variables have [`MOST_DIGITS`] digits.
const LARGEST_SCALE: f64 = (1 << 25) as f64;

/// Below this scale P(0) is 1 up to 2^-74.
const NEGLIGIBLE_SCALE: f64 = 0.019;

/// How often a group may be drawn until enough candidates are accepted. At least 69% are, so that four times 64 do not
/// contain 64 with probability below 2^-150.
const ATTEMPTS: usize = 4;

/// Bytes that decide digits whose 16 bits equal the threshold's. A group has more than the 16 such digits that they are
/// for with probability below 2^-100.
const UNDECIDED: usize = 2 * BLOCK_BYTES;

/// Bytes of several groups that are drawn from the stream in one go.
const BATCH: usize = 1 << 14;

/// The law of noise on the integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscreteLaw {
    /// P(k) ~ exp(-|k| / scale).
    Laplace,
    /// P(k) ~ exp(-k^2 / (2 scale^2)).
    Gaussian,
}

/// Fills the rows of `dim` elements of `out` with noise, row `i` from node `nodes[i]` (`i` itself for `None`). A
/// `scale` of 0 means no noise.
///
/// # Errors
/// If `scale` is not between 0 and 2^25, `out` is no whole number of rows, or the nodes are not distinct or not one
/// for each row.
pub fn discrete_noise_into(
    law: DiscreteLaw,
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
    let noise = DiscreteNoise::new(law, scale);
    let blocks = noise.group_bytes() / BLOCK_BYTES;
    Stream::holds("dim", (ATTEMPTS * blocks * dim.div_ceil(GROUP)) as u64)?;
    for_each_part(out, dim, Vec::new, |bytes, row, column, part| {
        noise.draw(stream, nodes.of(row), column / GROUP, part, bytes);
    });
    Ok(())
}

/// The probability of a binary digit, in units of 2^-80: the first 16 bits, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Threshold {
    high: u16,
    low: u64,
}

/// A law with its constants.
struct DiscreteNoise {
    digits: Vec<Threshold>,
    acceptance: Option<Acceptance>,
}

impl DiscreteNoise {
    fn new(law: DiscreteLaw, scale: f64) -> DiscreteNoise {
        // exp(-2^count / scale) < 2^-80
        let count = (55.5 * scale).log2().ceil().max(1.0) as usize;
        debug_assert!(count <= MOST_DIGITS);
        let one = DoubleDouble::from(1.0);
        let threshold = |k| {
            let exponent = DoubleDouble::from(2_f64.powi(k)) / DoubleDouble::from(scale);
            let odds = exponent.exp_of_negative();
            let probability = (odds / (one + odds)).times_power_of_2(80).round();
            Threshold {
                high: (probability >> 64) as u16,
                low: probability as u64,
            }
        };
        DiscreteNoise {
            digits: (0..count as i32).map(threshold).collect(),
            acceptance: (law == DiscreteLaw::Gaussian).then(|| Acceptance::new(scale)),
        }
    }

    /// Bytes of one attempt to draw a group: 16 bits for each digit of two geometric variables, the coins of
    /// acceptance, and what decides where 16 bits do not.
    fn group_bytes(&self) -> usize {
        let coins = if self.acceptance.is_some() {
            8 * GROUP
        } else {
            0
        };
        2 * self.digits.len() * 2 * GROUP + coins + UNDECIDED
    }

    /// Draws a part of the row of `node` that begins with group number `first`.
    fn draw(&self, stream: &Stream, node: u32, first: usize, x: &mut [i64], bytes: &mut Vec<u8>) {
        let size = self.group_bytes();
        let groups = (BATCH / size).max(1);
        // The first attempt of all groups is one sequence of the stream, the second another.
        let fill = |attempt: usize, group: usize, bytes: &mut [u8]| {
            let blocks = (attempt << 28) + group * (size / BLOCK_BYTES);
            stream.fill(node, blocks as u32, bytes);
        };
        let likely = if self.acceptance.is_some() { 2 } else { 1 };
        bytes.resize((likely * groups + 1) * size, 0);
        let (likely_bytes, more_bytes) = bytes.split_at_mut(likely * groups * size);
        for (batch, x) in x.chunks_mut(groups * GROUP).enumerate() {
            let first = first + batch * groups;
            let used = x.len().div_ceil(GROUP) * size;
            for (attempt, bytes) in likely_bytes.chunks_mut(groups * size).enumerate() {
                fill(attempt, first, &mut bytes[..used]);
            }
            for (i, x) in x.chunks_mut(GROUP).enumerate() {
                let mut kept = Kept::default();
                for attempt in 0..ATTEMPTS {
                    let bytes = if attempt < likely {
                        &likely_bytes[(attempt * groups + i) * size..][..size]
                    } else {
                        fill(attempt, first + i, more_bytes);
                        &*more_bytes
                    };
                    vectorized!(self.attempt(bytes, &mut kept));
                    if kept.count >= x.len() {
                        break;
                    }
                }
                x.copy_from_slice(&kept.samples[..x.len()]);
            }
        }
    }

    /// Draws the candidates of a group and keeps those that are accepted.
    #[inline(always)]
    fn attempt(&self, bytes: &[u8], kept: &mut Kept) {
        let digit_bytes = self.digits.len() * 2 * GROUP;
        let (digits, rest) = bytes.split_at(2 * digit_bytes);
        let (coins, undecided) = rest.split_at(rest.len() - UNDECIDED);
        let mut undecided = undecided
            .as_chunks()
            .0
            .iter()
            .map(|w| u64::from_le_bytes(*w));
        let a = self.geometric(&digits[..digit_bytes], &mut undecided);
        let b = self.geometric(&digits[digit_bytes..], &mut undecided);
        let mut candidates = [0; GROUP];
        for l in 0..GROUP {
            candidates[l] = a[l] - b[l];
        }
        let accepted = match &self.acceptance {
            None => [true; GROUP],
            Some(acceptance) => acceptance.decide(&candidates, coins.as_chunks().0, &mut undecided),
        };
        for l in 0..GROUP {
            // What is not accepted is overwritten by the next.
            kept.samples[kept.count.min(GROUP)] = candidates[l].into();
            kept.count += usize::from(accepted[l]);
        }
    }

    /// Geometric variables from 16 bits for each of their digits; where these equal the threshold's, the next of the
    /// `undecided` words decides.
    #[inline(always)]
    fn geometric(&self, bytes: &[u8], undecided: &mut impl Iterator<Item = u64>) -> [i32; GROUP] {
        let mut halves = [[0_u16; GROUP]; 2];
        for (k, (threshold, bytes)) in self
            .digits
            .iter()
            .zip(bytes.chunks_exact(2 * GROUP))
            .enumerate()
        {
            let (half, digit) = (&mut halves[k / 16], 1_u16 << (k % 16));
            let high = threshold.high;
            let bytes = bytes.as_chunks::<2>().0;
            let mut equal = 0_u16;
            for l in 0..GROUP {
                let bits = u16::from_le_bytes(bytes[l]);
                half[l] |= if bits < high { digit } else { 0 };
                equal |= u16::from(bits == high);
            }
            if equal != 0 {
                for l in 0..GROUP {
                    let equal = u16::from_le_bytes(bytes[l]) == high;
                    if equal && undecided.next().is_some_and(|word| word < threshold.low) {
                        half[l] |= digit;
                    }
                }
            }
        }
        let mut values = [0; GROUP];
        for l in 0..GROUP {
            values[l] = i32::from(halves[0][l]) | i32::from(halves[1][l]) << 16;
        }
        values
    }
}

/// Accepted samples of a group; the last place takes what is beyond.
struct Kept {
    samples: [i64; GROUP + 1],
    count: usize,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept {
            samples: [0; GROUP + 1],
            count: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::{dispatch_on, instruction_sets};
    use crate::stream::{Cipher, Key};

    #[test]
    fn thresholds_are_right_to_the_last_bit() {
        // round(2^80 / (1 + exp(2^k / scale))), from mpmath.
        let digits = |scale| {
            let digits = DiscreteNoise::new(DiscreteLaw::Laplace, scale).digits;
            digits
                .into_iter()
                .map(|Threshold { high, low }| (high, low))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            digits(1.0),
            [
                (17625, 6363958913850006242),
                (7812, 1525502228178790197),
                (1178, 13729101352493321971),
                (21, 18031805784159283767),
                (0, 136046663022920828),
                (0, 15310036716)
            ]
        );
        assert_eq!(
            digits(300.5)[..4],
            [
                (32713, 8809939060638609326),
                (32658, 17625447077864801281),
                (32549, 16848700994675402272),
                (32331, 15607041537105891563)
            ]
        );
        let largest = digits(LARGEST_SCALE);
        assert_eq!(
            (largest.len(), largest[0]),
            (MOST_DIGITS, (32767, 18437736874454810625))
        );
    }

    /// A group whose digits are all decided by their first 16 bits, but for those in `ties`.
    fn group(noise: &DiscreteNoise, ties: &[(usize, usize)], deciding: &[u64]) -> [i64; GROUP] {
        let mut bytes = vec![0xff; noise.group_bytes()];
        for (digit, lane) in ties {
            let high = noise.digits[digit % noise.digits.len()].high;
            let place = 2 * (digit * GROUP + lane);
            bytes[place..place + 2].copy_from_slice(&high.to_le_bytes());
        }
        let end = bytes.len() - UNDECIDED;
        for (bytes, word) in bytes[end..].as_chunks_mut().0.iter_mut().zip(deciding) {
            *bytes = word.to_le_bytes();
        }
        let mut kept = Kept::default();
        noise.attempt(&bytes, &mut kept);
        assert_eq!(kept.count, GROUP);
        *kept.samples.first_chunk().unwrap()
    }

    #[test]
    fn equal_bits_are_decided_by_the_next_undecided_word() {
        let noise = DiscreteNoise::new(DiscreteLaw::Laplace, 10.0);
        let n = noise.digits.len();
        let low = |digit: usize| noise.digits[digit].low;
        assert_eq!(group(&noise, &[], &[]), [0; GROUP]);
        // Digit 2 of the first variable in lanes 5 and 9, then digit 3 of the second in lane 7.
        let ties = [(2, 5), (2, 9), (n + 3, 7)];
        let samples = group(&noise, &ties, &[low(2) - 1, low(2), low(3) - 1]);
        let mut expected = [0; GROUP];
        (expected[5], expected[7]) = (4, -8);
        assert_eq!(samples, expected);
    }

    #[test]
    fn groups_have_the_same_bits_on_every_instruction_set() {
        let stream = Key::new(Cipher::Aes, &[3; 32]).stream(1, 0).unwrap();
        for (law, scale) in [(DiscreteLaw::Laplace, 1e5), (DiscreteLaw::Gaussian, 7.3)] {
            let noise = DiscreteNoise::new(law, scale);
            for number in 0..300 {
                let mut bytes = vec![0; noise.group_bytes()];
                stream.fill(number, 0, &mut bytes);
                let drawn = |set| {
                    let mut kept = Kept::default();
                    dispatch_on(
                        set,
                        #[inline(always)]
                        || noise.attempt(&bytes, &mut kept),
                    );
                    (kept.samples, kept.count)
                };
                let mut results = instruction_sets().into_iter().map(drawn);
                let portable = results.next().unwrap();
                assert!(results.all(|result| result == portable));
            }
        }
    }
}
