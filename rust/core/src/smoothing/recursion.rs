//! The exact solution in two recursions.
//!
//! With `q = sqrt(1 + 4s)` and `r = (q-1)/(q+1)`, and `S` the shift around the cycle,
//! `A = (1 - r S)(1 - r S^-1) / (1-r)^2`. So `u = (1-r)^2 w`, where
//!
//! - forward `y_i = v_i + r y_(i-1)`,
//! - backward `w_i = y_i + r w_(i+1)`.
//!
//! A block is cut into tiles that stay in the first-level cache through both. What a tile needs from outside is one
//! number at either end, and both come from `v` alone, before anything is overwritten, for all tiles at once:
//!
//! - on its left `y_(a-1) = sum_k r^k v_(a-1-k)`,
//! - on its right `w_e = (z_e + r y_(e-1)) / (1 - r^2)` with `z_e = sum_k r^k v_(e+k)`.
//!
//! Around the cycle both sums are geometric: once around, divided by `1 - r^d`.

use super::decay::Decay;
use super::for_each_cycle;
use super::sweep::Sweep;
use crate::Real;
use crate::parallel::{for_each_block, map_blocks, vectorized};

/// Up to this smoothing `f32` data are smoothed in `f32`; beyond, `1 - r` is so small that digits would be lost.
pub(super) const NARROW_UP_TO: f64 = 100.0;

/// Elements of a tile: what is read and what lies between the sweeps fit the first-level cache together.
const TILE: usize = 2048;

/// Smooths each row in arithmetic of type `A`.
pub(super) fn smooth_rows<T: Real, A: Real>(
    v: Option<&[T]>,
    u: &mut [T],
    blocks: &[usize],
    smoothing: f64,
) {
    // Vectors of 256 bits: on wider ones the steps that they add cost as much as the width gains.
    if size_of::<A>() == 4 {
        Recursion::<A, 8>::new(smoothing).smooth_rows(v, u, blocks);
    } else {
        Recursion::<A, 4>::new(smoothing).smooth_rows(v, u, blocks);
    }
}

struct Recursion<A, const W: usize> {
    sweep: Sweep<A, W>,
    decay: Decay,
    /// `r^0, r^1, ..` as far as they matter, at most a tile's; and the same from the last to the first.
    powers: Vec<f64>,
    powers_reversed: Vec<f64>,
    /// `1 / (1 - r^2)`.
    right_scale: f64,
}

/// What reaches over the ends of a stretch of elements.
#[derive(Clone, Copy)]
struct Reach {
    /// `sum_k r^k v_(e-1-k)` over the elements before the right end `e`.
    right: f64,
    /// `sum_k r^k v_(a+k)` over the elements from the left end `a` on.
    left: f64,
}

/// Length of a block and `1 / (1 - r^length)`.
type Block = (usize, f64);

impl<A: Real, const W: usize> Recursion<A, W> {
    fn new(smoothing: f64) -> Self {
        let decay = Decay::new(smoothing);
        // A term below this, relative to the largest value of u (at least that of v, divided by 1 + 4s), is rounding.
        let negligible = f64::EPSILON / 256.0 / (1.0 + 4.0 * smoothing);
        let count = (negligible.ln() / decay.log).ceil().clamp(1.0, TILE as f64);
        let powers: Vec<f64> = (0..count as usize).map(|k| decay.power(k)).collect();
        Recursion {
            sweep: Sweep::new(|k| decay.power(k), decay.rest * decay.rest),
            powers_reversed: powers.iter().copied().rev().collect(),
            powers,
            right_scale: 1.0 / (decay.rest * (1.0 + decay.power(1))),
            decay,
        }
    }

    fn smooth_rows<T: Real>(&self, v: Option<&[T]>, u: &mut [T], lengths: &[usize]) {
        let closed = |&length: &usize| (length, 1.0 / self.decay.power_from_one(length));
        let blocks: Vec<Block> = lengths.iter().map(closed).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let scratch = || vec![A::ZERO; longest.min(TILE)];
        for_each_cycle(v, u, &blocks, scratch, |y, v, u, &closure| {
            if u.len() == 1 {
                if let Some(v) = v {
                    u[0] = v[0];
                }
            } else if u.len() <= TILE {
                let reach = self.reach(v.unwrap_or(u));
                let around = Reach {
                    right: reach.right * closure,
                    left: reach.left * closure,
                };
                self.smooth_tile(v, u, around, y);
            } else {
                self.smooth_tiles(v, u, closure);
            }
        });
    }

    fn smooth_tiles<T: Real>(&self, v: Option<&[T]>, u: &mut [T], closure: f64) {
        let outside = self.outside_of_tiles(v.unwrap_or(u), closure);
        let scratch = || vec![A::ZERO; TILE];
        for_each_block(u, TILE, scratch, |y, tile, u| {
            let v = v.map(|v| &v[tile * TILE..][..u.len()]);
            self.smooth_tile(v, u, outside[tile], y);
        });
    }

    /// One tile; `outside.right` is what reaches it from its left, `outside.left` from its right.
    fn smooth_tile<T: Real>(&self, v: Option<&[T]>, u: &mut [T], outside: Reach, y: &mut [A]) {
        let y = &mut y[..u.len()];
        vectorized!({
            let last = self.sweep.forward(v.unwrap_or(u), y, outside.right);
            let carry = (outside.left + self.decay.power(1) * last) * self.right_scale;
            self.sweep.backward(y, u, carry);
        });
    }

    /// For each tile what reaches it from its left (`right`) and from its right (`left`), around the cycle.
    fn outside_of_tiles<T: Real>(&self, v: &[T], closure: f64) -> Vec<Reach> {
        let mut tiles = map_blocks(v, TILE, |tile| self.reach(tile));
        let length = |tile| TILE.min(v.len() - tile * TILE);
        let over = |tile| self.decay.power(length(tile));
        // The first round adds up the whole cycle, the second starts from its sum.
        let (mut right, mut left) = (0.0, 0.0);
        for (i, tile) in tiles.iter().enumerate() {
            right = tile.right + over(i) * right;
        }
        for (i, tile) in tiles.iter().enumerate().rev() {
            left = tile.left + over(i) * left;
        }
        (right, left) = (right * closure, left * closure);
        for (i, tile) in tiles.iter_mut().enumerate() {
            let next = tile.right + over(i) * right;
            tile.right = std::mem::replace(&mut right, next);
        }
        for (i, tile) in tiles.iter_mut().enumerate().rev() {
            let next = tile.left + over(i) * left;
            tile.left = std::mem::replace(&mut left, next);
        }
        tiles
    }

    fn reach<T: Real>(&self, v: &[T]) -> Reach {
        let count = v.len().min(self.powers.len());
        let reversed = &self.powers_reversed[self.powers.len() - count..];
        vectorized!(Reach {
            right: dot(reversed, &v[v.len() - count..]),
            left: dot(&self.powers[..count], &v[..count]),
        })
    }
}

/// Dot product in `f64`, in lanes.
#[inline(always)]
fn dot<T: Real>(weights: &[f64], x: &[T]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    let (whole_w, rest_w) = weights.as_chunks::<LANES>();
    let (whole_x, rest_x) = x.as_chunks::<LANES>();
    for (w, x) in whole_w.iter().zip(whole_x) {
        for l in 0..LANES {
            lanes[l] = w[l].mul_add(x[l].to_f64(), lanes[l]);
        }
    }
    for (lane, (w, x)) in lanes.iter_mut().zip(rest_w.iter().zip(rest_x)) {
        *lane = w.mul_add(x.to_f64(), *lane);
    }
    lanes.iter().sum()
}
