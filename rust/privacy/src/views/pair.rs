//! The least squares problem of one observer and one target, in the variables `q = r / sigma`.

use super::system::{Observer, System};
use crate::KernelError;

/// One observer of one target. Slices of entries have shape (rounds, nodes), as in
/// [`Description`](super::Description).
#[derive(Debug)]
pub(super) struct Pair<'a> {
    system: &'a System,
    target: usize,
    seen: Vec<bool>,
    /// What rounding adds to each `z`; empty if there is none.
    rounding: Vec<f64>,
    /// Over how many unseen nodes the last messages are averaged; 0 if no mean is published.
    averaged: usize,
}

/// Rows that a sweep over the rounds needs.
#[derive(Debug)]
pub(super) struct Scratch {
    z: Vec<f64>,
    shifted: Vec<f64>,
    /// What `z_t` costs from round `t` on, all rounds: shape (rounds, nodes).
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

    /// What every pair's problem is a part of: all messages but the last are free, and all differences count.
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

    /// Whether the noise of a message may absorb a difference: it is not seen, and later messages depend on it.
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

    /// Writes `a / sigma = z / sigma - q` and returns its norm, negative entries counted as 0: the bound that `q` proves.
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

    /// A share to pass on: about the best for meetings and matchings of 16 to 256 nodes. Any is valid.
    pub(super) fn share(&self) -> f64 {
        1.0 - 2.0 / (3.0 * (self.system.nodes as f64).sqrt())
    }

    /// The feasible `q` that passes on the same share of each unseen difference, and the bound that it proves.
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

    /// Takes `scratch.z` from round `t - 1` to round `t`, with what the record moves if `is_moved`.
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

    /// Unseen messages of the last round are never used again: their noise absorbs everything, or all but the mean.
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

    /// Writes the gradient of half the sum of squares at the `q` whose residual is `a`, with 0 for what is not free.
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

    /// A lower bound on what any `q` can prove, from the residual `a` of one; overwrites `y`. `start` is the residual of
    /// `q = 0`.
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

    /// Writes to `scratch.shifted` what one more unit of `q_t` costs in later rounds.
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

    /// Writes to `scratch.price` what one more unit of `z_t` costs, if `a` is what is paid.
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

    /// What rounding adds to each difference: to every state that may differ at all, and with every message mixed
    /// whose noise may have absorbed something.
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
