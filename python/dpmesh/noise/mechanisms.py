"""Mechanisms: clip, add noise. Only `Mechanism.release` makes values of private data public.

`Mechanism.release` turns a `Sensitive` array into a `Released` one. Algorithms do not call it: they
yield their values with the `Release` that describes them, and the loop releases these.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields
from math import exp, inf, log1p, nan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

import dpmesh.kernels as kernels
from dpmesh._arrays import floats, read_only
from dpmesh._core import is_float_array
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import argument_of, as_python_numbers, fail, integer, number, one_of, positive
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, Law, integer_laplace
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
    """A stream of the nodes whose rows draw from it, and the norm that no noisy row may exceed."""

    stream: Stream
    longest: float


@dataclass(frozen=True)
class Mechanism(ABC):
    """Noise added to every coordinate of every node's row, in proportion to the sensitivity.

    The data of one unit affect only one row of a release.

    Parameters
    ----------
    noise_to_sensitivity
        Scale of the noise divided by the sensitivity in `norm`; positive.
    clipping_norm
        If given, each row is clipped to this norm before the noise.
    grid
        If given, values are rounded to multiples of it, and the noise is a whole number of them, so
        that the digits of the sum do not reveal the value beneath the noise. Rounding may move
        neighbouring rows apart by one `grid` in every coordinate, which the noise covers: choose it
        small beside sensitivity / dim for Laplace and sensitivity / sqrt(dim) for Gaussian noise,
        and at least a 2**-25th of the noise. A power of 2, on which floating-point arithmetic is
        exact.
    roundings
        How often numbers as large as a row's were rounded to their type since they were last
        released. The more, the shorter are the longest rows that are released.
    """

    noise_to_sensitivity: float
    _: KW_ONLY
    clipping_norm: float | None = None
    grid: float | None = None
    roundings: float = field(default=ROUNDINGS, repr=False, compare=False)

    distribution: ClassVar[str]
    """Of the noise on the real numbers."""
    norm: ClassVar[Norm]

    proof: ClassVar[str] = ""
    """Why a release loses no more than `event` states, so that parties need not trust its author.

    Empty if that is not proved. A subclass states it anew, since it may change what its base
    proves: see `proof_of`.
    """

    losses_of_reals: ClassVar[Law | None] = None
    """Law of the losses of real-valued noise, by which this package accounts; None if it has none.
    """

    losses_of_integers: ClassVar[Law | None] = None
    """Law of the losses of noise on a grid, of which a row moves by one step; None if it has none.
    """

    deviation: ClassVar[float] = nan
    """Standard deviation of the noise over its scale; NaN if the class does not state it."""

    composition: ClassVar[int | None] = None
    """Order of the norm in which shifts over scales of several releases add up.

    1 where epsilons add up, 2 for Gaussian differential privacy, None if the class states its loss
    by itself.
    """

    adds_noise: ClassVar[bool] = True
    """Whether it adds any noise."""

    is_joint: ClassVar[bool] = False
    """Whether a release is part of one event, whose other releases were planned with it."""

    _has_kernel: ClassVar[bool]
    """Whether a kernel adds real-valued noise, which refuses NaN and noisy rows too long."""

    _states_its_loss: ClassVar[bool]
    """Whether a class outside of this package states what a release loses."""

    def __init_subclass__(cls) -> None:
        cls._has_kernel = cls._add_noise is Mechanism._add_noise
        stating = [next(b for b in cls.__mro__ if n in vars(b)) for n in ("event", "privacy_loss")]
        cls._states_its_loss = any(not f"{b.__module__}.".startswith("dpmesh.") for b in stating)
        if cls._states_its_loss and "composition" not in vars(cls):
            cls.composition = None
        if "distribution" in vars(cls) and "adds_noise" not in vars(cls):
            cls.adds_noise = True  # of a distribution of its own, whatever its base adds

    def __post_init__(self) -> None:
        as_python_numbers(self)
        self._check_noise()
        if self.clipping_norm is not None:
            positive("clipping_norm", self.clipping_norm)

    def _check_noise(self) -> None:
        positive("noise_to_sensitivity", self.noise_to_sensitivity)
        if self.grid is not None:
            power_of_two("grid", self.grid)
        positive("roundings", self.roundings)

    @property
    def name(self) -> str:
        """The distribution of the noise, and whether it is on a grid.

        After it the class, if it states its own loss: what goes by names then knows it as no other.
        """
        name = self.distribution if self.grid is None else f"discrete_{self.distribution}"
        if self._states_its_loss:
            return f"{name} of {type(self).__qualname__}"
        return name

    @property
    def spacing(self) -> float:
        """Distance of neighbouring values that it can release; 0 for real-valued noise."""
        return self.grid or 0.0

    @property
    def law(self) -> str | None:
        """The distribution, if the loss follows from it: None if the class states its loss."""
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
        """The correlated noise of a run of which this is a row; None for independent noise."""
        return None

    @property
    def joint_row(self) -> int:
        """Which row of the `joint_event` this is."""
        raise ValueError(f"{type(self).__name__} is no row of correlated noise")

    @property
    def sums(self) -> SecureSum | NeighborSums | None:
        """The public numbers of the secure sums that a release opens; None if it opens none."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that the class has beside those of every mechanism, in plain types."""
        common = {field.name for field in fields(Mechanism)}
        stored = (field for field in fields(self) if field.init and field.compare)
        return {
            field.name: getattr(self, field.name) for field in stored if field.name not in common
        }

    @property
    def pure_epsilon(self) -> float:
        """Epsilon of one release at delta 0, by its event; infinite where none is known."""
        return pure_epsilon(self.event)

    @property
    def integer_rows(self) -> int:
        """Number of rows of grid noise in a release on which a record's row depends."""
        if self.grid is None:
            return 0
        return 1

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """One release as an event of the dp-accounting library: what is proved of it.

        The cost of noise of one's own rests on it: of another `distribution` than this package's,
        or of a subclass that states another event.
        """

    @property
    def privacy_loss(self) -> PrivacyLossDistribution | None:
        """The distribution of the loss of one release, by dp-accounting, where no event states it.

        On a grid of 1e-4, the library's default; it errs upwards. None if `event` states it all.
        """
        return None

    @abstractmethod
    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the sensitivity in `norm` of a row of `dim` coordinates, rounded to the grid."""

    @final
    def noise_scale(self, sensitivity: Sensitivity, dim: int) -> float:
        """Return the scale of the noise for rows of `dim` coordinates.

        In float32 more is drawn, see `drawn_scale`.

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
        """Return the scale of the noise that rows of their type get.

        In float32 it is 2% larger than `noise_scale`: the noise ratio is its ratio to how far
        a neighbouring dataset moves a row that was rounded, see `dpmesh.noise.rounding`.
        """
        return self.noise_scale(sensitivity, values.shape[-1]) * self.rounding_factor(values)

    @final
    def rounding_factor(self, values: Floats) -> float:
        """Return by how much `drawn_scale` exceeds `noise_scale`, to hide rounding."""
        if PRECISION[values.itemsize] is DOUBLE:
            return DOUBLE.factor
        return single_factor(values.shape[-1], self._widest, self.norm, self.roundings)

    @property
    def _widest(self) -> float:
        """The largest noise ratio of what is scaled together."""
        return self.noise_to_sensitivity

    def with_rows(self, draw: Callable[[Any], Floats]) -> Mechanism:
        """Return it with its row of noise if that depends on earlier ones, else as it is."""
        return self

    def prepared(self, values: Sensitive) -> Sensitive:
        """Return rows as the noise finds them: clipped, and rounded to the grid if there is one."""
        inside = _rows(values)
        if self.clipping_norm is not None:
            inside = kernels.clip_rows(inside, self.clipping_norm, norm=self.norm)
        return Sensitive(inside if self.grid is None else round_to_grid(inside, self.grid))

    @final
    def release(self, values: Sensitive, sensitivity: Sensitivity, stream: Stream) -> Released:
        """Release `values`, each node's row with noise of its own.

        Values of sensitivity 0 do not depend on the data and are released without noise.

        Parameters
        ----------
        values
            Shape (nodes, dim).
        sensitivity
            How far one neighbouring dataset moves a row, given all earlier releases.
        stream
            The noise's randomness: row r draws from the stream of node r. Two releases under one
            stream have the same noise, and their difference has none: the loop of a run gives each
            release a stream of its own.

        Returns
        -------
        The released values, which cannot be written to.

        Raises
        ------
        ValueError
            If an argument has the wrong type, a value is NaN or infinite, a noisy row is so long
            that its type rounds it by more than the sensitivity, the noise is smaller than the
            type's normal numbers or exceeds 2**25 times the grid.
        """
        if not isinstance(sensitivity, Sensitivity):
            fail("sensitivity", A_SENSITIVITY, reprlib.repr(sensitivity))
        noisy = sensitivity.bound > 0 and self.adds_noise
        if not (noisy and self._has_kernel and self.grid is None and self.clipping_norm is None):
            _check_finite(_rows(values))
        inside = self.prepared(values)
        if not noisy:  # a copy: what a node does to its own values must not change what is public
            return Released(read_only(inside.copy()))
        if not isinstance(stream, Stream):
            fail("stream", "one of the key's, as key.stream(purpose, round)", reprlib.repr(stream))
        return Released(read_only(self._noisy(inside, sensitivity, stream)))

    def _noisy(self, values: Floats, sensitivity: Sensitivity, stream: Stream) -> Floats:
        """Return values plus noise, in an array of their own, unless a row is too long."""
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
                if argument_of(error) == "x":
                    fail_for_length(values, distance, self.roundings)
                raise
        if self._has_kernel and self.grid is None:
            return noisy
        if (kernels.row_norms(noisy, norm=self.norm) > longest).any():
            fail_for_length(values, distance, self.roundings)
        return noisy

    def _add_noise(self, values: Floats, scale: float, source: Source) -> Floats:
        """Return values plus real-valued noise; what a mechanism of one's own replaces."""
        law: Any = self.distribution
        return kernels.add_noise(law, values, scale, source.stream, longest=source.longest)

    def _on_grid(self, values: Floats, scale: float, grid: float, stream: Stream) -> Floats:
        """Return multiples of `grid` plus a random whole number of them."""
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
    """Laplace noise: epsilon = 1 / `noise_to_sensitivity` for each release, with no delta.

    An L2 sensitivity is turned into an L1 one by the factor sqrt(dim).

    Guarantee: pure epsilon-differential privacy of real-valued noise. The noise is drawn in
    floating point from a 64-bit uniform: its tail ends at 43 scales (mass 2**-63), and the last
    bits of the sum are not hidden, which alone may distinguish neighbours (Mironov 2012). With a
    `grid`, pure epsilon-differential privacy of what is released, up to 2**-73 in total variation
    for each number (see `dpmesh.kernels.noise`).

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
    losses_of_integers = integer_laplace()
    deviation = sqrt(2)
    composition = 1

    @property
    def event(self) -> DpEvent:
        """A Laplace event; on a grid, the randomized response that dominates the noise."""
        import dp_accounting

        z = self.noise_to_sensitivity
        if self.grid is None:
            return dp_accounting.LaplaceDpEvent(z)
        noise = 2 * exp(-1 / z) / (1 + exp(-1 / z))
        return dp_accounting.RandomizedResponseDpEvent(noise, num_buckets=2)

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        l1 = sensitivity.bound if sensitivity.norm == "l1" else sensitivity.bound * sqrt(dim)
        return l1 + dim * (self.grid or 0.0)

    def _integer_noise(self, shape: tuple[int, ...], scale: float, stream: Stream) -> Indices:
        return kernels.discrete_laplace(shape, scale, stream)


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Gaussian noise: each release is mu-Gaussian-DP with mu = 1 / `noise_to_sensitivity`.

    An L1 sensitivity also bounds the L2 one.

    Guarantee: as accounted for real-valued noise. The noise is drawn in floating point from a
    64-bit radius: its tail ends at 9.4 standard deviations, and the last bits of the sum are not
    hidden, as with `Laplace`. With a `grid`, each release is ``mu**2 / 2``-zCDP (Canonne, Kamath
    and Steinke 2020, Theorem 14), up to 2**-73 in total variation for each number; noise of 6 steps
    and more is also Gaussian-DP with a slightly larger mu (docs/privacy/accounting.md).

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

        z = self.noise_to_sensitivity
        if self.grid is None:
            return dp_accounting.GaussianDpEvent(z)
        return dp_accounting.ZCDpEvent(1 / (2 * z**2))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound + sqrt(dim) * (self.grid or 0.0)

    def _integer_noise(self, shape: tuple[int, ...], scale: float, stream: Stream) -> Indices:
        return kernels.discrete_gaussian(shape, scale, stream)


@dataclass(frozen=True)
class NoNoise(Mechanism):
    """Releases values as they are, and records that nothing protects them: for comparison only.

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
        """An event that nothing protects."""
        import dp_accounting

        return dp_accounting.NonPrivateDpEvent()

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound


KINDS: tuple[type[Mechanism], ...] = (Gaussian, Laplace)
"""Mechanisms of independent noise that files, contracts and commands name by their class."""


def mechanism_named(
    name: str, noise_to_sensitivity: float, *, module: str | None = None, **settings: Any
) -> Mechanism:
    """Return the mechanism with this name, as `Mechanism.name` gives it.

    Raises
    ------
    ValueError
        If there is none.
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
    """Return the class of another module that a plan names; its module must be imported."""
    imported: Callable[..., Mechanism] | None = None
    for kind in _subclasses(Mechanism):
        named = (kind.__module__, kind.__qualname__, kind.distribution)
        if named == (module, qualified_name, distribution):
            imported = kind
    if imported is None:
        expected = "noise of this package, or of a class whose module is imported"
        fail("mechanism", expected, f"{qualified_name} of {module}")
    return imported


def _subclasses(kind: Any) -> Iterator[type[Mechanism]]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _subclasses(derived)


def proof_of(mechanism: Mechanism) -> str:
    """Return why the loss that a mechanism states is proved; nothing if its class does not say."""
    return str(vars(type(mechanism)).get("proof", ""))


def pure_epsilon(event: DpEvent) -> float:
    """Return the epsilon of an event of dp-accounting at delta 0; infinite where none is known."""
    from dp_accounting import ComposedDpEvent, LaplaceDpEvent, RandomizedResponseDpEvent

    if isinstance(event, LaplaceDpEvent):
        return float(1 / event.noise_multiplier)
    if isinstance(event, RandomizedResponseDpEvent):  # of replacing one, whatever it is
        probability = event.noise_parameter / event.num_buckets
        if probability > 0:
            return log1p((1 - event.noise_parameter) / probability)
        return inf
    if isinstance(event, ComposedDpEvent):
        return sum(map(pure_epsilon, event.events))
    return inf


def _rows(values: Floats) -> Floats:
    """Return values as the kernels take them; fail unless they are rows, without showing them."""
    if getattr(values, "ndim", None) not in (1, 2):
        of_shape = f" of shape {values.shape}" if hasattr(values, "shape") else ""
        fail("values", "an array of shape (nodes, dim)", f"{type(values).__name__}{of_shape}")
    if is_float_array(values):
        return values
    return floats("values", values)


def _check_finite(values: Floats) -> None:
    if not kernels.all_finite(values):
        fail("values", "finite values", "NaN or infinity")
