"""Facts about noise are members of its class, and no list of names repeats them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dpmesh._privacy_types import Sensitive
from dpmesh.accounting._pairs import GAUSSIAN, LAPLACE, integer_laplace
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Gaussian, Laplace, Mechanism, NoNoise
from dpmesh.noise.mechanisms import KINDS, mechanism_named
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy import Plan, Release

DELTA = 1e-5
GRID = 2.0**-10


@dataclass(frozen=True)
class Renamed(Gaussian):
    """Gaussian noise that changes nothing."""


@dataclass(frozen=True)
class Stated(Gaussian):
    """Gaussian noise whose class states its own event, of twice the loss."""

    @property
    def event(self) -> Any:
        import dp_accounting

        return dp_accounting.GaussianDpEvent(self.noise_to_sensitivity / 2)


def cost(mechanism: Mechanism, count: int = 3) -> tuple[float, str]:
    """Return the epsilon of so many releases, and how it was computed."""
    sensitivity = Sensitivity(1.0, mechanism.norm, "numbers")
    releases = tuple(Release(t, mechanism, sensitivity) for t in range(count))
    plan = Plan(releases=releases, neighboring_relation="replace_one", unit="record")
    answer = plan.cost(DELTA)
    return answer.epsilon, answer.accountant


def test_each_mechanism_states_the_law_of_its_losses() -> None:
    assert Gaussian(1.0).losses is GAUSSIAN
    assert Gaussian(1.0, grid=GRID).losses is GAUSSIAN
    assert Laplace(1.0).losses is LAPLACE
    on_grid = Laplace(1.0, grid=GRID).losses
    assert on_grid is not None
    assert on_grid.is_pure
    assert NoNoise().losses is None


@pytest.mark.parametrize("grid", [None, GRID])
def test_a_subclass_that_states_no_loss_is_accounted_like_its_base(grid: float | None) -> None:
    assert cost(Renamed(4.0, grid=grid)) == cost(Gaussian(4.0, grid=grid))


def test_a_subclass_that_states_its_loss_is_accounted_by_it() -> None:
    stated = Stated(4.0)
    assert stated.losses is None
    epsilon, accountant = cost(stated)
    assert "mechanism's event" in accountant
    expected, _ = cost(Gaussian(2.0))
    assert epsilon == pytest.approx(expected, rel=1e-3)  # dp-accounting's grid of losses


@pytest.mark.parametrize("kind", KINDS)
def test_each_mechanism_has_its_name_in_a_plan(kind: type[Mechanism]) -> None:
    for grid in (None, GRID):
        mechanism = kind(2.0, grid=grid)
        assert mechanism_named(mechanism.name, 2.0, grid=grid) == mechanism


def test_a_class_without_noise_on_a_grid_says_so() -> None:
    class Real(NoNoise):
        distribution = "real"

        def _check_noise(self) -> None:
            """Accept any noise."""

    sensitivity = Sensitivity(1.0, "l2", "numbers")
    stream = Key.seeded(1).stream(Purpose.NOISE, 0)
    with pytest.raises(ValueError, match="grid: wanted None: Real draws no noise on a grid"):
        Real(1.0, grid=GRID).release(Sensitive(np.zeros((2, 3))), sensitivity, stream)


def test_only_a_class_that_says_so_adds_no_noise() -> None:
    class Real(NoNoise):
        distribution = "real"

    class Same(NoNoise):
        """No noise by another class."""

    assert not NoNoise.adds_noise
    assert not Same.adds_noise
    assert Real.adds_noise
    assert Gaussian.adds_noise


def test_a_class_outside_of_this_package_may_not_add_no_noise() -> None:
    with pytest.raises(ValueError, match=r"adds_noise: wanted True, or NoNoise as the base class"):

        class Quiet(Gaussian):
            adds_noise = False


def test_noise_of_ones_own_does_not_take_the_grid_of_its_base() -> None:
    class Wide(Gaussian):
        """Gaussian noise of twice the scale."""

        def _add_noise(self, values: Any, scale: float, source: Any) -> Any:
            return super()._add_noise(values, 2 * scale, source)

    sensitivity = Sensitivity(1.0, "l2", "numbers")
    stream = Key.seeded(1).stream(Purpose.NOISE, 0)
    with pytest.raises(ValueError, match="grid: wanted None: Wide draws no noise on a grid"):
        Wide(1.0, grid=GRID).release(Sensitive(np.zeros((2, 3))), sensitivity, stream)


def mechanism_class(**members: Any) -> type[Mechanism]:
    """Return a class outside of this package with these members."""
    needed = {"event": property(lambda self: None), "_distance": lambda self, *_: 1.0}
    return dataclass(frozen=True)(type("Mine", (Mechanism,), needed | members))


def test_errors_say_what_a_class_of_ones_own_lacks() -> None:
    with pytest.raises(ValueError, match=r"norm: wanted an attribute of the class, .* in Mine"):
        mechanism_class(distribution="mine")(1.0)
    with pytest.raises(ValueError, match="distribution: wanted an attribute of the class"):
        mechanism_class(norm="l1")(1.0)
    with pytest.raises(ValueError, match="event: wanted a property: @property on the line above"):
        mechanism_class(event=lambda self: None)
    silent = mechanism_class(distribution="mine", norm="l1")(1.0)
    stream, numbers = Key.seeded(0).stream(Purpose.NOISE), Sensitivity(1.0, "l1", "numbers")
    with pytest.raises(ValueError, match="_add_noise: wanted a method of Mine that draws mine"):
        silent.release(Sensitive(np.zeros((1, 2))), numbers, stream)


@pytest.mark.parametrize("grid", [None, GRID])
def test_no_class_of_this_package_is_accounted_by_a_law_that_it_does_not_state(
    grid: float | None,
) -> None:
    """It would count as Gaussian noise, whatever its event is."""
    members = {"__module__": "dpmesh.noise.new", "distribution": "new", "norm": "l1"}
    new = type("New", (Laplace,), members | {"losses_of_reals": None, "losses_of_integers": None})
    with pytest.raises(ValueError, match=r"losses_of_.*: wanted the Law by which this package"):
        cost(new(1.0, grid=grid))


def test_a_class_of_this_package_with_a_law_of_neither_family_is_refused() -> None:
    """Its releases would add up as Gaussian ones of the same scale: here half of the loss."""
    doubled = GAUSSIAN._replace(
        profile=lambda loss, ratio, factor, slack: GAUSSIAN.profile(loss, ratio / 2, factor, slack),
        largest=lambda ratio, deviations: GAUSSIAN.largest(ratio / 2, deviations),
        losses=lambda ratio: GAUSSIAN.losses(ratio / 2),
    )
    members = {"__module__": "dpmesh.noise.new", "distribution": "new"}
    new = type("New", (Gaussian,), members | {"losses_of_reals": doubled})
    expected = "^losses_of_reals: wanted GAUSSIAN or a law of pure DP: .*, got another in New$"
    with pytest.raises(ValueError, match=expected):
        cost(new(2.0))


def test_the_law_of_any_pure_noise_on_a_grid_is_that_of_one_step() -> None:
    """The smaller profile of many steps is proved for discrete Laplace noise alone."""
    members = {"__module__": "dpmesh.noise.new", "distribution": "new"}
    new = type("New", (Laplace,), members | {"losses_of_integers": integer_laplace()})
    fine, _ = cost(new(4.0, grid=GRID), 20)
    one_step, _ = cost(Laplace(4.0, grid=2.0), 20)
    assert fine == pytest.approx(one_step, rel=1e-12)
    laplace, _ = cost(Laplace(4.0, grid=GRID), 20)
    assert fine > 1.02 * laplace
