//! Keyed cryptographic streams: the only source of randomness of this crate.
//!
//! A 256-bit [`Key`] opens one [`Stream`] for each purpose and round, and a stream holds one sequence of
//! random words for each node. Word `k` of a node depends on (key, cipher, purpose, round, node, `k`) and on
//! nothing else, so that any part of a sequence can be drawn by any thread, in any order.
//!
//! The sequence is the key stream of AES-256 in counter mode with a 32-bit big-endian block counter from 0 (NIST
//! SP 800-38A, 6.5), or that of `ChaCha20` (RFC 8439); the 96-bit nonce is (purpose, round, node), each number
//! big-endian. AES instructions are used where the processor has them; the bits are the same without them.
//!
//! ```
//! use dpmesh_core::stream::{Cipher, Key};
//!
//! let key = Key::new(Cipher::ChaCha20, &[0; 32]); // known to all: for a test
//! let mut words = [0; 4];
//! key.stream(1, 0)?.words_into(3, 10, &mut words)?; // of node 3, from word 10 on
//! let mut again = [0; 2];
//! key.stream(1, 0)?.words_into(3, 12, &mut again)?;
//! assert_eq!(words[2..], again);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use aes::Aes256Enc;
use cipher::array::Array;
use cipher::{BlockCipherEncrypt, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::instructions::vectorized;
use crate::{ErrorKind, KernelError, chacha20};

mod words;

pub use words::Words;

/// Bytes of the blocks in which a stream is addressed: one of `ChaCha20`, four of AES.
pub(crate) const BLOCK_BYTES: usize = chacha20::BLOCK;

/// Blocks of one node's sequence: as many as the 32-bit counter of AES can address, 64 GiB.
const BLOCKS: u64 = 1 << 30;

/// Blocks that are made at once, by either cipher with any instruction set.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[4, 8, 16, 32, 64, 1 << 12];

/// How a key file begins.
const AES_FILE: &[u8] = b"dpmesh key 1, aes\n";
const CHACHA20_FILE: &[u8] = b"dpmesh key 1, chacha20\n";

const WORDS_PER_BLOCK: u64 = BLOCK_BYTES as u64 / 4;

/// The cipher that makes the key stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cipher {
    /// AES-256 in counter mode: the fastest on processors with AES instructions.
    Aes,
    /// `ChaCha20`: fast without AES instructions.
    ChaCha20,
}

impl Cipher {
    /// Its name, in small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cipher::Aes => "aes",
            Cipher::ChaCha20 => "chacha20",
        }
    }
}

/// A secret of 256 bits and its cipher. Cleared from memory when dropped; never printed.
#[derive(Clone)]
pub struct Key {
    cipher: Cipher,
    bytes: Zeroizing<[u8; 32]>,
}

impl Key {
    /// A key from the operating system's generator: what a private release needs.
    ///
    /// # Errors
    /// If the operating system's generator fails.
    pub fn generate(cipher: Cipher) -> io::Result<Key> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes)?;
        Ok(Key { cipher, bytes })
    }

    /// The key with these bytes: for runs that others can repeat, which are then not private.
    pub fn new(cipher: Cipher, bytes: &[u8; 32]) -> Key {
        Key {
            cipher,
            bytes: Zeroizing::new(*bytes),
        }
    }

    /// Writes the key into a new file that only its owner can read. Anyone who reads it can subtract all noise: guard
    /// it as you guard the data, and delete it when the run is over.
    ///
    /// # Errors
    /// If the file already exists, or cannot be written; a file partly written is removed.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written = self.write_to(options.open(path)?);
        if written.is_err() {
            fs::remove_file(path)?;
        }
        written
    }

    fn write_to(&self, mut file: File) -> io::Result<()> {
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

    /// Another key, which only those with this key and these bytes know: HMAC-SHA-256 of them (RFC 2104). Keys from
    /// different bytes are independent, so that their noise is.
    ///
    /// # Panics
    /// Never: HMAC takes keys of any length.
    #[must_use]
    pub fn derive(&self, bytes: &[u8]) -> Key {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.bytes).expect("any length");
        mac.update(bytes);
        let derived = Zeroizing::new(mac.finalize().into_bytes().into());
        Key {
            cipher: self.cipher,
            bytes: derived,
        }
    }

    /// The cipher that this key is for.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The stream for one purpose in one round. The noise of a release must come from a stream that nothing else
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

#[derive(Clone)]
enum Schedule {
    Aes(Box<Aes256Enc>),
    ChaCha20(Zeroizing<[u8; 32]>),
}

/// The random words of every node for one purpose in one round; see the [module](self).
#[derive(Clone)]
pub struct Stream {
    schedule: Schedule,
    purpose: u32,
    round: u32,
    nodes: Option<Arc<[u32]>>,
}

impl Stream {
    /// The same words, for matrices whose rows belong to these nodes: a process that holds only some of the nodes
    /// draws their rows as they are among all rows. Nodes that are given to a kernel are then places among these.
    #[must_use]
    pub fn for_nodes(self, nodes: Arc<[u32]>) -> Stream {
        Stream {
            nodes: Some(nodes),
            ..self
        }
    }

    /// The purpose that the words are for.
    pub fn purpose(&self) -> u32 {
        self.purpose
    }

    /// The round that they are for.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The nodes that rows belong to; `None` for 0, 1, ..
    #[must_use]
    pub fn nodes(&self) -> Option<&[u32]> {
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

    /// Fails, naming `argument`, if a node's sequence has fewer than this number of blocks of [`BLOCK_BYTES`].
    pub(crate) fn holds(argument: &'static str, blocks: u64) -> Result<(), KernelError> {
        if blocks <= BLOCKS {
            return Ok(());
        }
        let wanted = format!("at most {BLOCKS} blocks of a stream for each node");
        Err(KernelError::new(argument, wanted, blocks).of_kind(ErrorKind::Exhausted))
    }

    /// Fills `out` with the bytes of `node` from block number `first` on. The caller ensures that the sequence
    /// [`holds`](Self::holds) them and that their number is a multiple of 16.
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
                    rows.map(|(row, out)| {
                        // The cipher reads its nonce as little-endian words.
                        let [purpose, round, node] = nonce_of(row).map(u32::swap_bytes);
                        ([first, purpose, round, node], out)
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
        // Word by word: the compiler makes better code of this than of one 128-bit number.
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
mod tests;
