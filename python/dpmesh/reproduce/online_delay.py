"""Future work of the online paper: messages that arrive late, and nodes that are absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce._scaffold import interval, with_spread
from dpmesh.reproduce.online_runs import (
    MOST_NODES,
    SOURCES,
    Copies,
    Source,
    label_axes,
    name_of,
    paragraph,
    read,
)
from dpmesh.run import Network
from dpmesh.schedules import InverseTime

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (1.0, None)
DELAYS = (0, 1, 2, 4, 8, 16, 32, 64)
OFFLINE = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
OUTAGE_ROUNDS = 20

OTHERS = 0.8
"""The weight that a node gives its neighbours together, in the 4-regular graph: 1 - a_ii."""


@dataclass(frozen=True)
class Failure:
    """A kind of failure, its degrees, and the factor of the steps that compensates for it."""

    name: str
    degrees: tuple[float, ...]
    network: Callable[[float], Network]
    step_factor: Callable[[float], float] = lambda degree: 1.0  # noqa: ARG005


FAILURES = (
    Failure("fixed delay", DELAYS, lambda d: Network(min_delay=int(d), max_delay=int(d))),
    Failure(
        "fixed delay, long steps",
        DELAYS,
        lambda d: Network(min_delay=int(d), max_delay=int(d)),
        lambda d: 1 + OTHERS * d,
    ),
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
        None for no noise.
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


def delay(
    folder: Path, *, seeds: int = 3, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Regret against delay and absence: synthetic data, 64 nodes, epsilon 1 and no noise."""
    (source,) = read(SOURCES[:1], checkpoints)
    copies = Copies.of(source, seeds)
    outcomes = []
    for failure in FAILURES:
        for epsilon in EPSILONS:
            for degree in failure.degrees:
                network = failure.network(degree)
                scale = failure.step_factor(degree) / copies.source.strong_convexity
                algorithm = replace(copies.algorithm(epsilon), step_size=InverseTime(scale=scale))
                runs = copies.run(algorithm, network=network)
                regret = runs.regret(copies.best)[:, :, -1]
                mean, half, worst = regret.mean(), interval(regret.mean(axis=1)), regret.max(axis=1)
                of = (failure.name, degree, epsilon)
                outcomes.append(Outcome(*of, float(mean), half, float(worst.mean()), len(regret)))
                progress(f"{failure.name} {degree:g}, epsilon {name_of(epsilon)}: {mean:.4f}")
    output = Output(folder, "online-delay")
    output.records(outcomes)
    output.text(as_text(outcomes, copies.source))
    output.figure(draw(outcomes))
    return output.files


def draw(outcomes: list[Outcome]) -> Figure:
    """Draw regret over the degree of each failure; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    for ax, failure in zip(figure.subplots(2, 2).ravel(), FAILURES, strict=True):
        for epsilon in EPSILONS:
            line = _line(outcomes, failure, epsilon)
            x, y = [o.degree for o in line], np.array([o.regret for o in line])
            width = np.array([o.interval for o in line])
            ax.plot(x, y, marker="o", markersize=3, label=f"epsilon {name_of(epsilon)}")
            ax.fill_between(x, y - width, y + width, alpha=0.25)
        label_axes(ax, failure.name, "share" if "share" in failure.name else "rounds")
        ax.set(xscale="linear", yscale="log")
    return figure


def as_text(outcomes: list[Outcome], source: Source) -> str:
    """Return all regrets as one table per failure."""
    text = (
        f"Average regret for each example after {source.at[-1]} rounds, mean of {outcomes[0].runs} "
        f"runs +- 95% interval; {MOST_NODES} nodes, synthetic data, batch size 1. The paper leaves "
        "delay for later. A node mixes the newest message that it has of each neighbour and its "
        "own of this round; one that is offline, in stretches of "
        f"{OUTAGE_ROUNDS} rounds, learns alone. Late messages are broadcasts of earlier rounds: "
        "privacy is as without delay. Why delay costs regret: neighbours pull a node back to where "
        "they were d rounds ago, so that the mean moves as if steps were shorter by the factor "
        "1 + (1 - a_ii) d. With steps longer by that factor (and noise with them) most of the "
        "regret without privacy goes away."
    )
    lines = [paragraph(text)]
    for failure in FAILURES:
        columns = "".join(f"{f'epsilon {name_of(epsilon)}':>22}" for epsilon in EPSILONS)
        lines += ["", f"{failure.name:<24}{columns}"]
        both = [_line(outcomes, failure, epsilon) for epsilon in EPSILONS]
        for row in zip(*both, strict=True):
            cells = "".join(f"{with_spread(o.regret, o.interval, 4):>22}" for o in row)
            lines.append(f"{row[0].degree:<24g}{cells}")
    return "\n".join(lines)


def _line(outcomes: list[Outcome], failure: Failure, epsilon: float | None) -> list[Outcome]:
    return [o for o in outcomes if (o.failure, o.epsilon) == (failure.name, epsilon)]
