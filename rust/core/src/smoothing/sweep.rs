//! The two recursions over [`LANES`] tiles side by side.
//!
//! Each lane goes forward through its tile as if nothing came from outside: `y_i = v_i + r y_(i-1)` from 0. What
//! does come from outside are two numbers for each lane, known only when all lanes have gone forward; on the way
//! back, `w_i = y_i + r w_(i+1)` takes them in. A lane's arithmetic is the same wherever it runs, so that the bits
//! are the same with vectors of any width and without.

use super::Smooth;
use super::decay::Decay;
use super::vectors::Vectors;
use crate::Real;
use crate::parallel::vectorized;

/// Tiles side by side.
pub(super) const LANES: usize = 16;

/// One number for each lane.
pub(super) type Lanes<A> = [A; LANES];

/// Neighbouring elements, cut into tiles.
pub(super) type Tiles<T, const TILE: usize> = [[T; TILE]; LANES];

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
    /// Factor of the result.
    pub(super) scale: A,
    /// `r^0, r^1, ..` up to the length of the longest tile.
    pub(super) powers: Vec<A>,
    /// What is smaller becomes 0: where `v` is 0, a recursion would linger at subnormal numbers, which are slow.
    pub(super) tiny: A,
    vectors: Option<Vectors>,
}

impl<A: Smooth> Sweep<A> {
    pub(super) fn new(decay: &Decay, longest: usize) -> Self {
        let powers = decay.powers(longest + 1);
        Sweep {
            r: A::from_f64(decay.r),
            scale: A::from_f64(decay.rest * decay.rest),
            powers: powers.into_iter().map(A::from_f64).collect(),
            tiny: A::MIN_POSITIVE * A::from_f64(f64::from(1 << 20)),
            vectors: Vectors::try_new(),
        }
    }

    /// `value` in this arithmetic.
    #[inline(always)]
    pub(super) fn narrowed(&self, value: f64) -> A {
        let value = A::from_f64(value);
        if value.abs() < self.tiny {
            A::ZERO
        } else {
            value
        }
    }

    /// Forward from 0 through tiles as long as `y`. Gives what reaches out of each.
    pub(super) fn forward<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        vectorized!(match self.vectors {
            Some(vectors) => vectors.forward(self, v, y),
            None => self.forward_portably(v, y),
        })
    }

    /// Backward through the same tiles, with what comes from outside.
    pub(super) fn backward<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        vectorized!(match self.vectors {
            Some(vectors) => vectors.backward(self, y, outside, u),
            None => self.backward_portably(y, outside, u),
        });
    }

    #[inline(always)]
    fn forward_portably<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let (mut right, mut left) = ([A::ZERO; LANES], [A::ZERO; LANES]);
        for (k, y) in y.iter_mut().enumerate() {
            for lane in 0..LANES {
                if k.is_multiple_of(CHECK) && right[lane].abs() < self.tiny {
                    right[lane] = A::ZERO;
                }
                let v = A::from_f64(v[lane][k].to_f64());
                right[lane] = self.r.mul_add(right[lane], v);
                left[lane] = self.powers[k].mul_add(v, left[lane]);
            }
            *y = right;
        }
        Reach { right, left }
    }

    #[inline(always)]
    fn backward_portably<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        let (before, mut behind) = (outside.before, outside.behind);
        for (k, y) in y.iter().enumerate().rev() {
            for lane in 0..LANES {
                if (k + 1).is_multiple_of(CHECK) && behind[lane].abs() < self.tiny {
                    behind[lane] = A::ZERO;
                }
                let y = self.powers[k + 1].mul_add(before[lane], y[lane]);
                behind[lane] = self.r.mul_add(behind[lane], y);
                u[lane][k] = T::from_f64((behind[lane] * self.scale).to_f64());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Real, A: Smooth>(length: usize, smoothing: f64) {
        const TILE: usize = 64;
        let value = |i: usize| {
            T::from_f64(if i.is_multiple_of(7) {
                (i as f64).sin()
            } else {
                0.0
            })
        };
        let v: Tiles<T, TILE> =
            std::array::from_fn(|lane| std::array::from_fn(|k| value(lane * TILE + k)));
        let run = |sweep: &Sweep<A>| {
            let (mut y, mut u) = (vec![[A::ONE; LANES]; length], v);
            let reach = sweep.forward(&u, &mut y);
            let outside = Outside {
                before: std::array::from_fn(|lane| A::from_f64(lane as f64)),
                behind: reach.left,
            };
            sweep.backward(&y, &outside, &mut u);
            let values: Vec<&[T]> = u.iter().map(|tile| &tile[..length]).collect();
            format!("{:?} {values:?}", reach.right)
        };
        let mut sweep = Sweep::<A>::new(&Decay::new(smoothing), length);
        let with_vectors = run(&sweep);
        sweep.vectors = None;
        assert_eq!(
            with_vectors,
            run(&sweep),
            "length {length}, s = {smoothing}"
        );
    }

    /// As printed, which is exact.
    #[test]
    fn vectors_do_not_change_the_bits() {
        for length in [0, 1, 2, 3, 4, 5, 63, 64] {
            for smoothing in [1e-7, 0.2, 1.0, 80.0] {
                check::<f32, f32>(length, smoothing);
                check::<f32, f64>(length, smoothing);
                check::<f64, f64>(length, smoothing);
            }
        }
    }
}
