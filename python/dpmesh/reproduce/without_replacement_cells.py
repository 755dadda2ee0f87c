"""One method of the without-replacement paper in one situation, run with several seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.controllers import (
    AlwaysGlobal,
    AlwaysLocal,
    AnyController,
    Periodic,
    RandomGlobal,
)
from dpmesh.keys import Key
from dpmesh.privacy.shown import rounded_up
from dpmesh.problems import LinearProblem
from dpmesh.reproduce.deep_q import DeepQ
from dpmesh.reproduce.without_replacement_setting import (
    Accuracy,
    Case,
    Noise,
    Setting,
    in_double_precision,
    run,
    with_replacement,
    without_replacement,
)

NOISELESS = "noiseless, one model"
COLLABORATIVE = "fully collaborative"
LEARNED = "Algorithm 1"
NOISY = "deep Q, noisy losses"
LOCAL = "always local"
WITH_REPLACEMENT = "with replacement"


def controllers(rounds: int) -> dict[str, AnyController]:
    """Return the controllers of local and global updates for a run of `rounds` rounds, by name."""
    half = max(1, rounds // 2)
    return {
        COLLABORATIVE: AlwaysGlobal(),
        LEARNED: DeepQ(anneal_rounds=half),
        "deep Q, public": DeepQ(anneal_rounds=half, sees="released"),
        NOISY: DeepQ(anneal_rounds=half, sees="noisy"),
        "5 % at random": RandomGlobal(0.05),
        "every 20th round": Periodic(20),
        LOCAL: AlwaysLocal(),
    }


@dataclass(frozen=True, eq=False)
class Situation:
    """What the methods that are compared have in common.

    Parameters
    ----------
    setting, case
        The data, and the losses.
    nodes
        Their number.
    copies
        How many nodes hold the same record.
    problems, keys
        One of each for every run.
    """

    setting: Setting
    case: Case
    nodes: int
    copies: int
    problems: list[LinearProblem]
    keys: list[Key]


@dataclass(frozen=True)
class Cell:
    """One method in one situation.

    Parameters
    ----------
    case, nodes, method
        Which; see `controllers`.
    noise
        ``"paper"``: its formula for each single release. ``"proved"``: what keeps a record's budget
        in all releases that it moves. ``"none"``.
    epsilon
        The budget.
    epsilon_proved
        What the run cost a record, by our accounting.
    not_proved
        What else the report says.
    paper
        The paper's accuracy in percent; None where it has none.
    released, released_interval
        Ours, of the global model: mean and half the 95 % interval over the seeds.
    local, local_interval
        Ours, of the nodes' own models, which are not released.
    releases
        Models released by a node, on average.
    seeds
        Number of runs.
    """

    case: Case
    nodes: int
    method: str
    noise: Noise
    epsilon: float
    epsilon_proved: float
    not_proved: str
    paper: float | None
    released: float
    released_interval: float
    local: float
    local_interval: float
    releases: float
    seeds: int

    @property
    def of_released(self) -> Accuracy:
        """Of the global model."""
        return Accuracy(self.released, self.released_interval)

    @property
    def of_local(self) -> Accuracy:
        """Of the nodes' own models."""
        return Accuracy(self.local, self.local_interval)

    @property
    def of_shown(self) -> Accuracy:
        """Of the global model, unless the method has none."""
        return self.of_local if self.method == LOCAL else self.of_released


def measured(
    situation: Situation,
    method: str,
    controller: AnyController | None,
    noise: Noise,
    epsilon: float,
) -> Cell:
    """Run one method with every key; without a controller, the method with replacement."""
    setting, case, copies = situation.setting, situation.case, situation.copies
    runs = []
    for given, key in zip(situation.problems, situation.keys, strict=True):
        problem = given
        algorithm: AnyAlgorithm
        if controller is None:
            algorithm = with_replacement(setting, problem, noise, epsilon)
            problem = in_double_precision(problem)  # much noise takes its models far out
        else:
            algorithm = without_replacement(
                setting, problem, case, controller, noise, epsilon, copies=copies
            )
        runs.append(run(algorithm, problem, key))
    released = Accuracy.of([each.history.last("released_accuracy") for each in runs])
    local = Accuracy.of([each.history.last("accuracy") for each in runs])
    messages = float(np.mean([each.traffic.messages for each in runs]))
    return Cell(
        case,
        situation.nodes,
        method,
        noise,
        epsilon,
        max(each.privacy.epsilon for each in runs),
        "; ".join(algorithm.plan(1).assumptions),
        None,
        released.mean,
        released.interval,
        local.mean,
        local.interval,
        messages / situation.nodes / setting.classes,
        len(runs),
    )


def in_words(cell: Cell) -> str:
    """Return one cell as a line."""
    paper = "" if cell.paper is None else f", paper {cell.paper:.2f}"
    return (
        f"{cell.case:<15} {cell.nodes:>2} nodes  epsilon {cell.epsilon:<4g} {cell.noise:<6} noise "
        f"(proved {rounded_up(cell.epsilon_proved, 3)})  {cell.method:<20} "
        f"global {cell.of_released}  "
        f"local {cell.of_local}{paper}"
    )
