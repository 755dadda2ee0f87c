"""Checkpoints: the progress of a run in one file, which is replaced atomically.

The file holds what the remaining rounds need: the state of all nodes with their un-noised
parameters (protect it like the data), memory of metrics and network, history and ledger. It holds
no key and no records.

A run resumes under its own key only. Rounds that are run again then release the same values, which
adds no epsilon; under another key they would release other noisy versions of them. Nor does a run
resume with another algorithm, network, problem or data: both runs would have the same noise.
"""

from __future__ import annotations

import json
import logging
import time
import zipfile
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.lib.npyio import NpzFile

from dpmesh._core import __version__
from dpmesh._files import JsonObject, replacing
from dpmesh._validate import every, fail, instance, integer
from dpmesh.privacy.plan import Plan
from dpmesh.run.codec import Arrays, Classes, classes_in, decode, encode
from dpmesh.run.identity import Identity, differing
from dpmesh.run.noise import DrawnRows

VERSION = 5
"""Version of the format of checkpoints."""

SECONDS = 10.0
"""Interval between two writes in seconds, if no interval in rounds is set."""

_HEADER = "header"

_log = logging.getLogger("dpmesh")


class Resumable(Protocol):
    """Progress of a run, with all that the remaining rounds need."""

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""


R = TypeVar("R", bound=Resumable)


@dataclass(frozen=True)
class Checkpoint:
    """File in which `simulate` keeps the progress of a run, and the interval of saving.

    The file holds the nodes' un-noised parameters: protect it like the data. It holds no records
    and no key.

    Parameters
    ----------
    path
        Path of the file. A run resumes from an existing file, if it has the same algorithm,
        network, problem, data and key; otherwise it is refused.
    every
        Interval in rounds between two writes; None for about 10 seconds.

    Raises
    ------
    ValueError
        If `path` is not a path, or `every` is not an integer of at least 1.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.Checkpoint("run.checkpoint", every=100).every
    100
    """

    path: str | PathLike[str]
    _: KW_ONLY
    every: int | None = None

    def __post_init__(self) -> None:
        instance("checkpoint", self.path, "the path of a file, or None", str, PathLike)
        every(self, integer, "every", at_least=1)


class SavedRun:
    """File of the progress of one run.

    Parameters
    ----------
    checkpoint
        Path of the file, and number of rounds between two writes.
    run
        Facts that identify this run, see `identity`; a file of another run is refused.
    keys
        Fingerprints of the processes' keys, in their order; they do not reveal the keys.
    salt
        Bits in hexadecimal that the run mixes into its key. A resumed run uses them again.
    """

    def __init__(
        self, checkpoint: Checkpoint, run: Identity, keys: Iterable[str], salt: str
    ) -> None:
        self.path = Path(checkpoint.path)
        self._every = checkpoint.every
        self._salt = salt
        distinct_keys = ", ".join(dict.fromkeys(keys))
        self._run: Identity = {"dpmesh": __version__, "key": distinct_keys, **run}
        self._saved_at = time.monotonic()

    def resume(self, start: R, plan: Plan) -> R:
        """Return the progress that the file holds; without a file, write `start` and return it.

        `start` and `plan` determine which classes of records a file of this run can hold.

        Raises
        ------
        ValueError
            If the file is not a checkpoint, or one of another run.
        OSError
            If it cannot be read or written.
        """
        if self.path.exists():
            classes = classes_in((start, plan, DrawnRows(rows=0, earlier=())))
            progress: R = self._load(classes)
            return progress
        self.save(start)
        return start

    def is_due(self, rounds: int, last: int) -> bool:
        """Return True if the progress is to be saved after `rounds` rounds of `last`."""
        if rounds == last:
            return True
        if self._every is None:
            return time.monotonic() - self._saved_at >= SECONDS
        return rounds % self._every == 0

    def save(self, progress: Resumable) -> None:
        """Replace the file atomically by one with this progress.

        Raises
        ------
        OSError
            If the file cannot be written; the previous file is then unchanged.
        """
        arrays: Arrays = {}
        header = {
            "format": "dpmesh checkpoint",
            "version": VERSION,
            "run": self._run,
            "salt": self._salt,
            "progress": encode(progress, arrays),
        }
        arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with replacing(self.path, mode=0o600) as file:
            np.savez(file, allow_pickle=False, **arrays)
        self._saved_at = time.monotonic()
        _log.debug("%d rounds are in %s", progress.rounds, self.path)

    def _load(self, classes: Classes) -> Any:
        """Return the progress in the file; fail if the file belongs to another run."""
        header, arrays = _read(self.path)
        for name, saved in header["run"].items():
            current = self._run.get(name)
            if saved == current:
                continue
            expected = f"that of the run in the checkpoint {self.path}"
            if name in ("key", "problem"):
                fail(name, expected, "another")
            saved_part, current_part = differing(str(saved), str(current))
            fail(name, f"{saved_part}, {expected}", current_part)
        try:
            return decode(header["progress"], arrays, classes)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(self.path) from error


def salt_in(path: str | PathLike[str]) -> str | None:
    """Return the salt of the run in a checkpoint; None if there is no file.

    Raises
    ------
    ValueError
        If the file is not a checkpoint.
    """
    if not Path(path).exists():
        return None
    header, _ = _read(Path(path))
    return str(header["salt"])


def _read(path: Path) -> tuple[JsonObject, Arrays]:
    """Return the header of a checkpoint, which identifies its run, and its arrays."""
    try:
        with path.open("rb") as file, NpzFile(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        header = json.loads(arrays.pop(_HEADER).tobytes())
        version = header["version"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError) as error:
        expected = "a checkpoint, or a path where there is no file yet"
        raise ValueError(f"checkpoint: wanted {expected}, got {path}: {error}") from error
    if version != VERSION:
        fail("checkpoint", f"one of version {VERSION}", version)
    if not {"run", "salt", "progress"} <= {*header}:
        raise _damaged(path)
    return header, arrays


def _damaged(path: Path) -> ValueError:
    return ValueError(f"checkpoint: {path} is damaged. Delete it to begin anew, or restore a copy")
