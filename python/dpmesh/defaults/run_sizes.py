"""Public sizes of a run, from which some parameters of its algorithm are filled in.

A class of algorithms, or of parts of algorithms, lists in `follows_from_sizes` the constructor
parameters that are public sizes, such as ``clients``, ``rounds`` or ``dim``. Experiment files,
contracts and `dpmesh.defaults.choose` do not state these parameters. `RunSizes.part` builds an
object of such a class with the sizes filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from dpmesh._validate import fail
from dpmesh.defaults.rule import Sizes
from dpmesh.topology import Topology

PartT = TypeVar("PartT")

Parameters: TypeAlias = dict[str, Any]
"""Keyword arguments of the constructor of an algorithm, or of a part of an algorithm."""


def names_following(kind: object) -> tuple[str, ...]:
    """Return the names of the constructor parameters of a class that public sizes determine."""
    names: tuple[str, ...] = getattr(kind, "follows_from_sizes", ())
    return names


@dataclass(frozen=True, kw_only=True)
class RunSizes:
    """Public sizes of a run, from which parameters of its algorithm follow.

    Parameters
    ----------
    nodes
        Number of nodes (sites, clients).
    rounds
        Number of rounds.
    data
        Function that returns the public sizes of the data, and may load the data; None if no
        parameter depends on them.
    topology
        Function that returns the communication graph; None without a graph.
    between_parties
        True for a contract between parties. The tables of a contract must not state parameters that
        follow from the parties. Of shared noise, the guarantee of a node counts only the secrets
        that this node itself shares.
    sums
        Function that returns the parameters of secure sums that follow from the questions of a
        contract.
    """

    nodes: int
    rounds: int
    data: Callable[[], Sizes] | None = None
    topology: Callable[[], Topology] | None = None
    between_parties: bool = False
    sums: Callable[[], Parameters] = field(default=dict)

    def part(self, kind: Callable[..., PartT], **stated: object) -> PartT:
        """Build an algorithm, or a part of an algorithm, with the public sizes filled in.

        Parameters
        ----------
        kind
            Class of the algorithm or part.
        stated
            All other arguments of its constructor. They override public sizes.
        """
        return kind(**(self.following(kind) | stated))

    def following(self, kind: Callable[..., object]) -> Parameters:
        """Return the constructor parameters of a class that follow from the sizes, with values."""
        return self.parameters(names_following(kind))

    def parameters(self, names: tuple[str, ...]) -> Parameters:
        """Return the value of each named parameter.

        ``records_per_client`` is left out if the largest number of records is not public.

        Parameters
        ----------
        names
            Names of parameters. ``records`` is the number of records of all nodes together.
        """
        parameters = {name: self._value(name) for name in names}
        if parameters.get("records_per_client", 0) is None:
            del parameters["records_per_client"]
        return parameters

    def of_data(self) -> Sizes:
        """Return the public sizes of the data.

        Raises
        ------
        ValueError
            If no function `data` is set.
        """
        if self.data is None:
            fail("data", "public sizes of the data, from which parameters follow", None)
        return self.data()

    def _value(self, name: str) -> object:
        """Return the value of one parameter; None if it is not public or there is no graph.

        The parameter ``star`` of shared noise is True between parties.
        """
        if name in ("nodes", "clients", "sites"):
            return self.nodes
        if name == "rounds":
            return self.rounds
        if name == "topology":
            if self.topology is None:
                return None
            return self.topology()
        if name == "star":
            return self.between_parties
        sizes = self.of_data()
        values: dict[str, int | None] = {
            "records": sizes.total_records,
            "records_per_client": sizes.most_records,
            "dim": sizes.dim,
        }
        return values[name]
