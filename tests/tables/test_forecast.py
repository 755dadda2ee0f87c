"""The forecast has the asked shape, the rule's choice, and more accuracy for more epsilon."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")

import dpmesh as dm
from dpmesh.forecast import _problem, forecast, public_data
from dpmesh.keys import Purpose, generator


def test_public_data_take_any_shape() -> None:
    for classes in (2, 3, 7):
        for data in public_data(classes).values():
            for features in (3, 70):
                draw = generator(dm.Key.seeded(0), Purpose.SPLIT)
                problem = _problem(data, 4, 30, features, draw)
                assert problem.records.tolist() == [30] * 4
                assert problem.train.dim == features + 1
                assert problem.classes == classes
                assert (problem.train.features**2).sum(axis=1).max() <= 1 + 1e-9


def test_a_forecast_grows_with_epsilon_and_is_that_of_the_rule() -> None:
    shape = {"sites": 3, "records": 40, "features": 5, "key": dm.Key.seeded(1)}
    low, high = (forecast(**shape, epsilon=epsilon) for epsilon in (0.1, 50.0))  # type: ignore[arg-type]
    assert {level.records for level in high.levels} == {10, 40, 160}
    sizes = dm.defaults.Sizes(nodes=3, smallest=40, together=120, dim=12, features=6)
    assert high.choice == dm.defaults.choose(sizes, epsilon=50.0, delta=1e-5)
    for weak, strong in zip(low.asked, high.asked, strict=True):
        assert strong.federation > weak.federation
        assert strong.federation > strong.chance
    assert "by a secure sum (FederatedLearning)" in str(high)
    assert "on the public data sets, " in high.sentence


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="classes: wanted an integer of at least 2"):
        public_data(1)
    with pytest.raises(ValueError, match="records: wanted at most"):
        forecast(sites=1000, records=1000, features=3, epsilon=1.0)
