"""Runs whose noise works together: what is drawn, charged, reported and kept."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from one_round import Stage
from read_back import read_back

import dpmesh as dm
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms import Message, QuantizedGossip
from dpmesh.audit.transcript import alone, record
from dpmesh.noise import Sensitivity, correlated
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.privacy import Budget, OverBudget, Release, UnplannedRelease, total_cost, views
from dpmesh.run import Gossip
from dpmesh.run.noise import NoiseRows
from dpmesh.schedules import PowerLaw

NODES, ROUNDS, DELTA = 5, 6, 1e-5
RING = dm.topology.ring(NODES)
MU = 1 / dm.OnlineLearning(epsilon=1.0, delta=DELTA).mechanism.noise_to_sensitivity
KEY = dm.Key.seeded(3)

IN_TIME = correlated.InTime(topology=RING, rounds=ROUNDS, bands=3)
PARTNERS = correlated.BetweenPartners(topology=RING, rounds=ROUNDS, mixings=2, coalition=1)
BOTH = correlated.Both(topology=RING, rounds=ROUNDS, mixings=2, coalition=1)
SHUFFLED = dm.topology.shuffled(RING, key=dm.Key.seeded(1))
CHANGING, CHANGING_PARTNERS = replace(BOTH, topology=SHUFFLED), replace(PARTNERS, topology=SHUFFLED)
STRATEGIES = {"in time": IN_TIME, "partners": PARTNERS, "both": BOTH, "both, changing": CHANGING}
each = pytest.mark.parametrize("noise", STRATEGIES.values(), ids=STRATEGIES)


def descent(noise: Any, batches: int = 1) -> dm.GradientDescent:
    uses = -(-(ROUNDS - 1) // batches)
    return dm.GradientDescent(
        records=ROUNDS,
        noise_multiplier=2 * (sqrt(uses) / MU),
        step_size=0.3,
        batches=batches,
        noise=noise,
    )


def problem(dim: int = 3, seed: int = 0) -> dm.LinearProblem:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(NODES * ROUNDS, dim))
    train = dm.Dataset(rows / np.linalg.norm(rows, axis=1)[:, None], rng.choice([-1, 1], len(rows)))
    return dm.LinearProblem(train, np.split(np.arange(len(rows)), NODES), "logistic")


def online(noise: Any, **changes: Any) -> dm.OnlineLearning:
    settings = {"epsilon": 1.0, "delta": DELTA, "step_size": 0.3, "projection": "mixture"}
    return dm.OnlineLearning(**(settings | changes), noise=noise)


def simulate(algorithm: Any, rounds: int = ROUNDS, **options: Any) -> dm.Run:
    return dm.simulate(algorithm, problem(), RING, rounds=rounds, key=KEY, delta=DELTA, **options)


def noise_of(algorithm: Any, dim: int = 400) -> np.ndarray:
    """The noise of every row of a run, shape (rows, nodes, dim)."""
    run = record(algorithm, problem(dim), Gossip(RING), rounds=ROUNDS, key=KEY)
    return np.stack([passage.noisy - passage.inside for passage in run.passages[1:]])


ALGORITHMS = {name: online(noise) for name, noise in STRATEGIES.items()} | {
    "descent, partners": descent(PARTNERS),
    "descent on batches, both": descent(BOTH, 2),
    "descent on batches, in time": descent(IN_TIME, 3),
}
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


@each_algorithm
def test_the_messages_of_a_run_carry_the_noise_of_the_plan(algorithm: Any) -> None:
    """Read back from the run's own streams: S C^-1 times own and shared amplitudes."""
    joint = algorithm.release_of(1).mechanism.joint
    audit = read_back(noise_of(algorithm), KEY, correlated.CorrelatedNoise(release=joint))
    assert audit.violations(tolerance=1e-6) == []
    assert audit.error < 1e-9
    assert joint.mu == pytest.approx(MU, rel=1e-9)


@each
def test_a_run_costs_its_epsilon_and_names_against_whom(noise: Any) -> None:
    report = simulate(online(noise)).privacy
    claimed = simulate(online(noise)).ledger.cost(
        DELTA, view=views.EverybodyButPartners(coalition=1)
    )
    assert claimed.epsilon == pytest.approx(1.0, rel=1e-6)
    if noise is IN_TIME:
        assert report.epsilon == pytest.approx(1.0, rel=1e-6)
        assert report.view is None
        assert claimed.reason == "partners share no secrets in this run"
        return
    joint = online(noise).release_of(1).mechanism.joint
    if noise is not CHANGING:
        assert joint.mu_against_partners == pytest.approx(MU / joint.secrets.own)
    against_all = gdp_epsilon(delta=DELTA, mu=joint.mu_against_partners)
    assert report.epsilon == pytest.approx(against_all, rel=1e-6)
    text = (
        "an adversary who sees all messages and colludes with up to 1 node, but sees no noise that "
        "two other nodes share"
    )
    assert report.view == f"epsilon = 1 against {text}"
    assert any("link partners keep the noise" in line for line in report.assumptions)


def test_a_larger_coalition_than_planned_for_costs_more() -> None:
    plan = online(PARTNERS).plan(ROUNDS)
    costs = [
        plan.cost(DELTA, view=views.EverybodyButPartners(coalition=c)).epsilon for c in range(4)
    ]
    assert costs == sorted(costs)
    assert costs[2] > costs[1] * 1.1
    assert costs[3] <= plan.cost(DELTA).epsilon * (1 + 1e-9)


@each_algorithm
@pytest.mark.parametrize("rounds", [2, 4])
def test_a_run_that_stops_early_is_charged_for_what_it_released(
    algorithm: Any, rounds: int
) -> None:
    ledger = simulate(algorithm, rounds).ledger
    assert ledger == algorithm.plan(rounds)
    joint = algorithm.release_of(1).mechanism.joint.prefix(rounds - 1)
    cost = ledger.cost(DELTA, view=views.EverybodyButPartners(coalition=1)).epsilon
    assert cost == pytest.approx(gdp_epsilon(delta=DELTA, mu=joint.mu), rel=1e-6)
    assert cost <= algorithm.plan(ROUNDS).cost(DELTA).epsilon * (1 + 1e-9)


def test_a_record_is_charged_for_its_column_and_nothing_twice() -> None:
    """The first column of a banded C is the longest of a run that stops; runs add."""
    matrix = np.eye(3) + np.diag([0.5, 0.5], -1)
    joint = correlated.CorrelatedGaussian(
        noise_to_sensitivity=2.0, factorization=correlated.from_matrix(matrix)
    )
    one = Sensitivity(1.0, "l2", "given")

    def plan(*batches: int | None) -> Any:
        releases = [
            Release(t + 1, CorrelatedRow.of(joint, t), one, batch=batch)
            for t, batch in enumerate(batches)
        ]
        return online(None).plan(1).with_releases(releases)

    def mu(plan: Any) -> float:
        return sqrt(sum(r.noise_to_sensitivity**-2 for r in plan.compositions()[0]))

    assert mu(plan(0, 1, 2)) == pytest.approx(sqrt(1.25) / 2)
    assert mu(plan(0)) == pytest.approx(1 / 2)
    every_round = np.abs(matrix.T @ matrix).sum()
    assert mu(plan(None, None, None)) == pytest.approx(sqrt(every_round) / 2)
    assert mu(plan(0, 1, 0)) == pytest.approx(sqrt(1.25 + 1.0) / 2)
    twice = total_cost([plan(0, 1, 2), plan(0, 1, 2)], DELTA).epsilon
    assert twice == pytest.approx(gdp_epsilon(delta=DELTA, mu=sqrt(2.5) / 2), rel=1e-6)


def test_a_release_beyond_its_plan_is_refused() -> None:
    joint = online(IN_TIME).release_of(1).mechanism.joint
    more = Release(1, CorrelatedRow.of(joint, 0), Sensitivity(0.7, "l2", "given"), batch=0)
    with pytest.raises(ValueError, match="sensitivity: wanted at most"):
        online(None).plan(1).with_releases([more]).cost(DELTA)
    with pytest.raises(ValueError, match=f"rounds: wanted no more than the {ROUNDS - 1} rows"):
        online(IN_TIME).plan(ROUNDS + 1)


def test_rows_are_released_in_order_and_each_once() -> None:
    algorithm, values = online(IN_TIME), np.ones((NODES, 3))

    def release_of(row: int, t: int) -> Release:
        return replace(algorithm.release_of(row + 1), round=t)

    stage = Stage(NODES, planned=(release_of(1, 0), release_of(0, 1), release_of(1, 1)))

    def send(*rows: int) -> Any:
        def script(state: Any, t: int) -> Any:
            for row in rows:
                yield Message(values, release_of(row, t))

        return script

    with pytest.raises(ValueError, match="release: wanted row 0 of the correlated noise"):
        stage.run(send(1))
    with pytest.raises(ValueError, match="correlated noise in one message of all nodes"):
        stage.run(send(0, 1))
    with pytest.raises(UnplannedRelease, match="round 2: the plan has no such release"):
        stage.run(send(2))
    assert len(stage.passages) == 1


@pytest.mark.parametrize("grid", [None, 2.0**-10])
def test_a_process_draws_the_rows_of_its_own_nodes(grid: float | None) -> None:
    joint = online(replace(IN_TIME, grid=grid)).release_of(1).mechanism.joint
    some = np.array([3, 4])
    everywhere, here = NoiseRows(None, NODES, KEY), NoiseRows(some, NODES, KEY)
    values = np.random.default_rng(0).normal(size=(NODES, 4))
    for t in range(1, 4):
        row = CorrelatedRow.of(joint, t - 1)
        whole = everywhere.draw(KEY, row, t, values)
        part = here.draw(KEY, row, t, values[some])
        np.testing.assert_array_equal(whole[some], part)
        for rows in (everywhere, here):
            rows.recall(rows.memory | rows.in_round)


@pytest.mark.parametrize(
    "algorithm",
    [*ALGORITHMS.values(), online(replace(BOTH, grid=2.0**-10))],
    ids=[*ALGORITHMS, "both, on a grid"],
)
def test_a_resumed_run_has_the_same_bits(algorithm: Any, tmp_path: Any) -> None:
    whole = simulate(algorithm)

    class StoppedError(Exception):
        pass

    def stop(t: int, values: Any) -> None:
        if t == 3:
            raise StoppedError

    path = tmp_path / "run"
    saved = dm.Checkpoint(path, every=1)
    with pytest.raises(StoppedError):
        simulate(algorithm, checkpoint=saved, metrics=dm.Metrics(every=1, callback=stop))
    resumed = simulate(algorithm, checkpoint=saved, metrics=dm.Metrics(every=1))
    assert resumed.released.tobytes() == whole.released.tobytes()
    assert resumed.ledger == whole.ledger
    with pytest.raises(ValueError, match="checkpoint"):
        simulate(replace(algorithm, noise=None), checkpoint=path)


def test_a_budget_counts_the_run_once_and_sees_partners_only_if_asked() -> None:
    but_partners = views.EverybodyButPartners(coalition=1)
    run = simulate(online(BOTH), budget=Budget(1.0, delta=DELTA, view=but_partners))
    assert run.privacy.view is not None
    with pytest.raises(OverBudget, match="which cost epsilon"):
        simulate(online(BOTH), budget=Budget(1.0, delta=DELTA))
    assert simulate(online(IN_TIME), budget=Budget(1.0, delta=DELTA)).ledger.releases


def test_several_mixings_are_counted_in_the_traffic() -> None:
    once, twice = simulate(online(IN_TIME)).traffic, simulate(online(BOTH)).traffic
    assert twice.bits == 2 * once.bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "noise: wanted None, or norm='l2' and a positive delta"),
        ({"norm": "l1"}, "noise: wanted None, or norm='l2' and a positive delta"),
        ({"noise": 3}, "noise: wanted correlated.InTime"),
    ],
)
def test_what_is_not_proved_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(online(IN_TIME), **change)


def test_correlation_in_time_is_refused_where_it_buys_nothing() -> None:
    for noise in (IN_TIME, BOTH):
        with pytest.raises(ValueError, match="buys nothing where every round uses all records"):
            descent(noise)
    with pytest.raises(ValueError, match=r"noise: wanted .*BetweenPartners"):
        descent(3)
    with pytest.raises(ValueError, match="noise: wanted noise made for mixings=3, got 2"):
        dm.GradientDescent(records=ROUNDS, noise_multiplier=2.0, mixings=3, noise=PARTNERS)


def groups_in_turn(
    noise: Any, rate: float = 0.5, sampling: Any = "cyclic", grid: float | None = None
) -> dm.FederatedLearning:
    return dm.FederatedLearning(
        dm.ClientUpdates(
            clients=NODES, sampling_rate=rate, clipping_norm=1.0, sampling=sampling, steps=1
        ),
        noise_multiplier=2.0,
        combination=dm.algorithms.TrustedServer(grid=grid),
        noise=noise,
    )


def test_a_server_correlates_its_noise_over_groups_in_turn() -> None:
    """Every client is in every second of 6 rounds: 3 turns."""
    server = correlated.InTime(topology=None, rounds=ROUNDS)
    mu = sqrt(3) / 2
    for noise in (None, server):
        algorithm = groups_in_turn(noise)
        cost = algorithm.plan(ROUNDS).cost(DELTA).epsilon
        assert cost == pytest.approx(gdp_epsilon(delta=DELTA, mu=mu), rel=1e-6)
        run = dm.simulate(algorithm, problem(), rounds=ROUNDS, key=KEY, delta=DELTA)
        assert run.ledger == algorithm.plan(ROUNDS)
    assert server.mixed_noise(uses=3, separation=2) < 0.9 * sqrt(3 * (ROUNDS + 1) / 2)
    run = record(algorithm, problem(60), alone, rounds=ROUNDS, key=KEY)
    noise = np.stack([passage.noisy - passage.inside for passage in run.passages])
    joint = algorithm.release_of(0).mechanism.joint
    plan = correlated.CorrelatedNoise(release=joint, first_round=0)
    assert read_back(noise, KEY, plan, claim=mu).violations(tolerance=1e-6) == []
    members = [algorithm.contribution.cohort(t, KEY, None).tolist() for t in range(3)]
    assert members == [[0, 2, 4], [1, 3], [0, 2, 4]]


def test_nodes_that_are_offline_leave_residues_and_change_no_cost() -> None:
    """Their secrets stay in the messages of their partners; nobody removes or resends them."""
    failing = dm.Network(offline=0.4)
    whole, part = simulate(online(BOTH)), simulate(online(BOTH), engine=failing)
    assert part.ledger == whole.ledger
    assert part.privacy == whole.privacy
    assert (part.released != whole.released).any()


def test_a_record_at_two_nodes_is_charged_without_help_of_secrets() -> None:
    twice = replace(online(BOTH).plan(ROUNDS), copies=2)
    own = BOTH.secrets((1.0,) * (ROUNDS - 1)).own
    cost = twice.cost(DELTA, view=views.EverybodyButPartners(coalition=1)).epsilon
    assert cost == pytest.approx(gdp_epsilon(delta=DELTA, mu=sqrt(2) * MU / own), rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "partners"),
    [("safe", PARTNERS), ("public_point", PARTNERS), ("safe", CHANGING_PARTNERS)],
)
def test_quantized_messages_carry_the_secrets_of_partners(mode: Any, partners: Any) -> None:
    quiet = QuantizedGossip(
        step_size=0.1,
        consensus_step_size=0.5,
        sample_size=2,
        noise_std=PowerLaw(scale=0.3, exponent=0.2),
        mode=mode,
    )
    algorithm = replace(quiet, noise=replace(partners, mixings=1))
    claimed = algorithm.plan(ROUNDS).cost(DELTA, view=views.EverybodyButPartners(coalition=1))
    assert claimed.epsilon == pytest.approx(quiet.plan(ROUNDS).cost(DELTA).epsilon, rel=1e-6)
    joint = algorithm.release_of(1).mechanism.joint
    plan = correlated.CorrelatedNoise(release=joint)
    audit = read_back(noise_of(algorithm), KEY, plan, claim=joint.mu)
    assert audit.violations(tolerance=1e-6) == []
    for noise in (IN_TIME, PARTNERS):
        with pytest.raises(ValueError, match="with one mixing, and no grid= but"):
            replace(quiet, noise=noise)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": "poisson"}, "not proved for random cohorts"),
        ({"rate": 1.0}, "has no benefit if all clients take part"),
        ({"grid": 2.0**-16}, "no grid= but that of the noise"),
        ({"noise": IN_TIME}, "noise: wanted noise for a server, with topology=None"),
    ],
)
def test_a_server_refuses_what_is_not_proved(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        groups_in_turn(**{"noise": correlated.InTime(topology=None, rounds=ROUNDS), **change})


def test_batches_follow_each_other() -> None:
    """Without noise on a complete graph: two steps along the means of each half in turn."""
    data, halves = problem(), np.arange(ROUNDS).reshape(2, -1)
    quiet = dm.GradientDescent(records=ROUNDS, noise_multiplier=None, step_size=0.3, batches=2)
    run = dm.simulate(
        quiet, data, dm.topology.complete(NODES), rounds=4, key=KEY, delta=DELTA, metrics=[]
    )
    x = np.zeros((NODES, data.dim))
    for t in range(4):
        b = np.repeat(x.mean(axis=0, keepdims=True), NODES, axis=0)
        records = np.stack([np.asarray(part)[halves[t % 2]] for part in data.partition])
        x = b - 0.3 * data.gradient(b, records, clipping_norm=1.0)
    np.testing.assert_allclose(run.parameters, x, atol=1e-12)


def test_a_view_of_one_node_is_that_of_everybody() -> None:
    plan = online(IN_TIME).plan(ROUNDS, problem())
    against = plan.cost(DELTA, view=views.OneNode(topology=RING))
    assert against.reason == "views of single nodes are proved for independent noise only"
    assert against.epsilon == plan.cost(DELTA).epsilon


def test_a_coalition_that_cuts_the_graph_and_a_server_have_no_secrets() -> None:
    cut = correlated.BetweenPartners(topology=RING, rounds=ROUNDS, coalition=2)
    with pytest.raises(ValueError, match="coalition: wanted a graph of secrets that no such"):
        online(cut).plan(ROUNDS)
    everybody = replace(cut, partners=dm.topology.complete(NODES))
    assert online(everybody).plan(ROUNDS).cost(DELTA).epsilon > 1
    with pytest.raises(ValueError, match="topology: linked nodes share noise that cancels"):
        correlated.BetweenPartners(topology=None, rounds=ROUNDS)
