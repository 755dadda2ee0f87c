"""Many runs of an online algorithm in one simulation, for the mean and spread of its regret.

The runs differ in the order of the data and in the noise, and share the network. Their nodes are
nodes of one large problem: node i in run r is node ``i * runs + r``. So if vectors are short, a
round of all runs takes little more time than a round of one.

For research only: each run releases the same records anew. To publish all runs uses the budget of
each run, and no ledger here adds them up.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats, Released
from dpmesh._validate import fail, instance, integer, require_methods
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm
from dpmesh.keys import A_KEY, Key, Purpose, generator
from dpmesh.privacy.ledger import Ledger
from dpmesh.problems import LinearProblem
from dpmesh.problems.hindsight import best_fixed_predictor
from dpmesh.run.carriers import Carrier, Gossip, Instant, Packet, SentInRound, Traffic
from dpmesh.run.channel import Channel
from dpmesh.run.failing import FailingGossip
from dpmesh.run.network import Conditions, Network

if TYPE_CHECKING:
    from dpmesh.topology import Topology

StateT = TypeVar("StateT")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RepeatedRuns:
    """Losses, models and broadcasts of the runs.

    Parameters
    ----------
    losses
        Shape (runs, nodes, checkpoints): each node's mean loss over all nodes' examples so far.
    parameters
        Shape (runs, nodes, dim): the nodes' models at the end. Not covered by the guarantee.
    released
        Shape (runs, nodes, dim): the last broadcasts as they were received. The guarantee of the
        algorithm covers those of one run alone.
    """

    losses: Values
    parameters: Floats
    released: Floats

    def __repr__(self) -> str:
        runs, nodes, checkpoints = self.losses.shape
        return f"RepeatedRuns({runs} runs of {nodes} nodes, {checkpoints} checkpoints)"

    def regret(self, best: Values) -> Values:
        """Return the regret of Definition 2 for each example, shape (runs, nodes, checkpoints).

        Parameters
        ----------
        best
            Losses of the best fixed predictor by `Repeats.best` for the same checkpoints, shape
            (runs, checkpoints).
        """
        return self.losses - best[:, None, :]


@dataclass(frozen=True, kw_only=True, eq=False)
class Repeats:
    """A problem of several copies, each with the records partitioned anew among its nodes.

    Parameters
    ----------
    problem
        The problem of all copies' nodes.
    nodes, runs
        Nodes of a copy, and number of copies.
    """

    problem: LinearProblem
    nodes: int
    runs: int

    @classmethod
    def deal(cls, problem: LinearProblem, runs: int, *, key: Key) -> Repeats:
        """Shuffle all records of a problem and deal them out equally to its nodes, `runs` times.

        Raises
        ------
        ValueError
            If the problem is no `LinearProblem`, there are fewer records than nodes, or no run.
        """
        instance("problem", problem, "a LinearProblem", LinearProblem)
        runs = integer("runs", runs, at_least=1)
        records = problem.everything[1]
        nodes = problem.nodes
        records_of_node = len(records) // nodes
        draws = (generator(key, Purpose.SPLIT, run) for run in range(runs))
        orders = [
            draw.permutation(records)[: records_of_node * nodes].reshape(records_of_node, nodes)
            for draw in draws
        ]
        # Records of a round lie side by side, so that a round reads contiguous memory.
        train = problem.train.take(np.stack(orders, axis=2).ravel())
        parts = np.arange(train.records).reshape(records_of_node, nodes * runs).T
        copies = replace(problem, train=train, partition=tuple(parts))
        return cls(problem=copies, nodes=nodes, runs=runs)

    def best(self, at: Sequence[int], *, radius: float, tolerance: float = 1e-4) -> Values:
        """Return the mean loss of the best fixed predictor on the examples so far, for each run.

        Parameters
        ----------
        at
            The checkpoints, in examples of each node.
        radius, tolerance
            As for `best_fixed_predictor`.

        Returns
        -------
        Shape (runs, checkpoints).
        """
        parts = self.problem.partition
        return np.array(
            [
                [
                    best_fixed_predictor(
                        self.problem,
                        np.concatenate([part[:count] for part in parts[run :: self.runs]]),
                        radius=radius,
                        tolerance=tolerance,
                    ).value
                    for count in at
                ]
                for run in range(self.runs)
            ]
        )

    def simulate(
        self,
        algorithm: Algorithm[StateT, LinearProblem],
        topology: Topology,
        *,
        at: Sequence[int],
        key: Key,
        network: Network | None = None,
    ) -> RepeatedRuns:
        """Run an algorithm in all copies, until each node has used ``at[-1]`` examples.

        Parameters
        ----------
        algorithm
            One that uses each example once, and states in which round.
        topology
            The network of each copy.
        at
            Checkpoints, in examples of each node: ascending multiples of the algorithm's batch.
        key
            Source of the noise, which differs between the runs, and of the failures of the network;
            mixed with fresh bits unless it is seeded, as in `dpmesh.simulate`.
        network
            Delays of messages and absences of nodes, the same in all runs.

        Raises
        ------
        ValueError
            If the topology does not have the nodes of a copy, or an argument does not fit.
        """
        instance("key", key, A_KEY, Key)
        require_methods("topology", topology, "a topology of dpmesh.topology", "matrix")
        instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
        instance("network", network, "a dpmesh.Network or None", Network, NoneType)
        if np.ndim(at) != 1 or not len(at):
            fail("at", "a list of checkpoints, in examples of each node", at)
        records_of_node = len(self.problem.partition[0])
        if at[-1] > records_of_node:
            fail("at", f"at most {records_of_node} examples, as many as each node has", list(at))
        if topology.nodes != self.nodes:
            fail("topology", f"{self.nodes} nodes, as a copy has", topology.nodes)
        if not key.is_seeded:
            key = key.derive(secrets.token_bytes(32))
        gossip: Carrier = Gossip(topology)
        if network is not None:
            gossip = FailingGossip(topology, Conditions(network, self.nodes, key))
        ledger = Ledger(algorithm.plan(at[-1]), nodes=self.problem.nodes)
        channel = Channel(SideBySide(gossip, self.nodes), key, ledger)
        state = algorithm.init(self.problem, key)
        total = np.zeros((self.nodes, self.runs))
        losses = []
        examples_used = 0
        t = 0
        while examples_used < at[-1]:
            examples = algorithm.examples(t, self.problem, key)
            if not isinstance(examples, np.ndarray):
                expectation = (
                    "one that uses each example once, in batches of one size: checkpoints are"
                )
                fail("algorithm", f"{expectation} numbers of examples", algorithm)
            batch = examples.shape[1]
            total += batch * self._losses_on_all(algorithm.parameters(state), examples)
            state = channel.run(algorithm, state, t, self.problem, key).state
            channel.end_round()
            examples_used += batch
            t += 1
            if examples_used in at:
                losses.append(total.T / examples_used)
        if len(losses) != len(at):
            fail("at", f"ascending multiples of {batch}, the examples of a round", list(at))
        assert channel.received is not None
        return RepeatedRuns(
            losses=np.stack(losses, axis=-1),
            parameters=self._by_run(algorithm.parameters(state)),
            released=self._by_run(channel.received),
        )

    def _losses_on_all(self, parameters: Floats, records: npt.NDArray[np.int64]) -> Values:
        """Return each node's mean loss on the records of all nodes of its run, (nodes, runs)."""
        of_run = self._by_run(records).reshape(self.runs, -1)
        everybody = np.tile(of_run, (self.nodes, 1))
        return self.problem.objective(parameters, everybody).reshape(self.nodes, self.runs)

    def _by_run(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows of all copies' nodes as shape (runs, nodes, ..)."""
        return np.swapaxes(values.reshape(self.nodes, self.runs, -1), 0, 1)


class SideBySide(Instant):
    """Carrier of the copies of a message as one long message.

    Parameters
    ----------
    carrier
        Carrier of the messages of one copy.
    nodes
        Number of nodes of a copy.
    """

    def __init__(self, carrier: Carrier, nodes: int) -> None:
        self._carrier = carrier
        self._nodes = nodes

    def carry(self, round: int, packet: Packet) -> Released:
        """Return what the nodes of all copies receive, shape (nodes * copies, dim)."""
        messages = packet.values
        assert messages is not None
        long = Packet(Released(messages.reshape(self._nodes, -1)))
        arrived = self._carrier.carry(round, long)
        assert arrived is not None
        return Released(arrived.reshape(messages.shape))

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return nothing: what copies send is not counted."""
        return Traffic(0, 0)
