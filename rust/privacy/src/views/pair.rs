//! The least squares problem of one observer and one target, in the variables `q = r / sigma`.
//!
//! The residual is `a(q) = z / sigma - q`, where `z` depends on `q` linearly: see the recursion in [`super`]. An entry of
//! `q` is *free* (may be positive) if its message is not seen and later states depend on it. The problem is to minimize
//! the norm of the positive part of `a(q)` over `q >= 0` with only free entries: the norm is the `mu` that `q` proves.
//!
//! Gradient and dual bound need the transposed recursion. The *price* of a number is the derivative of a weighted sum of
//! residuals by it: that of `z_t`, added up from the last round backwards, and that of `q_t` by way of later states.

use super::system::{Observer, System};
use crate::KernelError;

/// One observer of one target. Slices of entries have shape (rounds, nodes), as in
/// [`Description`](super::Description).
#[derive(Debug)]
pub(super) struct Pair<'a> {
    system: &'a System,
    target: usize,
    seen: Vec<bool>,
    /// Distance that rounding adds to each `z`; empty if there is no rounding.
    rounding: Vec<f64>,
    /// Number of unseen nodes of the last round if the mean of its messages is published; else 0.
    averaged: usize,
}

/// Memory of a sweep over the rounds.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Differences `z_t` of the current round, shape (nodes).
    z: Vec<f64>,
    /// Forwards: `r_t = q_t sigma_t` of a round whose messages are mixed. Backwards: price of `q_t`. Shape (nodes).
    shifted: Vec<f64>,
    /// Price of `z_t`, shape (rounds, nodes).
    price: Vec<f64>,
}

impl Scratch {
    pub(super) fn new(system: &System) -> Scratch {
        Scratch {
            z: vec![0.0; system.nodes],
            shifted: vec![0.0; system.nodes],
            price: vec![0.0; system.nodes * system.rounds],
        }
    }
}

impl<'a> Pair<'a> {
    pub(super) fn new(
        system: &'a System,
        observer: &Observer,
        target: usize,
    ) -> Result<Pair<'a>, KernelError> {
        system.known("target", target)?;
        if observer.0.contains(&target) {
            let wanted = "a node outside the observer, whose own record is not hidden from itself";
            return Err(KernelError::new("target", wanted, target));
        }
        let mut pair = Pair {
            system,
            target,
            seen: system.seen(observer)?,
            rounding: Vec::new(),
            averaged: 0,
        };
        if system.rounding > 0.0 {
            pair.rounding = pair.added_by_rounding();
        }
        if system.mean_of_last && system.rounds > system.start {
            pair.averaged = pair.equal_noise_of_last()?;
        }
        Ok(pair)
    }

    /// The problem with most free entries, of which that of every pair is a part: only the last round is seen.
    pub(super) fn seeing_the_last(system: &'a System) -> Pair<'a> {
        let entries = system.nodes * system.rounds;
        let last = entries - system.nodes;
        Pair {
            system,
            target: 0,
            seen: (0..entries).map(|entry| entry >= last).collect(),
            rounding: Vec::new(),
            averaged: 0,
        }
    }

    /// Whether `q` may be positive at an entry of round `t`: the message is not seen, and is not of the last round.
    #[inline]
    fn is_free(&self, t: usize, entry: usize) -> bool {
        !self.seen[entry] && t + 1 < self.system.rounds
    }

    /// Whether the target's messages are all seen, so that nothing can be hidden.
    pub(super) fn sees_target(&self) -> bool {
        let System {
            nodes,
            start,
            rounds,
            ..
        } = *self.system;
        (start..rounds).all(|t| self.seen[t * nodes + self.target])
    }

    /// Writes the residual `a(q) = z / sigma - q`, and returns the norm of its positive part: the `mu` that `q` proves.
    pub(super) fn residual(&self, q: &[f64], scratch: &mut Scratch, a: &mut [f64]) -> f64 {
        let mut squares = 0.0;
        for t in self.system.start..self.system.rounds {
            self.advance(t, q, true, scratch);
            squares += self.residual_of(t, q, &scratch.z, a);
        }
        squares.sqrt()
    }

    /// Writes the part of the residual that depends on `q`, and returns its norm.
    pub(super) fn linear_part(&self, q: &[f64], scratch: &mut Scratch, a: &mut [f64]) -> f64 {
        for t in self.system.start..self.system.rounds {
            self.advance(t, q, false, scratch);
            self.residual_of(t, q, &scratch.z, a);
        }
        norm(a)
    }

    /// The share of a difference that [`spread`](Self::spread) should pass on. Any share gives a valid bound; this one
    /// is about the best for meetings and matchings of 16 to 256 nodes.
    pub(super) fn share(&self) -> f64 {
        1.0 - 2.0 / (3.0 * (self.system.nodes as f64).sqrt())
    }

    /// Writes the feasible `q` that passes on the same share of each unseen difference to later states, and its residual
    /// to `a`. Returns the `mu` that this `q` proves.
    pub(super) fn spread(
        &self,
        share: f64,
        q: &mut [f64],
        scratch: &mut Scratch,
        a: &mut [f64],
    ) -> f64 {
        let nodes = self.system.nodes;
        let mut squares = 0.0;
        for t in self.system.start..self.system.rounds {
            self.advance(t, q, true, scratch);
            for (j, z) in scratch.z.iter().enumerate() {
                let entry = t * nodes + j;
                let absorbed = share * z * self.system.inverse_noise[entry];
                q[entry] = if self.is_free(t, entry) {
                    absorbed
                } else {
                    0.0
                };
            }
            squares += self.residual_of(t, q, &scratch.z, a);
        }
        squares.sqrt()
    }

    /// Takes `scratch.z` from round `t - 1` to round `t`. If `is_moved`, adds the sensitivity to the record, and the
    /// rounding; else only the part of `z` that depends on `q` is computed.
    #[inline]
    fn advance(&self, t: usize, q: &[f64], is_moved: bool, scratch: &mut Scratch) {
        let Scratch { z, shifted, .. } = scratch;
        let (system, nodes) = (self.system, self.system.nodes);
        if t == system.start {
            z.fill(0.0);
        } else {
            let kept = system.own[t - 1];
            for z in z.iter_mut() {
                *z *= kept;
            }
            for mixing in system.mixed_in(t - 1) {
                if mixing.sent < system.start {
                    continue;
                }
                let row = mixing.sent * nodes..(mixing.sent + 1) * nodes;
                let (q, noise) = (&q[row.clone()], &system.noise[row]);
                for ((shifted, q), noise) in shifted.iter_mut().zip(q).zip(noise) {
                    *shifted = q * noise;
                }
                system.matrices[mixing.matrix].add_product(mixing.gain, shifted, z);
            }
        }
        if is_moved {
            z[self.target] += system.fresh[t * nodes + self.target];
            if !self.rounding.is_empty() {
                let added = &self.rounding[t * nodes..(t + 1) * nodes];
                z.iter_mut().zip(added).for_each(|(z, added)| *z += added);
            }
        }
    }

    /// Writes the residual of round `t` and returns the sum of squares of its positive entries.
    #[inline]
    fn residual_of(&self, t: usize, q: &[f64], z: &[f64], a: &mut [f64]) -> f64 {
        let row = t * self.system.nodes..(t + 1) * self.system.nodes;
        let (q, a) = (&q[row.clone()], &mut a[row.clone()]);
        let inverse_noise = &self.system.inverse_noise[row.clone()];
        for (((a, z), inverse), q) in a.iter_mut().zip(z).zip(inverse_noise).zip(q) {
            *a = z * inverse - q;
        }
        if t + 1 == self.system.rounds {
            self.hide_last(&self.seen[row], a);
        }
        positive_squares(a)
    }

    /// Sets the residual of the last round's unseen messages to what the view reveals of them: no state depends on them,
    /// so their noise absorbs all of their difference, or all but its mean if the mean of the messages is published.
    fn hide_last(&self, seen: &[bool], a: &mut [f64]) {
        let unseen = || {
            seen.iter()
                .zip(0_usize..)
                .filter(|(seen, _)| !**seen)
                .map(|(_, j)| j)
        };
        let mut left = 0.0;
        if self.averaged > 0 {
            left = unseen().map(|j| a[j]).sum::<f64>() / self.averaged as f64;
        }
        unseen().for_each(|j| a[j] = left);
    }

    /// Writes the gradient of half the sum of squares at the `q` whose residual is `a`, with 0 where `q` is not free.
    pub(super) fn gradient(&self, a: &[f64], scratch: &mut Scratch, gradient: &mut [f64]) {
        for t in (self.system.start..self.system.rounds).rev() {
            self.price_of_shift(t, scratch);
            let row = t * self.system.nodes..(t + 1) * self.system.nodes;
            let rows = gradient[row.clone()].iter_mut().zip(&a[row.clone()]);
            for (((gradient, a), shift), entry) in rows.zip(&scratch.shifted).zip(row) {
                *gradient = if self.is_free(t, entry) {
                    shift - a
                } else {
                    0.0
                };
            }
            self.price_of_state(t, a, scratch);
        }
    }

    /// A lower bound on the `mu` that any `q` can prove, from the residual `a` of one of them. `start` is the residual of
    /// `q = 0`; `y` is overwritten.
    ///
    /// Let `y >= 0` be weights of residuals, such that the price of each free entry of `q` is at least 0: `y` itself is
    /// at most its price by way of later states. Then for every feasible `q`
    ///
    /// `|max(0, a(q))| >= <y, a(q)> / |y| >= <y, start> / |y|`.
    ///
    /// The weights here are the positive part of `a`, lowered to meet the condition.
    pub(super) fn dual(
        &self,
        a: &[f64],
        start: &[f64],
        scratch: &mut Scratch,
        y: &mut [f64],
    ) -> f64 {
        for t in (self.system.start..self.system.rounds).rev() {
            self.price_of_shift(t, scratch);
            let row = t * self.system.nodes..(t + 1) * self.system.nodes;
            let rows = y[row.clone()].iter_mut().zip(&a[row.clone()]);
            for (((y, a), shift), entry) in rows.zip(&scratch.shifted).zip(row) {
                let positive = a.max(0.0);
                *y = if self.is_free(t, entry) {
                    positive.min(*shift)
                } else {
                    positive
                };
            }
            self.price_of_state(t, y, scratch);
        }
        let length = norm(y);
        let along: f64 = y.iter().zip(start).map(|(y, start)| y * start).sum();
        if length > 0.0 { along / length } else { 0.0 }
    }

    /// Writes to `scratch.shifted` the price of `q_t` by way of later states.
    fn price_of_shift(&self, t: usize, scratch: &mut Scratch) {
        let Scratch { shifted, price, .. } = scratch;
        let (system, nodes) = (self.system, self.system.nodes);
        shifted.fill(0.0);
        for mixing in system.sent_in(t) {
            let next = mixing.mixed + 1;
            if next < system.rounds {
                let price = &price[next * nodes..(next + 1) * nodes];
                system.transposed[mixing.matrix].add_product(mixing.gain, price, shifted);
            }
        }
        let noise = &system.noise[t * nodes..(t + 1) * nodes];
        shifted
            .iter_mut()
            .zip(noise)
            .for_each(|(shift, noise)| *shift *= noise);
    }

    /// Writes to `scratch.price` the price of `z_t`, where `a` are the weights of the residuals.
    fn price_of_state(&self, t: usize, a: &[f64], scratch: &mut Scratch) {
        let (system, nodes) = (self.system, self.system.nodes);
        let (now, later) = scratch.price[t * nodes..].split_at_mut(nodes);
        let row = t * nodes..(t + 1) * nodes;
        let inverse_noise = &system.inverse_noise[row.clone()];
        for ((price, a), inverse) in now.iter_mut().zip(&a[row]).zip(inverse_noise) {
            *price = a * inverse;
        }
        if t + 1 < system.rounds && system.own[t] > 0.0 {
            now.iter_mut()
                .zip(later)
                .for_each(|(now, later)| *now += system.own[t] * *later);
        }
    }

    /// The distance that rounding adds to each difference: to every state that may differ at all, and with every mixed
    /// message whose noise may have absorbed a difference.
    fn added_by_rounding(&self) -> Vec<f64> {
        let (system, nodes) = (self.system, self.system.nodes);
        let mut added = vec![0.0; nodes * system.rounds];
        let mut differs = vec![false; nodes * system.rounds];
        let mut has_moved = false;
        for t in system.start..system.rounds {
            let (before, now) = differs.split_at_mut(t * nodes);
            let (now, added) = (&mut now[..nodes], &mut added[t * nodes..(t + 1) * nodes]);
            has_moved |= system.fresh[t * nodes + self.target] > 0.0;
            now[self.target] = has_moved;
            if t > system.start {
                for (now, before) in now.iter_mut().zip(&before[(t - 1) * nodes..]) {
                    *now |= *before && system.own[t - 1] > 0.0;
                }
                for mixing in system.mixed_in(t - 1) {
                    for i in 0..nodes {
                        for (j, weight) in system.matrices[mixing.matrix].row(i) {
                            let entry = mixing.sent * nodes + j;
                            let weight = mixing.gain * weight;
                            if weight > 0.0 && before[entry] && !self.seen[entry] {
                                now[i] = true;
                                added[i] += weight * system.rounding;
                            }
                        }
                    }
                }
            }
            let states = added.iter_mut().zip(now);
            states.for_each(|(added, now)| *added += f64::from(u8::from(*now)) * system.rounding);
        }
        added
    }

    /// The number of unseen last messages; fails unless their noise is the same.
    fn equal_noise_of_last(&self) -> Result<usize, KernelError> {
        let last = (self.system.rounds - 1) * self.system.nodes;
        let unseen: Vec<f64> = (last..last + self.system.nodes)
            .filter(|&entry| !self.seen[entry])
            .map(|entry| self.system.noise[entry])
            .collect();
        match unseen.iter().find(|&&noise| noise != unseen[0]) {
            Some(noise) => {
                let wanted = format!(
                    "the same for all nodes in the last round, such as {}",
                    unseen[0]
                );
                Err(KernelError::new("noise", wanted, noise))
            }
            None => Ok(unseen.len()),
        }
    }
}

pub(super) fn norm(x: &[f64]) -> f64 {
    sum_of(x, |x| x * x).sqrt()
}

fn positive_squares(x: &[f64]) -> f64 {
    sum_of(x, |x| x.max(0.0) * x.max(0.0))
}

/// The sum of a function of the elements, eight at a time, so that no addition waits for the last.
#[inline]
fn sum_of(x: &[f64], value: impl Fn(f64) -> f64) -> f64 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for eight in eights {
        for (sum, &x) in sums.iter_mut().zip(eight) {
            *sum += value(x);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&x| value(x)).sum::<f64>()
}
