//! Vectors of 256 bits.

use std::arch::x86_64::{__m256, __m256d, _CMP_NLT_UQ};

use pulp::bytemuck::cast;
use pulp::x86::V3;
use pulp::{f32x8, f64x4};

use super::{InVectors, LANES, Rows, STEP};

impl InVectors<V3> for f32 {
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
    fn columns(simd: V3, rows: Rows<f32>) -> [f32x8; STEP] {
        cast(transposed_f32(simd, std::array::from_fn(|i| cast(rows[i]))))
    }

    #[inline(always)]
    fn rows(simd: V3, columns: [f32x8; STEP], factor: f32x8) -> Rows<f32> {
        let vectors = transposed_f32(simd, cast(columns));
        let mut rows = [[0.0; STEP]; LANES];
        for (row, vector) in rows.iter_mut().zip(vectors) {
            *row = cast(simd.mul_f32x8(cast(vector), factor));
        }
        rows
    }
}

#[inline(always)]
fn transposed_f32(simd: V3, [a, b, c, d, e, f, g, h]: [__m256; 8]) -> [__m256; 8] {
    let [a, b, c, d] = transposed_in_halves(simd, [a, b, c, d]);
    let [e, f, g, h] = transposed_in_halves(simd, [e, f, g, h]);
    let low = |a, b| simd.avx._mm256_permute2f128_ps::<0x20>(a, b);
    let high = |a, b| simd.avx._mm256_permute2f128_ps::<0x31>(a, b);
    [
        low(a, e),
        low(b, f),
        low(c, g),
        low(d, h),
        high(a, e),
        high(b, f),
        high(c, g),
        high(d, h),
    ]
}

/// Transposes both halves, each of 4 x 4 numbers.
#[inline(always)]
fn transposed_in_halves(simd: V3, [a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
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

impl InVectors<V3> for f64 {
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
    fn multiply_add(simd: V3, a: f64x4, b: f64x4, c: f64x4) -> f64x4 {
        simd.mul_add_f64x4(a, b, c)
    }

    #[inline(always)]
    fn without_less(simd: V3, vector: f64x4, limit: f64x4) -> f64x4 {
        let (x, size) = (cast(vector), cast(simd.abs_f64x4(vector)));
        let keep = simd.avx._mm256_cmp_pd::<_CMP_NLT_UQ>(size, cast(limit));
        cast(simd.avx._mm256_and_pd(x, keep))
    }

    // No `map` of arrays: where the compiler does not inline it, the instructions in it become calls, which take 40
    // times as long.
    #[inline(always)]
    fn columns(simd: V3, [a, b, c, d, ..]: Rows<f64>) -> [f64x4; STEP] {
        let halves: [[__m256d; 2]; 4] = [cast(a), cast(b), cast(c), cast(d)];
        let [[a0, a1], [b0, b1], [c0, c1], [d0, d1]] = halves;
        let first = transposed_f64(simd, [a0, b0, c0, d0]);
        let second = transposed_f64(simd, [a1, b1, c1, d1]);
        cast([first, second])
    }

    #[inline(always)]
    fn rows(simd: V3, columns: [f64x4; STEP], factor: f64x4) -> Rows<f64> {
        let [first, second]: [[__m256d; 4]; 2] = cast(columns);
        let first = transposed_f64(simd, first);
        let second = transposed_f64(simd, second);
        let mut rows = [[0.0; STEP]; LANES];
        for i in 0..4 {
            let [first, second] = [cast(first[i]), cast(second[i])];
            rows[i] = cast([
                simd.mul_f64x4(first, factor),
                simd.mul_f64x4(second, factor),
            ]);
        }
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
