"""Privacy audits: tests of a privacy claim by runs on neighbouring datasets.

- `couple` compares one pair of runs release by release, without statistics. It finds most faults.
- `audit_mechanism` and `audit_algorithm` give a lower confidence bound on epsilon (or on mu of
  Gaussian DP) from many runs.
- `audit_one_run` gives a lower confidence bound from one run with many canaries. A *canary* is a
  unit with extreme data, inserted to be detected.

A bound above the claim refutes the claim, at the stated confidence. A bound below proves nothing.
"""

from dpmesh.algorithms.worst_case import projection
from dpmesh.audit.algorithm import audit_algorithm, audit_layers
from dpmesh.audit.claimed_algorithm import claiming
from dpmesh.audit.claims import Claim, EpsilonClaim, GaussianClaim, claim_of
from dpmesh.audit.coupling import couple
from dpmesh.audit.mechanism import OneRelease, audit_mechanism
from dpmesh.audit.one_run import audit_one_run
from dpmesh.audit.result import AuditResult
from dpmesh.audit.transcript import alone
from dpmesh.audit.view_runs import audit_view

__all__ = [
    "AuditResult",
    "Claim",
    "EpsilonClaim",
    "GaussianClaim",
    "OneRelease",
    "alone",
    "audit_algorithm",
    "audit_layers",
    "audit_mechanism",
    "audit_one_run",
    "audit_view",
    "claim_of",
    "claiming",
    "couple",
    "projection",
]
