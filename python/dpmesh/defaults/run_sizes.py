"""Public sizes of a run, and the parameters of algorithms and of their parts that follow from them.

Files, contracts and the rule for a budget fill in the same parameters: those that a class names in
its `follows_from_sizes`.
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
"""Arguments of an algorithm or of a part, by name, in the types of their fields."""


def names_following(kind: object) -> tuple[str, ...]:
    """Return the names of the parameters of an algorithm or part that public sizes determine."""
    names: tuple[str, ...] = getattr(kind, "follows_from_sizes", ())
    return names


@dataclass(frozen=True, kw_only=True)
class RunSizes:
    """Public sizes of a run, from which parameters of its algorithm follow.

    Parameters
    ----------
    nodes
        Number of nodes: sites, clients.
    rounds
        Number of rounds.
    data
        Returns the public sizes of the data, which it may have to load; None if no parameter
        follows from them.
    topology
        Returns the network; None without one.
    between_parties
        True for a contract. Its tables must not state what follows from the parties, and a node
        counts only the secrets of its partners.
    sums
        Returns parameters of sums that follow from the questions of a contract.
    """

    nodes: int
    rounds: int
    data: Callable[[], Sizes] | None = None
    topology: Callable[[], Topology] | None = None
    between_parties: bool = False
    sums: Callable[[], Parameters] = field(default=dict)

    def part(self, kind: Callable[..., PartT], **stated: object) -> PartT:
        """Return an algorithm, or a part of one, with the parameters that follow from the sizes.

        Parameters
        ----------
        kind
            Its class.
        stated
            The other parameters.
        """
        return kind(**(self.following(kind) | stated))

    def following(self, kind: Callable[..., object]) -> Parameters:
        """Return the parameters of an algorithm or part that follow from the sizes."""
        return self.parameters(names_following(kind))

    def parameters(self, names: tuple[str, ...]) -> Parameters:
        """Return the values of parameters; the largest count of records only if it is public.

        Parameters
        ----------
        names
            Names of parameters. ``records`` are those of all nodes together.
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
            If there are none.
        """
        if self.data is None:
            fail("data", "public sizes of the data, from which parameters follow", None)
        return self.data()

    def _value(self, name: str) -> object:
        """Return the value of a parameter; None without a topology, or if it is not public.

        The parameter ``star`` is True where a node knows only the secrets of its partners.
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
            "records": sizes.together,
            "records_per_client": sizes.largest,
            "dim": sizes.dim,
        }
        return values[name]
