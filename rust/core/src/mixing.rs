//! Mixing: each node's new vector is a weighted sum of its neighbours' vectors, `Y = A X`.
//!
//! Every element of `Y` is summed in the order of the row's entries, with separate rounding of product and sum,
//! whatever the number of threads and the width of the vector registers.

use rayon::prelude::*;

use crate::error::{rows, same_len};
use crate::noise::Noise;
use crate::parallel::{SERIAL_BELOW, for_each_tile, is_serial, vectorized};
use crate::sampling::{CHUNK, Place};
use crate::{KernelError, Real, Sample};

/// Products that take as long as the work on one element elsewhere.
const PRODUCTS: usize = 4;

/// Elements of `Y` that one task computes.
const TILE: usize = 1 << 14;

/// From this many columns on it pays to walk along the neighbours' rows side by side, which the processor
/// reads ahead, instead of adding them up a few columns at a time in registers.
const LONG: usize = 256;

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
        match indices.iter().find(|&&column| column >= columns) {
            Some(column) => {
                let wanted = format!("columns below {columns}");
                Err(KernelError::new("indices", wanted, column))
            }
            None => Ok(MixingMatrix {
                indptr,
                indices,
                weights,
                columns,
            }),
        }
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
    let fill = |(): &mut (), row, column, tile: &mut [T]| {
        vectorized!(for (i, out) in tile.chunks_mut(dim).enumerate() {
            mix_row(a.row(row + i), x, dim, column, out);
        });
    };
    for_each_tile(out, dim, TILE, serial, || (), fill);
    Ok(())
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
    let rows_together = SERIAL_BELOW.div_ceil(1 + width * a.indices.len() / a.rows() / PRODUCTS);
    let min_len = if is_serial(x.len()) { usize::MAX } else { 1 };
    column_tiles(out, dim, width)
        .into_par_iter()
        .with_min_len(min_len)
        .enumerate()
        .for_each_init(room, |sent, (tile, rows)| {
            let columns = rows[0].len();
            send(sent, tile * width, columns);
            rows.into_par_iter()
                .with_min_len(rows_together)
                .enumerate()
                .for_each(|(i, out)| vectorized!(mix_row(a.row(i), sent, columns, 0, out)));
        });
    Ok(())
}

/// The rows of each tile of `width` columns; the last tile may be narrower.
fn column_tiles<T>(x: &mut [T], dim: usize, width: usize) -> Vec<Vec<&mut [T]>> {
    let mut tiles: Vec<Vec<_>> = Vec::new();
    tiles.resize_with(dim.div_ceil(width), || Vec::with_capacity(x.len() / dim));
    for row in x.chunks_mut(dim) {
        for (tile, part) in tiles.iter_mut().zip(row.chunks_mut(width)) {
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
    let (mut done, len) = (0, out.len());
    while len - done >= 32 {
        sum_columns::<T, 32>(indices, weights, &part, done, out);
        done += 32;
    }
    while len - done >= 8 {
        sum_columns::<T, 8>(indices, weights, &part, done, out);
        done += 8;
    }
    if len >= 8 {
        sum_columns::<T, 8>(indices, weights, &part, len - 8, out); // some of them once more
        done = len;
    }
    for column in done..len {
        sum_columns::<T, 1>(indices, weights, &part, column, out);
    }
}

#[inline(always)]
fn sum_columns<'a, T: Real, const C: usize>(
    indices: &[usize],
    weights: &[T],
    part: impl Fn(usize, usize, usize) -> &'a [T],
    from: usize,
    out: &mut [T],
) {
    let mut sums = [T::ZERO; C];
    for (&j, &weight) in indices.iter().zip(weights) {
        for (sum, &x) in sums.iter_mut().zip(part(j, from, C)) {
            *sum += weight * x;
        }
    }
    out[from..from + C].copy_from_slice(&sums);
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
