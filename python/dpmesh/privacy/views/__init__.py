"""What a run costs against whom: everybody, one node, a coalition, readers of the end only.

See docs/privacy/views.md for the theorem, its proof and what it assumes.
"""

from dpmesh.privacy.views.cost import (
    ViewCost,
    costs_by_distance,
    epsilon_of,
    partners_cost,
    view_cost,
)
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
from dpmesh.privacy.views.steps import LossFacts, reaction_of_steps, step_lipschitz

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
    "ViewCost",
    "costs_by_distance",
    "epsilon_of",
    "partners_cost",
    "reaction_of_steps",
    "step_lipschitz",
    "view_cost",
]
