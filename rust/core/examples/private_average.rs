//! Sixteen nodes on a ring average their vectors privately: in each round a node clips its vector, sends it with
//! Gaussian noise, and takes the mean of its own and its two neighbours' messages.
//!
//! `cargo run --release -p dpmesh-core --example private_average`

#![allow(clippy::print_stdout)] // an example may print

use std::error::Error;

use dpmesh_core::mixing::{MixingMatrix, mix_noisy_into};
use dpmesh_core::noise::{Distribution, Noise};
use dpmesh_core::projection::{Norm, clip_rows_in_place};
use dpmesh_core::stream::{Cipher, Key};

const NODES: usize = 16;
const DIM: usize = 1000;
const ROUNDS: u32 = 50;
const NOISE: u32 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let indptr: Vec<usize> = (0..=NODES).map(|node| 3 * node).collect();
    let indices: Vec<usize> = (0..NODES)
        .flat_map(|node| [node, (node + 1) % NODES, (node + NODES - 1) % NODES])
        .collect();
    let weights = vec![1.0_f32 / 3.0; indices.len()];
    let ring = MixingMatrix::new(&indptr, &indices, &weights, NODES)?;

    let key = Key::generate(Cipher::Aes)?;
    let mut x: Vec<f32> = (0..NODES * DIM).map(|i| (i / DIM) as f32 / 100.0).collect();
    let mut mixed = vec![0.0; x.len()];
    println!("round  spread of the nodes' first coordinate");
    for round in 0..ROUNDS {
        clip_rows_in_place(&mut x, DIM, Norm::L2, 5.0)?;
        let stream = key.stream(NOISE, round)?;
        let noise = Noise::new(Distribution::Gaussian, &[0.001], &stream);
        mix_noisy_into(&ring, &x, DIM, &noise, &mut mixed)?;
        std::mem::swap(&mut x, &mut mixed);
        if round % 10 == 9 {
            let firsts = x.iter().step_by(DIM);
            let (low, high) = firsts.fold((f32::MAX, f32::MIN), |(low, high), &value| {
                (low.min(value), high.max(value))
            });
            println!("{:>5}  {:.4}", round + 1, high - low);
        }
    }
    Ok(())
}
