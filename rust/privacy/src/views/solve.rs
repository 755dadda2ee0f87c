//! The accelerated projected gradient method, with restarts, between an upper and a lower bound.

use super::pair::{Pair, Scratch, norm};
use super::system::{Mixing, Observer, System};
use crate::KernelError;

/// The share of an unseen difference that a search passes on at first, where that of [`System::cheap`] is no better.
const SHARE: f64 = 0.9;

/// Iterations between two looks at the bounds; fewer at first, where many searches end.
const LOOK: usize = 20;
const FIRST_LOOKS: usize = 3;

/// So many looks without progress end the trust in an estimated curvature.
const PATIENCE: usize = 10;

/// Steps of the power iteration for the curvature, and what its result, a lower bound, is multiplied by.
const POWER_STEPS: usize = 40;
const POWER_MARGIN: f64 = 1.1;

/// When to stop looking for a better bound.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// As soon as upper and lower bound differ by no more than this share of the upper one.
    pub gap: f64,
    /// As soon as the upper bound is no more than this.
    pub at_most: f64,
    /// After so many iterations.
    pub iterations: usize,
}

/// What was proved for one observer of one target.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Certificate {
    /// The view is `mu`-GDP for this `mu`.
    pub upper: f64,
    /// No choice of `r` proves less than this.
    pub lower: f64,
    /// Iterations made.
    pub iterations: usize,
}

impl System {
    /// A bound that costs a few sweeps over the rounds, not a search.
    ///
    /// # Errors
    /// If observer and target do not fit.
    pub fn cheap(&self, observer: &Observer, target: usize) -> Result<f64, KernelError> {
        let pair = Pair::new(self, observer, target)?;
        let everybody = self.everybody(target)?;
        if pair.sees_target() {
            return Ok(everybody);
        }
        let mut scratch = Scratch::new(self);
        let (mut q, mut a) = (self.zeros(), self.zeros());
        Ok(everybody.min(pair.spread(pair.share(), &mut q, &mut scratch, &mut a)))
    }

    /// The least bound that can be proved, up to a gap.
    ///
    /// # Errors
    /// If observer and target do not fit.
    pub fn solve(
        &self,
        observer: &Observer,
        target: usize,
        stop: Stop,
    ) -> Result<Certificate, KernelError> {
        let pair = Pair::new(self, observer, target)?;
        let everybody = self.everybody(target)?;
        let mut found = Certificate {
            upper: everybody,
            lower: 0.0,
            iterations: 0,
        };
        if pair.sees_target() && self.rounding == 0.0 && !self.mean_of_last {
            found.lower = everybody;
        } else {
            Search::new(self, &pair, &mut found, stop).run();
        }
        found.lower = found.lower.clamp(0.0, found.upper);
        Ok(found)
    }

    /// [`System::cheap`] of each pair of an observer, by its number, and a target, several at a time.
    ///
    /// # Errors
    /// As [`System::cheap`].
    pub fn cheap_of_each(
        &self,
        observers: &[Observer],
        pairs: &[(usize, usize)],
    ) -> Result<Vec<f64>, KernelError> {
        each(observers, pairs, |observer, target| {
            self.cheap(observer, target)
        })
    }

    /// [`System::solve`] for each pair of an observer, by its number, and a target, several at a time.
    ///
    /// # Errors
    /// As [`System::solve`].
    pub fn solve_each(
        &self,
        observers: &[Observer],
        pairs: &[(usize, usize)],
        stop: Stop,
    ) -> Result<Vec<Certificate>, KernelError> {
        each(observers, pairs, |observer, target| {
            self.solve(observer, target, stop)
        })
    }

    fn zeros(&self) -> Vec<f64> {
        vec![0.0; self.nodes * self.rounds]
    }
}

fn each<R: Send>(
    observers: &[Observer],
    pairs: &[(usize, usize)],
    value: impl Fn(&Observer, usize) -> Result<R, KernelError> + Sync,
) -> Result<Vec<R>, KernelError> {
    let values = dpmesh_threads::map(pairs.iter(), |&(observer, target)| {
        let found = observers.get(observer);
        let unknown = || {
            let wanted = format!("a number below {}", observers.len());
            KernelError::new("observer", wanted, observer)
        };
        value(found.ok_or_else(unknown)?, target)
    });
    values.into_iter().collect()
}

/// The state of the method: `p` is the point of the last gradient, `q` the last point reached.
struct Search<'a> {
    pair: &'a Pair<'a>,
    found: &'a mut Certificate,
    stop: Stop,
    scratch: Scratch,
    /// The residual of `q = 0`, once a lower bound is asked for.
    start: Vec<f64>,
    q: Vec<f64>,
    p: Vec<f64>,
    a: Vec<f64>,
    gradient: Vec<f64>,
    curvature: f64,
    momentum: f64,
}

impl<'a> Search<'a> {
    fn new(
        system: &'a System,
        pair: &'a Pair<'a>,
        found: &'a mut Certificate,
        stop: Stop,
    ) -> Search<'a> {
        Search {
            scratch: Scratch::new(system),
            start: Vec::new(),
            q: system.zeros(),
            p: system.zeros(),
            a: system.zeros(),
            gradient: system.zeros(),
            curvature: *system.curvature.get_or_init(|| curvature(system)),
            momentum: 1.0,
            pair,
            found,
            stop,
        }
    }

    fn run(&mut self) {
        self.start_over();
        let mut stalled = 0;
        while !self.is_done() && self.found.iterations < self.stop.iterations {
            let steps = if self.found.iterations < LOOK {
                FIRST_LOOKS
            } else {
                LOOK
            };
            for _ in 0..steps {
                dpmesh_threads::pause();
                self.step();
            }
            self.found.iterations += steps;
            let before = self.found.upper;
            let converges = self.look();
            stalled = if self.found.upper < before {
                0
            } else {
                stalled + 1
            };
            if !converges || stalled == PATIENCE {
                self.curvature *= 2.0;
                stalled = 0;
                self.start_over();
            }
        }
    }

    fn is_done(&self) -> bool {
        let Certificate { upper, lower, .. } = *self.found;
        upper <= self.stop.at_most || upper - lower <= self.stop.gap * upper
    }

    /// Begins at the better of two cheap points.
    fn start_over(&mut self) {
        let Search {
            pair,
            scratch,
            a,
            p,
            q,
            ..
        } = self;
        let mut cheap = pair.spread(pair.share(), q, scratch, a);
        let other = pair.spread(SHARE, p, scratch, a);
        if other < cheap {
            cheap = other;
            q.copy_from_slice(p);
        }
        self.p.copy_from_slice(&self.q);
        self.found.upper = self.found.upper.min(cheap);
        self.momentum = 1.0;
    }

    /// A gradient step from `p`, and the next `p` by momentum; without it where that leads uphill.
    fn step(&mut self) {
        let Search {
            pair,
            scratch,
            a,
            p,
            q,
            gradient,
            ..
        } = self;
        pair.residual(p, scratch, a);
        pair.gradient(a, scratch, gradient);
        let (length, mut uphill) = (1.0 / self.curvature, 0.0);
        for ((p, q), gradient) in p.iter_mut().zip(q.iter()).zip(gradient) {
            let next = (*p - length * *gradient).max(0.0);
            uphill += (*p - next) * (next - q);
            *p = next;
        }
        if uphill > 0.0 {
            self.momentum = 1.0;
        }
        let next = f64::midpoint(1.0, (1.0 + 4.0 * self.momentum * self.momentum).sqrt());
        let factor = (self.momentum - 1.0) / next;
        self.momentum = next;
        for (p, q) in p.iter_mut().zip(q) {
            let reached = *p;
            *p = reached + factor * (reached - *q);
            *q = reached;
        }
    }

    /// Bounds at `q`; false if the method diverges.
    fn look(&mut self) -> bool {
        let Search {
            pair,
            scratch,
            a,
            q,
            gradient,
            ..
        } = self;
        let upper = pair.residual(q, scratch, a);
        if upper.is_nan() || upper > 4.0 * self.found.upper {
            return false;
        }
        self.found.upper = self.found.upper.min(upper);
        if upper <= self.stop.at_most {
            return true;
        }
        if self.start.is_empty() {
            self.start = vec![0.0; a.len()];
            gradient.fill(0.0);
            pair.residual(gradient, scratch, &mut self.start);
        }
        let lower = pair.dual(a, &self.start, scratch, gradient);
        self.found.lower = self.found.lower.max(lower);
        true
    }
}

/// An upper bound on the curvature of half the sum of squares where messages alone make the next states, each in its
/// own round; otherwise an estimate, which [`Search`] doubles if need be.
fn curvature(system: &System) -> f64 {
    if system.start + 1 >= system.rounds {
        return 1.0;
    }
    if system.is_memoryless() {
        let norms = (system.start..system.rounds - 1).map(|t| largest_gain(system, t));
        let largest = norms.fold(0.0, f64::max);
        return (1.0 + largest) * (1.0 + largest);
    }
    by_power_iteration(system)
}

/// At least the spectral norm of the matrices of round `t` together, between messages and states in units of noise.
fn largest_gain(system: &System, t: usize) -> f64 {
    let nodes = system.nodes;
    let (mut by_row, mut by_column) = (vec![0.0; nodes], vec![0.0; nodes]);
    for &Mixing { matrix, gain, .. } in system.mixed_in(t) {
        for (i, sum) in by_row.iter_mut().enumerate() {
            for (j, weight) in system.matrices[matrix].row(i) {
                let inverse = system.inverse_noise[(t + 1) * nodes + i];
                let scaled = gain * weight * system.noise[t * nodes + j] * inverse;
                *sum += scaled;
                by_column[j] += scaled;
            }
        }
    }
    let largest = |sums: &[f64]| sums.iter().copied().fold(0.0, f64::max);
    (largest(&by_row) * largest(&by_column)).sqrt()
}

fn by_power_iteration(system: &System) -> f64 {
    let pair = Pair::seeing_the_last(system);
    let mut scratch = Scratch::new(system);
    let (mut a, mut image) = (system.zeros(), system.zeros());
    let signs = |entry: usize| if entry.is_multiple_of(2) { 1.0 } else { -0.5 };
    let mut q: Vec<f64> = (0..a.len()).map(signs).collect();
    let mut largest = 1.0_f64;
    for _ in 0..POWER_STEPS {
        let length = norm(&q);
        if length == 0.0 {
            break;
        }
        for q in &mut q {
            *q /= length;
        }
        let gain = pair.linear_part(&q, &mut scratch, &mut a);
        largest = largest.max(gain * gain);
        pair.gradient(&a, &mut scratch, &mut image);
        q.copy_from_slice(&image);
    }
    POWER_MARGIN * largest
}
