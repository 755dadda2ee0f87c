//! Sharing work among threads so that their number does not affect the result: work is cut into blocks of a size that
//! depends on the data alone, and partial results are combined in the order of the blocks.
//!
//! A matrix is shared by whole rows ([`for_each_row`]) or, where a row is so short that the set-up counts, by groups of
//! rows ([`for_each_group`]); by blocks of so many elements, wherever its rows begin ([`for_each_block`]); by whole
//! short rows and parts of long ones ([`for_each_part`]); and by tiles of about so many elements ([`for_each_tile`]).

use dpmesh_threads::{pause, threads};

/// Elements in a block: small enough for the L1 cache, large enough to hide the dispatch.
pub(crate) const BLOCK: usize = 4096;

/// Below this many elements, some 10 to 30 microseconds of work, a kernel stays on the calling thread: other threads
/// would come too late.
pub(crate) const SERIAL_BELOW: usize = 8 * BLOCK;

/// The fewest elements of a task.
const TASK: usize = 2 * BLOCK;

/// Those of a task of a thread that is alone: few enough to stop between two of them.
const LONG_TASK: usize = 512 * BLOCK;

/// Whether the calling thread does the work on this many elements alone.
pub(crate) fn is_serial(elements: usize) -> bool {
    elements < SERIAL_BELOW || threads() == 1
}

/// Whether threads had better share the work within each row than the rows, which are few and long.
pub(crate) fn is_better_within(rows: usize, cost: usize) -> bool {
    rows < threads() && cost >= SERIAL_BELOW
}

/// Calls `work(scratch, item)` for each item, on several threads unless `serial`. `scratch` keeps the content of any
/// earlier call. An item should be some microseconds of work.
pub(crate) fn for_each<I: ExactSizeIterator + Send, S>(
    items: I,
    serial: bool,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I::Item) + Sync,
) {
    if serial {
        let mut scratch = scratch();
        for item in items {
            work(&mut scratch, item);
            pause();
        }
    } else {
        dpmesh_threads::for_each(items, scratch, work);
    }
}

/// `value(item)` for each item, in order, on several threads unless `serial`.
pub(crate) fn map<I: ExactSizeIterator + Send, R: Send>(
    items: I,
    serial: bool,
    value: impl Fn(I::Item) -> R + Sync,
) -> Vec<R> {
    if serial {
        let value = |item| {
            let value = value(item);
            pause();
            value
        };
        items.map(value).collect()
    } else {
        dpmesh_threads::map(items, value)
    }
}

/// Calls `work(row_index, row)` for each row of `dim` elements, on several threads if there is much to do.
/// `cost` is about how many elements the work on one row touches.
pub(crate) fn for_each_row<T: Send>(
    x: &mut [T],
    dim: usize,
    cost: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    for_each_row_with(x, dim, cost, || (), |(), i, row| work(i, row));
}

/// As [`for_each_row`], for work that needs scratch memory: see [`for_each`].
pub(crate) fn for_each_row_with<T: Send, S>(
    x: &mut [T],
    dim: usize,
    cost: usize,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &mut [T]) + Sync,
) {
    for_each_group(x, dim, cost, |first, rows| {
        let mut scratch = scratch();
        for (i, row) in rows.chunks_mut(dim).enumerate() {
            work(&mut scratch, first + i, row);
        }
    });
}

/// As [`for_each_row`], calling `work(first_row, rows)` for several rows at once: with short rows, the set-up costs
/// more than the work on each.
pub(crate) fn for_each_group<T: Send>(
    x: &mut [T],
    dim: usize,
    cost: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let rows = x.len() / dim;
    if rows < 2 || rows.saturating_mul(cost) < SERIAL_BELOW {
        work(0, x);
    } else {
        let serial = threads() == 1;
        let rows_per_task = if serial { LONG_TASK } else { TASK }.div_ceil(cost.max(1));
        let tasks = x.chunks_mut(rows_per_task * dim).enumerate();
        for_each(
            tasks,
            serial,
            || (),
            |(), (task, rows)| work(task * rows_per_task, rows),
        );
    }
}

/// As [`for_each_group`], for work that can itself be shared among threads: see [`is_better_within`].
pub(crate) fn for_each_group_or_within<T: Send>(
    x: &mut [T],
    dim: usize,
    cost: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    if is_better_within(x.len() / dim, cost) {
        work(0, x);
    } else {
        for_each_group(x, dim, cost, work);
    }
}

/// Calls `work(scratch, block_index, block)` for each block of `len` elements (the last one may be shorter), on
/// several threads if there is much to do. For `scratch` see [`for_each`].
pub(crate) fn for_each_block<T: Send, S>(
    x: &mut [T],
    len: usize,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &mut [T]) + Sync,
) {
    let serial = is_serial(x.len());
    let blocks_per_task = TASK.div_ceil(len);
    let tasks = x.chunks_mut(blocks_per_task * len).enumerate();
    for_each(tasks, serial, scratch, |scratch, (task, blocks)| {
        for (i, block) in blocks.chunks_mut(len).enumerate() {
            work(scratch, task * blocks_per_task + i, block);
        }
    });
}

/// Calls `work(scratch, row, column, part)` for each row of `dim` elements, long rows in parts of [`BLOCK`] elements
/// that begin at `column`, on several threads if there is much to do. For `scratch` see [`for_each`].
pub(crate) fn for_each_part<T: Send, S>(
    x: &mut [T],
    dim: usize,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, usize, &mut [T]) + Sync,
) {
    if dim < SERIAL_BELOW {
        for_each_block(x, dim, scratch, |scratch, row, x| work(scratch, row, 0, x));
    } else {
        for_each_tile(x, dim, BLOCK, threads() == 1, scratch, work);
    }
}

/// `value(block)` for each block of `len` elements, in order.
pub(crate) fn map_blocks<T: Sync, R: Send>(
    x: &[T],
    len: usize,
    value: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    map(x.chunks(len), is_serial(x.len()), value)
}

/// Calls `work(scratch, first_row, first_column, tile)` for tiles of about `len` elements of the rows of `x`: several
/// whole rows, or a piece of one row. On several threads unless `serial`. For `scratch` see [`for_each`].
pub(crate) fn for_each_tile<T: Send, S>(
    x: &mut [T],
    dim: usize,
    len: usize,
    serial: bool,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, usize, &mut [T]) + Sync,
) {
    let tiles = Tiles {
        rest: x,
        dim,
        len: if dim > len { len } else { len / dim * dim },
        row: 0,
        column: 0,
    };
    for_each(tiles, serial, scratch, |scratch, (row, column, tile)| {
        work(scratch, row, column, tile);
    });
}

/// The tiles that [`for_each_tile`] shares among threads.
struct Tiles<'x, T> {
    rest: &'x mut [T],
    dim: usize,
    /// Elements in a tile: less than a row, or whole rows.
    len: usize,
    row: usize,
    column: usize,
}

impl<'x, T> Iterator for Tiles<'x, T> {
    type Item = (usize, usize, &'x mut [T]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (row, column) = (self.row, self.column);
        let row_ends = if self.dim > self.len {
            self.dim - column
        } else {
            self.rest.len()
        };
        let (tile, rest) = std::mem::take(&mut self.rest).split_at_mut(self.len.min(row_ends));
        self.rest = rest;
        self.row += (column + tile.len()) / self.dim;
        self.column = (column + tile.len()) % self.dim;
        Some((row, column, tile))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let tiles = if self.dim > self.len {
            let rows = (self.rest.len() + self.column) / self.dim;
            rows * self.dim.div_ceil(self.len) - self.column / self.len
        } else {
            self.rest.len().div_ceil(self.len)
        };
        (tiles, Some(tiles))
    }
}

impl<T> ExactSizeIterator for Tiles<'_, T> {}

/// Sum of `term(block)` over the blocks of `x`, in the order of the blocks.
pub(crate) fn sum_blocks<T: Sync>(x: &[T], term: impl Fn(&[T]) -> f64 + Sync) -> f64 {
    if is_serial(x.len()) {
        x.chunks(BLOCK).map(term).sum()
    } else {
        let tasks = map(x.chunks(TASK), false, |blocks| {
            blocks.chunks(BLOCK).map(&term).collect::<Vec<_>>()
        });
        tasks.iter().flatten().sum()
    }
}
