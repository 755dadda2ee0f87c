//! Boundary of `dpmesh_privacy::views`.

use dpmesh_privacy::views::{Description, Mixing, Observer, Stop, System};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::convert::{Array, read, refused, run_native, unfit};

type Output<'py, T> = Bound<'py, PyArray1<T>>;

/// Checked public numbers of a run, from which bounds for any observer and target are computed.
///
/// `dpmesh.kernels.views.view_system` makes it.
#[pyclass(frozen, module = "dpmesh._core")]
pub(crate) struct ViewSystem(System);

#[pymethods]
impl ViewSystem {
    #[new]
    fn new(
        nodes: usize,
        rows: (Array<'_>, Array<'_>, Array<'_>),
        mixings: Array<'_>,
        gains: Array<'_>,
        own: Array<'_>,
        noise: Array<'_>,
        fresh: Array<'_>,
        rounding: f64,
        published: Array<'_>,
        received: Array<'_>,
        mean_of_last: bool,
    ) -> PyResult<ViewSystem> {
        let py = own.py();
        let (indptr, indices) = (
            read::<i64>("indptr", &rows.0)?,
            read::<i64>("indices", &rows.1)?,
        );
        let weights = read::<f64>("weights", &rows.2)?;
        let (own, noise) = (read::<f64>("own", &own)?, read::<f64>("noise", &noise)?);
        let fresh = read::<f64>("fresh", &fresh)?;
        let published = read::<bool>("published", &published)?;
        let gains = read::<f64>("gains", &gains)?;
        let mixings = triples("mixings", &mixings)?
            .into_iter()
            .zip(gains.as_slice()?);
        let mixings: Vec<Mixing> = mixings
            .map(|((mixed, sent, matrix), &gain)| Mixing {
                mixed,
                sent,
                matrix,
                gain,
            })
            .collect();
        let received = triples("received", &received)?;
        let description = Description {
            nodes,
            indptr: indptr.as_slice()?,
            indices: indices.as_slice()?,
            weights: weights.as_slice()?,
            mixings: &mixings,
            own: own.as_slice()?,
            noise: noise.as_slice()?,
            fresh: fresh.as_slice()?,
            rounding,
            published: published.as_slice()?,
            received: &received,
            mean_of_last,
        };
        run_native(py, || System::new(&description)).map(ViewSystem)
    }

    /// Return mu of a target's records against an adversary who sees all messages.
    fn everybody(&self, target: usize) -> PyResult<f64> {
        self.0.everybody(target).map_err(refused)
    }

    /// Return True for each message that an observer sees, shape (rounds * nodes,).
    fn seen<'py>(&self, py: Python<'py>, observer: Vec<usize>) -> PyResult<Output<'py, bool>> {
        let seen = self.0.seen(&Observer(observer)).map_err(refused)?;
        Ok(seen.into_pyarray(py))
    }

    /// Return an upper bound on mu for each pair of an observer's index and a target, without a search.
    fn cheap<'py>(
        &self,
        py: Python<'py>,
        observers: Vec<Vec<usize>>,
        pairs: &Array<'py>,
    ) -> PyResult<Output<'py, f64>> {
        let observers: Vec<Observer> = observers.into_iter().map(Observer).collect();
        let pairs = self::pairs(pairs)?;
        let bounds = run_native(py, || self.0.cheap_of_each(&observers, &pairs))?;
        Ok(bounds.into_pyarray(py))
    }

    /// Return upper bounds on mu, lower bounds and numbers of iterations, an array each, for all pairs.
    fn solve<'py>(
        &self,
        py: Python<'py>,
        observers: Vec<Vec<usize>>,
        pairs: &Array<'py>,
        gap: f64,
        at_most: f64,
        iterations: usize,
    ) -> PyResult<(Output<'py, f64>, Output<'py, f64>, Output<'py, i64>)> {
        let observers: Vec<Observer> = observers.into_iter().map(Observer).collect();
        let pairs = self::pairs(pairs)?;
        let stop = Stop {
            gap,
            at_most,
            iterations,
        };
        let found = run_native(py, || self.0.solve_each(&observers, &pairs, stop))?;
        let upper: Vec<f64> = found.iter().map(|found| found.upper).collect();
        let lower: Vec<f64> = found.iter().map(|found| found.lower).collect();
        let made: Vec<i64> = found.iter().map(|found| found.iterations as i64).collect();
        Ok((
            upper.into_pyarray(py),
            lower.into_pyarray(py),
            made.into_pyarray(py),
        ))
    }
}

/// The rows of an array of shape (rows, `N`).
fn tuples<const N: usize>(argument: &str, array: &Array<'_>) -> PyResult<Vec<[usize; N]>> {
    let values = read::<i64>(argument, array)?;
    let row = |row: &[i64]| {
        let mut tuple = [0; N];
        for (place, &value) in tuple.iter_mut().zip(row) {
            *place = usize::try_from(value)
                .map_err(|_| unfit(argument, "numbers of at least 0", value))?;
        }
        Ok(tuple)
    };
    values.as_slice()?.chunks_exact(N).map(row).collect()
}

fn triples(argument: &str, array: &Array<'_>) -> PyResult<Vec<(usize, usize, usize)>> {
    let tuples = tuples::<3>(argument, array)?;
    Ok(tuples.into_iter().map(|[a, b, c]| (a, b, c)).collect())
}

fn pairs(array: &Array<'_>) -> PyResult<Vec<(usize, usize)>> {
    let tuples = tuples::<2>("pairs", array)?;
    Ok(tuples.into_iter().map(|[a, b]| (a, b)).collect())
}
