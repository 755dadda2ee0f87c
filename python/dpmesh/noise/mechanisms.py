"""Mechanisms, which clip and add noise; `Mechanism.release` alone makes private values public.

`Mechanism.release` turns a `Sensitive` array into a `Released` one. Algorithms do not call it: they
yield their values with the `Release` that describes them, and the loop releases these.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from inspect import isfunction
from math import exp, inf, log1p, nan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import dpmesh.kernels as kernels
from dpmesh._arrays import floats, read_only
from dpmesh._core import is_float_array
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import argument_of, as_python_numbers, fail, integer, number, one_of, positive
from dpmesh.accounting._pairs import DISCRETE_LAPLACE, GAUSSIAN, LAPLACE, Law
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Stream
from dpmesh.noise.grid import MOST_STEPS, add_on_grid, check_length, power_of_two, round_to_grid
from dpmesh.noise.rounding import (
    DOUBLE,
    PRECISION,
    ROUNDINGS,
    fail_for_length,
    longest_row,
    single_factor,
)
from dpmesh.noise.sensitivity import A_SENSITIVITY, Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpmesh.noise.correlated import CorrelatedGaussian
    from dpmesh.noise.secure.neighbors import NeighborSums
    from dpmesh.noise.secure.sizes import SecureSum


class Source(NamedTuple):
    """Randomness of one release's noise, and the limit that its noisy rows must keep.

    Attributes
    ----------
    stream
        Stream from which row r draws as node r.
    longest
        Largest norm of a noisy row, in the mechanism's norm: see `rounding.longest_row`.
    """

    stream: Stream
    longest: float


def _defining_class(kind: type[Mechanism], attribute: str) -> type:
    """Return the class among the bases of `kind` that defines an attribute."""
    return next(base for base in kind.__mro__ if attribute in vars(base))


def _is_ours(kind: type) -> bool:
    """Return True if a class is of this package."""
    return f"{kind.__module__}.".startswith("dpmesh.")


def _check_properties(kind: type[Mechanism]) -> None:
    """Fail if a class defines a property of mechanisms as a method."""
    for name in ("event", "privacy_loss"):
        if isfunction(vars(kind).get(name)):
            fail(name, "a property: @property on the line above it", f"a method of {kind.__name__}")


@dataclass(frozen=True)
class Mechanism(ABC):
    """Base class of noise mechanisms: noise on each coordinate, in proportion to the sensitivity.

    A release has one row (vector) per node. One unit of privacy affects only one row.

    Parameters
    ----------
    noise_to_sensitivity
        Scale of the noise divided by the sensitivity in the mechanism's norm; positive. The scale
        is the standard deviation for Gaussian noise, and b of the density exp(-abs(x) / b) / (2 b)
        for Laplace noise.
    clipping_norm
        Norm to which each row is clipped before the noise; None for no clipping.
    grid
        Spacing of a grid, a power of 2. Values are rounded to multiples of it, and the noise is a
        multiple of it, so that low-order bits of the noisy value do not reveal the un-noised value.
        Rounding may move neighbouring rows apart by one `grid` in each coordinate, which the noise
        covers. Choose it small beside sensitivity / dim for Laplace noise and sensitivity /
        sqrt(dim) for Gaussian noise, and at least 2**-25 of the scale of the noise. None for
        real-valued noise.
    roundings
        Number of floating-point roundings of the numbers of a row since their last release. The
        larger it is, the smaller is the largest norm of a row that can be released.
    """

    noise_to_sensitivity: float
    _: KW_ONLY
    clipping_norm: float | None = None
    grid: float | None = None
    roundings: float = field(default=ROUNDINGS, repr=False, compare=False)

    distribution: ClassVar[str]
    """Distribution of the noise on the real numbers."""

    norm: ClassVar[Norm]
    """Norm of the sensitivity in `noise_to_sensitivity`."""

    proof: ClassVar[str] = ""
    """Proof that `event` is correct, for parties who do not know the author of the class.

    Empty if that is not proved. A subclass must state it again, since it may change what its base
    proves: see `proof_of`.
    """

    losses_of_reals: ClassVar[Law | None] = None
    """Law of the losses of real-valued noise, by which this package accounts; None if it has none.

    A plan accepts `GAUSSIAN` and laws of pure DP (`Law.is_pure`). ``integer_laplace()`` of
    `dpmesh.accounting._pairs` covers any noise that is pure ``1 / noise_to_sensitivity``-DP, on a
    grid or not.
    """

    losses_of_integers: ClassVar[Law | None] = None
    """Law of the losses of noise on a grid, of which a row moves by one step; None if it has none.

    `GAUSSIAN` stands for discrete Gaussian noise alone, whose noise ratio a plan corrects for the
    grid.
    """

    deviation: ClassVar[float] = nan
    """Standard deviation of the noise over its scale; NaN if the class does not state it."""

    composition: ClassVar[int | None] = None
    """Order of the norm in which shifts over scales of several releases add up.

    1 where epsilons add up, 2 for Gaussian differential privacy, None if the class states its own
    privacy loss.
    """

    adds_noise: ClassVar[bool] = True
    """False for `NoNoise` alone, whose releases have infinite epsilon."""

    is_joint: ClassVar[bool] = False
    """True if a release is one part of a joint event that was planned as a whole."""

    _has_kernel: ClassVar[bool]
    """True if a kernel adds real-valued noise; it refuses NaN and noisy rows that are too long."""

    _states_its_loss: ClassVar[bool]
    """True if a class outside of this package states the privacy loss of a release."""

    def __init_subclass__(cls) -> None:
        """Check a subclass, and reset the facts that it must not inherit.

        Raises
        ------
        ValueError
            If `event` or `privacy_loss` is a method, or a class of another package states that it
            adds no noise.
        """
        _check_properties(cls)
        cls._has_kernel = cls._add_noise is Mechanism._add_noise
        event_class = _defining_class(cls, "event")
        loss_class = _defining_class(cls, "privacy_loss")
        cls._states_its_loss = not (_is_ours(event_class) and _is_ours(loss_class))
        if cls._states_its_loss and "composition" not in vars(cls):
            cls.composition = None
        states_its_noise = "distribution" in vars(cls) or "_add_noise" in vars(cls)
        if states_its_noise and not _is_ours(cls) and "_integer_noise" not in vars(cls):
            # not that of its base, which may be less than what the class is charged for
            cls._integer_noise = Mechanism._integer_noise  # type: ignore[method-assign]
        if "distribution" in vars(cls) and "adds_noise" not in vars(cls):
            cls.adds_noise = True  # its distribution adds noise, whatever its base does
        if not cls.adds_noise and "adds_noise" in vars(cls) and not _is_ours(cls):
            fail("adds_noise", "True, or NoNoise as the base class", f"False in {cls.__qualname__}")

    def __post_init__(self) -> None:
        as_python_numbers(self)
        self._check_noise()
        if self.clipping_norm is not None:
            positive("clipping_norm", self.clipping_norm)

    def _check_noise(self) -> None:
        for name, example in (("distribution", "logistic"), ("norm", "l1")):
            if not hasattr(self, name):
                expected = f'an attribute of the class, such as {name} = "{example}"'
                fail(name, expected, f"none in {type(self).__name__}")
        positive("noise_to_sensitivity", self.noise_to_sensitivity)
        if self.grid is not None:
            power_of_two("grid", self.grid)
        positive("roundings", self.roundings)

    @property
    def name(self) -> str:
        """The distribution of the noise, after ``"discrete_"`` if it is on a grid.

        The name of a class follows if it states its own privacy loss, so that it is distinct from
        the mechanisms of this package.
        """
        name = self.distribution
        if self.grid is not None:
            name = f"discrete_{name}"
        if self._states_its_loss:
            return f"{name} of {type(self).__qualname__}"
        return name

    @property
    def spacing(self) -> float:
        """Distance between neighbouring values of a release; 0 for real-valued noise."""
        return self.grid or 0.0

    @property
    def law(self) -> str | None:
        """The distribution if it determines the privacy loss; None if the class states its own."""
        if self._states_its_loss:
            return None
        return self.distribution

    @final
    @property
    def losses(self) -> Law | None:
        """The law of its losses; None if the class states its loss, or a curve alone is known."""
        if self._states_its_loss:
            return None
        if self.grid is None:
            return self.losses_of_reals
        return self.losses_of_integers

    @property
    def joint_event(self) -> CorrelatedGaussian | None:
        """The correlated noise of a run that this row belongs to; None for independent noise."""
        return None

    @property
    def joint_row(self) -> int:
        """Index of this row in the `joint_event`, from 0."""
        raise ValueError(f"{type(self).__name__} is no row of correlated noise")

    @property
    def sums(self) -> SecureSum | NeighborSums | None:
        """The public numbers of the secure sums that a release opens; None if it opens none."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """Values of the fields that the class adds to `Mechanism`, by name, in plain types."""
        common = {field.name for field in fields(Mechanism)}
        stored = [field.name for field in fields(self) if field.init and field.compare]
        return {name: getattr(self, name) for name in stored if name not in common}

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of one release at delta 0, by its event; infinite where none is known."""
        return pure_epsilon(self.event)

    @property
    def integer_rows(self) -> int:
        """Number of rows of grid noise in a release that one record affects; 0 without a grid."""
        if self.grid is None:
            return 0
        return 1

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """Proved guarantee of one release, as an event of the dp-accounting library.

        The epsilon of a custom mechanism follows from it: one with another `distribution` than this
        package's, or a subclass that states another event.
        """

    @property
    def privacy_loss(self) -> PrivacyLossDistribution | None:
        """Privacy loss distribution of one release, for a mechanism that no event describes.

        It is one of dp-accounting, with a discretization interval of 1e-4, the library's default,
        and errs upwards. None if `event` describes the release.
        """
        return None

    @abstractmethod
    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the sensitivity in `norm` of a row of `dim` coordinates, rounded to the grid."""

    @final
    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the scale of the noise for rows of `dim` coordinates, in the units of the values.

        In float32 the noise is 2% larger or more, see `drawn_scale`.

        Raises
        ------
        ValueError
            If `dim` is not an integer of at least 1.
        """
        dim = integer("dim", dim, at_least=1)
        if sensitivity.bound == 0:
            return 0.0
        return self.noise_to_sensitivity * self._distance(sensitivity, dim)

    @final
    def drawn_scale(self, values: Floats, sensitivity: Sensitivity) -> float:
        """Return the scale of the noise for values of this type, in their units.

        In float32 it exceeds `noise_scale` by 2% or more, since rounding adds to the sensitivity of
        a row: see `dpmesh.noise.rounding`.
        """
        scale = self.noise_scale(sensitivity, values.shape[-1])
        return scale * self.rounding_factor(values)

    @final
    def rounding_factor(self, values: Floats) -> float:
        """Return the ratio of `drawn_scale` to `noise_scale`, at least 1, which covers rounding."""
        if PRECISION[values.itemsize] is DOUBLE:
            return DOUBLE.factor
        return single_factor(values.shape[-1], self._widest, self.norm, self.roundings)

    @property
    def _widest(self) -> float:
        """Largest noise ratio among the rows of a run that get the same rounding factor."""
        return self.noise_to_sensitivity

    def with_rows(self, draw: Callable[[Any], Floats]) -> Mechanism:
        """Return the mechanism with the noise that `draw` returns for it.

        Rows of correlated noise need this, since they depend on earlier rows. Independent
        mechanisms return themselves, without a call of `draw`.
        """
        return self

    def prepared(self, values: Sensitive) -> Sensitive:
        """Return rows before the noise: clipped, and rounded to the grid if there is one."""
        rows = _rows(values)
        if self.clipping_norm is not None:
            rows = kernels.clip_rows(rows, self.clipping_norm, norm=self.norm)
        if self.grid is not None:
            rows = round_to_grid(rows, self.grid)
        return Sensitive(rows)

    @final
    def release(self, values: Sensitive, sensitivity: Sensitivity, stream: Stream) -> Released:
        """Release `values`, each node's row with independent noise.

        Values of sensitivity 0 do not depend on the data and are released without noise.

        Parameters
        ----------
        values
            Shape (nodes, dim).
        sensitivity
            Largest change of a row between neighbouring datasets, given all earlier releases.
        stream
            Randomness of the noise: row r draws from the stream of node r. Two releases under one
            stream have the same noise, and their difference has none: the loop of a run gives each
            release a new stream.

        Returns
        -------
        The released values, read-only, of the shape and type of `values`.

        Raises
        ------
        ValueError
            If an argument has the wrong type, or a value is NaN or infinite. If a noisy row is so
            long that rounding to its type adds too much to the sensitivity. If the noise is smaller
            than the type's normal numbers, or exceeds 2**25 times the grid.
        """
        if not isinstance(sensitivity, Sensitivity):
            fail("sensitivity", A_SENSITIVITY, reprlib.repr(sensitivity))
        is_noisy = sensitivity.bound > 0 and self.adds_noise
        is_plain = self.grid is None and self.clipping_norm is None
        kernel_checks = is_noisy and is_plain and self._has_kernel
        if not kernel_checks:
            _check_finite(_rows(values))
        prepared = self.prepared(values)
        if not is_noisy:  # a copy, since a node may write to its own values afterwards
            return Released(read_only(prepared.copy()))
        if not isinstance(stream, Stream):
            fail("stream", "one of the key's, as key.stream(purpose, round)", reprlib.repr(stream))
        return Released(read_only(self._noisy(prepared, sensitivity, stream)))

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        """Return values plus noise, in a new array; fail if a noisy row is too long."""
        distance = self._distance(sensitivity, values.shape[-1])
        scale = self.noise_to_sensitivity * distance * self.rounding_factor(values)
        longest = longest_row(values, distance, scale, self.norm, self.roundings)
        if self.grid is not None:
            noisy = self._on_grid(values, scale, self.grid, stream)
        else:
            try:
                noisy = self._add_noise(values, scale, Source(stream, longest))
            except ValueError as error:
                _check_finite(values)
                argument = argument_of(error)
                if argument == "x":
                    fail_for_length(values, distance, self.roundings)
                if argument == "distribution":
                    kind = type(self).__name__
                    expected = f"a method of {kind} that draws {self.distribution} noise"
                    fail("_add_noise", expected, "none, and no kernel draws it")
                raise
        if self._has_kernel and self.grid is None:
            return noisy
        if (kernels.row_norms(noisy, norm=self.norm) > longest).any():
            fail_for_length(values, distance, self.roundings)
        return noisy

    def _add_noise(self, values: Floats, scale: float, source: Source) -> Floats:
        """Return values plus real-valued noise; a custom mechanism overrides this."""
        distribution: Any = self.distribution
        return kernels.add_noise(distribution, values, scale, source.stream, longest=source.longest)

    def _on_grid(self, values: Floats, scale: float, grid: float, stream: Stream) -> Floats:
        """Return multiples of `grid` plus discrete noise of this scale, in the units of values."""
        check_length(values.shape[-1])
        if scale / grid > MOST_STEPS:
            fail("grid", f"at least a 2**-25th of the noise, {scale / MOST_STEPS:g}", grid)
        noise = self._integer_noise(values.shape, scale / grid, stream)
        return add_on_grid(values, noise, grid)

    def _integer_noise(self, shape: tuple[int, ...], scale: float, stream: Stream) -> Indices:
        """Return noise on a grid, in steps of it; a class that has none keeps this refusal."""
        fail("grid", f"None: {type(self).__name__} draws no noise on a grid", self.grid)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace mechanism: each release is epsilon-DP with epsilon = 1 / `noise_to_sensitivity`.

    The sensitivity is in L1 norm; an L2 sensitivity is multiplied by sqrt(dim). `Mechanism` has the
    parameters.

    Guarantee: pure epsilon-DP of real-valued noise, for neighbours within the sensitivity of a
    release. The noise is drawn in floating point from a 64-bit uniform number. Its tail ends at 43
    scales (mass 2**-63). Low-order bits of the noisy value are not hidden, which alone may
    distinguish neighbours (Mironov 2012). With a `grid`, the released numbers themselves are pure
    epsilon-DP, up to 2**-73 in total variation for each number (see `dpmesh.kernels.noise`).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.noise.Laplace(2.0, grid=2**-10).name
    'discrete_laplace'
    """

    distribution = "laplace"
    norm = "l1"
    proof = "the density of Laplace noise falls by at most a factor exp(shift / scale)"
    losses_of_reals = LAPLACE
    losses_of_integers = DISCRETE_LAPLACE
    deviation = sqrt(2)
    composition = 1

    @property
    def event(self) -> DpEvent:
        """A Laplace event; on a grid, the randomized response that dominates the noise."""
        import dp_accounting

        if self.grid is None:
            return dp_accounting.LaplaceDpEvent(self.noise_to_sensitivity)
        odds = exp(-1 / self.noise_to_sensitivity)
        noise_parameter = 2 * odds / (1 + odds)
        return dp_accounting.RandomizedResponseDpEvent(noise_parameter, num_buckets=2)

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        l1_bound = sensitivity.bound
        if sensitivity.norm != "l1":
            l1_bound *= sqrt(dim)
        return l1_bound + dim * (self.grid or 0.0)

    def _integer_noise(self, shape: tuple[int, ...], scale: float, stream: Stream) -> Indices:
        return kernels.discrete_laplace(shape, scale, stream)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian mechanism: each release is mu-Gaussian-DP with mu = 1 / `noise_to_sensitivity`.

    The sensitivity is in L2 norm; an L1 sensitivity bounds it. `Mechanism` has the parameters.

    Guarantee: mu-Gaussian-DP of real-valued noise, for neighbours within the sensitivity of a
    release. The noise is drawn in floating point from a 64-bit radius. Its tail ends at 9.4
    standard deviations, and low-order bits of the noisy value are not hidden, as with `Laplace`.
    With a `grid`, each release is ``mu**2 / 2``-zCDP (Canonne, Kamath and Steinke 2020, Theorem
    14), up to 2**-73 in total variation for each number. Noise with a standard deviation of at
    least 6 grid steps is also Gaussian-DP with a slightly larger mu
    (docs/privacy/accounting_proofs.md).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.noise.Gaussian(2.0).name
    'gaussian'
    """

    distribution = "gaussian"
    norm = "l2"
    proof = "releases of Gaussian noise compose exactly (Dong, Roth and Su 2022)"
    losses_of_reals = GAUSSIAN
    losses_of_integers = GAUSSIAN
    deviation = 1.0
    composition = 2

    @property
    def event(self) -> DpEvent:
        """A Gaussian event; on a grid, its zero-concentrated differential privacy."""
        import dp_accounting

        if self.grid is None:
            return dp_accounting.GaussianDpEvent(self.noise_to_sensitivity)
        return dp_accounting.ZCDpEvent(1 / (2 * self.noise_to_sensitivity**2))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound + sqrt(dim) * (self.grid or 0.0)

    def _integer_noise(self, shape: tuple[int, ...], scale: float, stream: Stream) -> Indices:
        return kernels.discrete_gaussian(shape, scale, stream)


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Release without noise, NOT private: recorded with infinite epsilon; for comparison only.

    A release with a sensitivity of 0 depends on no data, and has an epsilon of 0 without noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.noise.NoNoise().noise_to_sensitivity
    0.0
    """

    noise_to_sensitivity: float = 0.0

    distribution = "none"
    norm = "l2"
    adds_noise = False
    deviation = 0.0

    def _check_noise(self) -> None:
        if number("noise_to_sensitivity", self.noise_to_sensitivity) != 0:
            fail("noise_to_sensitivity", "0, since there is no noise", self.noise_to_sensitivity)
        if self.grid is not None:
            fail("grid", "None, since there is no noise", self.grid)

    @property
    def event(self) -> DpEvent:
        """The non-private event, of infinite epsilon."""
        import dp_accounting

        return dp_accounting.NonPrivateDpEvent()

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound


KINDS: tuple[type[Mechanism], ...] = (Gaussian, Laplace)
"""Mechanisms of independent noise that files, contracts and commands name by their class."""


def mechanism_named(
    name: str, noise_to_sensitivity: float, *, module: str | None = None, **settings: Any
) -> Mechanism:
    """Return the mechanism of this `Mechanism.name`.

    Parameters
    ----------
    name
        Name of the mechanism; after ``" of "`` a class of another module.
    noise_to_sensitivity
        Scale of the noise over the sensitivity.
    module
        Module of a class of another package, which must be imported.
    settings
        Further fields of the mechanism.

    Raises
    ------
    ValueError
        If there is no mechanism of this name.
    """
    kinds: dict[str, type[Mechanism]] = {kind.distribution: kind for kind in KINDS}
    kinds[NoNoise.distribution] = NoNoise
    distribution, separator, qualified_name = name.removeprefix("discrete_").partition(" of ")
    if separator:
        kind = _imported_kind(distribution, qualified_name, module)
        return kind(noise_to_sensitivity, **settings)
    one_of("mechanism", distribution, tuple(kinds))
    return kinds[distribution](noise_to_sensitivity, **settings)


def _imported_kind(
    distribution: str, qualified_name: str, module: str | None
) -> Callable[..., Mechanism]:
    """Return a class of another module, which must be imported, by its names in a plan."""
    imported: Callable[..., Mechanism] | None = None
    for kind in _subclasses(Mechanism):
        identity = (kind.__module__, kind.__qualname__, kind.distribution)
        if identity == (module, qualified_name, distribution):
            imported = kind
    if imported is None:
        expected = "noise of this package, or of a class whose module is imported"
        fail("mechanism", expected, f"{qualified_name} of {module}")
    return imported


def _subclasses(kind: Any) -> Iterator[type[Mechanism]]:
    """Yield all subclasses of a class, depth first."""
    for derived in kind.__subclasses__():
        yield derived
        yield from _subclasses(derived)


def proof_of(mechanism: Mechanism) -> str:
    """Return the proof of its event that the mechanism's class itself states; empty if none."""
    return str(vars(type(mechanism)).get("proof", ""))


def pure_epsilon(event: DpEvent) -> float:
    """Return the epsilon of an event of dp-accounting at delta 0; infinite if unknown."""
    from dp_accounting import ComposedDpEvent, LaplaceDpEvent, RandomizedResponseDpEvent

    if isinstance(event, LaplaceDpEvent):
        return float(1 / event.noise_multiplier)
    if isinstance(event, RandomizedResponseDpEvent):  # for replacing one record by any other
        probability = event.noise_parameter / event.num_buckets
        if probability > 0:
            return log1p((1 - event.noise_parameter) / probability)
        return inf
    if isinstance(event, ComposedDpEvent):
        return sum(map(pure_epsilon, event.events))
    return inf


def _rows(values: Floats) -> Floats:
    """Return values as an array for kernels; fail without showing them if they are not rows."""
    if getattr(values, "ndim", None) not in (1, 2):
        description = type(values).__name__
        if hasattr(values, "shape"):
            description = f"{description} of shape {values.shape}"
        fail("values", "an array of shape (nodes, dim)", description)
    if is_float_array(values):
        return values
    return floats("values", values)


def _check_finite(values: Floats) -> None:
    if not kernels.all_finite(values):
        fail("values", "finite values", "NaN or infinity")
