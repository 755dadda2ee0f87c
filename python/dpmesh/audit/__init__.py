"""Audits: evidence against a privacy claim from runs on neighbouring data, in three layers.

`couple` is deterministic and finds most faults with one pair of runs; `audit_mechanism` and
`audit_algorithm` give a lower confidence bound on epsilon from many runs, `audit_one_run` from a
single one. Failing an audit proves a fault, passing proves nothing.
"""

from dpmesh.algorithms.worst_case import projection
from dpmesh.audit.algorithm import audit_algorithm, audit_layers
from dpmesh.audit.claims import Claim, EpsilonClaim, GaussianClaim, claim_of
from dpmesh.audit.coupling import couple
from dpmesh.audit.mechanism import OneRelease, audit_mechanism
from dpmesh.audit.one_run import audit_one_run
from dpmesh.audit.own import claiming
from dpmesh.audit.result import AuditResult
from dpmesh.audit.seat_runs import audit_view
from dpmesh.audit.transcript import alone

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
