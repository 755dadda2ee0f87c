"""Attacks on what was released: how well training records can be distinguished from others."""

from dpmesh.attacks.membership import (
    MembershipAttack,
    likelihood_ratio_attack,
    scored,
    threshold_attack,
)

__all__ = ["MembershipAttack", "likelihood_ratio_attack", "scored", "threshold_attack"]
