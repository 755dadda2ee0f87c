"""Secure sums over MPI: each rank adds up its own sites' integers, and all ranks add up these.

The masks of deployed sites are left out, as in one process: ranks trust each other, and masks
change no bit of a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from dpmesh._validate import fail
from dpmesh.algorithms import CrossSiloSGD
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.engines.ranks import Ranks
from dpmesh.keys import Stream
from dpmesh.privacy.mechanisms import Mechanism
from dpmesh.privacy.secure import DistributedDiscreteGaussian, SecureSum, decode
from dpmesh.privacy.secure.sums import Integers, part_of_sum, wrapped
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Sensitive
from dpmesh.run.carriers import Broadcast, Sent
from dpmesh.run.traffic import Traffic


def why_not(algorithm: AnyAlgorithm) -> str | None:
    """Return why an algorithm does not run on ranks; None if it does."""
    if algorithm.travels == "sums":
        return "sums over neighbours on other ranks are not built"
    if algorithm.travels == "server" and not isinstance(algorithm, CrossSiloSGD):
        return "of the algorithms with a server, only CrossSiloSGD runs on ranks"
    return None


class MpiSums(Broadcast):
    """How the sites of all ranks release one sum, which every rank then has.

    Parameters
    ----------
    ranks
        The ranks and their sites.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def traffic(self, round: int, sent: Sent) -> Traffic:
        """Return what all sites sent, on rank 0 alone: every rank knows it, and ranks add up."""
        return super().traffic(round, sent) if self._ranks.is_root else Traffic(0, 0)

    def joint(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that releases the sum over the sites of all ranks."""
        numbers = getattr(mechanism, "numbers", None)
        if not isinstance(mechanism, DistributedDiscreteGaussian) or type(numbers) is not SecureSum:
            fail("release", "one secure sum of all sites, on ranks", mechanism)
        return _SumOnRanks(numbers, add=self._add)

    def _add(self, part: Integers) -> Integers:
        """Return the sum of all ranks' parts, modulo ``2**64``."""
        self._ranks.agree()
        total = np.empty_like(part)
        several = self._ranks.processes > 1
        self._ranks.count(several * part.nbytes, several * part.nbytes)
        words = part.view(np.uint64), total.view(np.uint64)  # which wrap around by definition
        self._ranks.communicator.Allreduce(*words, op=MPI.SUM)
        return total


@dataclass(frozen=True, kw_only=True)
class _SumOnRanks(DistributedDiscreteGaussian):
    """A secure sum of which this rank has some rows; what ranks exchange stays integers."""

    add: Callable[[Integers], Integers]

    def prepared(self, values: Sensitive) -> Sensitive:
        """Return this rank's rows."""
        return values

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        sizes = self.numbers
        assert isinstance(sizes, SecureSum)
        total = self.add(part_of_sum(sizes, Sensitive(values), stream))
        return decode(sizes, wrapped(sizes, total))[np.newaxis]
