"""Decentralized gradient descent in which a node learns noisy sums over its neighbours alone.

The sums are made by secure aggregation: a node learns nothing about the message of one neighbour.
The *point* p_j of node j is its model, computed from earlier sums alone. In a round node j takes a
clipped gradient at its point, and each node v learns the sum of its neighbours' messages y_j, to
each of which its sender adds an independent share e_jv of discrete Gaussian noise:

    y_j = w p_j - alpha / k_j (n / N G_j(p_j) + decay p_j)
    s_v = grid sum_(j ~ v) (rint(y_j / grid) + e_jv)          e_jv ~ N_Z(0, share_v^2)
    p_v = s_v + (1 - k_v w) p_v

Here w is the mixing weight of a link, k_j the number of neighbours of j, n the number of nodes, N
the number of records, and G_j the sum of node j's clipped gradients. With doubly stochastic weights
the mean of all points steps by ``alpha (1 / N sum_j G_j + decay p)``, as if all records were at one
place. A node's gradient never enters its own point directly. It would enter without noise, and one
record would move all later gradients of its node.
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
    """The nodes' points (models) p, shape (nodes, dim), computed from released sums."""

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
        Standard deviation of the noise in a sum that the adversary does not know, over the effect
        of one clipped gradient on all sums of a round together. This effect is at most
        alpha C nodes / (records sqrt(k)) in L2 norm, where k is the fewest neighbours of a node. It
        is half of the sensitivity under replace-one.
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
    ``docs/privacy/secure_gossip.md``).

    Examples
    --------
    >>> import dpmesh as dm
    >>> all_six = dm.topology.complete(6)
    >>> dm.SecureGossip(topology=all_six, dim=10, records=100, noise_multiplier=18.0).colluding
    1
    """

    communication = "sums"
    parameters_are_released = True
    messages_need_no_trust = "each record's gradient is clipped at whatever point the totals make"

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
        _ = self.release_of(0)  # computing it checks the other parameters

    @cached_property
    def _neighbors(self) -> tuple[tuple[int, ...], ...]:
        matrix = self.topology.mixing_matrix
        return tuple(tuple(matrix.neighbours(v).tolist()) for v in range(matrix.nodes))

    @cached_property
    def _degrees(self) -> Indices:
        """Number of neighbours of each node, shape (nodes, 1)."""
        return self.topology.mixing_matrix.degrees[:, np.newaxis]

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity of all sums of a round together to replacing one record.

        It includes the float64 rounding of sums of up to N gradients, and not the rounding to the
        grid.
        """
        fewest_neighbors = int(self._degrees.min())
        nodes = self.topology.nodes
        rounding_factor = 1 + (2 * self.records * (self.records + 2) + 2 * self.dim) * 2.0**-53
        step = positive("step_size", at(self.step_size, t + 1)) * nodes / self.records
        bound = 2 * step * self.clipping_norm / sqrt(fewest_neighbors) * rounding_factor
        return Sensitivity(bound, "l2", "2 alpha C nodes / (records sqrt(fewest neighbours))")

    def sums(self, t: int) -> NeighborSums:
        """Return the public parameters of round t's secure aggregation among neighbours."""
        sensitivity = self.sensitivity(t).bound
        if sensitivity not in self._sums_by_sensitivity:
            self._sums_by_sensitivity[sensitivity] = NeighborSums(
                dim=self.dim,
                neighbors=self._neighbors,
                noise_to_sensitivity=self.noise_to_sensitivity_at(self.noise_multiplier),
                moves=sensitivity,
                colluding=self.colluding,
            )
        return self._sums_by_sensitivity[sensitivity]

    @cached_property
    def _sums_by_sensitivity(self) -> dict[float, NeighborSums]:
        """Cache of `sums`: rounds with equal learning rates have equal parameters."""
        return {}

    def release_of(self, t: int) -> Release:
        """Return the release of round t: the noisy sums of all nodes as one joint event."""
        return Release(t, DistributedDiscreteGaussian(self.sums(t)), self.sensitivity(t))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that this package cannot check, in words."""
        return (*self.sums(0).assumptions, *assumed_copies(1))

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: a canary record at each node, and many canaries at one."""
        variant = partial(replace, self)
        nodes = self.topology.nodes
        # The sign is 1: a message is a model, which moves against the gradient.
        return opposed_records(variant, size, records=self.records, nodes=nodes, sign=1.0)

    def init(self, problem: LinearProblem, key: Key) -> SecureGossipState:
        """Return the state before round 0: all nodes at the problem's public initial model.

        Raises
        ------
        ValueError
            If the problem's number of nodes or length of the model differs from the parameters, or
            if it has more than `records` records.
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
        """Take gradients at the points p, release the neighbours' sums, and compute new points."""
        p = state.p.astype(np.float64)
        weight = self.topology.mixing_matrix.edge_weights[0]
        steps = at(self.step_size, t + 1) / self._degrees[problem.members]
        decayed = (weight - steps * problem.regularization) * p
        batches = self._full_batches(problem)
        gradients = clipped_gradient_sums(problem, state.p, batches, self.clipping_norm)
        y = Sensitive(decayed - steps * (self.topology.nodes / self.records) * gradients)
        release = self.release_of(t)
        links = int(self._degrees.sum())
        sums = yield Message(y, release, copies=links, bits=BITS * self.dim * links)
        self_weights = self.topology.mixing_matrix.weights.diagonal()[problem.members, np.newaxis]
        return SecureGossipState(Released((sums + self_weights * p).astype(state.p.dtype)))

    def losses(self, state: SecureGossipState, t: int, problem: LinearProblem, key: Key) -> Numbers:
        """Return each node's loss at its point on all of its records.

        Only a simulation can compute it: no node sends its loss.
        """
        losses: Numbers = problem.objective(state.p, self._full_batches(problem))
        return losses

    def parameters(self, state: SecureGossipState) -> Floats:
        """Return each node's model p, shape (nodes, dim), computed from released sums alone."""
        return state.p

    def _full_batches(self, problem: LinearProblem) -> Ragged:
        records: Ragged = problem.records_of(np.arange(problem.nodes))
        return records
