"""Secure sums of four sites on the ranks of MPI, whose results rank 0 writes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mpi_program
import numpy as np
from federated_parts import changed

import dpmesh as dm
from dpmesh.algorithms import Message, SecureAggregation, ServerMomentum
from dpmesh.noise import NoNoise, Sensitivity
from dpmesh.privacy import Release
from dpmesh.run import Run

SITES = 4
ROUNDS = mpi_program.ROUNDS
RECORDS = len(mpi_program.make("ring")[0].train.labels)


@dataclass(frozen=True, kw_only=True)
class FailingOnTwo(dm.RecordGradients):
    """On the second of two ranks something goes wrong in round 5."""

    def sums(self, w: Any, t: int, problem: Any, key: dm.Key) -> Any:
        from mpi4py import MPI

        if t == 5 and (MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank) == (2, 1):
            raise ArithmeticError("the round went wrong")
        return super().sums(w, t, problem, key)


@dataclass(frozen=True)
class InTheClear(dm.FederatedLearning):
    """It sends the first model beside its sums."""

    def round(self, state: Any, t: int, problem: Any, key: dm.Key) -> Any:
        yield Message(state.w, Release(t, NoNoise(), Sensitivity(0.0, "l2", "a start")), copies=1)
        return (yield from super().round(state, t, problem, key))


def silos(
    kind: type[dm.FederatedLearning] = dm.FederatedLearning,
    contribution: type[dm.RecordGradients] = dm.RecordGradients,
    **flat: Any,
) -> dm.FederatedLearning:
    gradients = contribution(clients=SITES, records=RECORDS, neighboring_relation="add_remove")
    shared = SecureAggregation(dim=5, rounds=ROUNDS)
    optimizer = ServerMomentum(0.5)
    learning = kind(gradients, noise_multiplier=3.0, combination=shared, optimizer=optimizer)
    return changed(learning, **flat)


def clients(rate: float) -> dm.FederatedLearning:
    updates = dm.ClientUpdates(clients=SITES, sampling_rate=rate, batch_size=4, steps=2)
    shared = SecureAggregation(dim=5, rounds=ROUNDS)
    return dm.FederatedLearning(updates, noise_multiplier=3.0, combination=shared)


def neighbours() -> dm.SecureGossip:
    graph = dm.topology.complete(SITES)
    return dm.SecureGossip(topology=graph, dim=5, records=RECORDS, noise_multiplier=6.0)


ALGORITHMS = {
    "full": silos(),
    "sampled": silos(sampling_rate=0.4, dropouts=1),
    "full float32": silos(),
    "sampled float32": silos(sampling_rate=0.4),
    "network": silos(sampling_rate=0.4, dim=18),
    "failing": silos(contribution=FailingOnTwo),
    "in the clear": silos(InTheClear),
    "three": silos(clients=3),
    "server": dm.FederatedLearning(
        dm.ClientUpdates(clients=SITES, sampling_rate=0.5, clipping_norm=1.0, steps=1),
        noise_multiplier=1.0,
    ),
    "clients": clients(1.0),
    "sampled clients": clients(0.5),
    "neighbours": neighbours(),
    "neighbours float32": neighbours(),
}


def make(name: str) -> Any:
    """Return the problem, at sites of 16 to 36 records; of the network all are equal."""
    problem, _ = mpi_program.make("ring")
    if name == "network":
        equal = np.array_split(np.arange(RECORDS), SITES)
        return mpi_program.hidden_layer(replace(problem, partition=tuple(equal)))
    parts = [problem.partition[0:2], problem.partition[2:4], problem.partition[4:8]]
    parts.append(problem.partition[8:])
    site_problem = replace(problem, partition=tuple(map(np.concatenate, parts)))
    if name.endswith("float32"):
        train = replace(problem.train, features=problem.train.features.astype(np.float32))
        site_problem = replace(site_problem, train=train, test=train, feature_norm=None)
    return site_problem


def models(problem: Any, parameters: Any, received: Any) -> float:
    """Number of models that are measured: one, which all ranks have."""
    return float(len(parameters))


def run(name: str, **options: Any) -> Run:
    watched = ["loss", models, *([] if name == "network" else ["accuracy"])]
    measured = dm.Metrics(watched, every=3, callback=options.pop("callback", None))
    fixed = {"rounds": ROUNDS, "key": dm.Key.seeded(1), "delta": 1e-5, "metrics": measured}
    return dm.simulate(ALGORITHMS[name], make(name), **fixed, **options)


def main(folder: str, *cases: str) -> None:
    """Run cases one after the other; the results of each go into a folder of its name.

    A case is the name of an algorithm, or ``FOLDER/ALGORITHM``.
    """
    from dpmesh.engines.mpi import MpiEngine

    for case in cases:
        case_folder = Path(folder) / case
        engine = MpiEngine(SITES)
        checkpoint = dm.Checkpoint(case_folder / "checkpoint", every=2)
        result = run(case_folder.name, engine=engine, checkpoint=checkpoint)
        mpi_program.keep(result, engine, case_folder)


if __name__ == "__main__":
    import mpi_sums_program  # under its own name, which checkpoints hold

    mpi_sums_program.main(*sys.argv[1:])
