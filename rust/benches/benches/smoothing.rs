//! Laplacian smoothing, compared with the in-place scaling of the same elements.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::smoothing::{Method, Smooth, smooth_rows_in_place};

fn smoothing<T: Smooth>(criterion: &mut Criterion, name: &str) {
    let mut group = criterion.benchmark_group(format!("smoothing/{name}"));
    for (rows, dim) in [
        (1000, 10),
        (10, 1000),
        (1, 7850),
        (1, 100_003),
        (1, 3_400_000),
    ] {
        let x: Vec<T> = (0..rows * dim)
            .map(|i| T::from_f64((i as f64).sin()))
            .collect();
        group.throughput(Throughput::Elements(x.len() as u64));
        let shape = format!("{rows}x{dim}");
        for (method, label) in [
            (Method::Recursion, "recursion"),
            (Method::Fourier { power: 1 }, "fourier"),
        ] {
            for s in [1.0, 1e4] {
                let mut x = x.clone();
                let id = BenchmarkId::new(format!("{label}/{s}"), &shape);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| smooth_rows_in_place(&mut x, &[dim], s, method));
                });
            }
        }
        let mut x = x;
        group.bench_function(BenchmarkId::new("scale", &shape), |bencher| {
            bencher.iter(|| {
                let factor = std::hint::black_box(T::ONE);
                for value in &mut x {
                    *value *= factor;
                }
            });
        });
    }
    group.finish();
}

fn all(criterion: &mut Criterion) {
    smoothing::<f32>(criterion, "f32");
    smoothing::<f64>(criterion, "f64");
}

criterion_group!(benches, all);
criterion_main!(benches);
