"""Speaking roles: who says what, and windows of text that share nothing between the parts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dpmesh.data import next_characters, shakespeare
from dpmesh.data.shakespeare import speeches

TEXT = """preface

1609

THE SONNETS

by William Shakespeare

  FROM. no role

1603

A PLAY

by William Shakespeare

<<A NOTICE.
  NOBODY. says this>>
Enter ALL

  KING. First line,
    and more.
                                  Exeunt
  Second Lord. Aside? Said, "No. never".
    Go on.
  KING. Again.

1593

THE COMEDY OF ERRORS

by William Shakespeare

DUKE OF EPHESUS. Merchant,
  plead no more.
"""


def test_who_says_what() -> None:
    assert speeches(TEXT) == {
        "A PLAY: KING": "First line,\nand more.\nAgain.",
        "A PLAY: Second Lord": 'Aside? Said, "No. never".\nGo on.',
        "THE COMEDY OF ERRORS: DUKE OF EPHESUS": "Merchant,\nplead no more.",
    }


def test_it_prints_in_a_line() -> None:
    text = "to be or not to be " * 9
    shown = repr(next_characters({"a": text, "b": text}, window=5))
    assert re.fullmatch(r"Characters\(\d+ records of 2 roles to train on, 7 characters\)", shown)


def test_windows_and_parts() -> None:
    texts = {"a": "abcdefghij" * 10, "b": "xy" * 100, "short": "abc"}
    data = next_characters(texts, window=3, least_records=10)
    assert data.roles == ("a", "b")
    assert data.alphabet == "abcdefghijxy"
    assert [len(part) for part in data.partition] == [70 - 3, 140 - 3]
    assert data.validation.records == (10 - 3) + (20 - 3)
    assert data.test.records == (20 - 3) + (40 - 3)
    first = data.partition[1][0]
    read = [data.alphabet[int(code)] for code in data.train.features[first]]
    assert ["".join(read), data.alphabet[data.train.labels[first]]] == ["xyx", "y"]
    a = data.train.features[data.partition[0]]
    np.testing.assert_array_equal((a[:, 0] + 1) % 10, a[:, 1])
    sparse = next_characters(texts, window=3, stride=5, least_records=10)
    assert [len(part) for part in sparse.partition] == [14, 28]


def test_the_whole_works(real_data) -> None:
    """Roughly the counts of the edition: 1,140 roles with more than 80 characters, 4.1 million."""
    data = shakespeare(folder=real_data / "shakespeare", stride=40, least_records=1)
    assert 1050 < len(data.roles) < 1200
    assert 3.8e6 < 40 * (data.train.records + data.test.records + data.validation.records) < 4.3e6
    assert 60 < len(data.alphabet) < 100
    assert "THE TRAGEDY OF HAMLET, PRINCE OF DENMARK: Ham" in data.roles
    assert any(role.startswith("THE COMEDY OF ERRORS") for role in data.roles)
    assert "<" not in data.alphabet


@pytest.mark.parametrize(
    ("options", "message"),
    [({"least_records": 9}, "texts: wanted a role with at least 9 training records, got none")],
)
def test_bad_input_is_named(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next_characters({"a": "abcdefgh"}, **({"window": 2} | options))
