"""Rényi differential privacy of rounds that may all differ, and its epsilon and delta.

A curve holds the Rényi divergence of a composition at each of its orders; curves of compositions
that touch the same data add up. They are computed in Rust: 1,000 distinct rounds take a few
hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh import _core
from dpmesh._privacy_types import NeighboringRelation
from dpmesh._validate import fail
from dpmesh.accounting._arguments import (
    Floats,
    noisy_rounds,
    only_add_remove,
    only_replace_one,
    open_probability,
    orders_above_one,
    require,
    sampled_rounds,
)

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + k / 10 for k in range(1, 100)),
    *range(11, 64),
    *(round(64 * 2 ** (k / 2)) for k in range(43)),
)
"""From 1.1 to 1.3e8: the usual orders, and those that an epsilon down to 1e-6 needs."""

_BESIDE = 8  # orders on either side that are searched for a better one

FixedSizeBound = Literal["dominating_pair", "theorem_27", "theorem_9"]
Conversion = Literal["optimal", "mironov"]


class RdpGuarantee(NamedTuple):
    """The (epsilon, delta) that a Rényi curve proves, and the order that proves it.

    Examples
    --------
    >>> from dpmesh import accounting
    >>> guarantee = accounting.rdp_epsilon(delta=1e-5, rdp=accounting.rdp_gaussian(4.0))
    >>> round(guarantee.epsilon, 2)
    1.01
    """

    epsilon: float
    delta: float
    order: float


def rdp_gaussian(
    noise_to_sensitivity: npt.ArrayLike,
    *,
    count: npt.ArrayLike = 1,
    orders: npt.ArrayLike | None = None,
) -> Floats:
    """Return the Rényi curve of Gaussian releases: ``order / (2 noise_to_sensitivity**2)``, summed.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation over the L2 sensitivity: a number, or one for each round.
    count
        Number of rounds of each kind: a number, or one for each round.
    orders
        Rényi orders, greater than 1; by default `DEFAULT_ORDERS`.

    Returns
    -------
    One divergence for each order.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    noise, counts = noisy_rounds(noise_to_sensitivity, count)
    return _core.rdp_gaussian(noise, counts, _orders(orders))


def rdp_laplace(
    noise_to_sensitivity: npt.ArrayLike,
    *,
    count: npt.ArrayLike = 1,
    orders: npt.ArrayLike | None = None,
) -> Floats:
    """Return the Rényi curve of Laplace releases, exact (Mironov 2017, Proposition 6).

    Parameters
    ----------
    noise_to_sensitivity
        Scale over the L1 sensitivity: a number, or one for each round.
    count, orders
        As for `rdp_gaussian`.

    Returns
    -------
    One divergence for each order.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    noise, counts = noisy_rounds(noise_to_sensitivity, count)
    return _core.rdp_laplace(noise, counts, _orders(orders))


def rdp_poisson_gaussian(
    *,
    sampling_rate: npt.ArrayLike,
    noise_to_sensitivity: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    count: npt.ArrayLike = 1,
    orders: npt.ArrayLike | None = None,
) -> Floats:
    """Return the Rényi curve of Gaussian releases of Poisson samples.

    Exact at every order: integer ones by their binomial sum, others by a quadrature that converges
    to about 1e-12 relative. Every unit is in each sample with probability `sampling_rate`,
    independently, and the noisy sum is divided by nothing that depends on the sample.

    Parameters
    ----------
    sampling_rate
        In (0, 1]: a number, or one for each round.
    noise_to_sensitivity
        Standard deviation over the L2 sensitivity to adding or removing a unit: a number, or one
        for each round. Below 0.01, orders below 1.01 get an upper bound.
    neighboring_relation
        Only ``"add_remove"`` is proved.
    count, orders
        As for `rdp_gaussian`.

    Returns
    -------
    One divergence for each order.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.

    References
    ----------
    Mironov, Talwar and Zhang 2019, "Rényi differential privacy of the sampled Gaussian mechanism".
    """
    only_add_remove(neighboring_relation)
    rate, noise, counts = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    return _core.rdp_poisson_gaussian(rate, noise, counts, _orders(orders))


def rdp_fixed_size_gaussian(
    *,
    sampling_rate: npt.ArrayLike,
    noise_to_sensitivity: npt.ArrayLike,
    neighboring_relation: NeighboringRelation,
    bound: FixedSizeBound = "dominating_pair",
    count: npt.ArrayLike = 1,
    orders: npt.ArrayLike | None = None,
) -> Floats:
    """Return a Rényi curve of Gaussian releases of samples of fixed size.

    Parameters
    ----------
    sampling_rate
        Sample size over population, in (0, 1]; the sample is drawn without replacement. A number,
        or one for each round.
    noise_to_sensitivity
        Standard deviation over the L2 sensitivity to *replacing* a unit, which is twice the
        clipping norm for a clipped sum: a number, or one for each round.
    neighboring_relation
        Only ``"replace_one"`` is proved.
    bound
        ``"dominating_pair"``, the tightest: the exact curve of the pair that dominates the
        mechanism (Zhu, Dong and Wang 2022). ``"theorem_27"`` and ``"theorem_9"``: those of Wang,
        Balle and Kasiviswanathan 2019, as dp-accounting and older papers use them, with the
        logarithm of the moment interpolated between integer orders; orders up to 65536.
    count, orders
        As for `rdp_gaussian`.

    Returns
    -------
    One divergence for each order, an upper bound.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the lengths of the rounds differ.
    """
    only_replace_one(neighboring_relation)
    rate, noise, counts = sampled_rounds(sampling_rate, noise_to_sensitivity, count)
    return _core.rdp_fixed_size_gaussian(bound, rate, noise, counts, _orders(orders))


def rdp_epsilon(
    *,
    delta: float,
    rdp: npt.ArrayLike,
    orders: npt.ArrayLike | None = None,
    conversion: Conversion = "optimal",
) -> RdpGuarantee:
    """Convert Rényi DP to (epsilon, delta)-DP: the smallest epsilon that a Rényi curve proves.

    Parameters
    ----------
    delta
        In (0, 1).
    rdp
        Rényi divergence at each order, at least 0, such as the result of `rdp_gaussian`; infinite
        where no bound is known.
    orders
        The orders of the curve; by default `DEFAULT_ORDERS`.
    conversion
        ``"optimal"``: ``rdp + ln(1 - 1/order) - ln(delta order)/(order - 1)`` (Canonne, Kamath and
        Steinke 2020, Proposition 12), or 0 where delta alone covers the release. ``"mironov"``:
        ``rdp + ln(1/delta)/(order - 1)``, as older papers use it.

    Raises
    ------
    ValueError
        If an argument is out of its range, or `rdp` and `orders` differ in length.
    """
    delta = open_probability("delta", delta)
    order_array = _orders(orders)
    curve = _curve(rdp, order_array)
    epsilon, index = _core.rdp_to_epsilon(order_array, curve, delta, conversion)
    return RdpGuarantee(epsilon, delta, float(order_array[index]))


def best_order(guarantee: Callable[[Sequence[float]], RdpGuarantee]) -> RdpGuarantee:
    """Return the best guarantee over the default orders, from a few of them.

    Epsilon is a convex function of the order divided by ``order - 1``, and so quasi-convex: an
    order that beats the best of every `_BESIDE`-th one lies beside that one. The least order is an
    exception, as it also wins where delta alone covers the release. Any order proves its own
    guarantee.
    """
    coarse = guarantee(DEFAULT_ORDERS[::_BESIDE])
    return min(coarse, guarantee(orders_beside(coarse.order)))


def orders_beside(order: float) -> Sequence[float]:
    """Return the default orders around one of them; around the least, all of them."""
    middle = DEFAULT_ORDERS.index(order)
    if middle == 0:
        return DEFAULT_ORDERS
    return DEFAULT_ORDERS[max(0, middle - _BESIDE) : middle + _BESIDE + 1]


def _orders(orders: npt.ArrayLike | None) -> Floats:
    """Return the orders of a curve, by default `DEFAULT_ORDERS`."""
    if orders is None:
        orders = DEFAULT_ORDERS
    return orders_above_one("orders", orders)


def _curve(rdp: npt.ArrayLike, orders: Floats) -> Floats:
    """Return the divergences, at least 0, one for each order."""
    curve = np.atleast_1d(np.asarray(rdp, dtype=np.float64))
    if curve.shape != orders.shape:
        fail("rdp", f"one divergence for each of {orders.size} orders", f"shape {curve.shape}")
    require("rdp", curve, curve >= 0, "divergences of at least 0")
    return np.ascontiguousarray(curve)
