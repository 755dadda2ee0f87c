"""Mechanisms, plans and ledgers, accountants, reports, audits."""

from importlib import import_module
from typing import TYPE_CHECKING

from dpmesh.privacy import accounting
from dpmesh.privacy.budget import Budget, OverBudget
from dpmesh.privacy.compression import Compressor, Levels, Quantizer, RandomSparsifier
from dpmesh.privacy.cost import Cost
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.mechanisms import Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.privacy.plan import Plan, total_cost
from dpmesh.privacy.releases import Release
from dpmesh.privacy.report import Report, report
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, RandomAllocation
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.shown import rounded_up
from dpmesh.privacy.types import Released, Sensitive

if TYPE_CHECKING:
    from dpmesh.privacy import correlated

__all__ = [
    "Budget",
    "Compressor",
    "Cost",
    "FixedSizeSampling",
    "Gaussian",
    "Laplace",
    "Ledger",
    "Levels",
    "Mechanism",
    "NoNoise",
    "OverBudget",
    "Plan",
    "PoissonSampling",
    "Quantizer",
    "RandomAllocation",
    "RandomSparsifier",
    "Release",
    "Released",
    "Report",
    "Sensitive",
    "Sensitivity",
    "accounting",
    "correlated",
    "report",
    "rounded_up",
    "total_cost",
]


def __getattr__(name: str) -> object:
    if name == "correlated":  # optimisers that few runs need
        return import_module(f"dpmesh.privacy.{name}")
    now = "; write dpmesh.audit" if name == "audit" else ""
    raise AttributeError(f"module 'dpmesh.privacy' has no attribute {name!r}{now}")


def __dir__() -> list[str]:
    return sorted(__all__)
