//! The solver against a dense, slow twin: the matrix of the least squares problem column by column, and coordinate
//! descent until nothing moves.

use proptest::prelude::*;

use super::{Certificate, Description, Mixing, Observer, Stop, System};

const EXACT: Stop = Stop {
    gap: 1e-9,
    at_most: 0.0,
    iterations: 200_000,
};

/// A run in dense numbers.
#[derive(Debug, Clone)]
struct Run {
    nodes: usize,
    rounds: usize,
    /// Dense weights of the messages of each round, and those of the round before that are one round late.
    weights: Vec<Vec<f64>>,
    late: Vec<Vec<f64>>,
    own: Vec<f64>,
    noise: Vec<f64>,
    fresh: Vec<f64>,
    published: Vec<bool>,
    mean_of_last: bool,
}

impl Run {
    fn system(&self) -> System {
        let (mut indptr, mut indices, mut weights) = (vec![0], Vec::new(), Vec::new());
        for row in self
            .weights
            .iter()
            .chain(&self.late)
            .flat_map(|dense| dense.chunks(self.nodes))
        {
            for (j, &weight) in row.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                indices.push(j as i64);
                weights.push(weight);
            }
            indptr.push(indices.len() as i64);
        }
        let in_time = (0..self.rounds).map(|t| (t, t, t));
        let late = (1..self.rounds).map(|t| (t, t - 1, self.rounds + t));
        let mixing = |(mixed, sent, matrix)| Mixing {
            mixed,
            sent,
            matrix,
            gain: 1.0,
        };
        let mixings: Vec<Mixing> = in_time.chain(late).map(mixing).collect();
        System::new(&Description {
            nodes: self.nodes,
            indptr: &indptr,
            indices: &indices,
            weights: &weights,
            mixings: &mixings,
            own: &self.own,
            noise: &self.noise,
            fresh: &self.fresh,
            rounding: 0.0,
            published: &self.published,
            received: &[],
            mean_of_last: self.mean_of_last,
        })
        .unwrap()
    }

    fn sees(&self, observer: &[usize], t: usize, j: usize) -> bool {
        let hears = |v: &usize| {
            let place = v * self.nodes + j;
            let late = t + 1 < self.rounds && self.late[t + 1][place] > 0.0;
            *v == j || self.weights[t][place] > 0.0 || late
        };
        self.published[t * self.nodes + j] || observer.iter().any(hears)
    }

    /// All `z - r`, in units of noise, for shifts `r`; the last unseen ones count by their mean alone, or not at all.
    fn left(&self, observer: &[usize], target: usize, r: &[f64], moved: f64) -> Vec<f64> {
        let n = self.nodes;
        let mut z = vec![0.0; n * self.rounds];
        for t in 0..self.rounds {
            for i in 0..n {
                if t > 0 {
                    z[t * n + i] = self.own[t - 1] * z[(t - 1) * n + i];
                    for j in 0..n {
                        z[t * n + i] += self.weights[t - 1][i * n + j] * r[(t - 1) * n + j];
                        if t > 1 {
                            z[t * n + i] += self.late[t - 1][i * n + j] * r[(t - 2) * n + j];
                        }
                    }
                }
                if i == target {
                    z[t * n + i] += moved * self.fresh[t * n + i];
                }
            }
        }
        let mut left: Vec<f64> = (0..z.len())
            .map(|e| (z[e] - r[e]) / self.noise[e])
            .collect();
        let last = n * (self.rounds - 1);
        let unseen: Vec<usize> = (0..n)
            .filter(|&j| !self.sees(observer, self.rounds - 1, j))
            .collect();
        let mean = unseen.iter().map(|j| left[last + j]).sum::<f64>() / unseen.len().max(1) as f64;
        for j in unseen {
            left[last + j] = if self.mean_of_last { mean } else { 0.0 };
        }
        left
    }

    /// The least bound, by coordinate descent.
    fn least(&self, observer: &[usize], target: usize) -> f64 {
        let (n, last) = (self.nodes, self.nodes * (self.rounds - 1));
        let free: Vec<usize> = (0..last)
            .filter(|e| !self.sees(observer, e / n, e % n))
            .collect();
        let columns: Vec<Vec<f64>> = free
            .iter()
            .map(|&e| {
                let mut unit = vec![0.0; n * self.rounds];
                unit[e] = 1.0;
                self.left(observer, target, &unit, 0.0)
            })
            .collect();
        let zeros = vec![0.0; n * self.rounds];
        let mut left = self.left(observer, target, &zeros, 1.0);
        let mut r = vec![0.0; free.len()];
        for _ in 0..100_000 {
            let mut largest = 0.0_f64;
            for (column, r) in columns.iter().zip(&mut r) {
                let square: f64 = column.iter().map(|x| x * x).sum();
                let slope: f64 = column.iter().zip(&left).map(|(x, a)| x * a).sum();
                let next = (*r - slope / square).max(0.0);
                left.iter_mut()
                    .zip(column)
                    .for_each(|(a, x)| *a += x * (next - *r));
                largest = largest.max((next - *r).abs());
                *r = next;
            }
            if largest < 1e-13 {
                break;
            }
        }
        left.iter().map(|a| a.max(0.0).powi(2)).sum::<f64>().sqrt()
    }

    fn solve(&self, observer: &[usize], target: usize) -> Certificate {
        let observer = Observer(observer.to_vec());
        self.system().solve(&observer, target, EXACT).unwrap()
    }
}

prop_compose! {
    fn matrices(nodes: usize, rounds: usize, largest: f64)(
        dense in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![2 => Just(0.0), 1 => 0.05..largest], nodes * nodes), rounds)
    ) -> Vec<Vec<f64>> {
        dense
    }
}

prop_compose! {
    fn runs()(nodes in 2_usize..5, rounds in 2_usize..6)(
        weights in matrices(nodes, rounds, 0.8),
        late in prop_oneof![
            Just(vec![vec![0.0; nodes * nodes]; rounds]),
            matrices(nodes, rounds, 0.4),
        ],
        own in prop_oneof![Just(vec![0.0; rounds]), prop::collection::vec(0.0..1.1, rounds)],
        noise in prop::collection::vec(0.5..2.0, nodes * rounds),
        fresh in prop::collection::vec(prop_oneof![Just(0.0), 0.1..2.0], nodes * rounds),
        published in prop::collection::vec(prop::bool::weighted(0.1), nodes * rounds),
        mean_of_last in any::<bool>(),
        nodes in Just(nodes),
        rounds in Just(rounds),
    ) -> Run {
        let mut noise: Vec<f64> = noise;
        if mean_of_last {
            noise[(rounds - 1) * nodes..].fill(1.25);
        }
        Run { nodes, rounds, weights, late, own, noise, fresh, published, mean_of_last }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_bound_is_the_least(run in runs()) {
        let found = run.solve(&[0], 1);
        let everybody = run.system().everybody(1).unwrap();
        let least = run.least(&[0], 1).min(everybody);
        prop_assert!((found.upper - least).abs() <= 1e-6 * (1.0 + least), "{found:?} {least}");
        prop_assert!(found.lower <= found.upper);
        prop_assert!(found.upper - found.lower <= 1e-6 * (1.0 + least) || everybody < 1.0001 * least);
    }

    #[test]
    fn a_search_that_stops_early_brackets_it(run in runs(), iterations in 0_usize..60) {
        let stop = Stop { iterations, ..EXACT };
        let early = run.system().solve(&Observer(vec![0]), 1, stop).unwrap();
        let least = run.solve(&[0], 1).upper;
        prop_assert!(early.upper >= least * (1.0 - 1e-8));
        prop_assert!(early.lower <= least * (1.0 + 1e-8));
        let cheap = run.system().cheap(&Observer(vec![0]), 1).unwrap();
        prop_assert!(cheap >= least * (1.0 - 1e-8));
    }

    #[test]
    fn whoever_sees_more_learns_more(run in runs(), more in prop::collection::vec(any::<bool>(), 20)) {
        let mut open = run.clone();
        open.published.iter_mut().zip(more).for_each(|(open, more)| *open |= more);
        open.mean_of_last = run.mean_of_last;
        let (less, more) = (run.solve(&[0], 1).upper, open.solve(&[0], 1).upper);
        prop_assert!(less <= more * (1.0 + 1e-7) + 1e-9, "{less} {more}");
        let everybody = run.system().everybody(1).unwrap();
        prop_assert!(more <= everybody * (1.0 + 1e-12));
    }
}

#[test]
fn one_node_whose_last_message_alone_is_seen() {
    // (1 + rho) / (1 - rho) (1 - rho^k) / (1 + rho^k), k moves
    let (rho, rounds) = (0.5_f64, 8);
    let mut published = vec![false; rounds];
    published[rounds - 1] = true;
    let mut fresh = vec![1.0; rounds];
    fresh[0] = 0.0;
    let run = Run {
        nodes: 1,
        rounds,
        weights: vec![vec![rho]; rounds],
        late: vec![vec![0.0]; rounds],
        own: vec![0.0; rounds],
        noise: vec![1.0; rounds],
        fresh,
        published,
        mean_of_last: false,
    };
    let moves = rho.powi(7);
    let wanted = ((1.0 + rho) / (1.0 - rho) * (1.0 - moves) / (1.0 + moves)).sqrt();
    assert!((run.solve(&[], 0).upper - wanted).abs() < 1e-8);
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let run = Run {
        nodes: 2,
        rounds: 2,
        weights: vec![vec![0.5; 4]; 2],
        late: vec![vec![0.0; 4]; 2],
        own: vec![0.0; 2],
        noise: vec![1.0; 4],
        fresh: vec![1.0; 4],
        published: vec![false; 4],
        mean_of_last: false,
    };
    let system = run.system();
    let target_inside = system.solve(&Observer(vec![1]), 1, EXACT).unwrap_err();
    assert_eq!(target_inside.argument(), "target");
    let unknown = system.solve(&Observer(vec![2]), 1, EXACT).unwrap_err();
    assert_eq!(unknown.argument(), "observer");
    let negative = Description {
        nodes: 1,
        indptr: &[0, 1],
        indices: &[0],
        weights: &[-0.5],
        mixings: &[],
        own: &[0.0],
        noise: &[1.0],
        fresh: &[1.0],
        rounding: 0.0,
        published: &[],
        received: &[],
        mean_of_last: false,
    };
    assert_eq!(System::new(&negative).unwrap_err().argument(), "weights");
    let without_noise = Description {
        weights: &[0.5],
        noise: &[0.0],
        ..negative
    };
    assert_eq!(System::new(&without_noise).unwrap_err().argument(), "noise");
}
