//! The two recursions over [`LANES`] tiles side by side.
//!
//! Each lane goes forward through its tile as if nothing came from outside: `y_i = v_i + r y_(i-1)` from 0. What
//! does come from outside are two numbers for each lane, known only when all lanes have gone forward; on the way
//! back, `w_i = y_i + r w_(i+1)` takes them in. Two elements go at a time, `y_(i+1) = r^2 y_(i-1) + (v_(i+1) + r v_i)`,
//! so that half as many results are waited for. A lane's arithmetic is the same wherever it runs, so that the bits
//! are the same with vectors of any width and without.

#[cfg(target_arch = "x86_64")]
use pulp::Arch;

use super::Smooth;
use super::decay::Decay;
#[cfg(target_arch = "x86_64")]
use super::vectors::Pass;
use crate::Real;
use crate::parallel::{dispatch_on, instruction_set};

/// Tiles side by side.
pub(super) const LANES: usize = 16;

/// One number for each lane.
pub(super) type Lanes<A> = [A; LANES];

/// Neighbouring elements, cut into tiles.
pub(super) type Tiles<T, const TILE: usize> = [[T; TILE]; LANES];

/// Elements of a tile that go at once: how many a tile has is a multiple of it.
pub(super) const STEP: usize = 8;

/// Elements of a tile between two looks for numbers that are as good as 0.
pub(super) const CHECK: usize = 16;

/// What reaches over the ends of a stretch of elements.
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
    /// 1 for the places of a tile before its first element, and from there on `r^0, r^1, ..`.
    powers: Vec<A>,
    /// What is smaller becomes 0: where `v` is 0, a recursion would linger at subnormal numbers, which are slow.
    pub(super) tiny: A,
    /// How many elements ahead the tiles' elements are asked for; 0 if they are in the cache anyway.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    pub(super) ahead: usize,
}

/// With the widest vectors that the processor has, or portably.
macro_rules! on_widest {
    ($simd:ident => $with_vectors:expr, $portably:expr) => {
        match instruction_set() {
            #[cfg(target_arch = "x86_64")]
            Arch::V4($simd) => dispatch_on(
                Arch::V4($simd),
                #[inline(always)]
                || $with_vectors,
            ),
            #[cfg(target_arch = "x86_64")]
            Arch::V3($simd) => dispatch_on(
                Arch::V3($simd),
                #[inline(always)]
                || $with_vectors,
            ),
            set => dispatch_on(
                set,
                #[inline(always)]
                || $portably,
            ),
        }
    };
}

impl<A: Smooth> Sweep<A> {
    pub(super) fn new(decay: &Decay, longest: usize, ahead: usize) -> Self {
        let mut powers = vec![A::ONE; STEP + longest];
        decay.powers_into(&mut powers[STEP - 1..]);
        Sweep {
            r: A::from_f64(decay.r),
            r_squared: A::from_f64(decay.r * decay.r),
            scale: A::from_f64(decay.rest * decay.rest),
            powers,
            tiny: A::MIN_POSITIVE * A::from_f64(f64::from(1 << 20)),
            ahead,
        }
    }

    /// `value` in this arithmetic.
    #[inline(always)]
    pub(super) fn narrowed(&self, value: f64) -> A {
        self.without_less(A::from_f64(value))
    }

    #[inline(always)]
    fn without_less(&self, value: A) -> A {
        if value.abs() < self.tiny {
            A::ZERO
        } else {
            value
        }
    }

    /// Forward from 0 through tiles as long as `y`, of which the first `padding` places, less than [`STEP`], hold
    /// zeros. Gives what reaches out of each.
    pub(super) fn forward<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        padding: usize,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let powers = &self.powers[STEP - 1 - padding..];
        on_widest!(
            simd => Pass::new(simd, self, powers).forward(v, y),
            self.forward_portably(v, powers, y)
        )
    }

    /// Backward through the same tiles, with what comes from outside.
    pub(super) fn backward<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        padding: usize,
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        let powers = &self.powers[STEP - 1 - padding..];
        on_widest!(
            simd => Pass::new(simd, self, powers).backward(y, outside, u),
            self.backward_portably(powers, y, outside, u)
        );
    }

    #[inline(always)]
    fn forward_portably<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        powers: &[A],
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let (mut right, mut even) = ([A::ZERO; LANES], [A::ZERO; LANES]);
        let mut odd = even;
        for (i, [first, second]) in y.as_chunks_mut().0.iter_mut().enumerate() {
            let k = 2 * i;
            for lane in 0..LANES {
                if k.is_multiple_of(CHECK) {
                    right[lane] = self.without_less(right[lane]);
                }
                let [a, b] = [v[lane][k], v[lane][k + 1]].map(|v| A::from_f64(v.to_f64()));
                first[lane] = self.after(right[lane], a);
                right[lane] = self.r_squared.mul_add(right[lane], self.after(a, b));
                second[lane] = right[lane];
                even[lane] = powers[k].mul_add(a, even[lane]);
                odd[lane] = powers[k + 1].mul_add(b, odd[lane]);
            }
        }
        let left = std::array::from_fn(|lane| even[lane] + odd[lane]);
        Reach { right, left }
    }

    #[inline(always)]
    fn backward_portably<T: Real, const TILE: usize>(
        &self,
        powers: &[A],
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        let (before, mut behind) = (outside.before, outside.behind);
        for (i, [first, second]) in y.as_chunks().0.iter().enumerate().rev() {
            let k = 2 * i;
            for lane in 0..LANES {
                if (k + 2).is_multiple_of(CHECK) {
                    behind[lane] = self.without_less(behind[lane]);
                }
                let a = powers[k + 1].mul_add(before[lane], first[lane]);
                let b = powers[k + 2].mul_add(before[lane], second[lane]);
                let last = self.after(behind[lane], b);
                behind[lane] = self.r_squared.mul_add(behind[lane], self.after(b, a));
                let scaled = [behind[lane], last].map(|w| T::from_f64((w * self.scale).to_f64()));
                u[lane][k..k + 2].copy_from_slice(&scaled);
            }
        }
    }

    /// The recursion's next value, from its last one.
    #[inline(always)]
    fn after(&self, last: A, value: A) -> A {
        self.r.mul_add(last, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::with_each_instruction_set;

    fn check<T: Real, A: Smooth>(length: usize, padding: usize, smoothing: f64) {
        const TILE: usize = 64;
        let value = |i: usize| {
            let is_zero = i % TILE < padding || !i.is_multiple_of(7);
            T::from_f64(if is_zero { 0.0 } else { (i as f64).sin() })
        };
        let v: Tiles<T, TILE> =
            std::array::from_fn(|lane| std::array::from_fn(|k| value(lane * TILE + k)));
        let sweep = Sweep::<A>::new(&Decay::new(smoothing), length, 0);
        let results = with_each_instruction_set(|| {
            let (mut y, mut u) = (vec![[A::ONE; LANES]; length], v);
            let reach = sweep.forward(&u, padding, &mut y);
            let outside = Outside {
                before: std::array::from_fn(|lane| A::from_f64(lane as f64)),
                behind: reach.left,
            };
            sweep.backward(&y, padding, &outside, &mut u);
            let values: Vec<&[T]> = u.iter().map(|tile| &tile[..length]).collect();
            format!("{:?} {:?} {values:?}", reach.right, reach.left)
        });
        for result in &results[1..] {
            assert!(*result == results[0], "length {length}, s = {smoothing}");
        }
    }

    /// As printed, which is exact.
    #[test]
    fn vectors_do_not_change_the_bits() {
        for (length, padding) in [(8, 0), (8, 7), (16, 3), (40, 1), (64, 0)] {
            for smoothing in [1e-7, 0.2, 1.0, 80.0] {
                check::<f32, f32>(length, padding, smoothing);
                check::<f32, f64>(length, padding, smoothing);
                check::<f64, f64>(length, padding, smoothing);
            }
        }
    }
}
