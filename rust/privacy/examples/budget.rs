//! How many rounds a budget allows: DP-SGD on Poisson samples of 1% of the records, at epsilon 2 and delta 1e-6, for
//! three sizes of noise.
#![allow(clippy::print_stdout)] // an example may print

use dpmesh_privacy::conversion::{Conversion, epsilon};
use dpmesh_privacy::{KernelError, rdp};

const BUDGET: f64 = 2.0;
const DELTA: f64 = 1e-6;
const SAMPLING_RATE: f64 = 0.01;

fn spent(noise_multiplier: f64, rounds: f64) -> Result<f64, KernelError> {
    let orders: Vec<f64> = (2..=128).map(f64::from).collect();
    let (rates, multipliers, counts) = ([SAMPLING_RATE], [noise_multiplier], [rounds]);
    let curve = rdp::poisson_gaussian(&rates, &multipliers, &counts, &orders)?;
    Ok(epsilon(&orders, &curve, DELTA, Conversion::Optimal)?.value)
}

fn main() -> Result<(), KernelError> {
    for noise_multiplier in [0.8, 1.0, 1.5] {
        let (mut enough, mut too_many) = (0.0, 1.0);
        while spent(noise_multiplier, too_many)? <= BUDGET {
            (enough, too_many) = (too_many, 2.0 * too_many);
        }
        while too_many - enough > 1.0 {
            let middle = f64::midpoint(enough, too_many).floor();
            if spent(noise_multiplier, middle)? <= BUDGET {
                enough = middle;
            } else {
                too_many = middle;
            }
        }
        let epsilon = spent(noise_multiplier, enough)?;
        println!("noise {noise_multiplier}: {enough} rounds, epsilon {epsilon:.4}");
    }
    Ok(())
}
