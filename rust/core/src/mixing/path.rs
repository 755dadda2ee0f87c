//! Which way a product takes, by what fits a cache.
//!
//! | path | taken by | how |
//! |---|---|---|
//! | [`Dense`](Path::Dense) | rows with entries in the same columns, at least [`MANY`] | tiles of rows and columns in registers |
//! | [`Panels`](Path::Panels) | few nodes, of which a panel of columns stays in a cache | all rows, panel after panel |
//! | [`PastCache`](Path::PastCache) | near neighbours, and results larger than a cache | tiles that are written past it |
//! | [`Rows`](Path::Rows) | all others | row after row |
//!
//! Panels pay where `x` is not in the L2 cache and neighbours are far, or where rows have many neighbours and a panel
//! stays in the L1 cache.

use super::MixingMatrix;
use super::panels::{CACHED_PANEL, PANEL};
use crate::cache::LINE;
use crate::{Index, Real};

/// The ways to compute a product; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Dense,
    Panels,
    PastCache,
    Rows,
}

/// Bytes of the L1 cache.
const L1: usize = 48 << 10;

/// Bytes that stay in the L2 cache beside other data.
pub const L2: usize = 1 << 19;

/// From this many bytes of `X` on, it, `Y` and one more array of this size, as a run has, exceed a shared L3 cache of
/// 32 MiB.
pub const L3_OF_THREE: usize = (32 << 20) / 3;

/// A result of more bytes does not stay in an L3 cache of 32 MiB beside `x`.
pub const L3_BESIDE_X: usize = 24 << 20;

/// From this many entries a row on, each number of a panel is used often enough to pay for itself in registers and in
/// the L1 cache.
pub const MANY: usize = 16;

/// From this many columns of `x` on, tiles of registers pay.
pub const TILED: usize = 32;

/// From this many columns on it pays to walk along the neighbours' rows side by side, which the processor reads ahead,
/// instead of adding them up a few columns at a time in registers; and panels in the L1 cache pay.
pub const LONG: usize = 256;

/// From this many columns on, panels in the L2 cache pay; whole panels of `f32` and `f64`.
pub const PANELLED: usize = 576;

impl Path {
    /// The path of `a` times these rows of `dim` elements.
    pub fn of<T: Real>(a: &MixingMatrix<'_, T, impl Index>, x: &[T], dim: usize) -> Path {
        if dim >= TILED && a.has_dense_rows() {
            return Path::Dense;
        }
        let bytes_of_panel = |lines: usize| a.columns.saturating_mul(lines * LINE);
        let has_many = a.indices.len() >= MANY * a.rows();
        if has_many && bytes_of_panel(CACHED_PANEL) <= L1 && dim >= LONG {
            return Path::Panels;
        }
        let bytes_of_result = a.rows() * dim * size_of::<T>();
        let is_panelled = dim >= PANELLED && bytes_of_panel(PANEL) <= L2;
        let is_past_cache = dim >= LONG && bytes_of_result > L3_BESIDE_X;
        if size_of_val(x) <= L2 || !(is_panelled || is_past_cache) {
            return Path::Rows;
        }
        match (
            a.is_local(L2 / size_of::<T>() / dim),
            is_panelled,
            is_past_cache,
        ) {
            (false, true, _) => Path::Panels,
            (true, _, true) => Path::PastCache,
            _ => Path::Rows,
        }
    }
}
