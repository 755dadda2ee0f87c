"""Find the records of one site at another: each record may be at one site alone.

A guarantee about one record of one site says less about a person whose record is at three. The
search sees private values, so only the data's owner learns what it finds, before anything is
released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from struct import pack
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh.tables.cells import Cells
from dpmesh.tables.table import Table

Fingerprints: TypeAlias = npt.NDArray[np.uint64]
"""A number for each record, equal for equal records, shape (records,)."""

_DISTINCT = 0.9
"""Share of distinct records from which on two equal ones are hardly an accident."""

_SHARED = 0.5
"""Share of a site's records at another site that is found."""

_FEWEST = 5
"""Distinct records of a site that are compared."""

_LONGEST = 20
"""Records whose whole sequence is compared, where many are alike."""

_MIXING_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, an odd number: multiplying with it spreads low bits to high ones."""

_MASK = 2**64 - 1
"""The lowest 64 bits of an integer."""


def fingerprints(table: Table, without: str | None = None) -> Fingerprints:
    """Return a number for each record, equal for equal records, shape (records,).

    It is the sum, modulo 2^64, of a hash of each cell with the name of its column: the order of
    columns does not count. Different records may have the same number by accident.

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
        hashes = _cell_hashes(column) ^ np.uint64(hash(name) & _MASK)
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _MIXING_FACTOR
        total += hashes ^ (hashes >> np.uint64(32))
    return total


def _cell_hashes(column: Cells) -> npt.NDArray[np.uint64]:
    """Return a number for each cell, shape (records,)."""
    if column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
        numbers[np.isnan(numbers)] = 0
        return numbers.view(np.uint64)
    cells = column.tolist()
    hash_cell: Callable[[object], int] = _hash
    if set(map(type, cells)) == {str}:
        hash_cell = hash  # the same for texts, in a third of the time
    return np.fromiter(map(hash_cell, cells), np.int64, len(cells)).view(np.uint64)


def _hash(cell: object) -> int:
    """Return the number of one cell; a number has the one it has in an array of numbers."""
    if isinstance(cell, (Real, np.bool_)):
        number = float(cell)
        if math.isnan(number):
            number = 0.0
        return int.from_bytes(pack("<d", number), "little", signed=True)
    try:
        return hash(cell)
    except TypeError:  # such as a list
        return hash(str(cell))


class _Site(NamedTuple):
    """The fingerprints of the records of one site.

    Attributes
    ----------
    name
        Name of the site.
    records
        Fingerprint of each record, in their order.
    distinct
        Distinct fingerprints, sorted.
    """

    name: object
    records: Fingerprints
    distinct: Fingerprints


def copied(
    records: Fingerprints, partition: Sequence[npt.NDArray[np.int64]], names: Cells
) -> str | None:
    """Describe which site has the records of another one; None if no copies are found.

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
    sites = []
    for name, places in zip(names, partition, strict=True):
        fingerprints_there = records[places]
        sites.append(_Site(name, fingerprints_there, np.unique(fingerprints_there)))
    same_sequence = _same_sequence(sites)
    if same_sequence is not None:
        return same_sequence
    comparable = [
        site for site in sites if len(site.distinct) >= max(_FEWEST, _DISTINCT * len(site.records))
    ]
    return _overlap(comparable)


def _same_sequence(sites: Sequence[_Site]) -> str | None:
    """Describe two sites whose records are the same in the same order."""
    sites_by_sequence: dict[bytes, _Site] = {}
    for site in sites:
        count = len(site.records)
        if count < _LONGEST or len(site.distinct) < _FEWEST:
            continue
        first = sites_by_sequence.setdefault(site.records.tobytes(), site)
        if first is not site:
            return _description(first, site, shared=count, records=count)
    return None


def _overlap(sites: Sequence[_Site]) -> str | None:
    """Describe a site that has at least half of its records at another one."""
    if len(sites) < 2:
        return None
    all_records = np.concatenate([site.distinct for site in sites])
    fingerprints_found, counts = np.unique(all_records, return_counts=True)
    at_several_sites = fingerprints_found[counts > 1]
    for site in sites:
        least = _SHARED * len(site.distinct)
        if _common(site.distinct, at_several_sites) < least:
            continue
        partners = [partner for partner in sites if partner is not site]
        shared = [_common(site.distinct, partner.distinct) for partner in partners]
        most = max(shared)
        if most >= least:
            last_partner = max(place for place, count in enumerate(shared) if count == most)
            return _description(
                partners[last_partner], site, shared=most, records=len(site.distinct)
            )
    return None


def _common(first: Fingerprints, second: Fingerprints) -> int:
    """Return how many fingerprints of the first set are in the second one."""
    return int(np.isin(first, second, assume_unique=True).sum())


def _description(first: _Site, second: _Site, *, shared: int, records: int) -> str:
    """Describe that records of the second site are also at the first one."""
    which = "all" if shared == records else str(shared)
    return (
        f"{which} of {records} records of the site {second.name} are also at the site "
        f"{first.name}; keep each record at one site: no epsilon covers a record at several"
    )
