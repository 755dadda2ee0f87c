"""A guarantee in one line."""

from __future__ import annotations

import dpmesh as dm
from dpmesh.audit import AuditResult, EpsilonClaim
from dpmesh.audit.coupling import Coupling


def test_a_guarantee_is_quoted_in_one_line() -> None:
    plan = dm.GradientDescent(records=400, noise_multiplier=4.0).plan(5)
    report = dm.privacy.report(plan, 1e-5)
    assert report.sentence == (
        f"({dm.privacy.rounded_up(report.epsilon)}, 1e-05)-differentially private for one record "
        "(replace-one), against somebody who sees all that is released (accountant: Gaussian "
        "differential privacy, exact, mu = 0.5)."
    )
    assert "infinite" in dm.privacy.report(plan, 0.0).sentence


def test_a_notebook_shows_plans_and_costs_as_they_are_printed() -> None:
    plan = dm.OnlineLearning(epsilon=1.0, step_size=1.0).plan(5)
    noise = "<tr><th>noise</th><td>laplace in 4 of them, noise multiplier 1</td></tr>"
    assert noise in plan._repr_html_()
    cost = plan.cost()
    assert cost._repr_html_() == f"<p>{cost}</p>"


def test_audits_are_quoted_in_one_line() -> None:
    found = {
        "claim": EpsilonClaim(1.0, delta=1e-5),
        "confidence": 0.95,
        "method": "2 x 10 runs",
        "most": 3.0,
    }
    measured = "An audit (2 x 10 runs) found at least epsilon = {} at delta = 1e-05, with "
    measured += "confidence 0.95: "
    for epsilon, verdict in (
        (0.5, "no violation of the claimed epsilon = 1 at delta = 1e-05."),
        (2, "which refutes the claim of epsilon = 1 at delta = 1e-05."),
    ):
        result = AuditResult(lower_bound=epsilon, **found)
        assert result.sentence == measured.format(epsilon) + verdict
    coupling = Coupling(movements=(), faults=("it moved too far",))
    assert coupling.sentence == (
        "Two coupled runs on neighbouring datasets: 0 of 0 releases differed; largest shift = "
        "0.0000% of the declared sensitivity; it moved too far."
    )
    assert "<tr><th>fault</th><td>it moved too far</td></tr>" in coupling._repr_html_()


def test_a_report_names_a_delta_above_one_over_the_records() -> None:
    plan = dm.GradientDescent(records=400, noise_multiplier=4.0).plan(5)
    named = [
        any("delta may exceed 1 / 800" in text for text in report.assumptions)
        for report in (dm.privacy.report(plan, delta, units=800) for delta in (1e-3, 1e-2))
    ]
    assert named == [False, True]
    assert "delta may" not in str(dm.privacy.report(plan, 0.5))
