"""A checkpoint serves the run that wrote it, and a key one run: others are refused."""

from __future__ import annotations

import os
import re
from collections import UserDict, deque
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from test_checkpoint import ROUNDS, Node, assert_same, online
from test_simulate import make_problem

import dpmesh as dm
from dpmesh import topology
from dpmesh.run.identity import claim, identity

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
            {"algorithm": dm.GradientDescent(3, 1.0)},
            r"algorithm: wanted OnlineL.*, got GradientDescent\(",
        ),
        ({"network": topology.complete(4)}, "topology: wanted ring"),
        ({"rounds": ROUNDS - 1}, f"rounds: wanted {ROUNDS}, that of the run in the checkpoint"),
        ({"every": 2}, "every: wanted 1"),
        ({"metrics": ["loss"]}, "metrics: wanted"),
        ({"checkpoint_every": 0}, "checkpoint_every: wanted an integer of at least 1, got 0"),
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


def _alike_at_first() -> list[dm.Key]:
    """Return two keys under which all links are up in the first two rounds, and later not."""

    def up(key: dm.Key, round: int) -> int:
        return topology.edge_dropping(topology.ring(4), 0.9, key=key).matrix(round).messages

    keys = map(dm.Key.seeded, range(100))
    alike = [key for key in keys if up(key, 0) == up(key, 1) == 8]
    return [next(key for key in alike if up(key, 2) == links) for links in (8, 6)]


def _third(round: int, *, x: topology.MixingMatrix) -> topology.MixingMatrix:
    return x if round > 1 else topology.ring(4).mixing_matrix


def test_a_run_does_not_go_on_in_another_version(tmp_path, monkeypatch) -> None:
    """Which may give other values for a key, under the noise of those that are out."""
    online(tmp_path / "run")
    monkeypatch.setattr("dpmesh.run.checkpoint.__version__", "99.0")
    with pytest.raises(ValueError, match=r"dpmesh: wanted \d.*, that of the run in .*, got 99\.0$"):
        online(tmp_path / "run")


def test_a_run_does_not_go_on_over_another_network_of_the_same_name(tmp_path) -> None:
    matchings = [topology.random_matchings(4, key=dm.Key.seeded(seed)) for seed in (0, 1)]
    given = [topology.Static(topology.ring(4).mixing_matrix), topology.Static(LAZY)]
    ring, star = topology.ring(4).mixing_matrix, topology.star(4).mixing_matrix
    cycles = [topology.cycle([ring, ring, third]) for third in (ring, star)]
    dropping = [topology.edge_dropping(topology.ring(4), 0.9, key=key) for key in _alike_at_first()]
    seldom = [topology.edge_dropping(base, 1e-9, key=dm.Key.seeded(0)) for base in given]
    own = [topology.Varying(4, lambda t, x=x: x if t > 1 else ring, "own") for x in (ring, star)]
    named = [topology.Varying(4, partial(_third, x=x), "own") for x in (ring, star)]
    for one, other in (matchings, given, cycles, dropping, seldom, own, named):
        online(tmp_path / "run", network=one, metrics=[])
        with pytest.raises(ValueError, match=r"topology: wanted .*, that of the run in the"):
            online(tmp_path / "run", network=other, metrics=[])
        (tmp_path / "run").unlink()


def test_a_key_serves_one_run() -> None:
    """Two at different epsilons have the same noise, but for its scale: together they have none."""
    key = dm.Key.generate()
    with pytest.raises(ValueError, match="topology: wanted 4 nodes"):
        online(key=key, network=topology.ring(5))  # which releases nothing
    first = online(key=key)
    assert_same(online(key=key), first)
    for options, name in (
        ({"algorithm": dm.OnlineLearning(epsilon=4.0)}, "algorithm"),
        ({"network": topology.complete(4)}, "topology"),
    ):
        with pytest.raises(ValueError, match=rf"key: wanted a new one, .* with another {name}"):
            online(key=key, **options)
    claim(other := dm.Key.generate(), {"strategy": "of Flower"})
    with pytest.raises(ValueError, match=r"key: wanted a new one, .* with another algorithm"):
        online(key=other)
    seeded = dm.Key.seeded(7)
    online(key=seeded)
    online(key=seeded, algorithm=dm.OnlineLearning(epsilon=4.0))


def test_a_key_that_is_refused_leaves_no_checkpoint(tmp_path) -> None:
    """With a new one the run would be refused for that file."""
    online(key=(key := dm.Key.generate()))
    other = {"algorithm": dm.OnlineLearning(epsilon=4.0), "metrics": []}
    with pytest.raises(ValueError, match="key: wanted a new one"):
        online(tmp_path / "run", key=key, **other)
    online(tmp_path / "run", key=dm.Key.generate(), **other)


def test_a_key_for_some_nodes_serves_no_run() -> None:
    """With the nodes in another order, what one node sends less what another sent has no noise."""
    online(key=(key := dm.Key.generate()))
    with pytest.raises(ValueError, match="key: wanted one for all nodes, got one that for_nodes"):
        online(key=key.for_nodes(np.array([1, 0, 2, 3], np.uint32)))
    some = (new := dm.Key.generate()).for_nodes(np.arange(4, dtype=np.uint32))
    with pytest.raises(ValueError, match="key: wanted one for all nodes"):
        claim(some, {"strategy": "of Flower"})
    online(key=new)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
@pytest.mark.parametrize("whose", ["its parent's", "its own", "a seeded"])
def test_a_forked_process_takes_no_key_that_others_have(whose: str) -> None:
    """Each knows its own runs only, and two workers' releases would have the same noise."""
    before = dm.Key.seeded(1) if whose == "a seeded" else dm.Key.generate()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            online(key=dm.Key.generate() if whose == "its own" else before)
            os.write(writing, b"it ran")
        except ValueError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        refused = "key: wanted one made in this process, got one from before its fork, .*"
        assert re.fullmatch(refused if whose == "its parent's" else "it ran", told.read())
    online(key=before)


class Records:
    """A problem of a user's own."""

    def __init__(self, x: Any) -> None:
        self.x, self.myself, self.list = x, self, [0]
        self.list.append(self.list)

    @cached_property
    def mean(self) -> float:
        return float(self.x.mean())


class Printed(Records):
    def __repr__(self) -> str:
        return "Printed()"


class Slotted:
    __slots__ = ("__x", "unset")

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.__x = x


@dataclass
class Loaded:
    path: str
    x: Any = field(init=False, repr=False)


def loaded(x: np.ndarray[Any, Any]) -> Loaded:
    problem = Loaded("records.npy")
    problem.x = x
    return problem


@dataclass(frozen=True, eq=False)
class Hidden:
    x: Any = field(repr=False)


@pytest.mark.parametrize(
    "made",
    [
        Records,
        Printed,
        Slotted,
        loaded,
        Hidden,
        lambda x: Hidden([x, {"x": x}]),
        lambda x: Hidden(Slotted(x)),
        lambda x: Records(dm.Dataset(x.reshape(-1, 2), np.ones(len(x) // 2), "mine")),
        lambda x: Hidden(np.array([x.tolist(), "other"], dtype=object)),
        lambda x: Hidden(Records(sparse.csr_matrix(x.reshape(-1, 2)))),
        lambda x: Records(pytest.importorskip("pandas").DataFrame({"x": x, "who": "somebody"})),
        lambda x: Hidden(pytest.importorskip("torch").tensor(x)),
        lambda x: Hidden(pytest.importorskip("torch").tensor(x, requires_grad=True)),
        lambda x: Hidden({"x": pytest.importorskip("jax.numpy").asarray(x)}),
        lambda x: Hidden(Printed(x)),
        lambda x: Hidden(Printed({"x": [x]})),
        lambda x: Hidden(SimpleNamespace(x=x, of=SimpleNamespace(y=x))),
        lambda x: Hidden(MappingProxyType({"x": x})),
        lambda x: Hidden(UserDict(x=x)),
        lambda x: Hidden(deque([x])),
        lambda x: Hidden(partial(np.dot, x)),
    ],
)
def test_records_of_any_problem_tell_runs_apart(made) -> None:
    first, other = np.ones(2000), np.ones(2000)
    other[1000] = 2.0
    one, same, two = (identity(Node(1), made(x), None, None, 1) for x in (first, first + 0, other))
    assert one == same
    assert [name for name in one if one[name] != two[name]] == ["problem"]


def test_what_is_computed_on_the_way_makes_no_other_run() -> None:
    problem = Records(np.ones(3))
    before = identity(Node(1), problem, None, None, 1)
    assert problem.mean == 1
    assert identity(Node(1), problem, None, None, 1) == before


def test_what_prints_itself_is_known_by_that_and_by_the_arrays_that_it_holds() -> None:
    """A logger, say, holds numbers of its process."""
    held = [Printed(x) for x in (1, 2, ["one"], {})]
    assert len({identity(Node(1), Hidden(one), None, None, 1)["problem"] for one in held}) == 1


@pytest.mark.parametrize("last", [1.0, 1 + 1e-12])
def test_long_arrays_tell_runs_apart(last: float) -> None:
    first, other = np.ones(2000), np.ones(2000)
    other[1000] = last
    one, two = (identity(Node(x), Node(x), None, None, 1) for x in (first, other))
    assert (one == two) == (last == 1)


def test_equal_sets_are_told_alike() -> None:
    """In another process their order is another one."""
    sets: list[Any] = [{8, 0}, {0, 8}, {0, 9}]
    assert list(sets[0]) != list(sets[1])
    one, same, other = (identity(Node(1), Hidden(held), None, None, 1) for held in sets)
    assert one == same != other


def test_a_generator_of_numpy_is_told_alike_at_any_place_in_memory() -> None:
    held = [np.random.default_rng(seed) for seed in range(9)]
    told = [identity(Node(1), Hidden(one), None, None, 1)["problem"] for one in held]
    assert len(set(map(repr, held))) == 9
    assert len(set(told)) == 1


class Later:
    """A network of a user's own, which is another one from the third round on."""

    nodes = 4

    def __init__(self, later: topology.MixingMatrix) -> None:
        self.later = later

    def __str__(self) -> str:
        return "own"

    def matrix(self, round: int) -> topology.MixingMatrix:
        return self.later if round > 1 else topology.ring(4).mixing_matrix


def test_networks_of_a_users_own_class_are_told_apart() -> None:
    matrices = [topology.ring(4).mixing_matrix, topology.star(4).mixing_matrix, LAZY]
    own: list[Any] = [Later(matrix) for matrix in matrices]
    over = [topology.edge_dropping(net, 1e-9, key=dm.Key.seeded(0)) for net in own]
    for networks in own, over:
        told = [identity(Node(1), None, net, None, 5)["topology"] for net in networks]
        assert len(set(told)) == 3
        assert identity(Node(1), None, networks[0], None, 5)["topology"] == told[0]


def scaled_by(factor: float, of: str = "step") -> dm.LinearProblem:
    """Return a problem of a class that is defined anew, as by a cell of a notebook."""

    class Scaled(dm.LinearProblem):
        least = factor if of == "value" else 1.0

        def step(self, *given: Any, **options: Any) -> Any:
            return (factor if of == "step" else self.least) * super().step(*given, **options)

        @property
        def half(self) -> float:
            return factor if of == "property" else 1.0

    problem = make_problem(4, ROUNDS)
    return Scaled(problem.train, problem.partition, problem.loss)


@pytest.mark.parametrize("of", ["step", "value", "property"])
def test_problems_of_a_class_that_changed_are_told_apart(of: str) -> None:
    """Their noise under one key is the same, and the difference of what they release has none."""
    key, options = dm.Key.generate(), {"rounds": ROUNDS, "metrics": []}
    algorithm, network = dm.OnlineLearning(1.0), topology.ring(4)
    for _ in range(2):
        dm.simulate(algorithm, scaled_by(1.0, of), network, key=key, **options)
    with pytest.raises(ValueError, match=r"key: wanted a new one, .* another problem"):
        dm.simulate(algorithm, scaled_by(0.5, of), network, key=key, **options)


def test_algorithms_of_a_class_that_changed_are_told_apart() -> None:
    def made(factor: float) -> dm.OnlineLearning:
        class Own(dm.OnlineLearning):
            def absorb(self, *given: Any) -> Any:
                return replace(state := super().absorb(*given), w=factor * state.w)

        return Own(1.0)

    one, same, other = (identity(made(x), None, None, None, 1) for x in (1.0, 1.0, 0.5))
    assert one == same != other


@pytest.mark.parametrize("kind", [lambda made: made, dataclass])
def test_parts_of_a_class_that_changed_are_told_apart(kind: Any) -> None:
    def made(factor: float) -> dm.FederatedLearning:
        class Own:
            def __call__(self, total: Any, t: int) -> Any:
                return factor * total

        return dm.FederatedLearning(4, 0.5, 1.0, 1.0, local_steps=1, estimator=kind(Own)())

    one, same, other = (identity(made(x), None, None, None, 1) for x in (1.0, 1.0, 0.5))
    assert one == same != other


@dataclass(frozen=True, eq=False)
class LoadedBeside(dm.LinearProblem):
    """A problem of ours that loads more than its records."""

    path: str = ""
    weights: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", np.load(self.path))


def test_what_is_loaded_beside_the_records_tells_runs_apart(tmp_path) -> None:
    problem, path = make_problem(4, ROUNDS), tmp_path / "weights.npy"
    told = []
    for weight in (1.0, 1.0, 0.5):
        np.save(path, np.full(3, weight))
        own = LoadedBeside(problem.train, problem.partition, problem.loss, path=str(path))
        told.append(identity(Node(1), own, None, None, 1))
    one, same, other = told
    assert one == same != other
