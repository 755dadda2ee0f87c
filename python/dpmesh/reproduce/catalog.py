"""All experiments of the papers by name, for ``dpmesh reproduce``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.reproduce._output import Progress


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One table or figure.

    Parameters
    ----------
    run
        The function that runs it, as `dpmesh.reproduce` describes: ``"module:function"``.
    shows
        What it is about.
    data
        The data set that it needs: its subfolder of the folder that the environment variable
        ``DPMESH_DATA`` names.
    settings
        Arguments of the function.
    quick
        More of them, for a run in small that shows that it works and reaches no conclusion.
    """

    run: str
    shows: str
    data: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., list[Path]]:
        """The function itself."""
        module, name = self.run.split(":")
        return getattr(import_module(f"dpmesh.reproduce.{module}"), name)  # type: ignore[no-any-return]


REPRODUCTIONS = {
    "federated-figure1": Reproduction(
        run="federated_signals:figure1", shows="spectrum of the federated average", data="mnist"
    ),
    "federated-figure2": Reproduction(
        run="federated_curves:figure2",
        shows="training with and without smoothing, by round",
        data="mnist",
    ),
    "federated-figure3": Reproduction(
        run="federated_stability:learning",
        shows="a network with and without smoothing, by round",
        data="mnist",
        settings={"of": "images"},
        quick={"rounds": 1},
    ),
    "federated-figure4": Reproduction(
        run="federated_stability:figure4",
        shows="a network under much noise",
        data="mnist",
        quick={"rounds": 4},
    ),
    "federated-figure5": Reproduction(
        run="federated_stability:learning",
        shows="the next character with and without smoothing, by round",
        data="shakespeare",
        settings={"of": "texts"},
        quick={"rounds": 1},
    ),
    "federated-figure6": Reproduction(
        run="federated_membership:figure6",
        shows="membership inference and losses over training",
        data="mnist",
        quick={"rounds": 10},
    ),
    "federated-figureS7": Reproduction(
        run="federated_accountants:figure_s7", shows="two inequalities of the privacy proofs"
    ),
    "federated-figureS9": Reproduction(
        run="federated_accountants:figure_s9", shows="noise by the theorems and by accountants"
    ),
    "federated-figureS14": Reproduction(
        run="federated_signals:figure_s14", shows="gradient descent under noise, smoothed or not"
    ),
    "federated-figureS15": Reproduction(
        run="federated_signals:figure_s15", shows="error that smoothing a noisy sine takes away"
    ),
    "federated-table2": Reproduction(
        run="federated:table2",
        shows="logistic regression, with and without smoothing",
        data="mnist",
    ),
    "federated-table3": Reproduction(
        run="federated_networks:images",
        shows="a network with and without smoothing",
        data="mnist",
        settings={"table": "table3"},
        quick={"rounds": 1},
    ),
    "federated-table4": Reproduction(
        run="federated_networks:images",
        shows="smoothing or shrinking",
        data="mnist",
        settings={"table": "table4"},
        quick={"rounds": 1},
    ),
    "federated-table5": Reproduction(
        run="federated_networks:images",
        shows="convolution kernels smoothed in four orders",
        data="mnist",
        settings={"table": "table5"},
        quick={"rounds": 1},
    ),
    "federated-table6": Reproduction(
        run="federated_networks:table6",
        shows="the next character",
        data="shakespeare",
        quick={"rounds": 1},
    ),
    "online-counterexample": Reproduction(
        run="online_counterexample:counterexample",
        shows="regret above the bound (45)",
        quick={"rounds": 10_000},
    ),
    "online-allocated": Reproduction(
        run="allocated:online",
        shows="what secret rounds of documents buy at a proved epsilon of 1",
        data="rcv1",
    ),
    "online-delay": Reproduction(
        run="online_delay:delay", shows="regret over delay and absence", quick={"checkpoints": 2}
    ),
    "online-figure1": Reproduction(
        run="online:figure1",
        shows="regret over epsilon and over nodes",
        data="rcv1",
        quick={"checkpoints": 2},
    ),
    "online-figure2": Reproduction(
        run="online:figure2",
        shows="regret with mini-batches",
        data="rcv1",
        quick={"checkpoints": 2},
    ),
    "online-mechanisms": Reproduction(
        run="online:mechanisms",
        shows="the paper's noise and better ones",
        data="rcv1",
        quick={"checkpoints": 2},
    ),
    "online-table1": Reproduction(
        run="online:table1",
        shows="accuracy of a private SVM",
        data="rcv1",
        quick={"checkpoints": 2},
    ),
    "quantized-figure2": Reproduction(
        run="quantized:figure2",
        shows="a network by quantizer steps and noise exponents",
        data="mnist",
        quick={"rounds": 15},
    ),
    "quantized-figure4": Reproduction(
        run="quantized_comparison:figure4",
        shows="accuracy over epsilon, bits and samples",
        data="mnist",
        quick={"rounds": 100},
    ),
    "quantized-figure4-network": Reproduction(
        run="quantized_comparison:figure4",
        shows="the same of a convolutional network",
        data="mnist",
        settings={"of": "network", "rounds": 40},
        quick={"rounds": 3},
    ),
    "quantized-figure4c": Reproduction(
        run="quantized_horizon:figure4c", shows="the budget over the length of a run"
    ),
    "quantized-figure5": Reproduction(
        run="quantized:figure5", shows="the budget over the exponents"
    ),
    "quantized-grid": Reproduction(
        run="quantized_grid:grid", shows="noise on a grid, and its price"
    ),
    "scale": Reproduction(
        run="scale:scale",
        shows="the same records at 1 to 100,000 nodes, from a ring to an expander",
        quick={"most": 1000},
    ),
    "without-replacement-allocated": Reproduction(
        run="allocated:without_replacement",
        shows="what secret mini-batches of images buy at a proved epsilon of 1",
        data="mnist",
        quick={"records": 2000},
    ),
    "without-replacement-figure1": Reproduction(
        run="without_replacement:figure",
        shows="accuracy over epsilon, convex",
        data="covtype",
        settings={"number": 1, "data": "Covertype", "case": "convex"},
        quick={"records": 2000},
    ),
    "without-replacement-figure2": Reproduction(
        run="without_replacement:figure",
        shows="accuracy over epsilon, strongly convex",
        data="covtype",
        settings={"number": 2, "data": "Covertype", "case": "strongly convex"},
        quick={"records": 2000},
    ),
    "without-replacement-figure3": Reproduction(
        run="without_replacement:figure",
        shows="accuracy over epsilon, convex",
        data="mnist",
        settings={"number": 3, "data": "MNIST", "case": "convex"},
        quick={"records": 2000},
    ),
    "without-replacement-figure4": Reproduction(
        run="without_replacement:figure",
        shows="accuracy over epsilon, strongly convex",
        data="mnist",
        settings={"number": 4, "data": "MNIST", "case": "strongly convex"},
        quick={"records": 2000},
    ),
    "without-replacement-table1": Reproduction(
        run="without_replacement:table",
        shows="controllers by number of nodes",
        data="covtype",
        settings={"data": "Covertype"},
        quick={"records": 2000},
    ),
    "without-replacement-table2": Reproduction(
        run="without_replacement:table",
        shows="controllers by number of nodes",
        data="mnist",
        settings={"data": "MNIST"},
        quick={"records": 2000},
    ),
}
"""All of them, by their names on the command line."""

REPRODUCTIONS |= {
    f"federated-{table}-svhn": Reproduction(
        run="federated_networks:images",
        shows=f"{REPRODUCTIONS[f'federated-{table}'].shows}, at the paper's size: wants a GPU",
        data="svhn",
        settings={"table": table, "data": "svhn"},
        quick={"rounds": 1, "clients": 20},
    )
    for table in ("table3", "table4", "table5")
}
REPRODUCTIONS["federated-figure3-svhn"] = Reproduction(
    run="federated_stability:learning",
    shows="a network with and without smoothing, by round, at the paper's size: wants a GPU",
    data="svhn",
    settings={"of": "svhn"},
    quick={"rounds": 1, "clients": 20},
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an experiment of `reproduce_all` ended.

    Parameters
    ----------
    name
        Which.
    seconds
        That it took.
    why
        What it lacks, such as a data set, or why it failed; empty if it ran.
    failed
        Whether it broke off.
    """

    name: str
    seconds: float
    why: str = ""
    failed: bool = False

    def __str__(self) -> str:
        """Return it as a line."""
        ended = "failed: " if self.failed else "not run: " if self.why else "done"
        return f"{self.name:<29}{self.seconds:>7.0f} s  {ended}{self.why}"


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
    for name, shown in REPRODUCTIONS.items():
        progress(f"{name}: {shown.shows}")
        begin, why, failed = perf_counter(), "", False
        repeats = seeds if "seeds" in signature(shown.function).parameters else None
        try:
            if shown.data and not os.environ.get(FOLDER_VARIABLE):
                raise FileNotFoundError(f"{FOLDER_VARIABLE} is not set: wanted {shown.data}")
            reproduce(name, folder, seeds=repeats, quick=quick, progress=progress)
        except (FileNotFoundError, ImportError) as error:
            why = str(error)
        except Exception as error:  # the others go on
            why, failed = f"{type(error).__name__}: {error}", True
        seconds = perf_counter() - begin
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
    """Run an experiment and return the files written, the last with what made them.

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
    IncompleteError
        After the files are written, if some cells failed.
    OSError
        Before it begins, if nothing can be written into the folder.
    """
    from dpmesh.plots import COLOURS  # loads what the list of experiments does without
    from dpmesh.reproduce._output import made
    from dpmesh.reproduce._scaffold import IncompleteError

    shown = REPRODUCTIONS[one_of("name", name, tuple(REPRODUCTIONS))]
    known = signature(shown.function).parameters
    if seeds is None and quick and "seeds" in known:
        seeds = 1
    if seeds is not None and "seeds" not in known:
        fail("seeds", f"none, since {name} has no repetitions", seeds)
    settings = {**shown.settings, **(shown.quick if quick else {})}
    if "seeds" in known:
        settings["seeds"] = known["seeds"].default if seeds is None else seeds
    shows = {"progress": progress} if "progress" in known else {}
    matplotlib: Any = import_module("matplotlib")  # fail now rather than after hours of runs
    keys = "Key.seeded(0), Key.seeded(1), .. up to the number of seeds"
    writable_folder(folder)
    by, begin = made(experiment=name, quick=quick, **settings, keys=keys), perf_counter()
    try:
        with matplotlib.rc_context({"axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
            files = shown.function(folder, **settings, **shows)
    except IncompleteError as error:
        by["failed"] = error.failures
        raise
    finally:
        by["seconds"] = round(perf_counter() - begin, 1)
        replace_text(folder / f"{name}.json", json.dumps(by, indent=1) + "\n")
    return [*files, folder / f"{name}.json"]
