"""Secure sums: sites add up vectors on an integer grid, and nobody sees the parts.

See `SecureSum` for the public numbers, `NeighborSums` for those of sums over neighbours,
`secure_sum` for all sites in one process, and `dpmesh.deploy` for sites that trust nobody.
"""

from dpmesh.privacy.secure.mechanism import DistributedDiscreteGaussian, Masked, is_summed
from dpmesh.privacy.secure.neighbors import NeighborSums
from dpmesh.privacy.secure.sizes import SecureSum, calibrated_sum, wrap_bound
from dpmesh.privacy.secure.sums import answer, decode, encode, open_sum, secure_sum, with_noise

__all__ = [
    "DistributedDiscreteGaussian",
    "Masked",
    "NeighborSums",
    "SecureSum",
    "answer",
    "calibrated_sum",
    "decode",
    "encode",
    "is_summed",
    "open_sum",
    "secure_sum",
    "with_noise",
    "wrap_bound",
]
