"""Parts that an experiment file or a contract can name: classes and functions of this package.

A *part* is what one table of a file describes, such as the algorithm, the topology or a schedule.
The table's `kind` names a class or function (its *maker*); its other keys are the parameters of the
maker. Their types, defaults and descriptions come from the signature and the docstring, so that
a file and the package cannot disagree. `part_fields` reads them.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from math import inf
from types import ModuleType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import dpmesh._entry_points as entry_points
import dpmesh.algorithms as algorithms
import dpmesh.algorithms.controllers as controllers
import dpmesh.algorithms.denoisers as denoisers
import dpmesh.data as data
import dpmesh.noise as noise
import dpmesh.privacy as privacy
import dpmesh.privacy.views as views
import dpmesh.run.network as network
import dpmesh.schedules as schedules
import dpmesh.topology as topology
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.federated_contribution import Contribution
from dpmesh.algorithms.federated_server import ServerOptimizer
from dpmesh.algorithms.first_stage import SecondMoments
from dpmesh.algorithms.registry import KINDS
from dpmesh.defaults.run_sizes import names_following
from dpmesh.noise.correlated import BetweenPartners, Both, CorrelatedStrategy, InTime
from dpmesh.noise.mechanisms import KINDS as KINDS_OF_NOISE
from dpmesh.problems import LinearProblem
from dpmesh.problems.named import jax_model, torch_model
from dpmesh.settings.stage import Stage

Maker: TypeAlias = Callable[..., Any]
"""A class or function that builds a part."""

Kinds: TypeAlias = dict[str, type]
"""The classes that a table's `kind` can name, by name."""


def _named(module: ModuleType, names: str) -> dict[str, Any]:
    """Return members of a module by name; `names` separates them by blanks."""
    return {name: getattr(module, name) for name in names.split()}


def _classes(module: ModuleType, names: str) -> tuple[type, ...]:
    """Return classes of a module; `names` separates their names by blanks."""
    return tuple(_named(module, names).values())


@dataclass(frozen=True)
class Field:
    """A key of a part's table, which is a parameter of its maker.

    Parameters
    ----------
    hint
        Type hint of the parameter.
    required
        True if a table must have the key.
    default
        Default of the parameter; None if it has none.
    text
        Description of the parameter, from the docstring.
    """

    hint: object
    required: bool
    default: Any
    text: str


PROTOCOLS: dict[object, tuple[type, ...]] = {
    schedules.Schedule: _classes(
        schedules,
        "Constant InverseTime InverseSqrt PowerLaw HorizonPower ExponentialDecay Piecewise",
    ),
    denoisers.Denoiser: _classes(
        denoisers, "Identity LaplacianSmoothing AdaptiveSmoothing JamesStein SoftThreshold"
    ),
    controllers.Controller: _classes(controllers, "AlwaysGlobal AlwaysLocal RandomGlobal Periodic"),
    noise.Compressor: (noise.Quantizer, noise.Levels, noise.RandomSparsifier),
    CorrelatedStrategy: (InTime, BetweenPartners, Both),
    type: KINDS_OF_NOISE,
    Contribution: (algorithms.ClientUpdates, algorithms.RecordGradients),
    ServerOptimizer: (algorithms.ServerMomentum, algorithms.ServerAdam),
}
"""Types of parameters that are interfaces, and the classes that implement them in a file."""

INNER_KINDS: dict[str, type] = {
    **{cls.__name__: cls for classes in PROTOCOLS.values() for cls in classes},
    "SampleSize": schedules.SampleSize,
    "NoisyLoss": controllers.NoisyLoss,
    **_named(algorithms, "TrustedServer SecureAggregation AdaptiveClipping Average"),
    **_named(views, "PublishedMessages PublishedMean"),
    **_named(network, "Exponential LogNormal Uniform"),
}
"""Classes, by name, that the table ``{kind = "..", ..}`` of a parameter inside a part can name."""

SECTIONS: dict[str, Mapping[str, Maker]] = {
    "partition": {"iid": data.iid, "dirichlet": data.dirichlet, "shards": data.shards},
    "problem": {"linear": LinearProblem, "jax": jax_model, "torch": torch_model},
    "topology": _named(
        topology,
        "ring complete star torus random_regular erdos_renyi meetings random_directed "
        "random_matchings one_peer_exponential",
    ),
    "algorithm": KINDS,
    "first_stage": {"first_stage": Stage},
    "network": {"network": network.Network},
    "budget": {"budget": privacy.Budget},
    "view": _named(views, "OneNode Node Coalition AnyCoalition Links LastOnly"),
}
"""Tables of a file, and their possible ``kind``; a table with only one kind may omit it."""

DERIVED = frozenset(
    [
        "self",
        "dataset",
        "generator",
        "key",
        "train",
        "test",
        "partition",
        "public_data",
        "topology",
        "outline",
    ]
)
"""Names of parameters that follow from other parts of a file, so that no table has them."""

NODE_COUNTS = ("nodes", "clients")
"""Names of parameters whose default is the number of nodes."""

NODE_INDICES = tuple[int, ...]
"""Type of a parameter `nodes` that lists indices of nodes; it has no default number."""

SHORT_DESCRIPTION = 12
"""Length below which a docstring's description gets the common description before it."""

_PARAMETERS = re.compile(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.S | re.M)
_PARAMETER = re.compile(r"^(\w[\w, ]*)\n((?:[ ]+\S[^\n]*\n?|\n)+)", re.M)

_DEFERRED: dict[str, type] = {
    "CorrelatedStrategy": CorrelatedStrategy,
    "Independent": noise.Independent,
    "Mechanism": noise.Mechanism,
    "JaxProblem": object,  # results, which no file states, of packages that may be missing
    "TorchProblem": object,
}
"""Types that parts import for type checkers only, since their modules take long to import."""

_COMMON = {
    "also": "Published beside: PublishedMessages or PublishedMean.",
    "nodes": "Number of nodes: in a topology, that of the partition if it is left out.",
    "weights": "Weights of links: metropolis, max_degree or equal (regular graphs only).",
    "equal_sizes": "If true, all nodes hold equally many records.",
    "offset": "Added to t before all else.",
    "scale": "Factor of the whole schedule.",
    "exponent": "Power of t.",
}
"""Descriptions of parameters that docstrings describe together with others, or not at all."""


@cache
def part_fields(make: Maker) -> dict[str, Field]:
    """Return the fields of a part by name, without parameters that a file cannot state."""
    annotated: object = make
    if inspect.isclass(make) and not is_dataclass(make):
        annotated = make.__init__  # hints of a dataclass are on the class and its bases
    hints = _parameter_hints(annotated)
    descriptions = _descriptions_in_bases(make)
    fields = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if name in DERIVED or not _can_be_stated(hints.get(name)):
            continue
        has_default = parameter.default is not parameter.empty
        is_node_count = name in NODE_COUNTS and hints[name] != NODE_INDICES
        follows = is_node_count or name in names_following(make)
        fields[name] = Field(
            hint=hints[name],
            required=not has_default and not follows,
            default=parameter.default if has_default else None,
            text=_description(name, descriptions.get(name, "")),
        )
    return fields


def _parameter_hints(annotated: object) -> dict[str, Any]:
    """Return the type hints of parameters.

    The hint of the result is left out: it may be importable by type checkers only.
    """
    if not isinstance(annotated, types.FunctionType):
        return get_type_hints(annotated, localns=_DEFERRED)
    annotations = dict(annotated.__annotations__)
    annotations.pop("return", None)
    holder = types.SimpleNamespace(__annotations__=annotations)
    return get_type_hints(holder, globalns=annotated.__globals__, localns=_DEFERRED)


def _description(name: str, text: str) -> str:
    """Return a parameter's description; a short one follows the common description of the name."""
    if len(text) >= SHORT_DESCRIPTION or name not in _COMMON:
        return text
    return f"{_COMMON[name]} {text}".rstrip()


def installed_kinds() -> dict[str, type]:
    """Return the classes that this distribution's entry points add to experiment files, by name.

    Entry points of other installed distributions are not read.
    """
    kinds = entry_points.all_loaded(entry_points.KINDS)
    return {name: cls for name, cls in kinds.items() if isinstance(cls, type)}


def classes_for(hint: object) -> tuple[type, ...]:
    """Return the classes that a table can name for a value of a type; empty for other types."""
    protocol = get_origin(hint) or hint
    if protocol in PROTOCOLS:
        return PROTOCOLS[protocol]
    if isinstance(hint, type) and hint in INNER_KINDS.values():
        return (hint,)
    return ()


def alternatives_of(hint: object) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the type itself."""
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def _can_be_stated(hint: object) -> bool:
    """Return True if a file can state values of this type."""
    if hint in (int, float, bool, str, type(None)) or get_origin(hint) is Literal:
        return True
    alternatives = alternatives_of(hint)
    if len(alternatives) > 1:
        # The last alternative of a union is None, or a type that only Python code can state.
        return any(_can_be_stated(alternative) for alternative in alternatives[:-1])
    if get_origin(hint) in (tuple, list, Sequence):
        return _can_be_stated(get_args(hint)[0])
    return bool(classes_for(hint))


def _descriptions_in_bases(make: Maker) -> dict[str, str]:
    """Return the descriptions of parameters by name; a class inherits those of its bases."""
    if not inspect.isclass(make):
        return _parameter_descriptions(inspect.getdoc(make) or "")
    descriptions: dict[str, str] = {}
    for base in reversed(make.__mro__):
        descriptions |= _parameter_descriptions(inspect.cleandoc(base.__doc__ or ""))
    return descriptions


def _parameter_descriptions(docstring: str) -> dict[str, str]:
    """Return the descriptions of parameters in a numpydoc docstring."""
    section = _PARAMETERS.search(docstring)
    if section is None:
        return {}
    descriptions: dict[str, str] = {}
    for block in _PARAMETER.finditer(section[1]):
        names = block[1].split(", ")
        text = " ".join(block[2].replace("`", "").split())
        descriptions |= dict.fromkeys(names, text)
    return descriptions


def algorithm_of_repr(text: str) -> AnyAlgorithm:
    """Return the algorithm of a text that `repr` returned, as privacy reports have it.

    Raises
    ------
    ValueError
        If the text names no algorithm of this package, or leaves out a part, such as a network.
    """
    stages = (algorithms.Calibrated, algorithms.FirstStage, algorithms.RecordSums, SecondMoments)
    makers: dict[str, Maker] = {
        **SECTIONS["algorithm"],
        **INNER_KINDS,
        **{cls.__name__: cls for cls in stages},
        **installed_kinds(),
        "Independent": _independent_noise,
    }
    try:
        algorithm: AnyAlgorithm = _evaluated(ast.parse(text, mode="eval").body, makers)
    except SyntaxError:
        reason = "it has a part, such as a network, whose text does not state all of it"
        raise ValueError(f"algorithm: cannot be made again from {text!r} ({reason})") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"algorithm: cannot be made again from {text!r} ({error})") from error
    return algorithm


def _independent_noise(kind: type[noise.Mechanism], **settings: float) -> noise.Independent:
    """Return independent noise from the arguments in its `repr`."""
    return noise.Independent(kind, tuple(settings.items()))


def _evaluated(node: ast.expr, makers: Mapping[str, Maker]) -> Any:
    """Return the value of an expression, which no `eval` evaluates.

    It may have literals, ``inf``, names of `makers` and calls of them.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        maker = _maker_named(node.func.id, makers)
        positional = [_evaluated(argument, makers) for argument in node.args]
        by_name = {
            keyword.arg: _evaluated(keyword.value, makers)
            for keyword in node.keywords
            if keyword.arg
        }
        return maker(*positional, **by_name)
    if isinstance(node, ast.Name) and node.id == "inf":
        return inf
    if isinstance(node, ast.Name):  # a class of mechanisms
        return _maker_named(node.id, makers)
    return ast.literal_eval(node)


def _maker_named(name: str, makers: Mapping[str, Maker]) -> Maker:
    """Return the class or function of a name in the `repr` of an algorithm."""
    if name not in makers:
        raise ValueError(f"{name} is no part of this package")
    return makers[name]
