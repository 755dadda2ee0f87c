"""Records used once in a secret round: the draw, both algorithms that use it, and refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from refused import refused
from scipy.stats import binom
from twin_without_replacement import without_replacement
from twins import online_learning
from without_replacement_problems import make_problem

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.accounting import random_allocation_epsilon
from dpmesh.algorithms import ClientUpdates, SecureAggregation
from dpmesh.algorithms.controllers import AlwaysGlobal, AlwaysLocal, Periodic, RandomGlobal
from dpmesh.algorithms.without_replacement import AllocatedPass
from dpmesh.audit import alone
from dpmesh.audit.coupling import couple
from dpmesh.keys import Key, Purpose
from dpmesh.run.carriers import Gossip
from dpmesh_papers.deep_q import DeepQ
from dpmesh_papers.repeats import Repeats

NOISY = DeepQ(sees="noisy", anneal_rounds=4)


def times_of(node: int, count: int, rounds: int, key: Key) -> list[int]:
    """The rounds of a node's records, one by one, from the stream's 53-bit numbers."""
    coins = kernels.uniform((1, count), key.stream(Purpose.ALLOCATION), nodes=[node])[0]
    return [int(coin * 2**53) % rounds for coin in coins.tolist()]


def online(**parameters: Any) -> dm.OnlineLearning:
    return dm.OnlineLearning(**{"delta": 1e-5, "sampling": "allocation", **parameters})


def sgd(**parameters: Any) -> dm.WithoutReplacement:
    given = {"sampling": "allocation", "decisions": "together", "controller": AlwaysGlobal()}
    return dm.WithoutReplacement(**{**given, **parameters})


@pytest.mark.slow
@given(
    loss=st.sampled_from(["hinge", "logistic", "squared"]),
    rounds=st.sampled_from([1, 3, 5]),
    h=st.integers(1, 3),
    norm=st.sampled_from(["l2", "l1"]),
    projection=st.sampled_from(["ball", "mixture", "box", "none"]),
    regularization=st.sampled_from([0.0, 0.3]),
    alike=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_online_learning_equals_its_twin(
    loss, rounds, h, norm, projection, regularization, alike, seed
) -> None:
    sizes = [rounds * h + (0 if alike else extra) for extra in (0, 3, 1)]
    problem = make_problem(
        sizes, 3, None, loss=loss, seed=seed, regularization=regularization, label_bound=2.0
    )
    if norm == "l1" and projection == "ball":
        projection = "none"
    algorithm = online(
        epsilon=3.0,
        batch_size=h,
        records=rounds * h,
        norm=norm,
        projection=projection,
        clipping_norm=0.6,
    )
    key, links = Key.seeded(seed), topology.ring(3)
    run = dm.simulate(algorithm, problem, links, rounds=rounds + 1, key=key, metrics=["loss"])
    times = [times_of(i, size, rounds, key) for i, size in enumerate(sizes)]
    x, y = problem.train.features, problem.train.labels

    def examples(i: int, t: int) -> list[Any]:
        own = zip(problem.partition[i], times[i], strict=True)
        return [(x[r], y[r]) for r, time in own if time == t]

    w = online_learning(
        loss=loss,
        examples=examples,
        A=lambda t: links.matrix(t).weights.toarray(),
        alpha=algorithm.step_size,
        noise=lambda j, t: kernels.gaussian((3, 3), 1.0, key.stream(Purpose.NOISE, t))[j],
        norm_factor=1.0,
        multiplier=algorithm.mechanism.noise_to_sensitivity,
        m=3,
        n=3,
        T=rounds + 1,
        L=0.6,
        norm=int(norm[1]),
        projection=projection,
        radius=1.0,
        lam=regularization,
        h=lambda i: sizes[i] / rounds,
    )
    np.testing.assert_allclose(run.parameters, w[-1], rtol=1e-10, atol=1e-10)
    assert run.ledger == algorithm.plan(rounds + 1)


@pytest.mark.slow
@given(
    K=st.sampled_from([None, 3]),
    steps=st.sampled_from([2, 5]),
    b=st.integers(6, 9),
    controller=st.sampled_from([AlwaysGlobal(), Periodic(3), RandomGlobal(0.5), AlwaysLocal()]),
    radius=st.sampled_from([None, 0.3]),
    regularization=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 2**32),
)
def test_sgd_without_replacement_equals_its_twin(
    K, steps, b, controller, radius, regularization, seed
) -> None:
    sizes, models = [steps * b, steps * b + 3, steps * b + 1], K or 1
    problem = make_problem(sizes, 3, K, seed=seed, regularization=regularization)
    algorithm = sgd(
        epsilon=2.0,
        models=models,
        batch_size=b,
        records=steps * b,
        step_size=0.1,
        controller=controller,
        radius=radius,
        nodes=3,
        decisions_seed=seed % 2,
    )
    key = Key.seeded(seed)
    run = dm.simulate(algorithm, problem, rounds=steps, key=key, metrics=["loss"])
    times = [times_of(m, size, steps, key) for m, size in enumerate(sizes)]
    x, y = problem.train.features, problem.train.labels

    def minibatch(m: int, i: int) -> list[Any]:
        own = zip(problem.partition[m], times[m], strict=True)
        return [(x[r], y[r]) for r, time in own if time == i]

    def order(t: int) -> list[int]:
        return list(np.argsort(kernels.uniform((3, 2), key.stream(Purpose.SAMPLE, t))[:, 1]))

    public, shape = Key.seeded(seed % 2), (3 * models, 3)
    local, released = without_replacement(
        loss="logistic",
        minibatch=minibatch,
        order=order,
        is_global=lambda t, m, _: controller.choose((3, 1), t, public)[m, 0],
        noise=lambda t, m, k: kernels.gaussian(shape, 1.0, key.stream(Purpose.NOISE, t))[
            m * models + k
        ],
        eta=lambda _: 0.1,
        z=models**0.5 * algorithm.mechanism.noise_to_sensitivity,
        M=3,
        K=models,
        d=3,
        T=steps,
        b=lambda m: sizes[m] / steps,
        L=1.0,
        R=radius or np.inf,
        lam=regularization,
        binary=K is None,
        forgets=True,
    )
    np.testing.assert_allclose(run.parameters, local.reshape(3, -1), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(run.released[0], released.ravel(), rtol=1e-10, atol=1e-10)
    assert run.privacy.epsilon <= 2.0 * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.3, 0.5])
@pytest.mark.parametrize("decisions", ["apart", "together"])
@pytest.mark.parametrize(("public_seed", "seed"), [(0, 4), (0, 16), (1, 1), (2, 3)])
def test_a_run_decides_by_the_coins_of_its_plan(
    rate: float, decisions: Any, public_seed: int, seed: int
) -> None:
    """The noise is for the shares that those coins give: with others it would be too small."""
    algorithm = sgd(
        batch_size=20,
        records=120,
        step_size=0.05,
        controller=RandomGlobal(rate),
        nodes=3,
        decisions=decisions,
        decisions_seed=public_seed,
    )
    problem = make_problem([120, 125, 121], 3, None)
    run = dm.simulate(algorithm, problem, rounds=6, key=Key.seeded(seed), metrics=[])
    by_round: dict[int, set[int]] = {release.round: set() for release in run.ledger.releases}
    for release in run.ledger.releases:
        by_round[release.round] |= set(release.nodes or range(3))
    coins = Key.seeded(public_seed)
    chosen = [RandomGlobal(rate).choose((3, 1), t, coins)[:, 0] for t in range(6)]
    expected = {t: set(np.flatnonzero(nodes)) for t, nodes in enumerate(chosen) if nodes.any()}
    assert by_round == expected
    assert Counter(run.ledger.releases) == Counter(algorithm.plan(6).releases)
    assert not any("not in the algorithm's plan" in text for text in run.privacy.assumptions)


def shares_of(is_global: list[bool]) -> list[float]:
    """The share of the batches whose first release after them each release is, by a loop."""
    shares, waiting = [], 0
    for released in is_global:
        waiting += 1
        if released:
            shares.append(waiting / len(is_global))
            waiting = 0
    return shares


@pytest.mark.slow
@pytest.mark.parametrize(
    ("controller", "copies"), [(RandomGlobal(0.3), 1), (Periodic(3), 1), (AlwaysGlobal(), 2)]
)
def test_noise_is_enough_for_the_shares_of_each_node(controller: Any, copies: int) -> None:
    """Counted one batch after the other, for every copy of a record; hardly more than enough."""
    steps, nodes = 12, 4
    algorithm = sgd(
        epsilon=2.0,
        batch_size=30,
        records=30 * steps,
        step_size=0.05,
        controller=controller,
        nodes=nodes,
        copies=copies,
    )
    chosen = [controller.choose((nodes, 1), t, Key.seeded(0))[:, 0] for t in range(steps)]
    plan, epsilons = algorithm.plan(steps), []
    assert plan.copies == copies
    for node in range(nodes):
        made = [r.sampling for r in plan.releases if node in (r.nodes or (node,))]
        shares = shares_of([bool(decided[node]) for decided in chosen])
        assert [each.shares or (1 / each.rounds,) * each.rounds for each in set(made)] == [
            pytest.approx(tuple(shares))
        ]
        settings: Any = {"shares": shares, "neighboring_relation": "replace_one", "cycles": copies}
        left = algorithm.delta - copies * made[0].failure
        z = algorithm.mechanism.noise_to_sensitivity
        epsilons.append(random_allocation_epsilon(delta=left, noise_to_sensitivity=z, **settings))
    assert 1.9 < max(epsilons) <= 2.0 * (1 + 1e-6)
    assert 1.9 < plan.cost(algorithm.delta).epsilon <= 2.0 * (1 + 1e-6)


@given(
    rate=st.sampled_from([0.2, 0.6]),
    batch=st.integers(3, 12),
    eta=st.floats(1.0, 3.0),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 99),
)
def test_local_steps_expand_as_often_as_batches_are_too_large(
    rate, batch, eta, decay, seed
) -> None:
    """The probability is the sum over the node's local steps, by scipy's binomial."""
    steps, sizes = 8, np.array([8 * batch, 8 * batch + 5])
    allocated = AllocatedPass(
        steps=steps, controller=RandomGlobal(rate), seed=seed, nodes=2, failure=1e-6
    )
    constants = make_problem(sizes.tolist(), 3, None, regularization=decay).model_constants(None)
    etas = [eta * (1 + t % 3 / 10) for t in range(steps)]
    expected = []
    for node, records in enumerate(sizes):
        total = 0.0
        for t in range(steps):
            if not allocated.is_global[t, node * (allocated.is_global.shape[1] > 1)]:
                kappa = constants.smoothness - decay
                room = np.floor(records / steps * (1 / etas[t] - decay) / kappa + 1e-12)
                total += binom.sf(room, records - 1, 1 / steps)
        expected.append(total)
    found = allocated.expansions(sizes, etas, constants)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_an_empty_batch_releases_noise_and_the_record_moves_one_release() -> None:
    """Nothing that is sent depends on the size of a batch, and only one release on a record."""
    sizes, key = [4, 4], Key.seeded(3)
    problem = make_problem(sizes, 3, None)
    times = times_of(0, 4, 4, key)
    empty = next(t for t in range(4) if t not in times)
    for algorithm in (
        online(epsilon=1.0, batch_size=1, records=4),
        sgd(batch_size=1, records=4, step_size=0.1),
    ):
        rounds = 5 if algorithm.communication == "gossip" else 4
        carrier = Gossip(topology.ring(2)) if algorithm.communication == "gossip" else alone
        x = problem.train.features.copy()
        x[problem.partition[0][2]] *= -1
        other = replace(problem, train=replace(problem.train, features=x))
        found = couple(algorithm, problem, other, carrier, rounds=rounds, key=key)
        assert not found.violated, found.faults
        late = int(algorithm.communication == "gossip")
        assert len({m.release.round for m in found.movements if m.distance > 0}) <= 1
        seen: list[Any] = []
        state = algorithm.init(problem, key)
        for t in range(rounds):
            done = one_round(algorithm, state, t, problem, key, carrier, watcher_of(seen))
            state = done.state
        quiet = [each for each in seen if each.release.round == empty + late]
        assert quiet
        assert all((each.noisy != each.inside).all() for each in quiet)


@pytest.mark.slow
def test_clients_take_part_once_in_each_pass() -> None:
    """A pass of 4 rounds is one event of the plan, for adding or removing a client."""
    clients = ClientUpdates(
        clients=30, sampling_rate=0.25, clipping_norm=1.0, sampling="allocation", steps=1
    )
    algorithm = dm.FederatedLearning(clients, noise_multiplier=1.5)
    key = Key.seeded(7)
    cohorts = [clients.cohort(t, key, None) for t in range(8)]
    for passed in (cohorts[:4], cohorts[4:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(passed)), np.arange(30))
    assert any(len(one) != len(other) for one, other in pairwise(cohorts))
    assert not np.array_equal(cohorts[0], cohorts[4])
    problem = make_problem([3] * 30, 2, None)
    run = dm.simulate(algorithm, problem, rounds=8, key=key, delta=1e-4, metrics=[])
    given: Any = {"noise_to_sensitivity": 1.5, "rounds": 4, "neighboring_relation": "add_remove"}
    exact = random_allocation_epsilon(delta=1e-4, cycles=2, **given)
    assert run.privacy.epsilon == pytest.approx(exact, rel=1e-6)
    assert algorithm.plan(5).cost(1e-4) == algorithm.plan(8).cost(1e-4)
    assert "each user is used in one round of 4, a secret one" in str(run.privacy)
    with pytest.raises(ValueError, match="of sums of integers only these are proved"):
        replace(algorithm, combination=SecureAggregation(dim=2, rounds=8))


def test_runs_side_by_side_have_no_checkpoints_in_common() -> None:
    problem = make_problem([6, 6, 6], 2, None)
    repeats = Repeats.deal(problem, 2, key=Key.seeded(1))
    with pytest.raises(ValueError, match="checkpoints are numbers of examples"):
        repeats.simulate(
            online(epsilon=1.0, batch_size=2, records=6),
            topology.ring(3),
            checkpoints=[2],
            key=Key.seeded(1),
        )


def test_a_pass_ends_without_a_tail() -> None:
    """What the last release did not take along is forgotten."""
    problem, key = make_problem([30, 30], 3, None), Key.seeded(4)
    algorithm = sgd(batch_size=5, records=30, step_size=0.1, controller=Periodic(4))
    run = dm.simulate(algorithm, problem, rounds=6, key=key, metrics=[])
    np.testing.assert_array_equal(run.parameters, np.repeat(run.released, 2, axis=0))


test_what_is_not_proved_is_refused = refused(
    (lambda: online(epsilon=1.0), "records: wanted the smallest number .* public"),
    (lambda: online(records=9, delta=0.0), "delta: wanted a positive number .* saves nothing"),
    (lambda: online(records=3, batch_size=4), "records: wanted an integer of at least 4"),
    (lambda: dm.OnlineLearning(records=3), "records: wanted None unless sampling='allocation'"),
    (lambda: sgd(records=500, models=2, decisions="apart"), "decisions: wanted 'together'"),
    (lambda: sgd(records=500, controller=RandomGlobal(0.5)), "nodes: wanted the number of"),
    (lambda: sgd(records=500, arrival_rate=0.5), "sampling: wanted 'arrival', unless"),
    (
        lambda: sgd(records=500, controller=NOISY, decisions="apart"),
        "sampling: wanted 'arrival', unless controller",
    ),
    (lambda: sgd(records=500, calibration="paper"), "sampling: wanted 'arrival', unless"),
    (lambda: sgd(controller=NOISY, sampling="arrival"), "decisions: wanted 'apart'"),
    (lambda: sgd(records=500).plan(11), "rounds: wanted at most 10, in which all records"),
    (
        lambda: online(records=9).init(make_problem([9, 8], 2), Key.seeded(1)),
        "records: wanted at most 8, those of the smallest node, got 9",
    ),
    (
        lambda: sgd(records=8, batch_size=2, controller=Periodic(2), step_size=1.9).init(
            make_problem([8, 8], 2), Key.seeded(1)
        ),
        "step_size: wanted shorter steps or larger batches, so that local steps expand",
    ),
)
