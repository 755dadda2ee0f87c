//! Mixing: each node's new vector is a weighted sum of its neighbours' vectors, `Y = A X`.
//!
//! Every element of `Y` is summed in the order of the row's entries, with separate rounding of product and sum,
//! whatever the number of threads and the width of the vector registers.

use crate::error::{rows, same_len};
use crate::noise::Noise;
use crate::parallel::{LINE, fetch_all, for_each, for_each_tile, is_serial, vectorized};
use crate::sampling::{CHUNK, Place};
use crate::{KernelError, Real, Sample};

/// Products that take as long as the work on one element elsewhere.
const PRODUCTS: usize = 4;

/// Elements of `Y` that one task computes.
const TILE: usize = 1 << 14;

/// From this many columns on it pays to walk along the neighbours' rows side by side, which the processor
/// reads ahead, instead of adding them up a few columns at a time in registers.
const LONG: usize = 256;

/// Columns of a block of `x`, for few nodes.
const BLOCK: usize = 256;

/// Bytes that stay in the second-level cache beside others.
const CACHED: usize = 1 << 19;

/// From so many bytes on `x` comes from so far that reading long rows ahead is worth more than reading them once.
const FAR: usize = 1 << 22;

/// Vectors of sums that are held in registers.
const VECTORS: usize = 4;

/// Rows that are added up side by side.
const SIDE_BY_SIDE: usize = 8;

/// A sparse matrix of weights in compressed rows (CSR): row `i` has the entries `indptr[i]..indptr[i + 1]` of
/// `indices` (the columns, in any order) and `weights`.
#[derive(Debug, Clone, Copy)]
pub struct MixingMatrix<'a, T> {
    indptr: &'a [usize],
    indices: &'a [usize],
    weights: &'a [T],
    columns: usize,
}

impl<'a, T> MixingMatrix<'a, T> {
    /// The matrix of `columns` columns that these slices describe.
    ///
    /// # Errors
    /// If `indptr` does not rise from 0 to the number of `indices`, if there are not as many `weights` as
    /// `indices`, or if an index is not below `columns`.
    pub fn new(
        indptr: &'a [usize],
        indices: &'a [usize],
        weights: &'a [T],
        columns: usize,
    ) -> Result<MixingMatrix<'a, T>, KernelError> {
        same_len("weights", weights.len(), indices.len())?;
        let ends = [indptr.first(), indptr.last()];
        if ends != [Some(&0), Some(&indices.len())] || !indptr.is_sorted() {
            let wanted = format!("offsets that rise from 0 to {}", indices.len());
            return Err(KernelError::new("indptr", wanted, format!("{indptr:?}")));
        }
        let largest = vectorized!(
            indices
                .iter()
                .fold(0, |largest, &column| largest.max(column))
        );
        if largest >= columns && !indices.is_empty() {
            let wanted = format!("columns below {columns}");
            return Err(KernelError::new("indices", wanted, largest));
        }
        Ok(MixingMatrix {
            indptr,
            indices,
            weights,
            columns,
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Columns and weights of row `i`.
    #[inline(always)]
    fn row(&self, i: usize) -> (&'a [usize], &'a [T]) {
        let entries = self.indptr[i]..self.indptr[i + 1];
        (&self.indices[entries.clone()], &self.weights[entries])
    }
}

/// `out = A X`, for `x` of one row of `dim` elements for each column of `a`, and `out` of one for each row.
///
/// # Errors
/// If `x` or `out` has not as many elements.
pub fn mix_into<T: Real>(
    a: &MixingMatrix<'_, T>,
    x: &[T],
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    check_shapes(a, x.len(), dim, out.len())?;
    let serial = is_serial(a.indices.len() * dim / PRODUCTS);
    let bytes = size_of_val(x);
    let is_cached = bytes <= CACHED;
    let block_is_cached = dim > 2 * BLOCK && a.columns * BLOCK * size_of::<T>() <= CACHED;
    if !is_cached && bytes < FAR && block_is_cached {
        mix_blocks(a, x, dim, serial, out);
        return Ok(());
    }
    let fill = |(): &mut (), row, column, tile: &mut [T]| {
        vectorized!(for (i, out) in tile.chunks_mut(dim).enumerate() {
            if out.len() < LONG && !is_cached && row + i + 1 < a.rows() {
                for &j in a.row(row + i + 1).0 {
                    fetch_all(x, j * dim, dim);
                }
            }
            mix_row(a.row(row + i), x, dim, column, out);
        });
    };
    for_each_tile(out, dim, TILE, serial, || (), fill);
    Ok(())
}

/// `out = A X` in blocks of columns, each of which stays in the second-level cache until all rows have it.
fn mix_blocks<T: Real>(a: &MixingMatrix<'_, T>, x: &[T], dim: usize, serial: bool, out: &mut [T]) {
    // Where rows are whole lines long, all blocks but the first begin with a line.
    let unaligned = x.as_ptr().align_offset(LINE).min(LINE);
    let tiles = column_tiles(out, dim, unaligned, BLOCK).into_iter();
    for_each(
        tiles,
        serial,
        || (),
        |(), (column, mut rows)| {
            vectorized!(for (i, out) in rows.iter_mut().enumerate() {
                let part = |j: usize, from: usize, len: usize| &x[j * dim + column + from..][..len];
                let (indices, weights) = a.row(i);
                mix_short(indices, weights, part, out);
            });
        },
    );
}

/// `out = A (X + noise)`, to the bit what [`mix_into`] makes of what [`add_noise_into`](crate::noise::add_noise_into)
/// makes of `x`. A thread holds 512 noisy columns at a time, or more if there are few nodes.
///
/// # Errors
/// As [`mix_into`] and [`add_noise_into`](crate::noise::add_noise_into).
pub fn mix_noisy_into<T: Sample>(
    a: &MixingMatrix<'_, T>,
    x: &[T],
    dim: usize,
    noise: &Noise<'_>,
    out: &mut [T],
) -> Result<(), KernelError> {
    check_shapes(a, x.len(), dim, out.len())?;
    let width = dim.min((TILE / a.columns.max(1) / CHUNK).max(1) * CHUNK);
    let source = noise.source(true, a.columns, dim)?;
    let send = |sent: &mut Vec<T>, first: usize, columns: usize| {
        sent.clear();
        for row in x.chunks(dim) {
            sent.extend_from_slice(&row[first..first + columns]);
        }
        source.draw(
            sent,
            columns,
            Place {
                row: 0,
                column: first,
            },
        );
    };
    let room = || Vec::with_capacity(a.columns * width);
    if width == dim {
        let mut sent = room();
        send(&mut sent, 0, dim);
        return mix_into(a, &sent, dim, out);
    }
    let tiles = column_tiles(out, dim, 0, width).into_iter();
    for_each(
        tiles,
        is_serial(x.len()),
        room,
        |sent, (first, mut rows)| {
            let columns = rows[0].len();
            send(sent, first, columns);
            vectorized!(for (i, out) in rows.iter_mut().enumerate() {
                mix_row(a.row(i), sent, columns, 0, out);
            });
        },
    );
    Ok(())
}

/// The first column and the rows of each tile of `width` columns; the first tile is wider by `more`, the last tile may
/// be narrower.
fn column_tiles<T>(
    x: &mut [T],
    dim: usize,
    more: usize,
    width: usize,
) -> Vec<(usize, Vec<&mut [T]>)> {
    let rows = x.len() / dim;
    let starts = std::iter::once(0).chain((more + width..dim).step_by(width));
    let mut tiles: Vec<_> = starts
        .map(|first| (first, Vec::with_capacity(rows)))
        .collect();
    for row in x.chunks_mut(dim) {
        let (first, others) = row.split_at_mut((more + width).min(dim));
        let parts = std::iter::once(first).chain(others.chunks_mut(width));
        for ((_, tile), part) in tiles.iter_mut().zip(parts) {
            tile.push(part);
        }
    }
    tiles
}

fn check_shapes<T>(
    a: &MixingMatrix<'_, T>,
    x: usize,
    dim: usize,
    out: usize,
) -> Result<(), KernelError> {
    rows("x", x, dim)?;
    same_len("x", x, a.columns * dim)?;
    same_len("out", out, a.rows() * dim)
}

/// Weighted sum of rows of `x`, which are `dim` elements apart: their columns from `column` on, as many as `out` has.
#[inline(always)]
fn mix_row<T: Real>(
    (indices, weights): (&[usize], &[T]),
    x: &[T],
    dim: usize,
    column: usize,
    out: &mut [T],
) {
    let part = |j: usize, from: usize, len: usize| &x[j * dim + column + from..][..len];
    if out.len() < LONG {
        mix_short(indices, weights, part, out);
    } else {
        mix_long(indices, weights, part, out);
    }
}

/// Sums a few columns at a time in registers, over all entries.
#[inline(always)]
fn mix_short<'a, T: Real>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    out: &mut [T],
) {
    match out.len() {
        0..8 => sum_panels::<T, 1>(indices, weights, part, out),
        16.. if 16 * size_of::<T>() == LINE => sum_panels::<T, 16>(indices, weights, part, out),
        _ => sum_panels::<T, 8>(indices, weights, part, out),
    }
}

/// Sums up to `VECTORS` vectors of `LANES` columns at a time; there are at least `LANES` columns.
#[inline(always)]
fn sum_panels<'a, T: Real, const LANES: usize>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    out: &mut [T],
) {
    let mut from = 0;
    while from < out.len() {
        from = from.min(out.len() - LANES); // some of them once more
        let len = (out.len() - from).min(VECTORS * LANES);
        let (part, out) = (|j| part(j, from, len), &mut out[from..from + len]);
        match len.div_ceil(LANES) {
            1 => sum_panel::<T, LANES, 0>(indices, weights, part, out),
            2 => sum_panel::<T, LANES, 1>(indices, weights, part, out),
            3 => sum_panel::<T, LANES, 2>(indices, weights, part, out),
            _ => sum_panel::<T, LANES, { VECTORS - 1 }>(indices, weights, part, out),
        }
        from += len;
    }
}

/// Sums `WHOLE` vectors, and one more that ends with the last column.
#[inline(always)]
fn sum_panel<'a, T: Real, const LANES: usize, const WHOLE: usize>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize) -> &'a [T],
    out: &mut [T],
) {
    let (mut sums, mut last_sums) = ([[T::ZERO; LANES]; WHOLE], [T::ZERO; LANES]);
    for (&j, &weight) in indices.iter().zip(weights) {
        let part = part(j);
        for (sums, x) in sums.iter_mut().zip(&part.as_chunks::<LANES>().0[..WHOLE]) {
            add_product(sums, weight, x);
        }
        add_product(&mut last_sums, weight, &part[part.len() - LANES..]);
    }
    out[..WHOLE * LANES].copy_from_slice(sums.as_flattened());
    let last = out.len() - LANES;
    out[last..].copy_from_slice(&last_sums);
}

#[inline(always)]
fn add_product<T: Real, const LANES: usize>(sums: &mut [T; LANES], weight: T, x: &[T]) {
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum += weight * x;
    }
}

/// Sums all columns, over a few entries at a time.
#[inline(always)]
fn mix_long<'a, T: Real>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    out: &mut [T],
) {
    if indices.is_empty() {
        out.fill(T::ZERO);
    }
    let groups = indices
        .chunks(SIDE_BY_SIDE)
        .zip(weights.chunks(SIDE_BY_SIDE));
    for (group, (indices, weights)) in groups.enumerate() {
        let mut rows: [&[T]; SIDE_BY_SIDE] = [&[]; SIDE_BY_SIDE];
        for (row, &j) in rows.iter_mut().zip(indices) {
            *row = part(j, 0, out.len());
        }
        if group == 0 {
            sum_rows::<T, true>(weights, &rows, out);
        } else {
            sum_rows::<T, false>(weights, &rows, out);
        }
    }
}

/// `out` = (0 if `FROM_ZERO`, or else `out`) + the weighted sum of the first rows, one for each weight.
#[inline(always)]
fn sum_rows<T: Real, const FROM_ZERO: bool>(
    weights: &[T],
    rows: &[&[T]; SIDE_BY_SIDE],
    out: &mut [T],
) {
    match weights.len() {
        1 => sum_k_rows::<T, 1, FROM_ZERO>(weights, rows, out),
        2 => sum_k_rows::<T, 2, FROM_ZERO>(weights, rows, out),
        3 => sum_k_rows::<T, 3, FROM_ZERO>(weights, rows, out),
        4 => sum_k_rows::<T, 4, FROM_ZERO>(weights, rows, out),
        5 => sum_k_rows::<T, 5, FROM_ZERO>(weights, rows, out),
        6 => sum_k_rows::<T, 6, FROM_ZERO>(weights, rows, out),
        7 => sum_k_rows::<T, 7, FROM_ZERO>(weights, rows, out),
        _ => sum_k_rows::<T, SIDE_BY_SIDE, FROM_ZERO>(weights, rows, out),
    }
}

#[inline(always)]
fn sum_k_rows<T: Real, const K: usize, const FROM_ZERO: bool>(
    weights: &[T],
    rows: &[&[T]; SIDE_BY_SIDE],
    out: &mut [T],
) {
    // Arrays of known size, and rows of the same length as `out`: no checks are left in the loop.
    let mut fixed_weights = [T::ZERO; K];
    fixed_weights.copy_from_slice(weights);
    let mut fixed_rows: [&[T]; K] = [&[]; K];
    for (fixed, row) in fixed_rows.iter_mut().zip(rows) {
        *fixed = &row[..out.len()];
    }
    for (c, out) in out.iter_mut().enumerate() {
        let mut sum = if FROM_ZERO { T::ZERO } else { *out };
        for k in 0..K {
            sum += fixed_weights[k] * fixed_rows[k][c];
        }
        *out = sum;
    }
}
