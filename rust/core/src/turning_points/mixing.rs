//! Mixing on each of its paths, by sums in the order of a row's entries.

use super::{Element, around, assert_same, everywhere, numbers, stream};
use crate::instructions::with_each_instruction_set;
use crate::mixing::{MixingMatrix, Path, TURNS, mix_into, mix_noisy_into};
use crate::noise::{Distribution, Noise, add_noise_into};
use crate::stream::Cipher;
use crate::{Sample, Wide};

/// A sparse matrix with its own memory.
struct Graph<T> {
    indptr: Vec<i64>,
    indices: Vec<i64>,
    weights: Vec<T>,
    columns: usize,
}

impl<T: Wide> Graph<T> {
    fn new(rows: usize, columns: usize, neighbours: impl Fn(usize) -> Vec<usize>) -> Self {
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for row in 0..rows {
            indices.extend(neighbours(row).into_iter().map(|j| (j % columns) as i64));
            indptr.push(indices.len() as i64);
        }
        let weights = numbers(indices.len());
        Graph {
            indptr,
            indices,
            weights,
            columns,
        }
    }

    /// Each row mixes itself, the next one and others, far away if `stride` is more than 1; every ninth row nothing.
    fn sparse(rows: usize, degree: usize, stride: usize) -> Self {
        Graph::new(rows, rows, |row| match row % 9 {
            8 => Vec::new(),
            _ => (0..degree).map(|k| row + k * stride + k * k).collect(),
        })
    }

    fn complete(rows: usize, columns: usize) -> Self {
        Graph::new(rows, columns, |_| (0..columns).collect())
    }

    fn matrix(&self) -> MixingMatrix<'_, T, i64> {
        MixingMatrix::new(&self.indptr, &self.indices, &self.weights, self.columns).unwrap()
    }

    fn defined(&self, x: &[T], dim: usize) -> Vec<T> {
        let mut out = vec![T::ZERO; (self.indptr.len() - 1) * dim];
        for (row, out) in out.chunks_mut(dim).enumerate() {
            for k in self.indptr[row] as usize..self.indptr[row + 1] as usize {
                let x = &x[self.indices[k] as usize * dim..][..dim];
                for (sum, &x) in out.iter_mut().zip(x) {
                    *sum = self.weights[k].mul_add(x, *sum);
                }
            }
        }
        out
    }
}

fn check<T: Wide + Element>(path: Path, weights: &Graph<T>, dim: usize) {
    let size = (path, weights.indptr.len() - 1, weights.columns, dim);
    let x = numbers::<T>(weights.columns * dim);
    let a = weights.matrix();
    assert_eq!(Path::of(&a, &x, dim), path, "{size:?}");
    let mixed = everywhere(size, || {
        let mut mixed = vec![T::from_f64(f64::NAN); size.1 * dim];
        mix_into(&a, &x, dim, &mut mixed).unwrap();
        mixed
    });
    assert_same(size, &mixed, &weights.defined(&x, dim));
}

fn short_rows<T: Wide + Element>() {
    for dim in around(&[8, 16, 32, 56, 64, 112, 120, 224, 256]) {
        check(Path::Rows, &Graph::<T>::sparse(19, 3, 5), dim);
    }
    for rows in around(&[1 << 15, 1 << 16]) {
        check(Path::Rows, &Graph::<T>::sparse(rows, 4, 1_000), 1);
    }
    check(Path::Rows, &Graph::<T>::sparse(3_000, 4, 100), 57);
    check(Path::Rows, &Graph::<T>::sparse(1_100, 9, 100), 300);
}

#[test]
fn rows_one_after_the_other() {
    short_rows::<f32>();
    short_rows::<f64>();
}

fn dense<T: Wide + Element>() {
    for dim in around(&[32, 48, 64, 96, 192, 576, 2_304]) {
        if dim >= 32 {
            check(Path::Dense, &Graph::<T>::complete(7, 17), dim);
        }
    }
    for rows in around(&[8, 33, 64]) {
        check(Path::Dense, &Graph::<T>::complete(rows, 64), 700);
    }
    check(Path::Dense, &Graph::<T>::complete(301, 300), 33);
}

#[test]
fn complete_graphs() {
    dense::<f32>();
    dense::<f64>();
}

fn panels<T: Wide + Element>() {
    let wide = 64 / size_of::<T>(); // elements of a line
    // Enough neighbours for panels of a cached `x`, but not all in the same columns.
    let many =
        |rows: usize| Graph::<T>::new(rows, rows, |row| (0..17).map(|k| row + k * k).collect());
    for dim in around(&[256, 6 * wide + 256, 576, 1_152, 2_304]) {
        if dim >= 256 {
            check(Path::Panels, &many(40), dim);
        }
    }
    // Far neighbours, of an `x` that is not cached.
    for dim in around(&[9_216, 18_432]) {
        check(Path::Panels, &Graph::<T>::sparse(64, 4, 17), dim);
    }
}

#[test]
fn panels_of_few_nodes() {
    panels::<f32>();
    panels::<f64>();
}

/// Results of more than a cache: on the threads of this machine, and with each instruction set on the caller's alone.
fn large<T: Wide + Element>(path: Path, weights: &Graph<T>, dim: usize) {
    let x = numbers::<T>(weights.columns * dim);
    let a = weights.matrix();
    assert_eq!(Path::of(&a, &x, dim), path);
    let expected = weights.defined(&x, dim);
    let mix = || {
        let mut mixed = vec![T::ZERO; expected.len()];
        mix_into(&a, &x, dim, &mut mixed).unwrap();
        mixed
    };
    for mixed in dpmesh_threads::with_threads(7, || with_each_instruction_set(mix)) {
        assert_same((path, dim), &mixed, &expected);
    }
}

#[test]
fn results_larger_than_the_cache() {
    for dim in around(TURNS) {
        let rows = (26 << 20) / 4 / dim;
        let path = if dim < 256 {
            Path::Rows
        } else {
            Path::PastCache
        };
        large(path, &Graph::<f32>::sparse(rows, 2, 1), dim);
    }
    large(Path::Panels, &Graph::<f32>::sparse(101, 3, 11), 28_011);
    large(Path::PastCache, &Graph::<f64>::sparse(210, 2, 1), 16_500);
}

fn noisy<T: Sample + Wide + Element>() {
    let stream = stream(Cipher::Aes);
    for dim in around(&[512, 1_024, 4_096]) {
        for rows in [7, 40] {
            let weights = Graph::<T>::sparse(rows, 3, 5);
            let scales: Vec<f64> = (0..rows).map(|row| 0.3 + 0.01 * row as f64).collect();
            let (distribution, nodes) = (Distribution::Laplace, None);
            let noise = Noise::new(distribution, &scales, &stream).for_nodes(nodes);
            let x = numbers::<T>(rows * dim);
            let mixed = everywhere((rows, dim), || {
                let mut mixed = vec![T::ZERO; x.len()];
                mix_noisy_into(&weights.matrix(), &x, dim, &noise, &mut mixed).unwrap();
                mixed
            });
            let mut sent = vec![T::ZERO; x.len()];
            add_noise_into(&x, dim, &noise, &mut sent).unwrap();
            assert_same((rows, dim), &mixed, &weights.defined(&sent, dim));
        }
    }
}

#[test]
fn noise_and_mixing_together() {
    noisy::<f32>();
    noisy::<f64>();
}
