//! Benchmarks of the kernels and of the team of threads: `cargo bench -p dpmesh-benches`. A crate of its own, so that
//! tests need not compile criterion.
