//! The two recursions over [`LANES`] tiles side by side.
//!
//! Each lane goes forward through its tile as if nothing came from outside: `y_i = v_i + r y_(i-1)` from 0. The two
//! numbers that do come from outside are known only when all lanes have gone forward; the way back,
//! `w_i = y_i + r w_(i+1)`, takes them in. Two elements are computed at a time,
//! `y_(i+1) = r^2 y_(i-1) + (v_(i+1) + r v_i)`, which halves the results to wait for. A lane's arithmetic is the same
//! wherever it runs, so that the bits are the same with vectors of any width and without.

#[cfg(target_arch = "x86_64")]
use pulp::Arch;

use super::Smooth;
use super::tiles::{CHECK, LANES, Lanes, Outside, Reach, STEP, Sweep, Tiling};
#[cfg(target_arch = "x86_64")]
use super::vectors::Pass;
use crate::Real;
use crate::instructions::{dispatch_on, instruction_set};

/// With the widest vectors of this processor, or portably.
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

    /// Goes forward from 0 through tiles, writes `y`, that of padding included, and returns what reaches out of each.
    pub(super) fn forward<T: Real>(
        &self,
        v: &[T],
        tiling: Tiling,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        if tiling == Tiling::whole::<A>() {
            self.forward_compiled::<T, true>(v, tiling, y)
        } else {
            self.forward_compiled::<T, false>(v, tiling, y)
        }
    }

    fn forward_compiled<T: Real, const WHOLE: bool>(
        &self,
        v: &[T],
        tiling: Tiling,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        on_widest!(
            simd => Pass::new(simd, self, tiling.known::<A, WHOLE>()).forward(v, y),
            self.forward_portably(v, tiling, y)
        )
    }

    /// Goes back through the same tiles with what comes into them, and writes `u`.
    pub(super) fn backward<T: Real>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut [T],
        tiling: Tiling,
    ) {
        if tiling == Tiling::whole::<A>() {
            self.backward_compiled::<T, true>(y, outside, u, tiling);
        } else {
            self.backward_compiled::<T, false>(y, outside, u, tiling);
        }
    }

    fn backward_compiled<T: Real, const WHOLE: bool>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut [T],
        tiling: Tiling,
    ) {
        on_widest!(
            simd => Pass::new(simd, self, tiling.known::<A, WHOLE>()).backward(y, outside, u),
            self.backward_portably(y, outside, u, tiling)
        );
    }

    #[inline(always)]
    fn forward_portably<T: Real>(
        &self,
        v: &[T],
        tiling: Tiling,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let powers = self.powers(tiling);
        let (mut right, mut even) = ([A::ZERO; LANES], [A::ZERO; LANES]);
        let mut odd = even;
        tiling.each_step(v, |from, steps, i| {
            let powers = powers.get(from..from + STEP);
            let y = &mut y[from..from + STEP];
            for k in (0..STEP).step_by(2) {
                for lane in 0..LANES {
                    if (from + k).is_multiple_of(CHECK) {
                        right[lane] = self.without_less(right[lane]);
                    }
                    let [a, b] = [0, 1].map(|j| A::from_f64(steps[lane][i][k + j].to_f64()));
                    y[k][lane] = self.after(right[lane], a);
                    right[lane] = self.r_squared.mul_add(right[lane], self.after(a, b));
                    y[k + 1][lane] = right[lane];
                    if let Some(powers) = powers {
                        even[lane] = powers[k].mul_add(a, even[lane]);
                        odd[lane] = powers[k + 1].mul_add(b, odd[lane]);
                    }
                }
            }
        });
        let left = std::array::from_fn(|lane| even[lane] + odd[lane]);
        Reach { right, left }
    }

    #[inline(always)]
    fn backward_portably<T: Real>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut [T],
        tiling: Tiling,
    ) {
        let powers = self.powers(tiling);
        let (before, mut behind) = (outside.before, outside.behind);
        tiling.each_step_back(u, |from, steps, i| {
            let powers = powers.get(from + 1..from + 1 + STEP);
            let y = &y[from..from + STEP];
            for k in (0..STEP).step_by(2).rev() {
                for lane in 0..LANES {
                    if (from + k + 2).is_multiple_of(CHECK) {
                        behind[lane] = self.without_less(behind[lane]);
                    }
                    let [mut a, mut b] = [y[k][lane], y[k + 1][lane]];
                    if let Some(powers) = powers {
                        a = powers[k].mul_add(before[lane], a);
                        b = powers[k + 1].mul_add(before[lane], b);
                    }
                    let last = self.after(behind[lane], b);
                    behind[lane] = self.r_squared.mul_add(behind[lane], self.after(b, a));
                    steps[lane][i][k] = T::from_f64((behind[lane] * self.scale).to_f64());
                    steps[lane][i][k + 1] = T::from_f64((last * self.scale).to_f64());
                }
            }
        });
    }

    /// The recursion's next value, from its last one.
    #[inline(always)]
    fn after(&self, last: A, value: A) -> A {
        self.r.mul_add(last, value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decay::Decay;
    use super::*;
    use crate::instructions::with_each_instruction_set;

    fn check<T: Real, A: Smooth>(length: usize, smoothing: f64) {
        // Where only zeros come, both recursions fall to numbers that are as good as 0.
        let value = |i: usize| T::from_f64(if i % 97 < 7 { (i as f64).sin() } else { 0.0 });
        let stride = length + 3;
        let tiling = Tiling { length, stride };
        let v: Vec<T> = (0..LANES * stride).map(value).collect();
        let sweep = Sweep::<A>::new(&Decay::new(smoothing), length, 0);
        let results = with_each_instruction_set(|| {
            let padded = length.next_multiple_of(STEP);
            let (mut y, mut u) = (vec![[A::ONE; LANES]; padded], v.clone());
            let reach = sweep.forward(&u, tiling, &mut y);
            let outside = Outside {
                before: std::array::from_fn(|lane| A::from_f64(lane as f64)),
                behind: reach.left,
            };
            sweep.backward(&y, &outside, &mut u, tiling);
            format!("{:?} {:?} {y:?} {u:?}", reach.right, reach.left)
        });
        for result in &results[1..] {
            assert!(*result == results[0], "length {length}, s = {smoothing}");
        }
    }

    /// Results are compared as printed, which is exact.
    #[test]
    fn vectors_do_not_change_the_bits() {
        for length in [1, 8, 13, 39, 64, 250] {
            for smoothing in [1e-7, 0.2, 1.0, 80.0] {
                check::<f32, f32>(length, smoothing);
                check::<f32, f64>(length, smoothing);
                check::<f64, f64>(length, smoothing);
            }
        }
    }
}
