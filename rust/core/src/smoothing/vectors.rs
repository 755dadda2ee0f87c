//! The lanes of a sweep in vectors, on x86-64 processors with AVX-512, or with AVX2 and FMA.
//!
//! Neighbouring elements belong to one lane, but a vector holds one element of each of its lanes. So eight elements
//! of each lane are read at once and transposed into eight vectors, and transposed back before they are written.

mod avx2;
mod avx512;

use pulp::bytemuck::Pod;
use pulp::x86::{V3, V4};

use super::sweep::{CHECK, LANES, Lanes, Outside, Reach, STEP, Sweep, Tiles};
use crate::Real;
use crate::parallel::LINE;

/// The elements of one step, of as many lanes as a vector has; others are not looked at.
type Rows<A> = [[A; STEP]; LANES];

/// A floating-point type that smoothing computes in.
pub trait Smooth: InVectors<V3> + InVectors<V4> {}

impl Smooth for f32 {}
impl Smooth for f64 {}

/// Numbers in vectors, with the instructions that `S` stands for.
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
    /// Asks for the cache line of a number that will be needed soon.
    #[doc(hidden)]
    fn prefetch<T>(simd: S, place: *const T);
    /// 0 where the absolute value is less than `limit`.
    #[doc(hidden)]
    fn without_less(simd: S, vector: Self::Vector, limit: Self::Vector) -> Self::Vector;
    /// From the numbers of each lane, the vector of the first ones, of the second ones, ..
    #[doc(hidden)]
    fn columns(simd: S, rows: Rows<Self>) -> [Self::Vector; STEP];
    /// The reverse of [`columns`](Self::columns), times `factor`: between transposing vectors and taking them apart,
    /// or else the compiler does it the other way round, which is slower.
    #[doc(hidden)]
    fn rows(simd: S, columns: [Self::Vector; STEP], factor: Self::Vector) -> Rows<Self>;
}

/// The vectors of all lanes; where they are wider, the first ones.
type All<S, A> = [<A as InVectors<S>>::Vector; 4];

/// What a sweep needs for a step, in all lanes of a vector.
pub(super) struct Pass<'a, S, A: InVectors<S>> {
    simd: S,
    r: A::Vector,
    r_squared: A::Vector,
    scale: A::Vector,
    tiny: A::Vector,
    powers: &'a [A],
    ahead: usize,
}

impl<'a, S: Copy, A: InVectors<S>> Pass<'a, S, A> {
    #[inline(always)]
    pub(super) fn new(simd: S, sweep: &Sweep<A>, powers: &'a [A]) -> Self {
        Pass {
            simd,
            r: A::splat(simd, sweep.r),
            r_squared: A::splat(simd, sweep.r_squared),
            scale: A::splat(simd, sweep.scale),
            tiny: A::splat(simd, sweep.tiny),
            powers,
            ahead: sweep.ahead,
        }
    }

    /// [`Sweep::forward`].
    #[inline(always)]
    pub(super) fn forward<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let mut right = [A::splat(self.simd, A::ZERO); 4];
        let mut left = right.map(|zero| [zero; 2]);
        // Written out, or else the vectors stay in memory. One computes while another waits for its last result.
        for (i, y) in y.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            self.forward_one(v, i * STEP, y, 0, &mut right[0], &mut left[0]);
            if A::WIDTH <= LANES / 2 {
                self.forward_one(v, i * STEP, y, A::WIDTH, &mut right[1], &mut left[1]);
            }
            if A::WIDTH <= LANES / 4 {
                self.forward_one(v, i * STEP, y, 2 * A::WIDTH, &mut right[2], &mut left[2]);
                self.forward_one(v, i * STEP, y, 3 * A::WIDTH, &mut right[3], &mut left[3]);
            }
        }
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
    pub(super) fn backward<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        let all = |lanes: &Lanes<A>| -> All<S, A> {
            std::array::from_fn(|i| A::load(&lanes[i * A::WIDTH % LANES..]))
        };
        let (before, mut behind) = (all(&outside.before), all(&outside.behind));
        for (i, y) in y.as_chunks::<STEP>().0.iter().enumerate().rev() {
            self.backward_one(y, i * STEP, before[0], &mut behind[0], u, 0);
            if A::WIDTH <= LANES / 2 {
                self.backward_one(y, i * STEP, before[1], &mut behind[1], u, A::WIDTH);
            }
            if A::WIDTH <= LANES / 4 {
                self.backward_one(y, i * STEP, before[2], &mut behind[2], u, 2 * A::WIDTH);
                self.backward_one(y, i * STEP, before[3], &mut behind[3], u, 3 * A::WIDTH);
            }
        }
    }

    /// The vector of the tiles from `lane` on.
    #[inline(always)]
    fn forward_one<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        from: usize,
        y: &mut [Lanes<A>; STEP],
        lane: usize,
        right: &mut A::Vector,
        [even, odd]: &mut [A::Vector; 2],
    ) {
        let mut rows = [[A::ZERO; STEP]; LANES];
        self.fetch_next(v, from, lane);
        for (row, tile) in rows.iter_mut().zip(&v[lane..lane + A::WIDTH]) {
            for (value, v) in row.iter_mut().zip(&tile[from..from + STEP]) {
                *value = A::from_f64(v.to_f64());
            }
        }
        let values = A::columns(self.simd, rows);
        if from.is_multiple_of(CHECK) {
            *right = A::without_less(self.simd, *right, self.tiny);
        }
        let powers = &self.powers[from..from + STEP];
        for k in (0..STEP).step_by(2) {
            let [a, b] = [values[k], values[k + 1]];
            A::store(self.after(*right, a), &mut y[k][lane..]);
            *right = A::multiply_add(self.simd, self.r_squared, *right, self.after(a, b));
            A::store(*right, &mut y[k + 1][lane..]);
            *even = A::multiply_add(self.simd, A::splat(self.simd, powers[k]), a, *even);
            *odd = A::multiply_add(self.simd, A::splat(self.simd, powers[k + 1]), b, *odd);
        }
    }

    #[inline(always)]
    fn backward_one<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>; STEP],
        from: usize,
        before: A::Vector,
        behind: &mut A::Vector,
        u: &mut Tiles<T, TILE>,
        lane: usize,
    ) {
        if (from + STEP).is_multiple_of(CHECK) {
            *behind = A::without_less(self.simd, *behind, self.tiny);
        }
        let mut values = [*behind; STEP];
        let powers = &self.powers[from + 1..from + 1 + STEP];
        for k in (0..STEP).step_by(2).rev() {
            let (a, b) = (
                A::splat(self.simd, powers[k]),
                A::splat(self.simd, powers[k + 1]),
            );
            let a = A::multiply_add(self.simd, a, before, A::load(&y[k][lane..]));
            let b = A::multiply_add(self.simd, b, before, A::load(&y[k + 1][lane..]));
            values[k + 1] = self.after(*behind, b);
            *behind = A::multiply_add(self.simd, self.r_squared, *behind, self.after(b, a));
            values[k] = *behind;
        }
        let rows = A::rows(self.simd, values, self.scale);
        self.fetch_next(u, from, lane);
        for (row, tile) in rows.iter().zip(&mut u[lane..lane + A::WIDTH]) {
            for (u, value) in tile[from..from + STEP].iter_mut().zip(row) {
                *u = T::from_f64(value.to_f64());
            }
        }
    }

    /// Asks for what follows these tiles in main memory, which the processor itself does not see coming. Both sweeps do:
    /// they may be in two arrays.
    #[inline(always)]
    fn fetch_next<T, const TILE: usize>(&self, tiles: &Tiles<T, TILE>, from: usize, lane: usize) {
        if self.ahead == 0 {
            return;
        }
        let next = tiles.as_ptr().cast::<T>().wrapping_add(self.ahead);
        let next = next.wrapping_add(LANES * from + STEP * lane);
        for line in (0..STEP * A::WIDTH).step_by(LINE / size_of::<T>()) {
            A::prefetch(self.simd, next.wrapping_add(line));
        }
    }

    /// The recursion's next value, from its last one.
    #[inline(always)]
    fn after(&self, last: A::Vector, value: A::Vector) -> A::Vector {
        A::multiply_add(self.simd, self.r, last, value)
    }
}
