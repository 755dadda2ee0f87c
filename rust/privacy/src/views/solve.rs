//! Search for the least bound: accelerated projected gradient (Nesterov; Beck and Teboulle 2009), with momentum that
//! restarts where a step leads uphill (O'Donoghue and Candès 2015, the gradient scheme).
//!
//! Every point of the search proves a valid upper bound on `mu`, and a lower bound on the `mu` that any point proves
//! ([`Pair::dual`]). The search ends once these are close. Its step is 1 over the curvature of the objective; where the
//! curvature is only estimated, it is doubled if the method diverges or makes no progress.

use super::pair::{Pair, Scratch, norm};
use super::system::{Mixing, Observer, System};
use crate::KernelError;

/// The share of an unseen difference that a search passes on at first, unless [`Pair::share`] gives a better bound.
const SHARE: f64 = 0.9;

/// Iterations between two computations of the bounds; fewer at first, where many searches end.
const LOOK: usize = 20;
const FIRST_LOOKS: usize = 3;

/// The curvature is doubled after so many computations of the bounds without progress.
const PATIENCE: usize = 10;

/// Steps of the power iteration for the curvature, and the factor of its result, which is a lower bound.
const POWER_STEPS: usize = 40;
const POWER_MARGIN: f64 = 1.1;

/// When to stop looking for a better bound.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// Stop once upper and lower bound differ by at most this share of the upper one.
    pub gap: f64,
    /// Stop once the upper bound is at most this.
    pub at_most: f64,
    /// Stop after so many iterations.
    pub iterations: usize,
}

/// The bounds that were proved for one observer of one target.
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

/// `value(observer, target)` for each pair, several at a time; fails if there is no observer of this number.
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

/// The state of the method.
struct Search<'a> {
    pair: &'a Pair<'a>,
    /// The best bounds so far.
    found: &'a mut Certificate,
    stop: Stop,
    scratch: Scratch,
    /// The residual of `q = 0`, once a lower bound is asked for.
    start: Vec<f64>,
    /// The point that the last step reached.
    q: Vec<f64>,
    /// The point at which the next gradient is taken: `q`, moved on by momentum.
    p: Vec<f64>,
    /// The residual of the last point at which it was computed.
    a: Vec<f64>,
    gradient: Vec<f64>,
    /// Largest curvature of the objective, or an estimate.
    curvature: f64,
    /// Nesterov's sequence `1, (1 + sqrt(1 + 4 momentum^2)) / 2, ..`, since the last restart.
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

    /// Begins again at the better of two points that pass on constant shares of differences.
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

    /// Takes a projected gradient step from `p` to the next `q`, and moves on by momentum to the next `p`. If the step
    /// from the last `q` leads uphill, the momentum begins anew.
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

    /// Updates both bounds by those at `q`; returns false if the method diverges.
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

/// The curvature of half the sum of squares: an upper bound if the system is memoryless, otherwise an estimate, which
/// [`Search`] doubles if need be.
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

/// An estimate of the curvature: the largest eigenvalue of the quadratic form with most free entries.
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
