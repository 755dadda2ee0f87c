"""Sums whose vectors follow from earlier totals: their cost, their noise, and what audits find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from audit_power import gaussian_curve, power
from scipy import sparse

import dpmesh as dm
from dpmesh.algorithms import AdaptiveSums, RecordSums
from dpmesh.algorithms.adaptive_sums import NoisyTotal
from dpmesh.algorithms.record_sums import clipped_sum
from dpmesh.audit import EpsilonClaim, GaussianClaim, audit_layers

PUBLIC: dict[str, Any] = {
    "lengths": (2, 5, 1),
    "longest": (1.0, 1.0, 2.0),
    "distances": (0.4, 2.0, 1.0),
    "records": 40,
}
SURE = 0.999


@dataclass
class Follows:
    """Vectors that follow from the last total: which is also how a test sees that they do."""

    sites: int
    nodes: int = 0
    test: None = None

    def __post_init__(self) -> None:
        self.nodes = self.sites
        self.seen: list[list[np.ndarray]] = []

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> Any:
        self.seen.append([released.total.copy() for released in totals])
        level = float(totals[-1].total.sum()) if totals else 0.0
        return Vectors(sites=self.sites, dim=PUBLIC["lengths"][t], level=level)


@dataclass
class Vectors:
    sites: int
    dim: int
    level: float

    @property
    def nodes(self) -> int:
        return self.sites

    def vectors(self, node: int) -> Iterator[np.ndarray]:
        yield np.full((10, self.dim), np.tanh(self.level) / 10 + 0.1 * node)


def sums(sites: int = 4, **others: Any) -> AdaptiveSums:
    given = {**PUBLIC, "sites": sites, "secure": sites > 2, **others}
    return AdaptiveSums.for_budget(epsilon=1.0, delta=1e-5, **given)


@pytest.mark.parametrize("sites", [1, 4])
def test_all_rounds_cost_what_one_release_of_their_length_costs(sites: int) -> None:
    algorithm = sums(sites)
    cost = algorithm.plan(3).cost(1e-5).epsilon
    assert cost == pytest.approx(1.0, abs=1e-4)
    assert cost <= 1.0
    together = np.sqrt(np.square(PUBLIC["distances"]).sum())
    alone = RecordSums.for_budget(
        epsilon=1.0, delta=1e-5, dim=5, sites=sites, records=40, secure=sites > 2
    )
    wanted = alone.noise_scale / 2 * together
    assert algorithm.noise_scales == pytest.approx([wanted] * 3, rel=0.02)


def test_each_round_has_the_totals_before_it_and_the_noise_that_is_stated() -> None:
    algorithm = sums()
    problem: Any = Follows(4)
    key = dm.Key.seeded(0)
    run = dm.simulate(algorithm, problem, rounds=3, key=key, delta=1e-5, metrics=[])
    totals = algorithm.totals(run.released[0])
    assert [len(total) for total in totals] == [2, 5, 1]
    last = problem.seen[-1]
    assert [total.tolist() for total in last] == [total.tolist() for total in totals[:2]]
    assert run.ledger.cost(1e-5).epsilon == algorithm.plan(3).cost(1e-5).epsilon
    draws = []
    for seed in range(60):
        seeded = dm.Key.seeded(seed)
        again: Any = Follows(4)
        run = dm.simulate(algorithm, again, rounds=1, key=seeded, delta=1e-5, metrics=[])
        draws += [*run.released[0, :2]]
    assert np.std(draws) == pytest.approx(algorithm.noise_scales[0], rel=5 / np.sqrt(240))


def audited(kind: type[AdaptiveSums], secure: bool, *, times: float = 1.0, runs: int = 1) -> Any:
    """The layers of an audit at mu = 1: coupling, many runs of one record, one run of many."""
    own: dict[str, Any] = {**PUBLIC, "sites": 2, "colluding": 0, "noise_to_sensitivity": 1.0}
    own |= {"longest": (times,) * 3}
    own |= {"distances": tuple(d / times for d in (1.2, 1.6, 1.0)), "secure": secure}
    limits: dict[str, Any] = {"runs": runs, "confidence": SURE, "key": dm.Key.seeded(1)}
    return audit_layers(*kind(**own).worst_case(), **limits)


class HalfCharged(AdaptiveSums):
    """Releases vectors twice as far apart as it says."""

    def leaking_data(self, size: Any) -> Any:
        pair, crowd = super().leaking_data(size)
        twice = replace(self, distances=tuple(2 * d for d in self.distances), longest=(2.0,) * 3)
        changed = {
            name: replace(getattr(pair, name), algorithm=twice) for name in ("problem", "neighbor")
        }
        return replace(pair, **changed), crowd


@pytest.mark.parametrize("secure", [True, False])
def test_a_coupling_moves_as_declared_and_finds_a_round_that_is_not_charged(secure: bool) -> None:
    coupling = next(audited(AdaptiveSums, secure))
    assert not coupling.violated
    for moved in coupling.movements:
        assert moved.distance > 0.98 * moved.allowed
    planted = next(audited(HalfCharged, secure, times=2.0))
    assert any("moved by" in fault for fault in planted.faults)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secure", "tenth", "runs"),
    [(True, GaussianClaim(0.1), 250), (False, EpsilonClaim(0.438, delta=1e-5), 400)],
)
def test_audits_by_runs_show_part_of_the_claim(secure: bool, tenth: Any, runs: int) -> None:
    """Each of two false alarms has probability 0.001 at most."""
    assert power(tenth, gaussian_curve(1.0), runs, SURE) > 0.96
    _, many, one = audited(AdaptiveSums, secure, runs=runs)
    assert not many.violated
    assert not one.violated
    assert many.claim.level == pytest.approx(10 * tenth.level, rel=1e-3)
    assert many.lower_bound > 0.1 * many.claim.level


def test_sparse_vectors_are_summed_and_clipped_as_dense_ones() -> None:
    draw = np.random.default_rng(0)
    dense = np.where(draw.random((50, 20)) < 0.2, draw.normal(0, 2, (50, 20)), 0.0)
    found = clipped_sum(sparse.csr_array(dense), 1.5)
    np.testing.assert_allclose(found, clipped_sum(dense, 1.5), rtol=1e-12)
    dense[3, 4] = np.inf
    with pytest.raises(ValueError, match="finite"):
        clipped_sum(sparse.csr_array(dense), 1.5)


@pytest.mark.parametrize(
    ("others", "match"),
    [
        ({"distances": (1.0,)}, "distances: wanted as many"),
        ({"distances": (0.4, 2.5, 1.0)}, "diameter: wanted at most 2"),
        ({"lengths": (0, 1, 1)}, "dim: wanted"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(others: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        sums(**others)
