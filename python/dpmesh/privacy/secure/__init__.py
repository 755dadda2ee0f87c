"""Secure sums: sites add up vectors on an integer grid, and nobody sees the parts.

See `SecureSum` for the public numbers, `NeighborSums` for those of sums over neighbours,
`secure_sum` for all sites in one process, and `dpmesh.deploy` for sites that trust nobody.
"""

from dpmesh.privacy.secure.mechanism import DistributedDiscreteGaussian
from dpmesh.privacy.secure.neighbors import NeighborSums
from dpmesh.privacy.secure.sizes import SecureSum
from dpmesh.privacy.secure.sums import answer, encode, secure_sum, with_noise

__all__ = [
    "DistributedDiscreteGaussian",
    "NeighborSums",
    "SecureSum",
    "answer",
    "encode",
    "secure_sum",
    "with_noise",
]
