"""Noise that works together: correlated over the rounds of a run, and between partners.

>>> from dpmesh.privacy import correlated
>>> from dpmesh import topology
>>> matrix = topology.torus(4, 4).mixing_matrix
>>> secrets = correlated.partner_secrets(matrix, rounds=22, mixings=5, coalition=1)
>>> between = secrets.covariance
>>> objective = correlated.gossip(matrix, 22, mixings=5, covariance=between)
>>> release = correlated.CorrelatedGaussian(
...     noise_multiplier=4.0, factorization=correlated.factorize(objective), secrets=secrets
... )
>>> round(release.mu, 6)
0.25
"""

from dpmesh.privacy.correlated.amplitudes import least_own, partner_secrets
from dpmesh.privacy.correlated.factorization import Factorization, from_matrix
from dpmesh.privacy.correlated.joint import CorrelatedGaussian
from dpmesh.privacy.correlated.objective import Objective, average_matrix, gossip, server
from dpmesh.privacy.correlated.participation import Participation
from dpmesh.privacy.correlated.sampler import CorrelatedNoise
from dpmesh.privacy.correlated.secrets import Secrets, links
from dpmesh.privacy.correlated.solve import factorize
from dpmesh.privacy.correlated.strategy import BetweenPartners, Both, CorrelatedStrategy, InTime

__all__ = [
    "BetweenPartners",
    "Both",
    "CorrelatedGaussian",
    "CorrelatedNoise",
    "CorrelatedStrategy",
    "Factorization",
    "InTime",
    "Objective",
    "Participation",
    "Secrets",
    "average_matrix",
    "factorize",
    "from_matrix",
    "gossip",
    "least_own",
    "links",
    "partner_secrets",
    "server",
]
