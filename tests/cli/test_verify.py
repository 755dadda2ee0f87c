"""``dpmesh verify``: a file whose claim is smaller than its own mechanism allows is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

import dpmesh as dm
from dpmesh.cli import app
from dpmesh.cli.claimed_files import verification_of
from dpmesh.privacy.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore:.* fits of this estimator and its clones")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.dpmesh"
    x = np.random.default_rng(0).uniform(-1, 1, (90, 2))
    model = dm.sklearn.PrivateClassifier(2.0, ranges=(-1, 1), random_state=0, rounds=4)
    model.fit(x, x[:, 0] > 0, groups=np.arange(90) % 3).save(path)
    return path


def about_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a model file, and its JSON text."""
    with np.load(path) as arrays:
        held = dict(arrays)
    return held, json.loads(str(held["about"]))


def write(path: Path, held: dict[str, Any], content: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **{**held, "about": np.array(json.dumps(content))})


def numbers(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all numbers in plain content."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for name, value in items:
        if isinstance(value, (dict, list)):
            yield from numbers(value, (*place, name))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*place, name)


def changed(value: float) -> list[float]:
    """Return a number with its first digit one lower, and one higher."""
    if isinstance(value, int):
        return [value - 1, value + 1]
    unit = 10.0 ** np.floor(np.log10(abs(value))) if value else 1.0
    return [float(value - unit / 2), float(value + unit)]


def test_a_fresh_file_is_consistent_and_an_edited_one_is_not(saved: Path, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["verify", str(saved)])
    assert found.exit_code == 0, found.output
    assert "consistent with its own mechanism; this does not prove which noise" in found.output
    held, content = about_of(saved)
    content["about"]["epsilon"] = 0.5
    write(tmp_path / "edited.dpmesh", held, content)
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "edited.dpmesh")])
    assert found.exit_code == 1
    assert "WRONG about.epsilon: claims epsilon = 0.5, its noise gives epsilon = 2" in found.output
    content["about"]["epsilon"] = 20.0
    write(tmp_path / "larger.dpmesh", held, content)
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "larger.dpmesh")])
    assert found.exit_code == 0
    assert "the claim is larger than this plan needs" in found.output


def test_an_edit_is_accepted_only_if_the_claim_stays_true(saved: Path, tmp_path: Path) -> None:
    held, content = about_of(saved)
    plan = Plan.from_dict(content["about"]["plan"])
    edited = tmp_path / "edited.dpmesh"
    fields = ("privacy", "fit", "epsilon", "delta", "plan", "colluding")
    places = [place for place in numbers(content["about"]) if place[0] in fields]
    accepted = refused = 0
    for place in places:
        inner: Any = content["about"]
        for name in place:
            inner = inner[name]
        for value in changed(inner):
            other = copy.deepcopy(content)
            target: Any = other["about"]
            for name in place[:-1]:
                target = target[name]
            target[place[-1]] = value
            write(edited, held, other)
            try:
                found = verification_of(edited)
            except (ValueError, TypeError, IndexError, KeyError):
                refused += 1
                continue
            if found.refuted:
                refused += 1
                continue
            accepted += 1
            about = other["about"]
            claims = [about["privacy"], about["fit"]["privacy"], about]
            for claim in claims:
                true = plan.cost(float(claim["delta"])).epsilon
                assert float(claim["epsilon"]) >= true * (1 - 1e-5), place
    assert accepted > 10
    assert refused > 10


def test_the_relation_and_the_unit_belong_to_the_claim(saved: Path, tmp_path: Path) -> None:
    for name, value in (("neighboring_relation", "add_or_remove"), ("unit", "user")):
        held, content = about_of(saved)
        content["about"]["privacy"][name] = value
        write(tmp_path / "edited.dpmesh", held, content)
        assert verification_of(tmp_path / "edited.dpmesh").refuted


def test_partners_and_several_fits_keep_their_claims(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (120, 2))
    y, sites = x[:, 0] > 0, np.arange(120) % 4
    path = tmp_path / "model.dpmesh"
    partners = dm.sklearn.PrivateClassifier(2.0, noise="BetweenPartners", rounds=4, random_state=0)
    partners.fit(x, y, groups=sites).save(path)
    assert not verification_of(path).refuted
    tuned = dm.sklearn.tune(
        dm.sklearn.PrivateClassifier(2.0, random_state=0),
        [{"rounds": 4}, {"rounds": 8}],
        x,
        y,
        sites,
    )
    tuned.estimator.save(path)
    found = verification_of(path)
    assert not found.refuted
    assert "larger than this plan needs" not in str(found)
    held, content = about_of(path)
    for name, share in (("epsilon", 0.9), ("selection", 1.2)):  # a choice costs all of epsilon
        other = copy.deepcopy(content)
        other["about"][name] *= share
        write(path, held, other)
        assert verification_of(path).refuted
