"""All experiments of the papers by name, for ``dpmesh reproduce NAME``."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmesh._files import writable_folder
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.reproduce._output import Progress


class Reproduction(NamedTuple):
    """One table or figure.

    Attributes
    ----------
    run
        The function that runs it, as `dpmesh.reproduce` describes: ``"module:function"``.
    shows
        What it is about.
    data
        The data set that it needs: its subfolder of the folder that the environment variable
        ``DPMESH_DATA`` names.
    """

    run: str
    shows: str
    data: str = ""


REPRODUCTIONS = {
    "federated-figure1": Reproduction(
        "federated_signals:figure1", "spectrum of the federated average", "mnist"
    ),
    "federated-figure2": Reproduction(
        "federated_curves:figure2", "training with and without smoothing, by round", "mnist"
    ),
    "federated-figure4": Reproduction(
        "federated_stability:figure4", "a network under much noise", "mnist"
    ),
    "federated-figure6": Reproduction(
        "federated_membership:figure6", "membership inference over training", "mnist"
    ),
    "federated-figureS9": Reproduction(
        "federated_accountants:figure_s9", "noise by the theorems and by accountants"
    ),
    "federated-figureS15": Reproduction(
        "federated_signals:figure_s15", "error that smoothing a noisy sine takes away"
    ),
    "federated-table2": Reproduction(
        "federated:table2", "logistic regression, with and without smoothing", "mnist"
    ),
    "federated-table3": Reproduction(
        "federated_networks:table3", "a network with and without smoothing", "mnist"
    ),
    "federated-table4": Reproduction(
        "federated_networks:table4", "smoothing or shrinking", "mnist"
    ),
    "federated-table5": Reproduction(
        "federated_networks:table5", "convolution kernels smoothed in four orders", "mnist"
    ),
    "federated-table6": Reproduction(
        "federated_networks:table6", "the next character", "shakespeare"
    ),
    "online-delay": Reproduction("online_delay:delay", "regret over delay and absence"),
    "online-figure1": Reproduction("online:figure1", "regret over epsilon and over nodes", "rcv1"),
    "online-figure2": Reproduction("online:figure2", "regret with mini-batches", "rcv1"),
    "online-mechanisms": Reproduction(
        "online_mechanisms:mechanisms", "the paper's noise and better ones", "rcv1"
    ),
    "online-table1": Reproduction("online_table:table1", "accuracy of a private SVM", "rcv1"),
    "quantized-figure2": Reproduction(
        "quantized:figure2", "a network by quantizer steps and noise exponents", "mnist"
    ),
    "quantized-figure4": Reproduction(
        "quantized_comparison:figure4", "accuracy over epsilon, bits and samples", "mnist"
    ),
    "quantized-figure4c": Reproduction(
        "quantized_horizon:figure4c", "the budget over the length of a run"
    ),
    "quantized-figure5": Reproduction("quantized:figure5", "the budget over the exponents"),
    "quantized-grid": Reproduction("quantized_grid:grid", "noise on a grid, and its price"),
    "without-replacement-figure1": Reproduction(
        "without_replacement:figure1", "accuracy over epsilon, convex", "covtype"
    ),
    "without-replacement-figure2": Reproduction(
        "without_replacement:figure2", "accuracy over epsilon, strongly convex", "covtype"
    ),
    "without-replacement-figure3": Reproduction(
        "without_replacement:figure3", "accuracy over epsilon, convex", "mnist"
    ),
    "without-replacement-figure4": Reproduction(
        "without_replacement:figure4", "accuracy over epsilon, strongly convex", "mnist"
    ),
    "without-replacement-table1": Reproduction(
        "without_replacement:table1", "controllers by number of nodes", "covtype"
    ),
    "without-replacement-table2": Reproduction(
        "without_replacement:table2", "controllers by number of nodes", "mnist"
    ),
}
"""All of them, by their names on the command line."""


def reproduce(
    name: str, folder: Path, *, seeds: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run an experiment and return the files written.

    Parameters
    ----------
    name
        One of `REPRODUCTIONS`.
    folder
        Folder for the files; created if missing.
    seeds
        Number of repetitions; None for the experiment's own.
    progress
        Called with a line for each finished step.

    Raises
    ------
    ValueError
        If there is no such experiment, or it has no repetitions.
    FileNotFoundError
        If its data set is not there.
    OSError
        Before it begins, if nothing can be written into the folder.
    """
    from dpmesh.plots import COLOURS  # loads what the list of experiments does without

    module, function = REPRODUCTIONS[one_of("name", name, tuple(REPRODUCTIONS))].run.split(":")
    run = getattr(import_module(f"dpmesh.reproduce.{module}"), function)
    known = signature(run).parameters
    options: dict[str, Any] = {"progress": progress} if "progress" in known else {}
    if seeds is not None:
        if "seeds" not in known:
            fail("seeds", f"none, since {name} has no repetitions", seeds)
        options["seeds"] = seeds
    matplotlib: Any = import_module("matplotlib")  # fail now rather than after hours of runs
    with matplotlib.rc_context({"axes.prop_cycle": matplotlib.cycler(color=COLOURS)}):
        files: list[Path] = run(writable_folder(folder), **options)
    return files
