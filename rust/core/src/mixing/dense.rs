//! Mixing where all rows have entries in the same columns, as over a complete graph: a product of dense matrices, in
//! tiles of a few rows and columns that stay in registers, so that each number is used several times once read.

use pulp::{Simd, WithSimd};

use super::MixingMatrix;
use super::rows::Columns;
use crate::Index;
use crate::cache::{LINE, at_line};
use crate::wide::{Wide, in_wide_vectors};

/// Rows of a tile, if there are enough registers for six vectors of each.
pub const ROWS_AT_ONCE: usize = 4;

/// Rows of a tile, if there are few registers.
const FEW_ROWS: usize = 2;

/// The most columns of a tile.
const MOST: usize = 6 * LINE / size_of::<f32>();

/// Rows of weights for the same columns.
#[derive(Debug, Clone, Copy)]
pub struct DenseRows<'a, T, I> {
    columns: &'a [I],
    weights: &'a [T],
}

impl<'a, T: Wide, I: Index> DenseRows<'a, T, I> {
    /// The matrix, all of whose rows have entries in the same columns.
    pub fn new(a: &MixingMatrix<'a, T, I>) -> Self {
        DenseRows {
            columns: a.row(0).0,
            weights: a.weights,
        }
    }

    /// Some columns of `A X`, of as many rows from `first` on as there are in `rows`.
    pub fn mix(&self, first: usize, x: Columns<'_, T>, rows: &mut [&mut [T]]) {
        let width = self.columns.len();
        let weights = &self.weights[first * width..][..rows.len() * width];
        in_wide_vectors(Product {
            rows: DenseRows { weights, ..*self },
            x,
            out: rows,
        });
    }
}

struct Product<'a, 'b, T, I> {
    rows: DenseRows<'a, T, I>,
    x: Columns<'a, T>,
    out: &'a mut [&'b mut [T]],
}

impl<T: Wide, I: Index> WithSimd for Product<'_, '_, T, I> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 {
            self.multiply::<S, ROWS_AT_ONCE, 6, 4, 2>(simd);
        } else {
            self.multiply::<S, FEW_ROWS, 3, 2, 1>(simd);
        }
    }
}

impl<T: Wide, I: Index> Product<'_, '_, T, I> {
    /// Multiplies panels of `FULL` vectors of columns; the last one has as few as are enough.
    #[inline(always)]
    fn multiply<
        S: Simd,
        const ROWS: usize,
        const FULL: usize,
        const SOME: usize,
        const FEW: usize,
    >(
        mut self,
        simd: S,
    ) {
        let lanes = LINE / size_of::<T>();
        let mut room = Vec::new();
        let panel = at_line(&mut room, self.rows.columns.len() * FULL * lanes);
        for from in (0..self.x.len).step_by(FULL * lanes) {
            match self.x.len - from {
                left if left <= FEW * lanes => self.panel::<S, ROWS, FEW>(simd, from, panel),
                left if left <= SOME * lanes => self.panel::<S, ROWS, SOME>(simd, from, panel),
                _ => self.panel::<S, ROWS, FULL>(simd, from, panel),
            }
        }
    }

    /// Sums `VECTORS` vectors of columns of all rows.
    #[inline(always)]
    fn panel<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        from: usize,
        panel: &mut [T],
    ) {
        let panel = &mut panel[..self.rows.columns.len() * VECTORS * (LINE / size_of::<T>())];
        let panel = T::vectors_mut::<S>(panel).0.as_chunks_mut::<VECTORS>().0;
        self.copy_columns::<S, VECTORS>(from, panel);
        let tiled = self.out.len() - self.out.len() % ROWS;
        for i in (0..tiled).step_by(ROWS) {
            self.tile::<S, ROWS, VECTORS>(simd, i, from, panel);
        }
        for i in tiled..self.out.len() {
            self.tile::<S, 1, VECTORS>(simd, i, from, panel);
        }
    }

    /// Copies columns of `x`, side by side.
    #[inline(always)]
    fn copy_columns<S: Simd, const VECTORS: usize>(
        &self,
        from: usize,
        panel: &mut [[T::Vector<S>; VECTORS]],
    ) {
        let width = VECTORS * (LINE / size_of::<T>());
        let Columns { x, dim, column, .. } = self.x;
        let end = self.x.len - from;
        for (j, copy) in self.rows.columns.iter().zip(panel) {
            let start = j.position() * dim + column + from;
            if end >= width {
                copy.copy_from_slice(T::vectors::<S>(&x[start..][..width]).0);
            } else {
                let mut padded = [T::ZERO; MOST];
                padded[..end].copy_from_slice(&x[start..][..end]);
                copy.copy_from_slice(T::vectors::<S>(&padded[..width]).0);
            }
        }
    }

    /// Sums the `ROWS` rows from `i` on.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        i: usize,
        from: usize,
        panel: &[[T::Vector<S>; VECTORS]],
    ) {
        let mut weights = [&self.rows.weights[..0]; ROWS];
        for (r, weights) in weights.iter_mut().enumerate() {
            *weights = &self.rows.weights[(i + r) * panel.len()..][..panel.len()];
        }
        let mut sums = [[T::splat(simd, T::ZERO); VECTORS]; ROWS];
        for (k, x) in panel.iter().enumerate() {
            for r in 0..ROWS {
                let weight = T::splat(simd, weights[r][k]);
                for v in 0..VECTORS {
                    sums[r][v] = T::multiply_add(simd, x[v], weight, sums[r][v]);
                }
            }
        }
        let width = VECTORS * (LINE / size_of::<T>());
        for (sums, out) in sums.iter().zip(&mut self.out[i..]) {
            let out = &mut out[from..];
            if out.len() >= width {
                T::vectors_mut::<S>(&mut out[..width])
                    .0
                    .copy_from_slice(sums);
            } else {
                let mut padded = [T::ZERO; MOST];
                T::vectors_mut::<S>(&mut padded[..width])
                    .0
                    .copy_from_slice(sums);
                out.copy_from_slice(&padded[..out.len()]);
            }
        }
    }
}
