"""The algorithm and the topology that a contract's tables describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpmesh._validate import instance
from dpmesh.algorithms.base import Algorithm, AnyAlgorithm
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.keys import Key
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, VALUES, entries
from dpmesh.topology import Topology, edge_dropping


@dataclass(frozen=True)
class Assembly:
    """What makes the algorithm and the topology of a contract.

    Parameters
    ----------
    settings, nodes, public_key, rounds
        The content of the contract, the number of its parties, its public key, its rounds.
    follows
        Returns the parameters that follow from the rest of the contract, which no table may state.
    """

    settings: Settings
    nodes: int
    public_key: Key
    rounds: int
    follows: Callable[[], Mapping[str, Any]]

    @cached_property
    def graph(self) -> Topology:
        """What the table [topology] describes."""
        table = dict(self.settings.table("topology"))
        keep = self.settings.convert("topology.keep", table.pop("keep", 1.0), float)
        own = {"nodes": self.nodes, "key": self.public_key}
        graph: Topology = self.settings.make("topology", table, SECTIONS["topology"], **own)
        if graph.nodes != self.nodes:
            self.settings.fail("topology", f"wanted {self.nodes} nodes, got {graph.nodes}")
        if keep == 1:
            return graph
        given = {"base": graph, "keep": keep, "key": self.public_key}
        dropping: Topology = self.settings.call("topology", edge_dropping, **given)
        return dropping

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm, with all its public parameters."""
        table = self.settings.table("algorithm")
        kinds = {**SECTIONS["algorithm"], RecordSums.__name__: RecordSums}
        if table.get("kind") == FederatedLearning.__name__:
            parts = {name: self._part(table, name) for name in ("contribution", "combination")}
            table = {**table, **{name: part for name, part in parts.items() if part}}
        settings, of_network = self.settings, dict[str, Any]()
        maker = settings.maker("algorithm", table, kinds)
        if "topology" in inspect.signature(maker).parameters:
            table = self._with("algorithm", table, ("dim", "records"))
            of_network["topology"] = self.graph
        if maker is RecordSums:
            table = self._with("algorithm", table, entries(maker))
        if isinstance(table.get("noise"), dict):
            gossips = getattr(maker, "travels", None) == "gossip"
            graph = self.graph if gossips else None
            filled = {"rounds": self.rounds, "topology": graph, "star": True}
            settings = replace(settings, filled=filled)
        made = settings.make("algorithm", table, kinds, nodes=self.nodes, **of_network)
        instance("algorithm", made, "an algorithm", Algorithm)
        algorithm: AnyAlgorithm = made
        return self._staged(algorithm) if "first_stage" in self.settings.content else algorithm

    def _staged(self, algorithm: AnyAlgorithm) -> AnyAlgorithm:
        """Return an algorithm after the first stage that the table [first_stage] describes."""
        settings, table = self.settings, self.settings.table("first_stage")
        if getattr(algorithm, "secure_sum", None) is None:
            wanted = "wanted a secure sum of all parties: who misses one row of gossip has another"
            settings.fail("first_stage", f"{wanted} centre than the others, for which no proof is")
        stage = settings.make("first_stage", table, SECTIONS["first_stage"])
        follows, own = self.follows(), {"sites": self.nodes, "algorithm": algorithm}
        own |= {"records": follows["records"], "dim": follows["features"]}
        staged: AnyAlgorithm = settings.call("first_stage", stage.before, **own)
        return staged

    def _part(self, table: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return a part of an algorithm with what follows from the parties and the records."""
        part = table.get(name)
        if not isinstance(part, dict):
            return {}
        known = entries(VALUES[part["kind"]]) if part.get("kind") in VALUES else {}
        return self._with(f"algorithm.{name}", part, known)

    def _with(self, of: str, table: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
        """Return a table with what no file may state, since it follows from the rest of it."""
        follow = {name: value for name, value in self.follows().items() if name in known}
        for name in follow.keys() & table.keys():
            self.settings.fail(f"{of}.{name}", "follows from the contract; remove it")
        return {**table, **follow}
