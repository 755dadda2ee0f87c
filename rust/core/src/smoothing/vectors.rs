//! The lanes of a sweep in vectors of 256 bits, on x86-64 processors with AVX2 and FMA.
//!
//! Neighbouring elements belong to one lane, but a vector holds one element of each of its lanes. So four elements
//! of each lane are read at once and transposed into four vectors, and transposed back before they are written.

use std::arch::x86_64::{__m256, __m256d, _CMP_NLT_UQ};

use pulp::bytemuck::cast;
use pulp::x86::V3;
use pulp::{f32x8, f64x4};

use super::sweep::{CHECK, LANES, Lanes, Outside, Reach, Sweep, Tiles};
use crate::Real;

/// Elements of a tile that are transposed at once.
const STEP: usize = 4;

/// Lanes of the longest vector.
const MOST: usize = 8;

/// A floating-point type that smoothing computes in.
pub trait Smooth: Real {
    #[doc(hidden)]
    type Vector: Copy;
    #[doc(hidden)]
    const WIDTH: usize;
    #[doc(hidden)]
    fn splat(simd: V3, value: Self) -> Self::Vector;
    #[doc(hidden)]
    fn load(lanes: &[Self]) -> Self::Vector;
    #[doc(hidden)]
    fn store(vector: Self::Vector, lanes: &mut [Self]);
    #[doc(hidden)]
    fn multiply(simd: V3, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once.
    #[doc(hidden)]
    fn multiply_add(simd: V3, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// 0 where the absolute value is less than `limit`.
    #[doc(hidden)]
    fn without_less(simd: V3, vector: Self::Vector, limit: Self::Vector) -> Self::Vector;
    /// From the numbers of each lane, the vector of the first ones, of the second ones, ..
    #[doc(hidden)]
    fn columns(simd: V3, rows: [[Self; STEP]; MOST]) -> [Self::Vector; STEP];
    /// The reverse of [`columns`](Self::columns).
    #[doc(hidden)]
    fn rows(simd: V3, columns: [Self::Vector; STEP]) -> [[Self; STEP]; MOST];
}

/// Stands for a processor that has the instructions.
#[derive(Clone, Copy)]
pub(super) struct Vectors(V3);

impl Vectors {
    pub(super) fn try_new() -> Option<Vectors> {
        V3::try_new().map(Vectors)
    }

    /// [`Sweep::forward`].
    #[inline(always)]
    pub(super) fn forward<T: Real, A: Smooth, const TILE: usize>(
        self,
        sweep: &Sweep<A>,
        v: &Tiles<T, TILE>,
        y: &mut [Lanes<A>],
    ) -> Reach<Lanes<A>> {
        let pass = Pass::new(self.0, sweep);
        let mut right = [A::splat(self.0, A::ZERO); 4];
        let mut left = right;
        let (steps, rest) = y.as_chunks_mut::<STEP>();
        let mut from = 0;
        for y in steps {
            pass.forward_all(v, from, y, &mut right, &mut left);
            from += STEP;
        }
        pass.forward_all(v, from, rest, &mut right, &mut left);
        let mut reach = Reach {
            right: [A::ZERO; LANES],
            left: [A::ZERO; LANES],
        };
        for (i, lane) in (0..LANES).step_by(A::WIDTH).enumerate() {
            A::store(right[i], &mut reach.right[lane..]);
            A::store(left[i], &mut reach.left[lane..]);
        }
        reach
    }

    /// [`Sweep::backward`].
    #[inline(always)]
    pub(super) fn backward<T: Real, A: Smooth, const TILE: usize>(
        self,
        sweep: &Sweep<A>,
        y: &[Lanes<A>],
        outside: &Outside<Lanes<A>>,
        u: &mut Tiles<T, TILE>,
    ) {
        let pass = Pass::new(self.0, sweep);
        let before = loaded::<A>(&outside.before);
        let mut behind = loaded::<A>(&outside.behind);
        let (steps, rest) = y.as_chunks::<STEP>();
        let mut from = y.len() - rest.len();
        pass.backward_all(rest, from, &before, &mut behind, u);
        for y in steps.iter().rev() {
            from -= STEP;
            pass.backward_all(y, from, &before, &mut behind, u);
        }
    }
}

/// What a sweep needs for a step, in all lanes of a vector.
struct Pass<'a, A: Smooth> {
    simd: V3,
    r: A::Vector,
    scale: A::Vector,
    tiny: A::Vector,
    powers: &'a [A],
}

impl<'a, A: Smooth> Pass<'a, A> {
    #[inline(always)]
    fn new(simd: V3, sweep: &'a Sweep<A>) -> Self {
        Pass {
            simd,
            r: A::splat(simd, sweep.r),
            scale: A::splat(simd, sweep.scale),
            tiny: A::splat(simd, sweep.tiny),
            powers: &sweep.powers,
        }
    }

    /// As many elements of all tiles as `y` is long, at most [`STEP`]: one vector computes while another waits for
    /// its last result.
    #[inline(always)]
    fn forward_all<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        from: usize,
        y: &mut [Lanes<A>],
        right: &mut [A::Vector; 4],
        left: &mut [A::Vector; 4],
    ) {
        self.forward(v, from, y, 0, &mut right[0], &mut left[0]);
        self.forward(v, from, y, A::WIDTH, &mut right[1], &mut left[1]);
        if A::WIDTH == 4 {
            self.forward(v, from, y, 8, &mut right[2], &mut left[2]);
            self.forward(v, from, y, 12, &mut right[3], &mut left[3]);
        }
    }

    #[inline(always)]
    fn backward_all<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        from: usize,
        before: &[A::Vector; 4],
        behind: &mut [A::Vector; 4],
        u: &mut Tiles<T, TILE>,
    ) {
        self.backward(y, from, before[0], &mut behind[0], u, 0);
        self.backward(y, from, before[1], &mut behind[1], u, A::WIDTH);
        if A::WIDTH == 4 {
            self.backward(y, from, before[2], &mut behind[2], u, 8);
            self.backward(y, from, before[3], &mut behind[3], u, 12);
        }
    }

    /// The vector of the tiles from `lane` on.
    #[inline(always)]
    fn forward<T: Real, const TILE: usize>(
        &self,
        v: &Tiles<T, TILE>,
        from: usize,
        y: &mut [Lanes<A>],
        lane: usize,
        right: &mut A::Vector,
        left: &mut A::Vector,
    ) {
        if y.is_empty() {
            return;
        }
        let mut rows = [[A::ZERO; STEP]; MOST];
        for (row, tile) in rows.iter_mut().zip(&v[lane..lane + A::WIDTH]) {
            for (value, v) in row.iter_mut().zip(&tile[from..from + STEP]) {
                *value = A::from_f64(v.to_f64());
            }
        }
        let values = A::columns(self.simd, rows);
        if from.is_multiple_of(CHECK) {
            *right = A::without_less(self.simd, *right, self.tiny);
        }
        let powers = &self.powers[from..from + y.len()];
        for (k, y) in y.iter_mut().enumerate() {
            let power = A::splat(self.simd, powers[k]);
            *right = A::multiply_add(self.simd, self.r, *right, values[k]);
            *left = A::multiply_add(self.simd, power, values[k], *left);
            A::store(*right, &mut y[lane..]);
        }
    }

    #[inline(always)]
    fn backward<T: Real, const TILE: usize>(
        &self,
        y: &[Lanes<A>],
        from: usize,
        before: A::Vector,
        behind: &mut A::Vector,
        u: &mut Tiles<T, TILE>,
        lane: usize,
    ) {
        if y.is_empty() {
            return;
        }
        if (from + y.len()).is_multiple_of(CHECK) {
            *behind = A::without_less(self.simd, *behind, self.tiny);
        }
        let mut values = [*behind; STEP];
        let powers = &self.powers[from + 1..from + 1 + y.len()];
        for (k, y) in y.iter().enumerate().rev() {
            let power = A::splat(self.simd, powers[k]);
            let y = A::multiply_add(self.simd, power, before, A::load(&y[lane..]));
            *behind = A::multiply_add(self.simd, self.r, *behind, y);
            values[k] = A::multiply(self.simd, *behind, self.scale);
        }
        let rows = A::rows(self.simd, values);
        for (row, tile) in rows.iter().zip(&mut u[lane..lane + A::WIDTH]) {
            for (u, value) in tile[from..from + STEP].iter_mut().zip(row) {
                *u = T::from_f64(value.to_f64());
            }
        }
    }
}

/// The vectors of all lanes: four, or twice the same two.
#[inline(always)]
fn loaded<A: Smooth>(lanes: &Lanes<A>) -> [A::Vector; 4] {
    let vector = |i: usize| A::load(&lanes[i * A::WIDTH % LANES..]);
    [vector(0), vector(1), vector(2), vector(3)]
}

impl Smooth for f32 {
    type Vector = f32x8;
    const WIDTH: usize = 8;

    #[inline(always)]
    fn splat(simd: V3, value: f32) -> f32x8 {
        simd.splat_f32x8(value)
    }

    #[inline(always)]
    fn load(lanes: &[f32]) -> f32x8 {
        let mut vector = [0.0; 8];
        vector.copy_from_slice(&lanes[..8]);
        cast(vector)
    }

    #[inline(always)]
    fn store(vector: f32x8, lanes: &mut [f32]) {
        lanes[..8].copy_from_slice(&cast::<_, [f32; 8]>(vector));
    }

    #[inline(always)]
    fn multiply(simd: V3, a: f32x8, b: f32x8) -> f32x8 {
        simd.mul_f32x8(a, b)
    }

    #[inline(always)]
    fn multiply_add(simd: V3, a: f32x8, b: f32x8, c: f32x8) -> f32x8 {
        simd.mul_add_f32x8(a, b, c)
    }

    #[inline(always)]
    fn without_less(simd: V3, vector: f32x8, limit: f32x8) -> f32x8 {
        let (x, size) = (cast(vector), cast(simd.abs_f32x8(vector)));
        let keep = simd.avx._mm256_cmp_ps::<_CMP_NLT_UQ>(size, cast(limit));
        cast(simd.avx._mm256_and_ps(x, keep))
    }

    #[inline(always)]
    fn columns(simd: V3, [a, b, c, d, e, f, g, h]: [[f32; STEP]; MOST]) -> [f32x8; STEP] {
        let pairs = [cast([a, e]), cast([b, f]), cast([c, g]), cast([d, h])];
        cast(transposed(simd, pairs))
    }

    #[inline(always)]
    fn rows(simd: V3, columns: [f32x8; STEP]) -> [[f32; STEP]; MOST] {
        let [[a, e], [b, f], [c, g], [d, h]] = cast(transposed(simd, cast(columns)));
        [a, b, c, d, e, f, g, h]
    }
}

/// Transposes both halves, each of 4 x 4 numbers.
#[inline(always)]
fn transposed(simd: V3, [a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    let avx = simd.avx;
    let [ab_low, ab_high] = [avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b)];
    let [cd_low, cd_high] = [avx._mm256_unpacklo_ps(c, d), avx._mm256_unpackhi_ps(c, d)];
    [
        avx._mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
        avx._mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
        avx._mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
        avx._mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
    ]
}

impl Smooth for f64 {
    type Vector = f64x4;
    const WIDTH: usize = 4;

    #[inline(always)]
    fn splat(simd: V3, value: f64) -> f64x4 {
        simd.splat_f64x4(value)
    }

    #[inline(always)]
    fn load(lanes: &[f64]) -> f64x4 {
        let mut vector = [0.0; 4];
        vector.copy_from_slice(&lanes[..4]);
        cast(vector)
    }

    #[inline(always)]
    fn store(vector: f64x4, lanes: &mut [f64]) {
        lanes[..4].copy_from_slice(&cast::<_, [f64; 4]>(vector));
    }

    #[inline(always)]
    fn multiply(simd: V3, a: f64x4, b: f64x4) -> f64x4 {
        simd.mul_f64x4(a, b)
    }

    #[inline(always)]
    fn multiply_add(simd: V3, a: f64x4, b: f64x4, c: f64x4) -> f64x4 {
        simd.mul_add_f64x4(a, b, c)
    }

    #[inline(always)]
    fn without_less(simd: V3, vector: f64x4, limit: f64x4) -> f64x4 {
        let (x, size) = (cast(vector), cast(simd.abs_f64x4(vector)));
        let keep = simd.avx._mm256_cmp_pd::<_CMP_NLT_UQ>(size, cast(limit));
        cast(simd.avx._mm256_and_pd(x, keep))
    }

    #[inline(always)]
    fn columns(simd: V3, [a, b, c, d, ..]: [[f64; STEP]; MOST]) -> [f64x4; STEP] {
        cast(transposed_f64(simd, [cast(a), cast(b), cast(c), cast(d)]))
    }

    #[inline(always)]
    fn rows(simd: V3, columns: [f64x4; STEP]) -> [[f64; STEP]; MOST] {
        let mut rows = [[0.0; STEP]; MOST];
        rows[..4].copy_from_slice(&cast::<_, [[f64; 4]; 4]>(transposed_f64(
            simd,
            cast(columns),
        )));
        rows
    }
}

#[inline(always)]
fn transposed_f64(simd: V3, [a, b, c, d]: [__m256d; 4]) -> [__m256d; 4] {
    let avx = simd.avx;
    let [ab_even, ab_odd] = [avx._mm256_unpacklo_pd(a, b), avx._mm256_unpackhi_pd(a, b)];
    let [cd_even, cd_odd] = [avx._mm256_unpacklo_pd(c, d), avx._mm256_unpackhi_pd(c, d)];
    [
        avx._mm256_permute2f128_pd::<0x20>(ab_even, cd_even),
        avx._mm256_permute2f128_pd::<0x20>(ab_odd, cd_odd),
        avx._mm256_permute2f128_pd::<0x31>(ab_even, cd_even),
        avx._mm256_permute2f128_pd::<0x31>(ab_odd, cd_odd),
    ]
}
