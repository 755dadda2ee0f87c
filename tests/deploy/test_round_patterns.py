"""Exchanges are read from the round: any pattern of messages is carried, or refused at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties

import dpmesh as dm
from dpmesh._privacy_types import Sensitive
from dpmesh.algorithms import Message, Relay
from dpmesh.algorithms.gradient_descent import GradientDescentState
from dpmesh.algorithms.gradients import gradient_step
from dpmesh.deploy import Folder, Position, Router
from dpmesh.deploy.round_patterns import EDGE, SECONDS
from dpmesh.deploy.wire import refusal_reason
from dpmesh.schedules import at

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, kw_only=True)
class Patterned(dm.GradientDescent):
    """Gradient descent whose rounds yield what `pattern` names."""

    messages_need_no_trust = (
        "a node steps from its own release, or what it received, by clipped gradients"
    )
    pattern: str = "local"
    period: int = 3

    def round(self, state: Any, t: int, problem: Any, key: Any) -> Any:
        message = Message(state.x, self.release_of(t))
        if self.pattern == "local":
            point = yield message._replace(is_sent=t % self.period == 0)
        elif self.pattern == "more often":
            point = yield message
            for _ in range(t % self.period):
                point = yield Relay()
        elif self.pattern == "mostly relayed later":
            point = yield message._replace(is_sent=False)
            if t % self.period == 1:
                point = yield Relay()
        elif self.pattern == "twice":
            yield message
            point = yield message
        elif self.pattern == "another release":
            point = yield message._replace(release=replace(self.release_of(t), batch=7))
        elif self.pattern == "by columns":
            point = yield message
            if state.x.shape[1] > 1:
                point = yield Relay()
        elif self.pattern == "by records":
            point = yield message
            if t == 2 and abs(problem.train.features).sum() > 0:
                point = yield Relay()
        elif self.pattern == "short":
            point = yield message._replace(values=Sensitive(state.x[:, :1]))
            point = np.repeat(point, state.x.shape[1], axis=1)
        elif self.pattern == "late":
            point = yield message
            if t == 7_000:
                yield message
        elif self.pattern == "without end":
            point = yield message
            while True:
                yield Relay()
        elif self.pattern == "nothing":
            point = state.x
            yield 3
        else:
            point = yield Relay()
        x = gradient_step(
            problem,
            point,
            at(self.step_size, t + 1),
            self.records_of(t, problem),
            clipping_norm=self.clipping_norm,
        )
        return GradientDescentState(Sensitive(x))


def parties(path: Path, pattern: str, **terms: Any) -> Parties:
    algorithm = {"kind": "Patterned", "pattern": pattern}
    own = {"changes": algorithm, "module": __name__, **terms}
    return Parties(path, "gradient descent", **own)


@pytest.mark.parametrize("rounds", [1, 4, 7])
@pytest.mark.parametrize("pattern", ["local", "more often", "mostly relayed later"])
def test_rounds_that_send_differently_have_the_simulators_bits(
    pattern: str, rounds: int, tmp_path: Path
) -> None:
    meeting = parties(tmp_path, pattern, rounds=rounds)
    router = Router(meeting.contract)
    while not router.done:
        for party, message in router.requests().items():
            answer = meeting.node(party).answer(message)
            assert meeting.node(party).answer(message) == answer
            router.take(party, answer)
    simulated = meeting.simulated()
    np.testing.assert_array_equal(meeting.models(), simulated.parameters)
    if pattern != "mostly relayed later" or rounds > 1:
        released = np.concatenate([node.released for node in meeting.nodes])
        np.testing.assert_array_equal(released, simulated.released)
    for folder in meeting.folders:
        assert folder.ledger(meeting.contract) == meeting.contract.plan


@pytest.mark.parametrize("mixings", [1, 2, 5])
@pytest.mark.parametrize("kind", ["BetweenPartners", "Both"])
def test_online_learning_with_noise_of_partners_mixes_as_often_as_the_noise_says(
    kind: str, mixings: int, tmp_path: Path
) -> None:
    noise = {"kind": kind, "mixings": mixings} | ({"bands": 2} if kind == "Both" else {})
    meeting = Parties(tmp_path, "online", changes={"delta": 1e-5, "noise": noise})
    assert not meeting.run().gone
    np.testing.assert_array_equal(meeting.models(), meeting.simulated().parameters)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("twice", "release_of does not have"),
        ("another release", "release_of does not have"),
        ("by columns", "more columns"),
        ("short", "numbers for a model of"),
        ("without end", "messages"),
        ("nothing", "Message or Relay"),
        ("relay first", "Message before a Relay"),
    ],
)
def test_rounds_that_no_party_can_carry_are_refused_before_anybody_joins(
    pattern: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        parties(tmp_path, pattern)


def test_noise_of_partners_needs_a_message_in_each_round(tmp_path: Path) -> None:
    noise = {"kind": "BetweenPartners", "mixings": 1}
    changes = {"kind": "Patterned", "pattern": "local", "noise": noise}
    with pytest.raises(ValueError, match="name each other"):
        Parties(tmp_path, "gradient descent", changes=changes, module=__name__)


def test_a_round_that_looks_at_records_stops_its_node_before_it_sends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = parties(tmp_path, "by records", rehearsal=False)
    router = Router(meeting.contract)
    stopped = set[int]()
    for _ in range(40):
        for party, message in router.requests().items():
            answer = meeting.nodes[party].answer(message)
            stopped |= {party} if refusal_reason(answer) == "stopped" else set()
            router.take(party, answer)
    assert len(stopped) == len(meeting.nodes)
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert len(errors) == len(meeting.nodes)
    reason = "round 2 yields a Relay where its dry run yields nothing more"
    assert all(reason in str(error) for error in errors)
    assert all(
        node.last_position < Position(3) for node in meeting.nodes if node.last_position is not None
    )


@pytest.mark.slow
def test_a_check_of_many_rounds_plays_the_first_the_last_and_one_of_each_kind(
    tmp_path: Path,
) -> None:
    meeting = parties(tmp_path, "local", rounds=10_000, budget=1e9)
    begun = time.monotonic()
    played = meeting.contract.patterns.check_thoroughly()
    assert time.monotonic() - begun < SECONDS
    assert played.in_time
    assert played.rounds >= 2 * EDGE
    assert (played.total, played.patterns) == (10_000, 3)
    assert "of 10000 rounds" in str(played)


def test_a_check_that_takes_too_long_says_so(tmp_path: Path) -> None:
    clock = iter(range(10_000))
    meeting = parties(tmp_path, "local", rounds=40, budget=1e9)
    played = meeting.contract.patterns.check_thoroughly(lambda: float(next(clock)))
    assert not played.in_time
    assert played.rounds < 40
    assert "stopped after 10 seconds" in str(played)


def program() -> str:
    """The worked example of the documentation, as a module."""
    text = (DOCS / "own_algorithm.md").read_text()
    (block,) = [
        found for found in re.findall(r"```python\n(.*?)```", text, re.S) if "LocalDescent" in found
    ]
    return str(block).split("\n\n\nalgorithm = ")[0] + "\n"


@pytest.mark.slow
def test_the_worked_example_runs_between_four_processes(tmp_path: Path) -> None:
    (tmp_path / "local_descent.py").write_text(program())
    rng = np.random.default_rng(5)
    names = ["north", "south", "west", "east"]
    content = [
        "format = 2\n[contract]\nrounds = 9\ndeadline = 60.0\nquorum = 3\nfeatures = 3",
        f'public_key = "{"05" * 32}"\nlargest_row = 1e3',
        '[problem]\nloss = "logistic"\nfeature_norm = 1.0',
        '[algorithm]\nkind = "LocalDescent"\nrecords = 20\nnoise_multiplier = 18.0',
        "gossip_every = 4",
        '[topology]\nkind = "ring"',
    ]
    for name in names:
        folder = Folder.create(tmp_path / name, epsilon=10.0, delta=1e-5)
        key = folder.signing.public.hex()
        folder.close()
        content.append(f'[[party]]\nname = "{name}"\nsigning_key = "{key}"')
        content.append("records = 20\nepsilon = 10.0\ndelta = 1e-5")
        x = rng.normal(size=(20, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        labels = np.where(x[:, 0] > 0, 1, -1)
        np.savez(tmp_path / f"{name}.npz", features=x, labels=labels)
    contract = tmp_path / "contract.toml"
    contract.write_text("\n".join(content))
    start = [sys.executable, "-m", "dpmesh"]
    own = ["--module", "local_descent"]
    routing = subprocess.Popen(
        [*start, "router", "contract.toml", "--port", "0", *own],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert routing.stdout is not None
    url = routing.stdout.readline().split()[-1]
    nodes = [
        subprocess.Popen(
            [*start, "node", "contract.toml", "--data", f"{name}.npz", *own]  # noqa: RUF005
            + ["--folder", name, "--router", url, "--output", f"{name}.dpmesh"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]
    printed = [node.communicate(timeout=400)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0] * 4, printed
    assert "is over" in routing.communicate(timeout=60)[0]


def test_the_worked_example_has_the_simulators_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_descent.py").write_text(program())
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"kind": "LocalDescent", "gossip_every": 3}
    meeting = Parties(
        tmp_path / "p", "gradient descent", changes=changes, module="local_descent", rounds=8
    )
    assert not meeting.run().gone
    np.testing.assert_array_equal(meeting.models(), meeting.simulated().parameters)
