"""All experiments of the papers by name, for ``dpmesh reproduce``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh_papers._scaffold import Progress


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One table or figure.

    Parameters
    ----------
    run
        The function that runs it, as `dpmesh_papers` describes: ``"module:function"``.
    shows
        Its subject, in words.
    data
        The data set that it needs, empty if none: its subfolder of the folder that the environment
        variable ``DPMESH_DATA`` names.
    settings
        Arguments of the function.
    quick
        Arguments that join or replace these in a run in small, which shows that it works and
        reaches no conclusion.
    """

    run: str
    shows: str
    data: str
    settings: Mapping[str, Any]
    quick: Mapping[str, Any]

    @property
    def function(self) -> Callable[..., list[Path]]:
        """The function that `run` names."""
        module, name = self.run.split(":")
        return getattr(import_module(f"dpmesh_papers.{module}"), name)  # type: ignore[no-any-return]


def _experiment(
    run: str, shows: str, data: str = "", settings: Mapping[str, Any] | None = None, **quick: Any
) -> Reproduction:
    """Return a reproduction; further arguments are those of a run in small."""
    return Reproduction(run=run, shows=shows, data=data, settings=settings or {}, quick=quick)


def _named_after(paper: str, table: Mapping[str, Reproduction]) -> dict[str, Reproduction]:
    """Return a paper's reproductions by their full names.

    The paper's name comes before the names of the table and before the modules of its functions.
    """
    module = paper.replace("-", "_")
    return {
        f"{paper}-{name}": replace(reproduction, run=f"{module}{reproduction.run}")
        for name, reproduction in table.items()
    }


_FEDERATED = {
    "figure1": _experiment("_signals:figure1", "spectrum of the federated average", "mnist"),
    "figure2": _experiment(
        "_curves:figure2", "training with and without smoothing, by round", "mnist"
    ),
    "figure3": _experiment(
        "_stability:learning",
        "a network with and without smoothing, by round",
        "mnist",
        {"of": "mnist"},
        rounds=1,
        clients=100,
    ),
    "figure4": _experiment(
        "_stability:figure4", "a network under much noise", "mnist", rounds=4, clients=100
    ),
    "figure5": _experiment(
        "_stability:learning",
        "the next character with and without smoothing, by round",
        "shakespeare",
        {"of": "small texts"},
        rounds=1,
    ),
    "figure6": _experiment(
        "_membership:figure6", "membership inference and losses over training", "mnist", rounds=10
    ),
    "figureS7": _experiment("_accountants:figure_s7", "two inequalities of the privacy proofs"),
    "figureS9": _experiment("_accountants:figure_s9", "noise by the theorems and by accountants"),
    "figureS14": _experiment(
        "_signals:figure_s14", "gradient descent under noise, smoothed or not"
    ),
    "figureS15": _experiment("_signals:figure_s15", "error that smoothing a noisy sine takes away"),
    "table2": _experiment(":table2", "logistic regression, with and without smoothing", "mnist"),
    "table6": _experiment(
        "_networks:table",
        "the next character",
        "shakespeare",
        {"table": "table6", "data": "texts"},
        rounds=1,
    ),
    **{
        table: _experiment(
            "_networks:table", shows, "mnist", {"table": table}, rounds=1, clients=100
        )
        for table, shows in {
            "table3": "a network with and without smoothing",
            "table4": "smoothing or shrinking",
            "table5": "convolution kernels smoothed in four orders",
        }.items()
    },
}


def _on_svhn(name: str, settings: Mapping[str, Any]) -> Reproduction:
    """Return a table or figure of a network on the paper's own data."""
    return replace(
        _FEDERATED[name],
        shows=f"{_FEDERATED[name].shows}, at the paper's size: wants a GPU",
        data="svhn",
        settings=settings,
        quick={"rounds": 1, "clients": 20},
    )


_FEDERATED |= {
    f"{table}-svhn": _on_svhn(table, {"table": table, "data": "svhn"})
    for table in ("table3", "table4", "table5")
}
_FEDERATED["figure3-svhn"] = _on_svhn("figure3", {"of": "svhn"})
_ONLINE = {
    "counterexample": _experiment(
        "_counterexample:counterexample", "regret above the bound (45)", rounds=10000
    ),
    "delay": _experiment("_delay:delay", "regret over delay and absence", checkpoints=2),
    "figure1": _experiment(":figure1", "regret over epsilon and over nodes", "rcv1", checkpoints=2),
    "figure2": _experiment(":figure2", "regret with mini-batches", "rcv1", checkpoints=2),
    "mechanisms": _experiment(
        ":mechanisms", "the paper's noise and better ones", "rcv1", checkpoints=2
    ),
    "table1": _experiment(":table1", "accuracy of a private SVM", "rcv1", checkpoints=2),
}
_QUANTIZED = {
    "figure2": _experiment(
        ":figure2", "a network by quantizer steps and noise exponents", "mnist", rounds=2
    ),
    "figure4": _experiment(
        "_comparison:figure4", "accuracy over epsilon, bits and samples", "mnist", rounds=100
    ),
    "figure4-network": _experiment(
        "_comparison:figure4",
        "the same of a convolutional network",
        "mnist",
        {"of": "network", "rounds": 40},
        rounds=3,
    ),
    "figure4c": _experiment("_horizon:figure4c", "the budget over the length of a run"),
    "figure5": _experiment(":figure5", "the budget over the exponents"),
    "grid": _experiment("_grid:grid", "noise on a grid, and its price"),
}
_FOLDERS = {"Covertype": "covtype", "MNIST": "mnist"}
_WITHOUT_REPLACEMENT = {
    f"figure{number}": _experiment(
        ":figure",
        f"accuracy over epsilon, {case}",
        _FOLDERS[data],
        {"number": number, "data": data, "case": case},
        records=2000,
    )
    for number, (data, case) in enumerate(product(_FOLDERS, ("convex", "strongly convex")), 1)
}
_WITHOUT_REPLACEMENT |= {
    f"table{number}": _experiment(
        ":table", "controllers by number of nodes", folder, {"data": data}, records=2000
    )
    for number, (data, folder) in enumerate(_FOLDERS.items(), 1)
}
_WITHOUT_REPLACEMENT["table2-intercept"] = replace(
    _WITHOUT_REPLACEMENT["table2"],
    shows="full collaboration of table2 without an intercept",
    settings={"data": "MNIST", "intercept": False},
)
_OTHERS = {
    "bounds-federated": _experiment(
        "federated_bounds:bounds", "Theorem 5 as printed beside measured errors", longest=20
    ),
    "bounds-quantized": _experiment(
        "quantized_bounds:bounds", "Theorem 2, as reconstructed, beside measured gaps", longest=100
    ),
    "bounds-online": _experiment(
        "online_bounds:bounds", "Theorem 2 and Lemma 4 beside measured regret", longest=100
    ),
    "bounds-without-replacement": _experiment(
        "without_replacement_bounds:bounds", "Theorem 3 beside measured suboptimality", most=2000
    ),
    "demo": _experiment("demonstration:demonstration", "what the defaults reach on digits"),
    "online-allocated": _experiment(
        "allocated:online", "what secret rounds of documents buy at a proved epsilon of 1", "rcv1"
    ),
    "scale": _experiment(
        "scale:scale",
        "the same records at 1 to 100,000 nodes, from a ring to an expander",
        most_nodes=1000,
    ),
    "tables": _experiment(
        "tables:tables",
        "what features and a first stage buy linear models of tables",
        "covtype",
        records=2000,
    ),
    "without-replacement-allocated": _experiment(
        "allocated:without_replacement",
        "what secret mini-batches of images buy at a proved epsilon of 1",
        "mnist",
        records=2000,
    ),
}
REPRODUCTIONS = {
    **_named_after("federated", _FEDERATED),
    **_named_after("online", _ONLINE),
    **_named_after("quantized", _QUANTIZED),
    **_named_after("without-replacement", _WITHOUT_REPLACEMENT),
    **_OTHERS,
}
REPRODUCTIONS = dict(sorted(REPRODUCTIONS.items()))
"""All of them, by their names on the command line."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of an experiment of `reproduce_all`.

    Parameters
    ----------
    name
        The experiment's name.
    seconds
        Its duration.
    why
        Reason why it did not run, such as a missing data set, or failed; empty if it ran.
    failed
        True if it broke off.
    """

    name: str
    seconds: float
    why: str = ""
    failed: bool = False

    def __str__(self) -> str:
        """Return the outcome as a line."""
        ended = "done"
        if self.failed:
            ended = "failed: "
        elif self.why:
            ended = "not run: "
        return f"{self.name:<37}{self.seconds:>7.0f} s  {ended}{self.why}"


def reproduce_all(
    folder: Path, *, seeds: int | None = None, quick: bool = False, progress: Progress = print
) -> list[Outcome]:
    """Run all experiments; one that lacks its data or an extra reports it, and the others go on.

    Parameters
    ----------
    folder, quick, progress
        As in `reproduce`.
    seeds
        Number of repetitions of those that have any.

    Raises
    ------
    OSError
        Before it begins, if nothing can be written into the folder.
    """
    from dpmesh.data.loaders import FOLDER_VARIABLE

    writable_folder(folder)
    outcomes = []
    for name, reproduction in REPRODUCTIONS.items():
        progress(f"{name}: {reproduction.shows}")
        started = perf_counter()
        why = ""
        failed = False
        try:
            repeats = None
            if "seeds" in signature(reproduction.function).parameters:
                repeats = seeds
            if reproduction.data and not os.environ.get(FOLDER_VARIABLE):
                raise FileNotFoundError(f"{FOLDER_VARIABLE} is not set: wanted {reproduction.data}")
            reproduce(name, folder, seeds=repeats, quick=quick, progress=progress)
        except (FileNotFoundError, ImportError) as error:
            why = str(error)
        except Exception as error:  # the others go on
            why = f"{type(error).__name__}: {error}"
            failed = True
        seconds = perf_counter() - started
        outcomes.append(Outcome(name=name, seconds=seconds, why=why, failed=failed))
        progress(f"{outcomes[-1]}\n")
    return outcomes


def reproduce(
    name: str,
    folder: Path,
    *,
    seeds: int | None = None,
    quick: bool = False,
    progress: Progress = print,
) -> list[Path]:
    """Run an experiment and return the files written; the last one has their provenance.

    Parameters
    ----------
    name
        One of `REPRODUCTIONS`.
    folder
        Folder for the files; created if missing.
    seeds
        Number of repetitions; None for the experiment's own.
    quick
        Run it in small, and one repetition unless `seeds` are given.
    progress
        Called with a line for each finished step.

    Raises
    ------
    ValueError
        If there is no such experiment, or it has no repetitions.
    FileNotFoundError
        If its data set is not there.
    IncompleteError, KeyboardInterrupt
        After the files are written, if some cells failed, or an interrupt ended the run.
    OSError
        Before it begins, if nothing can be written into the folder.
    """
    from dpmesh.plots import COLOURS  # loads what the list of experiments does without
    from dpmesh_papers._output import provenance
    from dpmesh_papers._scaffold import INTERRUPTED, IncompleteError

    reproduction = REPRODUCTIONS[one_of("name", name, tuple(REPRODUCTIONS))]
    parameters = signature(reproduction.function).parameters
    settings = {**reproduction.settings}
    if quick:
        settings |= reproduction.quick
    if "seeds" in parameters:
        default_seeds = 1 if quick else parameters["seeds"].default
        settings["seeds"] = default_seeds if seeds is None else seeds
    elif seeds is not None:
        fail("seeds", f"none, since {name} has no repetitions", seeds)
    reporting = {"progress": progress} if "progress" in parameters else {}
    matplotlib: Any = import_module("matplotlib")  # fail now rather than after hours of runs
    keys = "Key.seeded(0), Key.seeded(1), .. up to the number of seeds"
    writable_folder(folder)
    record = provenance(experiment=name, quick=quick, **settings, keys=keys)
    record_file = folder / f"{name}.json"
    started = perf_counter()
    try:
        with matplotlib.rc_context({"axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
            files = reproduction.function(folder, **settings, **reporting)
    except (IncompleteError, KeyboardInterrupt) as error:
        record["failed"] = getattr(error, "failures", [INTERRUPTED])
        raise
    finally:
        record["seconds"] = round(perf_counter() - started, 1)
        replace_text(record_file, json.dumps(record, indent=1) + "\n")
    return [*files, record_file]
