//! What a party of a secure sum does, and noise that works together, on one thread: numbers a second.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::discrete::{DiscreteDistribution, discrete_noise_into};
use dpmesh_core::masking::{Pair, mask_and_pack_into, masked_bytes, unpack_sum_into};
use dpmesh_core::noise::correlated::{self, add_pair_noise_in_place};
use dpmesh_core::stream::{Cipher, Key};

const LEN: usize = 1 << 16;

fn integer_noise(criterion: &mut Criterion) {
    let stream = Key::new(Cipher::Aes, &[7; 32]).stream(1, 0).unwrap();
    let mut out = vec![0; LEN];
    let mut group = criterion.benchmark_group("integer noise");
    group.throughput(Throughput::Elements(LEN as u64));
    for distribution in [
        DiscreteDistribution::Laplace,
        DiscreteDistribution::Gaussian,
    ] {
        for dim in [16, LEN] {
            group.bench_function(format!("{distribution:?}, rows of {dim}"), |b| {
                b.iter(|| {
                    discrete_noise_into(distribution, 200.0, &stream, None, dim, &mut out).unwrap();
                });
            });
        }
    }
}

fn masks(criterion: &mut Criterion) {
    let values: Vec<i64> = (0..LEN as i64).collect();
    let mut group = criterion.benchmark_group("masks of 9 partners");
    group.throughput(Throughput::Elements(LEN as u64));
    for bits in [24, 40] {
        let pairs: Vec<Pair> = (1..10).map(|i| Pair::new(&[i; 32], i > 5)).collect();
        let mut sent = vec![0; masked_bytes(LEN, bits).unwrap()];
        group.bench_function(format!("{bits} bits"), |b| {
            b.iter(|| mask_and_pack_into(&values, &pairs, bits, &mut sent).unwrap());
        });
        let mut total = vec![0; LEN];
        group.bench_function(format!("{bits} bits, the sum of 10"), |b| {
            b.iter(|| unpack_sum_into(&[&sent[..]; 10], bits, &mut total).unwrap());
        });
    }
}

fn partners(criterion: &mut Criterion) {
    let stream = Key::new(Cipher::Aes, &[7; 32]).stream(1, 0).unwrap();
    let ring: Vec<correlated::Pair> = (0..64)
        .map(|i| correlated::Pair::new(i, [Some(i), Some((i + 1) % 64)]))
        .collect();
    let mut x = vec![0_f32; 64 * 1000];
    let mut group = criterion.benchmark_group("noise between partners");
    group.throughput(Throughput::Elements(x.len() as u64));
    group.bench_function("a ring of 64", |b| {
        b.iter(|| add_pair_noise_in_place(&mut x, 1000, &ring, 1.5, &stream).unwrap());
    });
}

fn all(criterion: &mut Criterion) {
    dpmesh_threads::with_threads(1, || {
        integer_noise(criterion);
        masks(criterion);
        partners(criterion);
    });
}

criterion_group!(benches, all);
criterion_main!(benches);
