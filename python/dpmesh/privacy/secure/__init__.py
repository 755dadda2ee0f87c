"""Secure sums: sites add up vectors on an integer grid, and nobody sees the parts.

See `SecureSum` for the public numbers, `NeighborSums` for those of sums over neighbours,
`DistributedDiscreteGaussian` for the sum, and `dpmesh.deploy` for sites that trust nobody.
"""

from dpmesh.privacy.secure.mechanism import DistributedDiscreteGaussian, encode
from dpmesh.privacy.secure.neighbors import NeighborSums
from dpmesh.privacy.secure.sizes import SecureSum

__all__ = ["DistributedDiscreteGaussian", "NeighborSums", "SecureSum", "encode"]
