"""Plans and ledgers, budgets, costs, views and reports."""

from dpmesh._epsilons import rounded_up
from dpmesh._privacy_types import Released, Sensitive
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.ledger import Ledger, UnplannedRelease
from dpmesh.privacy.plan import ClippedNoise, Plan, total_cost
from dpmesh.privacy.releases import Release
from dpmesh.privacy.report import Report, report
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, RandomAllocation

__all__ = [
    "Budget",
    "ClippedNoise",
    "Cost",
    "FixedSizeSampling",
    "Ledger",
    "OverBudget",
    "Plan",
    "PoissonSampling",
    "RandomAllocation",
    "Release",
    "Released",
    "Report",
    "Sensitive",
    "UnplannedRelease",
    "report",
    "rounded_up",
    "total_cost",
]
