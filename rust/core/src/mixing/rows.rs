//! Rows of the result, or some of their columns: many columns are summed row by row side by side, few in registers.

use std::array::from_fn;

use dpmesh_store::Writer;

use super::MixingMatrix;
use crate::cache::{LINE, prefetch, prefetch_all};
use crate::instructions::vectorized;
use crate::{Index, Real};

/// How many entries of the matrix ahead short rows of `x` are prefetched: few enough to stay in the L1 cache.
const ENTRIES_AHEAD: usize = 16;

/// How many rows of the result ahead long rows of `x` are prefetched.
const ROWS_AHEAD: usize = 3;

/// Rows of `x` that are summed side by side.
const SIDE_BY_SIDE: usize = 8;

/// Vectors of a short row's sums that are held in registers: as many as AVX2 has registers for.
const VECTORS: usize = 7;

/// Columns of a panel that is summed in the L1 cache and then written past the other caches.
const PAST_CACHE: usize = 512;

/// Columns of such a panel that are summed at once.
const AT_ONCE: usize = 64;

/// `len` columns of `x`, from `column` on.
#[derive(Clone, Copy)]
pub struct Columns<'a, T> {
    pub x: &'a [T],
    pub dim: usize,
    pub column: usize,
    pub len: usize,
}

impl<'a, T: Real> Columns<'a, T> {
    /// All columns of rows of `dim` elements.
    #[inline(always)]
    pub fn all(x: &'a [T], dim: usize) -> Self {
        let (column, len) = (0, dim);
        Columns {
            x,
            dim,
            column,
            len,
        }
    }

    /// `len` columns of the same rows, from `column` on.
    #[inline(always)]
    pub fn part(self, column: usize, len: usize) -> Self {
        Columns {
            column,
            len,
            ..self
        }
    }

    /// The number of columns before the first that begins at a cache line.
    #[inline(always)]
    pub fn unaligned(self) -> usize {
        self.x[self.column..].as_ptr().align_offset(LINE).min(LINE)
    }

    #[inline(always)]
    fn of_row(self, j: usize) -> &'a [T] {
        &self.x[j * self.dim + self.column..][..self.len]
    }
}

/// Rows of this many elements.
#[derive(Debug)]
pub struct Tile<'a, T>(pub &'a mut [T], pub usize);

/// Rows of `A X` from `first` on, summed a few columns at a time in registers, over all entries. Rows of `x` are
/// prefetched unless `is_cached`.
pub fn mix_short<T: Real>(
    a: &MixingMatrix<'_, T, impl Index>,
    first: usize,
    x: Columns<'_, T>,
    is_cached: bool,
    rows: &mut Tile<'_, T>,
) {
    match x.len {
        0..8 => sum_panels::<T, 1>(a, first, x, is_cached, rows),
        16.. if 16 * size_of::<T>() == LINE => sum_panels::<T, 16>(a, first, x, is_cached, rows),
        _ => sum_panels::<T, 8>(a, first, x, is_cached, rows),
    }
}

/// Rows of `A X` from `first` on, written past the cache.
#[inline(always)]
pub fn mix_past_cache<'o, T: Real>(
    a: &MixingMatrix<'_, T, impl Index>,
    first: usize,
    x: Columns<'_, T>,
    rows: &mut [&'o mut [T]],
    sums: &mut Vec<T>,
    writer: &mut Writer<'o>,
) {
    let end = x.column + x.len;
    let mut column = x.column;
    while column < end {
        // The next panel begins at a cache line.
        let len = (x.part(column, 0).unaligned() + PAST_CACHE).min(end - column);
        sums.resize(len, T::ZERO);
        for (i, row) in (first..).zip(&mut *rows) {
            if i + ROWS_AHEAD < a.rows() {
                for j in a.row(i + ROWS_AHEAD).0 {
                    prefetch_all(x.x, j.position() * x.dim + column, len);
                }
            }
            mix_long::<T, AT_ONCE>(a, i, x.part(column, len), sums);
            if let Some(out) = row.split_off_mut(..len) {
                writer.copy(out, sums);
            }
        }
        column += len;
    }
}

/// Sums panels of up to `VECTORS` vectors of `LANES` columns; there are at least `LANES` columns.
fn sum_panels<T: Real, const LANES: usize>(
    a: &MixingMatrix<'_, T, impl Index>,
    first: usize,
    x: Columns<'_, T>,
    is_cached: bool,
    rows: &mut Tile<'_, T>,
) {
    let mut from = 0;
    while from < x.len {
        from = from.min(x.len - LANES); // the last panel may sum some columns once more
        let len = (x.len - from).min(VECTORS * LANES);
        let panel = Columns {
            column: x.column + from,
            len,
            ..x
        };
        match len.div_ceil(LANES) {
            1 => sum_panel::<T, LANES, 0>(a, first, panel, is_cached, rows, from),
            2 => sum_panel::<T, LANES, 1>(a, first, panel, is_cached, rows, from),
            3 => sum_panel::<T, LANES, 2>(a, first, panel, is_cached, rows, from),
            4 => sum_panel::<T, LANES, 3>(a, first, panel, is_cached, rows, from),
            5 => sum_panel::<T, LANES, 4>(a, first, panel, is_cached, rows, from),
            6 => sum_panel::<T, LANES, 5>(a, first, panel, is_cached, rows, from),
            _ => sum_panel::<T, LANES, { VECTORS - 1 }>(a, first, panel, is_cached, rows, from),
        }
        from += len;
    }
}

/// Sums `WHOLE` vectors, and one more that ends with the last column, of each row.
///
/// Compiled separately for each number of vectors, with and without prefetching: so the innermost loop has all it needs
/// in registers.
fn sum_panel<T: Real, const LANES: usize, const WHOLE: usize>(
    a: &MixingMatrix<'_, T, impl Index>,
    first: usize,
    x: Columns<'_, T>,
    is_cached: bool,
    rows: &mut Tile<'_, T>,
    from: usize,
) {
    if is_cached {
        vectorized!(sum_vectors::<T, LANES, WHOLE, false>(
            a, first, x, rows, from
        ));
    } else {
        vectorized!(sum_vectors::<T, LANES, WHOLE, true>(
            a, first, x, rows, from
        ));
    }
}

#[inline(always)]
fn sum_vectors<T: Real, const LANES: usize, const WHOLE: usize, const FETCHES: bool>(
    a: &MixingMatrix<'_, T, impl Index>,
    first: usize,
    x: Columns<'_, T>,
    rows: &mut Tile<'_, T>,
    from: usize,
) {
    let a = *a; // a copy, whose fields the loops keep in registers
    let Columns { dim, len, .. } = x;
    let x = &x.x[x.column..];
    let ends = a.indptr[first..].windows(2);
    for (ends, out) in ends.zip(rows.0.chunks_exact_mut(rows.1)) {
        let out = &mut out[from..from + len];
        let (start, end) = (ends[0].position(), ends[1].position());
        let (indices, weights) = (&a.indices[start..end], &a.weights[start..end]);
        let later = a.indices.get(start + ENTRIES_AHEAD..end + ENTRIES_AHEAD);
        let (mut sums, mut last_sums) = ([[T::ZERO; LANES]; WHOLE], [T::ZERO; LANES]);
        let entries = indices.iter().zip(weights).zip(later.unwrap_or(indices));
        for ((j, &weight), later) in entries {
            if FETCHES {
                for vector in 0..=WHOLE {
                    prefetch(x, later.position() * dim + vector * LANES);
                }
            }
            let x = &x[j.position() * dim..][..len];
            // One loop over all vectors: from a loop over each, the compiler may make gathers, which take 20 times as
            // long.
            add_product(sums.as_flattened_mut(), weight, &x[..WHOLE * LANES]);
            add_product(&mut last_sums, weight, &x[len - LANES..]);
        }
        out[..WHOLE * LANES].copy_from_slice(sums.as_flattened());
        let last = out.len() - LANES;
        out[last..].copy_from_slice(&last_sums);
    }
}

#[inline(always)]
fn add_product<T: Real>(sums: &mut [T], weight: T, x: &[T]) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum = weight.mul_add(x, *sum);
    }
}

/// Row `i` of `A X`, summed a few entries at a time, `COLUMNS` columns at once. 1 leaves the choice to the compiler and
/// suits rows that come from far away; many pay in the L1 cache.
#[inline(always)]
pub fn mix_long<T: Real, const COLUMNS: usize>(
    a: &MixingMatrix<'_, T, impl Index>,
    i: usize,
    x: Columns<'_, T>,
    out: &mut [T],
) {
    let (indices, weights) = a.row(i);
    if indices.is_empty() {
        out.fill(T::ZERO);
    }
    let groups = indices
        .chunks(SIDE_BY_SIDE)
        .zip(weights.chunks(SIDE_BY_SIDE));
    for (group, (indices, weights)) in groups.enumerate() {
        if group == 0 {
            sum_rows::<T, COLUMNS, true>(indices, weights, x, out);
        } else {
            sum_rows::<T, COLUMNS, false>(indices, weights, x, out);
        }
    }
}

/// Adds the weighted sum of the rows at `indices` to `out`, or to 0 if `FROM_ZERO`.
#[inline(always)]
fn sum_rows<T: Real, const COLUMNS: usize, const FROM_ZERO: bool>(
    indices: &[impl Index],
    weights: &[T],
    x: Columns<'_, T>,
    out: &mut [T],
) {
    match indices.len() {
        1 => sum_k_rows::<T, 1, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        2 => sum_k_rows::<T, 2, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        3 => sum_k_rows::<T, 3, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        4 => sum_k_rows::<T, 4, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        5 => sum_k_rows::<T, 5, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        6 => sum_k_rows::<T, 6, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        7 => sum_k_rows::<T, 7, COLUMNS, FROM_ZERO>(indices, weights, x, out),
        _ => sum_k_rows::<T, SIDE_BY_SIDE, COLUMNS, FROM_ZERO>(indices, weights, x, out),
    }
}

#[inline(always)]
fn sum_k_rows<T: Real, const K: usize, const COLUMNS: usize, const FROM_ZERO: bool>(
    indices: &[impl Index],
    weights: &[T],
    x: Columns<'_, T>,
    out: &mut [T],
) {
    // Arrays of known size, and rows of the same length as `out`: no checks are left in the loops.
    let weights: [T; K] = from_fn(|k| weights[k]);
    let rows: [&[T]; K] = from_fn(|k| &x.of_row(indices[k].position())[..out.len()]);
    let (groups, rest) = out.as_chunks_mut::<COLUMNS>();
    let groups_of_rows = rows.map(|row| &row.as_chunks::<COLUMNS>().0[..groups.len()]);
    let rests_of_rows = rows.map(|row| &row[row.len() - rest.len()..]);
    for (c, out) in groups.iter_mut().enumerate() {
        let mut sums = if FROM_ZERO { [T::ZERO; COLUMNS] } else { *out };
        for k in 0..K {
            add_product(&mut sums, weights[k], &groups_of_rows[k][c]);
        }
        *out = sums;
    }
    for (c, out) in rest.iter_mut().enumerate() {
        let mut sum = if FROM_ZERO { T::ZERO } else { *out };
        for k in 0..K {
            sum = weights[k].mul_add(rests_of_rows[k][c], sum);
        }
        *out = sum;
    }
}
