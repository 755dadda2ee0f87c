//! The tiles that a sweep goes through side by side, and its constants.

use super::decay::Decay;
use crate::Real;

/// Tiles side by side.
pub(super) const LANES: usize = 16;

/// One number for each lane.
pub(super) type Lanes<A> = [A; LANES];

/// Elements of a tile in a step.
pub(super) const STEP: usize = 8;

/// Steps of all tiles.
pub(super) type Steps<'a, T> = [&'a [[T; STEP]]; LANES];

/// As [`Steps`], for writing.
pub(super) type StepsMut<'a, T> = [&'a mut [[T; STEP]]; LANES];

/// Tiles of `length` elements that begin `stride` elements apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    pub(super) length: usize,
    pub(super) stride: usize,
}

impl Tiling {
    /// The longest tiles for arithmetic of type `A`, of 1 KiB: those of all lanes fit the L1 cache, beside `y` and the
    /// next ones.
    pub(super) const fn whole<A>() -> Tiling {
        let length = 1024 / size_of::<A>();
        let stride = length;
        Tiling { length, stride }
    }

    /// The same; `WHOLE` tiles are known at compile time, so that their addresses need no arithmetic.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn known<A, const WHOLE: bool>(self) -> Tiling {
        if WHOLE { Tiling::whole::<A>() } else { self }
    }

    /// How many elements of a tile are left over from whole steps: they come first, padded with zeros before them.
    pub(super) fn first(self) -> usize {
        self.length % STEP
    }

    /// Calls `work(from, steps, i)` for each step, the `i`th of `steps`; `from` counts the elements of a tile before
    /// it, padding included. (Loops: the compiler does not inline `array::from_fn` and `map`, which doubles the time.)
    #[inline(always)]
    pub(super) fn each_step<T: Real>(
        self,
        v: &[T],
        mut work: impl FnMut(usize, &Steps<'_, T>, usize),
    ) {
        let mut firsts: [&[T]; LANES] = [&[]; LANES];
        let mut steps: Steps<'_, T> = [&[]; LANES];
        let mut rest = v;
        for lane in 0..LANES - 1 {
            let (tile, after) = rest.split_at(self.stride);
            (firsts[lane], steps[lane]) = tile[..self.length].as_rchunks();
            rest = after;
        }
        (firsts[LANES - 1], steps[LANES - 1]) = rest[..self.length].as_rchunks();
        let mut from = 0;
        if self.first() > 0 {
            let mut padded = [[[T::ZERO; STEP]]; LANES];
            for (padded, first) in padded.iter_mut().zip(firsts) {
                padded[0][STEP - first.len()..].copy_from_slice(first);
            }
            let mut steps: Steps<'_, T> = [&[]; LANES];
            for lane in 0..LANES {
                steps[lane] = &padded[lane];
            }
            work(0, &steps, 0);
            from = STEP;
        }
        for i in 0..self.length / STEP {
            work(from, &steps, i);
            from += STEP;
        }
    }

    /// As [`each_step`](Self::each_step), from the last step to the first, for `work` that writes the elements.
    #[inline(always)]
    pub(super) fn each_step_back<T: Real>(
        self,
        u: &mut [T],
        mut work: impl FnMut(usize, &mut StepsMut<'_, T>, usize),
    ) {
        let mut firsts: [&mut [T]; LANES] = Default::default();
        let mut steps: StepsMut<'_, T> = Default::default();
        let mut rest = u;
        for lane in 0..LANES - 1 {
            let (tile, after) = rest.split_at_mut(self.stride);
            (firsts[lane], steps[lane]) = tile[..self.length].as_rchunks_mut();
            rest = after;
        }
        (firsts[LANES - 1], steps[LANES - 1]) = rest[..self.length].as_rchunks_mut();
        let mut from = self.length.next_multiple_of(STEP);
        for i in (0..self.length / STEP).rev() {
            from -= STEP;
            work(from, &mut steps, i);
        }
        if self.first() > 0 {
            let mut padded = [[[T::ZERO; STEP]]; LANES];
            let mut steps: StepsMut<'_, T> = Default::default();
            for (steps, padded) in steps.iter_mut().zip(&mut padded) {
                *steps = padded;
            }
            work(0, &mut steps, 0);
            for (padded, first) in padded.iter().zip(firsts) {
                first.copy_from_slice(&padded[0][STEP - first.len()..]);
            }
        }
    }
}

/// Elements of a tile between two checks for numbers that are as good as 0.
pub(super) const CHECK: usize = 16;

/// What reaches beyond the ends of a range of elements.
#[derive(Clone, Copy)]
pub(super) struct Reach<N> {
    /// `sum_k r^k v_(e-1-k)` over the elements before the right end `e`.
    pub(super) right: N,
    /// `sum_k r^k v_(a+k)` over the elements from the left end `a` on.
    pub(super) left: N,
}

/// What comes into a tile: `y` before its first element, and `w` behind its last.
pub(super) struct Outside<N> {
    pub(super) before: N,
    pub(super) behind: N,
}

/// The recursions in arithmetic of type `A`.
pub(super) struct Sweep<A> {
    pub(super) r: A,
    pub(super) r_squared: A,
    /// Factor of the result.
    pub(super) scale: A,
    /// 1 for the padding of a tile, then `r^0, r^1, ..`, then zeros to complete a step; later steps have no powers, and
    /// need none.
    powers: Vec<A>,
    /// Smaller numbers become 0: where `v` is 0, a recursion would linger at subnormal numbers, which are slow.
    pub(super) tiny: A,
    /// How many elements ahead to prefetch; 0 if they are in the cache anyway.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub(super) ahead: usize,
}

impl<A> Sweep<A> {
    /// The powers for the places of a tile, padding included.
    pub(super) fn powers(&self, tiling: Tiling) -> &[A] {
        &self.powers[(tiling.first() + STEP - 1) % STEP..]
    }
}

impl<A: Real> Sweep<A> {
    pub(super) fn new(decay: &Decay, longest: usize, ahead: usize) -> Self {
        let mut powers = Vec::with_capacity(longest + 4 * STEP);
        powers.resize(STEP - 1, A::ONE);
        decay.append_powers(longest + 1, &mut powers);
        powers.resize(powers.len() + STEP, A::ZERO);
        Sweep {
            r: A::from_f64(decay.r),
            r_squared: A::from_f64(decay.r * decay.r),
            scale: A::from_f64(decay.rest * decay.rest),
            powers,
            tiny: A::MIN_POSITIVE * A::from_f64(f64::from(1 << 20)),
            ahead,
        }
    }
}
