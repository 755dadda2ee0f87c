//! Four nodes average a signal in a few bits: each round adds noise, quantizes, mixes; smoothing then removes noise.
//! Before that each node allocates its records to secret rounds, four records to each.
//!
//! `cargo run --release -p dpmesh-core --example compressed_gossip`

#![allow(clippy::print_stdout)] // an example may print

use std::error::Error;

use dpmesh_core::draws::{Rows, shuffle_into};
use dpmesh_core::mixing::{MixingMatrix, mix_into};
use dpmesh_core::noise::{Distribution, Noise};
use dpmesh_core::quantize::{Overflow, Quantizer, dequantize_into, quantize_noisy_into};
use dpmesh_core::smoothing::{Method, smooth_rows_in_place};
use dpmesh_core::stream::{Cipher, Key};

const NODES: usize = 4;
const DIM: usize = 64;
const RECORDS: i64 = 20; // of each node
const STEP: f64 = 0.125;
const ALLOCATION: u32 = 1;
const NOISE: u32 = 2;
const COINS: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let key = Key::generate(Cipher::Aes)?;

    let records: Vec<i64> = (0..NODES as i64).flat_map(|_| 0..RECORDS).collect();
    let starts: Vec<i64> = (0..=NODES as i64).map(|node| node * RECORDS).collect();
    let held = Rows::new(&starts, &records);
    let mut order = vec![0; records.len()];
    shuffle_into(
        held,
        &[RECORDS; NODES],
        &key.stream(ALLOCATION, 0)?,
        None,
        &mut order,
    )?;
    println!("in round 0 node 0 uses its records {:?}", &order[..4]);

    let indptr: Vec<usize> = (0..=NODES).map(|node| node * NODES).collect();
    let indices: Vec<usize> = (0..NODES).flat_map(|_| 0..NODES).collect();
    let weights = vec![1.0 / NODES as f64; NODES * NODES];
    let complete = MixingMatrix::new(&indptr, &indices, &weights, NODES)?;

    let truth: Vec<f64> = (0..DIM).map(|j| (j as f64 / 10.0).sin()).collect();
    let mut x = truth.repeat(NODES);
    let (mut codes, mut sent) = (vec![0_i16; x.len()], vec![0.0; x.len()]);
    for round in 0..3 {
        let (stream, coins) = (key.stream(NOISE, round)?, key.stream(COINS, round)?);
        let noise = Noise::new(Distribution::Gaussian, &[0.5], &stream);
        let overflow = Overflow::Refuse;
        let quantizer = Quantizer::new(STEP, &coins, overflow);
        quantize_noisy_into(&x, DIM, &noise, &quantizer, &mut codes)?;
        dequantize_into(&codes, STEP, &mut sent)?;
        mix_into(&complete, &sent, DIM, &mut x)?;
        let mut smooth = x[..DIM].to_vec();
        smooth_rows_in_place(&mut smooth, &[DIM], 2.0, Method::Recursion)?;
        let (noisy, smooth) = (distance(&x[..DIM], &truth), distance(&smooth, &truth));
        println!("round {round}: error {noisy:.2}, smoothed {smooth:.2}");
    }
    Ok(())
}

fn distance(x: &[f64], y: &[f64]) -> f64 {
    x.iter()
        .zip(y)
        .map(|(a, b)| (a - b).powi(2))
        .sum::<f64>()
        .sqrt()
}
