"""Correlated noise: over the rounds of a run, and between partners.

>>> from dpmesh.noise import correlated
>>> from dpmesh import topology
>>> matrix = topology.torus(4, 4).mixing_matrix
>>> secrets = correlated.partner_secrets(matrix, rounds=22, mixings=5, coalition=1)
>>> between = secrets.covariance
>>> objective = correlated.gossip(matrix, 22, mixings=5, covariance=between)
>>> release = correlated.CorrelatedGaussian(
...     noise_to_sensitivity=4.0, factorization=correlated.factorize(objective), secrets=secrets
... )
>>> round(release.mu, 6)
0.25
"""

from dpmesh.noise.correlated.amplitudes import least_own, partner_secrets
from dpmesh.noise.correlated.factorization import Factorization, from_matrix
from dpmesh.noise.correlated.joint import CorrelatedGaussian
from dpmesh.noise.correlated.objective import Objective, average_matrix, gossip, server
from dpmesh.noise.correlated.participation import Participation
from dpmesh.noise.correlated.sampler import CorrelatedNoise
from dpmesh.noise.correlated.secrets import Secrets, links
from dpmesh.noise.correlated.solve import factorize
from dpmesh.noise.correlated.strategy import BetweenPartners, Both, CorrelatedStrategy, InTime

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
