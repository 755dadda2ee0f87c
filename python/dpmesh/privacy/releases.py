"""The public record of what leaves the nodes: by which mechanism, how sensitive, of whose data."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dpmesh._validate import BEYOND, fail, integer
from dpmesh.noise.mechanisms import Mechanism, NoNoise, mechanism_named
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.noise.secure import DistributedDiscreteGaussian, NeighborSums, SecureSum
from dpmesh.noise.sensitivity import A_SENSITIVITY, Sensitivity
from dpmesh.privacy.sampling import Sampling, sampling_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SAMPLINGS = (*get_args(Sampling), NoneType)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of one round, known before the run from public numbers alone.

    Parameters
    ----------
    round
        The round, from 0.
    mechanism
        What adds the noise. Values of sensitivity 0 are released as they are, by `NoNoise`.
    sensitivity
        Largest change of the values between neighbouring datasets, given all earlier releases.
    batch
        Index of the batch of records that the values depend on, given all earlier releases. The
        batches of a node are disjoint, so releases of different batches compose in parallel. None:
        the values depend on all records.
    sampling
        Random sampling of the units that take part in the release; None if all units take part.
    nodes
        Indices of the nodes, from 0, whose data the values depend on; None for all nodes. Nodes
        whose noise or sensitivity differs in a round have separate releases.

    Raises
    ------
    ValueError
        If `nodes` is not one or more distinct integers of at least 0, or another argument has the
        wrong type.

    Examples
    --------
    >>> from dpmesh.noise import Gaussian, Sensitivity
    >>> from dpmesh.privacy import Release
    >>> Release(0, Gaussian(2.0), Sensitivity(1.0, "l2", "a count")).name
    'gaussian'
    """

    round: int
    mechanism: Mechanism
    sensitivity: Sensitivity
    _: KW_ONLY
    batch: int | None = None
    sampling: Sampling | None = None
    nodes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if type(self.round) is not int or not 0 <= self.round < BEYOND:
            object.__setattr__(self, "round", integer("round", self.round))
        if self.batch is not None and (type(self.batch) is not int or not 0 <= self.batch < BEYOND):
            object.__setattr__(self, "batch", integer("batch", self.batch))
        if not isinstance(self.mechanism, Mechanism):
            fail("mechanism", "a mechanism, such as Gaussian(1.0)", reprlib.repr(self.mechanism))
        if not isinstance(self.sensitivity, Sensitivity):
            fail("sensitivity", A_SENSITIVITY, reprlib.repr(self.sensitivity))
        if self.sensitivity.bound == 0 and self.mechanism.adds_noise:
            object.__setattr__(self, "mechanism", NoNoise())
        if type(self.sampling) not in _SAMPLINGS:  # no class of one's own
            expected = "PoissonSampling, FixedSizeSampling or RandomAllocation"
            fail("sampling", expected, repr(self.sampling))
        if self.nodes is None:
            return
        nodes = np.asarray(self.nodes)
        is_vector = nodes.ndim == 1 and nodes.size > 0 and nodes.dtype.kind in "iu"
        if not is_vector or nodes.min() < 0 or len(set(nodes.tolist())) < nodes.size:
            fail("nodes", "a tuple of distinct integers of at least 0", self.nodes)
        if type(self.nodes) is not tuple:
            object.__setattr__(self, "nodes", tuple(nodes.tolist()))

    @property
    def name(self) -> str:
        """Distribution of the noise, real-valued or on a grid; ``"none"`` if there is none."""
        return self.mechanism.name

    @property
    def noise_to_sensitivity(self) -> float:
        """Scale of the noise over the sensitivity in the mechanism's own norm; 0 without noise.

        For Laplace noise this is scale / L1 sensitivity (so 1 / epsilon), for Gaussian noise
        standard deviation / L2 sensitivity.
        """
        return self.mechanism.noise_to_sensitivity

    @property
    def failure(self) -> float:
        """Probability, added to delta, that the release is more sensitive than declared."""
        if self.sampling is None:
            return 0.0
        return self.sampling.failure

    @property
    def needs_plan(self) -> bool:
        """True if epsilon is proved only for the plan as a whole, not for the release alone.

        This is the case for samples, for random allocation and for correlated noise. Releases of a
        group have a joint epsilon, and sampling must not depend on earlier releases.
        """
        depends_on_data = self.sensitivity.bound > 0
        return depends_on_data and (self.sampling is not None or self.mechanism.is_joint)

    @property
    def event(self) -> DpEvent:
        """The release as an event of the dp-accounting library, see `Mechanism.event`."""
        import dp_accounting

        if self.sensitivity.bound == 0:
            return dp_accounting.NoOpDpEvent()
        event = self.mechanism.event
        if self.sampling is None:
            return event
        return self.sampling.event(event)

    def as_dict(self) -> dict[str, Any]:
        """Return the release in plain types that JSON can hold."""
        mechanism = self.mechanism
        # A mechanism without a law may be a user's class: `from_dict` finds it in its module.
        return {
            "round": self.round,
            "mechanism": self.name,
            "noise_to_sensitivity": self.noise_to_sensitivity,
            "clipping_norm": mechanism.clipping_norm,
            "grid": mechanism.grid,
            "secure_sum": _secure_sum_of(mechanism),
            "correlated": _row_of(mechanism),
            "settings": _settings_of(mechanism),
            "module": None if mechanism.law is not None else type(mechanism).__module__,
            "sensitivity": asdict(self.sensitivity),
            "batch": self.batch,
            "sampling": None if self.sampling is None else asdict(self.sampling),
            "nodes": self.nodes,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Release:
        """Return the release from a dictionary that `as_dict` returned."""
        sampling = fields["sampling"]
        nodes = fields["nodes"]
        return cls(
            fields["round"],
            _mechanism_of(fields),
            Sensitivity(**fields["sensitivity"]),
            batch=fields["batch"],
            sampling=None if sampling is None else sampling_of(sampling),
            nodes=None if nodes is None else tuple(nodes),
        )


def _secure_sum_of(mechanism: Mechanism) -> dict[str, Any] | None:
    """Return the public numbers of a secure sum, None for another mechanism."""
    if mechanism.sums is None:
        return None
    return asdict(mechanism.sums)


def _row_of(mechanism: Mechanism) -> dict[str, Any] | None:
    """Return the joint event of correlated noise and the row of it, None for another mechanism."""
    joint = mechanism.joint_event
    if joint is None:
        return None
    return {"joint": joint.as_dict(), "row": mechanism.joint_row}


def _settings_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the fields of independent noise of a class of one's own."""
    if mechanism.joint_event is not None or mechanism.sums is not None:
        return {}
    return mechanism.settings


def _mechanism_of(fields: Mapping[str, Any]) -> Mechanism:
    if fields.get("secure_sum") is not None:
        numbers = fields["secure_sum"]
        kind = NeighborSums if "neighbors" in numbers else SecureSum
        return DistributedDiscreteGaussian(kind(**numbers))
    correlated = fields.get("correlated")
    if correlated is not None:
        from dpmesh.noise.correlated import CorrelatedGaussian

        joint = correlated["joint"]  # a plan stores it once, and builds it once
        if not isinstance(joint, CorrelatedGaussian):
            joint = CorrelatedGaussian.from_dict(joint)
        return CorrelatedRow.of(joint, correlated["row"])
    return mechanism_named(
        fields["mechanism"],
        fields["noise_to_sensitivity"],
        clipping_norm=fields.get("clipping_norm"),
        grid=fields.get("grid"),
        module=fields.get("module"),
        **fields.get("settings", {}),
    )
