"""Epsilon under weaker adversaries: all messages, one node, a coalition, readers of the end only.

See docs/privacy/network_dp_proof.md for the theorem, its proof and what it assumes.
"""

from dpmesh.privacy.views.cost import costs_by_distance, epsilon_of, view_cost
from dpmesh.privacy.views.observers import (
    AnyCoalition,
    Coalition,
    Everybody,
    EverybodyButPartners,
    LastOnly,
    Links,
    Node,
    OneNode,
    PublishedMean,
    PublishedMessages,
    View,
)
from dpmesh.privacy.views.reaction import NotProved, Reaction
from dpmesh.privacy.views.steps import LossFacts, step_lipschitz

__all__ = [
    "AnyCoalition",
    "Coalition",
    "Everybody",
    "EverybodyButPartners",
    "LastOnly",
    "Links",
    "LossFacts",
    "Node",
    "NotProved",
    "OneNode",
    "PublishedMean",
    "PublishedMessages",
    "Reaction",
    "View",
    "costs_by_distance",
    "epsilon_of",
    "step_lipschitz",
    "view_cost",
]
