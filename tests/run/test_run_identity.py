"""A checkpoint serves the run that wrote it alone, and no two runs under one key share noise."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from problems import stream_problem as make_problem
from scipy import sparse
from test_checkpoint import ROUNDS, StoppedError, assert_same, online

import dpmesh as dm
from dpmesh import topology
from dpmesh.run import Gossip
from dpmesh.run.channel import run_rounds
from dpmesh.run.identity import digest, identity

LAZY = topology.MixingMatrix(sparse.csr_array(np.full((4, 4), 0.25)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": dm.OnlineLearning(epsilon=1.0, step_size=0.1)},
            r"algorithm: wanted epsilon=2\.0, step_size=InverseSqrt\(scale=0\.5\), that of the "
            r"run in the checkpoint .*, got epsilon=1\.0, step_size=Constant\(value=0\.1\)$",
        ),
        (
            {"algorithm": dm.GradientDescent(records=3, noise_multiplier=2.0)},
            r"algorithm: wanted OnlineL.*, got GradientDescent\(",
        ),
        ({"network": topology.complete(4)}, "topology: wanted ring"),
        ({"rounds": ROUNDS - 1}, f"rounds: wanted {ROUNDS}, that of the run in the checkpoint"),
        ({"every": 2}, "every: wanted 1"),
        ({"metrics": ["loss"]}, "metrics: wanted"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(options, message, tmp_path) -> None:
    online(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        online(tmp_path / "run", **options)


def test_a_run_does_not_go_on_with_other_data(tmp_path) -> None:
    """The noise of the rounds after the checkpoint would be on both."""
    problem, path = make_problem(4, ROUNDS), tmp_path / "run"
    train, parts = problem.train, problem.partition
    network, key = topology.ring(4), dm.Key.seeded(0)
    x, y = train.features.copy(), train.labels.copy()
    x[parts[3][-1]] *= -1
    y[parts[3][-1]] *= -1
    swapped = (parts[1], parts[0], *parts[2:])
    shifted = (np.append(parts[0], parts[1][:1]), parts[1][1:], *parts[2:])
    others = [
        replace(problem, train=dm.Dataset(x, train.labels, train.name)),
        replace(problem, train=dm.Dataset(train.features, y, train.name)),
        replace(problem, train=dm.Dataset(sparse.csr_array(x), train.labels, train.name)),
        replace(problem, partition=swapped),
        replace(problem, partition=shifted),
        replace(problem, loss="hinge"),
        replace(problem, regularization=0.1),
    ]

    def go(learned: dm.LinearProblem) -> dm.Run:
        algorithm = dm.OnlineLearning(epsilon=2.0)
        return dm.simulate(
            algorithm, learned, network, rounds=ROUNDS - 1, key=key, metrics=[], checkpoint=path
        )

    go(problem)
    for other in others:
        with pytest.raises(ValueError, match=r"problem: wanted that of the run in .*, got another"):
            go(other)
    go(replace(problem, test=None))


def test_a_run_does_not_go_on_in_another_version(tmp_path, monkeypatch) -> None:
    """Which may give other values for a key, under the noise of those that are out."""
    online(tmp_path / "run")
    monkeypatch.setattr("dpmesh.run.checkpoint.__version__", "99.0")
    with pytest.raises(ValueError, match=r"dpmesh: wanted \d.*, that of the run in .*, got 99\.0$"):
        online(tmp_path / "run")


def test_a_run_does_not_go_on_over_another_network_of_the_same_name(tmp_path) -> None:
    matchings = [topology.random_matchings(4, key=dm.Key.seeded(seed)) for seed in (0, 1)]
    given = [topology.Static(topology.ring(4).mixing_matrix), topology.Static(LAZY)]
    for one, other in (matchings, given):
        online(tmp_path / "run", network=one, metrics=[])
        with pytest.raises(ValueError, match=r"topology: wanted .*, that of the run in the"):
            online(tmp_path / "run", network=other, metrics=[])
        (tmp_path / "run").unlink()


def noise(key: dm.Key, epsilon: float = 1e-9) -> np.ndarray[Any, Any]:
    """The noise of a run's second round, beside which its models are small, over its length."""
    problem, ring = replace(make_problem(4, ROUNDS), feature_norm=10.0), topology.ring(4)
    run = dm.simulate(
        dm.OnlineLearning(epsilon=epsilon), problem, ring, rounds=2, key=key, metrics=[]
    )
    released: np.ndarray[Any, Any] = run.released
    return released / np.linalg.norm(released)


def has_equal_rows(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether a node's five values are equal; by chance, with a probability below 1e-20."""
    return bool(np.isclose(one, other).all(axis=1).any())


def test_two_runs_under_one_key_have_different_noise() -> None:
    """At any epsilon; otherwise the difference of their releases would have none."""
    key = dm.Key.generate()
    assert not has_equal_rows(noise(key), noise(key))
    assert not has_equal_rows(noise(key), noise(key, 2e-9))
    seeded = dm.Key.seeded(1)
    np.testing.assert_allclose(noise(seeded), noise(seeded, 2e-9), rtol=1e-6)  # to be compared


def test_two_runs_without_measurements_have_different_noise() -> None:
    key, problem = dm.Key.generate(), make_problem(4, ROUNDS)
    settings: Any = {"rounds": 2, "key": key}

    def messages() -> np.ndarray[Any, Any]:
        carrier = Gossip(topology.ring(4))
        *_, last = run_rounds(dm.OnlineLearning(epsilon=1e-9), problem, carrier, **settings)
        return np.asarray(last.state.w)

    assert not has_equal_rows(messages(), messages())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_run_has_noise_of_its_own() -> None:
    key = dm.Key.generate()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, noise(key).tobytes())
        finally:
            os._exit(0)
    os.close(writing)
    mine = noise(key)
    with os.fdopen(reading, "rb") as pipe:
        of_child = np.frombuffer(pipe.read()).reshape(mine.shape)
    os.waitpid(child, 0)
    assert not has_equal_rows(mine, of_child)


def test_a_run_resumes_to_the_same_bits_under_a_saved_key(tmp_path) -> None:
    """The salt of a run is in its checkpoint: a copy of it made midway leads to the same end."""
    dm.Key.generate().save(tmp_path / "key")
    with pytest.raises(StoppedError):
        online(tmp_path / "run", 5, key=dm.Key.load(tmp_path / "key"))
    (tmp_path / "copy").write_bytes((tmp_path / "run").read_bytes())
    one, other = (
        online(tmp_path / name, key=dm.Key.load(tmp_path / "key")) for name in ("run", "copy")
    )
    assert_same(one, other)
    assert "seeded" not in str(one.privacy)
    fresh = online(key=dm.Key.load(tmp_path / "key"))
    assert fresh.released.tobytes() != one.released.tobytes()


def test_an_uninterrupted_run_has_the_bits_of_a_resumed_one(tmp_path, monkeypatch) -> None:
    key = dm.Key.generate()
    monkeypatch.setattr("secrets.token_hex", lambda length: "5a" * length)
    with pytest.raises(StoppedError):
        online(tmp_path / "run", 5, key=key)
    whole = online(key=key)
    monkeypatch.undo()
    assert_same(online(tmp_path / "run", key=key), whole)


@pytest.mark.parametrize("change", ["data", "settings", "key"])
def test_another_run_is_refused_under_a_saved_key_by_name(change: str, tmp_path) -> None:
    dm.Key.generate().save(tmp_path / "key")
    with pytest.raises(StoppedError):
        online(tmp_path / "run", 5, key=dm.Key.load(tmp_path / "key"), metrics=[])
    before = (tmp_path / "run").read_bytes()
    problem = replace(make_problem(4, ROUNDS), feature_norm=10.0)
    algorithm, key = dm.OnlineLearning(epsilon=2.0), dm.Key.load(tmp_path / "key")
    if change == "data":
        labels = problem.train.labels * np.where(np.arange(problem.train.records) == 7, -1, 1)
        problem = replace(problem, train=dm.Dataset(problem.train.features, labels, "synthetic"))
    elif change == "settings":
        algorithm = dm.OnlineLearning(epsilon=4.0)
    else:
        key = dm.Key.generate()
    named = {"data": "problem: wanted that of", "settings": "algorithm: wanted epsilon=2.0, that"}
    options: dict[str, Any] = {"rounds": ROUNDS, "metrics": dm.Metrics([], every=1)}
    with pytest.raises(ValueError, match=named.get(change, "key: wanted that of the run in the")):
        dm.simulate(
            algorithm, problem, topology.ring(4), key=key, checkpoint=tmp_path / "run", **options
        )
    assert (tmp_path / "run").read_bytes() == before


@dataclass(frozen=True)
class Records:
    """A problem of a user's own."""

    x: Any = field(repr=False)
    more: Any = None


@pytest.mark.parametrize("held", [lambda x: x, lambda x: (1, [x]), sparse.csr_array, Records])
def test_the_digest_of_a_problem_changes_with_each_record(held: Any) -> None:
    x = np.ones((1000, 2))
    other = x.copy()
    other[500, 1] = 1 + 1e-12
    assert digest(Records(held(x))) == digest(Records(held(x.copy())))
    assert digest(Records(held(x))) != digest(Records(held(other)))
    assert digest(Records(x, more=1)) != digest(Records(x, more=2))
    assert digest(Records(x)) != digest(Records(x.astype(np.float32)))


def test_a_network_that_differs_in_a_later_round_alone_is_another() -> None:
    """Resumed on it, nodes would send other values with the noise that they had before."""
    complete, ring = (graph(4).matrix(0) for graph in (dm.topology.complete, dm.topology.ring))
    one, other = (dm.topology.cycle([complete] * 6 + [last]) for last in (complete, ring))
    problem = make_problem()
    settings = [identity(dm.OnlineLearning(), problem, graph, None, 8) for graph in (one, other)]
    assert settings[0] != settings[1]
