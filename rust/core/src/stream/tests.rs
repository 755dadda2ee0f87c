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

/// NIST SP 800-38A, F.5.5: counter block f0f1..feff and the next three.
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

/// RFC 4231, 4.5: HMAC-SHA-256 pads its key of 25 bytes with zeros, as is done here up to 32.
#[test]
fn a_derived_key_is_the_hmac_of_the_rfc() {
    let mut padded = [0; 32];
    padded[..25].copy_from_slice(&hex("0102030405060708090a0b0c0d0e0f10111213141516171819"));
    let expected = hex("82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        let derived = Key::new(cipher, &padded).derive(&[0xcd; 50]);
        assert_eq!(derived.bytes[..], expected);
        assert_eq!(derived.cipher(), cipher);
    }
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

/// Masks take 16 KiB at once: more than a byte counts blocks of AES.
#[test]
fn a_long_fill_is_that_of_its_blocks() {
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        let stream = Key::new(cipher, &[7; 32]).stream(3, 5).unwrap();
        let (mut whole, mut blocks) = (vec![0; 300 * BLOCK_BYTES], vec![0; 300 * BLOCK_BYTES]);
        stream.fill(7, 5, &mut whole);
        for (number, block) in (5..).zip(blocks.chunks_mut(BLOCK_BYTES)) {
            stream.fill(7, number, block);
        }
        assert_eq!(whole, blocks);
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
        assert_eq!(error.argument(), "out");
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
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
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
