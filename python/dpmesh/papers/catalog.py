"""All experiments of the papers by name, for ``dpmesh reproduce NAME``."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from dpmesh._validate import fail, one_of
from dpmesh.papers._output import Tell

EXPERIMENTS = {
    "federated-figure1": "federated_signals:figure1",
    "federated-figure6": "federated_membership:figure6",
    "federated-figureS9": "federated_accountants:figure_s9",
    "federated-figureS15": "federated_signals:figure_s15",
    "federated-table2": "federated:table2",
    "federated-table4": "federated_networks:table4",
    "federated-table5": "federated_networks:table5",
    "federated-table6": "federated_networks:table6",
    "online-delay": "online_delay:delay",
    "online-figure1": "online:figure1",
    "online-figure2": "online:figure2",
    "online-mechanisms": "online_mechanisms:mechanisms",
    "online-table1": "online_table:table1",
    "quantized-figure2": "quantized:figure2",
    "quantized-figure4": "quantized_comparison:figure4",
    "quantized-figure5": "quantized:figure5",
    "quantized-grid": "quantized_grid:grid",
    "without-replacement-figure3": "without_replacement:figure3",
    "without-replacement-figure4": "without_replacement:figure4",
    "without-replacement-table1": "without_replacement:table1",
    "without-replacement-table2": "without_replacement:table2",
}
"""Name on the command line, and the function of a module of `dpmesh.papers` that runs it.

Each is called with a folder, and with ``seeds`` (number of repetitions) and ``tell`` (shows a line
of text for each finished step) if it has such parameters; it returns the files that it wrote: a
figure, a CSV, and a text with the paper's numbers beside ours. Data sets come from the folder that
the environment variable ``DPMESH_DATA`` names.
"""


def reproduce(
    name: str, folder: Path, *, seeds: int | None = None, tell: Tell = print
) -> list[Path]:
    """Run an experiment and return the files written.

    Parameters
    ----------
    name
        One of `EXPERIMENTS`.
    folder
        Where the files go; made if it is not there.
    seeds
        Number of repetitions; None for the experiment's own.
    tell
        Called with a line for each finished step.

    Raises
    ------
    ValueError
        If there is no such experiment, or it has no repetitions.
    FileNotFoundError
        If its data set is not there.
    """
    module, function = EXPERIMENTS[one_of("name", name, tuple(EXPERIMENTS))].split(":")
    run = getattr(import_module(f"dpmesh.papers.{module}"), function)
    known = signature(run).parameters
    options: dict[str, Any] = {"tell": tell} if "tell" in known else {}
    if seeds is not None:
        if "seeds" not in known:
            fail("seeds", f"none, since {name} has no repetitions", seeds)
        options["seeds"] = seeds
    files: list[Path] = run(folder, **options)
    return files
