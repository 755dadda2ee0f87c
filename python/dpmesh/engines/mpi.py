"""MPI ranks, each with some of the nodes.

Needs the extra ``mpi``. All ranks make the same call:

    engine = MpiEngine(topology)
    run = dm.simulate(algorithm, problem, topology, rounds=100, key=key, engine=engine)
    if engine.is_root:
        run.save("results")

Run it by ``mpiexec -n 4 python -m mpi4py program.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import fail, in_python, integer, require_methods
from dpmesh.engines.blocks import blocks
from dpmesh.keys import Key, Purpose, fingerprint
from dpmesh.run.engine import Share
from dpmesh.topology import Topology

with needed_by("the engine 'mpi'"):
    from mpi4py import MPI

    from dpmesh.engines.gossip import MpiGossip
    from dpmesh.engines.ranks import RankFailed, Ranks
    from dpmesh.engines.sums import MpiSums, why_not
    from dpmesh.engines.token import MpiToken

__all__ = ["MpiEngine", "RankFailed", "Sent"]


class Sent(NamedTuple):
    """Messages of one rank to others.

    Attributes
    ----------
    bytes
        Their length as sent.
    least
        Length of the nodes' own messages if each went once to every rank that needs it.
    """

    bytes: int
    least: int


class MpiEngine(Ranks):
    """The ranks of an MPI communicator, each with a nearly equal share of the nodes.

    For gossip the nodes are assigned by the network of round 0, so that few rows travel between
    ranks. A run has the same bits as one process with the same key, whatever the number of ranks,
    and a checkpoint can be resumed on any number of them.

    A rank whose round fails stops the others. All go back to the last complete round, rank 0 saves
    it if there is a checkpoint, and every rank raises `RankFailed`. Ctrl-C and SIGTERM, to any
    rank, end the run after the round and save as well. A rank that is killed takes its nodes' state
    with it: the launcher ends the others, and the last checkpoint remains.

    All ranks are trusted: each is given the whole problem, and rank 0 gets all nodes' own
    parameters, without noise, to measure, save and return them. So sites whose sums are added up
    need no masks here, and a rank's part of a sum has only its own sites' shares of noise.

    Parameters
    ----------
    topology
        The whole network, the same on every rank; if messages travel with a token or are added up,
        the number of nodes.
    communicator
        By default all ranks.

    Raises
    ------
    ValueError
        If there are more ranks than nodes, or `topology` is neither a network nor a number.
    """

    def __init__(self, topology: Topology | int, communicator: MPI.Comm = MPI.COMM_WORLD) -> None:
        topology = in_python(topology)
        if not isinstance(topology, int):
            wanted = "a topology of dpmesh.topology, or the number of nodes"
            require_methods("topology", topology, wanted, "matrix")
        nodes, size = topology if isinstance(topology, int) else topology.nodes, communicator.size
        integer("ranks", size, at_least=1, below=nodes + 1)
        if isinstance(topology, int):
            parts = np.array_split(np.arange(nodes), size)
        else:
            cut = blocks(topology.matrix(0).weights, size) if communicator.rank == 0 else None
            parts = communicator.bcast(cut)
        super().__init__(communicator, parts)

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this rank's part of a run."""
        self.begin()
        if sum(map(len, self.parts)) != whole.total:
            fail("engine", f"one for {whole.total} nodes", sum(map(len, self.parts)))
        if reason := why_not(whole.algorithm):
            fail("engine", f"None, since {reason}", type(whole.algorithm).__name__)
        problem: Any = whole.problem
        part, coins = problem.for_nodes(self.nodes), self._coins(whole.key)
        here = replace(whole, problem=part, key=coins, pair_key=coins, nodes=self.nodes)
        if whole.algorithm.travels == "token":
            return replace(here, carrier=MpiToken(self))
        carrier = MpiSums(self) if topology is None else MpiGossip(self, topology)
        own = coins.for_nodes(self.nodes.astype(np.uint32))
        return replace(here, carrier=carrier, key=own)

    def sent(self) -> list[Sent]:
        """Return what each rank has sent in its rounds of the last run; all ranks must call it."""
        mine = Sent(self.bytes_sent, self.bytes_least)
        return [Sent(*sent) for sent in self.everyone(tuple(mine))]

    def _coins(self, key: Key) -> Key:
        """Return a key that all ranks have, for starts, turns and samples, but not for noise.

        If the ranks' keys differ it is made from rank 0's, and as secret: ranks trust each other.
        """
        words = np.empty(8, np.uint32)
        key.stream(Purpose.SHARED).words(0, words)
        secret = self.communicator.bcast(words.astype("<u4").tobytes() if self.is_root else None)
        if len(set(self.everyone(fingerprint(key)))) == 1:
            return key
        return Key.seeded(int.from_bytes(secret, "little"), key.cipher)
