"""Secure sums: sites add up vectors on an integer grid, and nobody sees the parts.

See `SecureSum` for the public numbers, `NeighborSums` for those of sums over neighbours,
`DistributedDiscreteGaussian` for the sum, and `dpmesh.deploy` for sites that trust nobody.
"""

from dpmesh.noise.secure.mechanism import DistributedDiscreteGaussian, encode
from dpmesh.noise.secure.neighbors import NeighborSums
from dpmesh.noise.secure.sizes import SecureSum

__all__ = ["DistributedDiscreteGaussian", "NeighborSums", "SecureSum", "encode"]
