//! Codes a second on one thread, in the caches: quantizing alone, with Gaussian noise before it, packing.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::Sample;
use dpmesh_core::noise::{Distribution, Noise};
use dpmesh_core::packing::{pack, unpack_into};
use dpmesh_core::quantize::{Code, Overflow, Quantizer, quantize_into, quantize_noisy_into};
use dpmesh_core::stream::{Cipher, Key};

const LEN: usize = 1 << 17;

fn codes<T: Sample, C: Code>(criterion: &mut Criterion, name: &str) {
    let key = Key::new(Cipher::Aes, &[7; 32]);
    let (stream, coins) = (key.stream(1, 0).unwrap(), key.stream(2, 0).unwrap());
    let noise = Noise::new(Distribution::Gaussian, &[1.5], &stream);
    let quantizer = Quantizer::new(0.5, &coins, Overflow::Refuse);
    let x: Vec<T> = (0..LEN)
        .map(|i| T::from_f64(20.0 * (i as f64).sin()))
        .collect();
    let mut out = vec![C::default(); LEN];
    let mut group = criterion.benchmark_group(format!("quantize {name}"));
    group.throughput(Throughput::Elements(LEN as u64));
    group.bench_function("alone", |b| {
        dpmesh_threads::with_threads(1, || {
            b.iter(|| quantize_into(&x, LEN, &quantizer, &mut out).unwrap());
        });
    });
    group.bench_function("with noise", |b| {
        dpmesh_threads::with_threads(1, || {
            b.iter(|| quantize_noisy_into(&x, LEN, &noise, &quantizer, &mut out).unwrap());
        });
    });
}

fn messages(criterion: &mut Criterion, bits: u32) {
    let largest = (1 << (bits - 1)) - 1;
    let codes: Vec<i16> = (0..LEN as i32)
        .map(|i| (i % (2 * largest + 1) - largest) as i16)
        .collect();
    let message = pack(&codes, bits).unwrap();
    let mut out = codes.clone();
    let mut group = criterion.benchmark_group(format!("messages of {bits} bits"));
    group.throughput(Throughput::Elements(LEN as u64));
    group.bench_function("pack", |b| {
        dpmesh_threads::with_threads(1, || b.iter(|| pack(&codes, bits).unwrap()));
    });
    group.bench_function("unpack", |b| {
        dpmesh_threads::with_threads(1, || {
            b.iter(|| unpack_into(&message, bits, &mut out).unwrap());
        });
    });
}

fn all(criterion: &mut Criterion) {
    codes::<f32, i8>(criterion, "f32 to i8");
    codes::<f32, i16>(criterion, "f32 to i16");
    codes::<f32, i32>(criterion, "f32 to i32");
    codes::<f64, i32>(criterion, "f64 to i32");
    codes::<f64, i64>(criterion, "f64 to i64");
    for bits in [4, 5, 8, 12] {
        messages(criterion, bits);
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
