//! The words of one node, one after another, for samplers of other crates.

use std::convert::Infallible;
use std::fmt;

use rand::rand_core::block::{BlockRng, Generator};
use rand::{TryCryptoRng, TryRng};
use zeroize::Zeroize;

use super::{BLOCK_BYTES, Stream};

/// Blocks of a stream that are made at once.
const BLOCKS_AT_ONCE: usize = 4;
const WORDS_AT_ONCE: usize = BLOCKS_AT_ONCE * BLOCK_BYTES / 4;

/// A node's random words in order, from the first on: a cryptographic generator of `rand`, which makes the same values
/// on every machine. Made by [`Stream::words_of`].
///
/// # Panics
/// After the 2^34 words of a node: a stream never repeats itself.
pub struct Words<'s>(BlockRng<Blocks<'s>>);

impl Stream {
    /// The words of `node` as a generator of `rand`, on which the distributions of `rand_distr` and your own samplers
    /// draw. It begins at the node's first word each time, and kernels draw the same words: give each use a purpose of
    /// its own.
    ///
    /// The distributions of `rand_distr` round as their authors chose: what they draw has no proof of privacy here.
    #[must_use]
    pub fn words_of(&self, node: u32) -> Words<'_> {
        Words(BlockRng::new(Blocks {
            stream: self,
            node,
            next: 0,
        }))
    }
}

struct Blocks<'s> {
    stream: &'s Stream,
    node: u32,
    next: u32,
}

impl Generator for Blocks<'_> {
    type Output = [u32; WORDS_AT_ONCE];

    fn generate(&mut self, output: &mut Self::Output) {
        let end = self.next + BLOCKS_AT_ONCE as u32;
        assert!(
            Stream::holds("node", u64::from(end)).is_ok(),
            "all 2^34 words of this node are drawn; take a stream of another round or purpose"
        );
        let mut bytes = [0; WORDS_AT_ONCE * 4];
        self.stream.fill(self.node, self.next, &mut bytes);
        for (word, bytes) in output.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        bytes.zeroize();
        self.next = end;
    }

    fn drop(&mut self, output: &mut Self::Output) {
        output.zeroize();
    }
}

impl TryRng for Words<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.next_word())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64_from_u32())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill_bytes(bytes);
        Ok(())
    }
}

impl TryCryptoRng for Words<'_> {}

impl fmt::Debug for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Blocks { stream, node, .. } = &self.0.core;
        f.debug_struct("Words")
            .field("stream", stream)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Cipher, Key};
    use rand::Rng;

    #[test]
    fn the_generator_gives_the_words_of_its_node_in_order() {
        for cipher in [Cipher::Aes, Cipher::ChaCha20] {
            let stream = Key::new(cipher, &[7; 32]).stream(3, 1).unwrap();
            let mut words = vec![0; 3 * WORDS_AT_ONCE];
            stream.words_into(5, 0, &mut words).unwrap();
            let mut drawn = stream.words_of(5);
            let mut expected = words.into_iter();
            let mut take = || expected.next().unwrap();
            for _ in 0..WORDS_AT_ONCE - 1 {
                assert_eq!(drawn.next_u32(), take());
            }
            let pair = u64::from(take()) | u64::from(take()) << 32; // of two blocks
            assert_eq!(drawn.next_u64(), pair);
            let mut bytes = [0; 6]; // the rest of the second word is left out
            drawn.fill_bytes(&mut bytes);
            let (first, second) = (take().to_le_bytes(), take().to_le_bytes());
            assert_eq!((&bytes[..4], &bytes[4..]), (&first[..], &second[..2]));
            assert_eq!(drawn.next_u32(), take());
        }
    }

    #[test]
    #[should_panic(expected = "all 2^34 words")]
    fn a_generator_stops_before_it_repeats_itself() {
        let stream = Key::new(Cipher::Aes, &[7; 32]).stream(3, 1).unwrap();
        let mut drawn = stream.words_of(0);
        drawn.0.core.next = (1 << 30) - BLOCKS_AT_ONCE as u32;
        drawn.fill_bytes(&mut [0; 4 * WORDS_AT_ONCE]);
        drawn.next_u32();
    }
}
