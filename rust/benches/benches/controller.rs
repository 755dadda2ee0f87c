//! The learned controller of decentralized SGD without replacement, and that paper's complexities, on one thread.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dpmesh_core::complexity::suprema_into;
use dpmesh_core::qnet::{
    Activation, Adam, LANES, Replay, Shape, Trained, learn_in_place, values_into,
};
use dpmesh_core::stream::{Cipher, Key};

const NETWORKS: usize = 20;
const INPUTS: usize = 52;
const CAPACITY: usize = 20;
const ADAM: Adam = Adam::new(0.01);

fn waves(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32).sin() / 10.0).collect()
}

fn deep_q(criterion: &mut Criterion) {
    let shape = Shape::new(INPUTS, 128, Activation::Relu).unwrap();
    let mut parameters = waves(NETWORKS * shape.rows() * LANES);
    let (targets, mut first, mut second) = (
        parameters.clone(),
        parameters.clone(),
        vec![0.1; parameters.len()],
    );
    let (states, places) = (waves(NETWORKS * CAPACITY * 2 * INPUTS), NETWORKS * CAPACITY);
    let (actions, rewards, discounts) = (vec![1; places], waves(places), vec![0.9; places]);
    let picks: Vec<u32> = (0..NETWORKS).flat_map(|_| 0..10).collect();
    let (mut steps, mut losses) = ([0; NETWORKS], [0.0; NETWORKS]);
    let mut values = vec![0.0; NETWORKS * 2];
    let mut group = criterion.benchmark_group(format!("deep-Q, {NETWORKS} networks"));
    group.throughput(Throughput::Elements(NETWORKS as u64));
    group.bench_function("values of a state", |b| {
        let states = &states[..NETWORKS * INPUTS];
        b.iter(|| values_into(shape, &targets, states, &mut values).unwrap());
    });
    group.bench_function("a step on 10 transitions", |b| {
        b.iter(|| {
            let trained = Trained::new(&mut parameters, &mut first, &mut second, &mut steps);
            let replay = Replay::new(&states, &actions, &rewards, &discounts);
            let learns = [true; NETWORKS];
            learn_in_place(
                shape,
                ADAM,
                trained,
                &targets,
                replay,
                &picks,
                &learns,
                &mut losses,
            )
            .unwrap();
        });
    });
}

fn rademacher(criterion: &mut Criterion) {
    let stream = Key::new(Cipher::Aes, &[7; 32]).stream(1, 0).unwrap();
    let (vectors, mut suprema) = (waves(100 * 1000), vec![0.0; 100]);
    let mut group = criterion.benchmark_group("transductive Rademacher complexity");
    group.throughput(Throughput::Elements(100 * 100 * 1000));
    group.bench_function("100 draws, 100 vectors of 1,000", |b| {
        b.iter(|| suprema_into(&vectors, 1000, 0.25, &stream, 0, &mut suprema).unwrap());
    });
}

fn all(criterion: &mut Criterion) {
    dpmesh_threads::with_threads(1, || {
        deep_q(criterion);
        rademacher(criterion);
    });
}

criterion_group!(benches, all);
criterion_main!(benches);
