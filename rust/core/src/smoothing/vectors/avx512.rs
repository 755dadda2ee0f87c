//! Vectors of 512 bits.

use std::arch::x86_64::{__m512, __m512d, _CMP_NLT_UQ};

use pulp::bytemuck::cast;
use pulp::x86::V4;
use pulp::{f32x16, f64x8};

use super::{InVectors, LANES, Rows, STEP};

impl InVectors<V4> for f32 {
    type Vector = f32x16;
    const WIDTH: usize = 16;

    #[inline(always)]
    fn splat(simd: V4, value: f32) -> f32x16 {
        simd.splat_f32x16(value)
    }

    #[inline(always)]
    fn load(lanes: &[f32]) -> f32x16 {
        let mut vector = [0.0; 16];
        vector.copy_from_slice(&lanes[..16]);
        cast(vector)
    }

    #[inline(always)]
    fn store(vector: f32x16, lanes: &mut [f32]) {
        lanes[..16].copy_from_slice(&cast::<_, [f32; 16]>(vector));
    }

    #[inline(always)]
    fn multiply_add(simd: V4, a: f32x16, b: f32x16, c: f32x16) -> f32x16 {
        simd.mul_add_f32x16(a, b, c)
    }

    #[inline(always)]
    fn without_less(simd: V4, vector: f32x16, limit: f32x16) -> f32x16 {
        let (x, avx) = (cast(vector), simd.avx512f);
        let keep = avx._mm512_cmp_ps_mask::<_CMP_NLT_UQ>(avx._mm512_abs_ps(x), cast(limit));
        cast(avx._mm512_maskz_mov_ps(keep, x))
    }

    #[inline(always)]
    fn columns(
        simd: V4,
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]: Rows<f32>,
    ) -> [f32x16; STEP] {
        let front = [
            both(simd, a, e),
            both(simd, b, f),
            both(simd, c, g),
            both(simd, d, h),
        ];
        let back = [
            both(simd, i, m),
            both(simd, j, n),
            both(simd, k, o),
            both(simd, l, p),
        ];
        let [front, back] = [in_quarters(simd, front), in_quarters(simd, back)];
        let mut columns = [front, back];
        for i in 0..4 {
            let [a, b] = [front[i], back[i]];
            columns[0][i] = simd.avx512f._mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            columns[1][i] = simd.avx512f._mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
        }
        cast(columns)
    }

    #[inline(always)]
    fn rows(simd: V4, columns: [f32x16; STEP], factor: f32x16) -> Rows<f32> {
        let [first, second]: [[__m512d; 4]; 2] = cast(columns);
        let [mut front, mut back]: [[__m512; 4]; 2] = cast(columns);
        for i in 0..4 {
            front[i] = pairs::<0>(simd, first[i], second[i]);
            back[i] = pairs::<4>(simd, first[i], second[i]);
        }
        let mut pairs = [in_quarters(simd, front), in_quarters(simd, back)];
        for pair in pairs.as_flattened_mut() {
            *pair = cast(simd.mul_f32x16(cast(*pair), factor));
        }
        let [[ae, bf, cg, dh], [im, jn, ko, lp]] = pairs;
        let [[a, e], [b, f], [c, g], [d, h]] = [cast(ae), cast(bf), cast(cg), cast(dh)];
        let [[i, m], [j, n], [k, o], [l, p]] = [cast(im), cast(jn), cast(ko), cast(lp)];
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Two rows in one vector, by the instruction for it: otherwise the compiler may take them through memory, where a load
/// waits for both stores.
#[inline(always)]
fn both(simd: V4, a: [f32; STEP], b: [f32; STEP]) -> __m512 {
    let avx = simd.avx512f;
    cast(avx._mm512_insertf64x4::<1>(avx._mm512_castpd256_pd512(cast(a)), cast(b)))
}

/// Two quarters of `a`, from eighth number `FROM` on, each followed by the same quarter of `b`.
#[inline(always)]
fn pairs<const FROM: i64>(simd: V4, a: __m512d, b: __m512d) -> __m512 {
    let which = [0, 1, 8, 9, 2, 3, 10, 11].map(|i: i64| i + FROM);
    cast(simd.avx512f._mm512_permutex2var_pd(a, cast(which), b))
}

/// Transposes the four quarters, each of 4 x 4 numbers.
#[inline(always)]
fn in_quarters(simd: V4, [a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let avx = simd.avx512f;
    let [ab_low, ab_high] = [avx._mm512_unpacklo_ps(a, b), avx._mm512_unpackhi_ps(a, b)];
    let [cd_low, cd_high] = [avx._mm512_unpacklo_ps(c, d), avx._mm512_unpackhi_ps(c, d)];
    [
        avx._mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low),
        avx._mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low),
        avx._mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
        avx._mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
    ]
}

impl InVectors<V4> for f64 {
    type Vector = f64x8;
    const WIDTH: usize = 8;

    #[inline(always)]
    fn splat(simd: V4, value: f64) -> f64x8 {
        simd.splat_f64x8(value)
    }

    #[inline(always)]
    fn load(lanes: &[f64]) -> f64x8 {
        let mut vector = [0.0; 8];
        vector.copy_from_slice(&lanes[..8]);
        cast(vector)
    }

    #[inline(always)]
    fn store(vector: f64x8, lanes: &mut [f64]) {
        lanes[..8].copy_from_slice(&cast::<_, [f64; 8]>(vector));
    }

    #[inline(always)]
    fn multiply_add(simd: V4, a: f64x8, b: f64x8, c: f64x8) -> f64x8 {
        simd.mul_add_f64x8(a, b, c)
    }

    #[inline(always)]
    fn without_less(simd: V4, vector: f64x8, limit: f64x8) -> f64x8 {
        let (x, avx) = (cast(vector), simd.avx512f);
        let keep = avx._mm512_cmp_pd_mask::<_CMP_NLT_UQ>(avx._mm512_abs_pd(x), cast(limit));
        cast(avx._mm512_maskz_mov_pd(keep, x))
    }

    #[inline(always)]
    fn columns(simd: V4, rows: Rows<f64>) -> [f64x8; STEP] {
        cast(transposed_f64(simd, std::array::from_fn(|i| cast(rows[i]))))
    }

    #[inline(always)]
    fn rows(simd: V4, columns: [f64x8; STEP], factor: f64x8) -> Rows<f64> {
        let vectors = transposed_f64(simd, cast(columns));
        let mut rows = [[0.0; STEP]; LANES];
        for (row, vector) in rows.iter_mut().zip(vectors) {
            *row = cast(simd.mul_f64x8(cast(vector), factor));
        }
        rows
    }
}

#[inline(always)]
fn transposed_f64(simd: V4, [a, b, c, d, e, f, g, h]: [__m512d; 8]) -> [__m512d; 8] {
    let avx = simd.avx512f;
    let even = |a, b| avx._mm512_unpacklo_pd(a, b);
    let odd = |a, b| avx._mm512_unpackhi_pd(a, b);
    let low = |a, b| avx._mm512_shuffle_f64x2::<0b10_00_10_00>(a, b);
    let high = |a, b| avx._mm512_shuffle_f64x2::<0b11_01_11_01>(a, b);
    let [e0, e1, e2, e3] = [even(a, b), even(c, d), even(e, f), even(g, h)];
    let [o0, o1, o2, o3] = [odd(a, b), odd(c, d), odd(e, f), odd(g, h)];
    let [e04, e26] = [[low(e0, e1), low(e2, e3)], [high(e0, e1), high(e2, e3)]];
    let [o15, o37] = [[low(o0, o1), low(o2, o3)], [high(o0, o1), high(o2, o3)]];
    [
        low(e04[0], e04[1]),
        low(o15[0], o15[1]),
        low(e26[0], e26[1]),
        low(o37[0], o37[1]),
        high(e04[0], e04[1]),
        high(o15[0], o15[1]),
        high(e26[0], e26[1]),
        high(o37[0], o37[1]),
    ]
}
