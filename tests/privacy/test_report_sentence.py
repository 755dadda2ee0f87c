"""A guarantee in one line."""

from __future__ import annotations

import dpmesh as dm


def test_a_guarantee_is_quoted_in_one_line() -> None:
    plan = dm.GradientDescent(records=400, noise_multiplier=4.0).plan(5)
    report = dm.privacy.report(plan, 1e-5)
    assert report.sentence == (
        f"({dm.privacy.rounded_up(report.epsilon)}, 1e-05)-differentially private for one record "
        "(replace-one), against somebody who sees all that is released (accountant: Gaussian "
        "differential privacy, exact, mu = 0.5)."
    )
    assert "infinite" in dm.privacy.report(plan, 0.0).sentence
