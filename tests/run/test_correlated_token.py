"""Noise in time for a token: each node takes back part of the noise of its own updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from one_round import Stage
from read_back import read_back, replayed

import dpmesh as dm
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms import Message
from dpmesh.algorithms.controllers import AlwaysGlobal, RandomGlobal
from dpmesh.audit import couple
from dpmesh.audit.scores import rows_of
from dpmesh.audit.transcript import alone, record
from dpmesh.noise import correlated
from dpmesh.privacy import UnplannedRelease
from dpmesh.run.noise import NoiseRows

NODES, ROUNDS, BATCH, DELTA, KEY = 3, 4, 2, 1e-5, dm.Key.seeded(4)
NOISE = correlated.InTime(topology=None, rounds=ROUNDS)


def token(**changes: Any) -> dm.WithoutReplacement:
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": DELTA,
        "batch_size": BATCH,
        "controller": AlwaysGlobal(),
        "clipping_norm": 1.0,
        "noise": NOISE,
    }
    return dm.WithoutReplacement(**(settings | changes))


def problem(dim: int = 3) -> dm.LinearProblem:
    """The last node has records for 3 of 4 rounds."""
    rows = np.random.default_rng(0).normal(size=(BATCH * (ROUNDS * NODES - 1), dim))
    train = dm.Dataset(rows / np.linalg.norm(rows, axis=1)[:, None], np.sign(rows[:, 0]))
    ends = [BATCH * ROUNDS * (node + 1) for node in range(NODES - 1)]
    return dm.LinearProblem(train, np.split(np.arange(len(rows)), ends), "logistic")


def noise_of(algorithm: dm.WithoutReplacement, dim: int) -> np.ndarray:
    """The noise of every node's update of every round in units of its sensitivity, 0 if none."""
    passages = record(algorithm, problem(dim), alone, rounds=ROUNDS, key=KEY).passages
    assert len(passages) == NODES * ROUNDS - 1
    indices = range(len(passages))
    return np.stack(rows_of(passages, lambda i: passages[i].noisy - passages[i].inside, indices))


def of_another_node(
    self: Any, key: Any, mechanism: Any, t: int, values: Any, rows: Any, among: int
) -> Any:
    """A planted mistake: nodes take back the noise of somebody else."""
    if not hasattr(self, "kept") or self.kept[0] != t:
        whole = np.broadcast_to(values[:1], (self._total, len(values[0])))
        self.kept = t, self.draw(key, mechanism, t, whole)
    return self.kept[1][(rows + t) % self._total]


@pytest.mark.parametrize("fault", [False, True])
def test_updates_carry_the_noise_of_the_plan(fault: bool, monkeypatch: Any) -> None:
    algorithm, joint = token(), token().release_of(0).mechanism.joint
    if fault:
        monkeypatch.setattr(NoiseRows, "draw_some", of_another_node)
    noise = noise_of(algorithm, 60)
    silent = noise[-1, -1].copy()
    assert not silent.any()
    plan = correlated.CorrelatedNoise(release=joint, first_round=0)
    state = replayed(plan, KEY, ROUNDS - 1, range(NODES), 60)
    noise[-1, -1] = plan.draw(KEY, state)[0][-1]  # of the node whose records ran out
    assert bool(read_back(noise, KEY, plan).violations(tolerance=1e-6)) == fault


def test_a_run_costs_its_epsilon_however_long_and_with_copies() -> None:
    for copies in (1, 2):
        run = dm.simulate(token(copies=copies), problem(), rounds=ROUNDS, key=KEY, delta=DELTA)
        assert run.ledger == token(copies=copies).plan(ROUNDS)
        assert run.privacy.epsilon == pytest.approx(1.0, rel=1e-6)
    joint = token().release_of(0).mechanism.joint
    early = gdp_epsilon(delta=DELTA, mu=joint.prefix(2).mu)
    assert token().plan(2).cost(DELTA).epsilon == pytest.approx(early, rel=1e-6)
    assert early <= 1 + 1e-9


def test_a_resumed_run_has_the_same_bits(tmp_path: Any) -> None:
    settings = {"key": KEY, "delta": DELTA}
    whole = dm.simulate(token(), problem(), rounds=ROUNDS, **settings)
    saved = dm.Checkpoint(tmp_path / "run", every=1)

    def stop(t: int, values: Any) -> None:
        if t == 2:
            raise KeyError

    stopped = dm.Metrics(every=1, callback=stop)
    with pytest.raises(KeyError):
        dm.simulate(
            token(), problem(), rounds=ROUNDS, checkpoint=saved, metrics=stopped, **settings
        )
    again = dm.simulate(
        token(), problem(), rounds=ROUNDS, checkpoint=saved, metrics=dm.Metrics(every=1), **settings
    )
    assert again.released.tobytes() == whole.released.tobytes()


def test_coupled_runs_move_no_further_than_planned() -> None:
    train = problem().train
    other = train.features.copy()
    other[0] *= -1
    neighbor = dm.LinearProblem(
        dm.Dataset(other, train.labels), problem().partition, problem().loss
    )
    coupling = couple(token(), problem(), neighbor, alone, rounds=ROUNDS)
    assert not coupling.violated, str(coupling)
    assert sum(movement.distance > 0 for movement in coupling.movements) == 1


def test_a_row_of_a_node_is_released_once() -> None:
    release, values = token().release_of(0), np.ones((1, 3))

    def twice(state: Any, t: int) -> Any:
        for _ in range(2):
            yield Message(values, release, sender=1, rows=np.array([1]), row_count=1)

    with pytest.raises(ValueError, match="correlated noise in one message of all nodes a round"):
        Stage(NODES, planned=(release, release)).run(twice)
    with pytest.raises(UnplannedRelease, match="or has it less often"):
        Stage(NODES, planned=(release,)).run(twice)


@pytest.mark.parametrize(
    "change",
    [
        {"controller": RandomGlobal(0.5), "clipping_norm": None},
        {"arrival_rate": 0.5},
        {"calibration": "classical"},
        {"noise": replace(NOISE, grid=2.0**-9)},
        {"noise": correlated.InTime(topology=dm.topology.ring(NODES), rounds=ROUNDS)},
    ],
)
def test_what_is_not_planned_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="noise: wanted"):
        token(**change)
