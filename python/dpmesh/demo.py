"""The first thing that a user runs: where sharing pays, and where it does not, on real digits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import dpmesh as dm
import dpmesh.run.baselines as baselines
from dpmesh._files import replace_text, replacing
from dpmesh.data import Dataset, digits, iid, train_test_split
from dpmesh.defaults import Method, Sizes, choose
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.report import Report
from dpmesh.problems import LinearProblem
from dpmesh.ranges import Columns
from dpmesh.run.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
KEYS = 5

LITTLE = 0.1
"""A federation pays little that gains less accuracy than this over a site alone, at any epsilon."""

_METHODS: tuple[Method, ...] = ("secure", "gossip")
_OURS, _GOSSIP, _ALONE, _PRIVATE, _POOLED = "#0072B2", "#009E73", "#D55E00", "#E69F00", "#333333"


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """A federation at several epsilons, beside its baselines; five splits, each with its own keys.

    Parameters
    ----------
    title
        Whose data these are.
    secure, gossip
        Of each epsilon, the scores of the models that a secure sum and gossip release, beside
        chance, sites alone (private ones on the first split) and pooled records.
    privacy
        The privacy report of the last secure sum of each epsilon.
    """

    title: str
    secure: tuple[Verdict, ...]
    gossip: tuple[Verdict, ...]
    privacy: tuple[Report, ...]

    @property
    def verdict(self) -> str:
        """Whether a secure sum clearly beats sites that work alone, and from which epsilon on."""
        pays = [own.claim == "better" for own in self.secure]
        if not any(pays):
            return "Sharing does not pay"
        little = all(own.gain.mean < LITTLE for own in self.secure)
        how = "Sharing pays little" if little else "Sharing pays"
        return how if all(pays) else f"{how}, from epsilon {EPSILONS[pays.index(True)]:g} on"

    @property
    def sentence(self) -> str:
        """Whether sharing paid at epsilon 2, in a sentence."""
        return self.secure[1].sentence

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """Return the lines of a table: a name, and a text for each epsilon."""
        beside = [own.baselines for own in self.secure]
        yield "chance", [f"{own.chance:.1%}" for own in beside]
        yield "one site alone, without privacy", [f"{own.alone.mean():.1%}" for own in beside]
        private = [own.alone_private for own in beside]
        yield (
            "one site alone, private",
            [f"{own.mean():.1%}" for own in private if own is not None],
        )
        for name, found in (("gossip", self.gossip), ("secure sum", self.secure)):
            yield (
                f"the federation, private, {name}",
                [f"{own.score:.1%} +- {100 * scores(own).std():.1f}" for own in found],
            )
        yield "all records pooled, without privacy", [f"{own.pooled:.1%}" for own in beside]
        shown = {"no clear difference": "not clear"}
        claims = [shown.get(str(own.claim), str(own.claim)) for own in self.secure]
        yield "a secure sum beside a site alone", claims

    def as_dict(self) -> dict[str, Any]:
        """Return the panel in plain types that JSON can hold."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "epsilons": EPSILONS,
            "claims": [own.claim for own in self.secure],
            "scores": [scores(own).tolist() for own in self.secure],
            "gossip": [scores(own).tolist() for own in self.gossip],
            "baselines": [own.baselines.as_dict() for own in self.secure],
            "privacy": [own.as_dict() for own in self.privacy],
        }


def scores(verdict: Verdict) -> npt.NDArray[np.float64]:
    """Return the federation's accuracy on each split."""
    return np.array([own["accuracy"] for own in verdict.measured])


def problems(key: Key) -> dict[str, LinearProblem]:
    """Return handwritten digits as two federations have them, by title; a quarter is for testing.

    In the first each of ten sites sees two of the ten digits. In the second sixteen sites see the
    same mix of even and odd digits.
    """
    raw = digits()
    columns = Columns.of((0, 1), range(raw.dim))
    encoded = columns.encode(list(np.asarray(raw.features).T)).features
    dataset = Dataset(encoded, raw.labels, raw.name)
    draw = generator(key, Purpose.SPLIT)
    train, test = train_test_split(dataset, 0.25, draw)
    pairs = _two_digits_each(train, draw)
    even = [part.relabelled(lambda digit: (digit % 2 == 0).astype(int)) for part in (train, test)]
    alike = iid(train, 16, draw)
    return {
        "10 sites, each sees two of ten digits": LinearProblem(
            train, pairs, "softmax", test=test, classes=10
        ),
        f"16 sites that are alike, {len(alike[-1])} records each, even or odd": LinearProblem(
            even[0], alike, "softmax", test=even[1], classes=2
        ),
    }


def run_demo(key: Key, on_panel: Callable[[Panel], None]) -> list[Panel]:
    """Learn at each epsilon on five splits; call `on_panel` with every finished panel.

    Each run has noise of its own: from new keys, or from seeds that follow from a seeded `key`.
    """
    seeds = generator(key, Purpose.INIT) if key.is_seeded else None
    splits = [problems(_own_key(seeds) or Key.generate()) for _ in range(KEYS)]
    panels = []
    for title in splits[0]:
        every = [split[title] for split in splits]
        plain = [baselines.compute(problem) for problem in every]
        found: dict[Method, list[Verdict]] = {method: [] for method in _METHODS}
        privacy = []
        for epsilon in EPSILONS:
            for method in _METHODS:
                runs = [_run(problem, epsilon, method, seeds) for problem in every]
                measured = [
                    baselines.measured(problem, run.released)
                    for problem, run in zip(every, runs, strict=True)
                ]
                found[method].append(Verdict(measured=measured, beside=plain, epsilon=epsilon))
                if method == "secure":
                    privacy.append(runs[-1].privacy)
            own = baselines.compute(every[0], epsilon=epsilon, delta=DELTA, key=_own_key(seeds))
            found["secure"][-1] = replace(found["secure"][-1], beside=[own, *plain[1:]])
        panel = Panel(
            title=title,
            secure=tuple(found["secure"]),
            gossip=tuple(found["gossip"]),
            privacy=tuple(privacy),
        )
        panels.append(panel)
        on_panel(panel)
    return panels


def _run(
    problem: LinearProblem, epsilon: float, method: Method, seeds: np.random.Generator | None
) -> dm.Run:
    choice = choose(Sizes.of(problem), epsilon=epsilon, delta=DELTA, algorithm=method)
    return dm.simulate(
        choice.algorithm,
        problem,
        choice.topology,
        rounds=choice.rounds,
        key=_own_key(seeds),
        delta=DELTA,
        metrics=dm.Metrics([], progress=False),
    )


def save(panels: list[Panel], folder: Path) -> tuple[Path, Path]:
    """Write one figure and one JSON file.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.8), layout="constrained")
    for ax, panel in zip(figure.subplots(1, 2), panels, strict=True):
        _draw(panel, ax)
    picture, numbers = folder / "demo.png", folder / "demo.json"
    with replacing(picture) as file:
        figure.savefig(file, format="png", dpi=150)
    replace_text(numbers, json.dumps([panel.as_dict() for panel in panels], indent=1))
    return picture, numbers


def _two_digits_each(train: Dataset, draw: np.random.Generator) -> tuple[npt.NDArray[Any], ...]:
    """Give site i one half of digit i and one half of digit i + 1."""
    halves = [
        np.array_split(draw.permutation(np.flatnonzero(train.labels == digit)), 2)
        for digit in range(10)
    ]
    return tuple(np.concatenate([halves[i][0], halves[(i + 1) % 10][1]]) for i in range(10))


def _own_key(seeds: np.random.Generator | None) -> Key | None:
    return None if seeds is None else Key.seeded(int(seeds.integers(2**62)))


def _draw(panel: Panel, ax: Axes) -> None:
    """Draw accuracy against epsilon beside the baselines, each named at its right end."""
    from matplotlib.patheffects import withStroke

    places, every = np.arange(len(EPSILONS)), [own.baselines for own in panel.secure]
    private = [own.alone_private.mean() for own in every if own.alone_private is not None]
    plain, secure = every[0], np.array([scores(own) for own in panel.secure])
    gossip = np.array([scores(own) for own in panel.gossip])
    last, lowest = len(EPSILONS) - 0.75, 0.4 if plain.chance > 0.4 else 0.0
    ax.axhspan(plain.alone.min(), plain.alone.max(), color=_ALONE, alpha=0.13, linewidth=0)
    levels = ((plain.pooled, _POOLED, "--"), (plain.chance, _POOLED, ":"))
    for level, colour, style in (*levels, (float(plain.alone.mean()), _ALONE, "-")):
        ax.axhline(level, color=colour, linestyle=style, linewidth=1.4)
    ax.plot(places, private, "s--", color=_PRIVATE, markersize=5)
    for found, colour, width, above in ((gossip, _GOSSIP, 1.8, False), (secure, _OURS, 2.8, True)):
        low, means, high = found.min(axis=1), found.mean(axis=1), found.max(axis=1)
        ax.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(places, means, "o-", color=colour, linewidth=width)
        for place, value in zip(places, means, strict=True):
            ax.annotate(
                f"{value:.0%}",
                (place, value),
                xytext=(0, 10 if above else -17),
                textcoords="offset points",
                ha="center",
                fontsize=11 if above else 9.5,
                fontweight="bold" if above else "normal",
                color=colour,
                path_effects=[withStroke(linewidth=4, foreground="white")],
            )
    ends = {
        "all records pooled,\nnot private": (plain.pooled, _POOLED),
        "secure sum,\nprivate": (secure[-1].mean(), _OURS),
        "gossip,\nprivate": (gossip[-1].mean(), _GOSSIP),
        "one site alone,\nnot private": (float(plain.alone.mean()), _ALONE),
        "one site alone,\nprivate": (private[-1], _PRIVATE),
        "chance": (plain.chance, _POOLED),
    }
    for (name, (_, colour)), level in zip(
        ends.items(),
        _apart([level for level, _ in ends.values()], 0.085 * (1 - lowest)),
        strict=True,
    ):
        bold = "bold" if colour == _OURS else "normal"
        ax.text(last + 0.06, level, name, color=colour, fontsize=9, va="center", fontweight=bold)
    ax.set_xticks(places, labels=[f"{epsilon:g}" for epsilon in EPSILONS])
    ax.set_xlim(-0.3, last)
    ax.set_ylim(lowest, 1)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel("epsilon of the whole run, at delta 1e-5 (left: more private)")
    ax.set_ylabel("accuracy on digits of all sites")
    ax.set_title(panel.verdict, loc="left", fontsize=15, fontweight="bold", pad=24)
    ax.text(0, 1.025, panel.title, transform=ax.transAxes, fontsize=10.5, color="0.35")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(axis="y", alpha=0.25)


def _apart(levels: list[float], gap: float) -> list[float]:
    """Return heights of labels in their order of height, at least `gap` apart, near their lines."""
    order = sorted(range(len(levels)), key=lambda i: levels[i])
    placed = list(levels)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    excess = max(0.0, placed[order[-1]] - 0.99)
    placed[order[-1]] -= excess
    for above, below in pairwise(order[::-1]):
        placed[below] = min(placed[below], placed[above] - gap)
    return placed
