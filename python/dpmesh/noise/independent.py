"""Independent noise as a parameter of algorithms: a kind of mechanism without its amount."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, get_type_hints

from dpmesh._validate import fail
from dpmesh.noise.mechanisms import Gaussian, Mechanism
from dpmesh.noise.rows import check_strategy

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedStrategy

_OF_ALGORITHM = frozenset({"noise_to_sensitivity", "clipping_norm", "roundings"})
"""Fields of a mechanism that the algorithm sets, not the user."""


@dataclass(frozen=True)
class Independent:
    """Kind of independent noise for each release, whose scale the algorithm sets.

    It is the `noise` of an algorithm. A class of mechanisms, such as `Laplace`, may stand for it
    with the default settings.

    Parameters
    ----------
    kind
        Class of mechanisms, such as `Laplace`, or a custom one.
    settings
        Names and values of further fields of the class, such as ``(("grid", 2**-10),)``.

    Raises
    ------
    ValueError
        If `kind` is not a class of mechanisms, or a setting is not one of its fields.

    Examples
    --------
    >>> import dpmesh as dm
    >>> on_grid = dm.noise.Independent(dm.noise.Gaussian, (("grid", 2**-10),))
    >>> on_grid.mechanism(2.0)
    Gaussian(noise_to_sensitivity=2.0, clipping_norm=None, grid=0.0009765625)
    """

    kind: type[Mechanism]
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not is_kind(self.kind):
            fail("noise", "a class of mechanisms, such as Gaussian", self.kind)
        names = [field.name for field in fields(self.kind) if field.init]
        if self.kind.deviation == 0 or "noise_to_sensitivity" not in names:
            expected = "a class of independent noise (noise_multiplier=None runs without)"
            fail("noise", expected, self.kind.__name__)
        settable = [name for name in names if name not in _OF_ALGORITHM]
        for name, _ in self.settings:
            if name not in settable:
                choices = ", ".join(settable)
                fail("noise", f"settings of {self.kind.__name__}: {choices}", name)

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings)
        return f"Independent({self.kind.__name__}{settings})"

    def mechanism(self, noise_to_sensitivity: float) -> Mechanism:
        """Return the mechanism with this ratio of noise to sensitivity.

        Raises
        ------
        ValueError
            If the ratio or a setting is out of its range.
        """
        return self.kind(noise_to_sensitivity, **dict(self.settings))


NoiseKind: TypeAlias = "CorrelatedStrategy | type[Mechanism] | Independent | None"
"""Type of a parameter `noise`; None for the default noise of the algorithm."""


def is_kind(value: object) -> TypeGuard[type[Mechanism]]:
    """Return True if this is a class of mechanisms with independent noise."""
    return isinstance(value, type) and issubclass(value, Mechanism) and not value.is_joint


def keep_noise(algorithm: Any) -> None:
    """Check a frozen algorithm's `noise`, and replace a class of mechanisms by `Independent`.

    Raises
    ------
    ValueError
        If it is neither a class of mechanisms, `Independent`, a strategy of correlated noise nor
        None.
    """
    noise = algorithm.noise
    if isinstance(noise, Mechanism):
        fail("noise", f"the class {type(noise).__name__}, whose amount the algorithm sets", noise)
    if is_kind(noise):
        noise = Independent(noise)
        object.__setattr__(algorithm, "noise", noise)
    if noise is not None and not isinstance(noise, Independent):
        check_strategy(noise, algorithm)


def keep_kind(algorithm: Any) -> None:
    """Check a frozen algorithm's `noise` as `keep_noise` does, and refuse correlated noise.

    Raises
    ------
    ValueError
        If it is neither a class of mechanisms, `Independent` nor None.
    """
    keep_noise(algorithm)
    if strategy_of(algorithm.noise) is not None:
        fail("noise", "a class of mechanisms or None", algorithm.noise)


def strategy_of(noise: NoiseKind) -> CorrelatedStrategy | None:
    """Return the strategy of correlated noise; None for independent noise."""
    if noise is None or isinstance(noise, (Independent, type)):
        return None
    return noise


def mechanism_of(noise: NoiseKind, noise_to_sensitivity: float) -> Mechanism:
    """Return the mechanism of one independent release: Gaussian unless `noise` is `Independent`."""
    if isinstance(noise, Independent):
        return noise.mechanism(noise_to_sensitivity)
    return Gaussian(noise_to_sensitivity)


@cache
def unscaled(kind: type[Mechanism]) -> Callable[..., Independent]:
    """Return a function that makes `Independent` noise of a class from its settings.

    Its signature, name and docstring are those of the class, without the fields that an algorithm
    sets. So readers of files can check the settings of a file.
    """

    def make(**settings: Any) -> Independent:
        return Independent(kind, tuple(sorted(settings.items())))

    parameters = {
        name: parameter.replace(kind=parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in _OF_ALGORITHM
    }
    hints: Mapping[str, Any] = get_type_hints(kind.__init__)
    make.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        list(parameters.values())
    )
    make.__annotations__ = {name: hints[name] for name in parameters if name in hints}
    make.__doc__ = kind.__doc__
    make.__name__ = kind.__name__
    return make
