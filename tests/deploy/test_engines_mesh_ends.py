"""What ends a party's part: a full disk, the others' signatures, its own word; and its model."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import ALGORITHMS, Parties
from scipy.optimize import brentq
from scipy.stats import norm

import dpmesh as dm
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.algorithms import SecureAggregation
from dpmesh.deploy import Contract, Folder, Node, RefusedError, Router
from dpmesh.deploy.outcome import verified
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.steps import KnownContract
from dpmesh.deploy.wire import STEP_QUESTION, Position, kind_of, read_question
from dpmesh.noise.correlated import InTime
from dpmesh.noise.mechanisms import Gaussian, Laplace
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy import filters
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.filters import adaptive_cost
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.releases import Release

FULL = "the disk is full"


class Disk:
    """A disk whose k-th write fails; reads, and all other writes, do not."""

    def __init__(self, patch: pytest.MonkeyPatch, k: int) -> None:
        disk, self.left = self, k

        class Connection(sqlite3.Connection):
            def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
                disk.write(sqlite3.OperationalError, query.split()[0] in ("insert", "update"))
                return super().execute(query, *values)

            def __exit__(self, *error: Any) -> Any:
                try:
                    disk.write(sqlite3.OperationalError, error[0] is None and self.in_transaction)
                except sqlite3.Error:
                    self.rollback()
                    raise
                return super().__exit__(*error)

        def failing(real: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **named: (self.write(OSError, True), real(*args, **named))[1]

        real = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *a, **n: real(*a, factory=Connection, **n))
        for name in ("fsync", "fdopen"):
            patch.setattr(os, name, failing(getattr(os, name)))

    def write(self, kind: type[Exception], writes: bool) -> None:
        self.left -= writes
        if writes and self.left == 0:
            raise kind(FULL)


def test_a_folder_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    for k in count(1):
        with pytest.MonkeyPatch.context() as patch:
            disk, path = Disk(patch, k), tmp_path / str(k)
            try:
                Folder.create(path, epsilon=1.0, delta=1e-5).close()
            except (OSError, sqlite3.Error):
                if path.exists():
                    Folder.open(path).close()
                else:
                    Folder.create(path, epsilon=1.0, delta=1e-5).close()
        if disk.left > 0:
            break
    assert k > 8


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "nodes"), [("in time", 2), ("sums", 3)])
def test_a_disk_that_fails_at_any_write_costs_a_restart_and_nothing_else(
    algorithm: str, nodes: int, tmp_path: Path
) -> None:
    """Each row that left has its charge and its mark, and the bits are the simulator's."""
    for k in count(1):
        place, marks, node = tmp_path / str(k), tmp_path / f"marks of {k}", None
        parties = Parties(place, algorithm, nodes=nodes, rounds=5 - nodes, marks=marks)
        router, fails = Router(parties.contract), list[str]()
        parties.folders[0].close()
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, k)
            while not router.done:
                for party, message in router.requests().items():
                    try:
                        if party == 0 and node is None:
                            parties.folders[0] = Folder.open(place / "p0", marks=marks)
                            node = parties.nodes[0] = parties.node(0)
                        router.take(party, parties.nodes[party].answer(message))
                    except (OSError, sqlite3.Error) as error:
                        fails.append(str(error))
                        parties.folders[0].close()
                        node = None
                    if party == 0 and node is not None and node.last_position is not None:
                        ((_, marked),) = parties.folders[0].marks.by_contract().values()
                        assert marked.position == node.last_position
        assert fails == [FULL] * (disk.left <= 0)
        assert parties.folders[0].ledger(parties.contract) == parties.contract.plan
        models, simulated = parties.models(), parties.simulated().parameters
        np.testing.assert_array_equal(models, np.broadcast_to(simulated, models.shape))
        for folder in parties.folders:
            folder.close()
        if disk.left > 0:
            break
    assert k > 20


@pytest.mark.parametrize("algorithm", ["online", "without replacement", "sums"])
def test_a_party_that_is_left_out_ends_by_the_others_signatures(
    algorithm: str, tmp_path: Path
) -> None:
    parties = Parties(tmp_path, algorithm, **({"quorum": 3} if algorithm == "sums" else {}))

    def lost(party: int, message: bytes) -> bool:
        asks = party == 3 and kind_of(message) == STEP_QUESTION
        return asks and read_question(message, parties.contract).position.round == 4

    router = parties.run(lost=lost)
    left, ended = parties.nodes[3], unpack(router.ended)
    assert router.missing == ["p3"]
    assert (left.is_done, left.is_sealed, left.is_over(router.ended)) == (False, False, True)
    for too_few in (ended[:2], (ended[0],) * 4, (*ended[:2], ended[2][:-1] + b"x")):
        assert not left.is_over(pack(*too_few))
    assert parties.nodes[0].is_sealed


@pytest.mark.parametrize("algorithm", ["sums", "gradient descent"])
def test_a_model_shows_who_signed_it(algorithm: str, tmp_path: Path) -> None:
    parties, file = Parties(tmp_path, algorithm), tmp_path / "model.dpmesh"
    parties.run()
    parties.nodes[1].model().save(file)
    model, contract = dm.Model.load(file), parties.contract
    seals = ("p0", "p1", "p2", "p3") if algorithm == "sums" else ()
    assert verified(model, contract) == ("p1", 4, seals)
    origin = model.about["provenance"]
    for changed in (
        replace(model, weights=model.weights + 1),
        replace(model, about={**model.about, "privacy": {}}),
        replace(model, about={**model.about, "provenance": {**origin, "party": "p2"}}),
        replace(model, about={}),
    ):
        with pytest.raises(ValueError, match="model: wanted"):
            verified(changed, contract)
    if seals:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(parties.nodes[1]), "seals", parties.nodes[1].seals[:2])
            with pytest.raises(ValueError, match="that 3 parties sealed"):
                verified(parties.nodes[1].model(), contract)


def test_a_filter_counts_what_is_joined_after_a_release(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "gradient descent", nodes=2, rehearsal=False, marks=tmp_path)
    folder, plan = parties.folders[0], parties.contract.plan

    def another(rounds: int, algorithm: str = "gradient descent") -> Contract:
        content = deepcopy(parties.content) | {"algorithm": ALGORITHMS[algorithm]}
        content["contract"]["rounds"] = rounds
        return Contract.of(content)

    def join(contract: Contract) -> None:
        Node(contract, folder, parties.records[0])

    join(two := another(2))
    assert folder.cost() == total_cost([plan, two.plan], 1e-5).epsilon
    parties.run()
    join(three := another(3))
    whole = [plan, two.plan, three.plan]
    assert folder.cost() == adaptive_cost(whole, folder.budget)
    join(online := another(3, "online"))  # Laplace beside Gaussian noise
    whole.append(online.plan)
    assert folder.cost() == adaptive_cost(whole, folder.budget)
    folder.marks.leave(three.hash)  # and killed before the folder was changed
    folder.close()
    folder = parties.folders[0] = Folder.open(tmp_path / "p0", marks=tmp_path)
    folder.note_signature(two)
    assert not folder.leave(two)
    for left in (two, three):
        with pytest.raises(ValueError, match="not left"):
            join(left)
    assert folder.cost() == adaptive_cost(whole, folder.budget)  # a choice returns nothing
    folder.charge_again()
    assert folder.cost() == adaptive_cost(2 * whole, folder.budget)


@pytest.mark.parametrize("seen", ["nothing", "charged", "lost", "shared", "outside", "restored"])
def test_filters_count_after_all_that_may_have_been_released(seen: str, tmp_path: Path) -> None:
    gaussian = KnownContract(
        b"gaussian", dm.GradientDescent(records=9, noise_multiplier=40.0).plan(5)
    )
    laplace = KnownContract(b"laplace", dm.OnlineLearning(epsilon=0.1).plan(5))
    lost = iter([gaussian] * (seen == "lost"))
    folder = Folder.create(tmp_path / "own", epsilon=9, delta=1e-5, lost=lost)

    def release() -> None:
        with folder.transaction():
            folder.charge_step(gaussian, Position(0), (), gaussian.plan.releases[:1])

    if seen == "outside":
        folder.spend(gaussian)
        assert folder.spent(gaussian) == folder.reserved(gaussian)
        assert folder.state_of(gaussian) == "released by dpmesh fit, stats or ranges"
        with pytest.raises(ValueError, match="no more than what was charged"):
            folder.spend(gaussian._replace(plan=laplace.plan))
        with pytest.raises(ValueError, match="wanted a contract"):
            folder.leave(gaussian)
    else:
        folder.join(gaussian._replace(copies=1 + (seen == "shared")), "", seeded=False)
        dearer = dm.GradientDescent(records=9, noise_multiplier=38.0).plan(5)
        with pytest.raises(ValueError, match="no more than what was charged"):
            folder.join(gaussian._replace(plan=dearer), "", seeded=False)
    if seen == "charged":
        release()
    if seen == "restored":
        folder.charge_again()
    folder.join(laplace, "", seeded=False)
    plans = [gaussian.plan] * (1 + (seen == "restored")) + [laplace.plan]
    if seen != "nothing":
        assert folder.cost() == adaptive_cost(plans, folder.budget)
        return
    assert folder.cost() == total_cost(plans, 1e-5).epsilon < adaptive_cost(plans, folder.budget)
    folder.note_signature(gaussian)
    folder.leave(gaussian)
    with pytest.raises(RefusedError):
        release()


def test_a_filter_counts_the_samplers_at_the_epsilon_of_the_budget() -> None:
    ring, grid = dm.topology.ring(4), 2.0**-10
    noise = InTime(topology=ring, rounds=20, grid=grid)
    algorithm = dm.GradientDescent(records=20, noise_multiplier=40.0, batches=20, noise=noise)
    alone = Release(0, Gaussian(20.0, grid=grid), Sensitivity(1.0, "l2", "one"))
    plan = Plan(releases=20 * (alone,), neighboring_relation="replace_one", unit="record")
    sums = dm.FederatedLearning(
        dm.RecordGradients(clients=3, records=60, sampling_rate=1.0, clipping_norm=1.0),
        noise_multiplier=40.0,
        combination=SecureAggregation(dim=2**20 // 3, rounds=20),
    )
    for each in (plan, algorithm.plan(20), sums.plan(20)):
        fixed = total_cost(3 * [each], 1e-5).epsilon
        assert adaptive_cost(3 * [each], Budget(1.0, delta=1e-5)) < 1.02 * fixed  # by mu
        assert adaptive_cost(3 * [each], Budget(25.0, delta=1e-5)) > 1.4 * fixed  # added up


def test_epsilons_that_are_added_up_have_their_share_of_delta() -> None:
    nothing = Plan(releases=(), neighboring_relation="replace_one", unit="record")
    plans = [dm.OnlineLearning(epsilon=0.02).plan(200), nothing]
    plans += [dm.GradientDescent(records=9, noise_multiplier=2 * z).plan(2) for z in (5.0, 1e4)]
    budget = Budget(4.0, delta=1e-5)
    costs = [filters._epsilon_in_sum(each, budget) for each in plans]
    assert costs[1] == 0
    assert costs[3] == filters.MIN_EPSILON_SHARE * budget.epsilon
    assert adaptive_cost(plans, budget) == sum(costs)
    share = filters.SUM_SHARE * budget.delta / budget.epsilon
    proved = (each.cost(share * cost).epsilon for each, cost in zip(plans, costs, strict=True))
    assert all(one <= cost for one, cost in zip(proved, costs, strict=True))


def test_no_choice_of_the_next_plan_spends_more_than_a_filter_says() -> None:
    """The best choice after a Gaussian release: to go on, or not, by what it showed.

    Planted: with plans that keep a budget by their loss distributions, Laplace or Gaussian, the
    same adversary has more than it.
    """
    delta, grid = 1e-5, np.linspace(-9, 9, 20_001)

    def spent(first: float, profiles: Sequence[Callable[[Any], Any]], epsilon: float) -> float:
        seen = grid + first  # under the first of two neighbours, if the second has mean 0
        left = epsilon - first * (seen - first / 2)
        best = np.max([profile(left) for profile in profiles], axis=0)
        return float(np.trapezoid(best * norm.pdf(grid), grid))

    def gaussian(mu: float) -> Callable[[Any], Any]:
        if mu == 0:
            return lambda left: np.maximum(0, 1 - np.exp(np.minimum(left, 0)))
        return lambda left: (
            norm.cdf(mu / 2 - left / mu) - np.exp(left) * norm.cdf(-mu / 2 - left / mu)
        )

    def laplace(own: float) -> Callable[[Any], Any]:
        def profile(left: Any) -> Any:
            inside = 1 - np.exp((np.clip(left, -own, own) - own) / 2)
            return np.where(left < -own, 1 - np.exp(np.minimum(left, 0)), inside)

        return profile

    def plan(*mechanisms: Any) -> Plan:
        releases = (Release(0, each, Sensitivity(1.0, each.norm, "one")) for each in mechanisms)
        return Plan(releases=tuple(releases), neighboring_relation="replace_one", unit="record")

    def allowed(kind: Any) -> float:
        """Return the largest shift over noise that the filters allow after the first release."""
        return float(
            brentq(lambda x: adaptive_cost([before, plan(kind(1 / x))], budget) - 1, 0.05, 0.9)
        )

    whole = 1 / analytic_gaussian_noise_to_sensitivity(target_epsilon=1.0, target_delta=delta)
    first, second = whole * 0.7, whole * 0.51**0.5
    before, budget = plan(Gaussian(1 / first)), Budget(1.0, delta=delta)
    may = [gaussian(allowed(Gaussian)), laplace(allowed(Laplace)), gaussian(0)]
    assert 0.9 * delta > spent(first, may, 1.0) > 0.5 * delta
    own = brentq(lambda e: total_cost([before, plan(Laplace(1 / e))], delta).epsilon - 1, 0.1, 0.9)
    assert spent(first, [laplace(own)], 1.0) <= 1.001 * delta
    assert spent(first, [gaussian(second), laplace(own)], 1.0) > 1.02 * delta
