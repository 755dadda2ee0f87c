//! Mixing: each node's new vector is a weighted sum of its neighbours' vectors, `Y = A X`.
//!
//! Every element of `Y` is summed in the order of the row's entries, product and sum rounded together,
//! whatever the number of threads and the width of the vector registers.
//!
//! ```
//! use dpmesh_core::mixing::{MixingMatrix, mix_into};
//!
//! // Two nodes that average with each other: all weights are 1/2.
//! let (indptr, indices, weights) = ([0, 2, 4], [0, 1, 0, 1], [0.5; 4]);
//! let average = MixingMatrix::new(&indptr, &indices, &weights, 2)?;
//! let mut mixed = [0.0; 4];
//! mix_into(&average, &[1.0, 10.0, 3.0, 20.0], 2, &mut mixed)?;
//! assert_eq!(mixed, [2.0, 15.0, 2.0, 15.0]);
//! # Ok::<(), dpmesh_core::KernelError>(())
//! ```

use crate::cache::{LINE, prefetch_all};
use crate::error::{self, same_len};
use crate::instructions::vectorized;
use crate::noise::{Bounds, Noise, Onto};
use crate::parallel::{Cut, Place, for_each, is_serial, share};
use crate::sampling::{CHUNK, Chunk};
use crate::wide::Wide;
use crate::{ErrorKind, Index, KernelError, Real, Sample};
use dense::{DenseRows, ROWS_AT_ONCE};
use dpmesh_store::past_cache;
use dpmesh_threads::threads;
use panels::{Ahead, Placed, mix_panels};
use path::{L2, L3_OF_THREE, LONG, MANY, PANELLED};
use rows::{Columns, Tile, mix_long, mix_past_cache, mix_short};

pub(crate) use path::Path;

mod dense;
mod panels;
mod path;
mod rows;

/// Products that cost as much as one element of simpler work (see [`is_serial`]).
const PRODUCTS: usize = 4;

/// Elements of `Y` that one task computes row after row.
const TILE: usize = 1 << 14;

/// Shares of the work on wide rows of few nodes.
mod shares {
    /// About how many blocks of columns to make of wide rows, each of a multiple of [`PANELLED`](super::PANELLED).
    pub const BLOCKS: usize = 32;

    /// The most columns of a block.
    pub const WIDEST: usize = 4 * super::PANELLED;

    /// The fewest products of a task that shares its block with others.
    pub const LEAST: usize = 1 << 20;

    /// The most products of a task, about a tenth of a second, so that it can be interrupted.
    pub const MOST: usize = 1 << 32;
}

/// Rows and columns of a task that writes past the cache.
const PAST_CACHE: (usize, usize) = (32, 2048);

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[LONG, PANELLED];

/// A sparse matrix of weights in compressed rows (CSR): row `i` has the entries `indptr[i]..indptr[i + 1]` of
/// `indices` (the columns, in any order) and `weights`.
#[derive(Debug, Clone, Copy)]
pub struct MixingMatrix<'a, T, I> {
    indptr: &'a [I],
    indices: &'a [I],
    weights: &'a [T],
    columns: usize,
}

impl<'a, T, I: Index> MixingMatrix<'a, T, I> {
    /// The matrix of `columns` columns that these slices describe.
    ///
    /// # Errors
    /// If `indptr` does not rise from 0 to the number of `indices` or has no rows, if there are no columns or not as many
    /// `weights` as `indices`, or if an index is not below `columns`.
    pub fn new(
        indptr: &'a [I],
        indices: &'a [I],
        weights: &'a [T],
        columns: usize,
    ) -> Result<MixingMatrix<'a, T, I>, KernelError> {
        same_len("weights", weights.len(), indices.len())?;
        if indptr.len() == 1 {
            return Err(KernelError::new("indptr", "at least 1 row", "none"));
        }
        if columns == 0 {
            return Err(KernelError::new("columns", "at least 1", 0));
        }
        let ends = [indptr.first(), indptr.last()].map(|end| end.map(|end| end.position()));
        if ends != [Some(0), Some(indices.len())] || !indptr.is_sorted() {
            let wanted = format!("offsets that rise from 0 to {}", indices.len());
            return Err(KernelError::new("indptr", wanted, format!("{indptr:?}")));
        }
        let largest = vectorized!(
            indices
                .iter()
                .fold(0, |largest, column| largest.max(column.position()))
        );
        if largest >= columns && !indices.is_empty() {
            let wanted = format!("columns below {columns}");
            let error = KernelError::new("indices", wanted, largest);
            return Err(error.of_kind(ErrorKind::Index));
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

    /// Whether all rows have entries in the same columns, and enough of them to make tiles of registers pay.
    fn has_dense_rows(&self) -> bool {
        let (columns, _) = self.row(0);
        let is_wide = columns.len() >= MANY && self.rows() >= ROWS_AT_ONCE;
        is_wide
            && self.rows() * columns.len() == self.indices.len()
            && (1..self.rows()).all(|i| self.row(i).0 == columns)
    }

    /// Whether nearly all neighbours are at most `distance` rows away: all but one in every four rows.
    fn is_local(&self, distance: usize) -> bool {
        let far = |i| {
            let (neighbours, _) = self.row(i);
            neighbours
                .iter()
                .filter(|j| j.position().abs_diff(i) > distance)
                .count()
        };
        4 * (0..self.rows()).map(far).sum::<usize>() <= self.rows()
    }

    /// Columns and weights of row `i`.
    #[inline(always)]
    fn row(&self, i: usize) -> (&'a [I], &'a [T]) {
        let entries = self.indptr[i].position()..self.indptr[i + 1].position();
        (&self.indices[entries.clone()], &self.weights[entries])
    }
}

/// `out = A X`, where `x` has one row of `dim` elements for each column of `a`, and `out` one for each row of `a`.
///
/// # Errors
/// If `x` or `out` does not have that many elements.
pub fn mix_into<T: Wide>(
    a: &MixingMatrix<'_, T, impl Index>,
    x: &[T],
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    check_shapes(a, x.len(), dim, out.len())?;
    let path = Path::of(a, x, dim);
    let serial = is_serial(a.indices.len() * dim / PRODUCTS);
    let x = Columns::all(x, dim);
    match path {
        Path::Dense => {
            let dense = DenseRows::new(a);
            for_each_block(a, x, serial, out, |first, x, rows| {
                dense.mix(first, x, rows);
            });
        }
        Path::Panels => {
            let is_from_memory = size_of_val(x.x) >= L3_OF_THREE;
            let ahead = if is_from_memory {
                Ahead::PanelAndSums
            } else {
                Ahead::Panel
            };
            let placed = Placed::new(a, dim);
            for_each_block(a, x, serial, out, |first, x, rows| {
                mix_panels(&placed.rows_from(first), x, ahead, rows);
            });
        }
        Path::PastCache => mix_tiles_past_cache(a, x, serial, out),
        Path::Rows => mix_rows(a, x, serial, out),
    }
    Ok(())
}

/// `out = A X`, tile after tile of several short rows or of a part of a long one.
fn mix_rows<T: Real>(
    a: &MixingMatrix<'_, T, impl Index>,
    x: Columns<'_, T>,
    serial: bool,
    out: &mut [T],
) {
    let is_cached = size_of_val(x.x) <= L2;
    let fill = |(): &mut (), Place { row, column }: Place, tile: &mut [T]| {
        let len = x.dim.min(tile.len());
        let x = x.part(column, len);
        if len < LONG {
            mix_short(a, row, x, is_cached, &mut Tile(tile, len));
        } else {
            vectorized!(for (i, out) in tile.chunks_mut(len).enumerate() {
                mix_long::<T, 1>(a, row + i, x, out);
            });
        }
    };
    let tiles = Cut::Tiles {
        dim: x.dim,
        len: TILE,
        serial,
    };
    share(out, tiles, || (), fill);
}

/// Does the work on some rows of `out`, the first of which is given, and on blocks of their columns: for few nodes, of
/// which a panel of few columns stays in the cache until all rows are summed.
fn for_each_block<T: Real>(
    a: &MixingMatrix<'_, T, impl Index>,
    x: Columns<'_, T>,
    serial: bool,
    out: &mut [T],
    work: impl Fn(usize, Columns<'_, T>, &mut [&mut [T]]) + Sync,
) {
    // If rows are whole cache lines long, all blocks but the first begin at a line.
    let width = (x.dim / shares::BLOCKS)
        .next_multiple_of(PANELLED)
        .clamp(PANELLED, shares::WIDEST);
    let products = a.indices.len() * width.min(x.dim);
    let enough = (4 * threads()).div_ceil(x.dim.div_ceil(width));
    let shares = (products / shares::LEAST)
        .min(enough)
        .max(products / shares::MOST + 1);
    let rows = a.rows().div_ceil(shares).next_multiple_of(ROWS_AT_ONCE);
    let mut tiles = column_tiles(out, x.dim, x.unaligned(), width);
    let tasks: Vec<_> = tiles
        .iter_mut()
        .flat_map(|(column, tile)| {
            tile.chunks_mut(rows)
                .enumerate()
                .map(move |(i, part)| (i * rows, *column, part))
        })
        .collect();
    for_each(
        tasks.into_iter(),
        serial,
        || (),
        |(), (first, column, rows)| work(first, x.part(column, rows[0].len()), rows),
    );
}

/// `out = A X` for large results of long rows whose neighbours are near.
fn mix_tiles_past_cache<T: Real>(
    a: &MixingMatrix<'_, T, impl Index>,
    x: Columns<'_, T>,
    serial: bool,
    out: &mut [T],
) {
    let (rows_of_task, columns_of_task) = PAST_CACHE;
    let mut tiles = Vec::new();
    let groups = out.chunks_mut(rows_of_task * x.dim);
    for (first, rows) in (0..).step_by(rows_of_task).zip(groups) {
        let parts = column_tiles(rows, x.dim, x.unaligned(), columns_of_task).into_iter();
        tiles.extend(parts.map(|(column, rows)| (first, column, rows)));
    }
    // The next task finds the rows that it shares with this one in the cache.
    tiles.sort_by_key(|&(_, column, _)| column);
    for_each(
        tiles.into_iter(),
        serial,
        Vec::new,
        |sums, (first, column, mut rows)| {
            let x = x.part(column, rows[0].len());
            past_cache(|writer| {
                vectorized!(mix_past_cache(a, first, x, &mut rows, sums, writer));
            });
        },
    );
}

/// `out = A (X + noise)`, with the bits of [`add_noise_into`](crate::noise::add_noise_into) followed by [`mix_into`]. A
/// thread holds 512 noisy columns at a time, or more if there are few nodes.
///
/// # Errors
/// As [`mix_into`] and [`add_noise_into`](crate::noise::add_noise_into); if a noisy element is NaN or infinite, the
/// content of `out` is undefined.
pub fn mix_noisy_into<T: Sample + Wide>(
    a: &MixingMatrix<'_, T, impl Index>,
    x: &[T],
    dim: usize,
    noise: &Noise<'_>,
    out: &mut [T],
) -> Result<(), KernelError> {
    check_shapes(a, x.len(), dim, out.len())?;
    let width = dim.min((TILE / a.columns.max(1) / CHUNK).max(1) * CHUNK);
    let bounds = Bounds::finite();
    let source = noise.source(Onto::Rows(x, dim), a.columns, dim, Some(&bounds))?;
    if width == dim {
        let mut sent = vec![T::ZERO; x.len()];
        source.draw(&mut sent, dim, Place::default());
        bounds.check_finite()?;
        return mix_into(a, &sent, dim, out);
    }
    // One cache line more than the columns: rows a power of two apart would compete for few places in the cache.
    let (nodes, apart) = (a.columns, width + LINE / size_of::<T>());
    let a = Placed::new(a, apart);
    let tiles = column_tiles(out, dim, 0, width).into_iter();
    let room = || (Chunk::default(), vec![T::ZERO; nodes * apart]);
    for_each(
        tiles,
        is_serial(x.len()),
        room,
        |(chunk, sent), (column, mut rows)| {
            let len = rows[0].len();
            for (row, sent) in sent.chunks_exact_mut(apart).enumerate() {
                // Prefetch what the next row reads and where the result goes while this row is drawn.
                prefetch_all(x, (row + 1) * dim + column, len);
                if let Some(out) = rows.get(row) {
                    prefetch_all(out, 0, len);
                }
                source.draw_tile(chunk, &mut sent[..len], len, Place { row, column });
            }
            let columns = Columns::all(sent, apart).part(0, len);
            mix_panels(&a.rows_from(0), columns, Ahead::Nothing, &mut rows);
        },
    );
    bounds.check_finite()
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
    a: &MixingMatrix<'_, T, impl Index>,
    x: usize,
    dim: usize,
    out: usize,
) -> Result<(), KernelError> {
    error::rows("x", x, dim)?;
    same_len("x", x, a.columns.saturating_mul(dim))?;
    same_len("out", out, a.rows().saturating_mul(dim))
}
