"""Privacy accountants: functions that compute epsilon, delta, mu and Rényi curves from numbers.

Terms of all functions:

- A *unit* is what is protected: a record, or all records of a user.
- A *release* is one noisy answer, such as the noisy sum of a round. Releases of several rounds on
  the same data compose adaptively.
- ``noise_to_sensitivity``, the *noise ratio*, is the scale of the noise over the sensitivity: the
  standard deviation over the L2 sensitivity for Gaussian noise, the scale over the L1 sensitivity
  for Laplace noise.
- The *sensitivity* depends on the neighbouring relation. A sum of vectors that are clipped to norm
  ``C`` changes by ``C`` if a unit is added or removed (``"add_remove"``), and by ``2 C`` if a unit
  is replaced (``"replace_one"``).
- A *noise multiplier* is the standard deviation over ``C``. `noise_to_sensitivity` converts it to a
  noise ratio; no other function applies the factor 2.
- ``mu`` is the parameter of Gaussian DP (Dong, Roth and Su 2022).

Functions with the argument ``neighboring_relation`` refuse a relation without a proof.
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
