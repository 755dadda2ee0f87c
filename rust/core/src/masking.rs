//! Masks modulo a power of 2 that cancel in the sum over all sites of a cohort.
//!
//! Two sites that share a secret of 32 bytes draw the same words from it, which one adds and the other subtracts. The
//! words of a secret are the key stream of AES-256 for ([`MASK_PURPOSE`], round 0, node 0): 32 bits each if the modulus
//! has up to 32 bits, otherwise 64, little-endian, of which the lowest count.
//!
//! A masked vector travels as `bits` bits for each number, from the lowest bit of the first byte upwards, padded with
//! zeros to a whole byte. Masks are added and packed block by block: no mask is ever stored.
//!
//! ```
//! use dpmesh_core::masking::{Pair, mask_and_pack_into, masked_bytes, unpack_sum_into};
//!
//! let (secret, bits) = ([7; 32], 16); // that two sites agreed on, for this sum alone
//! let mut sent = [vec![0; masked_bytes(3, bits)?], vec![0; masked_bytes(3, bits)?]];
//! mask_and_pack_into(&[1, -2, 3], &[Pair::new(&secret, false)], bits, &mut sent[0])?;
//! mask_and_pack_into(&[4, 5, -6], &[Pair::new(&secret, true)], bits, &mut sent[1])?;
//! let mut total = [0; 3];
//! unpack_sum_into(&[&sent[0], &sent[1]], bits, &mut total)?;
//! assert_eq!(total, [5, 3, -3]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::KernelError;
use crate::instructions::vectorized;
use crate::parallel::{Cut, share};
use crate::stream::{BLOCK_BYTES, Cipher, Key, Stream};

/// The purpose of the streams of masks.
pub const MASK_PURPOSE: u32 = 0x4D41_534B;

/// Numbers of a block, which in packed form is a whole number of bytes.
const NUMBERS: usize = 2048;

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[8, NUMBERS, 8 * NUMBERS];

/// A secret that two sites share for a single sum, and whether this site subtracts its words.
#[derive(Debug)]
pub struct Pair {
    stream: Stream,
    subtracts: bool,
}

impl Pair {
    /// The pair of sites that share a secret.
    ///
    /// # Panics
    /// Never: the purpose is not 0.
    pub fn new(secret: &[u8; 32], subtracts: bool) -> Pair {
        let stream = Key::new(Cipher::Aes, secret).stream(MASK_PURPOSE, 0);
        Pair {
            stream: stream.unwrap(),
            subtracts,
        }
    }

    /// Adds the words from number `first` on, or subtracts them.
    fn apply(&self, first: usize, wide: bool, words: &mut [u64], bytes: &mut [u8]) {
        let size = if wide { 8 } else { 4 };
        let bytes = &mut bytes[..(words.len() * size).next_multiple_of(16)];
        let block = (first * size / BLOCK_BYTES) as u32;
        self.stream.fill(0, block, bytes);
        let mask_of = |place: usize| {
            if wide {
                u64::from_le_bytes(bytes.as_chunks().0[place])
            } else {
                u64::from(u32::from_le_bytes(bytes.as_chunks().0[place]))
            }
        };
        for (place, word) in words.iter_mut().enumerate() {
            let mask = mask_of(place);
            *word = if self.subtracts {
                word.wrapping_sub(mask)
            } else {
                word.wrapping_add(mask)
            };
        }
    }
}

/// Length in bytes of a masked vector of `dim` numbers.
///
/// # Errors
/// If `bits` is not from 1 to 64, or there are more numbers than a stream has words.
pub fn masked_bytes(dim: usize, bits: u32) -> Result<usize, KernelError> {
    if !(1..=64).contains(&bits) {
        return Err(KernelError::new("bits", "from 1 to 64", bits));
    }
    Stream::holds("values", (dim as u64).div_ceil(BLOCK_BYTES as u64 / 8))?;
    Ok((dim * bits as usize).div_ceil(8))
}

/// Fills `out` with `values` plus the words of all pairs, modulo 2^bits, packed.
///
/// # Errors
/// If `bits` is not from 1 to 64, or `out` has not [`masked_bytes`].
pub fn mask_and_pack_into(
    values: &[i64],
    pairs: &[Pair],
    bits: u32,
    out: &mut [u8],
) -> Result<(), KernelError> {
    let wanted = masked_bytes(values.len(), bits)?;
    crate::error::same_len("out", out.len(), wanted)?;
    let scratch = || (vec![0; NUMBERS], vec![0; 8 * NUMBERS]);
    let bytes_of_block = NUMBERS / 8 * bits as usize;
    share(
        out,
        Cut::Blocks {
            len: bytes_of_block,
        },
        scratch,
        |(words, bytes), place, out| {
            let first = place.column / bytes_of_block * NUMBERS;
            let values = &values[first..values.len().min(first + NUMBERS)];
            let words = &mut words[..values.len()];
            for (word, value) in words.iter_mut().zip(values) {
                *word = *value as u64;
            }
            for pair in pairs {
                pair.apply(first, bits > 32, words, bytes);
            }
            pack(words, bits, out);
        },
    );
    Ok(())
}

/// Fills `out` with the sum of packed vectors modulo 2^bits, centred: in [-2^(bits - 1), 2^(bits - 1)).
///
/// # Errors
/// If `bits` is not from 1 to 64, or a message has not [`masked_bytes`] or other padding than zeros.
pub fn unpack_sum_into(messages: &[&[u8]], bits: u32, out: &mut [i64]) -> Result<(), KernelError> {
    let wanted = masked_bytes(out.len(), bits)?;
    let used = (out.len() * bits as usize) % 8;
    for message in messages {
        if message.len() != wanted {
            let wanted = format!("{wanted} bytes, {} numbers of {bits} bits", out.len());
            return Err(KernelError::new("message", wanted, message.len()));
        }
        if used > 0 && message[wanted - 1] >> used != 0 {
            return Err(KernelError::new(
                "message",
                "padding of zeros",
                "other bits",
            ));
        }
    }
    share(
        out,
        Cut::Blocks { len: NUMBERS },
        || (),
        |(), place, out| {
            let first = place.column / 8 * bits as usize;
            out.fill(0);
            for message in messages {
                add_unpacked(&message[first..], bits, out);
            }
            let rest = 64 - bits;
            for sum in out {
                *sum = (*sum << rest) >> rest;
            }
        },
    );
    Ok(())
}

/// Packs the lowest `bits` bits of each word.
fn pack(words: &[u64], bits: u32, mut out: &mut [u8]) {
    let low = u64::MAX >> (64 - bits);
    let (mut held, mut count) = (0_u128, 0);
    for word in words {
        held |= u128::from(word & low) << count;
        count += bits;
        if count >= 64 {
            let (full, rest) = out.split_at_mut(8);
            full.copy_from_slice(&(held as u64).to_le_bytes());
            out = rest;
            held >>= 64;
            count -= 64;
        }
    }
    let last = (held as u64).to_le_bytes();
    out.copy_from_slice(&last[..out.len()]);
}

/// Adds packed numbers to `out`, modulo 2^64.
fn add_unpacked(message: &[u8], bits: u32, out: &mut [i64]) {
    if bits <= WITHIN_A_WORD {
        vectorized!(add_short(message, bits, out));
    } else {
        add_long(message, bits, out);
    }
}

/// Numbers of up to so many bits lie within eight bytes, wherever in the first of these they begin.
const WITHIN_A_WORD: u32 = 57;

/// As [`add_unpacked`], for up to [`WITHIN_A_WORD`] bits: eight numbers at a time, which take `bits` bytes.
#[inline(always)]
fn add_short(message: &[u8], bits: u32, out: &mut [i64]) {
    let (low, size) = (u64::MAX >> (64 - bits), bits as usize);
    let whole = (message.len().saturating_sub(8) / size).min(out.len() / 8);
    let (eights, rest) = out.split_at_mut(8 * whole);
    for (eight, bytes) in eights
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(message.windows(size + 8).step_by(size))
    {
        for (k, sum) in eight.iter_mut().enumerate() {
            let first = k * size / 8;
            let word = u64::from_le_bytes(bytes[first..first + 8].try_into().unwrap_or_default());
            *sum = sum.wrapping_add((word >> (k * size % 8) & low) as i64);
        }
    }
    add_long(&message[whole * size..], bits, rest);
}

/// As [`add_unpacked`], number after number.
fn add_long(mut message: &[u8], bits: u32, out: &mut [i64]) {
    let low = u64::MAX >> (64 - bits);
    let (mut held, mut count) = (0_u128, 0);
    for sum in out {
        if count < bits {
            let (next, rest) = message.split_at(message.len().min(8));
            let mut word = [0; 8];
            word[..next.len()].copy_from_slice(next);
            held |= u128::from(u64::from_le_bytes(word)) << count;
            count += 64;
            message = rest;
        }
        *sum = sum.wrapping_add((held as u64 & low) as i64);
        held >>= bits;
        count -= bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Word `place` of a secret, drawn alone.
    fn word(secret: &[u8; 32], place: usize, bits: u32) -> u64 {
        let stream = Key::new(Cipher::Aes, secret)
            .stream(MASK_PURPOSE, 0)
            .unwrap();
        let mut halves = [0; 2];
        let size = if bits > 32 { 2 } else { 1 };
        stream
            .words_into(0, (place * size) as u64, &mut halves[..size])
            .unwrap();
        u64::from(halves[0]) | u64::from(halves[1]) << 32
    }

    /// The format, number by number.
    fn slow(values: &[i64], pairs: &[([u8; 32], bool)], bits: u32) -> Vec<u8> {
        let mut digits = Vec::new();
        for (place, value) in values.iter().enumerate() {
            let mut sum = i128::from(*value);
            for (secret, subtracts) in pairs {
                let mask = i128::from(word(secret, place, bits));
                sum += if *subtracts { -mask } else { mask };
            }
            let symbol = sum.rem_euclid(1 << bits);
            digits.extend((0..bits).map(|bit| (symbol >> bit & 1) as u8));
        }
        let byte = |digits: &[u8]| digits.iter().rev().fold(0, |byte, digit| byte << 1 | digit);
        digits.chunks(8).map(byte).collect()
    }

    fn masked(values: &[i64], pairs: &[([u8; 32], bool)], bits: u32) -> Vec<u8> {
        let mut out = vec![0; masked_bytes(values.len(), bits).unwrap()];
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(s, minus)| Pair::new(s, *minus))
            .collect();
        mask_and_pack_into(values, &pairs, bits, &mut out).unwrap();
        out
    }

    proptest! {
        #[test]
        fn messages_have_the_format(
            bits in 1_u32..=64,
            values in prop::collection::vec(any::<i64>(), 1..60),
            pairs in prop::collection::vec((any::<[u8; 32]>(), any::<bool>()), 0..4),
        ) {
            prop_assert_eq!(masked(&values, &pairs, bits), slow(&values, &pairs, bits));
        }

        #[test]
        fn masks_cancel(bits in 1_u32..=64, len in 1_usize..5000, secret in any::<[u8; 32]>()) {
            let values: Vec<i64> = (0..len as i64).map(|k| k * 0x1234_5678_9ABC - (1 << 45)).collect();
            let ends = [masked(&values, &[(secret, false)], bits), masked(&values, &[(secret, true)], bits)];
            let mut sum = vec![0; len];
            unpack_sum_into(&[&ends[0], &ends[1]], bits, &mut sum).unwrap();
            let rest = 64 - bits;
            let want: Vec<i64> = values.iter().map(|v| v.wrapping_mul(2) << rest >> rest).collect();
            prop_assert_eq!(sum, want);
        }
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        assert!(masked_bytes(3, 0).is_err());
        assert!(masked_bytes(3, 65).is_err());
        assert!(masked_bytes(1 << 40, 8).is_err());
        assert!(mask_and_pack_into(&[1, 2], &[], 9, &mut [0; 2]).is_err());
        let mut out = [0; 2];
        assert!(unpack_sum_into(&[&[0, 0]], 9, &mut out).is_err());
        assert!(unpack_sum_into(&[&[0, 0, 0xFC]], 9, &mut out).is_err());
        assert!(unpack_sum_into(&[&[0, 0, 3]], 9, &mut out).is_ok());
    }
}
