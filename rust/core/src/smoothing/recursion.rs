//! The exact solution in two recursions.
//!
//! With `q = sqrt(1 + 4s)` and `r = (q-1)/(q+1)`, and `S` the shift around the cycle,
//! `A = (1 - r S)(1 - r S^-1) / (1-r)^2`. So `u = (1-r)^2 w`, where
//!
//! - forward `y_i = v_i + r y_(i-1)`,
//! - backward `w_i = y_i + r w_(i+1)`.
//!
//! Each step of a recursion waits for the last, so the elements are cut into tiles that are computed side by side. A
//! tile needs one number from outside at either end, and both follow from sums over `v` alone:
//!
//! - on its left `y_(a-1) = sum_k r^k v_(a-1-k)`,
//! - on its right `w_e = (z_e + r y_(e-1)) / (1 - r^2)` with `z_e = sum_k r^k v_(e+k)`.
//!
//! Both sums go around the cycle again and again: a geometric series, which is one round divided by `1 - r^d`. A cycle
//! no longer than a tile is one tile, and [`LANES`] rows are computed side by side. A longer one is cut into chunks of
//! [`LANES`] tiles, which stay in the cache between the two recursions and do not wait for each other: what reaches out
//! of a chunk comes from few elements at its ends, unless the smoothing is very large.

use std::ops::Range;
use std::rc::Rc;

use super::Smooth;
use super::decay::{Decay, STRIDE};
use super::kept::{Scratch, last_or_new};
use super::tiles::{LANES, Lanes, Outside, Reach, Sweep, Tiling};
use crate::Real;
use crate::instructions::vectorized;
use crate::parallel::{Cut, Place, SERIAL_BELOW, map_blocks, share};

/// Up to this smoothing `f32` data are smoothed in `f32`; beyond, `1 - r` is so small that digits would be lost.
const NARROW_UP_TO: f64 = 100.0;

/// From this length on a block comes from main memory, and the next chunk is prefetched. Parts of a shorter one may be
/// in the caches of other threads, which would lose lines that they are about to write.
const LONG: usize = 1 << 21;

/// Smooths each row of `v` into `u`, in place without `v`.
pub(super) fn smooth_rows<T: Smooth>(
    v: Option<&[T]>,
    u: &mut [T],
    blocks: &[usize],
    smoothing: f64,
) {
    if size_of::<T>() == 4 && smoothing <= NARROW_UP_TO {
        Recursion::<T>::kept(smoothing, blocks).smooth_rows(v, u);
    } else {
        Recursion::<f64>::kept(smoothing, blocks).smooth_rows(v, u);
    }
}

/// In arithmetic of type `A`.
struct Recursion<A> {
    smoothing: f64,
    /// The blocks of a row.
    cycles: Vec<Cycle>,
    decay: Decay,
    sweep: Sweep<A>,
    /// From this `k` on `r^k` adds nothing.
    range: usize,
    /// `r^0, r^1, ..`
    powers: [f64; STRIDE + 1],
    /// `1 / (1 - r^2)`.
    behind_scale: f64,
}

struct Cycle {
    length: usize,
    /// `1 / (1 - r^length)`: the sum over all rounds divided by that over one.
    rounds: f64,
}

/// What reaches a range of elements from its left, `y_(a-1)`, and from its right, `z_e`.
#[derive(Clone, Copy, Default)]
struct Around {
    from_left: f64,
    from_right: f64,
}

impl<A: Smooth> Recursion<A> {
    /// Elements of a whole tile.
    const TILE: usize = Tiling::whole::<A>().length;
    const CHUNK: usize = LANES * Self::TILE;

    /// That of the thread's last call if it fits, otherwise a new one: setting one up takes a tenth of the time of a
    /// short row.
    fn kept(smoothing: f64, blocks: &[usize]) -> Rc<Self> {
        let fits = |last: &Self| {
            let lengths = last.cycles.iter().map(|cycle| &cycle.length);
            last.smoothing == smoothing && lengths.eq(blocks)
        };
        last_or_new(fits, || Self::new(smoothing, blocks))
    }

    fn new(smoothing: f64, blocks: &[usize]) -> Self {
        let decay = Decay::new(smoothing);
        // A term below this fraction of the largest v is lost in the rounding of the largest u, which is at least that
        // v divided by 1 + 4s.
        let negligible = f64::EPSILON / 256.0 / (1.0 + 4.0 * smoothing);
        let cycle = |&length: &usize| Cycle {
            length,
            rounds: 1.0 / decay.power_from_one(length),
        };
        let longest = blocks.iter().copied().max().unwrap_or(0);
        let ahead = if longest < LONG { 0 } else { Self::CHUNK };
        Recursion {
            smoothing,
            cycles: blocks.iter().map(cycle).collect(),
            sweep: Sweep::new(&decay, longest.min(Self::TILE), ahead),
            range: (libm::log(negligible) / decay.log).ceil() as usize,
            powers: decay.first_powers(),
            behind_scale: 1.0 / (decay.rest * (1.0 + decay.r)),
            decay,
        }
    }

    /// `r^k`, or 0 where it adds nothing.
    fn over(&self, k: usize) -> f64 {
        if k < self.range {
            self.decay.power(k)
        } else {
            0.0
        }
    }

    fn smooth_rows<T: Real>(&self, v: Option<&[T]>, u: &mut [T]) {
        let dim: usize = self.cycles.iter().map(|cycle| cycle.length).sum();
        let groups = Cut::Blocks { len: LANES * dim };
        share(u, groups, Scratch::kept, |scratch, place, u| {
            let v = v.map(|v| &v[place.column..][..u.len()]);
            let mut start = 0;
            for cycle in &self.cycles {
                let block = start..start + cycle.length;
                if cycle.length == 1 {
                    if let Some(v) = v {
                        for i in (start..u.len()).step_by(dim) {
                            u[i] = v[i];
                        }
                    }
                } else if cycle.length <= Self::TILE {
                    self.smooth_side_by_side(v, u, dim, block, cycle.rounds, scratch);
                } else {
                    for row in 0..u.len() / dim {
                        let block = row * dim + block.start..row * dim + block.end;
                        let v = v.map(|v| &v[block.clone()]);
                        self.smooth_cycle(v, &mut u[block], cycle.rounds, scratch);
                    }
                }
                start += cycle.length;
            }
        });
    }

    /// The same short block of up to [`LANES`] rows.
    fn smooth_side_by_side<T: Real>(
        &self,
        v: Option<&[T]>,
        u: &mut [T],
        dim: usize,
        block: Range<usize>,
        rounds: f64,
        scratch: &mut Scratch,
    ) {
        let (copy, y) = scratch.parts();
        let length = block.len();
        let outside = |reach: &Reach<Lanes<A>>| {
            let mut outside = Outside {
                before: [A::ZERO; LANES],
                behind: [A::ZERO; LANES],
            };
            for lane in 0..LANES {
                // On a cycle, the element before the first is the last.
                let last = reach.right[lane].to_f64() * rounds;
                let behind = self.behind(reach.left[lane].to_f64() * rounds, last);
                outside.before[lane] = self.sweep.narrowed(last);
                outside.behind[lane] = self.sweep.narrowed(behind);
            }
            outside
        };
        if u.len() == LANES * dim {
            let tiling = Tiling {
                length,
                stride: dim,
            };
            let v = v.map(|v| &v[block.start..]);
            self.smooth_tiles(v, &mut u[block.start..], tiling, y, outside);
        } else {
            for (tile, row) in copy.chunks_mut(length).zip(v.unwrap_or(u).chunks(dim)) {
                convert(&row[block.clone()], tile);
            }
            let stride = length;
            self.smooth_tiles(None, copy, Tiling { length, stride }, y, outside);
            for (tile, row) in copy.chunks(length).zip(u.chunks_mut(dim)) {
                convert(tile, &mut row[block.clone()]);
            }
        }
    }

    /// Both recursions; `outside` turns what reaches out of the tiles into what comes into them.
    fn smooth_tiles<T: Real>(
        &self,
        v: Option<&[T]>,
        u: &mut [T],
        tiling: Tiling,
        y: &mut [Lanes<A>],
        outside: impl FnOnce(&Reach<Lanes<A>>) -> Outside<Lanes<A>>,
    ) {
        let reach = self.sweep.forward(v.unwrap_or(u), tiling, y);
        self.sweep.backward(y, &outside(&reach), u, tiling);
    }

    fn smooth_cycle<T: Real>(
        &self,
        v: Option<&[T]>,
        u: &mut [T],
        rounds: f64,
        scratch: &mut Scratch,
    ) {
        let around = self.around_chunks(v.unwrap_or(u), rounds);
        let smooth = |scratch: &mut Scratch, chunk: usize, u: &mut [T]| {
            let v = v.map(|v| &v[chunk * Self::CHUNK..][..u.len()]);
            self.smooth_chunk(v, u, around[chunk], scratch);
        };
        if u.len() < SERIAL_BELOW {
            for (chunk, u) in u.chunks_mut(Self::CHUNK).enumerate() {
                smooth(scratch, chunk, u);
            }
        } else {
            let chunks = Cut::Blocks { len: Self::CHUNK };
            share(u, chunks, Scratch::kept, |scratch, place: Place, u| {
                smooth(scratch, place.column / Self::CHUNK, u);
            });
        }
    }

    /// What reaches each chunk from the whole cycle.
    fn around_chunks<T: Real>(&self, v: &[T], rounds: f64) -> Vec<Around> {
        let reach = map_blocks(v, Self::CHUNK, |chunk| self.reach(chunk));
        let last_length = v.len() - (reach.len() - 1) * Self::CHUNK;
        let (whole, last) = (self.over(Self::CHUNK), self.over(last_length));
        let over = |chunk: usize| if chunk + 1 < reach.len() { whole } else { last };
        let mut around = vec![Around::default(); reach.len()];
        // The first round sums the whole cycle, the second starts from that sum.
        let (mut from_left, mut from_right) = (0.0, 0.0);
        for _ in 0..2 {
            for (i, reach) in reach.iter().enumerate() {
                around[i].from_left = from_left;
                from_left = reach.right + over(i) * from_left;
            }
            for (i, reach) in reach.iter().enumerate().rev() {
                around[i].from_right = from_right;
                from_right = reach.left + over(i) * from_right;
            }
            (from_left, from_right) = (from_left * rounds, from_right * rounds);
        }
        around
    }

    fn reach<T: Real>(&self, v: &[T]) -> Reach<f64> {
        let near = v.len().min(self.range);
        let (first, strides) = v[v.len() - near..].as_rchunks::<STRIDE>();
        let mut sums = [0.0; STRIDE];
        for (sum, v) in sums[STRIDE - first.len()..].iter_mut().zip(first) {
            *sum = v.to_f64();
        }
        vectorized!(self.add_strides(&mut sums, strides.iter()));
        let right = sums.iter().rev().zip(&self.powers);
        let right = right.map(|(sum, power)| sum * power).sum();

        let (strides, last) = v[..near].as_chunks::<STRIDE>();
        let mut sums = [0.0; STRIDE];
        for (sum, v) in sums.iter_mut().zip(last) {
            *sum = v.to_f64();
        }
        vectorized!(self.add_strides(&mut sums, strides.iter().rev()));
        let left = sums.iter().zip(&self.powers);
        let left = left.map(|(sum, power)| sum * power).sum();
        Reach { right, left }
    }

    /// Adds strides, from the farthest to the nearest, to `total`: one sum for each place in a stride, by Horner's
    /// scheme.
    #[inline(always)]
    fn add_strides<'a, T: Real>(
        &self,
        total: &mut [f64; STRIDE],
        strides: impl Iterator<Item = &'a [T; STRIDE]>,
    ) {
        let mut sums = *total;
        for stride in strides {
            for k in 0..STRIDE {
                sums[k] = sums[k].mul_add(self.powers[STRIDE], stride[k].to_f64());
            }
        }
        *total = sums;
    }

    /// Smooths [`LANES`] tiles, and the few elements left over behind them.
    fn smooth_chunk<T: Real>(
        &self,
        v: Option<&[T]>,
        u: &mut [T],
        around: Around,
        scratch: &mut Scratch,
    ) {
        let (_, y) = scratch.parts();
        let length = u.len() / LANES;
        let tiling = Tiling {
            length,
            stride: length,
        };
        let from = v.unwrap_or(u);
        let reach = self.sweep.forward(from, tiling, y);
        let over = self.over(length);
        let rest = &from[LANES * length..];
        let (outside, rest) = vectorized!(self.outside_of_tiles(&reach, over, around, rest));
        for (u, rest) in u[LANES * length..].iter_mut().zip(rest) {
            *u = T::from_f64(rest);
        }
        self.sweep.backward(y, &outside, u, tiling);
    }

    /// What comes into each tile, and the result for `rest`, the elements behind the last tile.
    #[inline(always)]
    fn outside_of_tiles<T: Real>(
        &self,
        reach: &Reach<Lanes<A>>,
        over: f64,
        around: Around,
        rest: &[T],
    ) -> (Outside<Lanes<A>>, [f64; LANES]) {
        let r = self.decay.r;
        // `y` before each tile and behind the last; it passes through a tile only where it still matters.
        let mut last = [around.from_left; LANES + 1];
        for (last, right) in last[1..].iter_mut().zip(&reach.right) {
            *last = right.to_f64();
        }
        if over > 0.0 {
            for lane in 0..LANES {
                last[lane + 1] = over.mul_add(last[lane], last[lane + 1]);
            }
        }
        let (mut rest_u, mut y) = ([0.0; LANES], last[LANES]);
        for (u, v) in rest_u.iter_mut().zip(rest) {
            y = r.mul_add(y, v.to_f64());
            *u = y;
        }
        let mut w = self.behind(around.from_right, y);
        let mut from_right = around.from_right;
        for (u, v) in rest_u.iter_mut().zip(rest).rev() {
            from_right = r.mul_add(from_right, v.to_f64());
            w = r.mul_add(w, *u);
            *u = w * self.decay.rest * self.decay.rest;
        }
        let mut next = [from_right; LANES + 1];
        for (next, left) in next.iter_mut().zip(&reach.left) {
            *next = left.to_f64();
        }
        if over > 0.0 {
            for lane in (0..LANES).rev() {
                next[lane] = over.mul_add(next[lane + 1], next[lane]);
            }
        }
        let mut outside = Outside {
            before: [A::ZERO; LANES],
            behind: [A::ZERO; LANES],
        };
        for lane in 0..LANES {
            let behind = self.behind(next[lane + 1], last[lane + 1]);
            outside.before[lane] = self.sweep.narrowed(last[lane]);
            outside.behind[lane] = self.sweep.narrowed(behind);
        }
        (outside, rest_u)
    }

    /// `w` behind an element, from what reaches it from its right and its `y`.
    #[inline(always)]
    fn behind(&self, from_right: f64, y: f64) -> f64 {
        (from_right + self.decay.r * y) * self.behind_scale
    }
}

fn convert<T: Real, A: Real>(from: &[T], to: &mut [A]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = A::from_f64(from.to_f64());
    }
}
