//! Samples a second of each distribution, type and cipher, in the L1 cache and for many short rows, on one thread.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::Sample;
use dpmesh_core::noise::{Distribution, Noise, add_noise_in_place};
use dpmesh_core::stream::{Cipher, Key};

fn noise<T: Sample>(c: &mut Criterion, type_name: &str) {
    for cipher in [Cipher::Aes, Cipher::ChaCha20] {
        let stream = Key::new(cipher, &[7; 32]).stream(1, 0).unwrap();
        let mut group = c.benchmark_group(format!("{type_name} {cipher:?}"));
        for (shape, rows, dim) in [("1 x 8192", 1, 8192), ("64 x 10", 64, 10)] {
            let mut x = vec![T::ZERO; rows * dim];
            group.throughput(Throughput::Elements(x.len() as u64));
            for distribution in [Distribution::Gaussian, Distribution::Laplace] {
                let noise = Noise::new(distribution, &[1.5], &stream);
                group.bench_function(format!("{distribution:?} {shape}"), |b| {
                    b.iter(|| add_noise_in_place(&mut x, dim, &noise).unwrap());
                });
            }
        }
    }
}

fn all(c: &mut Criterion) {
    noise::<f32>(c, "f32");
    noise::<f64>(c, "f64");
}

criterion_group!(benches, all);
criterion_main!(benches);
