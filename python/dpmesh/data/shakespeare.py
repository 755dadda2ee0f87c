"""Shakespeare by speaking role: next-character prediction, one client for each role of a play."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._files import read_bytes
from dpmesh._validate import fail, integer
from dpmesh.data.dataset import Dataset
from dpmesh.data.formats import StrPath
from dpmesh.data.loaders import find_file
from dpmesh.data.partition import Partition

Windows: TypeAlias = npt.NDArray[np.float32]
"""Codes of characters, shape (windows, length)."""

NOT_PLAYS = ("THE SONNETS", "A LOVER'S COMPLAINT")

_UNICODE = 0x110000
"""Number of Unicode code points."""

FRACTIONS = (0.7, 0.1, 0.2)
"""Shares of a role's text, in its order: training, validation, test, as in the federated paper."""

# One play of the edition is not indented.
_INDENT = {"THE COMEDY OF ERRORS": ""}
_NOTICE = re.compile(r"<<.*?>>", re.DOTALL)
_TITLE = re.compile(r"^(\S.*)\n\s*\nby William Shakespeare$", re.MULTILINE)


class Characters(NamedTuple):
    """Windows of text with the character that follows, in three parts that share no text.

    Features are codes of characters, positions in `alphabet`, as float32; labels are codes too.
    """

    train: Dataset
    partition: Partition
    """The training records of each role, in the order of the text."""
    validation: Dataset
    test: Dataset
    roles: tuple[str, ...]
    alphabet: str

    def __repr__(self) -> str:
        training = f"{self.train.records} records of {len(self.roles)} roles to train on"
        return f"Characters({training}, {len(self.alphabet)} characters)"


def speeches(text: str) -> dict[str, str]:
    """Return the whole text of each role, in order, by "play: role".

    A speech starts with two blanks, a name and a period; its lines go on after four blanks.

    Parameters
    ----------
    text
        The whole file.
    """
    pieces = _TITLE.split(_NOTICE.sub("", text))  # a preface, then titles and plays in turn
    titles = [title.strip() for title in pieces[1::2]]
    plays = pieces[2::2]
    lines_of_roles: dict[str, list[str]] = defaultdict(list)
    for play, body in zip(titles, plays, strict=True):
        if play in NOT_PLAYS:
            continue
        _collect_lines(play, body, lines_of_roles)
    return {role: "\n".join(lines) for role, lines in lines_of_roles.items()}


def _collect_lines(play: str, body: str, lines_of_roles: dict[str, list[str]]) -> None:
    """Append the lines of one play to those of its roles."""
    indent = _INDENT.get(play, "  ")
    speech_start = re.compile(rf"{indent}([A-Z][\w'-]*(?: [\w'-]+){{0,3}})\. +(\S.*)")
    continuation = re.compile(rf"{indent}  \S")
    role = None
    for line in body.splitlines():
        match = speech_start.fullmatch(line.rstrip())
        if match:
            role = f"{play}: {match[1]}"
            lines_of_roles[role].append(match[2])
        elif role is not None and continuation.match(line):
            lines_of_roles[role].append(line.strip())


def next_characters(
    texts: Mapping[str, str], *, window: int = 80, stride: int = 1, least_records: int = 100
) -> Characters:
    """Make records for next-character prediction from texts, with one client for each role.

    The text of a role is divided in order into a training, a validation and a test part. A record
    is a window of characters of one part, and its label is the next character.

    No DP guarantee covers two things: the alphabet, which comes from all texts, and the choice of
    the clients, which depends on the lengths of the texts. Both are public for published plays.

    Parameters
    ----------
    texts
        Text of each role.
    window
        Number of characters of a record.
    stride
        Number of characters from the start of one window to the next. 1 gives all windows, at 4
        bytes per character of each window.
    least_records
        Least number of training records of a role; shorter roles are left out. The paper uses 100.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no role has enough.
    """
    window = integer("window", window, at_least=1)
    stride = integer("stride", stride, at_least=1)
    integer("least_records", least_records, at_least=1)
    alphabet = "".join(sorted(set("".join(texts.values()))))
    code_of = np.zeros(_UNICODE, dtype=np.float32)  # the code of each Unicode character
    code_of[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    windows_of_roles: dict[str, list[Windows]] = {}  # of training, validation and test
    for role, text in texts.items():
        codes = code_of[np.array([text]).view(np.uint32)]
        cuts = np.floor(np.cumsum(FRACTIONS[:2]) * len(codes)).astype(int)
        # a window and the character that follows it
        windows = [_windows(part, window + 1, stride) for part in np.split(codes, cuts)]
        training_records = len(windows[0])
        if training_records >= least_records:
            windows_of_roles[role] = windows
    if not windows_of_roles:
        fail("texts", f"a role with at least {least_records} training records", "none")
    training, validation, test = zip(*windows_of_roles.values(), strict=True)  # each by role
    ends = np.cumsum([len(role_windows) for role_windows in training])
    return Characters(
        train=_dataset(np.concatenate(training)),
        partition=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        validation=_dataset(np.concatenate(validation)),
        test=_dataset(np.concatenate(test)),
        roles=tuple(windows_of_roles),
        alphabet=alphabet,
    )


def shakespeare(
    *, window: int = 80, stride: int = 1, least_records: int = 100, folder: StrPath | None = None
) -> Characters:
    """Return next-character prediction by role; see `next_characters`.

    Parameters
    ----------
    window, stride, least_records
        As for `next_characters`.
    folder
        Where ``t8.shakespeare.txt`` (or ``.gz``) is; by default the subfolder shakespeare of the
        folder that the environment variable DPMESH_DATA names.

    Raises
    ------
    ValueError
        If no folder is known, or an argument is out of its range.
    FileNotFoundError
        If the folder has no such file.
    """
    names = ["t8.shakespeare.txt.gz", "t8.shakespeare.txt"]
    text = read_bytes(find_file("shakespeare", folder, names)).decode("ascii")
    return next_characters(
        speeches(text), window=window, stride=stride, least_records=least_records
    )


def _windows(codes: npt.NDArray[np.float32], length: int, stride: int) -> Windows:
    """Return a read-only view of shape (windows, length) on the codes, every `stride`-th window."""
    if len(codes) < length:
        return np.empty((0, length), np.float32)
    return np.lib.stride_tricks.sliding_window_view(codes, length)[::stride]


def _dataset(windows: Windows) -> Dataset:
    """Return windows as records whose label is their last character."""
    next_character = windows[:, -1].astype(np.int64)
    return Dataset(windows[:, :-1], next_character, "shakespeare")
