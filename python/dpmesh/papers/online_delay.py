"""What the online paper leaves for later: messages that arrive late, and nodes that are away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmesh.papers._output import Output
from dpmesh.papers.online_runs import (
    MOST_NODES,
    SOURCES,
    Copies,
    Tell,
    interval,
    label_axes,
    name_of,
)
from dpmesh.simulator import Network

EPSILONS = (1.0, None)
DELAYS = (0, 1, 2, 4, 8, 16, 32, 64)
OFFLINE = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
OUTAGE_ROUNDS = 20


@dataclass(frozen=True)
class Failure:
    """What goes wrong, more or less of it."""

    name: str
    degrees: tuple[float, ...]
    network: Callable[[float], Network]


FAILURES = (
    Failure("fixed delay", DELAYS, lambda d: Network(min_delay=int(d), max_delay=int(d))),
    Failure("random delay up to", DELAYS, lambda d: Network(max_delay=int(d))),
    Failure("share offline", OFFLINE, lambda q: Network(offline=q, outage_rounds=OUTAGE_ROUNDS)),
)


@dataclass(frozen=True)
class Outcome:
    """Average regret of the paper's algorithm on one failing network.

    Parameters
    ----------
    failure, degree
        What goes wrong, and how much: rounds, or the share of nodes that are offline.
    epsilon
        None is without noise.
    regret, interval
        Mean over runs and learners, for each example; half the width of its 95% interval.
    worst_regret
        Of the worst learner, mean over runs.
    runs
        Their number.
    """

    failure: str
    degree: float
    epsilon: float | None
    regret: float
    interval: float
    worst_regret: float
    runs: int


def delay(folder: Path, *, seeds: int = 10, tell: Tell = print) -> list[Path]:
    """Regret against delay and absence, synthetic data, 64 nodes, at epsilon 1 and without noise.

    Parameters
    ----------
    folder
        Where ``online-delay.csv``, ``.txt`` and ``.png`` go.
    seeds
        Runs of each setting.
    tell
        Called with a line for every finished setting.
    """
    copies = Copies.of(SOURCES[0], seeds)
    outcomes = []
    for failure in FAILURES:
        for epsilon in EPSILONS:
            for degree in failure.degrees:
                network = failure.network(degree)
                runs = copies.run(copies.algorithm(epsilon), network=network)
                regret = runs.regret(copies.best)[:, :, -1]
                mean, half, worst = regret.mean(), interval(regret.mean(axis=1)), regret.max(axis=1)
                of = (failure.name, degree, epsilon)
                outcomes.append(Outcome(*of, float(mean), half, float(worst.mean()), seeds))
                tell(f"{failure.name} {degree:g}, epsilon {name_of(epsilon)}: {mean:.4f}")
    output = Output(folder, "online-delay")
    output.records(outcomes)
    output.text(as_text(outcomes, copies.source.at[-1], seeds))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    for ax, failure in zip(figure.subplots(1, 3), FAILURES, strict=True):
        for epsilon in EPSILONS:
            line = _line(outcomes, failure, epsilon)
            x, y = [o.degree for o in line], np.array([o.regret for o in line])
            width = np.array([o.interval for o in line])
            ax.plot(x, y, marker="o", markersize=3, label=f"epsilon {name_of(epsilon)}")
            ax.fill_between(x, y - width, y + width, alpha=0.25)
        label_axes(ax, failure.name, "share" if "share" in failure.name else "rounds")
        ax.set(xscale="linear", yscale="log")
    output.figure(figure)
    return output.files


def as_text(outcomes: list[Outcome], rounds: int, seeds: int) -> str:
    """Return all regrets as one table for each failure."""
    lines = [
        f"Average regret for each example after {rounds} rounds, mean of {seeds} runs +- 95%",
        f"interval; {MOST_NODES} nodes, synthetic data, batch size 1. The paper has no delay: it",
        "leaves that for later. A node mixes the newest message that it has of each neighbour and",
        "its own of this round; one that is offline, in stretches of "
        f"{OUTAGE_ROUNDS} rounds, learns alone.",
        "Late messages are broadcasts of earlier rounds: privacy is as without delay.",
    ]
    for failure in FAILURES:
        columns = "".join(f"{f'epsilon {name_of(epsilon)}':>22}" for epsilon in EPSILONS)
        lines += ["", f"{failure.name:<20}{columns}"]
        both = [_line(outcomes, failure, epsilon) for epsilon in EPSILONS]
        for row in zip(*both, strict=True):
            cells = "".join(f"{f'{o.regret:.4f} +- {o.interval:.4f}':>22}" for o in row)
            lines.append(f"{row[0].degree:<20g}{cells}")
    return "\n".join(lines)


def _line(outcomes: list[Outcome], failure: Failure, epsilon: float | None) -> list[Outcome]:
    return [o for o in outcomes if (o.failure, o.epsilon) == (failure.name, epsilon)]
