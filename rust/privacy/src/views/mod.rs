//! Gaussian differential privacy (GDP) of gossip under the view of an adversary who sees only some of the messages.
//!
//! The message of node `j` in round `t` is `m_t^j = x_t^j + n_t^j`: a state, and independent Gaussian noise of standard
//! deviation `sigma_t^j`. The *target* is the node whose record is protected. An [`Observer`] is a set of nodes that
//! pool the messages they see. Between two neighbouring data sets the state of node `j` in round `t` differs by at most
//! `z_t^j`. For any `r_t^j >= 0` that is 0 where the observer sees the message,
//!
//! `z_(t+1)^i = c_t z_t^i + sum over tau <= t, j of B_(t,tau)[i,j] r_tau^j + s_(t+1) [i = target]`
//!
//! with contraction factors `c` ([`Description::own`]), mixing weights `B` ([`Description::mixings`]) and sensitivities
//! `s` ([`Description::fresh`]). The view is then `mu`-GDP with
//!
//! `mu^2 = sum over t, j of (max(0, z_t^j - r_t^j) / sigma_t^j)^2`:
//!
//! the noise of a message that is not seen absorbs all of the difference but `r`, which is passed on to later states. So
//! every `r` proves a bound. [`System::solve`] looks for the `r` of the least one, a nonnegative least squares problem,
//! and returns with it a lower bound on what any `r` could prove.
//!
//! - `system`: the public numbers of a run, checked; and which messages an observer sees;
//! - `pair`: the least squares problem of one observer and one target, with its gradient and its dual bound;
//! - `solve`: the search for the least bound;
//! - `sparse`: matrices of mixing weights.
//!
//! The coupling argument is in `docs/privacy/network_dp_proof.md`.

mod pair;
mod solve;
mod sparse;
mod system;
#[cfg(test)]
mod tests;

pub use solve::{Certificate, Stop};
pub use system::{Description, Mixing, Observer, System};
