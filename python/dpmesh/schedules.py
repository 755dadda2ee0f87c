"""Step sizes, noise scales and sample sizes over time, as public parameters of an algorithm.

A schedule is a function of t, the papers' count of rounds from 1. The simulator counts rounds from
0, so that round r has t = r + 1 unless the algorithm states otherwise. Schedules are frozen
records: they can be compared, hashed and stored, and print as they are written in code. A plain
number stands for a constant schedule.
"""

from __future__ import annotations

import math
import reprlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol, TypeGuard, TypeVar

from dpmesh._validate import fail, in_python, integer, non_negative, number, positive, probability

__all__ = [
    "Constant",
    "ExponentialDecay",
    "HorizonPower",
    "InverseSqrt",
    "InverseTime",
    "Piecewise",
    "PowerLaw",
    "SampleSize",
    "Schedule",
    "at",
    "keep_sample_size",
    "keep_schedules",
]

NumberT = TypeVar("NumberT", int, float)


class Schedule(Protocol):
    """Protocol of a schedule: a positive number for each t = 1, 2, 3, ..."""

    def __call__(self, t: int, /) -> float:
        """Return the value at t, counted from 1."""


@dataclass(frozen=True)
class Constant:
    """Constant schedule, such as a constant learning rate.

    Parameters
    ----------
    value
        Value for each t, positive, in the unit of the parameter that it is used for.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.Constant(0.1)(5)
    0.1
    """

    value: float

    def __post_init__(self) -> None:
        _keep(self, value=positive("value", self.value))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        _counted(t)
        return self.value


@dataclass(frozen=True, kw_only=True)
class InverseTime:
    """Schedule ``scale / (t + offset)``, such as 1 / (lambda t) for lambda-strong convexity.

    Parameters
    ----------
    scale
        Numerator, positive; ``1 / lambda`` gives 1 / (lambda t).
    offset
        Number added to t, at least 0.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.InverseTime(scale=1.0, offset=9.0)(1)
    0.1
    """

    scale: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))
        _keep(self, offset=non_negative("offset", self.offset))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        return self.scale / (_counted(t) + self.offset)


@dataclass(frozen=True)
class InverseSqrt:
    """Schedule ``scale / sqrt(t)``, such as 1 / (2 sqrt t) of the paper of `OnlineLearning`.

    Parameters
    ----------
    scale
        Value at t = 1, positive.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.InverseSqrt(0.5)(4)
    0.25
    """

    scale: float

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        return self.scale / math.sqrt(_counted(t))


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Schedule ``scale * (t + offset) ** exponent``, which decays for a negative exponent.

    In the paper of `QuantizedGossip`, noise has the standard deviation sigma_k = (k + 1)^zeta. This
    is ``PowerLaw(scale=1.0, exponent=zeta)`` at t = k + 1.

    Parameters
    ----------
    scale
        Factor, positive.
    exponent
        Power of ``t + offset``, any finite number.
    offset
        Number added to t, at least 0.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.PowerLaw(scale=1.0, exponent=-0.5)(4)
    0.5
    """

    scale: float
    exponent: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))
        _keep(self, exponent=number("exponent", self.exponent))
        _keep(self, offset=non_negative("offset", self.offset))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        base = _counted(t) + self.offset
        return _usable(self, t, _scaled_power(self.scale, base, self.exponent))


@dataclass(frozen=True, kw_only=True)
class HorizonPower:
    """Constant schedule ``scale * rounds ** exponent``, chosen by the length of the run.

    In the paper of `QuantizedGossip`, the learning rate is alpha_K = a1 / (K + 1)^alpha for a run
    of K + 1 rounds. This is ``HorizonPower(scale=a1, exponent=-alpha, rounds=K + 1)``.

    Parameters
    ----------
    scale
        Factor, positive.
    exponent
        Power of `rounds`, any finite number; negative for smaller values in longer runs.
    rounds
        Number of rounds of the whole run, K + 1 in the paper.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.HorizonPower(scale=2.0, exponent=-0.5, rounds=100)(1)
    0.2
    """

    scale: float
    exponent: float
    rounds: int

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))
        _keep(self, exponent=number("exponent", self.exponent))
        _keep(self, rounds=integer("rounds", self.rounds, at_least=1))
        _usable(self, 1, _scaled_power(self.scale, self.rounds, self.exponent))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1, at most `rounds`."""
        _within(self, t)
        return _scaled_power(self.scale, self.rounds, self.exponent)


@dataclass(frozen=True, kw_only=True)
class ExponentialDecay:
    """Exponentially decaying schedule ``scale * rate ** (t - 1)``.

    Parameters
    ----------
    scale
        Value at t = 1, positive.
    rate
        Ratio of the values at t + 1 and at t, in (0, 1].

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.ExponentialDecay(scale=1.0, rate=0.5)(3)
    0.25
    """

    scale: float
    rate: float

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))
        _keep(self, rate=probability("rate", self.rate, zero=False))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        return _usable(self, t, self.scale * self.rate ** (_counted(t) - 1))


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """Piecewise constant schedule: ``values[i]`` from t = ``starts[i]`` until the next start.

    Parameters
    ----------
    starts
        First t of each piece: ascending integers, the first of them 1.
    values
        Value of each piece, positive; as many as `starts`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.Piecewise(starts=(1, 10), values=(0.5, 0.1))(12)
    0.1
    """

    starts: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _keep(self, starts=tuple(integer("starts", start, at_least=1) for start in self.starts))
        _keep(self, values=tuple(positive("values", value) for value in self.values))
        ascending = all(a < b for a, b in zip(self.starts, self.starts[1:], strict=False))
        if self.starts[:1] != (1,) or not ascending:
            fail("starts", "ascending integers, the first of them 1", self.starts)
        if len(self.values) != len(self.starts):
            fail("values", f"{len(self.starts)} values, one for each start", len(self.values))

    def __call__(self, t: int) -> float:
        """Return the value at t, counted from 1."""
        return self.values[bisect_right(self.starts, _counted(t)) - 1]


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """Number of records that a node samples in a round, chosen by the length of the run.

    It is ``max(1, floor(scale * rounds ** exponent))`` at each t. In the paper of
    `QuantizedGossip`, gamma_K is ``SampleSize(scale=a3, exponent=gamma, rounds=K + 1)``.
    ``SampleSize(scale=10)`` is 10 in runs of any length. A power within rounding error of an
    integer counts as that integer: 1000^(1/3) gives 10, not 9.

    Parameters
    ----------
    scale
        Factor, positive.
    exponent
        Power of `rounds`, at least 0.
    rounds
        Number of rounds of the whole run, K + 1 in the paper. None for runs of any length, which
        requires an exponent of 0.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.SampleSize(scale=2.0, exponent=0.5, rounds=100)(1)
    20
    """

    scale: float
    exponent: float = 0.0
    rounds: int | None = None

    def __post_init__(self) -> None:
        _keep(self, scale=positive("scale", self.scale))
        _keep(self, exponent=non_negative("exponent", self.exponent))
        if self.rounds is not None:
            _keep(self, rounds=integer("rounds", self.rounds, at_least=1))
        elif self.exponent > 0:
            fail("rounds", "the length of the run, of which this is a power", None)
        _usable(self, 1, self._power)

    def __call__(self, t: int) -> int:
        """Return the number of records at t, counted from 1, at most `rounds`."""
        _within(self, t)
        size = self._power
        nearest = round(size)
        is_integer = math.isclose(size, nearest, rel_tol=1e-12, abs_tol=1e-9)
        if not is_integer:
            nearest = math.floor(size)
        return max(1, nearest)

    @property
    def _power(self) -> float:
        """``scale * rounds ** exponent``, before it is rounded down."""
        return _scaled_power(self.scale, self.rounds or 1, self.exponent)


def at(schedule: NumberT | Callable[[int], NumberT], t: int) -> NumberT:
    """Return the value at t, counted from 1, of a schedule or of a plain number.

    Parameters
    ----------
    schedule
        A `Schedule`, another function of t, or a number, which is constant.
    t
        Round, counted from 1.

    Raises
    ------
    ValueError
        If the value is not a finite number of at least 0: no accountant covers a negative step.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.schedules.at(0.1, 7), dm.schedules.at(lambda t: 1 / t, 4)
    (0.1, 0.25)
    """
    if callable(schedule):
        value = schedule(t)
    else:
        value = schedule
    if type(value) is float and 0 <= value < math.inf:
        return value
    number: NumberT = in_python(value)
    if not _is_finite(value) or value < 0:
        expected = f"a finite number of at least 0 at t = {t}"
        fail("schedule", expected, f"{reprlib.repr(value)} of {reprlib.repr(schedule)}")
    return number


def keep_schedules(algorithm: object, *names: str) -> None:
    """Replace plain numbers among an algorithm's settings by constant schedules, and check all.

    Parameters
    ----------
    algorithm
        The frozen record whose settings are replaced.
    names
        Names of the settings.

    Raises
    ------
    ValueError
        If a setting is neither a finite number greater than 0 nor a schedule whose first value is a
        finite number of at least 0. If a schedule returns another number when it is called again:
        the accounted step might then not be the one taken.
    """
    for name in names:
        value = getattr(algorithm, name)
        if not callable(value):
            if not _is_finite(value) or value <= 0:
                expected = "a finite number greater than 0 or a schedule, such as InverseSqrt(0.5)"
                fail(name, expected, repr(value))
            object.__setattr__(algorithm, name, Constant(float(value)))
            continue
        first = value(1)
        if not _is_finite(first) or first < 0:
            expected = "a schedule of finite numbers of at least 0"
            fail(name, expected, f"one that is {reprlib.repr(first)} at t = 1")
        _same_again(name, value, first)


def keep_sample_size(algorithm: object, name: str) -> None:
    """Replace an integer among an algorithm's settings by a `SampleSize`, and check the setting.

    Raises
    ------
    ValueError
        If it is neither a schedule nor an integer of at least 1, or a schedule returns a different
        number when it is called again.
    """
    value = getattr(algorithm, name)
    if not callable(value):
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_integer or value < 1:
            fail(name, "an integer of at least 1 or a SampleSize", repr(value))
        object.__setattr__(algorithm, name, SampleSize(scale=int(value)))
    else:
        _same_again(name, value, value(1))


def _same_again(name: str, schedule: Callable[[int], float], first: float) -> None:
    """Fail unless a schedule returns `first` at t = 1 when it is called again."""
    second = schedule(1)
    if second != first:
        got = f"{reprlib.repr(first)} and then {reprlib.repr(second)} at t = 1"
        fail(name, "a schedule that depends on t alone", got)


def _is_finite(value: object) -> TypeGuard[float]:
    """Return True for a finite real number that is no boolean."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _keep(schedule: object, **fields: object) -> None:
    """Set fields of a frozen record to checked values."""
    for name, value in fields.items():
        object.__setattr__(schedule, name, value)


def _counted(t: int) -> int:
    """Return t; fail unless it is an integer of at least 1."""
    if type(t) is int and t > 0:
        return t
    return integer("t", t, at_least=1)


def _within(schedule: HorizonPower | SampleSize, t: int) -> None:
    """Fail if t is beyond the rounds of a schedule."""
    if schedule.rounds is not None and _counted(t) > schedule.rounds:
        fail(f"{schedule}", f"t of at most {schedule.rounds}, its rounds", t)


def _scaled_power(scale: float, base: float, exponent: float) -> float:
    """Return ``scale * base ** exponent``; infinity beyond the range of floats."""
    try:
        return scale * math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _usable(schedule: object, t: int, value: float) -> float:
    """Return the value of a schedule at t; fail if it is not finite and greater than 0."""
    if not 0 < value < math.inf:
        fail(f"{schedule}", f"a finite value greater than 0 at t = {t}", value)
    return value
