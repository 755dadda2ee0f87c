"""What comes out of a simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmesh._core import __version__
from dpmesh._files import replacing
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpmesh.privacy.views import OneNode


class Traffic(NamedTuple):
    """What crossed the network.

    Attributes
    ----------
    messages
        Number of messages over links.
    bits
        Their length together, as encoded.
    """

    messages: int
    bits: int

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self.messages + other.messages, self.bits + other.bits)

    @property
    def megabytes(self) -> float:
        """Length in 10**6 bytes."""
        return self.bits / 8e6


def in_words(
    settings: Mapping[str, Any], history: History, traffic: Traffic, privacy: Report
) -> str:
    """Describe a run: its settings, its last measurements, what it sent and what it cost."""
    lines = [f"{name:<11} {value}" for name, value in settings.items() if value != "None"]
    names = [name for name in history.metrics if name != "megabytes"]  # they have their own line
    measured = [f"{name} {history.last(name):.4g}" for name in names]
    if measured:
        lines.append(f"at the end  {', '.join(measured)}")
    lines.append(f"traffic     {traffic.megabytes:.4g} MB, {traffic.messages} messages")
    return "\n".join([*lines, str(privacy)])


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A finished simulation.

    Parameters
    ----------
    settings
        The algorithm, the network and the number of rounds, in words.
    history
        Measurements; see `History` for what they may be used for.
    ledger
        What was released: ``algorithm.plan(rounds)``, except rounds in which, by chance, nothing
        was.
    privacy
        What it cost.
    traffic
        What it sent.
    parameters
        The nodes' models after the last round, shape (nodes, dim), or (1, dim) where all share one.
        Not covered by the guarantee.
    released
        The last broadcasts as they were received, of the same shape: the models to publish.
    """

    settings: dict[str, str | int]
    history: History
    ledger: Plan
    privacy: Report
    traffic: Traffic
    parameters: Floats
    released: Released

    def __repr__(self) -> str:
        return in_words(self.settings, self.history, self.traffic, self.privacy)

    def plot(self, metric: str = "accuracy", ax: Axes | None = None) -> Axes:
        """Draw one metric over the rounds; needs the extra ``plots``."""
        import dpmesh.plots as plots

        return plots.curves({metric: self.history}, metric, ax=ax)

    def plot_views(self, view: OneNode, ax: Axes | None = None) -> Axes:
        """Draw what each node learns of each other's records, see `dpmesh.plots.views`.

        It needs a run whose budget has a view: only then is its problem part of its plan.
        """
        import dpmesh.plots as plots

        return plots.views(self.ledger, view, self.privacy.delta, ax=ax)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, in plain types that JSON can hold."""
        return {
            "dpmesh": __version__,
            "settings": self.settings,
            "privacy": self.privacy.as_dict(),
            "ledger": self.ledger.as_dict(),
            "traffic": self.traffic._asdict(),
            "history": self.history.as_dicts(),
        }

    def save(self, folder: str | Path) -> None:
        """Write ``run.json`` and the released models ``released.npy`` into a folder.

        The un-noised parameters are not written: a saved run holds nothing that was not released,
        except the history's measurements. `dpmesh.experiments.Result.load` reads ``run.json``.

        Raises
        ------
        OSError
            If the folder cannot be made or written to; what it held is then as it was.
        """
        folder = Path(folder)
        with replacing(folder / "run.json") as told:
            told.write(json.dumps(self.as_dict(), indent=1).encode())
            told.flush()  # so that on a full disk neither file is replaced
            with replacing(folder / "released.npy") as models:
                np.save(models, self.released)
