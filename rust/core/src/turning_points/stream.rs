//! Streams, beside the block functions of other crates.

use ::chacha20::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher, StreamCipherSeek};
use aes::Aes256;

use super::{around, assert_same, everywhere};
use crate::stream::{BLOCK_BYTES, Cipher, Key, TURNS};

const KEY: [u8; 32] = [0x3c; 32];
const PURPOSE: u32 = 0x0102_0304;
const ROUND: u32 = 5;

/// The key stream from block number `first` on: of AES counter by counter, of `ChaCha20` by its own crate.
fn defined(cipher: Cipher, node: u32, first: u64, len: usize) -> Vec<u8> {
    let nonce = [PURPOSE, ROUND, node].map(u32::to_be_bytes);
    let nonce: &[u8; 12] = nonce.as_flattened().try_into().unwrap();
    let mut bytes = vec![0; len];
    match cipher {
        Cipher::Aes => {
            let aes = Aes256::new(&KEY.into());
            for (counter, bytes) in (4 * first..).zip(bytes.chunks_mut(16)) {
                let counter = counter as u32;
                let mut block = [0; 16];
                block[..12].copy_from_slice(nonce);
                block[12..].copy_from_slice(&counter.to_be_bytes());
                let mut block = block.into();
                aes.encrypt_block(&mut block);
                bytes.copy_from_slice(&block[..bytes.len()]);
            }
        }
        Cipher::ChaCha20 => {
            let mut stream = ::chacha20::ChaCha20::new(&KEY.into(), nonce.into());
            stream.seek(first * BLOCK_BYTES as u64);
            stream.apply_keystream(&mut bytes);
        }
    }
    bytes
}

/// Blocks at which counters carry into their next byte, and the last that a stream has.
const STARTS: [u64; 7] = [0, 1 << 8, 1 << 16, 1 << 22, 1 << 24, 1 << 28, 1 << 30];

#[test]
fn words_of_every_number_of_blocks_from_every_carry_of_the_counter() {
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        let stream = Key::new(cipher, &KEY).stream(PURPOSE, ROUND).unwrap();
        let node = u32::MAX - 7;
        let words = |first: u64, len: usize| {
            everywhere((cipher, first, len), || {
                let mut words = vec![0_u32; len];
                stream.words_into(node, first, &mut words).unwrap();
                words
            })
        };
        let check = |first: u64, len: usize| {
            let skipped = (first % 16) as usize;
            let bytes = defined(cipher, node, first / 16, 4 * (skipped + len));
            let expected = bytes.as_chunks().0[skipped..].iter();
            let expected: Vec<u32> = expected.map(|b| u32::from_le_bytes(*b)).collect();
            assert_same((cipher, first, len), &words(first, len), &expected);
        };
        for blocks in around(TURNS) {
            check(7, 16 * blocks - 7);
        }
        for start in STARTS {
            let (first, end) = ((16 * start).saturating_sub(40), 16 * start + 35);
            check(first, (end.min(1 << 34) - first) as usize);
        }
        assert!(stream.words_into(node, (1 << 34) - 1, &mut [0; 2]).is_err());
    }
}

#[test]
fn rows_of_every_length_together() {
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        let stream = Key::new(cipher, &KEY).stream(PURPOSE, ROUND).unwrap();
        let node_of = |row: usize| row as u32 * 0x0101_0101;
        for quarters in 1..10 {
            for rows in around(&[2, 16, 32, 64]) {
                let row_bytes = 16 * quarters;
                for first in [0, (1 << 24) - 1] {
                    let filled = everywhere((cipher, quarters, rows), || {
                        let mut filled = vec![0; rows * row_bytes];
                        stream.fill_rows(node_of, first, row_bytes, &mut filled);
                        filled
                    });
                    let row = |row| defined(cipher, node_of(row), u64::from(first), row_bytes);
                    let expected: Vec<u8> = (0..rows).flat_map(row).collect();
                    assert_same((cipher, quarters, rows), &filled, &expected);
                }
            }
        }
    }
}
