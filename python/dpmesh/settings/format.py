"""The format of experiment files and contracts: ``format = 2``.

In format 1, which files without this line have, the noise multiplier of an algorithm that clips was
relative to the sensitivity, and sums of records had a noise multiplier, too. Files that set such a
noise are refused, and the error has the line to type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.clipping import Clipping
from dpmesh.settings.files import Settings
from dpmesh.settings.parts import entries

FORMAT = 2
"""Of files whose noise multipliers are relative to the clipping norm."""

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
    """Fail at the noise multiplier of sums of records in a file of format 1.

    Parameters
    ----------
    settings
        The file.
    path, table
        A table of it.
    maker
        The class that it describes.

    Raises
    ------
    ValueError
        If it has one. The error states the line to type.
    """
    if _is_current(settings) or not _is_noise(table.get(_KEY)):
        return
    fields = entries(maker)
    if _KEY not in fields and _RATIO in fields:
        _refuse(settings, f"{path}.{_KEY}", f"{_RATIO} = {_written(table[_KEY], 1.0)}")


def refuse_old_noise(settings: Settings, algorithm: AnyAlgorithm) -> None:
    """Fail at the noise multiplier of an algorithm that clips, in a file of format 1.

    Parameters
    ----------
    settings
        The file.
    algorithm
        The algorithm that it describes.

    Raises
    ------
    ValueError
        If it has one. The error states the line to type.
    """
    noise = settings.table("algorithm").get(_KEY)
    if _is_current(settings) or not _is_noise(noise) or not isinstance(algorithm, Clipping):
        return
    factor = 1 / algorithm.noise_to_sensitivity_at(1.0)
    swept = settings.table("sweep").get("algorithm")
    if isinstance(swept, dict) and isinstance(swept.get(_KEY), list):
        _refuse(
            settings, f"algorithm.{_KEY}", f"algorithm.{_KEY} = {_written(swept[_KEY], factor)}"
        )
    _refuse(settings, f"algorithm.{_KEY}", f"{_KEY} = {_written(noise, factor)}")


def _is_current(settings: Settings) -> bool:
    return bool(settings.content.get("format") == FORMAT)


def _is_noise(value: object) -> bool:
    """Return True if a value sets noise: it is neither missing nor "none"."""
    return value is not None and value != "none"


def _written(value: object, factor: float) -> str:
    """Return a value, or each of a list, times a factor, as a file has it."""
    if isinstance(value, list):
        return f"[{', '.join(_written(item, factor) for item in value)}]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(float(value) * factor)
    return f'"{value}"'


def _refuse(settings: Settings, key: str, line: str) -> NoReturn:
    meaning = "noise_multiplier is the standard deviation of the noise over the clipping norm"
    if line.startswith(_RATIO):
        meaning = "noise_to_sensitivity is the noise over the sensitivity"
    settings.fail(
        key,
        f"wanted `format = {FORMAT}` as the first line of the file, and here `{line}`: in format "
        f"{FORMAT} {meaning}",
    )
