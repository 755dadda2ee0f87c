"""A run on the ranks of MPI, whose results rank 0 writes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms.base import Info
from dpmesh.keys import Purpose, generator
from dpmesh.privacy import Laplace, Plan, Sensitivity
from dpmesh.privacy.compression import Levels, Quantizer, RandomSparsifier
from dpmesh.schedules import HorizonPower, InverseSqrt, PowerLaw, SampleSize
from dpmesh.run import Run

NODES, ROUNDS = 12, 8
RICH = tuple(range(0, NODES, 3))
"""Nodes with two more records."""

ONE = Sensitivity(1.0, "l1", "a test")


@dataclass(frozen=True)
class State:
    w: Any


@dataclass(frozen=True)
class PersonalNoise:
    """Gossip in which the rich nodes add more noise than the others: a release for each group.

    With `apart`, there is a release for each node instead.
    """

    apart: bool = False
    rare: bool = False
    compressor: Any = None
    travels = "gossip"

    def groups(self, rich: np.ndarray, t: int) -> list[tuple[float, tuple[int, ...]]]:
        found = [(3.0, np.flatnonzero(rich)), (1.0, np.flatnonzero(~rich))]
        if self.rare and t % 2:
            found = found[1:]
        if self.apart:
            nodes = sorted((int(node), z) for z, group in found for node in group)
            return [(z, (node,)) for node, z in nodes]
        return [(z, tuple(group.tolist())) for z, group in found if len(group)]

    def plan(self, rounds: int) -> Plan:
        rich = np.isin(np.arange(NODES), RICH)
        releases = [
            Laplace(z).planned(t, ONE, nodes=group)
            for t in range(rounds)
            for z, group in self.groups(rich, 0)
        ]
        return Plan(tuple(releases), "replace_one", "record")

    def init(self, problem, key) -> State:
        return State(problem.zeros())

    def step(self, state, round, problem, exchange, key):
        sent, bits, releases = np.zeros_like(state.w), np.zeros(len(state.w), np.int64), []
        for z, group in self.groups(problem.records > ROUNDS, round):
            stream, coins = key.stream(Purpose.NOISE, round), key.stream(Purpose.QUANTIZE, round)
            rows = state.w[list(group)]
            door = Laplace(z, compressor=self.compressor)
            out = door.release(rows, ONE, stream, round=round, nodes=group, coins=coins)
            sent[list(group)], bits[list(group)] = out.values, out.bits_per_node
            releases.append(out.release)
        b = exchange(round, sent)
        w = b - 0.1 * problem.gradient(b, problem.everything)
        return State(w), Info(tuple(releases), bits, b)

    def parameters(self, state: State):
        return state.w


@dataclass(frozen=True)
class Overspending(PersonalNoise):
    """After its messages of round 3 it releases more than the budget has room for."""

    def step(self, state, round, problem, exchange, key):
        state, info = super().step(state, round, problem, exchange, key)
        if round == 3:
            Laplace(0.01).release(state.w, ONE, key.stream(1000, round), round=round)
        return state, info


@dataclass(frozen=True)
class Resting(PersonalNoise):
    """All nodes start at the same random point, and stay there."""

    def init(self, problem, key) -> State:
        start = generator(key, Purpose.INIT).normal(size=(1, problem.dim))
        return State(np.repeat(start, problem.nodes, axis=0))

    def step(self, state, round, problem, exchange, key):
        return state, Info((), 0, np.zeros_like(state.w))


@dataclass(frozen=True)
class OneLearns(Resting):
    """Only one node has losses, so that most ranks have none."""

    def step(self, state, round, problem, exchange, key):
        slopes = problem.gradient(problem.zeros(), problem.everything)[:, 0]
        learns = slopes > 0.15
        losses = (lambda: slopes[learns]) if learns.any() else None
        return state, Info((), 0, np.zeros_like(state.w), losses)


@dataclass(frozen=True)
class SomeTellRecords(Resting):
    """All ranks but the first tell which records they used."""

    radius: float = 1.0

    def step(self, state, round, problem, exchange, key):
        from mpi4py import MPI

        state, info = super().step(state, round, problem, exchange, key)
        records = problem.everything[1][:, np.newaxis] if MPI.COMM_WORLD.rank else None
        return state, replace(info, records=records)


@dataclass(frozen=True)
class LessNoiseElsewhere(dm.GradientDescent):
    """All ranks but the first add less noise than planned, as it may be for their own nodes."""

    def step(self, state, round, problem, exchange, key):
        from mpi4py import MPI

        less = replace(self, noise_multiplier=1.0) if MPI.COMM_WORLD.rank else self
        return dm.GradientDescent.step(less, state, round, problem, exchange, key)


@dataclass(frozen=True)
class Failing(dm.OnlineLearning):
    """On rank 1 something goes wrong in round 5."""

    how: str = "value"

    def step(self, state, round, problem, exchange, key):
        import os
        import signal

        from mpi4py import MPI

        here = MPI.COMM_WORLD.rank == 1 and round == 5
        if here and self.how == "value":
            state = type(state)(np.full_like(state.w, np.nan))
        if here and self.how == "twice":
            self.emit(state, round, key)
        if here and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self.how == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        result = super().step(state, round, problem, exchange, key)
        if here and self.how == "after":
            raise ArithmeticError("the step went wrong")
        return result


class FailingToken(dm.WithoutReplacement):
    """On rank 1 something goes wrong in round 5, of which a file tells whose turns there were."""

    def update_global(self, state, t, problem, turns, actions, batches, exchange, key):
        from mpi4py import MPI

        rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if t == 5 and ranks > 1:
            with (Path(sys.argv[2]) / "turns").open("a") as file:
                file.write(f"{rank}\n")
        if t == 5 and rank == 1:
            state = replace(state, local=np.full_like(state.local, np.nan))
        return super().update_global(state, t, problem, turns, actions, batches, exchange, key)


def make(network: str) -> tuple[dm.LinearProblem, topology.Topology]:
    rng = np.random.default_rng(3)
    extra = 2 * len(RICH)
    x = rng.normal(size=(NODES * ROUNDS + extra, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = [*np.arange(NODES * ROUNDS).reshape(ROUNDS, NODES).T]
    for place, node in enumerate(RICH):
        more = NODES * ROUNDS + 2 * place + np.arange(2)
        parts[node] = np.concatenate([parts[node], more])
    problem = dm.LinearProblem(train, tuple(parts), "logistic", test=train, feature_norm=1.0)
    if network == "ring":
        return problem, topology.ring(NODES)
    key = dm.Key.seeded(8)
    return problem, topology.edge_dropping(topology.torus(3, 4), keep=0.6, key=key)


def quantized(**changes) -> dm.QuantizedGossip:
    return dm.QuantizedGossip(
        step_size=HorizonPower(1.0, -0.8, ROUNDS),
        consensus_step_size=HorizonPower(1.0, -0.6, ROUNDS),
        sample_size=SampleSize(1.0, 0.5, ROUNDS),
        noise_std=PowerLaw(0.1, 0.1),
        **changes,
    )


def token(controller, kind=dm.WithoutReplacement) -> dm.WithoutReplacement:
    return kind(
        delta=1e-5,
        step_size=InverseSqrt(0.5),
        batch_size=1,
        controller=controller,
        arrival_rate=0.8,
    )


ALGORITHMS = {
    "online": dm.OnlineLearning(epsilon=2.0),
    "quantized": quantized(),
    "narrow": quantized(compressor=Quantizer(0.001, bits=4)),
    "levels": quantized(compressor=Levels(3)),
    "sparse": quantized(compressor=RandomSparsifier(0.3)),
    "discrete": quantized(grid=2.0**-12),
    "groups": PersonalNoise(),
    "apart": PersonalNoise(apart=True),
    "rare": PersonalNoise(rare=True),
    "packed": PersonalNoise(compressor=Quantizer(0.1)),
    "overspending": Overspending(apart=True),
    "one learns": OneLearns(),
    "resting": Resting(),
    "some tell records": SomeTellRecords(),
    "less noise elsewhere": LessNoiseElsewhere(ROUNDS, 10.0),
    "ended": dm.OnlineLearning(epsilon=2.0),
    "tracker down": dm.OnlineLearning(epsilon=2.0),
    "own keys": dm.OnlineLearning(epsilon=2.0),
    "own keys again": dm.OnlineLearning(epsilon=2.0),
    "own keys dealt anew": dm.OnlineLearning(epsilon=2.0),
    "token": token(dm.controllers.RandomGlobal(0.5)),
    "learned": token(dm.controllers.DeepQ(anneal_rounds=4, hidden=16, batch_size=2, memory_size=3)),
    "token value": token(dm.controllers.AlwaysGlobal(), FailingToken),
    "value": Failing(epsilon=2.0),
    "after": Failing(epsilon=2.0, how="after"),
    "twice": Failing(epsilon=2.0, how="twice"),
    "killed": Failing(epsilon=2.0, how="killed"),
    "terminated": Failing(epsilon=2.0, how="terminated"),
}


def run(name: str, network: str, **options) -> Run:
    problem, graph = make(network)
    algorithm = ALGORITHMS[name]
    options = {"key": dm.Key.seeded(1), "every": 3, "delta": 1e-5, **options}
    if name == "overspending":
        options["budget"] = dm.privacy.Budget(ROUNDS)
    return dm.simulate(
        algorithm,
        problem,
        None if algorithm.travels == "token" else graph,
        rounds=ROUNDS,
        **options,
    )


def own_keys(folder: str, *, again: bool) -> dict[str, Any]:
    """Options for ranks with a key each, of which only that of rank 1 is seeded, and changes."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    secret = Path(folder) / f"key {rank}"
    if not secret.exists():
        secret.parent.mkdir(parents=True, exist_ok=True)
        dm.Key.generate().save(secret)
    key = dm.Key.seeded(int(again)) if rank == 1 else dm.Key.load(secret)
    return {"key": key, "checkpoint": Path(folder) / "own keys" / "checkpoint"}


def end(round: int, values: object) -> None:
    """Ends a run after its first measurement."""
    raise dm.StopRun


def fail(round: int, values: object) -> None:
    """Cannot pass the measurements on."""
    raise ConnectionError("nobody listens")


def main(network: str, folder: str, *names: str) -> None:
    """Run algorithms one after the other; the results of each go into a folder of its name."""
    from dpmesh.engines.mpi import MpiEngine

    for name in names:
        own = Path(folder) / name
        engine = MpiEngine(NODES if ALGORITHMS[name].travels == "token" else make(network)[1])
        if name.endswith("dealt anew"):
            engine.parts = engine.parts[::-1]
        if name == "resting":
            options = {"key": None}
        elif name.startswith("own keys"):
            options = own_keys(folder, again=name.endswith("again"))
        else:
            options = {"checkpoint": own / "checkpoint", "checkpoint_every": 2}
            options["callback"] = {"ended": end, "tracker down": fail}.get(name)
        result = run(name, network, engine=engine, **options)
        assert len(result.parameters) == (NODES if engine.is_root else len(engine.nodes))
        sent = engine.sent()
        if engine.is_root:
            result.save(own)
            np.save(own / "parameters.npy", result.parameters)
            (own / "ledger.txt").write_text(str(result.ledger))
            (own / "sent.json").write_text(json.dumps(sent))


if __name__ == "__main__":
    import mpi_program  # under its own name, which checkpoints hold

    mpi_program.main(*sys.argv[1:])
