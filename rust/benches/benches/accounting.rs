//! What accounting costs on one thread: moments of sampled releases, conversions, views of a ring.

use criterion::{Criterion, criterion_group, criterion_main};
use dpmesh_privacy::conversion::{self, Conversion};
use dpmesh_privacy::gdp;
use dpmesh_privacy::rdp::{self, FixedSizeBound};
use dpmesh_privacy::views::{Description, Mixing, Observer, Stop, System};

fn releases(criterion: &mut Criterion) {
    let orders: Vec<f64> = (2..256).map(f64::from).collect();
    let (rate, noise, count) = ([0.01], [0.8], [1000.0]);
    let poisson = rdp::poisson_gaussian(&rate, &noise, &count, &orders).unwrap();
    let mut group = criterion.benchmark_group("accountant");
    group.bench_function("epsilon of Gaussian noise", |b| {
        b.iter(|| gdp::epsilon(std::hint::black_box(1.0), 1e-5).unwrap());
    });
    group.bench_function("Poisson samples, 254 orders", |b| {
        b.iter(|| rdp::poisson_gaussian(&rate, &noise, &count, &orders).unwrap());
    });
    group.bench_function("samples of fixed size, 254 orders", |b| {
        let bound = FixedSizeBound::DominatingPair;
        b.iter(|| rdp::fixed_size_gaussian(bound, &rate, &noise, &count, &orders).unwrap());
    });
    group.bench_function("conversion, 254 orders", |b| {
        b.iter(|| conversion::epsilon(&orders, &poisson, 1e-5, Conversion::Optimal).unwrap());
    });
}

/// A ring of `nodes` that each mix with two neighbours for `rounds` rounds, as one of them sees another.
fn view(criterion: &mut Criterion, nodes: usize, rounds: usize) {
    let indptr: Vec<i64> = (0..=nodes).map(|i| 3 * i as i64).collect();
    let neighbours = |i: usize| [i, (i + 1) % nodes, (i + nodes - 1) % nodes];
    let indices: Vec<i64> = (0..nodes).flat_map(neighbours).map(|j| j as i64).collect();
    let mixings: Vec<Mixing> = (0..rounds - 1)
        .map(|t| Mixing {
            mixed: t,
            sent: t,
            matrix: 0,
            gain: 1.0,
        })
        .collect();
    let received: Vec<_> = (0..rounds)
        .flat_map(|t| [(t, 0, 1), (t, 0, nodes - 1)])
        .collect();
    let system = System::new(&Description {
        nodes,
        indptr: &indptr,
        indices: &indices,
        weights: &vec![1.0 / 3.0; indices.len()],
        mixings: &mixings,
        own: &vec![0.0; rounds],
        noise: &vec![1.0; rounds * nodes],
        fresh: &vec![0.1; rounds * nodes],
        rounding: 0.0,
        published: &[],
        received: &received,
        mean_of_last: false,
    })
    .unwrap();
    let (observer, target) = (Observer(vec![0]), nodes / 2);
    let mut group = criterion.benchmark_group(format!("view of {nodes} nodes, {rounds} rounds"));
    group.sample_size(10);
    group.bench_function("a few sweeps", |b| {
        b.iter(|| system.cheap(&observer, target).unwrap());
    });
    let stop = Stop {
        gap: 0.01,
        at_most: 0.0,
        iterations: 500,
    };
    group.bench_function("within 1% of the least", |b| {
        b.iter(|| system.solve(&observer, target, stop).unwrap());
    });
}

fn all(criterion: &mut Criterion) {
    dpmesh_threads::with_threads(1, || {
        releases(criterion);
        view(criterion, 32, 50);
    });
}

criterion_group!(benches, all);
criterion_main!(benches);
