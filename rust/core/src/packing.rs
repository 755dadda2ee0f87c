//! Lossless packing of codes into messages of a few bits a code.
//!
//! # Format
//! The symbol of a code `c` is `2 c` for `c >= 0` and `-2 c - 1` for `c < 0` (zigzag). In a message of `bits` bits a
//! code, the codes from `-(2^(bits - 1) - 1)` to `2^(bits - 1) - 1` are written as their symbols; any other code is
//! escaped and written as `2^bits - 1`. The symbols follow each other from the lowest bit of the first byte upwards,
//! with zeros up to a whole byte. Then come the escaped codes in order, 8 bytes each, little-endian. A sequence of
//! codes has exactly one message.
//!
//! ```
//! use dpmesh_core::packing::{bits_needed, pack, unpack_into};
//!
//! let codes = [3_i64, -1, 0, 2];
//! let bits = bits_needed(&codes);
//! let message = pack(&codes, bits)?;
//! assert!(message.len() < 8);
//! let mut back = [0_i64; 4];
//! unpack_into(&message, bits, &mut back)?;
//! assert_eq!(back, codes);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::KernelError;
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{is_serial, map, share_rows};
use crate::quantize::Code;

/// A number of symbols that fill whole 32-bit words, whatever their bits.
const GROUP: usize = 32;

/// Codes in a block, a multiple of [`GROUP`].
const BLOCK: usize = 1024;

/// Codes in a task.
const TASK: usize = 16 * BLOCK;

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[GROUP, BLOCK, TASK];

/// The value of the expression with the number of bits, 1 to 32, as a constant.
macro_rules! with_bits {
    ($bits:expr, $BITS:ident => $body:expr) => {
        with_bits!($bits, $BITS => $body, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28
            29 30 31)
    };
    ($bits:expr, $BITS:ident => $body:expr, $($number:literal)*) => {
        match $bits {
            $($number => {
                const $BITS: usize = $number;
                $body
            })*
            _ => {
                const $BITS: usize = 32;
                $body
            }
        }
    };
}

/// The fewest bits for which no code is escaped: from 1 to 65, though messages have at most 32.
pub fn bits_needed<C: Code>(codes: &[C]) -> u32 {
    vectorized!({
        let symbols = || codes.iter().map(|code| symbol(code.widened()));
        let all_bits = symbols().fold(1, |all, symbol| all | symbol);
        let escape = u64::MAX >> all_bits.leading_zeros();
        let taken = symbols().filter(|&symbol| symbol == escape).count() > 0;
        64 - escape.leading_zeros() + u32::from(taken)
    })
}

/// The length in bytes of the message of each row of `dim` codes.
///
/// # Errors
/// If `bits` is not between 1 and 32, `codes` is not a whole number of rows, or `out` does not have one element for
/// each row.
pub fn packed_sizes_into<C: Code>(
    codes: &[C],
    dim: usize,
    bits: u32,
    out: &mut [u64],
) -> Result<(), KernelError> {
    let escape = escape(bits)?;
    same_len("out", out.len(), rows("codes", codes.len(), dim)?)?;
    share_rows(
        out,
        1,
        dim,
        || (),
        |(), row, size| {
            let codes = &codes[row * dim..(row + 1) * dim];
            let escaped = |code: &&C| !fits(code.widened(), escape);
            let escaped = vectorized!(codes.iter().filter(escaped).count());
            size[0] = (symbol_bytes(dim, bits) + 8 * escaped) as u64;
        },
    );
    Ok(())
}

/// The message of `codes` with `bits` bits each.
///
/// # Errors
/// If `bits` is not between 1 and 32.
pub fn pack<C: Code>(codes: &[C], bits: u32) -> Result<Vec<u8>, KernelError> {
    let escape = escape(bits)?;
    let mut message = vec![0; symbol_bytes(codes.len(), bits)];
    let tasks = message
        .chunks_mut(symbol_bytes(TASK, bits))
        .zip(codes.chunks(TASK));
    let escaped = map(tasks, is_serial(codes.len()), |(bytes, codes)| {
        let blocks = bytes
            .chunks_mut(symbol_bytes(BLOCK, bits))
            .zip(codes.chunks(BLOCK));
        let escaped = blocks.map(|(bytes, codes)| pack_block(codes, bits, escape, bytes));
        escaped.flatten().collect::<Vec<_>>()
    });
    for code in escaped.into_iter().flatten() {
        message.extend(code.to_le_bytes());
    }
    Ok(message)
}

/// Fills `bytes` with symbols and returns the escaped codes.
fn pack_block<C: Code>(codes: &[C], bits: u32, escape: u32, bytes: &mut [u8]) -> Vec<i64> {
    let mut symbols = [0; BLOCK];
    let plain = vectorized!({
        let mut others = 0;
        for (to, code) in symbols.iter_mut().zip(codes) {
            let code = code.widened();
            let fits = fits(code, escape);
            *to = if fits { symbol(code) as u32 } else { escape };
            others |= u32::from(!fits);
        }
        others == 0
    });
    let join = with_bits!(bits, BITS => join::<BITS>);
    let groups = symbols.as_chunks::<GROUP>().0;
    for (bytes, symbols) in bytes.chunks_mut(symbol_bytes(GROUP, bits)).zip(groups) {
        join(symbols, bytes);
    }
    if plain {
        return Vec::new();
    }
    let codes = codes.iter().map(|code| code.widened());
    codes.filter(|&code| !fits(code, escape)).collect()
}

/// Fills `out` with the codes of a message that [`pack`] made with `bits` bits each.
///
/// # Errors
/// If `bits` is not between 1 and 32, or `message` is not the message of `out.len()` codes of this type.
pub fn unpack_into<C: Code>(message: &[u8], bits: u32, out: &mut [C]) -> Result<(), KernelError> {
    let escape = escape(bits)?;
    let (count, body) = (out.len(), symbol_bytes(out.len(), bits));
    let Some((symbols, escaped)) = message.split_at_checked(body) else {
        let wanted = format!("at least {body} bytes for {count} codes of {bits} bits");
        return Err(KernelError::new("message", wanted, message.len()));
    };
    let last_bits = count * bits as usize % 8;
    if last_bits > 0 && symbols[body - 1] >> last_bits > 0 {
        let wanted = "zeros after the last symbol";
        return Err(KernelError::new("message", wanted, "ones"));
    }
    let tasks = symbols
        .chunks(symbol_bytes(TASK, bits))
        .zip(out.chunks_mut(TASK));
    let escapes = map(tasks, is_serial(count), |(bytes, codes)| {
        let blocks = bytes
            .chunks(symbol_bytes(BLOCK, bits))
            .zip(codes.chunks_mut(BLOCK));
        let mut places = Vec::new();
        for (bytes, codes) in blocks {
            places.extend(unpack_block(bytes, bits, escape, codes)?);
        }
        Ok(places)
    });
    let escapes: Result<Vec<Vec<&mut C>>, KernelError> = escapes.into_iter().collect();
    let places: Vec<&mut C> = escapes?.into_iter().flatten().collect();
    let (codes, rest) = escaped.as_chunks();
    if places.len() != codes.len() || !rest.is_empty() {
        let wanted = format!(
            "{body} bytes, and 8 for each of {} escaped codes",
            places.len()
        );
        return Err(KernelError::new("message", wanted, message.len()));
    }
    for (place, code) in places.into_iter().zip(codes) {
        let code = i64::from_le_bytes(*code);
        if fits(code, escape) {
            let wanted = format!("only codes escaped that do not fit {bits} bits");
            return Err(KernelError::new("message", wanted, code));
        }
        *place = narrowed(code)?;
    }
    Ok(())
}

/// Reads symbols and returns the places of escaped codes.
fn unpack_block<'a, C: Code>(
    bytes: &[u8],
    bits: u32,
    escape: u32,
    codes: &'a mut [C],
) -> Result<Vec<&'a mut C>, KernelError> {
    let mut symbols = [0; BLOCK];
    let split = with_bits!(bits, BITS => split::<BITS>);
    let groups = symbols.as_chunks_mut::<GROUP>().0;
    for (symbols, bytes) in groups
        .iter_mut()
        .zip(bytes.chunks(symbol_bytes(GROUP, bits)))
    {
        split(bytes, symbols);
    }
    let plain = vectorized!({
        let mut others = 0;
        for (code, &symbol) in codes.iter_mut().zip(&symbols) {
            let wide = code_of(symbol);
            *code = C::truncated(wide);
            others |= (code.widened() ^ wide) | i64::from(symbol == escape);
        }
        others == 0
    });
    let mut escapes = Vec::new();
    if !plain {
        for (code, &symbol) in codes.iter_mut().zip(&symbols) {
            if symbol == escape {
                escapes.push(code);
            } else {
                *code = narrowed(code_of(symbol))?;
            }
        }
    }
    Ok(escapes)
}

/// Writes symbols side by side, from the lowest bit up.
fn join<const BITS: usize>(symbols: &[u32; GROUP], bytes: &mut [u8]) {
    let mut words = [0; BITS];
    for (i, &symbol) in symbols.iter().enumerate() {
        let (word, bit) = (i * BITS / 32, i * BITS % 32);
        let shifted = u64::from(symbol) << bit;
        words[word] |= shifted as u32;
        if bit + BITS > 32 {
            words[word + 1] |= (shifted >> 32) as u32;
        }
    }
    let (whole, rest) = bytes.as_chunks_mut();
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

/// Undoes [`join`]; missing bytes are zeros.
fn split<const BITS: usize>(bytes: &[u8], symbols: &mut [u32; GROUP]) {
    let (whole, rest) = bytes.as_chunks();
    let mut words = [0; BITS];
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u32::from_le_bytes(*bytes);
    }
    if let Some(word) = words.get_mut(whole.len()) {
        let mut bytes = [0; 4];
        bytes[..rest.len()].copy_from_slice(rest);
        *word = u32::from_le_bytes(bytes);
    }
    for (i, to) in symbols.iter_mut().enumerate() {
        let (word, bit) = (i * BITS / 32, i * BITS % 32);
        let mut symbol = u64::from(words[word]) >> bit;
        if bit + BITS > 32 {
            symbol |= u64::from(words[word + 1]) << (32 - bit);
        }
        *to = (symbol & (u64::MAX >> (64 - BITS))) as u32;
    }
}

/// The code in its type; fails if it does not fit.
#[inline(always)]
fn narrowed<C: Code>(code: i64) -> Result<C, KernelError> {
    let narrowed = C::truncated(code);
    if narrowed.widened() == code {
        Ok(narrowed)
    } else {
        let wanted = format!("codes of {} bits", 8 * size_of::<C>());
        Err(KernelError::new("message", wanted, code))
    }
}

#[inline(always)]
fn symbol(code: i64) -> u64 {
    (code << 1 ^ code >> 63) as u64
}

#[inline(always)]
fn code_of(symbol: u32) -> i64 {
    i64::from(symbol >> 1) ^ -i64::from(symbol & 1)
}

/// Whether the code is written as its symbol.
#[inline(always)]
fn fits(code: i64, escape: u32) -> bool {
    let largest = i64::from(escape >> 1);
    -largest <= code && code <= largest
}

/// The symbol of escaped codes.
fn escape(bits: u32) -> Result<u32, KernelError> {
    if (1..=32).contains(&bits) {
        Ok(u32::MAX >> (32 - bits))
    } else {
        Err(KernelError::new("bits", "between 1 and 32", bits))
    }
}

fn symbol_bytes(count: usize, bits: u32) -> usize {
    (count * bits as usize).div_ceil(8)
}
