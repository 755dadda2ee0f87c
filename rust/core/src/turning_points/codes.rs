//! Numbers as codes: quantized, packed and masked.

use super::{Element, around, assert_same, everywhere, numbers, stream};
use crate::masking::{self, MASK_PURPOSE, mask_and_pack_into, masked_bytes, unpack_sum_into};
use crate::noise::{Distribution, Noise, add_noise_into};
use crate::packing::{self, pack, packed_sizes_into, unpack_into};
use crate::quantize::{
    Code, Overflow, Quantizer, dequantize_into, quantize_into, quantize_noisy_into, variance_into,
};
use crate::stream::{Cipher, Key};
use crate::{Sample, parallel, sampling};

/// Codes by their definition, with a coin of 24 or 53 bits for each number.
fn quantized<T: Sample, C: Code>(x: &[T], dim: usize, quantizer: &Quantizer<'_>) -> Vec<C> {
    let per_step = 1.0 / quantizer.step;
    let mut codes = Vec::with_capacity(x.len());
    for (row, x) in x.chunks(dim).enumerate() {
        let units = dim.div_ceil(sampling::LANES);
        let mut words = vec![0; units * sampling::LANES * T::WORDS];
        quantizer
            .coins
            .words_into(row as u32, 0, &mut words)
            .unwrap();
        for (i, x) in x.iter().enumerate() {
            let unit = &words[i / sampling::LANES * sampling::LANES * T::WORDS..];
            let word = |group: usize| unit[group * sampling::LANES + i % sampling::LANES];
            let coin = T::uniform([word(0), word(T::WORDS - 1)]).to_f64();
            let scaled = x.to_f64() * per_step;
            let goes_up = coin < scaled - scaled.floor();
            codes.push(C::truncated(scaled.floor() as i64 + i64::from(goes_up)));
        }
    }
    codes
}

fn quantization<T: Sample + Element, C: Code + Element>() {
    let (coins, others) = (stream(Cipher::Aes), Key::new(Cipher::Aes, &[1; 32]));
    let noise_stream = others.stream(1, 9).unwrap();
    let long = around(&[sampling::TURNS, parallel::TURNS].concat());
    let shapes = long.into_iter().map(|dim| (2, dim));
    for (rows, dim) in shapes.chain([(65_537, 1), (900, 37), (130, 513)]) {
        let x = numbers::<T>(rows * dim);
        let quantizer = Quantizer::new(0.13, &coins, Overflow::Refuse);
        let codes = everywhere((rows, dim), || {
            let mut codes = vec![C::default(); x.len()];
            quantize_into(&x, dim, &quantizer, &mut codes).unwrap();
            codes
        });
        assert_same((rows, dim), &codes, &quantized::<T, C>(&x, dim, &quantizer));

        let distribution = Distribution::Laplace;
        let noise = Noise::new(distribution, &[0.2], &noise_stream);
        let mut noisy = vec![T::ZERO; x.len()];
        add_noise_into(&x, dim, &noise, &mut noisy).unwrap();
        let mut together = vec![C::default(); x.len()];
        quantize_noisy_into(&x, dim, &noise, &quantizer, &mut together).unwrap();
        assert_same(
            (rows, dim),
            &together,
            &quantized::<T, C>(&noisy, dim, &quantizer),
        );

        let (mut back, mut variances) = (vec![T::ZERO; x.len()], vec![0.0; x.len()]);
        dequantize_into(&codes, 0.13, &mut back).unwrap();
        let value = |code: &C| T::from_f64(code.widened() as f64 * 0.13);
        assert_same(
            (rows, dim),
            &back,
            &codes.iter().map(value).collect::<Vec<T>>(),
        );
        variance_into(&x, 0.13, &mut variances).unwrap();
        let variance = |x: &T| {
            let scaled = x.to_f64() * (1.0 / 0.13);
            let fraction = scaled - scaled.floor();
            0.13 * 0.13 * (fraction * (1.0 - fraction))
        };
        assert_same(
            (rows, dim),
            &variances,
            &x.iter().map(variance).collect::<Vec<f64>>(),
        );
    }
}

#[test]
fn quantized_numbers() {
    quantization::<f32, i8>(); // coins that are counted
    quantization::<f32, i32>(); // coins that are compared
    quantization::<f64, i64>();
}

/// The format of a message, bit by bit.
fn message(codes: &[i64], bits: u32) -> Vec<u8> {
    let largest = (1_i64 << (bits - 1)) - 1;
    let fits = |code: i64| (-largest..=largest).contains(&code);
    let mut bytes = vec![0; (codes.len() * bits as usize).div_ceil(8)];
    for (place, &code) in codes.iter().enumerate() {
        let zigzag = if code < 0 { -2 * code - 1 } else { 2 * code };
        let symbol = if fits(code) {
            zigzag as u64
        } else {
            (1 << bits) - 1
        };
        for bit in 0..bits as usize {
            let position = place * bits as usize + bit;
            bytes[position / 8] |= ((symbol >> bit & 1) as u8) << (position % 8);
        }
    }
    for &code in codes.iter().filter(|&&code| !fits(code)) {
        bytes.extend(code.to_le_bytes());
    }
    bytes
}

#[test]
fn packed_codes() {
    for (number, count) in around(&[packing::TURNS, &[parallel::SERIAL_BELOW]].concat())
        .into_iter()
        .enumerate()
    {
        // Each number of bits with some size, and codes of which some are escaped, the last one too.
        for bits in [1 + number as u32 % 32, 32 - number as u32 % 32, 7] {
            let range = 1_i64 << (bits - 1);
            let code = |i: usize| (i as i64 * 7919) % (range + 2 + range / 50) - range / 2;
            let mut codes: Vec<i64> = (0..count).map(code).collect();
            codes[count - 1] = -range - 5;
            let packed = everywhere((count, bits), || pack(&codes, bits).unwrap());
            assert_same((count, bits), &packed, &message(&codes, bits));
            let unpacked = everywhere((count, bits), || {
                let mut unpacked = vec![0_i64; count];
                unpack_into(&packed, bits, &mut unpacked).unwrap();
                unpacked
            });
            assert_same((count, bits), &unpacked, &codes);
            let mut size = [0];
            packed_sizes_into(&codes, count, bits, &mut size).unwrap();
            assert_eq!(size, [packed.len() as u64]);
        }
    }
    for rows in around(&[parallel::SERIAL_BELOW, 1 << 16]) {
        let codes: Vec<i8> = (0..rows).map(|i| (i * 7 % 15) as i8 - 7).collect();
        let sizes = everywhere(rows, || {
            let mut sizes = vec![0_u64; rows];
            packed_sizes_into(&codes, 1, 3, &mut sizes).unwrap();
            sizes
        });
        let size = |code: &i8| if code.abs() > 3 { 9 } else { 1 };
        assert_same(rows, &sizes, &codes.iter().map(size).collect::<Vec<u64>>());
    }
}

#[test]
fn masked_numbers() {
    let sizes = around(&[masking::TURNS, &[parallel::SERIAL_BELOW]].concat());
    for (number, count) in sizes.into_iter().enumerate() {
        for bits in [1 + number as u32 % 64, 33, 57, 58, 64] {
            let value = |i: usize| (i as i64).wrapping_mul(0x1234_5678_9abc_def1);
            let values: Vec<i64> = (0..count).map(value).collect();
            let secrets = [([3; 32], false), ([5; 32], true)];
            let pairs = secrets.map(|(secret, minus)| masking::Pair::new(&secret, minus));
            let packed = everywhere((count, bits), || {
                let mut packed = vec![0_u8; masked_bytes(count, bits).unwrap()];
                mask_and_pack_into(&values, &pairs, bits, &mut packed).unwrap();
                packed
            });
            let mut sums: Vec<u64> = values.iter().map(|&v| v as u64).collect();
            for (secret, minus) in secrets {
                let key = Key::new(Cipher::Aes, &secret);
                let halves = if bits > 32 { 2 } else { 1 };
                let mut words = vec![0; halves * count];
                let stream = key.stream(MASK_PURPOSE, 0).unwrap();
                stream.words_into(0, 0, &mut words).unwrap();
                for (sum, words) in sums.iter_mut().zip(words.chunks(halves)) {
                    let high = words.get(1).map_or(0, |&high| u64::from(high) << 32);
                    let mask = u64::from(words[0]) | high;
                    let mask = if minus { mask.wrapping_neg() } else { mask };
                    *sum = sum.wrapping_add(mask);
                }
            }
            let mut expected = vec![0_u8; packed.len()];
            for (place, sum) in sums.iter().enumerate() {
                for bit in 0..bits as usize {
                    let position = place * bits as usize + bit;
                    expected[position / 8] |= ((sum >> bit & 1) as u8) << (position % 8);
                }
            }
            assert_same((count, bits), &packed, &expected);
            let total = everywhere((count, bits), || {
                let mut total = vec![0_i64; count];
                unpack_sum_into(&[&packed, &packed], bits, &mut total).unwrap();
                total
            });
            let centred = |sum: &u64| {
                let rest = 64 - bits;
                (sum.wrapping_mul(2) << rest) as i64 >> rest
            };
            assert_same(
                (count, bits),
                &total,
                &sums.iter().map(centred).collect::<Vec<i64>>(),
            );
        }
    }
}
