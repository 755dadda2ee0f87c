//! Sharing work among threads so that their number does not affect the result: work is cut into pieces by the data
//! alone, or where the cut cannot be seen in the result, and partial results are combined in the order of the pieces.
//!
//! Numbers that are written are cut by a [`Cut`] and shared by [`share`]; numbers that are only read are cut into blocks
//! and summed by [`sum_blocks`] or mapped by [`map_blocks`]. Both rest on [`for_each`], the only way to other threads.

use dpmesh_threads::{pause, threads};

/// Elements in a block: small enough for the L1 cache, large enough to hide the dispatch.
pub(crate) const BLOCK: usize = 4096;

/// Below this many elements, some 10 to 30 microseconds of work, a kernel stays on the calling thread: other threads
/// would come too late.
pub(crate) const SERIAL_BELOW: usize = 8 * BLOCK;

/// The fewest elements of a task.
const TASK: usize = 2 * BLOCK;

/// Elements of a task if there is one thread alone: few enough that a user can stop the work between two tasks.
const LONG_TASK: usize = 512 * BLOCK;

/// Numbers of elements at which work is shared in another way, and the first one that 16 bits cannot count.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[BLOCK, TASK, SERIAL_BELOW, 1 << 16];

/// Whether the calling thread does the work on this many elements alone.
pub(crate) fn is_serial(elements: usize) -> bool {
    elements < SERIAL_BELOW || threads() == 1
}

/// Whether threads should share the work within each row, because the rows are few and long.
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
        return;
    }
    #[cfg(test)]
    let scratch = {
        let set = crate::instructions::chosen();
        move || {
            crate::instructions::choose(set);
            scratch()
        }
    };
    dpmesh_threads::for_each(items, scratch, work);
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
        return items.map(value).collect();
    }
    let mut values: Vec<Option<R>> = (0..items.len()).map(|_| None).collect();
    let pairs = values.iter_mut().zip(items);
    let fill = |(): &mut (), (place, item): (&mut Option<R>, _)| *place = Some(value(item));
    for_each(pairs, serial, || (), fill);
    values.into_iter().flatten().collect()
}

/// `value(block)` for each block of `len` elements, in order.
pub(crate) fn map_blocks<T: Sync, R: Send>(
    x: &[T],
    len: usize,
    value: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    map(x.chunks(len), is_serial(x.len()), value)
}

/// Sum of `term(block)` over the blocks of `x`, in the order of the blocks.
pub(crate) fn sum_blocks<T: Sync>(x: &[T], term: impl Fn(&[T]) -> f64 + Sync) -> f64 {
    if is_serial(x.len()) {
        return x.chunks(BLOCK).map(term).sum();
    }
    let tasks = map(x.chunks(TASK), false, |blocks| {
        blocks.chunks(BLOCK).map(&term).collect::<Vec<_>>()
    });
    tasks.iter().flatten().sum()
}

/// Where a piece of a matrix begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub row: usize,
    pub column: usize,
}

/// How a matrix is cut into pieces, each the work of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// Several whole rows of `dim` elements; the work on a row touches about `cost` elements.
    Rows { dim: usize, cost: usize },
    /// As `Rows`, or all rows together where the work can itself be shared among threads: see [`is_better_within`].
    RowsOrWithin { dim: usize, cost: usize },
    /// Blocks of `len` elements, the last one shorter, of a matrix that is one row: block `i` has the column `i * len`.
    Blocks { len: usize },
    /// Single rows of `dim` elements, and of long ones parts of [`BLOCK`] elements.
    Parts { dim: usize },
    /// About `len` elements: several whole rows of `dim`, or a part of one; on the calling thread alone if `serial`.
    Tiles {
        dim: usize,
        len: usize,
        serial: bool,
    },
}

/// A cut of a matrix of known size.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    dim: usize,
    /// Elements of a piece: less than a row, or whole rows.
    piece: usize,
    /// Pieces of a task, which one thread works on before it takes another.
    pieces: usize,
    serial: bool,
}

impl Cut {
    fn sizes(self, elements: usize) -> Sizes {
        match self {
            Cut::Rows { dim, cost } => {
                let rows = elements / dim;
                let is_short = rows.saturating_mul(cost) < SERIAL_BELOW;
                if rows < 2 || is_short {
                    return Sizes::whole(elements);
                }
                let serial = threads() == 1;
                let task = if serial { LONG_TASK } else { TASK };
                Sizes {
                    dim,
                    piece: task.div_ceil(cost.max(1)).saturating_mul(dim),
                    pieces: 1,
                    serial,
                }
            }
            Cut::RowsOrWithin { dim, cost } => {
                if is_better_within(elements / dim, cost) {
                    return Sizes::whole(elements);
                }
                Cut::Rows { dim, cost }.sizes(elements)
            }
            Cut::Blocks { len } => Sizes {
                dim: elements.max(1),
                piece: len,
                pieces: TASK.div_ceil(len),
                serial: is_serial(elements),
            },
            Cut::Parts { dim } if dim < SERIAL_BELOW => Sizes {
                dim,
                piece: dim,
                pieces: TASK.div_ceil(dim),
                serial: is_serial(elements),
            },
            Cut::Parts { dim } => Sizes {
                dim,
                piece: BLOCK,
                pieces: 1,
                serial: threads() == 1,
            },
            Cut::Tiles { dim, len, serial } => Sizes {
                dim,
                piece: if dim > len { len } else { len / dim * dim },
                pieces: 1,
                serial,
            },
        }
    }
}

impl Sizes {
    /// All elements in one piece, on the calling thread.
    fn whole(elements: usize) -> Sizes {
        Sizes {
            dim: elements.max(1),
            piece: elements.max(1),
            pieces: 1,
            serial: true,
        }
    }
}

/// Calls `work(scratch, place, piece)` for each piece of `x`, on several threads if there is much to do. For `scratch`
/// see [`for_each`].
pub(crate) fn share<T: Send, S>(
    x: &mut [T],
    cut: Cut,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, Place, &mut [T]) + Sync,
) {
    if x.is_empty() {
        return;
    }
    let sizes = cut.sizes(x.len());
    let Sizes { dim, piece, .. } = sizes;
    if x.len() <= piece {
        return work(&mut scratch(), Place::default(), x);
    }
    for_each(
        Tasks::new(x, sizes),
        sizes.serial,
        scratch,
        |scratch, (first, task): (Place, &mut [T])| {
            for (i, piece_of_task) in task.chunks_mut(piece).enumerate() {
                let place = first.after(i * piece, dim);
                work(scratch, place, piece_of_task);
            }
        },
    );
}

/// As [`share`], for each row of `dim` elements: calls `work(scratch, row_index, row)`.
pub(crate) fn share_rows<T: Send, S>(
    x: &mut [T],
    dim: usize,
    cost: usize,
    scratch: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &mut [T]) + Sync,
) {
    share(
        x,
        Cut::Rows { dim, cost },
        scratch,
        |scratch, first, rows| {
            for (i, row) in rows.chunks_mut(dim).enumerate() {
                work(scratch, first.row + i, row);
            }
        },
    );
}

impl Place {
    /// The place so many elements later, in rows of `dim` elements.
    fn after(self, elements: usize, dim: usize) -> Place {
        let column = self.column + elements;
        Place {
            row: self.row + column / dim,
            column: column % dim,
        }
    }
}

/// The tasks that [`share`] hands out: pieces side by side, within a row or of whole rows.
struct Tasks<'x, T> {
    rest: &'x mut [T],
    dim: usize,
    /// Elements of a task: less than a row, or whole rows.
    len: usize,
    next: Place,
}

impl<'x, T> Tasks<'x, T> {
    fn new(x: &'x mut [T], sizes: Sizes) -> Self {
        Tasks {
            rest: x,
            dim: sizes.dim,
            len: sizes.piece.saturating_mul(sizes.pieces),
            next: Place::default(),
        }
    }

    fn are_within_rows(&self) -> bool {
        self.len < self.dim
    }
}

impl<'x, T> Iterator for Tasks<'x, T> {
    type Item = (Place, &'x mut [T]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let end = if self.are_within_rows() {
            self.dim - self.next.column
        } else {
            self.rest.len()
        };
        let (task, rest) = std::mem::take(&mut self.rest).split_at_mut(self.len.min(end));
        let place = self.next;
        self.rest = rest;
        self.next = place.after(task.len(), self.dim);
        Some((place, task))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let tasks = if self.are_within_rows() {
            let rows = (self.rest.len() + self.next.column) / self.dim;
            rows * self.dim.div_ceil(self.len) - self.next.column / self.len
        } else {
            self.rest.len().div_ceil(self.len)
        };
        (tasks, Some(tasks))
    }
}

impl<T> ExactSizeIterator for Tasks<'_, T> {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dpmesh_threads::with_threads;

    use super::*;

    /// Numbers each element by the place of its piece; fails if a piece has another form than its cut says.
    fn numbered(elements: usize, cut: Cut, dim: usize, fits: impl Fn(Place, usize) -> bool + Sync) {
        let mut x = vec![usize::MAX; elements];
        let calls = AtomicUsize::new(0);
        share(
            &mut x,
            cut,
            || (),
            |(), place, piece| {
                assert!(
                    fits(place, piece.len()),
                    "{cut:?}, {place:?}: {}",
                    piece.len()
                );
                calls.fetch_add(1, Ordering::Relaxed);
                for (i, element) in piece.iter_mut().enumerate() {
                    *element = place.row * dim + place.column + i;
                }
            },
        );
        assert!(x.iter().copied().eq(0..elements), "{cut:?} of {elements}");
        assert!(calls.into_inner() <= elements.max(1));
    }

    #[test]
    fn every_element_is_in_one_piece_at_its_place() {
        for threads in [1, 2, 7] {
            with_threads(threads, || {
                for dim in [
                    1,
                    3,
                    1000,
                    BLOCK - 1,
                    BLOCK + 1,
                    SERIAL_BELOW - 1,
                    SERIAL_BELOW + 1,
                ] {
                    for rows in [0, 1, 2, 5, 9, 40] {
                        let elements = rows * dim;
                        let is_whole_rows =
                            |place: Place, len: usize| place.column == 0 && len.is_multiple_of(dim);
                        for cost in [0, 1, dim, 1 << 40] {
                            numbered(elements, Cut::Rows { dim, cost }, dim, is_whole_rows);
                            numbered(
                                elements,
                                Cut::RowsOrWithin { dim, cost },
                                dim,
                                is_whole_rows,
                            );
                        }
                        numbered(elements, Cut::Parts { dim }, dim, |place, len| {
                            let whole = if dim < SERIAL_BELOW { dim } else { BLOCK };
                            place.column.is_multiple_of(BLOCK)
                                && len == whole.min(dim - place.column)
                        });
                        for len in [1, 7, 512, BLOCK, TASK + 1] {
                            for serial in [false, true] {
                                let tiles = Cut::Tiles { dim, len, serial };
                                numbered(elements, tiles, dim, |place, size| {
                                    let is_part = size <= len && place.column + size <= dim;
                                    is_part || (is_whole_rows(place, size) && size <= len)
                                });
                            }
                            let one_row = elements.max(1);
                            numbered(elements, Cut::Blocks { len }, one_row, |place, size| {
                                let rest = elements - place.column;
                                place.row == 0
                                    && place.column.is_multiple_of(len)
                                    && size == len.min(rest)
                            });
                        }
                    }
                }
            });
        }
    }

    /// More rows than a thread alone takes in one piece.
    #[test]
    fn a_long_task_ends_so_that_it_can_be_stopped() {
        let rows = LONG_TASK + 3;
        let cut = Cut::Rows { dim: 1, cost: 1 };
        let sizes = with_threads(1, || cut.sizes(rows));
        assert_eq!(Tasks::new(&mut vec![0_u8; rows], sizes).len(), 2);
        with_threads(1, || numbered(rows, cut, 1, |_, len| len <= LONG_TASK));
    }

    #[test]
    fn values_and_sums_have_the_order_of_their_blocks() {
        for threads in [1, 2, 7] {
            with_threads(threads, || {
                for len in [
                    1,
                    BLOCK,
                    TASK + 1,
                    SERIAL_BELOW - 1,
                    SERIAL_BELOW + 1,
                    9 * TASK + 5,
                ] {
                    let x: Vec<usize> = (0..len).collect();
                    let firsts = map_blocks(&x, 100, |block| block[0]);
                    assert!(firsts.into_iter().eq((0..len).step_by(100)));
                    // 2^60 hides what is added to it, but not what was added before.
                    let term = |block: &[usize]| {
                        if block[0] == BLOCK {
                            2_f64.powi(60)
                        } else {
                            1.0
                        }
                    };
                    let expected =
                        (0..len.div_ceil(BLOCK)).map(|i| if i == 1 { 2_f64.powi(60) } else { 1.0 });
                    assert_eq!(sum_blocks(&x, term), expected.sum::<f64>());
                }
            });
        }
    }
}
