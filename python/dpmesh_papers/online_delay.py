"""Future work of the online paper: messages that arrive late, and nodes that are absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh.run import Network
from dpmesh.schedules import InverseTime
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    grid,
    interval,
    kinds,
    paragraph,
    pick,
    with_spread,
)
from dpmesh_papers.online_runs import MOST_NODES, SOURCES, PartitionedSource, epsilon_in_words, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (1.0, None)
DELAYS = (0, 1, 2, 4, 8, 16, 32, 64)
"""In rounds."""
OFFLINE = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of nodes that are offline."""
OUTAGE_ROUNDS = 20
"""Rounds of an outage of a node."""

NEIGHBOUR_WEIGHT = 0.8
"""The weight that a node gives its neighbours together, in the 4-regular graph: 1 - a_ii."""


@dataclass(frozen=True)
class Failure:
    """A kind of failure of the network.

    Parameters
    ----------
    name
        In words, before a degree.
    degrees
        The delays in rounds, or shares of nodes that are offline, to compare.
    network
        Returns the network with the failure of a degree.
    step_factor
        Factor of the step sizes that compensates for a degree.
    """

    name: str
    degrees: tuple[float, ...]
    network: Callable[[float], Network]
    step_factor: Callable[[float], float] = lambda degree: 1.0  # noqa: ARG005


def _fixed_delay(rounds: float) -> Network:
    return Network(min_delay=int(rounds), max_delay=int(rounds))


def _random_delay(most_rounds: float) -> Network:
    return Network(max_delay=int(most_rounds))


def _absence(share: float) -> Network:
    return Network(offline=share, outage_rounds=OUTAGE_ROUNDS)


FAILURES = (
    Failure("fixed delay", DELAYS, _fixed_delay),
    Failure(
        "fixed delay, long steps",
        DELAYS,
        _fixed_delay,
        step_factor=lambda delay: 1 + NEIGHBOUR_WEIGHT * delay,
    ),
    Failure("random delay up to", DELAYS, _random_delay),
    Failure("share offline", OFFLINE, _absence),
)


def delay(
    folder: Path, *, seeds: int = 3, checkpoints: int | None = None, progress: Progress = print
) -> list[Path]:
    """Measure regret under delay and absence: synthetic data, 64 nodes, epsilon 1 and no noise.

    `degree` is in rounds, or the share of nodes that are offline. Regret is the mean over runs and
    learners for each example, with half its 95% interval; `worst_regret` is the worst learner's.
    """
    (source,) = read(SOURCES[:1], checkpoints)
    data = PartitionedSource.deal(source, seeds)
    failures = {failure.name: failure for failure in FAILURES}

    def measured(cell: Row) -> Row:
        failure = failures[cell["failure"]]
        degree = cell["degree"]
        scale = failure.step_factor(degree) / data.source.strong_convexity
        step_size = InverseTime(scale=scale)
        algorithm = replace(data.algorithm(cell["epsilon"]), step_size=step_size)
        runs = data.run(algorithm, network=failure.network(degree))
        regret = runs.regret(data.best_losses)[:, :, -1]  # at the end, shape (runs, nodes)
        worst = float(regret.max(axis=1).mean())
        return {
            "regret": float(regret.mean()),
            "interval": interval(regret.mean(axis=1)),
            "worst_regret": worst,
            "runs": len(regret),
        }

    experiment = Experiment(folder, "online-delay", progress)
    cells = [
        {"failure": failure.name, "degree": degree, "epsilon": epsilon}
        for failure in FAILURES
        for epsilon in EPSILONS
        for degree in failure.degrees
    ]
    experiment.measure(cells, measured, in_words)
    return experiment.write(as_text, draw)


def in_words(row: Row) -> str:
    """Return one cell as a line."""
    return (
        f"{row['failure']} {row['degree']:g}, epsilon {epsilon_in_words(row['epsilon'])}: "
        f"{with_spread(row['regret'], row['interval'], 4)}"
    )


def draw(rows: list[Row]) -> Figure:
    """Draw regret over the degree of each failure; needs the extra ``plots``."""
    panels = []
    for failure in kinds(rows, "failure"):
        lines = lines_of(
            pick(rows, failure=failure),
            by="epsilon",
            x="degree",
            y="regret",
            spread="interval",
            name=lambda epsilon: f"epsilon {epsilon_in_words(epsilon)}",
        )
        x = "rounds"
        if "share" in failure:
            x = "share"
        panels.append(Panel(title=failure, x=x, y="average regret", log="y", lines=lines))
    return drawn(panels, columns=2)


def as_text(rows: list[Row]) -> str:
    """Return all regrets as one table per failure."""
    text = (
        f"Average regret for each example after {SOURCES[0].checkpoints[-1]} rounds, mean of "
        f"{rows[0]['runs']} runs +- 95% interval; {MOST_NODES} nodes, synthetic data, batch size "
        "1. The paper leaves delay for later. A node mixes the newest message that it has of each "
        "neighbour and its own of this round; one that is offline, in stretches of "
        f"{OUTAGE_ROUNDS} rounds, learns alone. Late messages are broadcasts of earlier rounds: "
        "privacy is as without delay. Why delay costs regret: neighbours pull a node back to where "
        "they were d rounds ago, so that the mean moves as if steps were shorter by the factor "
        "1 + (1 - a_ii) d. With steps longer by that factor (and noise with them) most of the "
        "regret without privacy goes away."
    )
    lines = [paragraph(text)]
    for failure in kinds(rows, "failure"):
        table = grid(
            pick(rows, failure=failure),
            row="degree",
            column="epsilon",
            show=lambda row: with_spread(row["regret"], row["interval"], 4),
            name=lambda degree: f"{degree:g}",
            head=lambda epsilon: f"epsilon {epsilon_in_words(epsilon)}",
            corner=failure,
            widths=(24, 22),
        )
        lines += ["", *table]
    return "\n".join(lines)
