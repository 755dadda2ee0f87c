//! Drawing rows of samples, each row from the stream of its own node.
//!
//! A stream is a sequence of *words* of 4 bytes. A *unit* of words becomes a unit of samples: a [`Sampler`] defines both,
//! for its distribution. A row is a sequence of *chunks* of [`CHUNK`] samples, and each chunk begins at a fixed place of
//! the stream, so that any thread can draw any of them. A [`Source`] draws all rows of a matrix: rows of at most a chunk
//! several at a time, longer rows chunk by chunk.

use crate::cache::prefetch_all;
use crate::instructions::vectorized;
use crate::parallel::{Cut, Place, share};
use crate::stream::{BLOCK_BYTES, Stream};
use crate::{ErrorKind, KernelError};

/// Samples in a chunk.
pub(crate) const CHUNK: usize = 512;

/// The cost of a sample, in elements of simpler work (see [`is_serial`](crate::parallel::is_serial)).
const SAMPLE: usize = 2;

/// Words and samples are laid out in groups of this many, for vector instructions.
pub(crate) const LANES: usize = 8;

/// Lengths of rows at which they are drawn in another way.
#[cfg(test)]
pub(crate) const TURNS: &[usize] = &[LANES, 2 * LANES, CHUNK, 2 * CHUNK];

/// A word of a stream.
pub(crate) type Word = [u8; 4];

/// The smallest piece of a stream that becomes samples.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    /// Samples in a unit, a divisor of [`CHUNK`].
    pub samples: usize,
    /// Words of the stream that make them, at most two for each sample.
    pub words: usize,
}

/// How words become samples, and how those are stored.
pub(crate) trait Sampler: Sync {
    /// What is drawn.
    type Sample: Copy + Default + Send;
    /// What a row holds.
    type Stored: Send;

    /// Samples that are made together, and the words that they take.
    fn unit(&self) -> Unit;

    /// Turns whole units of words into samples; `#[inline(always)]`.
    fn draw(&self, words: &[Word], samples: &mut [Self::Sample]);

    /// Whether [`store`](Self::store) treats all rows alike, so that it can store several at once.
    fn rows_are_alike(&self) -> bool {
        true
    }

    /// Prefetches what [`store`](Self::store) will read to fill a part of `len` elements.
    fn prefetch(&self, _first: Place, _len: usize) {}

    /// Stores samples into the part that begins at `first`, of as many elements; `#[inline(always)]`.
    fn store(&self, first: Place, samples: &[Self::Sample], part: &mut [Self::Stored]);

    /// Checks a part that was stored, while it is in the cache.
    fn stored(&self, _part: &[Self::Stored]) {}
}

/// Bytes of a chunk to prefetch, 32 cache lines: the processor prefetches what follows by itself, and more at a time
/// would stall it.
const PREFETCHED: usize = 2048;

/// Which node each row belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nodes<'a> {
    /// Node of each row, as an index among `held`; `None` for 0, 1, ..
    named: Option<&'a [u32]>,
    /// Nodes that the stream is for; `None` for all.
    held: Option<&'a [u32]>,
}

impl<'a> Nodes<'a> {
    /// The `named` ones among the nodes of the stream; `None` for all of them in order. Fails unless they are distinct
    /// and one for each row: two rows with the noise of the same node would reveal it.
    pub fn new(
        named: Option<&'a [u32]>,
        stream: &'a Stream,
        rows: usize,
    ) -> Result<Nodes<'a>, KernelError> {
        let held = stream.nodes();
        let Some(ids) = named.or(held) else {
            return match u32::try_from(rows) {
                Ok(_) => Ok(Nodes { named, held }),
                Err(_) => Err(KernelError::new("x", "less than 2^32 rows", rows)),
            };
        };
        if ids.len() != rows {
            let wanted = format!("one for each of {rows} rows");
            return Err(KernelError::new("nodes", wanted, ids.len()));
        }
        distinct(ids)?;
        if let (Some(named), Some(held)) = (named, held) {
            distinct(held)?;
            if let Some(node) = named.iter().find(|node| **node as usize >= held.len()) {
                let wanted = format!("nodes below {}, as many as the key is for", held.len());
                return Err(KernelError::new("nodes", wanted, node));
            }
        }
        Ok(Nodes { named, held })
    }

    /// The node of a row.
    pub fn of(self, row: usize) -> u32 {
        let node = self.named.map_or(row as u32, |named| named[row]);
        self.held.map_or(node, |held| held[node as usize])
    }
}

/// Fails if a node occurs twice.
fn distinct(nodes: &[u32]) -> Result<(), KernelError> {
    if !nodes.is_sorted_by(|a, b| a < b) {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable();
        if let Some([node, ..]) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let got = format!("{node} twice");
            let error = KernelError::new("nodes", "distinct nodes", got);
            return Err(error.of_kind(ErrorKind::Index));
        }
    }
    Ok(())
}

/// The place so many rows and columns further; columns are multiples of [`CHUNK`].
fn moved(place: Place, rows: usize, columns: usize) -> Place {
    Place {
        row: place.row + rows,
        column: place.column + columns,
    }
}

/// The samples of all rows of a matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a, S> {
    sampler: S,
    stream: &'a Stream,
    nodes: Nodes<'a>,
}

impl<'a, S: Sampler> Source<'a, S> {
    /// The samples of a matrix of `rows` rows of `dim` elements.
    pub fn new(
        sampler: S,
        stream: &'a Stream,
        nodes: Option<&'a [u32]>,
        rows: usize,
        dim: usize,
    ) -> Result<Source<'a, S>, KernelError> {
        let Unit { samples, words } = sampler.unit();
        let row_bytes = 4 * dim.div_ceil(samples) * words;
        Stream::holds("dim", row_bytes.div_ceil(BLOCK_BYTES) as u64)?;
        let nodes = Nodes::new(nodes, stream, rows)?;
        Ok(Source {
            sampler,
            stream,
            nodes,
        })
    }

    /// The same stream and nodes with another sampler of the same type.
    pub fn with(&self, sampler: S) -> Source<'a, S> {
        Source { sampler, ..*self }
    }

    /// Fills `x`, the part of the matrix that begins at `first` and has rows of `dim` elements.
    pub fn draw(&self, x: &mut [S::Stored], dim: usize, first: Place) {
        if dim <= CHUNK {
            let cost = self.cost(dim);
            let rows = Cut::Rows { dim, cost };
            share(x, rows, Chunk::default, |chunk, place, x| {
                self.draw_tile(chunk, x, dim, moved(first, place.row, 0));
            });
        } else {
            share(x, Cut::Parts { dim }, Chunk::default, |chunk, place, x| {
                self.draw_row(chunk, moved(first, place.row, place.column), x);
            });
        }
    }

    /// As [`draw`](Self::draw), on the calling thread, with memory that small parts can share.
    pub fn draw_tile(
        &self,
        chunk: &mut Chunk<S::Sample>,
        x: &mut [S::Stored],
        dim: usize,
        first: Place,
    ) {
        if dim <= CHUNK {
            let rows = CHUNK / self.drawn(dim);
            for (block, x) in x.chunks_mut(rows * dim).enumerate() {
                self.draw_short_rows(chunk, moved(first, block * rows, 0), dim, x);
            }
        } else {
            for (row, x) in x.chunks_mut(dim).enumerate() {
                self.draw_row(chunk, moved(first, row, 0), x);
            }
        }
    }

    /// Samples that are drawn for a row of `dim` elements.
    fn drawn(&self, dim: usize) -> usize {
        dim.next_multiple_of(self.sampler.unit().samples)
    }

    /// The cost of a row of `dim` elements, in elements of simpler work (see `is_serial`).
    pub fn cost(&self, dim: usize) -> usize {
        SAMPLE * self.drawn(dim)
    }

    /// Draws several rows of `dim` elements, as many as one chunk holds.
    fn draw_short_rows(
        &self,
        chunk: &mut Chunk<S::Sample>,
        first: Place,
        dim: usize,
        x: &mut [S::Stored],
    ) {
        let Unit { samples, words } = self.sampler.unit();
        let (units, rows) = (dim.div_ceil(samples), x.len() / dim);
        let bytes = &mut chunk.bytes.0[..4 * words * units * rows];
        let node_of = |row| self.nodes.of(first.row + row);
        let block = self.block(first.column);
        self.stream
            .fill_rows(node_of, block, 4 * words * units, bytes);
        vectorized!({
            let drawn = chunk.draw(&self.sampler, words * units * rows, samples * units * rows);
            if self.sampler.rows_are_alike() {
                close_gaps(drawn, samples * units, dim);
                self.sampler.store(first, &drawn[..x.len()], x);
            } else {
                let drawn = drawn.chunks_exact(samples * units);
                for (row, (x, drawn)) in x.chunks_exact_mut(dim).zip(drawn).enumerate() {
                    self.sampler.store(moved(first, row, 0), &drawn[..dim], x);
                }
            }
        });
        self.sampler.stored(x);
    }

    /// Draws a part of a row, chunk by chunk.
    fn draw_row(&self, chunk: &mut Chunk<S::Sample>, first: Place, x: &mut [S::Stored]) {
        let Unit { samples, words } = self.sampler.unit();
        for (i, x) in x.chunks_mut(CHUNK).enumerate() {
            let units = x.len().div_ceil(samples);
            let bytes = &mut chunk.bytes.0[..4 * words * units];
            let first = moved(first, 0, i * CHUNK);
            // Prefetch this chunk's output while its random bits are drawn, and the next chunk's input while they
            // become samples. Both at once would stall the processor.
            let len = x.len().min(PREFETCHED / size_of::<S::Stored>());
            prefetch_all(x, 0, len);
            let block = self.block(first.column);
            self.stream.fill(self.nodes.of(first.row), block, bytes);
            self.sampler.prefetch(moved(first, 0, CHUNK), len);
            vectorized!({
                let drawn = chunk.draw(&self.sampler, words * units, samples * units);
                self.sampler.store(first, &drawn[..x.len()], x);
            });
        }
        self.sampler.stored(x);
    }

    /// The block of the stream at which a chunk begins.
    fn block(&self, column: usize) -> u32 {
        debug_assert!(column.is_multiple_of(CHUNK));
        let Unit { samples, words } = self.sampler.unit();
        (column / samples * words * 4 / BLOCK_BYTES) as u32
    }
}

/// Moves rows of `drawn` samples together so that the first `dim` samples of each are left. Whole groups are moved: the
/// next row overwrites any excess.
#[inline(always)]
fn close_gaps<T: Copy>(samples: &mut [T], drawn: usize, dim: usize) {
    for row in 1..samples.len() / drawn {
        for group in (0..dim).step_by(LANES) {
            let from = row * drawn + group;
            samples.copy_within(from..from + LANES, row * dim + group);
        }
    }
}

/// One group of words as numbers.
#[inline(always)]
pub(crate) fn lanes(words: &[Word], group: usize) -> [u32; LANES] {
    std::array::from_fn(|lane| u32::from_le_bytes(words[LANES * group + lane]))
}

/// Makes each sample from two words, which are [`LANES`] words apart; `sample` must be `#[inline(always)]`.
#[inline(always)]
pub(crate) fn from_pairs<T>(words: &[Word], samples: &mut [T], sample: impl Fn([u32; 2]) -> T) {
    let (pairs, last) = words.as_chunks::<{ 4 * LANES }>();
    let (in_pairs, in_last) = samples.split_at_mut(2 * LANES * pairs.len());
    for (words, samples) in pairs.iter().zip(in_pairs.as_chunks_mut().0) {
        from_groups::<_, { 2 * LANES }>(words, samples, &sample);
    }
    for samples in in_last.as_chunks_mut().0 {
        from_groups::<_, LANES>(last, samples, &sample);
    }
}

/// As [`from_pairs`], for `N` samples at once: two groups of words fill a vector of 512 bits.
#[inline(always)]
fn from_groups<T, const N: usize>(
    words: &[Word],
    samples: &mut [T; N],
    sample: impl Fn([u32; 2]) -> T,
) {
    let word = |i: usize, half| {
        u32::from_le_bytes(words[i / LANES * 2 * LANES + half * LANES + i % LANES])
    };
    let (mut high, mut low) = ([0; N], [0; N]);
    // With `from_fn` Laplace noise takes 2.5 times as long in programs that are compiled in several units of code.
    for i in 0..N {
        (high[i], low[i]) = (word(i, 0), word(i, 1));
    }
    for i in 0..N {
        samples[i] = sample([high[i], low[i]]);
    }
}

/// Memory for one chunk of a stream and its samples, small enough for the L1 cache.
pub(crate) struct Chunk<T> {
    bytes: Aligned<[u8; 8 * CHUNK]>,
    samples: Aligned<[T; CHUNK]>,
}

#[repr(align(64))]
struct Aligned<T>(T);

impl<T: Copy + Default> Default for Chunk<T> {
    fn default() -> Chunk<T> {
        Chunk {
            bytes: Aligned([0; 8 * CHUNK]),
            samples: Aligned([T::default(); CHUNK]),
        }
    }
}

impl<T> Chunk<T> {
    /// Turns the first words of the chunk into samples.
    #[inline(always)]
    fn draw(
        &mut self,
        sampler: &impl Sampler<Sample = T>,
        words: usize,
        samples: usize,
    ) -> &mut [T] {
        let samples = &mut self.samples.0[..samples];
        sampler.draw(&self.bytes.0.as_chunks().0[..words], samples);
        samples
    }
}
