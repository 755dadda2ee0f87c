//! Mixing for few nodes: a panel, some columns of all rows that stay in the L1 cache, is summed before the next one.

use super::MixingMatrix;
use super::rows::Columns;
use crate::cache::{LINE, prefetch};
use crate::instructions::vectorized;
use crate::{Index, Real};

/// Vectors of a row's sums that are held in registers if rows are in a cache.
pub const CACHED_PANEL: usize = 6;

/// As [`CACHED_PANEL`], if rows come from memory: six took up to 1.4 times as long there.
pub const PANEL: usize = 4;

/// How many cache lines ahead in a row to prefetch.
const AHEAD: usize = 12;

/// What is prefetched while a row is summed.
#[derive(Clone, Copy, PartialEq)]
pub enum Ahead {
    Nothing,
    /// A later panel of one row of `x`: after all rows, that of all has been prefetched.
    Panel,
    /// As `Panel`, and a later panel of the row that is summed.
    PanelAndSums,
}

/// A matrix for rows of a known length, which leaves little to compute and check for each entry.
#[derive(Debug)]
pub struct Placed<T> {
    /// How many entries each row has.
    counts: Vec<usize>,
    /// The entries of all rows.
    entries: Vec<Entry<T>>,
    columns: usize,
}

/// Where a row of `x` begins, and its weight.
#[derive(Debug)]
struct Entry<T> {
    start: usize,
    weight: T,
}

impl<T: Real> Placed<T> {
    /// The matrix `a` for rows of `dim` elements.
    pub fn new(a: &MixingMatrix<'_, T, impl Index>, dim: usize) -> Placed<T> {
        let starts = a.indices.iter().map(|j| j.position() * dim);
        let entries = starts.zip(a.weights);
        Placed {
            counts: (0..a.rows()).map(|i| a.row(i).0.len()).collect(),
            entries: entries
                .map(|(start, &weight)| Entry { start, weight })
                .collect(),
            columns: a.columns,
        }
    }

    /// The rows from `first` on.
    pub fn rows_from(&self, first: usize) -> PlacedRows<'_, T> {
        let (before, counts) = self.counts.split_at(first);
        PlacedRows {
            first,
            counts,
            entries: &self.entries[before.iter().sum()..],
            columns: self.columns,
        }
    }
}

/// Rows of a [`Placed`] matrix, from `first` on.
#[derive(Debug, Clone, Copy)]
pub struct PlacedRows<'a, T> {
    first: usize,
    counts: &'a [usize],
    entries: &'a [Entry<T>],
    columns: usize,
}

/// Some columns of these rows of `A X`, as many as there are in `rows`.
pub fn mix_panels<T: Real>(
    a: &PlacedRows<'_, T>,
    x: Columns<'_, T>,
    ahead: Ahead,
    rows: &mut [&mut [T]],
) {
    let line = LINE / size_of::<T>();
    match x.len / line {
        _ if x.len < 8 => sum_panels::<T, 1, 1>(a, x, ahead, rows),
        0..CACHED_PANEL => sum_panels::<T, 8, 1>(a, x, ahead, rows),
        _ if line == 16 => sum_wide::<T, 16>(a, x, ahead, rows),
        _ => sum_wide::<T, 8>(a, x, ahead, rows),
    }
}

fn sum_wide<T: Real, const LANES: usize>(
    a: &PlacedRows<'_, T>,
    x: Columns<'_, T>,
    ahead: Ahead,
    rows: &mut [&mut [T]],
) {
    match ahead {
        Ahead::PanelAndSums => sum_panels::<T, LANES, PANEL>(a, x, ahead, rows),
        _ => sum_panels::<T, LANES, CACHED_PANEL>(a, x, ahead, rows),
    }
}

/// Sums panels of `VECTORS` vectors of `LANES` columns; there are at least as many columns.
fn sum_panels<T: Real, const LANES: usize, const VECTORS: usize>(
    a: &PlacedRows<'_, T>,
    x: Columns<'_, T>,
    ahead: Ahead,
    rows: &mut [&mut [T]],
) {
    let width = VECTORS * LANES;
    // Panels are laid out from the end; the first one has some columns of the next once more.
    let rest = x.len % width;
    let first = (rest > 0).then_some(0);
    for from in first.into_iter().chain((rest..x.len).step_by(width)) {
        let panel = (&x.x[x.column + from..], x.dim);
        vectorized!(sum_panel::<T, LANES, VECTORS>(a, panel, from, ahead, rows));
    }
}

/// Sums the panel of these rows that begins at column `from` of `rows` and at the first element of `x`.
#[inline(always)]
fn sum_panel<T: Real, const LANES: usize, const VECTORS: usize>(
    a: &PlacedRows<'_, T>,
    (x, dim): (&[T], usize),
    from: usize,
    ahead: Ahead,
    rows: &mut [&mut [T]],
) {
    let (width, line) = (VECTORS * LANES, LINE / size_of::<T>());
    let (later, columns) = (
        a.first * dim + AHEAD * line,
        a.columns - a.first.min(a.columns),
    );
    let mut entries = a.entries;
    for (i, (out, &count)) in rows.iter_mut().zip(a.counts).enumerate() {
        if ahead != Ahead::Nothing && i < columns {
            prefetch_panel::<T, LANES, VECTORS>(x, i * dim + later);
        }
        let out = &mut out[from..][..width];
        if ahead == Ahead::PanelAndSums {
            prefetch_panel::<T, LANES, VECTORS>(out, AHEAD * line);
        }
        let row;
        (row, entries) = entries.split_at(count);
        let mut sums = [[T::ZERO; LANES]; VECTORS];
        for entry in row {
            let x = &x[entry.start..][..width];
            let weight = entry.weight; // read after the checks, into all lanes at once
            for (sum, &x) in sums.as_flattened_mut().iter_mut().zip(x) {
                *sum = weight.mul_add(x, *sum); // one loop over all vectors: from a loop over each, the compiler may make gathers
            }
        }
        out.copy_from_slice(sums.as_flattened());
    }
}

#[inline(always)]
fn prefetch_panel<T, const LANES: usize, const VECTORS: usize>(slice: &[T], first: usize) {
    for vector in 0..VECTORS {
        prefetch(slice, first + vector * LANES);
    }
}
