//! The lanes of a sweep in vectors, on x86-64 processors with AVX-512, or with AVX2 and FMA.
//!
//! Neighbouring elements belong to one lane, but a vector holds one element of each of its lanes. So eight elements
//! of each lane are read at once and transposed into eight vectors, and transposed back before they are written.

mod avx2;
mod avx512;

use pulp::bytemuck::Pod;
use pulp::x86::{V3, V4};

use super::tiles::{CHECK, LANES, Lanes, Outside, Reach, STEP, Steps, StepsMut, Sweep, Tiling};
use crate::Real;
use crate::cache::{LINE, prefetch_to_l2};

/// The elements of one step in each lane; of these, only as many as a vector has are used.
type Rows<A> = [[A; STEP]; LANES];

/// A floating-point type that smoothing computes in.
pub trait Smooth: InVectors<V3> + InVectors<V4> {}

impl Smooth for f32 {}
impl Smooth for f64 {}

/// Numbers in vectors of the instruction set `S`.
pub trait InVectors<S>: Real + Pod {
    #[doc(hidden)]
    type Vector: Copy;
    /// Numbers in a vector, a divisor of [`LANES`].
    #[doc(hidden)]
    const WIDTH: usize;
    #[doc(hidden)]
    fn splat(simd: S, value: Self) -> Self::Vector;
    #[doc(hidden)]
    fn load(lanes: &[Self]) -> Self::Vector;
    #[doc(hidden)]
    fn store(vector: Self::Vector, lanes: &mut [Self]);
    /// `a * b + c`, rounded once.
    #[doc(hidden)]
    fn multiply_add(simd: S, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// 0 where the absolute value is less than `limit`.
    #[doc(hidden)]
    fn without_less(simd: S, vector: Self::Vector, limit: Self::Vector) -> Self::Vector;
    /// From the numbers of each lane, the vector of the first ones, of the second ones, ..
    #[doc(hidden)]
    fn columns(simd: S, rows: Rows<Self>) -> [Self::Vector; STEP];
    /// The reverse of [`columns`](Self::columns), times `factor`. The product is formed after transposing and before
    /// the vectors are taken apart: elsewhere the compiler takes them apart first, which is slower.
    #[doc(hidden)]
    fn rows(simd: S, columns: [Self::Vector; STEP], factor: Self::Vector) -> Rows<Self>;
}

/// The vectors of all lanes; if they are wider, only the first ones are used.
type All<S, A> = [<A as InVectors<S>>::Vector; 4];

/// The constants of a sweep, in all lanes of a vector.
pub(super) struct Pass<'a, S, A: InVectors<S>> {
    simd: S,
    r: A::Vector,
    r_squared: A::Vector,
    scale: A::Vector,
    tiny: A::Vector,
    tiling: Tiling,
    powers: &'a [A],
    ahead: usize,
}

impl<'a, S: Copy, A: InVectors<S>> Pass<'a, S, A> {
    #[inline(always)]
    pub(super) fn new(simd: S, sweep: &'a Sweep<A>, tiling: Tiling) -> Self {
        Pass {
            simd,
            r: A::splat(simd, sweep.r),
            r_squared: A::splat(simd, sweep.r_squared),
            scale: A::splat(simd, sweep.scale),
            tiny: A::splat(simd, sweep.tiny),
            tiling,
            powers: sweep.powers(tiling),
            ahead: sweep.ahead,
        }
    }

    /// [`Sweep::forward`].
    #[inline(always)]
    pub(super) fn forward<T: Real>(&self, v: &[T], y: &mut [Lanes<A>]) -> Reach<Lanes<A>> {
        let mut right = [A::splat(self.simd, A::ZERO); 4];
        let mut left = right.map(|zero| [zero; 2]);
        let start = v.as_ptr();
        // Unrolled by hand, or the vectors would stay in memory. One computes while another waits for its last result.
        self.tiling.each_step(
            v,
            #[inline(always)]
            |from, steps, i| {
                self.prefetch_next(start, from);
                let y = &mut y[from..from + STEP];
                self.forward_one(steps, i, from, y, 0, &mut right[0], &mut left[0]);
                if A::WIDTH <= LANES / 2 {
                    self.forward_one(steps, i, from, y, A::WIDTH, &mut right[1], &mut left[1]);
                }
                if A::WIDTH <= LANES / 4 {
                    self.forward_one(steps, i, from, y, 2 * A::WIDTH, &mut right[2], &mut left[2]);
                    self.forward_one(steps, i, from, y, 3 * A::WIDTH, &mut right[3], &mut left[3]);
                }
            },
        );
        let mut reach = Reach {
            right: [A::ZERO; LANES],
            left: [A::ZERO; LANES],
        };
        let mut odd = [A::ZERO; LANES];
        for (i, lane) in (0..LANES).step_by(A::WIDTH).enumerate() {
            A::store(right[i], &mut reach.right[lane..]);
            A::store(left[i][0], &mut reach.left[lane..]);
            A::store(left[i][1], &mut odd[lane..]);
        }
        for (left, odd) in reach.left.iter_mut().zip(odd) {
            *left += odd;
        }
        reach
    }

    /// [`Sweep::backward`].
    #[inline(always)]
    pub(super) fn backward<T: Real>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut [T],
    ) {
        let all = |lanes: &Lanes<A>| -> All<S, A> {
            std::array::from_fn(|i| A::load(&lanes[i * A::WIDTH % LANES..]))
        };
        let (before, mut behind) = (all(&outside.before), all(&outside.behind));
        let start = u.as_ptr();
        self.tiling.each_step_back(
            u,
            #[inline(always)]
            |from, steps, i| {
                self.prefetch_next(start, from);
                let y = &y[from..from + STEP];
                self.backward_one(y, from, before[0], &mut behind[0], steps, i, 0);
                if A::WIDTH <= LANES / 2 {
                    self.backward_one(y, from, before[1], &mut behind[1], steps, i, A::WIDTH);
                }
                if A::WIDTH <= LANES / 4 {
                    self.backward_one(y, from, before[2], &mut behind[2], steps, i, 2 * A::WIDTH);
                    self.backward_one(y, from, before[3], &mut behind[3], steps, i, 3 * A::WIDTH);
                }
            },
        );
    }

    /// One step of the vector that begins with `lane`.
    #[inline(always)]
    fn forward_one<T: Real>(
        &self,
        steps: &Steps<'_, T>,
        i: usize,
        from: usize,
        y: &mut [Lanes<A>],
        lane: usize,
        right: &mut A::Vector,
        [even, odd]: &mut [A::Vector; 2],
    ) {
        let mut rows = [[A::ZERO; STEP]; LANES];
        for (row, steps) in rows.iter_mut().zip(&steps[lane..lane + A::WIDTH]) {
            for (value, v) in row.iter_mut().zip(&steps[i]) {
                *value = A::from_f64(v.to_f64());
            }
        }
        let values = A::columns(self.simd, rows);
        if from.is_multiple_of(CHECK) {
            *right = A::without_less(self.simd, *right, self.tiny);
        }
        for k in (0..STEP).step_by(2) {
            let [a, b] = [values[k], values[k + 1]];
            A::store(self.after(*right, a), &mut y[k][lane..]);
            *right = A::multiply_add(self.simd, self.r_squared, *right, self.after(a, b));
            A::store(*right, &mut y[k + 1][lane..]);
        }
        if let Some(powers) = self.powers.get(from..from + STEP) {
            for k in (0..STEP).step_by(2) {
                let [a, b] = [powers[k], powers[k + 1]].map(|power| A::splat(self.simd, power));
                *even = A::multiply_add(self.simd, a, values[k], *even);
                *odd = A::multiply_add(self.simd, b, values[k + 1], *odd);
            }
        }
    }

    #[inline(always)]
    fn backward_one<T: Real>(
        &self,
        y: &[Lanes<A>],
        from: usize,
        before: A::Vector,
        behind: &mut A::Vector,
        steps: &mut StepsMut<'_, T>,
        i: usize,
        lane: usize,
    ) {
        if (from + STEP).is_multiple_of(CHECK) {
            *behind = A::without_less(self.simd, *behind, self.tiny);
        }
        let mut values: [A::Vector; STEP] = std::array::from_fn(|k| A::load(&y[k][lane..]));
        if let Some(powers) = self.powers.get(from + 1..from + 1 + STEP) {
            for (value, power) in values.iter_mut().zip(powers) {
                let power = A::splat(self.simd, *power);
                *value = A::multiply_add(self.simd, power, before, *value);
            }
        }
        for k in (0..STEP).step_by(2).rev() {
            let [a, b] = [values[k], values[k + 1]];
            values[k + 1] = self.after(*behind, b);
            *behind = A::multiply_add(self.simd, self.r_squared, *behind, self.after(b, a));
            values[k] = *behind;
        }
        let rows = A::rows(self.simd, values, self.scale);
        for (row, steps) in rows.iter().zip(&mut steps[lane..lane + A::WIDTH]) {
            for (u, value) in steps[i].iter_mut().zip(row) {
                *u = T::from_f64(value.to_f64());
            }
        }
    }

    /// Prefetches what follows these tiles in main memory, which the processor does not do by itself. Both sweeps need
    /// it: they may be over two arrays.
    #[inline(always)]
    fn prefetch_next<T>(&self, start: *const T, from: usize) {
        if self.ahead > 0 {
            let next = start.wrapping_add(self.ahead + LANES * from);
            for line in (0..LANES * STEP).step_by(LINE / size_of::<T>()) {
                prefetch_to_l2(next.wrapping_add(line));
            }
        }
    }

    /// The recursion's next value, from its last one.
    #[inline(always)]
    fn after(&self, last: A::Vector, value: A::Vector) -> A::Vector {
        A::multiply_add(self.simd, self.r, last, value)
    }
}
