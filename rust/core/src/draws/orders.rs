//! Samples without replacement and random orders, by sorting uniform numbers; and how orders are cut into batches.

use super::Draw;
use crate::error::{rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{Place, for_each, is_serial, share_rows};
use crate::sampling::{LANES, Source};
use crate::stream::{BLOCK_BYTES, Stream};
use crate::{KernelError, Sample};

/// Uniform numbers, of 64 bits each, in a block of the stream.
const NUMBERS_PER_BLOCK: usize = BLOCK_BYTES / 8;

/// The cost of drawing and sorting a number, in elements of simpler work (see `is_serial`).
const SORTED: usize = 16;

/// Up to this many numbers are sorted by counting, for each, the smaller ones: this has no branches, and those of other
/// sorts are unpredictable.
const FEW: usize = 128;

/// Numbers of a row in memory at a time.
const AT_ONCE: usize = 1 << 20;

#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[FEW, AT_ONCE];

/// Fills each row of `size` elements of `out` with a sample without replacement of the numbers below its count,
/// ascending: the places of the smallest of that count of uniform numbers, those of
/// [`uniform_into`](super::uniform_into) in `f64`.
///
/// # Errors
/// As [`uniform_into`](super::uniform_into), and if there is not one count for each row or one of them is less than
/// `size`.
pub fn sample_into(
    counts: &[i64],
    stream: &Stream,
    nodes: Option<&[u32]>,
    size: usize,
    out: &mut [i64],
) -> Result<(), KernelError> {
    let rows = rows("out", out.len(), size)?;
    same_len("counts", counts.len(), rows)?;
    if let Some(few) = counts.iter().find(|&&count| count < size as i64) {
        let wanted = format!("at least {size}, the size of a sample");
        return Err(KernelError::new("counts", wanted, few));
    }
    let longest = counts.iter().max().map_or(0, |&count| count as usize);
    Stream::holds("counts", longest.div_ceil(NUMBERS_PER_BLOCK) as u64)?;
    let source = Source::new(Draw(f64::uniform), stream, nodes, rows, longest)?;
    let memory = || (vec![0.0; longest.min(AT_ONCE)], Vec::new());
    share_rows(out, size, longest, memory, |(coins, low), row, out| {
        let count = counts[row] as usize;
        smallest(count, low, out, |bound, low| {
            for column in (0..count).step_by(AT_ONCE) {
                dpmesh_threads::pause();
                let coins = &mut coins[..AT_ONCE.min(count - column)];
                source.draw(coins, coins.len(), Place { row, column });
                for (i, &coin) in coins.iter().enumerate() {
                    if coin < bound {
                        low.push((coin, (column + i) as i64));
                    }
                }
            }
        });
    });
    Ok(())
}

/// Rows of values, one after the other: row `i` is `values[indptr[i]..indptr[i + 1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    indptr: &'a [i64],
    values: &'a [i64],
}

impl<'a> Rows<'a> {
    /// Rows that begin at these places of all rows' values; the last one is where the last row ends.
    pub const fn new(indptr: &'a [i64], values: &'a [i64]) -> Rows<'a> {
        Rows { indptr, values }
    }
}

/// Fills `out` with `lengths[i]` values of each row `i`: pass after pass over the row, each in a new random order, the
/// last one cut off. A pass sorts the values by one uniform number each; the passes take these in turn from the numbers
/// of [`uniform_into`](super::uniform_into) in `f64`.
///
/// # Errors
/// As [`uniform_into`](super::uniform_into), and if `indptr` does not rise from 0 to the number of values, there is not
/// one length for each row, the lengths do not add up to that of `out`, or an empty row is to give a value.
pub fn shuffle_into(
    rows: Rows<'_>,
    lengths: &[i64],
    stream: &Stream,
    nodes: Option<&[u32]>,
    out: &mut [i64],
) -> Result<(), KernelError> {
    let serial = is_serial(SORTED * out.len());
    let tasks = passes(rows, lengths, out)?;
    let drawn = |(values, out): &Passes<'_, '_>| out.len().next_multiple_of(values.len().max(1));
    let longest = tasks.iter().map(drawn).max().unwrap_or(0);
    Stream::holds("lengths", longest.div_ceil(NUMBERS_PER_BLOCK) as u64)?;
    let source = Source::new(Draw(f64::uniform), stream, nodes, tasks.len(), longest)?;
    let memory = || (Vec::new(), Vec::new());
    for_each(
        tasks.into_iter().enumerate(),
        serial,
        memory,
        |(coins, order), (row, (values, out))| {
            if out.is_empty() {
                return;
            }
            let drawn = out.len().next_multiple_of(values.len());
            coins.resize(drawn, 0.0);
            source.draw(coins, drawn, Place { row, column: 0 });
            let passes = coins.chunks(values.len());
            for (coins, out) in passes.zip(out.chunks_mut(values.len())) {
                if values.len() <= FEW {
                    vectorized!(order_few(coins, values, out));
                    continue;
                }
                order.clear();
                order.extend(coins.iter().zip(values).map(|(c, &v)| (c.to_bits(), v)));
                order.sort_unstable(); // numbers of at least 0 have the order of their bits
                for (out, &(_, value)) in out.iter_mut().zip(order.iter()) {
                    *out = value;
                }
            }
        },
    );
    Ok(())
}

/// Cuts passes over rows of these sizes into `batches[i]` batches of row `i`. Each has `batch_size` values; the last of
/// a pass has what is left. `out` gets 0, and then the total number of values up to the end of each batch.
///
/// # Errors
/// If `batch_size` is not positive, there is not one number of batches for each row, a number of batches is negative,
/// an empty row is to give a batch, or `out` does not have one element more than there are batches.
pub fn batch_ends_into(
    sizes: &[i64],
    batches: &[i64],
    batch_size: i64,
    out: &mut [i64],
) -> Result<(), KernelError> {
    if batch_size < 1 {
        return Err(KernelError::new("batch_size", "at least 1", batch_size));
    }
    same_len("batches", batches.len(), sizes.len())?;
    same_len("out", out.len().min(1), 1)?;
    let (first, mut out) = out.split_at_mut(1);
    first[0] = 0;
    let mut end = 0;
    for (&size, &count) in sizes.iter().zip(batches) {
        let fits = usize::try_from(count).ok().filter(|&n| n == 0 || size > 0);
        let Some((own, rest)) = fits.and_then(|n| std::mem::take(&mut out).split_at_mut_checked(n))
        else {
            let wanted = "as many batches as there is room for, none of an empty row";
            return Err(KernelError::new("batches", wanted, count));
        };
        let mut left = 0;
        for slot in own {
            left = if left == 0 { size } else { left };
            let batch = batch_size.min(left);
            left -= batch;
            end = i64::checked_add(end, batch).ok_or_else(|| {
                KernelError::new("sizes", "less than 2^63 values in all batches", size)
            })?;
            *slot = end;
        }
        out = rest;
    }
    same_len("out", out.len(), 0)
}

/// Writes the values in the order of their numbers, as many as `out` has room for.
#[inline(always)]
fn order_few(coins: &[f64], values: &[i64], out: &mut [i64]) {
    const ONE: f64 = (1_u64 << 53) as f64; // the numbers are multiples of 1 / ONE
    let mut keys = [[i64::MAX; LANES]; FEW / LANES];
    for (place, (key, coin)) in keys.as_flattened_mut().iter_mut().zip(coins).enumerate() {
        *key = ((coin * ONE) as i64) << 7 | place as i64; // of equal numbers the first
    }
    let keys = &keys[..coins.len().div_ceil(LANES)];
    for (own, &value) in keys.as_flattened().iter().zip(values) {
        let mut smaller = [0; LANES];
        for keys in keys {
            for l in 0..LANES {
                smaller[l] += usize::from(keys[l] < *own);
            }
        }
        if let Some(out) = out.get_mut(smaller.iter().sum::<usize>()) {
            *out = value;
        }
    }
}

/// The values of a row, and where its passes go.
type Passes<'v, 'o> = (&'v [i64], &'o mut [i64]);

fn passes<'v, 'o>(
    Rows { indptr, values }: Rows<'v>,
    lengths: &[i64],
    mut out: &'o mut [i64],
) -> Result<Vec<Passes<'v, 'o>>, KernelError> {
    let ends = (indptr.first(), indptr.last());
    if ends != (Some(&0), Some(&(values.len() as i64))) || !indptr.is_sorted() {
        let wanted = format!("an indptr that rises from 0 to {}", values.len());
        return Err(KernelError::new("rows", wanted, "one that does not"));
    }
    same_len("lengths", lengths.len(), indptr.len() - 1)?;
    let mut tasks = Vec::with_capacity(lengths.len());
    for (row, &length) in indptr.windows(2).zip(lengths) {
        let row = &values[row[0] as usize..row[1] as usize];
        let fits = usize::try_from(length)
            .ok()
            .filter(|&n| n == 0 || !row.is_empty());
        let Some((own, rest)) = fits.and_then(|n| std::mem::take(&mut out).split_at_mut_checked(n))
        else {
            let wanted = "as many values as there is room for, none of an empty row";
            return Err(KernelError::new("lengths", wanted, length));
        };
        tasks.push((row, own));
        out = rest;
    }
    same_len("out", out.len(), 0)?;
    Ok(tasks)
}

/// Writes the places of the `out.len()` smallest of `count` numbers, ascending; of equal numbers the first counts as
/// smaller. `find` adds the numbers below a bound, with their places, to `low`, which is scratch memory.
fn smallest(
    count: usize,
    low: &mut Vec<(f64, i64)>,
    out: &mut [i64],
    mut find: impl FnMut(f64, &mut Vec<(f64, i64)>),
) {
    let size = out.len() as f64;
    let mut bound = (size + 4.0 * size.sqrt() + 4.0) / count as f64;
    loop {
        low.clear();
        find(bound, low);
        if low.len() >= out.len() {
            break;
        }
        bound *= 2.0; // at 1 it is above every number
    }
    low.select_nth_unstable_by(out.len() - 1, |(a, i), (b, j)| {
        a.total_cmp(b).then(i.cmp(j))
    });
    for (out, (_, place)) in out.iter_mut().zip(low) {
        *out = *place;
    }
    out.sort_unstable();
}
