//! Mixing with two neighbours and with four on one thread: few columns, and rows that fill the caches.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::Wide;
use dpmesh_core::mixing::{MixingMatrix, mix_into};

/// Each of `nodes` nodes takes from itself and from the nodes at the given distances on a ring.
fn ring<T: Wide>(criterion: &mut Criterion, type_name: &str, nodes: usize, distances: &[usize]) {
    let degree = 1 + distances.len();
    let indptr: Vec<usize> = (0..=nodes).map(|i| degree * i).collect();
    let neighbours =
        |i: usize| std::iter::once(i).chain(distances.iter().map(move |d| (i + d) % nodes));
    let indices: Vec<usize> = (0..nodes).flat_map(neighbours).collect();
    let weights = vec![T::from_f64(1.0 / degree as f64); indices.len()];
    let matrix = MixingMatrix::new(&indptr, &indices, &weights, nodes).unwrap();
    let mut group = criterion.benchmark_group(format!("mixing {type_name}, {nodes} nodes"));
    for dim in [50, 10_000] {
        let x = vec![T::ONE; nodes * dim];
        let mut out = x.clone();
        group.throughput(Throughput::Elements((indices.len() * dim) as u64));
        group.bench_function(
            format!("{} neighbours, {dim} columns", distances.len()),
            |b| {
                dpmesh_threads::with_threads(1, || {
                    b.iter(|| mix_into(&matrix, &x, dim, &mut out).unwrap());
                });
            },
        );
    }
}

fn all(criterion: &mut Criterion) {
    ring::<f32>(criterion, "f32", 64, &[1, 63]);
    ring::<f32>(criterion, "f32", 64, &[5, 18, 46, 59]);
    ring::<f64>(criterion, "f64", 64, &[5, 18, 46, 59]);
}

criterion_group!(benches, all);
criterion_main!(benches);
