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
        The problem of all copies' nodes; node i of run r is its node ``i * runs + r``.
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
        records = problem.full_batches[1]
        nodes = problem.nodes
        records_of_node = len(records) // nodes
        orders = []
        for run in range(runs):
            draw = generator(key, Purpose.SPLIT, run)
            order = draw.permutation(records)[: records_of_node * nodes]
            orders.append(order.reshape(records_of_node, nodes))
        # Records of a round lie side by side, so that a round reads contiguous memory.
        train = problem.train.take(np.stack(orders, axis=2).ravel())
        parts = np.arange(train.records).reshape(records_of_node, nodes * runs).T
        copies = replace(problem, train=train, partition=tuple(parts))
        return cls(problem=copies, nodes=nodes, runs=runs)

    def best(self, checkpoints: Sequence[int], *, radius: float, tolerance: float = 1e-4) -> Values:
        """Return the mean loss of the best fixed predictor on the examples so far, for each run.

        Parameters
        ----------
        checkpoints
            Numbers of examples of each node.
        radius, tolerance
            As for `best_fixed_predictor`.

        Returns
        -------
        Shape (runs, checkpoints).
        """
        losses = np.empty((self.runs, len(checkpoints)))
        for run in range(self.runs):
            parts_of_run = self.problem.partition[run :: self.runs]
            for place, examples_of_node in enumerate(checkpoints):
                examples = np.concatenate([part[:examples_of_node] for part in parts_of_run])
                losses[run, place] = best_fixed_predictor(
                    self.problem, examples, radius=radius, tolerance=tolerance
                ).value
        return losses

    def simulate(
        self,
        algorithm: Algorithm[StateT, LinearProblem],
        topology: Topology,
        *,
        checkpoints: Sequence[int],
        key: Key,
        network: Network | None = None,
    ) -> RepeatedRuns:
        """Run an algorithm in all copies, until the last checkpoint.

        Parameters
        ----------
        algorithm
            One that uses each example once, and states in which round.
        topology
            The network of each copy.
        checkpoints
            Numbers of examples of each node: ascending multiples of the algorithm's batch.
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
        if np.ndim(checkpoints) != 1 or not len(checkpoints):
            fail("checkpoints", "a list of numbers of examples of each node", checkpoints)
        records_of_node = len(self.problem.partition[0])
        last_checkpoint = checkpoints[-1]
        if last_checkpoint > records_of_node:
            expected = f"at most {records_of_node} examples, as many as each node has"
            fail("checkpoints", expected, list(checkpoints))
        if topology.nodes != self.nodes:
            fail("topology", f"{self.nodes} nodes, as a copy has", topology.nodes)
        if not key.is_seeded:
            key = key.derive(secrets.token_bytes(32))
        gossip: Carrier = Gossip(topology)
        if network is not None:
            gossip = FailingGossip(topology, Conditions(network, self.nodes, key))
        # a round uses at least one example, so that there are no more rounds than examples
        ledger = Ledger(algorithm.plan(last_checkpoint), nodes=self.problem.nodes)
        channel = Channel(SideBySide(gossip, self.nodes), key, ledger)
        state = algorithm.init(self.problem, key)
        sums_of_losses = np.zeros((self.nodes, self.runs))
        losses = []
        examples_used = 0
        t = 0
        while examples_used < last_checkpoint:
            examples = algorithm.examples(t, self.problem, key)
            if not isinstance(examples, np.ndarray):
                expected = (
                    "one that uses each example once, in batches of one size: checkpoints are"
                    " numbers of examples"
                )
                fail("algorithm", expected, algorithm)
            batch = examples.shape[1]
            sums_of_losses += batch * self._losses_on_all(algorithm.parameters(state), examples)
            state = channel.run(algorithm, state, t, self.problem, key).state
            channel.end_round()
            examples_used += batch
            t += 1
            if examples_used in checkpoints:
                losses.append(sums_of_losses.T / examples_used)
        if len(losses) != len(checkpoints):
            expected = f"ascending multiples of {batch}, the examples of a round"
            fail("checkpoints", expected, list(checkpoints))
        assert channel.received is not None
        return RepeatedRuns(
            losses=np.stack(losses, axis=-1),
            parameters=self._by_run(algorithm.parameters(state)),
            released=self._by_run(channel.received),
        )

    def _losses_on_all(self, parameters: Floats, records: npt.NDArray[np.int64]) -> Values:
        """Return each node's mean loss on the records of all nodes of its run, (nodes, runs)."""
        records_of_run = self._by_run(records).reshape(self.runs, -1)
        records_of_node = np.tile(records_of_run, (self.nodes, 1))
        return self.problem.objective(parameters, records_of_node).reshape(self.nodes, self.runs)

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
        long_messages = Released(messages.reshape(self._nodes, -1))
        arrived = self._carrier.carry(round, Packet(long_messages))
        assert arrived is not None
        return Released(arrived.reshape(messages.shape))

    def traffic(self, round: int, sent: SentInRound) -> Traffic:
        """Return nothing: what copies send is not counted."""
        return Traffic(0, 0)
