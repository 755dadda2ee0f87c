"""Hostile contracts: each is refused in one sentence, in a moment, and runs no code of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpmesh.deploy import read_contract

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals"
NETWORK = 'loss = "softmax"\nclasses = 2\nfeature_norm = 1.0'
CASES = {  # what is replaced in which file, and by what
    "contract": [
        ("records = 180\nnoise", "records = 10000\nnoise"),
        ('name = "south"', 'name = "../../x"'),
        ('name = "south"', 'name = "so\\nuth"'),
        ('name = "south"', 'name = "\\u001b[2J"'),
        *(('name = "south"', f'name = "{name}"') for name in ("", ".hidden", "a/b", "a, b")),
        ('name = "south"', f'name = "{"x" * 10**6}"'),
        ('name = "south"', 'name = "\\u202ehtuos"'),
        ('name = "south"', 'name = "north"'),
        *(("epsilon = 2.0", f"epsilon = {value}") for value in ("nan", "inf", "-1")),
        *(("delta = 1e-5", f"delta = {value}") for value in ("1.0", "0.9", "0")),
        *(
            ("noise_multiplier = 20.0", f"noise_multiplier = {value}")
            for value in ("0", "nan", "1e-300", "inf", "true")
        ),
        *(("clipping_norm = 0.5", f"clipping_norm = {value}") for value in ("inf", "nan", "1e308")),
        *(("step_size = 3.13", f"step_size = {value}") for value in ("-1", "nan")),
        *(
            ("rounds = 101", f"rounds = {value}")
            for value in ("1000000000", "18446744073709551616", "0", "1.5")
        ),
        *(("quorum = 2", f"quorum = {value}") for value in ("0", "1", "4")),
        *(("deadline = 60.0", f"deadline = {value}") for value in ("-1", "nan", "inf")),
        *(
            ("largest_row = 100.0", f"largest_row = {value}")
            for value in ("inf", "1e300", "1e12", "nan")
        ),
        *(
            ("radius = [7, 37]", f"radius = {value}")
            for value in ("[7, inf]", "[37, 7]", "[7, 7]", "[-1e308, 1e308]")
        ),
        *(
            (NETWORK, f'kind = "jax"\nmodel = "{name}"')
            for name in ("os:abort", "evil:net", "antigravity:x")
        ),
        ('kind = "GradientDescent"', 'kind = "WithoutReplacement"\ncalibration = "paper"'),
        ('kind = "GradientDescent"', 'kind = "FederatedLearning"'),
        ('kind = "GradientDescent"', 'kind = "__import__"'),
        ("[topology]", "[evil]\nx = 1\n[topology]"),
        ("[topology]", "[topology.__class__]\nx = 1\n[topology]"),
        ('kind = "complete"', 'kind = "directed_cycle"'),
        *(('kind = "complete"', f'kind = "complete"\nkeep = {value}') for value in ("0.0", "nan")),
        ("[topology]", "[x]\na = " + "[" * 3000 + "]" * 3000 + "\n[topology]"),
    ],
    "secure_sum": [
        *(("colluding = 1", f"colluding = {value}") for value in ("2", "3", "-1")),
        ("noise_multiplier = 15.58", "noise_multiplier = 1.0"),
        ("colluding = 1", "dropouts = 2\ncolluding = 1"),
        ("colluding = 1", "records = 9\ncolluding = 1"),
        ("rounds = 61", "rounds = 10000000"),
    ],
}


@pytest.mark.parametrize("file", CASES)
def test_hostile_contracts_are_refused_in_one_sentence(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit('the code of a contract ran')\n")
    good, place = (EXAMPLE / f"{file}.toml").read_text(), tmp_path / "contract.toml"
    for old, new in CASES[file]:
        assert old in good, old
        place.write_text(good.replace(old, new, 1))
        with pytest.raises(ValueError, match=re.escape(str(place))) as refused:
            read_contract(place)
        assert len(str(refused.value)) < 600 + len(str(place)), new[:100]
        assert "\x1b" not in str(refused.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "contract.toml"
    for content in (b"\xff\xfe[contract]", b"\0\1\2", b"", b"[contract]\n" * 2):
        place.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(place))):
            read_contract(place)
