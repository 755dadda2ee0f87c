"""Convergence of SGD without replacement (Jin, He, Dai): Theorem 3, corrected and as printed.

Symbols of Algorithm 1: M nodes with n records of d features together use each mini-batch of b
records once. A local update moves a node's own model by 2 eta times a gradient. A global update
mixes it with the global model, moves by eta times a gradient, and adds the noise N.

Steps are counted as in the proof of Theorem 3: every mini-batch of every node is one. As printed,
Theorem 3 omits the dimension of the noise (23), so `theorem_3_as_printed` is not a proved bound.
`suboptimality` is one: with the dimension, with the noise that is really drawn, and with the sums
that (25) approximates. Both bound the average over the steps of

    E F(w) - F(w*)

where F is the objective on all records, w* its minimizer in the ball to which models are confined,
and w the model at which a step takes its gradient: the acting node's own if the update is local,
else the global one. Theorem 3 requires records that are assigned to the nodes at random, decisions
that do not depend on them, and one model; K one-vs-all models have K such bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

from dpmesh._validate import as_python_numbers, fail, integer, non_negative, positive, probability
from dpmesh.problems import LinearProblem
from dpmesh.schedules import InverseTime
from dpmesh_papers.bounds.complexity import mean_gap_bound, rademacher_bound_linear
from dpmesh_papers.bounds.floats import refuse_overflow


@dataclass(frozen=True, kw_only=True)
class SinglePass:
    """Parameters of one pass over the records that the bounds use.

    Parameters
    ----------
    nodes, dim
        M, d.
    records, batch_size
        n of all nodes together, b.
    steps
        T, of all nodes together: at most n / b.
    step_size
        eta: local updates take twice that.
    lipschitz
        Largest norm of the gradient of a record's loss, without the regularizer, which moves no
        release: all that sensitivity needs. The paper's L has the regularizer, see
        `gradient_bound`.
    radius
        r: models, which start at 0, stay in the ball of this radius; the paper's R in Theorem 3 is
        its diameter.
    regularization
        lambda of (2).
    noise_to_sensitivity
        z: standard deviation of the noise of a release over the sensitivity 2 eta L / b (Lemma 4),
        without the regularizer in L; 0 for none. The paper's is ``sqrt(2 ln(1.25 / delta)) /
        epsilon``, by Theorem 1.
    global_steps
        G, the expected number of steps that update the global model, ``sum |p_G|`` in (9).
    """

    nodes: int
    dim: int
    records: int
    batch_size: int
    steps: int
    step_size: float
    lipschitz: float
    radius: float
    regularization: float = 0.0
    noise_to_sensitivity: float = 0.0
    global_steps: float = 0.0

    def __post_init__(self) -> None:
        as_python_numbers(self)
        for name in ("nodes", "dim", "batch_size"):
            integer(name, getattr(self, name), at_least=1)
        integer("records", self.records, at_least=2)
        most = self.records // self.batch_size
        if integer("steps", self.steps, at_least=1) > most:
            fail("steps", f"at most records / batch_size = {most}", self.steps)
        for name in ("step_size", "lipschitz", "radius"):
            positive(name, getattr(self, name))
        for name in ("regularization", "noise_to_sensitivity", "global_steps"):
            non_negative(name, getattr(self, name))
        if self.global_steps > self.steps:
            fail("global_steps", f"at most {self.steps} steps", self.global_steps)

    @property
    def gradient_bound(self) -> float:
        """The paper's L and B: bound on a record's gradient, regularizer included.

        L + lambda r, as in the paper's example below (2).
        """
        return self.lipschitz + self.regularization * self.radius

    @property
    def noise_per_step(self) -> float:
        """``E |N|^2`` of a global update: d times the variance of a coordinate.

        (23) has the variance of a coordinate alone.
        """
        std = self.noise_to_sensitivity * 2 * self.step_size * self.lipschitz / self.batch_size
        return self.dim * std**2


@refuse_overflow
def suboptimality(run: SinglePass) -> float:
    """Bound the average suboptimality of the steps (Theorem 3, corrected).

    ``(M + 1) r^2 / (4 T eta) + eta B^2 + G E|N|^2 / (2 T eta)`` from (17) to (22), for models that
    start at 0 in a ball of radius r and G global steps, and the average `generalization_gap`.

    Parameters
    ----------
    run
        The run.
    """
    T = run.steps
    eta = run.step_size
    start = (run.nodes + 1) * run.radius**2 / (4 * T * eta)
    gradients = eta * run.gradient_bound**2
    noise = run.global_steps * run.noise_per_step / (2 * T * eta)
    gap = sum(generalization_gap(run, t) for t in range(1, T + 1)) / T
    return start + gradients + noise + gap


@refuse_overflow
def generalization_gap(run: SinglePass, step: int) -> float:
    """Bound how much lower a model's loss is on its next mini-batch than on all records.

    ``E F(w_t) - f_D(t)(w_t)``, by Lemmas 5 to 7: the model has learned from the s = (t - 1) b
    records of the earlier steps, and not from the others. By Lemma 6 (44) the gap is s / n times
    the expected difference of the mean losses on these two parts, and the largest difference over
    all linear models in the ball bounds that. Subtracting its value at 0 bounds each loss by L r
    and changes no difference, nor does the regularizer; the complexity of a Lipschitz loss is at
    most that of the scores (contraction).

    Parameters
    ----------
    run
        The run.
    step
        t, from 1.

    Raises
    ------
    ValueError
        If `step` is not one of the run's.
    """
    t = integer("step", step, at_least=1, below=run.steps + 1)
    n = run.records
    s = (t - 1) * run.batch_size
    if s == 0:
        return 0.0
    largest = run.lipschitz * run.radius
    complexity = rademacher_bound_linear(s, n, largest)
    return s / n * mean_gap_bound(complexity, s, n, largest)


@refuse_overflow
def theorem_3_as_printed(run: SinglePass, epsilon: float | None, delta: float) -> float:
    """Return the right side of (9), with the paper's constants and without the dimension.

    With the diameter R and the Lipschitz constant L of the loss (2), regularizer included:

        (M + 1) R^2 / (4 T eta) + eta B^2 + 4 ln(1.25 / delta) eta L^2 / (b^2 epsilon^2) (G / T)
        + (2 / 3) (2 + 12 sqrt(2)) R L (sqrt(b T) / n + 2 / (sqrt(n) + sqrt(n - b T)))

    (26) repeats it without the R^2 of the first term.

    Parameters
    ----------
    run
        The run; its `noise_to_sensitivity` is ignored.
    epsilon, delta
        Budget of a release; None for no noise.

    Raises
    ------
    ValueError
        If `epsilon` is not positive, or `delta` not in (0, 1).
    """
    T = run.steps
    eta = run.step_size
    b = run.batch_size
    n = run.records
    L = run.gradient_bound
    R = 2 * run.radius
    delta = probability("delta", delta, zero=False, one=False)
    noise = 0.0
    if epsilon is not None:
        budget = positive("epsilon", epsilon)
        noise = 4 * log(1.25 / delta) * eta * L**2 * (run.global_steps / T) / (b * budget) ** 2
    start = (run.nodes + 1) * R**2 / (4 * T * eta)
    gap = sqrt(b * T) / n + 2 / (sqrt(n) + sqrt(n - b * T))
    gap *= 2 * (2 + 12 * sqrt(2)) * R * L / 3
    return start + eta * run.gradient_bound**2 + noise + gap


@refuse_overflow
def squared_distance(run: SinglePass, smallest_chance: float, *, step: int | None = None) -> float:
    """Return the rate of Theorem 4, up to a constant: how close all models are to the optimum.

    ``M (B^2 / t + B^2 log(t) / (b t) + L^2 d z^2 / (b^2 t)) / (a gamma)^2`` for the sum of squared
    distances of the local models and the global one from w*, after t steps of each node of size
    ``1 / (a gamma t)``. Here the dimension d and the strong convexity gamma are explicit, which
    (10) hides in the constant; z is the run's `noise_to_sensitivity`, ``sqrt(2 ln(1.25 / delta)) /
    epsilon`` in (10). Assumption 1: all nodes update once at each time. By (39) the noise at time t
    is that of the longest step since the node's last global update, ``1 / (a gamma (t - j))``; (10)
    takes j for 0, which is right up to a constant for j of at most t / 2.

    Parameters
    ----------
    run
        The run, regularized: gamma is its regularization. Its step size is ignored.
    smallest_chance
        a in (0, 1], at most the probability of either decision.
    step
        t, from 1; by default all steps of a node.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    M = run.nodes
    b = run.batch_size
    if step is None:
        step = run.steps // M
    t = integer("step", step, at_least=1)
    a = probability("smallest_chance", smallest_chance, zero=False)
    scale = M / (a * positive("run.regularization", run.regularization)) ** 2
    B = run.gradient_bound
    noise = run.lipschitz * run.noise_to_sensitivity / b
    return scale * (B**2 + B**2 * log(t) / b + run.dim * noise**2) / t


@refuse_overflow
def theorem_4_steps(
    problem: LinearProblem, smallest_chance: float, *, smoothness: float | None = None
) -> InverseTime:
    """Return the step sizes of Theorem 4, delayed until Lemma 4 allows them.

    ``1 / (a gamma (t + t0))`` with ``t0 = 2 mu / (a gamma)``: never above ``1 / (2 mu)``, as Lemma
    4 requires. The paper's ``1 / (a gamma t)`` is above it until t = t0.

    Parameters
    ----------
    problem
        Regularized: gamma is its strong convexity.
    smallest_chance
        The paper's a in (0, 1]: the least probability of either decision. With exploration p it is
        at least p / 2.
    smoothness
        mu; by default the problem's own. The paper's, 1 + lambda for the logistic loss, is larger
        and makes the first steps smaller.

    Raises
    ------
    ValueError
        If the problem is not regularized or has no feature norm, or an argument is out of range.
    """
    constants = problem.model_constants()
    mu = constants.smoothness
    if smoothness is not None:
        mu = positive("smoothness", smoothness)
    scale = 1 / probability("smallest_chance", smallest_chance, zero=False)
    scale /= positive("problem.regularization", constants.strong_convexity)
    return InverseTime(scale=scale, offset=2 * mu * scale)
