"""No two releases of a run have the same noise: their difference would have none."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import kernels
from dpmesh.keys import Key, Purpose
from dpmesh.privacy import Gaussian, Laplace, Plan, Sensitivity
from dpmesh.privacy.audit import alone, couple
from dpmesh.privacy.compression import Quantizer
from dpmesh.privacy.door import drawn_once
from dpmesh.run import Repeats

ONE = Sensitivity(1.0, "l1", "a test")
NODES, ROUNDS = 4, 6
KEY = Key.seeded(0)


def own(nodes: list[int]) -> Key:
    return KEY.for_nodes(np.array(nodes, np.uint32))


@dataclass(frozen=True)
class Again(dm.OnlineLearning):
    """Releases its parameters once more in a round, by a stream of its choice."""

    stream: Callable[[Key, int], dm.keys.Stream] = lambda key, t: key.stream(Purpose.NOISE, t)
    nodes: tuple[int, ...] | None = None
    tells: Callable[[int], int] = lambda t: t
    first: int = 0

    def plan(self, rounds: int) -> Plan:
        more = (Laplace(1.0).planned(self.tells(t), ONE) for t in range(rounds))
        once = super().plan(rounds)
        return once.with_releases((*once.releases, *more))

    def step(self, state, round, problem, exchange, key):
        after, info = super().step(state, round, problem, exchange, key)
        if round < self.first:
            return after, info
        rows = state.w if self.nodes is None else state.w[list(self.nodes)]
        stream = self.stream(key, round)
        more = Laplace(1.0).release(rows, ONE, stream, round=self.tells(round), nodes=self.nodes)
        return after, replace(info, releases=(*info.releases, more.release))


def problem() -> dm.LinearProblem:
    features = np.random.default_rng(0).normal(size=(NODES * ROUNDS, 3)) / 4
    train = dm.Dataset(features, np.sign(features[:, 0]).astype(np.int64), "small")
    return dm.LinearProblem(train, np.arange(len(features)).reshape(NODES, -1), "hinge")


def run(algorithm: dm.OnlineLearning, **options) -> dm.Run:
    ring = dm.topology.ring(NODES)
    return dm.simulate(algorithm, problem(), ring, rounds=ROUNDS, **({"key": KEY} | options))


AGAIN = re.escape(
    "stream: wanted one for each release, such as key.stream(1000, 1) for a second one, "
    "got that of Purpose.NOISE in round 1 again"
)


def test_what_is_at_stake() -> None:
    """Outside a run nobody remembers: the difference of two such releases shows the data."""
    noise, data = KEY.stream(Purpose.NOISE, 1), np.array([[0.25, 0.5]])
    first, second = (Laplace(1.0).release(x, ONE, noise, round=1).values for x in (data, 0 * data))
    np.testing.assert_allclose(first - second, data, atol=1e-12)


@pytest.mark.parametrize(
    "run_it",
    [
        run,
        lambda algorithm: run(algorithm, key=Key.generate()),
        lambda algorithm: Repeats.deal(problem(), 2, key=KEY).simulate(
            algorithm, dm.topology.ring(NODES), at=[ROUNDS], key=KEY
        ),
        lambda algorithm: couple(algorithm, problem(), problem(), alone, rounds=ROUNDS, key=KEY),
    ],
    ids=["seeded", "private", "repeats", "audit"],
)
def test_a_second_release_with_the_same_noise_is_refused(run_it) -> None:
    with pytest.raises(ValueError, match=AGAIN):
        run_it(Again(first=1))


def test_another_purpose_is_another_stream() -> None:
    algorithm = Again(stream=lambda key, t: key.stream(1000, t))
    once, twice, thrice = run(dm.OnlineLearning()), run(algorithm), run(algorithm)
    np.testing.assert_array_equal(once.released, twice.released)
    np.testing.assert_array_equal(twice.released, thrice.released)
    assert len(twice.ledger.releases) == 2 * ROUNDS


@pytest.mark.parametrize(
    ("stream", "tells", "message"),
    [
        (
            lambda key, t: key.stream(1000),
            lambda t: t,
            "stream: wanted one of round 1, as .* got .* 0",
        ),
        (lambda key, t: key.stream(1000), lambda t: 0, "stream: wanted one of round 1 or later"),
        (lambda key, t: key.stream(1000, 7 + t), lambda t: 7 + t, "of round 7 or later, got .* 1"),
    ],
    ids=["forgotten round", "always round 0", "rounds ahead"],
)
def test_a_stream_is_that_of_its_round(stream, tells, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Again(stream=stream, tells=tells))


def test_a_resumed_run_knows_which_rounds_are_over(tmp_path: Path) -> None:
    """Round 4 is round 1 again, noise and all; the process that resumes has not seen round 1."""

    class Returning(dm.OnlineLearning):
        def step(self, state, round, problem, exchange, key):
            return super().step(state, 1 if round == 4 else round, problem, exchange, key)

    for first in (3, 4):  # at once, and after a resume from the four rounds in the file
        message = f"stream: wanted one of round {first} or later, got one of round 1"
        with pytest.raises(ValueError, match=message):
            run(Returning(), checkpoint=tmp_path / "run", checkpoint_every=1)


def release(key: Key, nodes: tuple[int, ...] | None = None, rows: int = 2, round: int = 0) -> None:
    noise = key.stream(Purpose.NOISE, round)
    Gaussian(1.0).release(np.zeros((rows, 3)), ONE, noise, round=round, nodes=nodes)


def everybody() -> None:
    """Release for nodes 0 and 1, 2 and 5, 3 and 4, 6 and 8."""
    release(KEY)
    release(KEY, (2, 5))
    release(own([3, 4]))
    release(own([6, 7, 8]), (0, 2))


def test_nodes_draw_apart() -> None:
    """In one release or in several, named by the release, by the key, or by both."""
    with drawn_once():
        everybody()
        release(own([7]), rows=1)
        release(Key.seeded(1))
        release(KEY, round=1)


@pytest.mark.parametrize("node", [0, 1, 2, 3, 4, 5, 6, 8])
def test_no_node_draws_twice(node: int) -> None:
    for key, nodes in ((KEY, (9, node)), (own([node, 9]), None)):
        with drawn_once():
            everybody()
            with pytest.raises(ValueError, match=r"stream: .*Purpose\.NOISE in round 0 again"):
                release(key, nodes)


class OwnDraws(Laplace):
    """Draws the noise itself, and names no nodes."""

    def _add_noise(self, values, scale, source):
        return kernels.add_laplace(values, scale, source.stream)


@pytest.mark.parametrize("kind", [Laplace, OwnDraws])
def test_nodes_that_release_apart_have_the_noise_that_they_have_together(kind) -> None:
    """Whoever writes a mechanism need not know of nodes: two would share one noise."""
    rows, noise = np.zeros((4, 3)), KEY.stream(Purpose.NOISE, 0)
    together = kind(1.0).release(rows, ONE, noise, round=0).values
    for some in ((0,), (2, 1), (3,)):
        apart = kind(1.0).release(rows[list(some)], ONE, noise, round=0, nodes=some).values
        np.testing.assert_array_equal(apart, together[list(some)])
    assert len(np.unique(np.abs(together))) == together.size


def test_a_vector_draws_as_one_row() -> None:
    with drawn_once():
        Gaussian(1.0).release(np.zeros(3), ONE, KEY.stream(Purpose.NOISE, 0), round=0)
        release(own([1, 2]))
        with pytest.raises(ValueError, match=r"stream: .*Purpose\.NOISE in round 0 again"):
            release(own([0]), rows=1)


def test_coins_are_no_noise_and_none_of_another_release() -> None:
    door = Laplace(1.0, compressor=Quantizer(0.1))

    def compressed(coins: int, purpose: int = Purpose.NOISE, round: int = 0) -> None:
        streams = KEY.stream(purpose, 0), KEY.stream(coins, round)
        door.release(np.zeros((2, 3)), ONE, streams[0], round=0, coins=streams[1])

    for run in drawn_once(), nullcontext():  # nor outside of one: noise rounded by itself is none
        with run, pytest.raises(ValueError, match=r"coins: .*Purpose\.NOISE in round 0 again"):
            compressed(Purpose.NOISE)
    with drawn_once():
        compressed(Purpose.QUANTIZE)
        compressed(1001, 1000)
        with pytest.raises(ValueError, match=r"coins: .* that of 1001 in round 0 again"):
            compressed(1001, 1002)
    with pytest.raises(ValueError, match=r"coins: wanted one of round 0, .* got one of round 2"):
        compressed(Purpose.QUANTIZE, round=2)


def test_values_without_noise_draw_none() -> None:
    nothing = Sensitivity(0.0, "l1", "does not depend on the data")
    with drawn_once():
        for _ in range(2):
            noise = KEY.stream(Purpose.NOISE, 3)
            Laplace(1.0).release(np.zeros((2, 3)), nothing, noise, round=0)
