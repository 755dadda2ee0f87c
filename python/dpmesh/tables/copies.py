"""Find the records of one site at another: each record may be at one site alone.

A guarantee about one record of one site says less about a person whose record is at three. The
search sees private values, so only the data's owner learns what it finds, before anything is
released.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh.tables.table import Table

_DISTINCT = 0.9
"""Share of distinct records from which on two equal ones are hardly an accident."""

_SHARED = 0.5
"""Share of a site's records at another site that is found."""

_FEWEST = 5
"""Distinct records of a site that are compared."""

_LONGEST = 20
"""Records whose whole sequence is compared, where many are alike."""


def fingerprints(table: Table, without: str | None = None) -> npt.NDArray[np.uint64]:
    """Return a number for each record, equal for equal records, shape (records,).

    Parameters
    ----------
    table
        The records.
    without
        A column that does not count, such as that of the site.
    """
    names = table.names or tuple(f"x{place}" for place in range(len(table.columns)))
    total = np.zeros(table.records, np.uint64)
    for name, column in zip(names, table.columns, strict=True):
        if name == without:
            continue
        mixed = _bits(column) ^ np.uint64(hash(name) & (2**64 - 1))
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        total += mixed ^ (mixed >> np.uint64(32))  # a sum: the order of columns does not count
    return total


def _bits(column: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a number for each cell."""
    if column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
        numbers[np.isnan(numbers)] = 0
        return numbers.view(np.uint64)
    cells = column.tolist()
    only_texts = {*map(type, cells)} == {str}
    read = hash if only_texts else _hash  # the same for texts, in a third of the time
    return np.fromiter(map(read, cells), np.int64, len(cells)).view(np.uint64)


def _hash(cell: Any) -> int:
    if isinstance(cell, (Real, np.bool_)):  # as an array of numbers has it
        number = 0.0 if cell != cell else float(cell)
        return int.from_bytes(pack("<d", number), "little", signed=True)
    try:
        return hash(cell)
    except TypeError:  # such as a list
        return hash(str(cell))


def copied(
    records: npt.NDArray[np.uint64],
    partition: Sequence[npt.NDArray[np.int64]],
    names: npt.NDArray[Any],
) -> str | None:
    """Say which site has the records of another one; None if none is found to have.

    Records of which many are alike, such as those of a few flags, are found as a whole sequence
    alone.

    Parameters
    ----------
    records
        A fingerprint of each record, shape (records,).
    partition
        The records of each site, as places.
    names
        The names of the sites.
    """
    if len(partition) < 2:
        return None
    parts = [records[places] for places in partition]
    distinct = [np.unique(part) for part in parts]
    known: dict[bytes, int] = {}
    for site, (part, own) in enumerate(zip(parts, distinct, strict=True)):
        if len(part) >= _LONGEST and len(own) >= _FEWEST:
            first = known.setdefault(part.tobytes(), site)
            if first != site:
                return _said(names, first, site, len(part), len(part))
    told = [
        site
        for site, (part, own) in enumerate(zip(parts, distinct, strict=True))
        if len(own) >= max(_FEWEST, _DISTINCT * len(part))
    ]
    return _overlap(names, [(site, distinct[site]) for site in told])


def _overlap(
    names: npt.NDArray[Any], told: Sequence[tuple[int, npt.NDArray[np.uint64]]]
) -> str | None:
    """Say which site has at least half of its records at another one."""
    if len(told) < 2:
        return None
    everything, counts = np.unique(np.concatenate([own for _, own in told]), return_counts=True)
    several = everything[counts > 1]
    for site, own in told:
        common = np.isin(own, several, assume_unique=True).sum()
        if common < _SHARED * len(own):
            continue
        shared = [
            (int(np.isin(own, other, assume_unique=True).sum()), partner)
            for partner, other in told
            if partner != site
        ]
        count, partner = max(shared)
        if count >= _SHARED * len(own):
            return _said(names, partner, site, count, len(own))
    return None


def _said(names: npt.NDArray[Any], first: int, second: int, count: int, records: int) -> str:
    which = "all" if count == records else f"{count}"
    return (
        f"{which} of {records} records of the site {names[second]} are also at the site "
        f"{names[first]}; keep each record at one site: no epsilon covers a record at several"
    )
