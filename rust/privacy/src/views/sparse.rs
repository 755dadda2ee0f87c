//! Nonnegative sparse matrices by rows, and products with vectors.

use crate::KernelError;

/// A square matrix of nonnegative weights: row `i` has the entries `starts[i]..starts[i + 1]`.
#[derive(Debug)]
pub(super) struct Rows {
    starts: Vec<usize>,
    columns: Vec<u32>,
    weights: Vec<f64>,
    /// Whether all rows have two entries, as where nodes meet in pairs.
    in_pairs: bool,
}

impl Rows {
    fn new(starts: Vec<usize>, columns: Vec<u32>, weights: Vec<f64>) -> Rows {
        let in_pairs = starts.windows(2).all(|row| row[1] - row[0] == 2);
        Rows {
            starts,
            columns,
            weights,
            in_pairs,
        }
    }

    /// Matrices below one another, as one CSR matrix of `nodes` columns.
    pub(super) fn stacked(
        indptr: &[i64],
        indices: &[i64],
        weights: &[f64],
        nodes: usize,
    ) -> Result<Vec<Rows>, KernelError> {
        check(indptr, indices, weights, nodes)?;
        let starts: Vec<usize> = indptr.iter().map(|&start| start as usize).collect();
        let matrices = (starts.len() - 1) / nodes;
        let rows = |matrix: usize| {
            let starts = &starts[matrix * nodes..=(matrix + 1) * nodes];
            let (first, last) = (starts[0], starts[nodes]);
            Rows::new(
                starts.iter().map(|start| start - first).collect(),
                indices[first..last].iter().map(|&j| j as u32).collect(),
                weights[first..last].to_vec(),
            )
        };
        Ok((0..matrices).map(rows).collect())
    }

    /// The transposed matrix.
    pub(super) fn transposed(&self) -> Rows {
        let nodes = self.starts.len() - 1;
        let mut starts = vec![0; nodes + 1];
        for &column in &self.columns {
            starts[column as usize + 1] += 1;
        }
        for i in 0..nodes {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut columns = vec![0; self.columns.len()];
        let mut weights = vec![0.0; self.weights.len()];
        for i in 0..nodes {
            for (j, weight) in self.row(i) {
                let place = next[j];
                next[j] += 1;
                columns[place] = i as u32;
                weights[place] = weight;
            }
        }
        Rows::new(starts, columns, weights)
    }

    /// Columns and weights of a row.
    #[inline]
    pub(super) fn row(&self, i: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let entries = self.starts[i]..self.starts[i + 1];
        let columns = self.columns[entries.clone()].iter();
        let weights = self.weights[entries].iter();
        columns
            .zip(weights)
            .map(|(&j, &weight)| (j as usize, weight))
    }

    /// Adds `gain` times the product with `x` to `out`.
    #[inline]
    pub(super) fn add_product(&self, gain: f64, x: &[f64], out: &mut [f64]) {
        if self.in_pairs {
            let (columns, _) = self.columns.as_chunks::<2>();
            let (weights, _) = self.weights.as_chunks::<2>();
            for ((out, [i, j]), [v, w]) in out.iter_mut().zip(columns).zip(weights) {
                *out += gain * (v * x[*i as usize] + w * x[*j as usize]);
            }
            return;
        }
        for (i, out) in out.iter_mut().enumerate() {
            let sum: f64 = self.row(i).map(|(j, weight)| weight * x[j]).sum();
            *out += gain * sum;
        }
    }
}

fn check(
    indptr: &[i64],
    indices: &[i64],
    weights: &[f64],
    nodes: usize,
) -> Result<(), KernelError> {
    if nodes == 0 || nodes > u32::MAX as usize {
        return Err(KernelError::new("nodes", "from 1 to 2**32 - 1", nodes));
    }
    let whole = indptr.len() > nodes && (indptr.len() - 1).is_multiple_of(nodes);
    if !whole {
        let wanted = format!("1 more than a multiple of {nodes} elements");
        return Err(KernelError::new("indptr", wanted, indptr.len()));
    }
    let rises = indptr.windows(2).all(|pair| pair[0] <= pair[1]);
    if indptr[0] != 0 || !rises || indptr.last() != Some(&(indices.len() as i64)) {
        let wanted = "indices of entries that rise from 0 to their number";
        return Err(KernelError::new("indptr", wanted, "others"));
    }
    if let Some(index) = indices.iter().find(|&&j| j < 0 || j as usize >= nodes) {
        let wanted = format!("columns below {nodes}");
        return Err(KernelError::new("indices", wanted, index));
    }
    if weights.len() != indices.len() {
        let wanted = format!("{} elements", indices.len());
        return Err(KernelError::new("weights", wanted, weights.len()));
    }
    let is_invalid = |weight: &&f64| !(weight.is_finite() && **weight >= 0.0);
    match weights.iter().find(is_invalid) {
        Some(weight) => {
            let wanted = "finite numbers of at least 0";
            Err(KernelError::new("weights", wanted, weight))
        }
        None => Ok(()),
    }
}
