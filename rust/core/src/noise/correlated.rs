//! Gaussian noise that works together: with the noise of earlier rounds, and with that of partners.
//!
//! A row of round t is fresh noise plus multiples of the rows of earlier rounds, which is the recursion of the inverse
//! of a banded matrix. To it come pairwise terms: one draw for each pair of nodes, added at one end and subtracted at
//! the other. Each element is summed in one fixed order (fresh noise, earlier rows as given, pairs as given), so that
//! its bits depend neither on threads nor on which other rows a process holds.

use super::{Bounds, Distribution, Noise, Onto, Scaled};
use crate::cache::prefetch_all;
use crate::error::{non_negative, rows, same_len};
use crate::instructions::vectorized;
use crate::parallel::{Place, share_rows};
use crate::sampling::{CHUNK, Nodes, Sampler, Source, Unit, Word};
use crate::stream::Stream;
use crate::{KernelError, Sample};

/// Columns of pairwise noise that are drawn at once, a multiple of [`CHUNK`].
const PANEL: usize = 8 * CHUNK;

/// Elements of pairwise noise that are drawn at once, if a panel of a single pair has no more.
const DRAWN: usize = 1 << 20;

/// Columns at which another panel begins.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[PANEL, 2 * PANEL];

/// Pairs of whole panels at which another draw begins.
#[cfg(test)]
pub(crate) const PAIRS: &[usize] = &[DRAWN / PANEL];

/// Noise of an earlier round, and the factor with which it enters the noise of this one.
#[derive(Debug, Clone, Copy)]
pub struct Earlier<'a, T> {
    weight: f64,
    rows: &'a [T],
}

impl<'a, T> Earlier<'a, T> {
    /// Rows, as many and as long as those to be filled, that enter with a finite factor.
    pub const fn new(weight: f64, rows: &'a [T]) -> Earlier<'a, T> {
        Earlier { weight, rows }
    }
}

/// Two nodes that share a stream: what one end adds, the other subtracts.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    pub(crate) node: u32,
    pub(crate) ends: [Option<u32>; 2],
}

impl Pair {
    /// A pair from the node of the stream whose words it alone uses, the row that adds the noise and the row that
    /// subtracts it; `None` for an end that is not among the rows.
    pub const fn new(node: u32, ends: [Option<u32>; 2]) -> Pair {
        Pair { node, ends }
    }
}

/// Fills `out`, rows of `dim` elements, with fresh Gaussian noise plus the weighted `earlier` rows.
///
/// # Errors
/// As [`noise_into`](super::noise_into); if the distribution is not Gaussian, a weight is not finite in `T`, earlier rows have
/// another size than `out`, or a sum is not finite.
pub fn correlated_noise_into<T: Sample>(
    noise: &Noise<'_>,
    earlier: &[Earlier<'_, T>],
    dim: usize,
    out: &mut [T],
) -> Result<(), KernelError> {
    if noise.distribution != Distribution::Gaussian {
        let got = format!("{:?}", noise.distribution);
        return Err(KernelError::new("distribution", "Gaussian", got));
    }
    let rows = rows("out", out.len(), dim)?;
    let weighted = |earlier: &Earlier<'_, T>| {
        same_len("earlier", earlier.rows.len(), out.len())?;
        let weight = T::from_f64(earlier.weight);
        if weight.is_finite() {
            return Ok(weight);
        }
        let wanted = "numbers that are finite in the type of the rows";
        Err(KernelError::new("weights", wanted, earlier.weight))
    };
    let weights: Result<Vec<T>, KernelError> = earlier.iter().map(weighted).collect();
    let bounds = Bounds::finite();
    let sampler = Correlated {
        fresh: Scaled {
            distribution: noise.distribution,
            scales: super::scales_in(noise.scales, rows)?,
            onto: Onto::Nothing,
            bounds: Some(&bounds),
        },
        earlier: weights?
            .into_iter()
            .zip(earlier.iter().map(|e| e.rows))
            .collect(),
        dim,
    };
    Source::new(sampler, noise.stream, noise.nodes, rows, dim)?.draw(out, dim, Place::default());
    bounds.check_finite()
}

/// Fresh noise, and the weights and rows of earlier noise.
struct Correlated<'a, T> {
    fresh: Scaled<'a, T>,
    earlier: Vec<(T, &'a [T])>,
    dim: usize,
}

impl<T: Sample> Sampler for Correlated<'_, T> {
    type Sample = T;
    type Stored = T;

    fn unit(&self) -> Unit {
        self.fresh.unit()
    }

    #[inline(always)]
    fn draw(&self, words: &[Word], samples: &mut [T]) {
        self.fresh.draw(words, samples);
    }

    fn rows_are_alike(&self) -> bool {
        self.fresh.rows_are_alike()
    }

    fn prefetch(&self, Place { row, column }: Place, len: usize) {
        for (_, rows) in &self.earlier {
            prefetch_all(rows, row * self.dim + column, len);
        }
    }

    #[inline(always)]
    fn store(&self, first: Place, samples: &[T], part: &mut [T]) {
        self.fresh.store(first, samples, part);
        for &(weight, rows) in &self.earlier {
            let rows = &rows[first.row * self.dim + first.column..];
            for (out, x) in part.iter_mut().zip(rows) {
                *out = weight.mul_add(*x, *out);
            }
        }
    }

    fn stored(&self, part: &[T]) {
        self.fresh.stored(part);
    }
}

/// Adds `scale` times a standard normal vector of each pair to the row at its first end and subtracts it from the row
/// at its second. Each pair is drawn once.
///
/// # Errors
/// If `scale` is negative or not finite (in `T`), two pairs use one node of the stream, an end is not a row of `x`, both
/// ends of a pair are one row, the stream is of some nodes only, or `x` is not a whole number of rows.
pub fn add_pair_noise_in_place<T: Sample>(
    x: &mut [T],
    dim: usize,
    pairs: &[Pair],
    scale: f64,
    stream: &Stream,
) -> Result<(), KernelError> {
    let rows = rows("x", x.len(), dim)?;
    non_negative("scale", scale)?;
    if stream.nodes().is_some() {
        let wanted = "a stream of a key for all nodes, since its rows are pairs";
        return Err(KernelError::new("stream", wanted, "one for some nodes"));
    }
    let ends = Ends::new(pairs, rows)?;
    let ids: Vec<u32> = pairs.iter().map(|pair| pair.node).collect();
    Nodes::new(Some(&ids), stream, ids.len())?;
    let scales = [scale];
    for column in (0..dim).step_by(PANEL) {
        let width = PANEL.min(dim - column);
        let together = (DRAWN / width).max(1);
        let mut drawn = vec![T::ZERO; together.min(ids.len()) * width];
        for (block, ids) in ids.chunks(together).enumerate() {
            let drawn = &mut drawn[..ids.len() * width];
            let noise = Noise::new(Distribution::Gaussian, &scales, stream).for_nodes(ids);
            let place = Place { row: 0, column };
            noise
                .source(Onto::Nothing, ids.len(), dim, None)?
                .draw(drawn, width, place);
            let first = block * together;
            let drawn = &*drawn;
            let cost = ends.cost(rows, width);
            share_rows(
                x,
                dim,
                cost,
                || (),
                |(), row, x| {
                    let x = &mut x[column..column + width];
                    for (pair, adds) in ends.of(row, first, ids.len()) {
                        let noise = &drawn[(pair - first) * width..][..width];
                        vectorized!(add_signed(noise, adds, x));
                    }
                },
            );
        }
    }
    Ok(())
}

#[inline(always)]
fn add_signed<T: Sample>(noise: &[T], adds: bool, x: &mut [T]) {
    if adds {
        for (x, z) in x.iter_mut().zip(noise) {
            *x += *z;
        }
    } else {
        for (x, z) in x.iter_mut().zip(noise) {
            *x -= *z;
        }
    }
}

/// The pairs of each row, in the order of the pairs, and whether the row adds their noise.
struct Ends {
    starts: Vec<usize>,
    pairs: Vec<(usize, bool)>,
}

impl Ends {
    fn new(pairs: &[Pair], rows: usize) -> Result<Ends, KernelError> {
        let mut starts = vec![0; rows + 1];
        for pair in pairs {
            if let [Some(first), Some(second)] = pair.ends
                && first == second
            {
                return Err(KernelError::new("ends", "two different rows", first));
            }
            for row in pair.ends.into_iter().flatten() {
                let Some(count) = starts.get_mut(row as usize + 1) else {
                    let wanted = format!("rows below {rows}");
                    return Err(KernelError::new("ends", wanted, row));
                };
                *count += 1;
            }
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut incident = vec![(0, true); starts[rows]];
        for (number, pair) in pairs.iter().enumerate() {
            for (end, adds) in pair.ends.into_iter().zip([true, false]) {
                if let Some(row) = end {
                    incident[next[row as usize]] = (number, adds);
                    next[row as usize] += 1;
                }
            }
        }
        Ok(Ends {
            starts,
            pairs: incident,
        })
    }

    /// About how many elements the work on one row touches, if a row has `width` of them.
    fn cost(&self, rows: usize, width: usize) -> usize {
        (self.pairs.len() / rows.max(1) + 1) * width
    }

    /// Those of a row among the `count` pairs from `first` on.
    fn of(
        &self,
        row: usize,
        first: usize,
        count: usize,
    ) -> impl Iterator<Item = (usize, bool)> + '_ {
        let all = &self.pairs[self.starts[row]..self.starts[row + 1]];
        let from = all.partition_point(|(pair, _)| *pair < first);
        let to = all.partition_point(|(pair, _)| *pair < first + count);
        all[from..to].iter().copied()
    }
}
