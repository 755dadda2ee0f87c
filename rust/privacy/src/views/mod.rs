//! What a run of gossip costs against somebody who sees some of its messages, not all of them.
//!
//! Messages are `m_t^j = x_t^j + n_t^j` with independent Gaussian noise of standard deviation `sigma_t^j`. Between two
//! neighbouring data sets the state of node `j` in round `t` differs by at most `z_t^j`. For any `r_t^j >= 0` that is 0
//! where the observer sees the message,
//!
//! `z_(t+1)^i = c_t z_t^i + sum over tau <= t, j of B_(t,tau)[i,j] r_tau^j + s_(t+1) [i = target]`
//!
//! and the view is `mu`-GDP with `mu^2 = sum (max(0, z_t^j - r_t^j) / sigma_t^j)^2`: the noise of a message that is not
//! seen absorbs all but `r`. So every `r` proves a bound. [`System::solve`] looks for the `r` of the least one, a
//! nonnegative least squares problem, and returns with it a lower bound on what any `r` could prove.
//!
//! Written from the coupling argument of `docs/privacy/network_dp_proof.md`.

mod pair;
mod solve;
mod sparse;
mod system;
#[cfg(test)]
mod tests;

pub use solve::{Certificate, Stop};
pub use system::{Description, Mixing, Observer, System};
