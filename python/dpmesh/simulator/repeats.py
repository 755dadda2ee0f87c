"""Many runs of an online algorithm in one, for the mean and the spread of its regret.

The runs differ in the order of the data and in the noise, and share the network. Their nodes are
nodes of one large problem: node i in run r is node ``i * runs + r``. So if vectors are short, a
round of all runs costs little more than a round of one.

Each run releases the same records anew: publishing all of them spends the budget of each, and no
ledger here adds that up. They are for research.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpmesh._validate import able, fail, instance, integer
from dpmesh.algorithms.base import Algorithm, Exchange
from dpmesh.keys import A_KEY, Key, Purpose, generator
from dpmesh.privacy.budget import Ledger
from dpmesh.privacy.door import drawn_once, kept_by
from dpmesh.privacy.types import Floats, Released
from dpmesh.problems import LinearProblem
from dpmesh.problems.hindsight import best_fixed_predictor
from dpmesh.simulator.exchange import FailingGossip, Gossip
from dpmesh.simulator.identity import claim, identity
from dpmesh.simulator.network import Conditions, Network
from dpmesh.simulator.rounds import only_released

if TYPE_CHECKING:
    from dpmesh.topology import Topology

StateT = TypeVar("StateT")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class RepeatedRuns:
    """What came out of the runs.

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
            What `Repeats.best` returned for the same checkpoints.
        """
        return self.losses - best[:, None, :]


@dataclass(frozen=True, eq=False)
class Repeats:
    """Copies of a problem side by side, each with the records partitioned anew.

    Parameters
    ----------
    problem
        The nodes of all copies.
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
        records, nodes = problem.everything[1], problem.nodes
        each = len(records) // nodes
        draws = (generator(key, Purpose.SPLIT, run) for run in range(runs))
        orders = [draw.permutation(records)[: each * nodes].reshape(each, nodes) for draw in draws]
        # Records of a round lie side by side, so that a round reads contiguous memory.
        train = problem.train.take(np.stack(orders, axis=2).ravel())
        parts = np.arange(train.records).reshape(each, nodes * runs).T
        return cls(replace(problem, train=train, partition=tuple(parts)), nodes, runs)

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

    @drawn_once()
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
            One that uses each example once, and says in which round.
        topology
            The network of each copy.
        at
            Checkpoints, in examples of each node: ascending multiples of the algorithm's batch.
        key
            Source of the noise, which differs between the runs, and of the failures of the network.
            As in `dpmesh.simulate`, it serves this call alone, unless it is seeded.
        network
            Delays of messages and absences of nodes, the same in all runs.

        Raises
        ------
        ValueError
            If the topology does not have the nodes of a copy, an argument does not fit, a key from
            the operating system has served another run, a message travels without a release, or a
            release is not recorded.
        """
        instance("key", key, A_KEY, Key)
        able("topology", topology, "a network of dpmesh.topology", "matrix")
        able("algorithm", algorithm, "an algorithm", "init", "step", "plan", "parameters")
        instance("network", network, "a dpmesh.Network or None", Network, NoneType)
        if np.ndim(at) != 1 or not len(at):
            fail("at", "a list of checkpoints, in examples of each node", at)
        each = len(self.problem.partition[0])
        if at[-1] > each:
            fail("at", f"at most {each} examples, as many as each node has", list(at))
        if topology.nodes != self.nodes:
            fail("topology", f"{self.nodes} nodes, as a copy has", topology.nodes)
        gossip: Exchange = Gossip(topology)
        if network is not None:
            gossip = FailingGossip(topology, Conditions(network, self.nodes, key))
        exchange, ledger = self.side_by_side(gossip), Ledger(algorithm.plan(at[-1]))
        state = algorithm.init(self.problem, key)
        if not key.is_seeded:
            claim(key, identity(algorithm, self.problem, topology, network, rounds=2))
        total, losses, used, t = np.zeros((self.nodes, self.runs)), [], 0, 0
        while used < at[-1]:
            before = algorithm.parameters(state)
            carried = only_released(exchange, lambda: ledger.admitted)
            with kept_by(ledger.admit):
                state, info = algorithm.step(state, t, self.problem, carried, key)
            ledger.add(*info.releases)
            if info.records is None:
                fail("algorithm", "one that uses each example once", algorithm)
            batch = info.records.shape[1]
            total += batch * self._losses_on_all(before, info.records)
            used, t = used + batch, t + 1
            if used in at:
                losses.append(total.T / used)
        if len(losses) != len(at):
            fail("at", f"ascending multiples of {batch}, the examples of a round", list(at))
        return RepeatedRuns(
            losses=np.stack(losses, axis=-1),
            parameters=self._by_run(algorithm.parameters(state)),
            released=self._by_run(info.received),
        )

    def side_by_side(self, exchange: Exchange) -> Exchange:
        """Return the exchange that treats the copies of a message as one long message."""

        def of_all_copies(round: int, messages: Released) -> Released:
            long = Released(messages.reshape(self.nodes, -1))
            return Released(exchange(round, long).reshape(messages.shape))

        return of_all_copies

    def _losses_on_all(self, parameters: Floats, records: npt.NDArray[np.int64]) -> Values:
        """Return each node's mean loss on the records of all nodes of its run, (nodes, runs)."""
        of_run = self._by_run(records).reshape(self.runs, -1)
        everybody = np.tile(of_run, (self.nodes, 1))
        return self.problem.objective(parameters, everybody).reshape(self.nodes, self.runs)

    def _by_run(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows of all copies' nodes as shape (runs, nodes, ..)."""
        return np.swapaxes(values.reshape(self.nodes, self.runs, -1), 0, 1)
