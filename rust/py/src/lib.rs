//! The extension module `dpmesh._core`. Its functions take the arguments of the Python API, check them, release the
//! GIL, call a kernel and return the result. They hold no arithmetic.
//!
//! Free-threaded Python is safe: classes are frozen, the team of threads is behind a lock, and an array that a kernel
//! writes is borrowed exclusively.

mod accounting;
mod arguments;
mod claim;
mod complexity;
mod convert;
mod correlated;
mod cosines;
mod discrete;
mod draws;
mod linear;
mod masking;
mod mixing;
mod noise;
mod projection;
mod qnet;
mod quantize;
mod smoothing;
mod stream;
mod sums;
mod threads;
mod views;

#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use crate::accounting::{
        gaussian_noise_multiplier, gdp_epsilons, gdp_log_deltas, rdp_fixed_size_gaussian,
        rdp_gaussian, rdp_laplace, rdp_poisson_gaussian, rdp_to_epsilon, rdp_to_log_delta,
    };
    #[pymodule_export]
    use crate::arguments::{is_float_array, is_index_array};
    #[pymodule_export]
    use crate::complexity::rademacher_suprema;
    #[pymodule_export]
    use crate::correlated::{add_pair_noise, correlated_noise};
    #[pymodule_export]
    use crate::cosines::cosines;
    #[pymodule_export]
    use crate::discrete::discrete_noise;
    #[pymodule_export]
    use crate::draws::{batch_ends, bernoulli, sample, shuffle, uniform};
    #[pymodule_export]
    use crate::linear::{LinearModel, linear_scores};
    #[pymodule_export]
    use crate::masking::{mask_and_pack, unpack_sum};
    #[pymodule_export]
    use crate::mixing::mix;
    #[pymodule_export]
    use crate::noise::{add_noise, fill};
    #[pymodule_export]
    use crate::projection::{all_finite, clip_rows, row_norms};
    #[pymodule_export]
    use crate::qnet::{q_learn, q_values};
    #[pymodule_export]
    use crate::quantize::{bits_needed, dequantize, pack, packed_sizes, quantize, unpack};
    #[pymodule_export]
    use crate::smoothing::{effective_dimensions, smooth, smoothing_spectrum};
    #[pymodule_export]
    use crate::stream::{Key, Stream};
    #[pymodule_export]
    use crate::sums::{column_sums, weighted_sum};
    #[pymodule_export]
    use crate::threads::{after_fork, before_fork, get_threads, set_threads};
    #[pymodule_export]
    use crate::views::ViewSystem;

    #[pymodule_init]
    #[allow(clippy::unnecessary_wraps)]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        dpmesh_threads::on_pause(crate::convert::handle_signals);
        Ok(())
    }
}
