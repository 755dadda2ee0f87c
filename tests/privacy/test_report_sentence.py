"""A guarantee in one line."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

import pytest

import dpmesh as dm
from dpmesh.audit import AuditResult, EpsilonClaim
from dpmesh.audit.coupling import Coupling
from dpmesh.noise import correlated
from dpmesh.privacy import Plan, Report
from dpmesh.privacy.report import SEEDED, Guarantee


def test_a_guarantee_is_quoted_in_one_line() -> None:
    plan = dm.GradientDescent(records=400, noise_multiplier=8.0).plan(5)
    report = dm.privacy.report(plan, 1e-5)
    assert report.sentence == (
        f"({dm.privacy.rounded_up(report.epsilon)}, 1e-05)-differentially private for one record "
        "(replace-one), against an adversary who sees all that is released, provided that no "
        "record is held by more than 1 node, nor twice by one; the adversary does not exploit "
        "floating-point rounding (use grid= to remove this assumption) "
        "(accountant: Gaussian differential privacy, exact, mu = 0.5)."
    )
    assert "infinite" in dm.privacy.report(plan, 0.0).sentence


def plans() -> dict[str, Plan]:
    """Plans whose guarantees have conditions."""
    complete = dm.topology.complete(8)
    star = correlated.BetweenPartners(topology=complete, rounds=5, coalition=1, star=True)
    silo = dm.FederatedLearning(
        dm.RecordGradients(clients=4, records=400),
        noise_multiplier=40.0,
        combination=dm.algorithms.SecureAggregation(dim=10, rounds=5),
    )
    updates = dm.ClientUpdates(clients=400, sampling_rate=0.1, steps=5)
    return {
        "independent": dm.GradientDescent(records=60, noise_multiplier=40.0).plan(5),
        "partners": dm.GradientDescent(
            records=60, noise_multiplier=40.0, noise=replace(star, star=False)
        ).plan(5),
        "star": dm.GradientDescent(records=60, noise_multiplier=40.0, noise=star).plan(5),
        "secure sum": silo.plan(5),
        "trusted server": dm.FederatedLearning(updates, noise_multiplier=2.0).plan(5),
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("independent", "against an adversary who sees all that is released"),
        ("partners", "colludes with up to 1 node"),
        ("star", "colludes with up to 1 node, but sees no noise that two other nodes share"),
        ("secure sum", "colludes with up to 1 party"),
        ("trusted server", "the server is trusted: it sees the clients' updates"),
    ],
)
@pytest.mark.parametrize("seeded", [False, True])
def test_a_quoted_guarantee_keeps_its_adversary_and_its_conditions(
    name: str, words: str, seeded: bool
) -> None:
    found = dm.privacy.report(plans()[name], 1e-5, seeded=seeded)
    assert words in found.sentence
    for text in found.assumptions:
        assert text in found.sentence or text == SEEDED
    for text in (found.unit, "replace-one" if found.unit == "record" else "add-remove"):
        assert text in found.sentence
    assert found.sentence.startswith("NOT private: the noise is seeded") == seeded
    assert ("NOT private" in str(found).splitlines()[0]) == seeded
    assert (SEEDED in found.assumptions) == seeded
    assert found.is_private == (not seeded)
    assert Report.from_dict(found.as_dict()) == found
    if name == "star":
        assert "no noise that two other nodes share" in str(found).splitlines()[0]


def test_a_star_beside_a_secure_sum_names_the_colluders_of_both() -> None:
    star, silo = plans()["star"], plans()["secure sum"]
    later = (replace(release, round=release.round + 5) for release in silo.releases)
    both = star.with_releases([*star.releases, *later])
    sentence = dm.privacy.report(both, 1e-5).sentence
    assert "colludes with up to 1 node, but sees no noise that two other nodes share" in sentence
    assert "of secure sums, up to 1 colluding party" in sentence


def test_no_part_of_a_guarantee_has_a_default() -> None:
    """So that its words cannot be made without one of them."""
    assert all(field.default is MISSING for field in fields(Guarantee))
    whole = dm.privacy.report(plans()["trusted server"], 1e-5).guarantee
    for name, other in {
        "epsilon": 9.5,
        "delta": 0.25,
        "unit": "record",
        "neighboring_relation": "replace_one",
        "adversary": "one node",
        "conditions": ("the moon is round",),
        "accountant": "another proof",
        "seeded": True,
    }.items():
        assert replace(whole, **{name: other}).sentence != whole.sentence


def test_a_notebook_shows_plans_and_costs_as_they_are_printed() -> None:
    plan = dm.OnlineLearning(epsilon=1.0, step_size=1.0).plan(5)
    noise = "<tr><th>noise</th><td>laplace in 4 of them, 1 times the sensitivity</td></tr>"
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
    plan = dm.GradientDescent(records=400, noise_multiplier=8.0).plan(5)
    named = [
        any("delta may exceed 1 / 800" in text for text in report.assumptions)
        for report in (dm.privacy.report(plan, delta, units=800) for delta in (1e-3, 1e-2))
    ]
    assert named == [False, True]
    assert "delta may" not in str(dm.privacy.report(plan, 0.5))
