//! Gradients of linear models: 64 nodes on mini-batches of dense (digits) and sparse (news) records.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::linear::{Averaging, Batches, Csr, Dense, LinearModel, Loss, Objective, Step};
use dpmesh_core::{Real, Wide};

const NODES: usize = 64;
const RECORDS: usize = 4096;

fn numbers<T: Real>(count: usize) -> Vec<T> {
    (0..count)
        .map(|i| T::from_f64((i as f64 * 0.618).sin()))
        .collect()
}

/// Batches that walk through all records with a stride.
fn batches(size: usize) -> (Vec<i64>, Vec<i64>) {
    let indptr = (0..=NODES).map(|i| (i * size) as i64).collect();
    let indices = (0..NODES * size)
        .map(|i| (i * 37 % RECORDS) as i64)
        .collect();
    (indptr, indices)
}

fn dense<T: Wide>(criterion: &mut Criterion, name: &str) {
    let (columns, classes) = (785, 10);
    let features: Vec<T> = numbers(RECORDS * columns);
    let labels: Vec<i64> = (0..RECORDS as i64).map(|r| r % classes).collect();
    let params: Vec<T> = numbers(NODES * 10 * columns);
    let mut out = params.clone();
    let objective = Objective::Softmax {
        classes: 10,
        labels: &labels,
    };
    let model = LinearModel::new(Dense::new(&features, columns).unwrap(), objective).unwrap();
    let mut group = criterion.benchmark_group(format!("dense softmax {name}"));
    for size in [1, 10, 50] {
        let (indptr, indices) = batches(size);
        let batches = Batches::new(&indptr, &indices).unwrap();
        // Multiplications: scores and gradient.
        group.throughput(Throughput::Elements(
            (2 * NODES * size * model.dim()) as u64,
        ));
        group.bench_function(BenchmarkId::from_parameter(size), |bench| {
            bench.iter(|| {
                let averaging = Averaging::default();
                let params = black_box(&params);
                model.gradient_into(params, batches, averaging, None, &mut out)
            });
        });
    }
}

fn sparse(criterion: &mut Criterion) {
    let (columns, stored) = (47_236, 75);
    let features: Vec<f32> = numbers(RECORDS * stored);
    let indptr: Vec<i32> = (0..=RECORDS).map(|r| (r * stored) as i32).collect();
    let indices: Vec<i32> = (0..RECORDS * stored)
        .map(|i| (i % stored * 600 + i / stored % 600) as i32)
        .collect();
    let labels: Vec<f64> = (0..RECORDS)
        .map(|r| f64::from(r as u32 % 2) * 2.0 - 1.0)
        .collect();
    let features = Csr::new(&indptr, &indices, &features, columns).unwrap();
    let objective = Objective::Single {
        loss: Loss::Hinge,
        labels: &labels,
    };
    let model = LinearModel::new(features, objective).unwrap();
    let mut params: Vec<f32> = vec![0.0; NODES * columns];
    let (indptr, indices) = batches(5);
    let batches = Batches::new(&indptr, &indices).unwrap();
    let mut group = criterion.benchmark_group("sparse hinge f32, batches of 5");
    group.throughput(Throughput::Elements((2 * NODES * 5 * stored) as u64));
    group.bench_function("step", |bench| {
        bench.iter(|| {
            let steps = [1e-3; NODES];
            model.step_in_place(
                &mut params,
                Step::new(&steps),
                batches,
                Averaging::default(),
                None,
            )
        });
    });
}

fn all(criterion: &mut Criterion) {
    dense::<f32>(criterion, "f32");
    dense::<f64>(criterion, "f64");
    sparse(criterion);
}

criterion_group!(benches, all);
criterion_main!(benches);
