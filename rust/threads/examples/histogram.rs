//! A histogram of a million numbers, counted by all threads: each block has counts of its own, which are added up in
//! order, so that the result does not depend on the number of threads.
#![allow(clippy::print_stdout)] // an example may print

use dpmesh_threads::{map, threads};

const BINS: usize = 10;

fn main() {
    let numbers: Vec<f64> = (0..1_000_000)
        .map(|i| (f64::from(i) * 0.618).fract())
        .collect();
    let blocks = map(numbers.chunks(10_000), |block| {
        let mut counts = [0_u32; BINS];
        for number in block {
            counts[(number * BINS as f64) as usize] += 1;
        }
        counts
    });
    let mut total = [0; BINS];
    for counts in blocks {
        for (sum, count) in total.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!("{total:?}, on {} threads", threads());
    assert_eq!(total.iter().sum::<u32>(), 1_000_000);
}
