"""Audits: what runs on neighbouring data prove against a claim of privacy.

Failing an audit proves a fault, passing proves nothing.
"""

from dpmesh.privacy.audit.claims import Claim, EpsilonClaim, GaussianClaim, claim_of
from dpmesh.privacy.audit.coupling import Coupling, Movement, couple
from dpmesh.privacy.audit.mechanism import audit_mechanism
from dpmesh.privacy.audit.result import AuditResult
from dpmesh.privacy.audit.sample_size import gaussian_curve, laplace_curve, power, runs_needed
from dpmesh.privacy.audit.transcript import alone

__all__ = [
    "AuditResult",
    "Claim",
    "Coupling",
    "EpsilonClaim",
    "GaussianClaim",
    "Movement",
    "alone",
    "audit_mechanism",
    "claim_of",
    "couple",
    "gaussian_curve",
    "laplace_curve",
    "power",
    "runs_needed",
]
