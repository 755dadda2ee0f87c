//! Short pieces of work with pauses between them, by a team and by rayon.

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dpmesh_threads::{for_each, with_threads};
use rayon::prelude::*;

const THREADS: usize = 4;
const TASKS: u64 = 16;

fn pass(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        spin_loop();
    }
}

/// The time of `work`, done `times` times with a pause before each.
fn with_pauses(times: u64, pause: Duration, mut work: impl FnMut()) -> Duration {
    let one = |_| {
        pass(pause);
        let since = Instant::now();
        work();
        since.elapsed()
    };
    (0..times).map(one).sum()
}

fn short_work(criterion: &mut Criterion) {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(THREADS)
        .build()
        .unwrap();
    for (work, pause) in [
        (0, 0),
        (0, 20),
        (100, 20),
        (100, 1000),
        (400, 20),
        (400, 1000),
    ] {
        let task = Duration::from_micros(work) / TASKS as u32;
        let pause = Duration::from_micros(pause);
        let name = format!("{work} us of work");
        let mut group = criterion.benchmark_group(name);
        group
            .sample_size(20)
            .measurement_time(Duration::from_secs(1));
        let after = |who| BenchmarkId::new(who, format!("after {pause:?}"));
        group.bench_function(after("team"), |b| {
            with_threads(THREADS, || {
                let share = || for_each(0..TASKS as usize, || (), |(), _| pass(black_box(task)));
                b.iter_custom(|times| with_pauses(times, pause, share));
            });
        });
        group.bench_function(after("rayon"), |b| {
            let tasks = || (0..TASKS).into_par_iter();
            let share = || pool.install(|| tasks().for_each(|_| pass(black_box(task))));
            b.iter_custom(|times| with_pauses(times, pause, share));
        });
    }
}

criterion_group!(benches, short_work);
criterion_main!(benches);
