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
use crate::parallel::{for_each, for_each_tile, is_serial};
use crate::sampling::{CHUNK, Chunk, Place};
use crate::wide::Wide;
use crate::{Index, KernelError, Real, Sample};
use dense::{DenseRows, ROWS_AT_ONCE, WIDE};
use dpmesh_store::past_cache;
use dpmesh_threads::threads;
use panels::{Ahead, CACHED_PANEL, PANEL, Placed, mix_panels};
use rows::{Columns, LONG, Tile, mix_long, mix_past_cache, mix_short};

mod dense;
mod panels;
mod rows;

/// Products that cost as much as one element of simpler work (see [`is_serial`]).
const PRODUCTS: usize = 4;

/// Elements of `Y` that one task computes.
const TILE: usize = 1 << 14;

/// Columns of a task, for few nodes: this many, which are whole panels, or a multiple if that leaves enough tasks.
const BLOCK: usize = 576;

/// About how many tasks to make of wide rows, for few nodes.
const TASKS: usize = 32;

/// From this many bytes of `X` on, it, `Y` and one more array of this size, as a run has, exceed a shared cache of
/// 32 MiB.
const FROM_MEMORY: usize = (32 << 20) / 3;

/// Bytes that stay in the L2 cache beside other data.
const CACHED: usize = 1 << 19;

/// Bytes of the L1 cache.
const NEAREST: usize = 48 << 10;

/// From this many neighbours a row on, panels in the L1 cache pay although all of `X` is in the L2 cache.
const DENSE: usize = 16;

/// The fewest products of a task that shares its panels with others.
const SHARED: usize = 1 << 20;

/// The most products of a task, about a tenth of a second, so that it can be interrupted.
const LONG_TASK: usize = 1 << 32;

/// A result of more bytes does not stay in an L3 cache of 32 MiB beside `x`, and is written past it.
const LARGE: usize = 24 << 20;

/// Rows of a task that writes past the cache.
const ROWS: usize = 32;

/// Columns of such a task.
const COLUMNS: usize = 2048;

/// The most columns of a task, for few nodes.
const WIDEST: usize = 4 * BLOCK;

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
    let serial = is_serial(a.indices.len() * dim / PRODUCTS);
    let is_cached = size_of_val(x) <= CACHED;
    let x = Columns::all(x, dim);
    if dim >= WIDE
        && let Some(dense) = DenseRows::of(a)
    {
        let mix = |first, x: Columns<'_, T>, rows: &mut [&mut [T]]| dense.mix(first, x, rows);
        for_each_block(a, x, serial, out, mix);
        return Ok(());
    }
    let is_dense =
        a.indices.len() >= DENSE * a.rows() && a.columns * CACHED_PANEL * LINE <= NEAREST;
    let panel_is_cached = if is_dense {
        dim >= LONG
    } else {
        dim >= BLOCK && a.columns * PANEL * LINE <= CACHED
    };
    let is_past_cache = dim >= LONG && size_of_val(out) > LARGE;
    if (is_dense || !is_cached) && (panel_is_cached || is_past_cache) {
        let is_local = !is_dense && a.is_local(CACHED / size_of::<T>() / dim);
        if panel_is_cached && !is_local {
            let ahead = if size_of_val(x.x) < FROM_MEMORY {
                Ahead::Panel
            } else {
                Ahead::PanelAndSums
            };
            let placed = Placed::new(a, dim);
            for_each_block(a, x, serial, out, |first, x, rows| {
                mix_panels(&placed.rows_from(first), x, ahead, rows);
            });
            return Ok(());
        }
        if is_past_cache && is_local {
            mix_tiles_past_cache(a, x, serial, out);
            return Ok(());
        }
    }
    let fill = |(): &mut (), row, column, tile: &mut [T]| {
        let len = dim.min(tile.len());
        if len < LONG {
            mix_short(a, row, x.part(column, len), is_cached, &mut Tile(tile, len));
        } else {
            vectorized!(for (i, out) in tile.chunks_mut(len).enumerate() {
                mix_long::<T, 1>(a, row + i, x.part(column, len), out);
            });
        }
    };
    for_each_tile(out, dim, TILE, serial, || (), fill);
    Ok(())
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
    let width = (x.dim / TASKS).next_multiple_of(BLOCK).clamp(BLOCK, WIDEST);
    let products = a.indices.len() * width.min(x.dim);
    let enough = (4 * threads()).div_ceil(x.dim.div_ceil(width));
    let shares = (products / SHARED)
        .min(enough)
        .max(products / LONG_TASK + 1);
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
    let mut tiles = Vec::new();
    for (first, rows) in (0..).step_by(ROWS).zip(out.chunks_mut(ROWS * x.dim)) {
        let parts = column_tiles(rows, x.dim, x.unaligned(), COLUMNS).into_iter();
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
