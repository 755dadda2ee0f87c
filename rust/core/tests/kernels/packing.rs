//! Messages give their codes back exactly and have the stated length and format; no other message is read.

use dpmesh_core::packing::{bits_needed, pack, packed_sizes_into, unpack_into};
use dpmesh_core::quantize::Code;
use proptest::prelude::*;

fn unpacked<C: Code>(message: &[u8], bits: u32, count: usize) -> Result<Vec<C>, String> {
    let mut codes = vec![C::default(); count];
    let result = unpack_into(message, bits, &mut codes);
    result.map(|()| codes).map_err(|error| error.to_string())
}

/// The format, bit by bit.
fn slow(codes: &[i64], bits: u32) -> Vec<u8> {
    let escape = (1_u128 << bits) - 1;
    let (mut digits, mut escaped) = (Vec::new(), Vec::new());
    for &code in codes {
        let zigzag = if code >= 0 {
            2 * i128::from(code)
        } else {
            -2 * i128::from(code) - 1
        };
        let symbol = (zigzag as u128).min(escape);
        if symbol == escape {
            escaped.extend(code.to_le_bytes());
        }
        digits.extend((0..bits).map(|bit| (symbol >> bit & 1) as u8));
    }
    let byte = |digits: &[u8]| digits.iter().rev().fold(0, |byte, digit| byte << 1 | digit);
    digits.chunks(8).map(byte).chain(escaped).collect()
}

fn codes_about(bits: u32) -> impl Strategy<Value = i64> {
    let edge = 1_i64 << (bits - 1);
    prop_oneof![
        8 => -edge..=edge,
        1 => edge - 2..edge + 2,
        1 => -edge - 2..2 - edge,
        1 => any::<i64>(),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX)],
    ]
}

fn messages() -> impl Strategy<Value = (u32, Vec<i64>)> {
    (1_u32..=32)
        .prop_flat_map(|bits| (Just(bits), prop::collection::vec(codes_about(bits), 0..300)))
}

proptest! {
    #[test]
    fn messages_have_the_format_and_come_back((bits, codes) in messages()) {
        let message = pack(&codes, bits).unwrap();
        prop_assert_eq!(&message, &slow(&codes, bits));
        prop_assert_eq!(unpacked::<i64>(&message, bits, codes.len()), Ok(codes.clone()));

        let mut size = [0];
        if !codes.is_empty() {
            packed_sizes_into(&codes, codes.len(), bits, &mut size).unwrap();
            prop_assert_eq!(size[0], message.len() as u64);
        }
        let needed = bits_needed(&codes);
        let escaped = (message.len() - (codes.len() * bits as usize).div_ceil(8)) / 8;
        prop_assert_eq!(escaped == 0, needed <= bits);
    }

    #[test]
    fn every_type_comes_back(codes in prop::collection::vec(any::<i32>(), 0..70), bits in 1_u32..=32) {
        fn check<C: Code + std::fmt::Debug>(codes: Vec<C>, bits: u32) {
            let message = pack(&codes, bits).unwrap();
            assert!(unpacked::<C>(&message, bits, codes.len()) == Ok(codes));
        }
        check(codes.iter().map(|&code| code as i8).collect(), bits);
        check(codes.iter().map(|&code| code as i16).collect(), bits);
        check(codes, bits);
    }

    #[test]
    fn no_other_message_is_read(
        (bits, codes) in messages(),
        place: prop::sample::Index,
        flip in 1_u8..=255,
        longer in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let message = pack(&codes, bits).unwrap();
        if !message.is_empty() {
            let place = place.index(message.len());
            let mut changed = message.clone();
            changed[place] ^= flip;
            // A message that is read is the one that its codes are packed into.
            if let Ok(others) = unpacked::<i64>(&changed, bits, codes.len()) {
                prop_assert_eq!(pack(&others, bits).unwrap(), changed);
            }
            prop_assert!(unpacked::<i64>(&message[..place], bits, codes.len()).is_err());
        }
        let changed = [message, longer].concat();
        prop_assert!(unpacked::<i64>(&changed, bits, codes.len()).is_err());
    }
}

/// By hand: symbols 0, 1, 2, 5, 7 (escape) in 3 bits are 000 001 010 101 111 from the right.
#[test]
fn the_format_never_changes() {
    let codes = [0_i16, -1, 1, -3, 300];
    let message = pack(&codes, 3).unwrap();
    assert_eq!(message, [0b1000_1000, 0b0111_1010, 44, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(unpacked(&message, 3, 5), Ok(codes.to_vec()));
    assert_eq!(
        pack(&[-1_i8, 127, -128], 8).unwrap(),
        [1, 254, 255, 128, 255, 255, 255, 255, 255, 255, 255]
    );
    assert_eq!(pack(&[0_i8; 9], 1).unwrap(), [0, 0]);
}

#[test]
fn many_codes_come_back_on_any_number_of_threads() {
    let codes: Vec<i32> = (0..100_003).map(|i: i32| i.wrapping_mul(i) % 70).collect();
    let alone = slow(&codes.iter().copied().map(i64::from).collect::<Vec<_>>(), 7);
    for threads in [1, 2, 7] {
        dpmesh_threads::with_threads(threads, || {
            let message = pack(&codes, 7).unwrap();
            assert!(message == alone);
            assert!(unpacked(&message, 7, codes.len()).as_ref() == Ok(&codes));
        });
    }
}

#[test]
fn sizes_are_those_of_the_rows() {
    let mut sizes = [0; 2];
    packed_sizes_into(&[0, 1, -1, 0, 9, -9_i8], 3, 3, &mut sizes).unwrap();
    assert_eq!(sizes, [2, 2 + 16]);
    assert_eq!(bits_needed(&[0_i8; 3]), 1);
    assert_eq!(bits_needed::<i8>(&[]), 1);
    assert_eq!(
        [
            bits_needed(&[1]),
            bits_needed(&[-1]),
            bits_needed(&[-3]),
            bits_needed(&[4])
        ],
        [2, 2, 3, 4]
    );
    assert_eq!(
        [bits_needed(&[i64::MAX]), bits_needed(&[i64::MIN])],
        [64, 65]
    );
}

#[test]
fn what_does_not_fit_is_named() {
    for bits in [0, 33] {
        let error = pack(&[1_i8], bits).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("bits: wanted between 1 and 32, got {bits}")
        );
        assert!(unpacked::<i8>(&[1], bits, 1).is_err());
        assert_eq!(
            packed_sizes_into(&[1_i8], 1, bits, &mut [0])
                .unwrap_err()
                .argument(),
            "bits"
        );
    }
    let unequal = packed_sizes_into(&[1_i8; 4], 2, 3, &mut [0]).unwrap_err();
    assert_eq!(unequal.to_string(), "out: wanted 2 elements, got 1");
    let error = |message: &[u8], bits, count| unpacked::<i8>(message, bits, count).unwrap_err();
    assert_eq!(
        error(&[1], 5, 2),
        "message: wanted at least 2 bytes for 2 codes of 5 bits, got 1"
    );
    assert_eq!(
        error(&[255], 5, 1),
        "message: wanted zeros after the last symbol, got ones"
    );
    assert_eq!(
        error(&[15, 1, 0, 0], 4, 1),
        "message: wanted 1 bytes, and 8 for each of 1 escaped codes, got 4"
    );
    assert_eq!(
        error(&[15, 1, 0, 0, 0, 0, 0, 0, 0], 4, 1),
        "message: wanted only codes escaped that do not fit 4 bits, got 1"
    );
    assert_eq!(
        error(&[15, 0, 1, 0, 0, 0, 0, 0, 0], 4, 1),
        "message: wanted codes of 8 bits, got 256"
    );
    assert_eq!(
        error(&[0, 4], 16, 1),
        "message: wanted codes of 8 bits, got 512"
    );
}
