"""Supported combinations: every algorithm with every release, on every engine, each tried.

``python .ci/composed.py`` writes the table into its page; with ``--check`` it only says whether the
page differs, or has a reason that only says what was wanted. A cell is tried, not remembered:
algorithms and their parameters come from the registry, each "no" is what the code says when it
refuses. Where an algorithm has no parameter for a release, `ABSENT` says which proof it would need.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh.algorithms.base import NOISES, AnyAlgorithm
from dpmesh.algorithms.registry import NODES, RECORDS, REGISTRY, ROUNDS
from dpmesh.deploy import Contract, SigningKey
from dpmesh.deploy.flower import DPFedLS
from dpmesh.engines.mpi import why_not
from dpmesh.experiments import Experiment
from dpmesh.settings import Settings
from dpmesh.settings.parts import Maker, part_fields
from dpmesh.topology import Topology

PAGE = Path(__file__).parents[1] / "docs" / "supported_combinations.md"
PAGE_WIDTH = 120
BEGIN, END = "<!-- begin: python .ci/composed.py -->\n", "<!-- end -->"
FEATURES, DELTA = 30, 1e-5
COLUMNS = ("Python", "file", "MPI", "contract", "Flower", "estimator")

RELEASES: dict[str, dict[str, Any]] = {
    "independent": {},
    "in time": {"noise": {"kind": "InTime"}},
    "between partners": {"noise": {"kind": "BetweenPartners"}},
    "in time and between partners": {"noise": {"kind": "Both"}},
    "random allocation": {"sampling": "allocation", "records": RECORDS},
    "private centering": {"first_stage": {"noise_to_sensitivity": 7.0}},
}
"""What is changed in an algorithm for a release."""

BATCHES, TURNS = {"batches": 2}, {"controller": {"kind": "AlwaysGlobal"}, "epsilon": 2.0}
NEEDS: dict[str, dict[str, Any]] = {
    "federated": {
        "contribution": {
            "kind": "ClientUpdates",
            "sampling": "cyclic",
            "sampling_rate": 0.5,
            "steps": 1,
        }
    },
    "online": {"delta": DELTA},
    "without-replacement": TURNS | {"delta": DELTA},
}
"""Under which parameters noise that works together is proved, where it is not for all.

Algorithms with a parameter `batches` take `BATCHES`.
"""

ABSENT = {
    ("SecureGossip", "noise"): "no proof covers sums of shares of discrete noise that is "
    "correlated in time or between partners",
    ("WithReplacement", "noise"): "a node draws its turns at random, so no public order assigns "
    "correlated noise to turns",
    ("SecureGossip", "sampling"): "all records take part in each sum: the proof covers no sampling",
    (
        "WithReplacement",
        "sampling",
    ): "its own sampling has another amplification theorem; no theorem covers both",
    ("QuantizedGossip", "sampling"): "a node's state keeps the effect of a record, so all later "
    "messages depend on the record and on its round together: the theorem does not apply",
    ("*", "sampling"): "all records, or a public batch of them, take part in each round: there is "
    "no round to keep secret",
}
"""Which proof an algorithm lacks that has no parameter for a release."""

NO_MODEL = (
    "the algorithm of `dpmesh stats`: it releases a sum of records' vectors, and has no model that "
    "an experiment could measure or an estimator predict with"
)
SCHEDULES = ("HorizonPower", "SampleSize")
FOLLOWS = ("topology", "dim", "clients", "rounds", "nodes", "estimator")


def table(made: Any) -> dict[str, Any]:
    """Return an algorithm, or a part of one, as files and contracts write it."""
    described: dict[str, Any] = {"kind": type(made).__name__}
    maker: Maker = type(made)
    known = part_fields(maker)
    for each in fields(made):
        value, default = getattr(made, each.name), each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        follows = each.name in FOLLOWS and described["kind"] not in SCHEDULES
        if follows or each.name not in known or _same(value, default):
            continue
        if each.name != "records" or described["kind"] not in ("SecureGossip", "RecordGradients"):
            described[each.name] = table(value) if is_dataclass(value) else value
    return described


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def records() -> dm.Dataset:
    """Return records of all nodes, two classes."""
    x = np.random.default_rng(0).normal(size=(NODES * RECORDS, FEATURES))
    return dm.Dataset(x / np.linalg.norm(x, axis=1, keepdims=True), np.where(x[:, 0] > 0, 1, -1))


def content(described: dict[str, Any]) -> dict[str, Any]:
    """Return what files and contracts have in common."""
    own = {name: table for name, table in described.items() if name != "first_stage"}
    before = {name: described[name] for name in described.keys() - own.keys()}
    gossips = described["kind"] not in (
        "FederatedLearning",
        "WithReplacement",
        "WithoutReplacement",
    )
    directed = described["kind"] == "PushSum"
    sparse = directed and not before  # a mean goes to all
    graph = {"kind": "random_directed", "degree": 2} if sparse else {"kind": "complete"}
    return before | {"algorithm": own} | ({"topology": graph} if gossips else {})


def experiment(described: dict[str, Any]) -> Experiment:
    """Return an experiment that names the algorithm in a file."""
    run = {
        "format": 2,
        "run": {"rounds": ROUNDS, "seed": 1, "delta": DELTA},
        "partition": {"kind": "iid", "nodes": NODES},
    }
    data = {"data": {"source": "breast_cancer"}, "problem": {"loss": "logistic"}}
    return Experiment.of(Settings(content(described) | run | data, "file"))


def contract(described: dict[str, Any]) -> Contract:
    """Return a contract that names it."""
    masked = described["kind"] in ("FederatedLearning", "SecureGossip")
    terms = {"rounds": ROUNDS, "public_key": "05" * 32, "deadline": 10.0, "features": FEATURES}
    terms |= {"quorum": NODES if masked else NODES // 2 + 1, "largest_row": 1e3}
    problem = {"loss": "logistic", "feature_norm": 1.0}
    tables = {"format": 2, "contract": terms, "problem": problem, "party": parties()}
    return Contract.of(content(described) | tables)


def parties() -> list[dict[str, Any]]:
    """Return the parties of a contract."""
    party = {"records": RECORDS, "epsilon": 1e4, "delta": DELTA}
    keys = [SigningKey.generate().public.hex() for _ in range(NODES)]
    return [{"name": f"p{i}", "signing_key": key, **party} for i, key in enumerate(keys)]


def asking() -> Contract:
    """Return a contract of questions, which are a sum of records' vectors."""
    terms = {"rounds": 1, "public_key": "05" * 32, "deadline": 10.0, "quorum": NODES}
    asked = {"ranges": {"age": [0, 100]}, "questions": {"mean": ["age"]}}
    sums = {"kind": "RecordSums", "noise_to_sensitivity": 9.0}
    tables = {"contract": terms, "algorithm": sums, "party": parties()}
    return Contract.of(asked | tables)


def sums_alone() -> list[str]:
    """Return the reasons of the row of `RecordSums`, which is in no registry."""
    sums = asking().algorithm
    alone = replace(sums, dim=FEATURES)  # type: ignore[type-var]
    tried = [lambda: ran(alone), None, lambda: on_ranks(sums), asking, asking, None]
    return [NO_MODEL if one is None else reason(one) for one in tried]


def in_estimator(algorithm: AnyAlgorithm) -> None:
    """Fit an estimator whose function makes the algorithm."""
    learns: Any = getattr(algorithm, "algorithm", algorithm)
    staged = learns is not algorithm
    own = [each.name for each in fields(learns)]
    name = next((each for each in NOISES if each in own), "epsilon")
    x, sites = records(), np.repeat(np.arange(NODES), RECORDS)
    dim = 2 * (FEATURES + staged)
    if isinstance(learns, dm.SecureGossip):
        learns = replace(learns, dim=dim)
    elif hasattr(getattr(learns, "combination", None), "dim"):
        learns = replace(learns, combination=replace(learns.combination, dim=dim))

    def made(noise: float) -> Any:
        found = replace(learns, **{name: noise if name in NOISES else 1 / noise})
        return replace(algorithm, algorithm=found) if staged else found  # type: ignore[type-var]

    model = dm.sklearn.PrivateClassifier(
        4.0,
        algorithm=made,
        rounds=ROUNDS,
        random_state=0,
        ranges=(-1, 1),
        classes=[-1, 1],
        fit_intercept=False,
    )
    model.fit(x.features, x.labels, groups=sites)


def simulated(made: Experiment) -> dm.Run:
    """Run the algorithm in one process."""
    return ran(made.algorithm, made.topology)


def ran(algorithm: AnyAlgorithm, network: Topology | None = None) -> dm.Run:
    """Run an algorithm on all records, in two rounds."""
    parts = np.split(np.arange(NODES * RECORDS), NODES)
    problem = dm.LinearProblem(records(), parts, "logistic", feature_norm=1.0)
    return dm.simulate(algorithm, problem, network, rounds=2, delta=DELTA, metrics=[])


def on_ranks(algorithm: AnyAlgorithm) -> None:
    """Fail unless MPI ranks run the algorithm."""
    if reason := why_not(algorithm):
        raise ValueError(reason)


def attempts(described: dict[str, Any]) -> list[Callable[[], object]]:
    """Return how the algorithm is tried, for each column."""
    made = cache(lambda: experiment(described))

    def on_flower() -> object:
        if reason(lambda: contract(described)) and described["kind"] == "FederatedLearning":
            return DPFedLS(made().algorithm)  # type: ignore[arg-type]
        return contract(described)

    return [
        lambda: simulated(made()),
        made,
        lambda: on_ranks(made().algorithm),
        lambda: contract(described),
        on_flower,
        lambda: in_estimator(made().algorithm),
    ]


def reason(attempt: Callable[[], object]) -> str:
    """Return why an attempt is refused; nothing if it is not."""
    try:
        attempt()
    except ValueError as error:
        text = str(error).splitlines()[0]
        return re.sub(r"^((file|contract): )?[\w.\[\]]+: |, got .*$", "", text)
    return ""


def rows() -> Iterator[tuple[str, list[str]]]:
    """Return a label and the reasons of each row: an algorithm with a release."""
    for entry in filter(lambda entry: entry.learns, REGISTRY):
        for release, change in RELEASES.items():
            field, kind = next(iter(change), ""), type(entry.example).__name__
            made, parts = table(entry.example), getattr(entry.example, "contribution", None)
            known = {"first_stage", *(each.name for each in fields(entry.example))}  # type: ignore[arg-type]
            if field == "sampling" and isinstance(parts, dm.ClientUpdates):
                change = {"contribution": made["contribution"] | {field: "allocation"}}
                known.add(field)
            why = ABSENT.get((kind, field), ABSENT.get(("*", field), ""))
            label = f"{entry.name} | {release}"
            if field and (field not in known or (kind, field) in ABSENT):
                yield label, [why] * len(COLUMNS)
                continue
            together: dict[str, Any] = {}
            if field not in ("", "first_stage"):
                in_turn = BATCHES if "batches" in part_fields(entry.kind) else {}
                together = NEEDS.get(entry.name, in_turn)
            described = made | (change | together if field == "noise" else together | change)
            yield label, [reason(attempt) for attempt in attempts(described)]
    yield "record-sums | independent", sums_alone()


def written() -> str:
    """Return the table and its reasons."""
    reasons: dict[str, int] = {}
    lines = ["| algorithm | release | " + " | ".join(COLUMNS) + " |", "|---" * 8 + "|"]
    for label, refused in rows():
        marks = (
            f"no {reasons.setdefault(why, len(reasons) + 1)}" if why else "yes" for why in refused
        )
        lines.append(f"| {label} | " + " | ".join(marks) + " |")
    notes = []
    for why, number in reasons.items():
        marker = f"{number}. "
        indent = " " * len(marker)
        note = fill(f"{marker}{why}", PAGE_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
        notes.append(note)
    return "\n".join([*lines, "", *notes, ""])


def main(check: bool) -> int:
    """Write the table into the page, or compare; return how many differ."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = f"{before}{BEGIN}{written()}{END}{after}"
    if not check:
        PAGE.write_text(new)
    elif new != page:
        print(f"{PAGE.name} has another table: run python .ci/composed.py")
    unclear = re.findall(r"^\d+\. wanted .*", new, re.M)
    for reason_in_page in unclear:
        print(f"not a reason: {reason_in_page}")
    return int(check and (new != page or bool(unclear)))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
