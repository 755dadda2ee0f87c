//! Uniform, Bernoulli and Rademacher draws, samples and orders, by the words of their nodes.

use super::{Element, around, assert_same, everywhere, stream};
use crate::draws::{
    Rows, TURNS, bernoulli_into, rademacher_into, sample_into, shuffle_into, uniform_into,
};
use crate::sampling::{self, LANES};
use crate::stream::{Cipher, Stream};
use crate::{Sample, parallel};

/// Two words for each draw, a group of lanes apart.
fn pairs_of_words(stream: &Stream, node: u32, dim: usize) -> Vec<[u32; 2]> {
    let mut words = vec![0; 2 * dim.next_multiple_of(LANES)];
    stream.words_into(node, 0, &mut words).unwrap();
    let word = |i: usize, half: usize| words[i / LANES * 2 * LANES + half * LANES + i % LANES];
    (0..dim).map(|i| [word(i, 0), word(i, 1)]).collect()
}

fn shapes() -> Vec<(usize, usize)> {
    let long = around(&[sampling::TURNS, parallel::TURNS].concat());
    let shapes = long.into_iter().map(|dim| (2, dim));
    shapes.chain([(65_537, 1), (900, 37), (5_000, 9)]).collect()
}

fn check<E: Element + Default>(fill: impl Fn(usize, &mut [E]), draw: impl Fn([u32; 2]) -> E) {
    for (rows, dim) in shapes() {
        let drawn = everywhere((rows, dim), || {
            let mut drawn = vec![E::default(); rows * dim];
            fill(dim, &mut drawn);
            drawn
        });
        let row = |row| pairs_of_words(&stream(Cipher::Aes), row as u32, dim);
        let expected: Vec<E> = (0..rows).flat_map(row).map(&draw).collect();
        assert_same((rows, dim), &drawn, &expected);
    }
}

fn uniform<T: Sample + Element>(value: impl Fn([u32; 2]) -> f64) {
    let stream = stream(Cipher::Aes);
    check::<T>(
        |dim, out| uniform_into(&stream, None, dim, out).unwrap(),
        |words| T::from_f64(value(words)),
    );
}

#[test]
fn uniform_draws() {
    uniform::<f32>(|[high, _]| f64::from(high >> 8) / (1_u64 << 24) as f64);
    uniform::<f64>(|[high, low]| {
        (u64::from(high) << 21 | u64::from(low >> 11)) as f64 / (1_u64 << 53) as f64
    });
}

#[test]
fn bernoulli_and_rademacher_draws() {
    let stream = stream(Cipher::Aes);
    let share = |[high, low]: [u32; 2]| (u64::from(high) << 31 | u64::from(low >> 1)) as f64;
    let whole = (1_u64 << 63) as f64;
    check::<bool>(
        |dim, out| bernoulli_into(0.3, &stream, None, dim, out).unwrap(),
        |words| share(words) < 0.3 * whole,
    );
    check::<i8>(
        |dim, out| rademacher_into(0.3, &stream, None, dim, out).unwrap(),
        |words| match (share(words) < 0.6 * whole, words[1] & 1) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, _) => -1,
        },
    );
}

/// The first draw of each node, in `f64`.
fn uniforms(stream: &Stream, node: u32, count: usize) -> Vec<f64> {
    let value = |[high, low]: [u32; 2]| {
        (u64::from(high) << 21 | u64::from(low >> 11)) as f64 / (1_u64 << 53) as f64
    };
    pairs_of_words(stream, node, count)
        .into_iter()
        .map(value)
        .collect()
}

#[test]
fn samples_without_replacement() {
    let stream = stream(Cipher::Aes);
    let longer = TURNS[TURNS.len() - 1] * 3 / 2;
    for count in around(TURNS).into_iter().chain([longer]) {
        let size = count.min(40);
        let counts = [size as i64 + 3, count as i64];
        let drawn = everywhere(count, || {
            let mut drawn = vec![0; 2 * size];
            sample_into(&counts, &stream, None, size, &mut drawn).unwrap();
            drawn
        });
        let mut expected = Vec::new();
        for (node, &count) in counts.iter().enumerate() {
            let coins = uniforms(&stream, node as u32, count as usize);
            let mut order: Vec<i64> = (0..count).collect();
            let key = |&place: &i64| (coins[place as usize].to_bits(), place);
            order.select_nth_unstable_by_key(size - 1, key);
            order.truncate(size);
            order.sort_unstable();
            expected.extend(order);
        }
        assert_same(count, &drawn, &expected);
    }
}

#[test]
fn random_orders() {
    let stream = stream(Cipher::Aes);
    for count in around(&[128, 1024, 2048, 1 << 16]) {
        let values: Vec<i64> = (0..count as i64 + 3).map(|i| 3 * i + 1).collect();
        let indptr = [0, 3, values.len() as i64];
        let lengths = [7, 2 * count as i64 + 1];
        let drawn = everywhere(count, || {
            let rows = Rows::new(&indptr, &values);
            let mut drawn = vec![0; 2 * count + 8];
            shuffle_into(rows, &lengths, &stream, None, &mut drawn).unwrap();
            drawn
        });
        let mut expected = Vec::new();
        for (node, length) in lengths.into_iter().enumerate() {
            let row = &values[indptr[node] as usize..indptr[node + 1] as usize];
            let length = length as usize;
            let coins = uniforms(&stream, node as u32, length.next_multiple_of(row.len()));
            let mut passes = Vec::new();
            for coins in coins.chunks(row.len()) {
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by_key(|&place| coins[place].to_bits());
                passes.extend(order.into_iter().map(|place| row[place]));
            }
            expected.extend(&passes[..length]);
        }
        assert_same(count, &drawn, &expected);
    }
}
