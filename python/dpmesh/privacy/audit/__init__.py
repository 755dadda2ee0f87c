"""Audits: evidence against a privacy claim from runs on neighbouring data, in three layers.

`couple` is deterministic and finds most faults with one pair of runs; `audit_mechanism` and
`audit_algorithm` give a lower confidence bound on epsilon from many runs, `audit_one_run` from a
single one. Failing an audit proves a fault, passing proves nothing.
"""

from dpmesh.privacy.audit import worst_cases
from dpmesh.privacy.audit.algorithm import audit_algorithm
from dpmesh.privacy.audit.canaries import HillProblem, PullingClients, canary_records
from dpmesh.privacy.audit.claims import Claim, EpsilonClaim, GaussianClaim, claim_of
from dpmesh.privacy.audit.coupling import Coupling, Movement, couple
from dpmesh.privacy.audit.layers import Crowd, Pair, audit_layers
from dpmesh.privacy.audit.mechanism import OneRelease, audit_mechanism
from dpmesh.privacy.audit.one_run import audit_one_run
from dpmesh.privacy.audit.result import AuditResult
from dpmesh.privacy.audit.sample_size import gaussian_curve, laplace_curve, power, runs_needed
from dpmesh.privacy.audit.scores import ReplayedLikelihood, projection
from dpmesh.privacy.audit.seat import LinearRun, audit_from_seat
from dpmesh.privacy.audit.seat_runs import audit_view
from dpmesh.privacy.audit.transcript import Transcript, alone, silence

__all__ = [
    "AuditResult",
    "Claim",
    "Coupling",
    "Crowd",
    "EpsilonClaim",
    "GaussianClaim",
    "HillProblem",
    "LinearRun",
    "Movement",
    "OneRelease",
    "Pair",
    "PullingClients",
    "ReplayedLikelihood",
    "Transcript",
    "alone",
    "audit_algorithm",
    "audit_from_seat",
    "audit_layers",
    "audit_mechanism",
    "audit_one_run",
    "audit_view",
    "canary_records",
    "claim_of",
    "couple",
    "gaussian_curve",
    "laplace_curve",
    "power",
    "projection",
    "runs_needed",
    "silence",
    "worst_cases",
]
