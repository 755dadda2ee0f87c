"""Combinations of correlated noise that are not proved private, refused with the reason."""

from __future__ import annotations

from typing import Literal

from dpmesh._validate import fail, integer, one_of
from dpmesh.privacy.correlated.joint import CorrelatedGaussian

StateMemory = Literal["none", "factor", "records"]


def require_proved(
    release: CorrelatedGaussian,
    *,
    rounds: int | None = None,
    distribution: str = "gaussian",
    norm: str = "l2",
    sampled: bool = False,
    one_node: bool = False,
    state_memory: StateMemory = "none",
    travels: str = "gossip",
    data_dependent_topology: bool = False,
) -> None:
    """Fail, with the reason, unless the guarantee of `release` is proved for a run of this kind.

    Parameters
    ----------
    release
        The joint release.
    rounds
        Rows that the run draws; None for all of the release.
    distribution, norm
        Of the noise and of the sensitivity.
    sampled
        Whether records are drawn at random in each round, to be charged with amplification.
    one_node
        Whether the cost is claimed against one node or another restricted view.
    state_memory
        What of a record the state keeps beyond what messages give: ``"none"``; ``"factor"``, if the
        state is multiplied by the release's `memory` and a gradient is added; ``"records"``, if the
        gradient is also taken at the node's own unsent state (modes "safe" and "paper" of quantized
        gossip), so that the record is used in every round.
    travels
        ``"gossip"``, ``"server"`` or ``"token"``.
    data_dependent_topology
        Whether the network depends on records.

    Raises
    ------
    ValueError
        Naming the argument, the reason, and what to change.
    """
    one_of("state_memory", state_memory, ("none", "factor", "records"))
    wide = release.factorization.bands.shape[1] > 1
    if distribution != "gaussian" or norm != "l2":
        wanted = "Gaussian noise and an L2 sensitivity: correlated Laplace noise has no proof"
        fail("distribution", wanted, f"{distribution} noise and norm {norm}")
    if sampled:
        wanted = "batches fixed beforehand: amplification by sampling is not proved for correlated "
        fail("sampling", f"{wanted}noise and replace-one neighbours", "random batches")
    if one_node:
        wanted = "the view of everybody (except link partners): views of single nodes assume "
        fail("view", f"{wanted}independent noise", "one node")
    if data_dependent_topology:
        fail("topology", "a public network that does not depend on records", "another")
    if state_memory == "records" and wide:
        wanted = (
            "method='diagonal': the record is used in every round, where correlation cannot help"
        )
        fail("factorization", wanted, f"{release.factorization.bands.shape[1]} bands")
    if state_memory != "none" and not release.recursion_remembers:
        fail("memory", "the factor with which the state remembers its previous value", "0")
    if travels == "token" and release.secrets is not None:
        fail("secrets", "none: partners do not send at the same time when a token travels", "some")
    if rounds is not None and integer("rounds", rounds, 1) > release.rounds:
        fail("rounds", f"at most {release.rounds}, the rows that C was planned for", rounds)
