"""MPI ranks, each with some of the nodes.

Needs the extra ``mpi``. All ranks make the same call:

    engine = MpiEngine(topology)
    run = dm.simulate(algorithm, problem, topology, rounds=100, key=key, engine=engine)
    if engine.is_root:
        run.save("results")

Run it by ``mpiexec -n 4 python -m mpi4py program.py``.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import able, fail, in_python, integer
from dpmesh.algorithms.base import Info, Losses
from dpmesh.algorithms.without_replacement import WithoutReplacement
from dpmesh.engines.blocks import Nodes, blocks
from dpmesh.engines.releases import assembled
from dpmesh.engines.token import MpiToken, TokenOnRanks
from dpmesh.keys import Key, fingerprint
from dpmesh.privacy.budget import OverBudget
from dpmesh.privacy.door import Keeper, kept_by, packed_for
from dpmesh.privacy.releases import Release
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.engine import Sign
from dpmesh.run.history import Value
from dpmesh.run.metrics import Metric
from dpmesh.run.rounds import Progress, Share
from dpmesh.run.run import Traffic
from dpmesh.topology import Topology

with needed_by("the engine 'mpi'"):
    from mpi4py import MPI

    from dpmesh.engines.gossip import MpiGossip

T = TypeVar("T")


class RankFailed(RuntimeError):  # noqa: N818
    """A run on ranks ended because one of them failed; the text says which, and what is saved."""


class _Elsewhere(Exception):  # noqa: N818
    """Another rank has failed."""


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


class MpiEngine:
    """The ranks of an MPI communicator, each with a nearly equal share of the nodes.

    For gossip the nodes are assigned by the network of round 0, so that few rows travel between
    ranks. A run has the same bits as one process with the same key, whatever the number of ranks,
    and a checkpoint can be resumed on any number of them.

    A rank whose round fails tells the others. All go back to the last complete round, rank 0 saves
    it if there is a checkpoint, and every rank raises `RankFailed`. Ctrl-C and SIGTERM, to any
    rank, end the run after the round and save as well. A rank that is killed takes its nodes' state
    with it: the launcher ends the others, and the last checkpoint remains.

    All ranks are trusted: each is given the whole problem, and rank 0 gets all nodes' own
    parameters, without noise, to measure, save and return them.

    Parameters
    ----------
    topology
        The whole network, the same on every rank; if messages travel with a token, the number of
        nodes.
    communicator
        By default all ranks.

    Raises
    ------
    ValueError
        If there are more ranks than nodes, or `topology` is neither a network nor a number.
    """

    stops_together = True

    def __init__(self, topology: Topology | int, communicator: MPI.Comm = MPI.COMM_WORLD) -> None:
        self.communicator = communicator
        topology = in_python(topology)
        if not isinstance(topology, int):
            wanted = "a network of dpmesh.topology, or the number of nodes for a token"
            able("topology", topology, wanted, "matrix")
        nodes = topology if isinstance(topology, int) else topology.nodes
        integer("ranks", communicator.size, at_least=1, below=nodes + 1)
        if isinstance(topology, int):
            self.parts = np.array_split(np.arange(nodes), communicator.size)
        else:
            cut = blocks(topology.matrix(0).weights, communicator.size) if self.is_root else None
            self.parts = communicator.bcast(cut)
        self._ended = False
        self._exchange: MpiGossip | MpiToken | None = None

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return self.communicator.rank == 0

    @property
    def dealt(self) -> str:
        """A text that identifies the assignment of nodes to ranks."""
        told = hashlib.sha256(repr([part.tolist() for part in self.parts]).encode())
        return f"to {len(self.parts)} ranks, {told.hexdigest()[:16]}"

    @property
    def nodes(self) -> Nodes:
        """The nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    @property
    def exchange(self) -> MpiGossip | MpiToken:
        """The exchange of the run."""
        assert self._exchange is not None
        return self._exchange

    def share(self, whole: Share, topology: Topology | None) -> Share:
        """Return this rank's part of a run."""
        self._ended = False
        algorithm, problem = whole.algorithm, whole.problem
        if sum(map(len, self.parts)) != problem.nodes:
            fail("engine", f"one for {problem.nodes} nodes", sum(map(len, self.parts)))
        part, first = problem.for_nodes(self.nodes), self._start(whole.key)
        if isinstance(algorithm, WithoutReplacement):
            self._exchange = token = MpiToken(self)
            ranks = TokenOnRanks(algorithm, problem, token)
            return Share(ranks, part, token, whole.key, not ranks.learns, first)
        if topology is None:
            fail("engine", "an algorithm of gossip, or WithoutReplacement", algorithm)
        self._exchange = MpiGossip(self, topology)
        key, first = (each.for_nodes(self.nodes.astype(np.uint32)) for each in (whole.key, first))
        return Share(algorithm, part, self.exchange, key, start=first)

    def meters(self, meters: list[Metric]) -> list[Metric]:
        """Return one metric that gathers what all of these observe."""
        return [_OnRoot(self, meters)]

    @contextmanager
    def at_door(self, keeper: Keeper) -> Iterator[None]:
        """Ask `keeper` before every release, and show the exchange how it is packed."""

        def named(release: Release, purpose: int) -> None:
            keeper(self._named(release), purpose)

        with kept_by(named), packed_for(self.exchange.note):
            yield

    @contextmanager
    def together(self, keep: Callable[[], str | None]) -> Iterator[None]:
        """Fail on all ranks if the block fails on one, and say which did and what is saved."""
        try:
            yield
        except OverBudget:
            self._tell(Sign.OVER_BUDGET)
            raise
        except Exception as error:
            self._tell(Sign.FAILED)
            here = None if isinstance(error, _Elsewhere) else error
            raise RankFailed(self._story(here, keep)) from here

    def agree(self, signs: Sign = Sign.NONE) -> Sign:
        """Return the signs of all ranks; fail if one of them did."""
        said = self._all(signs)
        self._ended = bool(said & (Sign.FAILED | Sign.OVER_BUDGET))
        if said & Sign.FAILED:
            raise _Elsewhere
        if said & Sign.OVER_BUDGET:
            raise OverBudget("release: wanted what the budget has room for, on every rank")
        return said

    def told(self, mine: T) -> list[T]:
        """Return what each rank passed."""
        return self.communicator.allgather(mine)

    def on_root(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0; if it fails, all ranks do."""
        done = work() if self.is_root else None
        self.agree()
        return done

    def releases(self, mine: tuple[Release, ...], planned: list[Release]) -> tuple[Release, ...]:
        """Return the releases of all ranks."""
        return assembled(self.communicator.allgather(list(map(self._named, mine))), planned)

    def total(self, mine: Traffic) -> Traffic | None:
        """Return the traffic of all ranks on rank 0, and None elsewhere."""
        traffic = self.communicator.gather(mine)
        return None if traffic is None else sum(traffic[1:], traffic[0])

    def gather(self, progress: Progress) -> Progress:
        """Return the progress of all nodes on rank 0, and the given one elsewhere."""
        state, received = self.exchange.whole(progress.state, progress.received)
        total = self.total(progress.traffic)
        if total is None:
            return progress
        (metrics,) = progress.metrics
        return replace(progress, state=state, received=received, traffic=total, metrics=metrics)

    def scatter(self, progress: Progress | None) -> Progress:
        """Return this rank's part of rank 0's progress."""
        known = None if progress is None else (progress.rounds, progress.ledger)
        rounds, ledger = self.communicator.bcast(known)
        whole = (None, None) if progress is None else (progress.state, progress.received)
        state, received = self.exchange.part(*whole)
        if progress is not None:
            return replace(progress, state=state, received=received, metrics=[progress.metrics])
        return Progress(state, received, rounds, ledger=ledger, metrics=[None])

    def rows(self, mine: Any, what: str = "rows") -> Any:
        """Return the rows of all nodes on rank 0, and None elsewhere.

        If not every node has a row, they come rank by rank; anything but an array must be on every
        rank.

        Raises
        ------
        ValueError
            On rank 0, if only some ranks have an array.
        """
        gathered = self.communicator.gather(mine)
        if gathered is None:
            return None
        lack = [rank for rank, each in enumerate(gathered) if not isinstance(each, np.ndarray)]
        if len(lack) == len(gathered):
            return mine
        if lack:
            fail(what, "arrays from every rank or from none", f"none from ranks {lack}")
        rows, order = np.concatenate(gathered), np.concatenate(self.parts)
        return rows[np.argsort(order)] if len(rows) == len(order) else rows

    def sent(self) -> list[Sent]:
        """Return what each rank has sent in its rounds of the last run; all ranks must call it."""
        mine = Sent(self.exchange.bytes_sent, self.exchange.bytes_least)
        return [Sent(*sent) for sent in self.communicator.allgather(tuple(mine))]

    def _named(self, release: Release) -> Release:
        """Return a release with its nodes' indices in the whole network."""
        if release.nodes is None:
            return release
        return replace(release, nodes=tuple(self.nodes[list(release.nodes)].tolist()))

    def _start(self, key: Key) -> Key:
        """Return a key that all ranks have, so that all models start at the same point.

        If the ranks' keys differ it is a new one, which need not be secret, as starts are public.
        """
        new = self.communicator.bcast(secrets.randbits(256))
        return key if len(set(self.told(fingerprint(key)))) == 1 else Key.seeded(new)

    def _all(self, signs: Sign) -> Sign:
        said = np.empty(1, np.int64)
        self.communicator.Allreduce(np.array([signs], np.int64), said, op=MPI.BOR)
        return Sign(int(said[0]))

    def _tell(self, sign: Sign) -> None:
        """Pass the sign on when the others `agree` next, unless all know it."""
        if not self._ended:
            self._all(sign)
            self._ended = True

    def _story(self, error: Exception | None, keep: Callable[[], str | None]) -> str:
        """Return which rank failed and what is saved; all ranks must call it."""
        mine = None if error is None else f"{type(error).__name__}: {error}"
        told = enumerate(self.communicator.allgather(mine))
        size = self.communicator.size
        failed = "; ".join(f"rank {r} of {size} failed: {said}" for r, said in told if said)
        try:
            kept = keep()
        except Exception as second:
            kept = f"nothing more could be saved: {second or type(second).__name__}"
            self._tell(Sign.FAILED)
        return f"{failed} ({kept})" if kept else failed


@dataclass
class _OnRoot:
    """Metrics of all nodes, measured on rank 0."""

    engine: MpiEngine
    meters: list[Metric]
    _losses: Losses | None = None
    _rows: Any = None

    @property
    def watches(self) -> tuple[str, ...]:
        """Everything that any of them watches."""
        return tuple(sorted({name for meter in self.meters for name in meter.watches}))

    @property
    def memory(self) -> Any:
        """What they remember; all ranks must ask for it."""
        self._settle()
        if not self.engine.is_root:
            return None
        return [meter.memory for meter in self.meters]

    def recall(self, memory: Any) -> None:
        """Let them remember it, on rank 0."""
        for meter, own in zip(self.meters, memory or (), strict=False):
            meter.recall(own)

    def observe(self, parameters: Floats, info: Info) -> None:
        """Gather what they watch and pass it to them; losses only when asked for."""
        seen: dict[str, Any] = {}
        for name in self.watches:
            mine = parameters if name == "parameters" else getattr(info, name)
            if callable(mine):
                self._losses = mine
                seen[name] = lambda: self._rows
            else:
                seen[name] = self.engine.rows(mine, name)
        everybody = seen.pop("parameters", parameters)

        def tell_all() -> None:
            for meter in self.meters:
                meter.observe(everybody, replace(info, **seen))

        if "parameters" in self.watches:  # expensive work, which can fail
            self.engine.on_root(tell_all)
        elif self.engine.is_root:
            tell_all()

    def _settle(self) -> None:
        """Gather the losses of the last round in which nodes learned."""
        if self._losses is not None:
            self._rows, self._losses = self.engine.rows(self._losses()), None

    def values(self, parameters: Floats, received: Released) -> dict[str, Value]:
        """Return their values for all nodes; nothing on other ranks."""
        self._settle()
        everybody, heard = self.engine.rows(parameters), self.engine.exchange.heard(received)

        def measure() -> dict[str, Value]:
            values: dict[str, Value] = {}
            for meter in self.meters:
                values |= meter.values(everybody, heard)
            return values

        return self.engine.on_root(measure) or {}
