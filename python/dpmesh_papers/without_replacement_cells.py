"""One method of the without-replacement paper in one situation, run with several seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.controllers import (
    AlwaysGlobal,
    AlwaysLocal,
    AnyController,
    Periodic,
    RandomGlobal,
)
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh_papers._scaffold import Row, interval
from dpmesh_papers.deep_q import DeepQ
from dpmesh_papers.without_replacement_setting import (
    Case,
    ExperimentData,
    Noise,
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
class Comparison:
    """The data, losses and keys that all compared methods share.

    Parameters
    ----------
    data, case
        The data, and the losses.
    nodes
        Number of nodes.
    copies
        Number of nodes that hold the same record.
    problems, keys
        A problem and a key for each run.
    """

    data: ExperimentData
    case: Case
    nodes: int
    copies: int
    problems: list[LinearProblem]
    keys: list[Key]


def measured(
    comparison: Comparison, controller: AnyController | None, noise: Noise, epsilon: float
) -> Row:
    """Run one method with every key: Algorithm 1 with a controller, or without one the baseline.

    The baseline is SGD with replacement. `noise` is ``"paper"``, its formula for each single
    release, ``"proved"``, what keeps a record's budget in all releases that it moves, or
    ``"none"``. Accuracies are in percent, with half of their 95% intervals over the keys:
    `released`, of the global model, and `local`, of the nodes' own models, which are not released.
    `epsilon_proved` is a record's exact epsilon, `not_proved` the assumptions that the report
    names, and `releases` the models that a node released, on average.
    """
    runs = []
    for problem, key in zip(comparison.problems, comparison.keys, strict=True):
        algorithm: AnyAlgorithm
        if controller is None:
            algorithm = with_replacement(problem, noise, epsilon)
            # much noise takes its models too far out for single precision
            runs.append(run(algorithm, in_double_precision(problem), key))
        else:
            algorithm = without_replacement(
                comparison.data,
                problem,
                comparison.case,
                controller,
                noise,
                epsilon,
                copies=comparison.copies,
            )
            runs.append(run(algorithm, problem, key))
    result: Row = {
        "epsilon_proved": max(finished.privacy.epsilon for finished in runs),
        "not_proved": "; ".join(algorithm.plan(1).assumptions),
        "paper": None,
    }
    for name, metric in (("released", "released_accuracy"), ("local", "accuracy")):
        percent = [100 * finished.history.last(metric) for finished in runs]
        result[name] = float(np.mean(percent))
        result[f"{name}_interval"] = interval(percent)
    messages = float(np.mean([finished.traffic.messages for finished in runs]))
    result["releases"] = messages / comparison.nodes / comparison.data.classes
    result["seeds"] = len(runs)
    return result


def shown(row: Row, which: str = "") -> str:
    """Return the accuracy of one column with its interval; by default that of `kind_of`."""
    which = which or kind_of(row)
    half_width = row[f"{which}_interval"]
    accuracy = f"{row[which]:5.2f}"
    if np.isnan(half_width):
        return accuracy
    return f"{accuracy} +-{half_width:4.2f}"


def kind_of(row: Row) -> str:
    """Return the column of the model that counts: the global one, unless a method has none."""
    if row["method"] == LOCAL:
        return "local"
    return "released"


def in_words(row: Row) -> str:
    """Return one cell as a line."""
    paper = ""
    if row["paper"] is not None:
        paper = f", paper {row['paper']:.2f}"
    return (
        f"{row['case']:<15} {row['nodes']:>2} nodes  epsilon {row['epsilon']:<4g} "
        f"{row['noise']:<6} noise (proved {rounded_up(row['epsilon_proved'], 3)})  "
        f"{row['method']:<20} global {shown(row, 'released')}  local {shown(row, 'local')}{paper}"
    )
