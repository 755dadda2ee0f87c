"""Accountants: the epsilon and delta of releases, from plain numbers, without data or state.

Their argument ``noise_to_sensitivity`` is the scale of the noise over the sensitivity (the *noise
ratio*). The sensitivity is that of the neighbouring relation in use: a clipped sum moves by ``C``
when a record is added or removed and by ``2 C`` when one is replaced. `noise_to_sensitivity`
converts a *noise multiplier*, the standard deviation over the clipping norm ``C``; no other
function applies that factor. Where a bound is proved under one relation only,
``neighboring_relation`` is an argument and the other is refused.
"""

from dpmesh.accounting import papers
from dpmesh.accounting.allocation import (
    random_allocation_delta,
    random_allocation_epsilon,
    random_allocation_noise_to_sensitivity,
)
from dpmesh.accounting.calibration import (
    affordable_rounds,
    calibrate_noise,
    fixed_size_gaussian_noise_to_sensitivity,
    poisson_gaussian_noise_to_sensitivity,
)
from dpmesh.accounting.discrete import discrete_gaussian_epsilon
from dpmesh.accounting.gaussian import (
    analytic_gaussian_noise_to_sensitivity,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
)
from dpmesh.accounting.multiplier import noise_to_sensitivity
from dpmesh.accounting.renyi import (
    DEFAULT_ORDERS,
    RdpGuarantee,
    rdp_epsilon,
    rdp_fixed_size_gaussian,
    rdp_gaussian,
    rdp_laplace,
    rdp_poisson_gaussian,
)
from dpmesh.accounting.sampled import (
    fixed_size_gaussian_epsilon,
    poisson_gaussian_epsilon,
    published_size_gaussian_epsilon,
)

__all__ = [
    "DEFAULT_ORDERS",
    "RdpGuarantee",
    "affordable_rounds",
    "analytic_gaussian_noise_to_sensitivity",
    "calibrate_noise",
    "discrete_gaussian_epsilon",
    "fixed_size_gaussian_epsilon",
    "fixed_size_gaussian_noise_to_sensitivity",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "noise_to_sensitivity",
    "papers",
    "poisson_gaussian_epsilon",
    "poisson_gaussian_noise_to_sensitivity",
    "published_size_gaussian_epsilon",
    "random_allocation_delta",
    "random_allocation_epsilon",
    "random_allocation_noise_to_sensitivity",
    "rdp_epsilon",
    "rdp_fixed_size_gaussian",
    "rdp_gaussian",
    "rdp_laplace",
    "rdp_poisson_gaussian",
]
