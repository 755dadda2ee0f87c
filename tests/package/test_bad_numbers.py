"""A number, name, key or stream that does not fit is named, wherever a public call takes one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import accounting, data, kernels, noise, privacy, topology
from dpmesh import schedules as s
from dpmesh.accounting import papers
from dpmesh.algorithms import controllers, denoisers
from dpmesh.audit import EpsilonClaim, GaussianClaim, audit_mechanism, one_run
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Gaussian, Sensitivity
from dpmesh_papers.attacks import threshold_attack
from dpmesh_papers.bounds import online, quantized
from dpmesh_papers.claims import federated as claims
from dpmesh_papers.deep_q import DeepQ


class Kind(NamedTuple):
    """An argument that fits, and some that do not."""

    good: Any
    bad: tuple[Any, ...]

    def at(self, good: Any, *also: Any) -> Kind:
        """The same with another one that fits, and with more that do not."""
        return Kind(good, (*self.bad, *also))


FINITE = Kind(0.5, (nan, inf, "a"))
POSITIVE = FINITE.at(0.5, 0, -1.0)
NON_NEGATIVE = FINITE.at(0.5, -1.0)
STEP = POSITIVE.at(0.5, True, None)
RATE = Kind(0.3, (0, 1.5, nan))
SHARE = Kind(0.3, (-0.1, 1.5, nan))
BELOW_ONE = Kind(0.3, (-1e-9, 1.0, nan))
INSIDE = BELOW_ONE.at(0.3, 0)
COUNT = Kind(3, (0, -1, 1.5, nan, "a"))
NATURAL = Kind(3, (-1, 1.5))
KEY = Kind(Key.seeded(1), (1, None))
STREAM = Kind(Key.seeded(1).stream(Purpose.METRIC), (5, Key.seeded(1), None))
NAMES = {
    (
        "value scale values epsilon radius clipping_norm phi noise_std noise_to_sensitivity "
        "noise_multiplier learning_rate largest target_epsilon guess sensitivity lipschitz step "
        "grid theta diameter smoothness polyak_lojasiewicz accuracy alpha divisor feature_norm "
        "label_bound bandwidth mean median"
    ): POSITIVE,
    (
        "offset smoothing noise_scale mu bound strong_convexity noise regret "
        "gradient_variance dissimilarity quantizer_step initial_gap regularization latency "
        "compute sigma"
    ): NON_NEGATIVE,
    "exponent": FINITE,
    (
        "rounds starts batch_size sample_size visits nodes models copies records dim epochs "
        "period anneal_rounds target_update_period power at_most iterations levels size runs "
        "window steps below networks inputs stride least_records embedding hidden layers "
        "attempts outage_rounds late_rounds rows columns"
    ): COUNT,
    "rate arrival_rate sampling_rate keep smallest_weight smallest_chance": RATE,
    "delta beta loss offline": BELOW_ONE,
    "step_size consensus_step_size": STEP,
    "discount initial_exploration final_exploration p late_fraction straggler_fraction": SHARE,
    "count round batch max_delay min_delay": NATURAL,
    "target_delta target_power confidence fraction": INSIDE,
    "stream": STREAM,
    "key": KEY,
}
USUAL = {name: kind for names, kind in NAMES.items() for name in names.split()}
"""What arguments of these names are, unless a case says otherwise."""


def of(choice: str | None) -> Kind:
    """One of a few names."""
    return Kind(choice, ("x", 5))


def case(call: Callable[..., Any], names: str = "", **others: Kind) -> tuple[Any, dict[str, Kind]]:
    """Return a call and its arguments: those of the usual kinds, and others."""
    return call, {name: USUAL[name] for name in names.split()} | others


X = np.ones((2, 3))
FIVE = data.Dataset(np.ones((5, 2)), np.arange(5) % 2)
RNG = np.random.default_rng(0)
ONE = noise.Sensitivity(1.0, "l2", "one")
RING = topology.ring(3)
COINS = Key.seeded(1).stream(Purpose.QUANTIZE)
NOISE = Key.seeded(1).stream(Purpose.NOISE)
PLAN = dm.OnlineLearning(epsilon=1.0).plan(1)
GUESSES = {"canaries": 3, "guesses": 3}

CASES = [
    case(s.Constant, "value"),
    case(s.InverseTime, "scale offset"),
    case(s.InverseSqrt, "scale"),
    case(s.PowerLaw, "scale exponent offset"),
    case(s.HorizonPower, "scale exponent rounds"),
    case(s.ExponentialDecay, "scale rate"),
    case(s.SampleSize, "scale rounds", exponent=NON_NEGATIVE),
    case(lambda starts: s.Piecewise(starts=(1, starts), values=(1.0, 1.0)), "starts"),
    case(lambda values: s.Piecewise(starts=(1,), values=(values,)), "values"),
    case(
        dm.OnlineLearning,
        "epsilon radius clipping_norm delta batch_size step_size",
        norm=of("l2"),
        projection=of("ball"),
    ),
    case(dm.OnlineLearning().plan, "rounds"),
    case(
        dm.QuantizedGossip,
        "step_size consensus_step_size sample_size noise_std clipping_norm",
        mode=of("safe"),
        smoothness=Kind(1.0, (0.0, nan, None, "a")),
    ),
    case(
        partial(dm.WithReplacement, nodes=2, records=9),
        "noise_multiplier batch_size visits step_size",
    ),
    case(partial(dm.WithReplacement, records=99, noise_multiplier=1.0), "nodes"),
    case(
        dm.WithoutReplacement,
        "epsilon radius models batch_size copies arrival_rate",
        delta=INSIDE,
        calibration=of("analytic"),
    ),
    case(dm.GradientDescent, "records noise_multiplier clipping_norm"),
    case(
        partial(dm.SecureGossip, topology=topology.complete(4)),
        "noise_multiplier clipping_norm",
        colluding=NATURAL.at(0),
        records=COUNT.at(50),
        dim=NATURAL,
    ),
    case(
        partial(dm.ClientUpdates, epochs=1),
        "sampling_rate clipping_norm batch_size step_size",
        clients=COUNT.at(9, 2**32),
        sampling=of("poisson"),
    ),
    case(partial(dm.ClientUpdates, clients=9, sampling_rate=0.5, clipping_norm=1.0), "epochs"),
    case(dm.algorithms.TrustedServer, "arrival_rate"),
    case(controllers.RandomGlobal, rate=SHARE),
    case(controllers.Periodic, "period"),
    case(
        DeepQ,
        "anneal_rounds target_update_period learning_rate discount",
        initial_exploration=SHARE,
        final_exploration=SHARE,
        sees=of("local"),
        activation=of("linear"),
        memory_size=COUNT.at(20),
        batch_size=COUNT.at(3, 21),
    ),
    case(denoisers.LaplacianSmoothing, "smoothing power"),
    case(denoisers.AdaptiveSmoothing, "rounds power largest"),
    case(partial(denoisers.smoothing_risk, np.ones(2)), "noise_scale smoothing"),
    case(accounting.calibrate_noise, "target_epsilon guess", epsilon_of=Kind(lambda z: 1 / z, ())),
    case(partial(accounting.affordable_rounds, float), "target_epsilon at_most"),
    case(accounting.gdp_epsilon, "mu", delta=INSIDE),
    case(accounting.gdp_delta, "epsilon mu"),
    case(accounting.gdp_mu, "noise_to_sensitivity count"),
    case(accounting.analytic_gaussian_noise_to_sensitivity, "target_epsilon target_delta"),
    case(accounting.rdp_gaussian, "noise_to_sensitivity count"),
    case(accounting.rdp_laplace, "noise_to_sensitivity count"),
    case(
        accounting.poisson_gaussian_epsilon,
        "sampling_rate noise_to_sensitivity",
        neighboring_relation=of("add_remove"),
        delta=INSIDE,
    ),
    case(
        accounting.fixed_size_gaussian_epsilon,
        "sampling_rate noise_to_sensitivity",
        neighboring_relation=of("replace_one"),
        delta=INSIDE,
    ),
    case(
        partial(accounting.rdp_fixed_size_gaussian, neighboring_relation="replace_one"),
        "sampling_rate noise_to_sensitivity",
        bound=of("dominating_pair"),
        orders=Kind([2.0], ([2, 1], nan)),
    ),
    case(
        accounting.discrete_gaussian_epsilon,
        "noise_to_sensitivity sampling_rate count",
        delta=INSIDE,
        neighboring_relation=of("add_remove"),
    ),
    case(
        partial(accounting.rdp_epsilon, rdp=[1.0], orders=2.0),
        delta=INSIDE,
        conversion=of("optimal"),
    ),
    case(
        partial(
            accounting.poisson_gaussian_noise_to_sensitivity, neighboring_relation="add_remove"
        ),
        "target_epsilon target_delta sampling_rate",
    ),
    case(
        partial(papers.quantized.sensitivities, gradient_bound=1.0),
        "iterations sample_size",
        step_size=POSITIVE,
        consensus_step_size=POSITIVE,
        mode=of("safe"),
        smoothness=Kind(1.0, (0, nan)),
    ),
    case(
        partial(claims.theorem_noise, clipping_norm=1.0, sampling="uniform"),
        target_epsilon=POSITIVE.at(6.0),
        target_delta=INSIDE.at(0.0001),
        sampling_rate=RATE.at(0.05),
        rounds=COUNT.at(30),
    ),
    case(
        claims.table_epsilon,
        "sampling_rate noise_to_sensitivity rounds target_delta",
        sampling=of("poisson"),
    ),
    case(
        partial(papers.without_replacement.classical_noise_std, target_delta=1e-5),
        "target_epsilon sensitivity",
    ),
    case(noise.Quantizer, "step", bits=COUNT.at(3, 33)),
    case(noise.Levels, "levels"),
    case(noise.RandomSparsifier, "keep"),
    case(privacy.PoissonSampling, "rate"),
    case(privacy.FixedSizeSampling, "size", population=COUNT.at(5)),
    case(noise.Laplace, "grid", noise_to_sensitivity=STEP.at(1.0, 10**400)),
    case(noise.Gaussian, "clipping_norm", noise_to_sensitivity=STEP.at(1.0, 10**400)),
    case(partial(noise.Sensitivity, reason=""), "bound", norm=of("l2")),
    case(partial(privacy.Release, mechanism=noise.Laplace(2.0), sensitivity=ONE), "round batch"),
    case(
        partial(privacy.Plan, releases=()),
        neighboring_relation=of("replace_one"),
        unit=of("record"),
    ),
    case(PLAN.cost, "delta"),
    case(PLAN.costs_by_node, "delta nodes"),
    case(partial(privacy.total_cost, [PLAN]), "delta"),
    case(privacy.Budget, "epsilon delta"),
    case(EpsilonClaim, "delta", epsilon=NON_NEGATIVE),
    case(GaussianClaim, "mu"),
    case(
        partial(one_run.p_value, 1.0),
        canaries=COUNT.at(5),
        guesses=NATURAL.at(5, 6),
        correct=NATURAL.at(5, 6),
    ),
    case(partial(one_run.p_value, correct=1, **GUESSES), epsilon=NON_NEGATIVE),
    case(partial(one_run.mu_is_refuted, correct=1, **GUESSES), "mu"),
    case(partial(one_run.mu_lower_bound, **GUESSES), correct=NATURAL.at(3, 4)),
    case(partial(one_run.epsilon_lower_bound, correct=1, **GUESSES), "confidence"),
    case(partial(audit_mechanism, noise.Gaussian(1.0), ONE), "runs dim confidence delta"),
    case(online.OnlineRun, "nodes dim rounds lipschitz diameter strong_convexity noise"),
    case(online.laplace_noise, "epsilon lipschitz dim batch_size"),
    case(
        quantized.Powers,
        step_size=FINITE,
        consensus_step_size=FINITE,
        noise=FINITE,
        sample_size=NON_NEGATIVE,
        noise_scale=POSITIVE,
    ),
    case(topology.random_matchings, "key", nodes=COUNT.at(4, 1)),
    case(partial(topology.edge_dropping, RING), "keep key"),
    case(partial(topology.shuffled, RING), "key"),
    case(RING.matrix, "round"),
    case(RING.matrix(0).neighbours, node=NATURAL.at(0, 3)),
]


@pytest.mark.parametrize(("call", "arguments"), CASES)
def test_what_does_not_fit_is_named(call: Callable[..., Any], arguments: dict[str, Kind]) -> None:
    good = {name: kind.good for name, kind in arguments.items()}
    for name, kind in arguments.items():
        for bad in kind.bad:
            with pytest.raises(ValueError, match=rf"^(target_)?{name.removeprefix('target_')}: "):
                call(**{**good, name: bad})


ROWS, Y = np.ones((4, 3)), np.array([1, -1, 1, -1])
DATA = dm.Dataset(ROWS, Y)
NORM = Sensitivity(1.0, "l2", "a test")


def hidden(array: np.ndarray) -> np.ma.MaskedArray:
    """The array with its first element under a mask."""
    mask = np.zeros(array.shape, dtype=bool)
    mask.flat[0] = True
    return np.ma.masked_array(array, mask)


def released(values: np.ndarray) -> None:
    Gaussian(1.0).release(values, NORM, dm.Key.generate().stream(1, 0))


@pytest.mark.parametrize(
    ("argument", "takes"),
    [
        ("features", lambda: dm.Dataset(hidden(ROWS), Y)),
        ("labels", lambda: dm.Dataset(ROWS, hidden(Y))),
        ("indices", lambda: DATA.take(hidden(np.arange(4)))),
        ("rule", lambda: DATA.relabelled(hidden)),
        ("users", lambda: dm.data.by_user(hidden(Y))),
        ("partition", lambda: dm.LinearProblem(DATA, (hidden(np.arange(4)),), "logistic")),
        ("weights", lambda: dm.topology.MixingMatrix(hidden(np.eye(2)))),
        ("x", lambda: kernels.clip_rows(hidden(ROWS), 1.0)),
        ("noise_to_sensitivity", lambda: accounting.gdp_mu(hidden(np.ones(2)))),
        ("member_losses", lambda: threshold_attack(hidden(np.ones(3)), np.ones(3))),
        ("", lambda: released(hidden(ROWS))),
    ],
)
def test_a_mask_is_refused(argument, takes) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}.*: wanted an array without a mask"):
        takes()
