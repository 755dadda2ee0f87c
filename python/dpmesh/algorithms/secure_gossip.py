"""Gossip by secure sums: a node learns a noisy sum over its neighbours, and nothing of one of them.

In a round every node j takes a gradient at its point p_j, which is made of earlier sums alone. Then
every node v learns the sum of what its neighbours send, with noise of its own from each of them:

    y_j = w p_j - alpha / k_j (n / N G_j(p_j) + decay p_j)    w: weight, k_j: number of neighbours
    s_v = grid sum_(j ~ v) (rint(y_j / grid) + e_jv)          e_jv ~ N_Z(0, share_v^2)
    p_v = s_v + (1 - k_v w) p_v

G_j is the sum of node j's clipped gradients. With doubly stochastic weights the mean of all points
steps by ``alpha (1 / N sum_j G_j + decay p)``, as if the records were in one place. What a node
computes by itself never enters its own point: it has no noise, so that one record would move all
later gradients of its node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices, Numbers, Ragged
from dpmesh._validate import as_python_numbers, fail, instance, integer, positive
from dpmesh.algorithms.base import Algorithm, assumed_copies, initial_parameters
from dpmesh.algorithms.clipping import Clipping
from dpmesh.algorithms.gradients import clipped_gradient_sums
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair, opposed_records
from dpmesh.keys import Key
from dpmesh.noise.secure import DistributedDiscreteGaussian, NeighborSums
from dpmesh.noise.secure.neighbors import BITS
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems import LinearProblem
from dpmesh.schedules import Schedule, at, keep_schedules
from dpmesh.topology import Static


@dataclass(frozen=True)
class SecureGossipState:
    """The nodes' points p, shape (nodes, dim), made of released sums in the type of the problem."""

    p: Released


@dataclass(frozen=True, kw_only=True)
class SecureGossip(Algorithm[SecureGossipState, LinearProblem], Clipping):
    """Decentralized gradient descent with secure aggregation among the neighbours of each node.

    In a round each node learns only the noisy sum of its neighbours' steps, not the message of one
    neighbour. Each neighbour adds a share of discrete Gaussian noise.

    Parameters
    ----------
    topology
        A static network whose links all have one mixing weight: a regular graph, or a graph with
        ``weights="max_degree"``.
    dim
        Length d of the model.
    records
        Number N of records of all nodes together, a public constant.
    noise_multiplier
        Standard deviation of the noise in a sum that the adversary does not know, over half of the
        L2 sensitivity of all sums of a round together. Under replace-one that half is
        alpha C nodes / (records sqrt(fewest neighbours)), the effect of one clipped gradient.
    step_size
        Learning rate alpha for t = 1, 2, ..: a number or a schedule of `dpmesh.schedules`.
    clipping_norm
        Largest L2 norm C of a record's gradient; longer ones are clipped.
    colluding
        Largest number of neighbours of any node that collude with the adversary and reveal their
        shares of the noise. With 0 a node could subtract its own share from its neighbours' sums.

    Guarantee
    ---------
    All sums of T rounds, and all models computed from them, are (epsilon, delta)-DP with the
    epsilon of ``plan(T).cost(delta)``, for replacing one record of one node. The adversary sees all
    sums and colludes with `colluding` neighbours of each node. The guarantee is close to
    mu-Gaussian-DP with mu = 2 sqrt(T) / `noise_multiplier` (proof in
    ``docs/privacy/secure_sums.md``).

    Examples
    --------
    >>> import dpmesh as dm
    >>> all_six = dm.topology.complete(6)
    >>> dm.SecureGossip(topology=all_six, dim=10, records=100, noise_multiplier=18.0).colluding
    1
    """

    travels = "sums"
    parameters_are_released = True
    any_rows = "each record's gradient is clipped at whatever point the totals make"

    follows_from_sizes = ("dim", "records")

    topology: Static
    dim: int
    records: int
    noise_multiplier: float
    step_size: float | Schedule = 1.0
    clipping_norm: float = 1.0
    colluding: int = 1

    def __post_init__(self) -> None:
        as_python_numbers(self)
        expected = "a static network of dpmesh.topology, such as random_regular(16, 6, key=key)"
        instance("topology", self.topology, expected, Static)
        integer("records", self.records, at_least=1, below=2**32)
        keep_schedules(self, "step_size")
        positive("clipping_norm", self.clipping_norm)
        weights = self.topology.mixing_matrix.edge_weights
        if not self.topology.mixing_matrix.is_symmetric or np.ptp(weights) > 1e-12:
            expected = "one weight for all links, such as by weights='max_degree'"
            fail("topology", expected, f"weights from {weights.min():g} to {weights.max():g}")
        _ = self.release_of(0)  # checks the other numbers

    @cached_property
    def _neighbors(self) -> tuple[tuple[int, ...], ...]:
        matrix = self.topology.mixing_matrix
        return tuple(tuple(matrix.neighbours(v).tolist()) for v in range(matrix.nodes))

    @cached_property
    def _degrees(self) -> Indices:
        """Shape (nodes, 1)."""
        return self.topology.mixing_matrix.degrees[:, np.newaxis]

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of all sums of a round together, before rounding to the grid.

        Rounding in float64 of sums of up to N gradients is part of it.
        """
        fewest = int(self._degrees.min())
        nodes = self.topology.nodes
        of_sums = 1 + (2 * self.records * (self.records + 2) + 2 * self.dim) * 2.0**-53
        step = positive("step_size", at(self.step_size, t + 1)) * nodes / self.records
        bound = 2 * step * self.clipping_norm / sqrt(fewest) * of_sums
        return Sensitivity(bound, "l2", "2 alpha C nodes / (records sqrt(fewest neighbours))")

    def sums(self, t: int) -> NeighborSums:
        """Return the public parameters of a round's secure sums over neighbours."""
        moves = self.sensitivity(t).bound
        if moves not in self._made:
            self._made[moves] = NeighborSums(
                dim=self.dim,
                neighbors=self._neighbors,
                noise_to_sensitivity=self.noise_to_sensitivity_at(self.noise_multiplier),
                moves=moves,
                colluding=self.colluding,
            )
        return self._made[moves]

    @cached_property
    def _made(self) -> dict[float, NeighborSums]:
        """Sums over neighbours by their sensitivity, which most rounds share."""
        return {}

    def release_of(self, t: int) -> Release:
        """Return the release of round t: the noisy sums of all nodes as one joint event."""
        return Release(t, DistributedDiscreteGaussian(self.sums(t)), self.sensitivity(t))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee beside the proof."""
        return (*self.sums(0).assumptions, *assumed_copies(1))

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return nodes whose first record is a canary in its neighbours' sums, and many of them."""
        variant = partial(replace, self)
        nodes = self.topology.nodes
        return opposed_records(variant, size, records=self.records, nodes=nodes, sign=1.0)

    def init(self, problem: LinearProblem, key: Key) -> SecureGossipState:
        """Start all nodes at the problem's initial model, which is public.

        Raises
        ------
        ValueError
            If the problem has another number of nodes or parameters, or more than `records`.
        """
        nodes = len(problem.all_records)
        if nodes != self.topology.nodes:
            fail("topology", f"{nodes} nodes, as the problem has", self.topology.nodes)
        p = initial_parameters(problem, key, problem.nodes)
        if p.shape[1] != self.dim:
            fail("problem", f"a model of length {self.dim} (dim)", p.shape[1])
        total = int(problem.all_records.sum())
        if total > self.records:
            fail("problem", f"at most {self.records} records of all nodes (records)", total)
        return SecureGossipState(Released(p))

    def round(
        self, state: SecureGossipState, t: int, problem: LinearProblem, key: Key
    ) -> Round[SecureGossipState]:
        """Take gradients at points made of sums, release the next sums, make the next points."""
        p = state.p.astype(np.float64)
        weight = self.topology.mixing_matrix.edge_weights[0]
        steps = at(self.step_size, t + 1) / self._degrees[problem.members]
        decayed = (weight - steps * problem.regularization) * p
        everything = self._everything(problem)
        gradients = clipped_gradient_sums(problem, state.p, everything, self.clipping_norm)
        points = Sensitive(decayed - steps * (self.topology.nodes / self.records) * gradients)
        release = self.release_of(t)
        links = int(self._degrees.sum())
        sums = yield Message(points, release, copies=links, bits=BITS * self.dim * links)
        self_weights = self.topology.mixing_matrix.weights.diagonal()[problem.members, np.newaxis]
        return SecureGossipState(Released((sums + self_weights * p).astype(state.p.dtype)))

    def losses(self, state: SecureGossipState, t: int, problem: LinearProblem, key: Key) -> Numbers:
        """Return each node's loss at its point on all of its records; only a simulation can."""
        losses: Numbers = problem.objective(state.p, self._everything(problem))
        return losses

    def parameters(self, state: SecureGossipState) -> Floats:
        """Return each node's model p, shape (nodes, dim), computed from released sums alone."""
        return state.p

    def _everything(self, problem: LinearProblem) -> Ragged:
        records: Ragged = problem.records_of(np.arange(problem.nodes))
        return records
