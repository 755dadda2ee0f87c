"""Shakespeare by speaking role: next-character prediction, one client for each role of a play."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmesh._files import read_bytes
from dpmesh._validate import fail, integer
from dpmesh.data.dataset import Dataset
from dpmesh.data.formats import StrPath
from dpmesh.data.loaders import find_file
from dpmesh.data.partition import Partition

NOT_PLAYS = ("THE SONNETS", "A LOVER'S COMPLAINT")
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
        held = f"{self.train.records} records of {len(self.roles)} roles to train on"
        return f"Characters({held}, {len(self.alphabet)} characters)"


def speeches(text: str) -> dict[str, str]:
    """Return everything that each role says, in order, by "play: role".

    A speech starts with two blanks, a name and a period; its lines go on after four blanks.

    Parameters
    ----------
    text
        The whole file.
    """
    pieces = _TITLE.split(_NOTICE.sub("", text))
    spoken: dict[str, list[str]] = defaultdict(list)
    for play, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if play.strip() in NOT_PLAYS:
            continue
        indent = _INDENT.get(play.strip(), "  ")
        start = re.compile(rf"{indent}([A-Z][\w'-]*(?: [\w'-]+){{0,3}})\. +(\S.*)")
        role = None
        for line in body.splitlines():
            if match := start.fullmatch(line.rstrip()):
                role = f"{play.strip()}: {match[1]}"
                spoken[role].append(match[2])
            elif role is not None and re.match(rf"{indent}  \S", line):
                spoken[role].append(line.strip())
    return {role: "\n".join(lines) for role, lines in spoken.items()}


def next_characters(
    texts: Mapping[str, str], *, window: int = 80, stride: int = 1, least_records: int = 100
) -> Characters:
    """Cut each role's text in order, and each part into windows.

    The alphabet is made from all texts, and a role's length decides whether it is a client. In
    published plays neither is secret; for private texts no guarantee would cover them.

    Parameters
    ----------
    texts
        The text of each role.
    window
        Number of characters of a record.
    stride
        Distance from one window to the next: 1 gives all of them, each at 4 bytes per character.
    least_records
        Roles with fewer training records are left out; the paper leaves out those below 100.

    Raises
    ------
    ValueError
        If an argument is out of its range, or no role has enough.
    """
    window = integer("window", window, at_least=1)
    stride = integer("stride", stride, at_least=1)
    integer("least_records", least_records, at_least=1)
    alphabet = "".join(sorted(set("".join(texts.values()))))
    code_of = np.zeros(0x110000, dtype=np.float32)
    code_of[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    kept: list[str] = []
    parts: tuple[list[npt.NDArray[np.float32]], ...] = ([], [], [])
    for role, text in texts.items():
        codes = code_of[np.array([text]).view(np.uint32)]
        cuts = np.floor(np.cumsum(FRACTIONS[:2]) * len(codes)).astype(int)
        pieces = [_windows(piece, window + 1, stride) for piece in np.split(codes, cuts)]
        if len(pieces[0]) >= least_records:
            kept.append(role)
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
    if not kept:
        fail("texts", f"a role with at least {least_records} training records", "none")
    ends = np.cumsum([len(piece) for piece in parts[0]])
    partition = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    train, validation, test = (_dataset(np.concatenate(part)) for part in parts)
    return Characters(train, partition, validation, test, tuple(kept), alphabet)


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


def _windows(codes: npt.NDArray[np.float32], length: int, stride: int) -> npt.NDArray[np.float32]:
    if len(codes) < length:
        return np.empty((0, length), np.float32)
    return np.lib.stride_tricks.sliding_window_view(codes, length)[::stride]


def _dataset(windows: npt.NDArray[np.float32]) -> Dataset:
    return Dataset(windows[:, :-1], windows[:, -1].astype(np.int64), "shakespeare")
