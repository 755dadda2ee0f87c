"""The demo: two federations of real digits, one whose sites need each other, one of equal sites."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dpmesh as dm
import dpmesh.plots.panels as figures
import dpmesh.run.baselines as baselines
from dpmesh._files import replace_text, replacing
from dpmesh.data import Dataset, digits, iid, train_test_split
from dpmesh.defaults import Method, Sizes, choose
from dpmesh.keys import Key, Purpose, generator
from dpmesh.plots.panels import interval
from dpmesh.privacy.report import Report
from dpmesh.problems import LinearProblem
from dpmesh.run.verdict import Verdict
from dpmesh.tables import Columns

EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
KEYS = 5

LITTLE = 0.1
"""Gain of accuracy over single sites; an improvement below it at every epsilon is called little."""

_METHODS: tuple[Method, ...] = ("secure", "gossip")

FEDERATIONS = 2
"""Panels: a federation that improves on single sites, and one that improves little."""

RUNS = FEDERATIONS * len(EPSILONS) * len(_METHODS) * KEYS
"""Private runs of the demo, single sites apart."""


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
        """Answer whether secure aggregation beats single sites, and from which epsilon on."""
        pays = [own.claim == "better" for own in self.secure]
        if not any(pays):
            return "No improvement on single sites"
        little = all(own.gain.mean < LITTLE for own in self.secure)
        how = "Little improvement on single sites" if little else "Improves on single sites"
        if not all(pays):
            how = f"{how}, from epsilon {EPSILONS[pays.index(True)]:g} on"
        if all(own.no_site_gains for own in self.secure):
            how = f"{how}, but not on records like their own"
        return how

    @property
    def sentence(self) -> str:
        """The verdict at epsilon 2, in a sentence."""
        return self.secure[1].sentence

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """Return the lines of a table: a name, and a text for each epsilon."""
        beside = [own.baselines for own in self.secure]
        yield self.secure[0].trivial, [f"{own.chance:.1%}" for own in beside]
        yield "single site, without privacy", [f"{own.alone.mean():.1%}" for own in beside]
        private = [own.alone_private for own in beside if own.alone_private is not None]
        yield "single site, private", [f"{own.mean():.1%}" for own in private]
        for name, found in (("gossip", self.gossip), ("secure aggregation", self.secure)):
            each = [f"{own.score:.1%} +- {100 * scores(own).std():.1f}" for own in found]
            yield f"federation, {name}", each
        yield "centralized, without privacy", [f"{own.pooled:.1%}" for own in beside]
        claims = [str(own.claim) for own in self.secure]
        yield "secure aggregation against single sites", claims
        populations = [own.rows_by_population for own in self.secure]
        if all(len(rows) > 1 for rows in populations):
            own_records = [rows[1] for rows in populations]
            yield "own records: single site", [f"{row.single_site:.1%}" for row in own_records]
            federation = [f"{row.federation:.1%}" for row in own_records]
            yield "own records: secure aggregation", federation
            join = ["do not join" if own.no_site_gains else "-" for own in self.secure]
            yield "for records like its own", join

    def as_dict(self) -> dict[str, Any]:
        """Return the panel in plain types that JSON can hold."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "epsilons": EPSILONS,
            "claims": [own.claim for own in self.secure],
            "populations": [
                [population.as_dict() for population in own.populations] for own in self.secure
            ],
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
    one = "10 sites, each sees two of ten digits"
    other = f"16 sites that are alike, {len(alike[-1])} records each, even or odd"
    return {
        one: LinearProblem(train, pairs, "softmax", test=test, classes=10),
        other: LinearProblem(even[0], alike, "softmax", test=even[1], classes=2),
    }


def _nothing() -> None:
    """Show no progress."""


def run_demo(
    key: Key, on_panel: Callable[[Panel], None], on_run: Callable[[], object] = _nothing
) -> list[Panel]:
    """Learn at each epsilon on five splits; call `on_panel` with every finished panel.

    `on_run` is called after each of the `RUNS` runs. Each run has noise of its own: from new keys,
    or from seeds that follow from a seeded `key`.
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
                runs = []
                for problem in every:
                    runs.append(_run(problem, epsilon, method, seeds))
                    on_run()
                pairs = zip(every, runs, strict=True)
                measured = [baselines.measured(problem, run.released) for problem, run in pairs]
                populations = [
                    baselines.population_of(problem, run.released)
                    for problem, run in zip(every, runs, strict=True)
                ]
                privacy_of_runs = runs[-1].privacy
                verdict = Verdict(
                    measured=measured,
                    beside=plain,
                    epsilon=epsilon,
                    populations=populations,
                    protects=privacy_of_runs.unit,
                    adversary=privacy_of_runs.adversary_in_brief,
                )
                found[method].append(verdict)
                if method == "secure":
                    privacy.append(runs[-1].privacy)
            own = baselines.compute(every[0], epsilon=epsilon, delta=DELTA, key=_own_key(seeds))
            found["secure"][-1] = replace(found["secure"][-1], beside=[own, *plain[1:]])
        own_scores: Any = {method: tuple(verdicts) for method, verdicts in found.items()}
        panels.append(Panel(title=title, privacy=tuple(privacy), **own_scores))
        on_panel(panels[-1])
    return panels


def _run(
    problem: LinearProblem, epsilon: float, method: Method, seeds: np.random.Generator | None
) -> dm.Run:
    choice = choose(Sizes.of(problem), epsilon=epsilon, delta=DELTA, algorithm=method)
    how: Any = {"rounds": choice.rounds, "metrics": dm.Metrics([], progress=False)}
    key = _own_key(seeds)
    return dm.simulate(choice.algorithm, problem, choice.topology, key=key, delta=DELTA, **how)


def save(panels: list[Panel], folder: Path) -> tuple[Path, Path]:
    """Write one figure and one JSON file.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    figure = figures.drawn([_drawn(panel) for panel in panels])
    picture, numbers = folder / "demo.png", folder / "demo.json"
    with replacing(picture) as file:
        figure.savefig(file, format="png", dpi=150)
    replace_text(numbers, json.dumps([panel.as_dict() for panel in panels], indent=1))
    return picture, numbers


def _drawn(panel: Panel) -> figures.Panel:
    """Return accuracy against epsilon beside the baselines; bands are 95% intervals."""
    beside = [own.baselines for own in panel.secure]
    plain, lines = beside[0], []
    for label, found in (("secure sum, private", panel.secure), ("gossip, private", panel.gossip)):
        values = [scores(own) for own in found]
        means, spread = (
            [float(own.mean()) for own in values],
            [interval(own.tolist()) for own in values],
        )
        lines.append(figures.Line(label=label, x=EPSILONS, y=means, spread=spread))
    private = [float(own.alone_private.mean()) for own in beside if own.alone_private is not None]
    lines.append(figures.Line(label="one site alone, private", x=EPSILONS, y=private))
    levels = {"all records pooled, not private": plain.pooled, "chance": plain.chance}
    levels["one site alone, not private"] = float(plain.alone.mean())
    return figures.Panel(
        title=f"{panel.verdict}: {panel.title}",
        lines=lines,
        x=f"epsilon of the whole run, at delta {DELTA:g}",
        y="accuracy on digits of all sites",
        levels=levels,
        log="x",
        ticks=EPSILONS,
        limits=(0.4 if plain.chance > 0.4 else 0.0, 1.0),
        kind="bands",
    )


def _two_digits_each(train: Dataset, draw: np.random.Generator) -> tuple[npt.NDArray[Any], ...]:
    """Give site i one half of digit i and one half of digit i + 1."""
    halves = [
        np.array_split(draw.permutation(np.flatnonzero(train.labels == digit)), 2)
        for digit in range(10)
    ]
    return tuple(np.concatenate([halves[i][0], halves[(i + 1) % 10][1]]) for i in range(10))


def _own_key(seeds: np.random.Generator | None) -> Key | None:
    return None if seeds is None else Key.seeded(int(seeds.integers(2**62)))
