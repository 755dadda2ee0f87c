"""A run on the ranks of MPI, whose results rank 0 writes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from local_steps import EveryThird

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms import Algorithm, Message
from dpmesh.keys import Purpose, generator
from dpmesh.noise import Gaussian, Laplace, NoNoise, Sensitivity, correlated
from dpmesh.noise.compression import Levels, Quantizer, RandomSparsifier
from dpmesh.privacy import Plan, Release
from dpmesh.run import Run
from dpmesh.schedules import HorizonPower, InverseSqrt, PowerLaw, SampleSize
from dpmesh_papers.deep_q import DeepQ

NODES = 12
ROUNDS = 8
LARGE = tuple(range(0, NODES, 3))
"""Nodes with two more records."""

ONE = Sensitivity(1.0, "l1", "a test")


@dataclass(frozen=True)
class State:
    w: Any


@dataclass(frozen=True)
class PersonalNoise(Algorithm[State, dm.LinearProblem]):
    """Gossip in which the larger nodes add more noise than the others: a release for each group.

    With `per_node`, there is a release for each node instead.
    """

    per_node: bool = False
    compressor: Any = None
    communication = "gossip"

    def release_of(self, t: int) -> tuple[Release, ...]:
        noise = [3.0 if node in LARGE else 1.0 for node in range(NODES)]
        groups = [(node,) for node in range(NODES)]
        if not self.per_node:
            groups = [LARGE, tuple(node for node in range(NODES) if node not in LARGE)]
        return tuple(Release(t, Laplace(noise[group[0]]), ONE, nodes=group) for group in groups)

    def init(self, problem, key) -> State:
        return State(problem.zeros())

    def round(self, state, t, problem, key):
        b = yield Message(state.w, self.release_of(t), self.compressor)
        return State(b - 0.1 * problem.gradient(b, problem.full_batches))

    def parameters(self, state: State):
        return state.w


@dataclass(frozen=True)
class Overspending(PersonalNoise):
    """After its messages of round 3 it releases more than the budget has room for."""

    def round(self, state, t, problem, key):
        state = yield from super().round(state, t, problem, key)
        if t == 3:
            yield Message(state.w, Release(t, Laplace(0.01), ONE))
        return state


@dataclass(frozen=True)
class Resting(PersonalNoise):
    """All nodes start at the same random point, and stay there."""

    def release_of(self, t: int) -> Release:
        return Release(t, NoNoise(), Sensitivity(0.0, "l2", "a start that knows no data"))

    def init(self, problem, key) -> State:
        start = generator(key, Purpose.INIT).normal(size=(1, problem.dim))
        return State(np.repeat(start, problem.nodes, axis=0))

    def round(self, state, t, problem, key):
        yield Message(state.w, self.release_of(t))
        return state


@dataclass(frozen=True)
class OneLearns(Resting):
    """Only one node has losses."""

    def losses(self, state, t, problem, key):
        slopes = problem.gradient(problem.zeros(), problem.full_batches)[:, 0]
        return slopes[slopes > 0.15]


@dataclass(frozen=True)
class LessNoiseElsewhere(dm.GradientDescent):
    """From round 2 on, all ranks but the first add less noise than planned."""

    def release_of(self, t: int) -> Release:
        from mpi4py import MPI

        planned = super().release_of(t)
        if MPI.COMM_WORLD.rank == 0:
            return planned
        return replace(planned, mechanism=Gaussian(1.0))

    def plan(self, rounds: int) -> Plan:
        return dm.GradientDescent(
            records=self.records, noise_multiplier=self.noise_multiplier
        ).plan(rounds)


@dataclass(frozen=True)
class Failing(dm.OnlineLearning):
    """Online learning that fails on rank 1 in round 5.

    Failures are ``"value"`` (a NaN), ``"killed"`` and ``"terminated"`` (signals), and ``"after"``
    (an error at the end of the round).
    """

    failure: str = "value"

    def round(self, state, t, problem, key):
        import os
        import signal

        from mpi4py import MPI

        fails_here = MPI.COMM_WORLD.rank == 1 and t == 5
        if fails_here and self.failure == "value":
            state = type(state)(np.full_like(state.w, np.nan))
        if fails_here and self.failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fails_here and self.failure == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        state = yield from super().round(state, t, problem, key)
        if fails_here and self.failure == "after":
            raise ArithmeticError("the round went wrong")
        return state


class FailingToken(dm.WithoutReplacement):
    """On rank 1 something goes wrong in round 5."""

    def round(self, state, t, problem, key):
        from mpi4py import MPI

        if t == 5 and MPI.COMM_WORLD.rank == 1:
            state = replace(state, local=np.full_like(state.local, np.nan))
        return (yield from super().round(state, t, problem, key))


def make(network: str) -> tuple[dm.LinearProblem, topology.Topology]:
    rng = np.random.default_rng(3)
    extra = 2 * len(LARGE)
    x = rng.normal(size=(NODES * ROUNDS + extra, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = [*np.arange(NODES * ROUNDS).reshape(ROUNDS, NODES).T]
    for place, node in enumerate(LARGE):
        more = NODES * ROUNDS + 2 * place + np.arange(2)
        parts[node] = np.concatenate([parts[node], more])
    problem = dm.LinearProblem(train, tuple(parts), "logistic", test=train, feature_norm=1.0)
    if network == "ring":
        return problem, topology.ring(NODES)
    key = dm.Key.seeded(8)
    return problem, topology.edge_dropping(topology.torus(3, 4), keep=0.6, key=key)


def hidden_layer(problem: dm.LinearProblem) -> Any:
    """Return a problem's records for a network in JAX."""
    import jax
    import jax.numpy as jnp

    def start(key):
        return {"in": jax.random.normal(key, (5, 3)), "out": jnp.ones(3)}

    def loss(params, x, y):
        return jnp.log1p(jnp.exp(-y * (jnp.tanh(x @ params["in"]) @ params["out"])))

    return dm.problems.JaxProblem(problem.train, problem.partition, start, loss)


def quantized(**changes) -> dm.QuantizedGossip:
    return dm.QuantizedGossip(
        step_size=HorizonPower(scale=1.0, exponent=-0.8, rounds=ROUNDS),
        consensus_step_size=HorizonPower(scale=1.0, exponent=-0.6, rounds=ROUNDS),
        sample_size=SampleSize(scale=1.0, exponent=0.5, rounds=ROUNDS),
        noise_std=PowerLaw(scale=0.1, exponent=0.1),
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


PARTNERS = topology.ring(NODES)
TOGETHER = {
    "in time": correlated.InTime(topology=PARTNERS, rounds=ROUNDS),
    "partners": correlated.BetweenPartners(topology=PARTNERS, rounds=ROUNDS),
    "both": correlated.Both(topology=PARTNERS, rounds=ROUNDS),
    "both on a grid": correlated.Both(topology=PARTNERS, rounds=ROUNDS, grid=2.0**-12),
}
"""Noise that works together."""

ALGORITHMS = {
    **{name: dm.OnlineLearning(epsilon=2.0, delta=1e-5, noise=n) for name, n in TOGETHER.items()},
    "token in time": replace(
        token(dm.algorithms.controllers.AlwaysGlobal()),
        arrival_rate=1.0,
        noise=correlated.InTime(topology=None, rounds=ROUNDS),
    ),
    "local steps": EveryThird(records=ROUNDS, noise_multiplier=20.0),
    "online": dm.OnlineLearning(epsilon=2.0),
    "quantized": quantized(),
    "narrow": quantized(compressor=Quantizer(0.001, bits=4)),
    "levels": quantized(compressor=Levels(3)),
    "sparse": quantized(compressor=RandomSparsifier(0.3)),
    "discrete": quantized(grid=2.0**-12),
    "groups": PersonalNoise(),
    "each": PersonalNoise(per_node=True),
    "packed": PersonalNoise(compressor=Quantizer(0.1)),
    "overspending": Overspending(per_node=True),
    "one learns": OneLearns(),
    "resting": Resting(),
    "less noise elsewhere": LessNoiseElsewhere(records=ROUNDS, noise_multiplier=20.0),
    "ended": dm.OnlineLearning(epsilon=2.0),
    "tracker down": dm.OnlineLearning(epsilon=2.0),
    "own keys": dm.OnlineLearning(epsilon=2.0),
    "own keys again": dm.OnlineLearning(epsilon=2.0),
    "own keys dealt anew": dm.OnlineLearning(epsilon=2.0),
    "with replacement": dm.WithReplacement(
        nodes=NODES, records=ROUNDS, noise_multiplier=4.0, batch_size=2, visits=2
    ),
    "hidden layer": dm.GradientDescent(records=ROUNDS, noise_multiplier=20.0),
    "another epsilon": dm.OnlineLearning(epsilon=2.0),
    "more rounds": dm.OnlineLearning(epsilon=2.0),
    "token": token(dm.algorithms.controllers.RandomGlobal(0.5)),
    "learned": token(DeepQ(anneal_rounds=4, hidden=16, batch_size=2, memory_size=3)),
    "token value": token(dm.algorithms.controllers.AlwaysGlobal(), FailingToken),
    "value": Failing(epsilon=2.0),
    "after": Failing(epsilon=2.0, failure="after"),
    "killed": Failing(epsilon=2.0, failure="killed"),
    "terminated": Failing(epsilon=2.0, failure="terminated"),
}


def run(name: str, network: str, **options) -> Run:
    problem, graph = make(network)
    algorithm = ALGORITHMS[name]
    measured = dm.Metrics(every=3, callback=options.pop("callback", None))
    options = {"key": dm.Key.seeded(1), "metrics": measured, "delta": 1e-5, **options}
    if name == "overspending":
        options["budget"] = dm.privacy.Budget(ROUNDS)
    if name == "with replacement":  # all nodes have as many records
        parts = [part[:ROUNDS] for part in problem.partition]
        problem = replace(problem, partition=tuple(parts))
    if name == "hidden layer":
        problem = hidden_layer(problem)
    return dm.simulate(
        algorithm,
        problem,
        None if algorithm.communication == "token" else graph,
        **{"rounds": ROUNDS, **options},
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
    return {"key": key, "checkpoint": Path(folder) / "ring" / "own keys" / "checkpoint"}


def end(round: int, values: object) -> None:
    """Ends a run after its first measurement."""
    raise dm.StopRun


def fail(round: int, values: object) -> None:
    """Cannot pass the measurements on."""
    raise ConnectionError("nobody listens")


def main(folder: str, *cases: str) -> None:
    """Run cases one after the other; the results of each go into a folder of its name.

    A case is ``NETWORK/ALGORITHM``; all networks but ``ring`` are the one that varies.
    """
    from dpmesh.engines.mpi import MpiEngine

    for case in cases:
        network, name = case.split("/")
        case_folder = Path(folder) / case
        engine = MpiEngine(NODES if ALGORITHMS[name].communication == "token" else make(network)[1])
        if name.endswith("dealt anew"):
            engine.parts = engine.parts[::-1]
        if name == "resting":
            options = {"key": None}
        elif name.startswith("own keys"):
            options = own_keys(folder, again=name.endswith("again"))
        elif name == "another epsilon":
            ALGORITHMS[name] = dm.OnlineLearning(epsilon=2.0 + engine.communicator.rank)
            options = {}
        elif name == "more rounds":
            options = {"rounds": ROUNDS - engine.communicator.rank}
        else:
            options = {"checkpoint": dm.Checkpoint(case_folder / "checkpoint", every=2)}
            options["callback"] = {"ended": end, "tracker down": fail}.get(name)
        result = run(name, network, engine=engine, **options)
        if name != "with replacement":
            assert len(result.parameters) == (NODES if engine.is_root else len(engine.nodes))
        keep(result, engine, case_folder)


def keep(result: Run, engine: Any, folder: Path) -> None:
    """Write a run and what was sent at the root, into a folder."""
    traffic = engine.sent()
    if engine.is_root:
        result.save(folder)
        np.save(folder / "parameters.npy", result.parameters)
        (folder / "ledger.txt").write_text(str(result.ledger))
        (folder / "sent.json").write_text(json.dumps(traffic))


if __name__ == "__main__":
    import mpi_program  # under its own name, which checkpoints hold

    mpi_program.main(*sys.argv[1:])
