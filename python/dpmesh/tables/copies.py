"""Search for records of one site that are also at another site.

The guarantees protect one record of one site. A person whose record is at three sites is protected
less. The search compares fingerprints (64-bit hashes) of the records, and reads private values: its
finding is a warning to the owner of the data, before anything is released, and is not covered by
epsilon. `PrivateEstimator.fit`, `dpmesh.statistics.ask` and the command line call
`describe_copies`.
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
"""A 64-bit hash of each record, equal for equal records, shape (records,)."""

_DISTINCT = 0.9
"""Smallest share of distinct records at a site for which equal records of two sites are copies. At
sites with many equal records, equal records of two sites are an accident."""

_SHARED = 0.5
"""Smallest share of a site's records at another site that is reported."""

_FEWEST = 5
"""Smallest number of distinct records of a site that is compared."""

_SHORTEST_SEQUENCE = 20
"""Smallest number of records of two sites whose whole sequences are compared."""

_MIXING_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, an odd number: multiplying with it spreads low bits to high ones."""

_MASK = 2**64 - 1
"""The lowest 64 bits of an integer."""


def fingerprints(table: Table, without: str | None = None) -> Fingerprints:
    """Return a hash of each record, equal for equal records, shape (records,).

    It is the sum, modulo 2^64, of a hash of each cell with the name of its column, for any order of
    the columns. Different records may have the same hash by accident.

    Parameters
    ----------
    table
        The records.
    without
        Name of a column to leave out, such as the column of the site.
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
    """Return a hash of each cell, shape (records,)."""
    if column.dtype.kind in "biuf":
        numbers = column.astype(np.float64)
        numbers[np.isnan(numbers)] = 0
        return numbers.view(np.uint64)
    cells = column.tolist()
    hash_cell: Callable[[object], int] = _hash
    if set(map(type, cells)) == {str}:
        hash_cell = hash  # `_hash` of a text, in a third of the time
    return np.fromiter(map(hash_cell, cells), np.int64, len(cells)).view(np.uint64)


def _hash(cell: object) -> int:
    """Return the hash of one cell: of a number, the bits of its float64, as in `_cell_hashes`."""
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


def describe_copies(
    records: Fingerprints, partition: Sequence[npt.NDArray[np.int64]], names: Cells
) -> str | None:
    """Describe two sites that share records; return None if no copies are found.

    A site with many equal records, such as a table of a few flags, is only compared as a whole: its
    records in their order are the records of another site.

    Parameters
    ----------
    records
        Fingerprint of each record, shape (records,).
    partition
        Indices of the records of each site.
    names
        Names of the sites, in the order of `partition`.
    """
    if len(partition) < 2:
        return None
    sites = []
    for name, members in zip(names, partition, strict=True):
        fingerprints_of_site = records[members]
        sites.append(_Site(name, fingerprints_of_site, np.unique(fingerprints_of_site)))
    same_sequence = _same_sequence(sites)
    if same_sequence is not None:
        return same_sequence
    comparable = []
    for site in sites:
        fewest_distinct = max(_FEWEST, _DISTINCT * len(site.records))
        if len(site.distinct) >= fewest_distinct:
            comparable.append(site)
    return _overlap(comparable)


def _same_sequence(sites: Sequence[_Site]) -> str | None:
    """Describe two sites whose records are the same in the same order."""
    sites_by_sequence: dict[bytes, _Site] = {}
    for site in sites:
        count = len(site.records)
        if count < _SHORTEST_SEQUENCE or len(site.distinct) < _FEWEST:
            continue
        first = sites_by_sequence.setdefault(site.records.tobytes(), site)
        if first is not site:
            return _description(first, site, shared=count, records=count)
    return None


def _overlap(sites: Sequence[_Site]) -> str | None:
    """Describe a site of which at least half of the records are also at another site."""
    if len(sites) < 2:
        return None
    all_records = np.concatenate([site.distinct for site in sites])
    distinct_records, counts = np.unique(all_records, return_counts=True)
    at_several_sites = distinct_records[counts > 1]
    for site in sites:
        fewest_shared = _SHARED * len(site.distinct)
        if _common(site.distinct, at_several_sites) < fewest_shared:
            continue  # spares the comparison with each other site
        partners = [partner for partner in sites if partner is not site]
        shared = [_common(site.distinct, partner.distinct) for partner in partners]
        most_shared = max(shared)
        if most_shared >= fewest_shared:
            last = max(place for place, count in enumerate(shared) if count == most_shared)
            return _description(
                partners[last], site, shared=most_shared, records=len(site.distinct)
            )
    return None


def _common(first: Fingerprints, second: Fingerprints) -> int:
    """Return the number of fingerprints of the first set that are in the second set."""
    return int(np.isin(first, second, assume_unique=True).sum())


def _description(first: _Site, second: _Site, *, shared: int, records: int) -> str:
    """Describe that records of the second site are also at the first one."""
    which = "all" if shared == records else str(shared)
    return (
        f"{which} of {records} records of the site {second.name} are also at the site "
        f"{first.name}; keep each record at one site: no epsilon covers a record at several"
    )
