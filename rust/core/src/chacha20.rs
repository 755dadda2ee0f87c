//! The block function of `ChaCha20` (RFC 8439) for as many blocks side by side as the processor's vectors have lanes,
//! each lane with a nonce and a counter of its own. The `chacha20` crate, to which the tests compare it, computes
//! the blocks of one nonce only and is 1.5 (AVX2) to 3 times (AVX-512) as slow.

use pulp::{Arch, Simd, WithSimd};

/// Bytes of one block.
pub(crate) const BLOCK: usize = 64;

/// Most lanes that a vector has: 512 bits.
const LANES: usize = 16;

/// "expand 32-byte k"
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Words 12 to 15 of the state: the counter of a block and its nonce.
pub(crate) type Position = [u32; 4];

/// Fills each of the pieces, of 16 words or less, with the key stream of the block at its position.
pub(crate) fn key_stream<'a>(
    key: &[u8; 32],
    blocks: impl Iterator<Item = (Position, &'a mut [u8])>,
) {
    Arch::new().dispatch(KeyStream { key, blocks });
}

struct KeyStream<'k, I> {
    key: &'k [u8; 32],
    blocks: I,
}

impl<'a, I: Iterator<Item = (Position, &'a mut [u8])>> WithSimd for KeyStream<'_, I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let mut constants = [0; 12];
        constants[..4].copy_from_slice(&CONSTANTS);
        for (word, bytes) in constants[4..].iter_mut().zip(self.key.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        let mut state = [simd.splat_u32s(0); 16];
        for (word, constant) in state.iter_mut().zip(constants) {
            *word = simd.splat_u32s(constant);
        }
        const { assert!(S::U32_LANES <= LANES) };
        let mut pieces: [&mut [u8]; LANES] = Default::default();
        let mut positions = [[0; LANES]; 4];
        let mut words = [[0; LANES]; 16];
        loop {
            let mut taken = 0;
            for (position, piece) in self.blocks.by_ref().take(S::U32_LANES) {
                for (word, value) in positions.iter_mut().zip(position) {
                    word[taken] = value;
                }
                pieces[taken] = piece;
                taken += 1;
            }
            if taken == 0 {
                return;
            }
            for (word, lanes) in state[12..].iter_mut().zip(&positions) {
                *word = S::as_simd_u32s(lanes).0[0];
            }
            for (lanes, word) in words.iter_mut().zip(block(simd, &state)) {
                S::as_mut_simd_u32s(lanes).0[0] = word;
            }
            for (lane, piece) in pieces[..taken].iter_mut().enumerate() {
                for (bytes, lanes) in piece.as_chunks_mut().0.iter_mut().zip(&words) {
                    *bytes = lanes[lane].to_le_bytes();
                }
            }
        }
    }
}

/// RFC 8439, 2.3: ten double rounds, then the sum with the state before them.
#[inline(always)]
fn block<S: Simd>(simd: S, state: &[S::u32s; 16]) -> [S::u32s; 16] {
    let mut x = *state;
    for _ in 0..10 {
        quarter_rounds(simd, &mut x, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]);
        quarter_rounds(simd, &mut x, [5, 6, 7, 4], [10, 11, 8, 9], [15, 12, 13, 14]);
    }
    for (x, state) in x.iter_mut().zip(state) {
        *x = simd.add_u32s(*x, *state);
    }
    x
}

/// RFC 8439, 2.1, on (0, `b[0]`, `c[0]`, `d[0]`) to (3, `b[3]`, `c[3]`, `d[3]`), interleaved to hide latencies.
#[inline(always)]
fn quarter_rounds<S: Simd>(
    simd: S,
    x: &mut [S::u32s; 16],
    b: [usize; 4],
    c: [usize; 4],
    d: [usize; 4],
) {
    let a = [0, 1, 2, 3];
    add_xor_rotate(simd, x, a, b, d, 16);
    add_xor_rotate(simd, x, c, d, b, 12);
    add_xor_rotate(simd, x, a, b, d, 8);
    add_xor_rotate(simd, x, c, d, b, 7);
}

/// `sum += term; turned = (turned ^ sum) <<< bits`, four times.
#[inline(always)]
fn add_xor_rotate<S: Simd>(
    simd: S,
    x: &mut [S::u32s; 16],
    sum: [usize; 4],
    term: [usize; 4],
    turned: [usize; 4],
    bits: u32,
) {
    for i in 0..4 {
        x[sum[i]] = simd.add_u32s(x[sum[i]], x[term[i]]);
        let mixed = simd.xor_u32s(x[turned[i]], x[sum[i]]);
        let high = simd.wrapping_dyn_shl_u32s(mixed, simd.splat_u32s(bits));
        let low = simd.wrapping_dyn_shr_u32s(mixed, simd.splat_u32s(32 - bits));
        x[turned[i]] = simd.or_u32s(high, low);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::instruction_sets;
    use ::chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_equal_those_of_the_chacha20_crate(
            key: [u8; 32],
            positions in prop::collection::vec((any::<[u32; 4]>(), 0..=16_usize), 0..100),
        ) {
            let fill = |set: Arch| {
                let mut filled = vec![[0xaa; BLOCK]; positions.len()];
                let blocks = filled.iter_mut().zip(&positions);
                let blocks = blocks.map(|(block, (place, len))| (*place, &mut block[..4 * len]));
                set.dispatch(KeyStream { key: &key, blocks });
                filled
            };
            let mut results = instruction_sets().into_iter().map(fill);
            let blocks = results.next().unwrap();
            prop_assert!(results.all(|result| result == blocks));
            for (block, ([counter, nonce @ ..], len)) in blocks.iter().zip(&positions) {
                let nonce = nonce.map(u32::to_le_bytes);
                let nonce: &[u8; 12] = nonce.as_flattened().try_into().unwrap();
                let mut cipher = ::chacha20::ChaCha20::new(&key.into(), nonce.into());
                let mut expected = [0; BLOCK];
                cipher.seek(u64::from(*counter) * BLOCK as u64);
                cipher.apply_keystream(&mut expected);
                expected[4 * len..].fill(0xaa);
                prop_assert_eq!(block, &expected);
            }
        }
    }
}
