//! The block function of `ChaCha20` (RFC 8439) for one block in each lane of the processor's vectors, each with its own
//! nonce and counter. The `chacha20` crate, to which the tests compare it, computes blocks of a single nonce at a time
//! and, unless the compiler is told to use AVX-512, with AVX2 at most. With AVX-512 at hand it takes 2.1 to 2.3 times as
//! long on rows of a thousand words or more, half as long on a single block drawn alone, and 1.1 (10 numbers a node) to
//! 1.4 times (47,236) as long in a whole run of online learning. `cargo bench -p dpmesh-benches --bench rivals` measures it.

use pulp::{Simd, WithSimd};

use zeroize::optimization_barrier;

use crate::instructions::instruction_set;

/// Bytes of one block.
pub(crate) const BLOCK: usize = 64;

/// Bytes written at once; the length of a row is a multiple of this.
const QUARTER: usize = 16;

/// The most lanes of a vector: those of 512 bits.
const LANES: usize = 16;

/// The most sets of blocks, one block a lane, computed together: one set computes while another waits for a result.
const MOST_SETS: usize = 2;

/// "expand 32-byte k"
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Words 12 to 15 of the state: the counter of a block and its nonce.
pub(crate) type Position = [u32; 4];

/// The positions of blocks computed together, word by word.
type Positions = [[u32; MOST_SETS * LANES]; 4];

/// Fills each row with the key stream that begins at its position.
pub(crate) fn key_stream<'a>(key: &[u8; 32], rows: impl Iterator<Item = (Position, &'a mut [u8])>) {
    instruction_set().dispatch(KeyStream { key, rows });
}

struct KeyStream<'k, I> {
    key: &'k [u8; 32],
    rows: I,
}

impl<'a, I: Iterator<Item = (Position, &'a mut [u8])>> WithSimd for KeyStream<'_, I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        const { assert!(S::U32_LANES <= LANES) };
        let mut cipher = Cipher::new(simd, self.key);
        // Only AVX-512 has the registers for two sets.
        let sets = if S::U32_LANES == LANES { MOST_SETS } else { 1 };
        let mut positions = [[0; MOST_SETS * LANES]; 4];
        let mut pieces: [&mut [[u8; QUARTER]]; MOST_SETS * LANES] = Default::default();
        let mut gathered = 0;
        for (mut position, mut row) in self.rows {
            if sets == MOST_SETS {
                row = cipher.fill::<MOST_SETS>(&mut position, row);
            }
            row = cipher.fill::<1>(&mut position, row);
            for piece in row.chunks_mut(BLOCK) {
                for (word, value) in positions.iter_mut().zip(position) {
                    word[gathered] = value;
                }
                pieces[gathered] = piece.as_chunks_mut().0;
                position[0] = position[0].wrapping_add(1);
                gathered += 1;
                if gathered == sets * S::U32_LANES {
                    cipher.fill_pieces(&positions, &mut pieces[..gathered]);
                    gathered = 0;
                }
            }
        }
        cipher.fill_pieces(&positions, &mut pieces[..gathered]);
        cipher.clear();
    }
}

/// The words of the state that all blocks of a key share, in all lanes.
struct Cipher<S: Simd> {
    simd: S,
    shared: [S::u32s; 12],
}

impl<S: Simd> Cipher<S> {
    #[inline(always)]
    fn new(simd: S, key: &[u8; 32]) -> Self {
        let mut shared = [simd.splat_u32s(0); 12];
        let key = key
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word));
        for (lanes, word) in shared.iter_mut().zip(CONSTANTS.into_iter().chain(key)) {
            *lanes = simd.splat_u32s(word);
        }
        Cipher { simd, shared }
    }

    /// Removes the key from the stack; a register may have been stored elsewhere.
    ///
    /// Whole vectors are written: word by word, which `Zeroize` does, takes a tenth of the time of many short rows.
    #[inline(always)]
    fn clear(&mut self) {
        self.shared = [self.simd.splat_u32s(0); 12];
        optimization_barrier(&self.shared);
    }

    /// Fills as much of a row as whole rounds of `SETS` sets cover, advances its position, and returns the rest.
    #[inline(always)]
    fn fill<'r, const SETS: usize>(
        &self,
        position: &mut Position,
        row: &'r mut [u8],
    ) -> &'r mut [u8] {
        let together = SETS * S::U32_LANES;
        let mut positions = position.map(|word| [word; MOST_SETS * LANES]);
        let mut parts = row.chunks_exact_mut(together * BLOCK);
        for part in &mut parts {
            for (counter, lane) in positions[0].iter_mut().zip(0..) {
                *counter = position[0].wrapping_add(lane);
            }
            let blocks: &mut [[[u8; QUARTER]; 4]] = part.as_chunks_mut().0.as_chunks_mut().0;
            let blocks = &mut blocks[..together];
            self.blocks::<SETS>(
                &positions,
                #[inline(always)]
                |lane, quarter, bytes| blocks[lane][quarter] = bytes,
            );
            position[0] = position[0].wrapping_add(together as u32);
        }
        parts.into_remainder()
    }

    /// Fills pieces of up to one block.
    #[inline(always)]
    fn fill_pieces(&self, positions: &Positions, pieces: &mut [&mut [[u8; QUARTER]]]) {
        if pieces.len() > S::U32_LANES {
            self.gather::<MOST_SETS>(positions, pieces);
        } else if !pieces.is_empty() {
            self.gather::<1>(positions, pieces);
        }
    }

    #[inline(always)]
    fn gather<const SETS: usize>(
        &self,
        positions: &Positions,
        pieces: &mut [&mut [[u8; QUARTER]]],
    ) {
        self.blocks::<SETS>(
            positions,
            #[inline(always)]
            |lane, quarter, bytes| {
                let piece = pieces.get_mut(lane);
                if let Some(place) = piece.and_then(|piece| piece.get_mut(quarter)) {
                    *place = bytes;
                }
            },
        );
    }

    /// RFC 8439, 2.3: ten double rounds, then the initial state is added. `store(lane, quarter, bytes)` gets the
    /// quarters of the blocks.
    #[inline(always)]
    fn blocks<const SETS: usize>(
        &self,
        positions: &Positions,
        mut store: impl FnMut(usize, usize, [u8; QUARTER]),
    ) {
        let simd = self.simd;
        let mut state = [[simd.splat_u32s(0); 16]; SETS];
        for (set, state) in state.iter_mut().enumerate() {
            state[..12].copy_from_slice(&self.shared);
            for (word, lanes) in state[12..].iter_mut().zip(positions) {
                *word = S::as_simd_u32s(&lanes[set * S::U32_LANES..]).0[0];
            }
        }
        let mut x = state;
        for _ in 0..10 {
            quarter_rounds(simd, &mut x, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]);
            quarter_rounds(simd, &mut x, [5, 6, 7, 4], [10, 11, 8, 9], [15, 12, 13, 14]);
        }
        for (set, (x, state)) in x.iter().zip(&state).enumerate() {
            let mut words = [[0_u32; LANES]; 16];
            for (lanes, (x, state)) in words.iter_mut().zip(x.iter().zip(state)) {
                S::as_mut_simd_u32s(lanes).0[0] = simd.add_u32s(*x, *state);
            }
            by_lane::<S>(
                &words,
                #[inline(always)]
                |lane, quarter, bytes| store(set * S::U32_LANES + lane, quarter, bytes),
            );
        }
    }
}

/// Stores the words lane by lane, four at a time.
#[inline(always)]
fn by_lane<S: Simd>(
    words: &[[u32; LANES]; 16],
    mut store: impl FnMut(usize, usize, [u8; QUARTER]),
) {
    for (quarter, words) in words.as_chunks::<4>().0.iter().enumerate() {
        #[cfg(target_arch = "x86_64")]
        if S::U32_LANES >= 8
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            for first in (0..S::U32_LANES).step_by(8) {
                let columns = transposed(
                    simd,
                    words.map(|lanes| *lanes[first..].first_chunk().unwrap()),
                );
                for (i, [low, high]) in columns.into_iter().enumerate() {
                    store(first + i, quarter, low);
                    store(first + 4 + i, quarter, high);
                }
            }
            continue;
        }
        for lane in 0..S::U32_LANES {
            let bytes = words.map(|lanes| lanes[lane].to_le_bytes());
            store(lane, quarter, *bytes.as_flattened().first_chunk().unwrap());
        }
    }
}

/// Four words of eight lanes each, regrouped: the four words of lanes 0 and 4, of lanes 1 and 5, ..
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(simd: pulp::x86::V3, words: [[u32; 8]; 4]) -> [[[u8; QUARTER]; 2]; 4] {
    use pulp::bytemuck::cast;
    let avx = simd.avx;
    let [a, b, c, d] = words.map(cast);
    let [ab_low, ab_high] = [avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b)];
    let [cd_low, cd_high] = [avx._mm256_unpacklo_ps(c, d), avx._mm256_unpackhi_ps(c, d)];
    [
        cast(avx._mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low)),
        cast(avx._mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low)),
        cast(avx._mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high)),
        cast(avx._mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high)),
    ]
}

/// RFC 8439, 2.1, on (0, `b[0]`, `c[0]`, `d[0]`) to (3, `b[3]`, `c[3]`, `d[3]`), interleaved to hide latencies.
#[inline(always)]
fn quarter_rounds<S: Simd, const SETS: usize>(
    simd: S,
    x: &mut [[S::u32s; 16]; SETS],
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

/// `sum += term; turned = (turned ^ sum) <<< bits`, four times in each set.
#[inline(always)]
fn add_xor_rotate<S: Simd, const SETS: usize>(
    simd: S,
    x: &mut [[S::u32s; 16]; SETS],
    sum: [usize; 4],
    term: [usize; 4],
    turned: [usize; 4],
    bits: u32,
) {
    for x in x {
        for i in 0..4 {
            x[sum[i]] = simd.add_u32s(x[sum[i]], x[term[i]]);
            let mixed = simd.xor_u32s(x[turned[i]], x[sum[i]]);
            let high = simd.wrapping_dyn_shl_u32s(mixed, simd.splat_u32s(bits));
            let low = simd.wrapping_dyn_shr_u32s(mixed, simd.splat_u32s(32 - bits));
            x[turned[i]] = simd.or_u32s(high, low);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::instruction_sets;
    use ::chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
    use proptest::prelude::*;
    use pulp::Arch;

    proptest! {
        #[test]
        fn blocks_equal_those_of_the_chacha20_crate(
            key: [u8; 32],
            rows in prop::collection::vec(
                (any::<[u32; 3]>(), 0..1_u32 << 31, prop_oneof![0..9_usize, 0..400_usize]),
                0..40,
            ),
        ) {
            let fill = |set: Arch| {
                let mut filled: Vec<_> = rows.iter().map(|row| vec![0xaa; QUARTER * row.2]).collect();
                let rows = rows.iter().zip(&mut filled).map(|(([a, b, c], counter, _), row)| {
                    ([*counter, *a, *b, *c], &mut row[..])
                });
                set.dispatch(KeyStream { key: &key, rows });
                filled
            };
            let mut results = instruction_sets().into_iter().map(fill);
            let filled = results.next().unwrap();
            prop_assert!(results.all(|result| result == filled));
            for (row, (nonce, counter, _)) in filled.iter().zip(&rows) {
                let nonce = nonce.map(u32::to_le_bytes);
                let nonce: &[u8; 12] = nonce.as_flattened().try_into().unwrap();
                let mut cipher = ::chacha20::ChaCha20::new(&key.into(), nonce.into());
                let mut expected = vec![0; row.len()];
                cipher.seek(u64::from(*counter) * BLOCK as u64);
                cipher.apply_keystream(&mut expected);
                prop_assert_eq!(row, &expected);
            }
        }
    }
}
