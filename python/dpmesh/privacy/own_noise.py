"""Releases with noise of one's own: what they cost by the loss that their mechanisms state.

A mechanism states its `event` of dp-accounting, or the distribution of its `privacy_loss`. All
releases that touch the same data are composed by that library, whose distributions err upwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail
from dpmesh.noise.mechanisms import Mechanism, pure_epsilon
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import PoissonSampling, Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

INTERVAL = 1e-4
"""Of the grid of losses on which distributions are composed: dp-accounting's default."""


def own_costs(
    touching: Iterable[Sequence[Release]], delta: float, relation: NeighboringRelation
) -> Iterator[tuple[float, str]]:
    """Yield `own_cost` of releases of each part; parts of the same noise are composed once."""
    known_costs: dict[frozenset[tuple[object, int]], tuple[float, str]] = {}
    for releases in touching:
        same = frozenset(Counter((r.mechanism, r.sampling) for r in releases).items())
        if same not in known_costs:
            known_costs[same] = own_cost(releases, delta, relation)
        yield known_costs[same]


def own_cost(
    releases: Sequence[Release], delta: float, relation: NeighboringRelation
) -> tuple[float, str]:
    """Return an epsilon of releases that touch the same data, and how it was found.

    Samples of fixed size, and Poisson samples where a unit is replaced, are counted as all data.

    Raises
    ------
    ValueError
        If a mechanism states a loss distribution, and another one has none, or one of another grid.
    """
    counts = Counter((r.mechanism, _sampling(r, relation)) for r in releases)
    losses = [(_loss(mechanism), count) for (mechanism, _), count in counts.items()]
    events = [
        (mechanism.event if sampling is None else sampling.event(mechanism.event), count)
        for (mechanism, sampling), count in counts.items()
    ]
    if any(mechanism.privacy_loss is not None for mechanism, _ in counts):
        if any(loss is None for loss, _ in losses):
            fail("privacy_loss", "a loss distribution of each mechanism beside", list(counts))
        return _by_losses(losses, delta), "privacy loss distribution stated by the mechanism"
    if delta == 0:
        pure = sum(count * pure_epsilon(event) for event, count in events)
        if pure < inf:
            return pure, "pure differential privacy of the mechanism's event"
    by_event = "of the mechanism's event"
    epsilon = _by_accountant("pld", events, delta)
    if epsilon is None and all(loss is not None for loss, _ in losses):
        epsilon = _by_losses(losses, delta)
    if epsilon is not None:
        return epsilon, f"privacy loss distribution {by_event}"
    epsilon = _by_accountant("rdp", events, delta)
    if epsilon is not None:
        return epsilon, f"Rényi curve {by_event}"
    return inf, "none: dp-accounting composes no such events"


def _sampling(release: Release, relation: NeighboringRelation) -> Sampling | None:
    """Return the sampling that amplifies noise of any kind, None if it does not."""
    poisson = isinstance(release.sampling, PoissonSampling) and relation == "add_remove"
    if poisson:
        return release.sampling
    return None


def _by_accountant(
    name: Literal["pld", "rdp"], events: Sequence[tuple[DpEvent, int]], delta: float
) -> float | None:
    """Return the epsilon by an accountant, None if it does not know all events."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    accountant: Any = PLDAccountant() if name == "pld" else RdpAccountant()
    if not all(accountant.supports(event) for event, _ in events):
        return None
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _by_losses(losses: Sequence[tuple[Any, int]], delta: float) -> float:
    """Return the epsilon of distributions so many times each; samples count as all data."""
    total: Any = None
    for loss, count in losses:
        several = loss.self_compose(count)
        try:
            total = several if total is None else total.compose(several)
        except ValueError as error:
            expected = f"distributions of losses on a grid of {INTERVAL:g}"
            fail("privacy_loss", expected, str(error))
    return float(total.get_epsilon_for_delta(delta))


def _loss(mechanism: Mechanism) -> Any:
    """Return the distribution of a mechanism's loss, None if neither it nor its event states it."""
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent, RandomizedResponseDpEvent
    from dp_accounting.pld import privacy_loss_distribution as pld

    if mechanism.privacy_loss is not None:
        return mechanism.privacy_loss
    event = mechanism.event
    if isinstance(event, GaussianDpEvent):
        return pld.from_gaussian_mechanism(
            event.noise_multiplier, value_discretization_interval=INTERVAL
        )
    if isinstance(event, LaplaceDpEvent):
        return pld.from_laplace_mechanism(
            event.noise_multiplier, value_discretization_interval=INTERVAL
        )
    if isinstance(event, RandomizedResponseDpEvent):  # of replacing one, whatever it is
        return pld.from_randomized_response(
            event.noise_parameter, event.num_buckets, value_discretization_interval=INTERVAL
        )
    return None
