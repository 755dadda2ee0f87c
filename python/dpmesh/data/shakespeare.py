"""Shakespeare's plays as a federated data set: next-character prediction, one client for each role.

`shakespeare` reads the file, `speeches` collects the text of each role, and `next_characters` makes
the records, as in the paper that docs/algorithms/federated.md reproduces.
"""

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
"""Codes of characters (positions in the alphabet), shape (windows, length)."""

NOT_PLAYS = ("THE SONNETS", "A LOVER'S COMPLAINT")
"""Titles in the file that are not plays."""

_UNICODE = 0x110000
"""Number of Unicode code points."""

FRACTIONS = (0.7, 0.1, 0.2)
"""Shares of a role's text for training, validation and test, in the order of the text."""

_INDENT = {"THE COMEDY OF ERRORS": ""}
"""Indent of the first line of a speech in the one play of the edition that has another one."""
_NOTICE = re.compile(r"<<.*?>>", re.DOTALL)
_TITLE = re.compile(r"^(\S.*)\n\s*\nby William Shakespeare$", re.MULTILINE)


class Characters(NamedTuple):
    """Records for next-character prediction: windows of text, labelled with the next character.

    Features (float32) and labels are codes of characters: positions in `alphabet`.

    Attributes
    ----------
    train, validation, test
        Records of three parts of the text, which share no text.
    partition
        Indices of the training records of each role, in the order of the text.
    roles
        Name of each role, as "play: role".
    alphabet
        All characters, sorted.
    """

    train: Dataset
    partition: Partition
    validation: Dataset
    test: Dataset
    roles: tuple[str, ...]
    alphabet: str

    def __repr__(self) -> str:
        training = f"{self.train.records} records of {len(self.roles)} roles to train on"
        return f"Characters({training}, {len(self.alphabet)} characters)"


def speeches(text: str) -> dict[str, str]:
    """Return the text of all speeches of each role, in order, by "play: role".

    The first line of a speech is indented by two blanks and starts with a name and a period. Its
    further lines are indented by four blanks.

    Parameters
    ----------
    text
        Text of the file of complete works.
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
    """Append the lines of one play to the lists of its roles' lines."""
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
        Smallest number of training records of a role; roles with fewer are left out. The paper uses
        100.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no role has enough training records.
    """
    window = integer("window", window, at_least=1)
    stride = integer("stride", stride, at_least=1)
    integer("least_records", least_records, at_least=1)
    alphabet = "".join(sorted(set("".join(texts.values()))))
    code_of = np.zeros(_UNICODE, dtype=np.float32)  # the code of each Unicode character
    code_of[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    windows_of_roles: dict[str, list[Windows]] = {}  # training, validation and test windows
    for role, text in texts.items():
        codes = code_of[np.array([text]).view(np.uint32)]
        cuts = np.floor(np.cumsum(FRACTIONS[:2]) * len(codes)).astype(int)
        # each window ends with the next character, which becomes the label
        windows = [_windows(part, window + 1, stride) for part in np.split(codes, cuts)]
        training_records = len(windows[0])
        if training_records >= least_records:
            windows_of_roles[role] = windows
    if not windows_of_roles:
        fail("texts", f"a role with at least {least_records} training records", "none")
    # three tuples with an array of windows for each role
    training, validation, test = zip(*windows_of_roles.values(), strict=True)
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
    """Load Shakespeare's plays as records for next-character prediction, one client for each role.

    Parameters
    ----------
    window, stride, least_records
        As for `next_characters`.
    folder
        Folder of ``t8.shakespeare.txt`` (or ``.gz``); by default the subfolder shakespeare of the
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
    """Return every `stride`-th window of the codes as a read-only view, shape (windows, length)."""
    if len(codes) < length:
        return np.empty((0, length), np.float32)
    return np.lib.stride_tricks.sliding_window_view(codes, length)[::stride]


def _dataset(windows: Windows) -> Dataset:
    """Return windows as records, with the last character of each as its label."""
    next_character = windows[:, -1].astype(np.int64)
    return Dataset(windows[:, :-1], next_character, "shakespeare")
