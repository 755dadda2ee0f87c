//! Keyed cryptographic streams: the only source of randomness of this crate.
//!
//! A 256-bit [`Key`] opens one [`Stream`] for each purpose and round, and a stream holds one sequence of
//! random words for each node. Word `k` of a node depends on (key, cipher, purpose, round, node, `k`) and on
//! nothing else, so that any part of a sequence can be drawn by any thread, in any order.
//!
//! The sequence is the key stream of AES-256 in counter mode with a 32-bit big-endian block counter from 0 (NIST
//! SP 800-38A, 6.5), or that of `ChaCha20` (RFC 8439); the 96-bit nonce is (purpose, round, node), each number
//! big-endian. AES instructions are used where the processor has them; the bits are the same without.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use aes::Aes256Enc;
use cipher::array::Array;
use cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

use crate::parallel::vectorized;
use crate::{KernelError, chacha20};

/// Bytes of the blocks in which a stream is addressed: one of `ChaCha20`, four of AES.
pub(crate) const BLOCK_BYTES: usize = chacha20::BLOCK;

/// Blocks of one node's sequence: as far as the 32-bit counter of AES reaches, 64 GiB.
const BLOCKS: u64 = 1 << 30;

/// How the file of a key begins.
const AES_FILE: &[u8] = b"dpmesh key 1, aes\n";
const CHACHA20_FILE: &[u8] = b"dpmesh key 1, chacha20\n";

const WORDS_PER_BLOCK: u64 = BLOCK_BYTES as u64 / 4;

/// Which cipher makes the key stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256 in counter mode: the fastest on processors with AES instructions.
    Aes,
    /// `ChaCha20`: fast without them.
    ChaCha20,
}

/// A secret of 256 bits and the cipher that it is for. Cleared from memory when dropped; never printed.
#[derive(Clone)]
pub struct Key {
    cipher: Cipher,
    bytes: Zeroizing<[u8; 32]>,
}

impl Key {
    /// A key from the operating system's generator: what a private release needs.
    ///
    /// # Errors
    /// If the operating system has no randomness to give.
    pub fn generate(cipher: Cipher) -> io::Result<Key> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes)?;
        Ok(Key { cipher, bytes })
    }

    /// The key with these bytes: for runs that others can repeat, and that are no private release then.
    pub fn new(cipher: Cipher, bytes: &[u8; 32]) -> Key {
        Key {
            cipher,
            bytes: Zeroizing::new(*bytes),
        }
    }

    /// Writes the key into a new file that only its owner can read. Who reads it can subtract all noise: keep it
    /// as you keep the data, and delete it when the run is over.
    ///
    /// # Errors
    /// If there is such a file already, or it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let name = match self.cipher {
            Cipher::Aes => AES_FILE,
            Cipher::ChaCha20 => CHACHA20_FILE,
        };
        file.write_all(name)?;
        file.write_all(&*self.bytes)?;
        file.sync_all()
    }

    /// The key that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// If the file cannot be read, or is no key.
    pub fn load(path: &Path) -> io::Result<Key> {
        let no_key = || io::Error::new(io::ErrorKind::InvalidData, "not a key of dpmesh");
        let content = Zeroizing::new(fs::read(path)?);
        let (name, bytes) = content.split_last_chunk::<32>().ok_or_else(no_key)?;
        match name {
            AES_FILE => Ok(Key::new(Cipher::Aes, bytes)),
            CHACHA20_FILE => Ok(Key::new(Cipher::ChaCha20, bytes)),
            _ => Err(no_key()),
        }
    }

    /// The cipher that this key is for.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The stream for one purpose in one round. Noise of a release must come from a stream that nothing else
    /// draws from.
    ///
    /// # Errors
    /// If `purpose` is 0, which is reserved.
    pub fn stream(&self, purpose: u32, round: u32) -> Result<Stream, KernelError> {
        if purpose == 0 {
            return Err(KernelError::new("purpose", "at least 1", purpose));
        }
        let schedule = match self.cipher {
            Cipher::Aes => Schedule::Aes(Box::new(Aes256Enc::new((&*self.bytes).into()))),
            Cipher::ChaCha20 => Schedule::ChaCha20(self.bytes.clone()),
        };
        Ok(Stream {
            schedule,
            purpose,
            round,
            nodes: None,
        })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { cipher, bytes: _ } = self;
        f.debug_struct("Key")
            .field("cipher", cipher)
            .finish_non_exhaustive()
    }
}

enum Schedule {
    Aes(Box<Aes256Enc>),
    ChaCha20(Zeroizing<[u8; 32]>),
}

/// The random words of every node for one purpose in one round; see the [module](self).
pub struct Stream {
    schedule: Schedule,
    purpose: u32,
    round: u32,
    nodes: Option<Arc<[u32]>>,
}

impl Stream {
    /// The same words, for matrices whose rows belong to these nodes: where a process holds some nodes of many,
    /// its rows are drawn as they would be among all. A kernel that is told its nodes goes by those.
    #[must_use]
    pub fn for_nodes(self, nodes: Arc<[u32]>) -> Stream {
        Stream {
            nodes: Some(nodes),
            ..self
        }
    }

    /// The nodes that rows belong to; `None` for 0, 1, ..
    pub(crate) fn nodes(&self) -> Option<&[u32]> {
        self.nodes.as_deref()
    }

    /// Fills `out` with the words of `node` from word number `first` on.
    ///
    /// # Errors
    /// If they reach beyond the 2^34 words of a node: a stream never repeats itself.
    pub fn words_into(&self, node: u32, first: u64, out: &mut [u32]) -> Result<(), KernelError> {
        let end = first.saturating_add(out.len() as u64);
        Stream::holds("out", end.div_ceil(WORDS_PER_BLOCK))?;
        let mut buffer = [0; 64 * BLOCK_BYTES];
        let (mut next, mut out) = (first, out);
        while !out.is_empty() {
            let skipped = (next % WORDS_PER_BLOCK) as usize;
            let (part, rest) = out.split_at_mut(out.len().min(buffer.len() / 4 - skipped));
            let bytes = (4 * (skipped + part.len())).next_multiple_of(BLOCK_BYTES);
            self.fill(node, (next / WORDS_PER_BLOCK) as u32, &mut buffer[..bytes]);
            for (word, bytes) in part.iter_mut().zip(&buffer.as_chunks().0[skipped..]) {
                *word = u32::from_le_bytes(*bytes);
            }
            next += part.len() as u64;
            out = rest;
        }
        Ok(())
    }

    /// Whether `other` has the same purpose and round, and so, under the same key, the same words.
    pub(crate) fn is_like(&self, other: &Stream) -> bool {
        (self.purpose, self.round) == (other.purpose, other.round)
    }

    /// Fails if a node's sequence has not so many blocks of [`BLOCK_BYTES`] for `argument`.
    pub(crate) fn holds(argument: &'static str, blocks: u64) -> Result<(), KernelError> {
        if blocks <= BLOCKS {
            return Ok(());
        }
        let wanted = format!("at most {BLOCKS} blocks of a stream for each node");
        Err(KernelError::new(argument, wanted, blocks))
    }

    /// Fills `out` with the bytes of `node` from block number `first` on. The caller has made sure that the
    /// sequence [`holds`](Self::holds) them and that they are a multiple of 16.
    pub(crate) fn fill(&self, node: u32, first: u32, out: &mut [u8]) {
        let row_bytes = out.len();
        self.fill_rows(|_| node, first, row_bytes, out);
    }

    /// As [`fill`](Self::fill), for several rows of `row_bytes` each.
    pub(crate) fn fill_rows(
        &self,
        node_of: impl Fn(usize) -> u32,
        first: u32,
        row_bytes: usize,
        out: &mut [u8],
    ) {
        debug_assert!(u64::from(first) + row_bytes.div_ceil(BLOCK_BYTES) as u64 <= BLOCKS);
        debug_assert!(row_bytes.is_multiple_of(16) && out.len().is_multiple_of(16));
        let nonce_of = |row| [self.purpose, self.round, node_of(row)];
        let row_bytes = row_bytes.max(1);
        match &self.schedule {
            Schedule::Aes(schedule) => {
                vectorized!(for (row, out) in out.chunks_mut(row_bytes).enumerate() {
                    write_counters(nonce_of(row), 4 * first, out);
                });
                schedule.encrypt_blocks(Array::slice_as_chunks_mut(out).0);
            }
            Schedule::ChaCha20(key) => {
                let rows = out.chunks_mut(row_bytes).enumerate();
                chacha20::key_stream(
                    key,
                    rows.flat_map(|(row, out)| {
                        // The cipher reads its nonce as little-endian words.
                        let [purpose, round, node] = nonce_of(row).map(u32::swap_bytes);
                        let blocks = (first..).zip(out.chunks_mut(BLOCK_BYTES));
                        blocks.map(move |(block, bytes)| ([block, purpose, round, node], bytes))
                    }),
                );
            }
        }
    }
}

/// The counter blocks that AES turns into the key stream.
#[inline(always)]
fn write_counters(nonce: [u32; 3], first: u32, out: &mut [u8]) {
    let [purpose, round, node] = nonce.map(u32::to_be_bytes);
    for (i, block) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // Word by word: the compiler makes better code of it than of one number of 128 bits.
        block[..4].copy_from_slice(&purpose);
        block[4..8].copy_from_slice(&round);
        block[8..12].copy_from_slice(&node);
        block[12..].copy_from_slice(&(first + i as u32).to_be_bytes());
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("purpose", &self.purpose)
            .field("round", &self.round)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctr::Ctr32BE;
    use ctr::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    fn bytes_at(key: &str, cipher: Cipher, nonce: [u32; 3], first: u64, len: usize) -> Vec<u8> {
        let key = Key::new(cipher, &hex(key).try_into().unwrap());
        let mut words = vec![0; len / 4];
        let stream = key.stream(nonce[0], nonce[1]).unwrap();
        stream.words_into(nonce[2], first, &mut words).unwrap();
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    /// NIST SP 800-38A, F.5.5: counter block f0f1..feff and the three after it.
    #[test]
    fn aes_is_that_of_nist() {
        let plain = hex(
            "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51
             30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710",
        );
        let cipher = hex(
            "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5
             2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6",
        );
        let key_stream = bytes_at(
            "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
            Cipher::Aes,
            [0xf0f1f2f3, 0xf4f5f6f7, 0xf8f9fafb],
            4 * 0xfcfdfeff,
            64,
        );
        let expected: Vec<u8> = plain.iter().zip(cipher).map(|(p, c)| p ^ c).collect();
        assert_eq!(key_stream, expected);
    }

    /// RFC 8439, 2.3.2: block 1 of nonce 00000009 0000004a 00000000.
    #[test]
    fn chacha20_is_that_of_the_rfc() {
        let key_stream = bytes_at(
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
            Cipher::ChaCha20,
            [0x00000009, 0x0000004a, 0],
            16,
            64,
        );
        let expected = hex(
            "10f1e7e4d13b5915500fdd1fa32071c4 c7d1f4c733c068030422aa9ac3d46c4e
             d2826446079faa0914c2d705d98b02a2 b5129cd1de164eb9cbd083e8a2503c4e",
        );
        assert_eq!(key_stream, expected);
    }

    proptest! {
        #[test]
        fn aes_equals_the_ctr_crate(key: [u8; 32], nonce: [u32; 3], first in 0..BLOCKS - 9) {
            prop_assume!(nonce[0] != 0);
            let stream = Key::new(Cipher::Aes, &key).stream(nonce[0], nonce[1]).unwrap();
            let mut words = [0; 130];
            let first_word = first * WORDS_PER_BLOCK;
            stream.words_into(nonce[2], first_word, &mut words).unwrap();
            let mut counter = [0; 16];
            counter[..12].copy_from_slice(nonce.map(u32::to_be_bytes).as_flattened());
            let mut cipher = Ctr32BE::<aes::Aes256>::new(&key.into(), &counter.into());
            cipher.seek(4 * first_word);
            let mut bytes = [0; 4 * 130];
            cipher.apply_keystream(&mut bytes);
            let words = words.map(u32::to_le_bytes);
            prop_assert_eq!(words.as_flattened(), bytes);
        }

        #[test]
        fn any_part_equals_the_whole(
            first in 0_usize..3000,
            len in 0_usize..2500,
            node: u32,
            aes: bool,
        ) {
            let cipher = if aes { Cipher::Aes } else { Cipher::ChaCha20 };
            let stream = Key::new(cipher, &[7; 32]).stream(3, 5).unwrap();
            let mut whole = vec![0; 5500];
            stream.words_into(node, 0, &mut whole).unwrap();
            let mut part = vec![0; len];
            stream.words_into(node, first as u64, &mut part).unwrap();
            prop_assert_eq!(&part, &whole[first..first + len]);
        }
    }

    #[test]
    fn key_purpose_round_node_and_cipher_all_matter() {
        let words = |cipher, key, purpose, round, node| {
            let stream = Key::new(cipher, &[key; 32]).stream(purpose, round).unwrap();
            let mut words = [0; 8];
            stream.words_into(node, 0, &mut words).unwrap();
            words
        };
        let all = [
            words(Cipher::Aes, 1, 2, 3, 4),
            words(Cipher::ChaCha20, 1, 2, 3, 4),
            words(Cipher::Aes, 5, 2, 3, 4),
            words(Cipher::Aes, 1, 5, 3, 4),
            words(Cipher::Aes, 1, 2, 5, 4),
            words(Cipher::Aes, 1, 2, 3, 5),
            words(Cipher::Aes, 1, 3, 2, 4),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn a_stream_ends_and_never_wraps() {
        let last = (1 << 34) - 1;
        for cipher in [Cipher::Aes, Cipher::ChaCha20] {
            let stream = Key::new(cipher, &[7; 32]).stream(1, 0).unwrap();
            assert!(stream.words_into(0, last, &mut [0; 1]).is_ok());
            let error = stream.words_into(0, last, &mut [0; 2]).unwrap_err();
            assert_eq!(error.argument, "out");
            assert!(stream.words_into(0, u64::MAX, &mut [0; 2]).is_err());
        }
    }

    #[test]
    fn generated_keys_differ() {
        let word = || {
            let stream = Key::generate(Cipher::Aes).unwrap().stream(1, 0).unwrap();
            let mut words = [0; 4];
            stream.words_into(0, 0, &mut words).unwrap();
            words
        };
        assert_ne!(word(), word());
    }

    #[test]
    fn a_saved_key_is_the_same_key_in_a_file_of_its_own() {
        let folder = std::env::temp_dir().join(format!("dpmesh-key-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for cipher in [Cipher::Aes, Cipher::ChaCha20] {
            let path = folder.join(format!("{cipher:?}"));
            let key = Key::generate(cipher).unwrap();
            key.save(&path).unwrap();
            let loaded = Key::load(&path).unwrap();
            assert_eq!(loaded.cipher(), cipher);
            assert_eq!(*loaded.bytes, *key.bytes);
            let error = Key::generate(cipher).unwrap().save(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            fs::write(&path, b"dpmesh key 2, aes").unwrap();
            let error = Key::load(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn purpose_0_is_refused_and_no_secret_is_printed() {
        let key = Key::new(Cipher::Aes, &[0xab; 32]);
        let error = key.stream(0, 0).unwrap_err();
        assert_eq!(error.to_string(), "purpose: wanted at least 1, got 0");
        assert_eq!(
            format!("{key:?} {:?}", key.stream(1, 2).unwrap()),
            "Key { cipher: Aes, .. } Stream { purpose: 1, round: 2, .. }"
        );
    }
}
