//! The kernels, from outside: one program, so that what they share is compiled once.

mod correlated_noise;
mod discrete_noise;
mod draws;
mod extents;
mod mixing;
mod noise_statistics;
mod noise_values;
mod packing;
mod quantize;
mod rand_traits;
mod statistics;
mod training;
