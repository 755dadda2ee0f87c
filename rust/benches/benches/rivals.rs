//! Our team of threads and our `ChaCha20`, each in pairs with the crate that everybody knows: rayon and `chacha20`.
//!
//! The two take turns, and what is printed is the median over all pairs of theirs divided by ours: processor time of the
//! whole process, which a busy machine disturbs little, and for the teams time on the clock, too.
//!
//! A short work is followed by a pause, as Python takes one between two kernels. Its processor time is that of all
//! threads, but for the caller's in the pauses: threads that look for the next work count.
#![allow(clippy::print_stdout)]

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use cpu_time::{ProcessTime, ThreadTime};
use dpmesh_core::stream::{Cipher, Key};
use dpmesh_threads::{for_each, with_threads};
use rayon::prelude::*;

const PAIRS: usize = 41;
const TASKS: usize = 16;

/// How long one side of a pair took.
#[derive(Clone, Copy)]
struct Taken {
    processor: Duration,
    clock: Duration,
}

impl Taken {
    fn by(times: usize, mut work: impl FnMut()) -> Taken {
        let (processor, clock) = (ProcessTime::now(), Instant::now());
        for _ in 0..times {
            work();
        }
        Taken {
            processor: processor.elapsed(),
            clock: clock.elapsed(),
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// The medians of theirs divided by ours, in processor time and on the clock. They take turns in who begins.
fn ratios(mut ours: impl FnMut() -> Taken, mut theirs: impl FnMut() -> Taken) -> [f64; 2] {
    let pairs: Vec<[Taken; 2]> = (0..PAIRS)
        .map(|pair| {
            if pair % 2 == 0 {
                let our_time = ours();
                [our_time, theirs()]
            } else {
                let their_time = theirs();
                [ours(), their_time]
            }
        })
        .collect();
    let of = |time: fn(&Taken) -> Duration| {
        let ratio =
            |[ours, theirs]: &[Taken; 2]| time(theirs).as_secs_f64() / time(ours).as_secs_f64();
        median(pairs.iter().map(ratio).collect())
    };
    [of(|taken| taken.processor), of(|taken| taken.clock)]
}

/// Arithmetic of about so many nanoseconds.
fn arithmetic(nanoseconds: usize) {
    let mut x = black_box(1_u64);
    for _ in 0..nanoseconds {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
    black_box(x);
}

fn pass(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        spin_loop();
    }
}

/// `work`, so many times, with a pause after each, which does not count.
fn with_pauses(times: usize, pause: Duration, work: impl Fn()) -> Taken {
    let mut clock = Duration::ZERO;
    let mut paused = Duration::ZERO;
    let taken = Taken::by(times, || {
        let since = Instant::now();
        work();
        clock += since.elapsed();
        let own_thread = ThreadTime::now();
        pass(pause);
        paused += own_thread.elapsed();
    });
    Taken {
        processor: taken.processor.saturating_sub(paused),
        clock,
    }
}

fn teams() {
    let threads = dpmesh_threads::threads();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    println!("rayon / team of {threads} threads, {TASKS} tasks: processor time, clock");
    with_threads(threads, || {
        for (work, pause) in [(10, 30), (100, 30), (100, 1_000), (1_000, 30), (10_000, 30)] {
            let task = work * 1_000 / TASKS;
            let times = (20_000 / (work + pause)).max(4);
            let pause = Duration::from_micros(pause as u64);
            let team = || for_each(0..TASKS, || (), |(), _| arithmetic(task));
            let tasks = || (0..TASKS).into_par_iter();
            let rayon = || pool.install(|| tasks().for_each(|_| arithmetic(task)));
            let [processor, clock] = ratios(
                || with_pauses(times, pause, team),
                || with_pauses(times, pause, rayon),
            );
            println!("{work:6} us of work, then {pause:?}: {processor:.2} {clock:.2}");
        }
    });
}

fn ciphers() {
    println!("crate chacha20 / our ChaCha20: processor time");
    let key = [7; 32];
    let stream = Key::new(Cipher::ChaCha20, &key).stream(1, 0).unwrap();
    for (nodes, words) in [(1, 1 << 16), (64, 1 << 10), (64, 16), (4_096, 16)] {
        let times = ((1 << 21) / (nodes * words)).max(1);
        let mut drawn = vec![0; words];
        let mut bytes = vec![0; 4 * words];
        let [processor, _] = ratios(
            || {
                Taken::by(times, || {
                    for node in 0..nodes as u32 {
                        stream.words_into(node, 0, &mut drawn).unwrap();
                        black_box(&drawn);
                    }
                })
            },
            || {
                Taken::by(times, || {
                    for node in 0..nodes as u32 {
                        let mut nonce = [0; 12];
                        nonce[8..].copy_from_slice(&node.to_be_bytes());
                        let mut cipher = ChaCha20::new(&key.into(), &nonce.into());
                        cipher.write_keystream(&mut bytes);
                        black_box(&bytes);
                    }
                })
            },
        );
        println!("{words:6} words of each of {nodes} nodes: {processor:.2}");
    }
}

fn main() {
    ciphers();
    teams();
}
