"""Registry of algorithms, with one `Entry` for each.

The command line, experiment files, the tests of all algorithms and the reference pages read this
registry. `register` adds a user's algorithm.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpmesh._networks import imported
from dpmesh._validate import fail, nearest, one_of
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.controllers import Periodic
from dpmesh.algorithms.descent import Descent
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_combination import SecureAggregation, TrustedServer
from dpmesh.algorithms.federated_gradients import RecordGradients
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.algorithms.gradient_tracking import GradientTracking
from dpmesh.algorithms.online import OnlineLearning
from dpmesh.algorithms.push_sum import PushSum
from dpmesh.algorithms.quantized import QuantizedGossip
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.algorithms.secure_gossip import SecureGossip
from dpmesh.algorithms.with_replacement import WithReplacement
from dpmesh.algorithms.without_replacement import WithoutReplacement
from dpmesh.noise.compression import Quantizer
from dpmesh.schedules import HorizonPower, PowerLaw, SampleSize
from dpmesh.topology import complete


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Entry of an algorithm: its names, examples, and settings for commands and audits.

    Parameters
    ----------
    name
        Name on the command line, such as ``"gradient-descent"``.
    kind
        Class of the algorithm.
    example
        A small example for `NODES` nodes of `RECORDS` records, `DIM` parameters and `ROUNDS`
        rounds.
    small
        An example whose claim an audit can test with few runs; by default `example`.
    asked
        Names of the parameters on which epsilon depends, which are options of `dpmesh privacy`;
        empty for all parameters.
    learns
        True if the algorithm learns a model. An algorithm that only releases sums is not available
        in experiment files.
    public
        Values, by name, of parameters that are no options of `dpmesh privacy`: those without a
        default, or with another default than the class.
    parts
        Classes, by name, of parameters that are dataclasses themselves, such as the contribution of
        `FederatedLearning`. `asked` and `public` also name parameters of these classes.
    """

    name: str
    kind: type[AnyAlgorithm]
    example: AnyAlgorithm
    small: AnyAlgorithm | None = None
    asked: tuple[str, ...] = ()
    learns: bool = True
    public: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, type] = field(default_factory=dict)

    def with_parts(self, public: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the algorithm, with its `parts` built from their parameters.

        Parameters
        ----------
        public
            Parameters of the algorithm and of its parts, by name.
        """
        parameters = dict(public)
        for name, part_class in self.parts.items():
            part_names = inspect.signature(part_class).parameters.keys() & parameters.keys()
            part_parameters = {key: parameters.pop(key) for key in part_names}
            parameters[name] = part_class(**part_parameters)
        return parameters

    @property
    def audited(self) -> AnyAlgorithm:
        """The algorithm that `dpmesh audit` runs by default."""
        if self.small is None:
            return self.example
        return self.small


NODES = 4
"""Number of nodes of the examples."""
RECORDS = 12
"""Number of records of each node of the examples."""
DIM = 3
"""Number of parameters of the models of the examples."""
ROUNDS = 5
"""Number of rounds of the examples."""


def _descent(name: str, kind: type[Descent[Any]]) -> Entry:
    """Return the entry of an algorithm with the parameters of `Descent`."""
    return Entry(
        name=name,
        kind=kind,
        example=kind(records=RECORDS, noise_multiplier=4.0),
        small=kind(records=4, noise_multiplier=3.0),
        asked=("records", "step_size", "clipping_norm", "batches", "copies"),
    )


REGISTRY: list[Entry] = [
    Entry(
        name="cross-silo",
        kind=FederatedLearning,
        example=FederatedLearning(
            RecordGradients(clients=NODES, records=NODES * RECORDS),
            noise_multiplier=4.0,
            combination=SecureAggregation(dim=DIM, rounds=ROUNDS),
        ),
        asked=(
            "clients",
            "records",
            "dim",
            "rounds",
            "colluding",
            "dropouts",
            "sampling_rate",
            "neighboring_relation",
        ),
        parts={"contribution": RecordGradients, "combination": SecureAggregation},
    ),
    Entry(
        name="federated",
        kind=FederatedLearning,
        example=FederatedLearning(
            ClientUpdates(clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
            noise_multiplier=1.0,
        ),
        small=FederatedLearning(
            ClientUpdates(clients=2, sampling_rate=0.5, steps=1), noise_multiplier=1.0
        ),
        asked=("clients", "sampling_rate", "sampling", "clipping_norm", "arrival_rate", "grid"),
        public={"steps": 1},
        parts={"contribution": ClientUpdates, "combination": TrustedServer},
    ),
    _descent("gradient-descent", GradientDescent),
    _descent("gradient-tracking", GradientTracking),
    Entry(
        name="online",
        kind=OnlineLearning,
        example=OnlineLearning(epsilon=2.0),
        small=OnlineLearning(epsilon=1.0),
        asked=("step_size", "clipping_norm", "batch_size", "norm", "copies"),
    ),
    _descent("push-sum", PushSum),
    Entry(
        name="quantized",
        kind=QuantizedGossip,
        example=QuantizedGossip(
            step_size=HorizonPower(scale=1.0, exponent=-0.8, rounds=ROUNDS),
            consensus_step_size=HorizonPower(scale=1.0, exponent=-0.6, rounds=ROUNDS),
            sample_size=SampleSize(scale=1.0, exponent=0.5, rounds=ROUNDS),
            noise_std=PowerLaw(scale=0.1, exponent=0.1),
        ),
        small=QuantizedGossip(
            step_size=0.5,
            consensus_step_size=0.2,
            sample_size=10,
            noise_std=1.0,
            compressor=Quantizer(0.001, bits=16),
            smoothness=1.0,
        ),
        asked=(
            "step_size",
            "consensus_step_size",
            "sample_size",
            "clipping_norm",
            "mode",
            "smoothness",
        ),
        public={"compressor": None},
    ),
    Entry(
        name="record-sums",
        kind=RecordSums,
        example=RecordSums(
            dim=DIM, sites=NODES, records=NODES * RECORDS, noise_to_sensitivity=2.0, rounds=ROUNDS
        ),
        small=RecordSums(dim=1, sites=2, records=4, noise_to_sensitivity=1.0, colluding=0),
        learns=False,
    ),
    Entry(
        name="secure-gossip",
        kind=SecureGossip,
        example=SecureGossip(
            topology=complete(NODES), dim=DIM, records=NODES * RECORDS, noise_multiplier=4.0
        ),
    ),
    Entry(
        name="with-replacement",
        kind=WithReplacement,
        example=WithReplacement(
            nodes=NODES, records=RECORDS, noise_multiplier=4.0, batch_size=2, visits=2
        ),
        small=WithReplacement(
            nodes=1, records=2, noise_multiplier=2.0, batch_size=1, step_size=0.01
        ),
        asked=("records", "models", "batch_size", "visits", "copies"),
        public={"nodes": 1},
    ),
    Entry(
        name="without-replacement",
        kind=WithoutReplacement,
        example=WithoutReplacement(delta=1e-5, batch_size=2, controller=Periodic(2)),
        small=WithoutReplacement(
            epsilon=4.0, batch_size=2, step_size=0.001, controller=Periodic(2), radius=1.0
        ),
        asked=("models", "batch_size", "copies"),
    ),
]

KINDS: dict[str, type[AnyAlgorithm]] = {
    entry.kind.__name__: entry.kind for entry in REGISTRY if entry.learns
}
"""Classes of algorithms that learn a model, by their names in experiment files and contracts."""


def register(entry: Entry) -> None:
    """Add a custom algorithm, which the command line, files and contracts can then name.

    Its class is responsible for its claims of privacy: `sensitivity`, `reaction`, `leaking_data`
    and `messages_need_no_trust`.

    Parameters
    ----------
    entry
        Entry of the algorithm.

    Raises
    ------
    ValueError
        If the name of the entry or of its class is taken.
    """
    class_name = entry.kind.__name__
    taken_names = [registered.name for registered in REGISTRY]
    if entry.name in taken_names or class_name in KINDS:
        fail("name", "one that is not taken", f"{entry.name} ({class_name})")
    REGISTRY.append(entry)
    if entry.learns:
        KINDS[class_name] = entry.kind


def entry_of(name: str) -> Entry:
    """Return the entry of an algorithm by its name on the command line.

    Parameters
    ----------
    name
        Name of an entry, or ``module:name``: the module is imported first, and registers the
        algorithm.

    Raises
    ------
    ValueError
        If no entry has this name, or the module cannot be imported.
    """
    module, _, name = name.rpartition(":")
    if module and imported(module) is None:
        expected = f"module:name, with {module}.py in this folder or a module that is installed"
        fail("name", expected, repr(f"{module}:{name}"))
    names = [entry.name for entry in REGISTRY]
    if module and name not in names:
        expected = f"the name of an Entry that {module} registers, or the class of a mechanism"
        fail("name", expected, f"{name!r}{nearest(name, names)}")
    one_of("name", name, names)
    return next(entry for entry in REGISTRY if entry.name == name)
