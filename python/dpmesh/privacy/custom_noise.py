"""Epsilon of releases by custom mechanisms, from the privacy loss that their classes state.

A custom mechanism states its `event` of the library dp-accounting, or a `privacy_loss`
distribution of that library. The library composes all releases that touch the same data. Its
distributions err upwards. `cost` calls `custom_costs` for the parts of the data that such releases
touch.
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
"""Interval of the grid of losses on which distributions are composed: dp-accounting's default."""


def custom_costs(
    touching: Iterable[Sequence[Release]], delta: float, relation: NeighboringRelation
) -> Iterator[tuple[float, str]]:
    """Yield the epsilon of each part of the data, and the name of its accountant.

    Parts with the same noise are composed once.

    Parameters
    ----------
    touching
        For each part, the releases that touch it.
    delta, relation
        As for `custom_cost`.
    """
    known_costs: dict[frozenset[tuple[object, int]], tuple[float, str]] = {}
    for releases in touching:
        counts = Counter((release.mechanism, release.sampling) for release in releases)
        noise = frozenset(counts.items())
        if noise not in known_costs:
            known_costs[noise] = custom_cost(releases, delta, relation)
        yield known_costs[noise]


def custom_cost(
    releases: Sequence[Release], delta: float, relation: NeighboringRelation
) -> tuple[float, str]:
    """Return the epsilon of releases that touch the same data, and the name of its accountant.

    Only Poisson sampling under add-remove amplifies, and only by events: other samples count as all
    data, and so do all samples where a mechanism states a loss distribution.

    Parameters
    ----------
    releases
        Releases with custom noise, possibly among releases with other noise.
    delta
        In [0, 1).
    relation
        Neighbouring relation.

    Returns
    -------
    Epsilon, infinite if dp-accounting cannot compose the events, and the accountant in words.

    Raises
    ------
    ValueError
        If a mechanism states a loss distribution, and another mechanism has none, or one on another
        grid.
    """
    counts = Counter((release.mechanism, _sampling(release, relation)) for release in releases)
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
    """Return the sampling of a release if it amplifies noise of any kind, else None."""
    if isinstance(release.sampling, PoissonSampling) and relation == "add_remove":
        return release.sampling
    return None


def _by_accountant(
    name: Literal["pld", "rdp"], events: Sequence[tuple[DpEvent, int]], delta: float
) -> float | None:
    """Return the epsilon of events by an accountant of dp-accounting.

    None if the accountant does not support every event. `events` holds each event with its count.
    """
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    accountant: Any = PLDAccountant() if name == "pld" else RdpAccountant()
    if not all(accountant.supports(event) for event, _ in events):
        return None
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _by_losses(losses: Sequence[tuple[Any, int]], delta: float) -> float:
    """Return the epsilon of loss distributions, each composed as often as its count states."""
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
    """Return the loss distribution that a mechanism or its event states, without sampling.

    None if neither states one.
    """
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
    if isinstance(event, RandomizedResponseDpEvent):
        return pld.from_randomized_response(
            event.noise_parameter, event.num_buckets, value_discretization_interval=INTERVAL
        )
    return None
