"""The format of experiment files and contracts: ``format = 2``.

In format 2 `noise_multiplier` is the standard deviation of the noise over the clipping norm. In
format 1 it was the standard deviation over the sensitivity, also for sums over records. A file
without a format that sets such a noise is refused; the error states the line to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.clipping import Clipping
from dpmesh.settings.files import Settings
from dpmesh.settings.parts import part_fields

FORMAT = 2
"""The current format."""

_KEY = "noise_multiplier"
_RATIO = "noise_to_sensitivity"


def check_format(settings: Settings) -> None:
    """Fail unless a file states a known format, or none.

    Raises
    ------
    ValueError
        If the format is unknown.
    """
    stated = settings.content.get("format", FORMAT)
    if type(stated) is not int or not 1 <= stated <= FORMAT:
        settings.fail("format", f"wanted {FORMAT}, got {stated!r}")


def refuse_old_keys(settings: Settings, path: str, table: Mapping[str, Any], maker: Any) -> None:
    """Fail at the noise multiplier of sums over records in a file of format 1.

    Parameters
    ----------
    settings
        The file.
    path, table
        Key and content of a table of the file.
    maker
        Class that the table describes.

    Raises
    ------
    ValueError
        If the table has such a noise multiplier. The error states the line to write instead.
    """
    if _is_current(settings) or not _is_noise(table.get(_KEY)):
        return
    fields = part_fields(maker)
    if _KEY not in fields and _RATIO in fields:
        _refuse(settings, f"{path}.{_KEY}", f"{_RATIO} = {_written(table[_KEY], 1.0)}")


def refuse_old_noise(settings: Settings, algorithm: AnyAlgorithm) -> None:
    """Fail at the noise multiplier of an algorithm that clips, in a file of format 1.

    Parameters
    ----------
    settings
        The file.
    algorithm
        The algorithm that the file describes.

    Raises
    ------
    ValueError
        If the file states such a noise multiplier. The error states the line to write instead.
    """
    noise = settings.table("algorithm").get(_KEY)
    if _is_current(settings) or not _is_noise(noise) or not isinstance(algorithm, Clipping):
        return
    factor = 1 / algorithm.noise_to_sensitivity_at(1.0)
    key = f"algorithm.{_KEY}"
    swept = settings.table("sweep").get("algorithm")
    if isinstance(swept, dict) and isinstance(swept.get(_KEY), list):
        _refuse(settings, key, f"{key} = {_written(swept[_KEY], factor)}")
    _refuse(settings, key, f"{_KEY} = {_written(noise, factor)}")


def _is_current(settings: Settings) -> bool:
    """Return True if a file states the current format."""
    return bool(settings.content.get("format") == FORMAT)


def _is_noise(value: object) -> bool:
    """Return True if a value sets noise: it is neither missing nor "none"."""
    return value is not None and value != "none"


def _written(value: object, factor: float) -> str:
    """Return in TOML a number, or each number of a list, times a factor; texts stay as they are."""
    if isinstance(value, list):
        return f"[{', '.join(_written(item, factor) for item in value)}]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(float(value) * factor)
    return f'"{value}"'


def _refuse(settings: Settings, key: str, line: str) -> NoReturn:
    """Fail at a key of format 1, with the line to write instead."""
    meaning = "noise_multiplier is the standard deviation of the noise over the clipping norm"
    if line.startswith(_RATIO):
        meaning = "noise_to_sensitivity is the noise over the sensitivity"
    settings.fail(
        key,
        f"wanted `format = {FORMAT}` as the first line of the file, and here `{line}`: in format "
        f"{FORMAT} {meaning}",
    )
