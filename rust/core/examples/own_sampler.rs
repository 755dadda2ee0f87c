//! Three nodes draw Cauchy noise, which this crate has no kernel for, with `rand_distr`. A key, a purpose, a round and a
//! node give the same numbers on every machine.
//!
//! `cargo run --release -p dpmesh-core --example own_sampler`

#![allow(clippy::print_stdout)] // an example may print

use std::error::Error;

use dpmesh_core::stream::{Cipher, Key};
use rand_distr::{Cauchy, Distribution};

const NODES: u32 = 3;
const CAUCHY: u32 = 7; // a purpose that nothing else draws for
const ROUND: u32 = 0;

fn main() -> Result<(), Box<dyn Error>> {
    let key = Key::new(Cipher::Aes, &[1; 32]); // repeatable, so not private: that needs `Key::generate`
    let stream = key.stream(CAUCHY, ROUND)?;
    let cauchy = Cauchy::new(0.0, 1.0)?;
    for node in 0..NODES {
        let noise: Vec<f64> = cauchy.sample_iter(stream.words_of(node)).take(4).collect();
        println!("node {node}: {noise:+.3?}");
    }
    Ok(())
}
