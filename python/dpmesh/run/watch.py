"""Observation of the releases of a run by an audit, which may also replace released values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from dpmesh._privacy_types import Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh.noise.compression import Compressed
from dpmesh.privacy.releases import Release


class Passage(NamedTuple):
    """One release with its values before and after the noise, as an audit observes it.

    Attributes
    ----------
    release
        Public description of the release.
    noise_scale
        Scale of the noise, in units of the values.
    inside
        Private values before the noise, shape (rows, dim).
    noisy
        Values with noise, shape (rows, dim).
    values
        Values to send, shape (rows, dim): noisy values after compression, if there is one.
    bits
        Length of each compressed row in bits, shape (rows,); None without compression.
    rows
        Indices of the rows; None if the message names none.
    """

    release: Release
    noise_scale: float
    inside: Sensitive
    noisy: Released
    values: Released
    bits: Indices | None = None
    rows: Indices | None = None


Watcher: TypeAlias = Callable[[Passage], Passage]
"""Function that observes every release of an audited run. The values it returns are sent."""


def watched(
    watcher: Watcher,
    releases: tuple[Release, ...],
    parts: list[tuple[Release, Indices]] | None,
    inside: Sensitive,
    noisy: Released,
    values: Released,
    compressed: Compressed | None,
    rows: Indices | None,
) -> tuple[Released, Compressed | None]:
    """Show the releases of a message to a watcher; return the values to send in their place.

    The parameters are those of `Passage`. `parts` has the rows of each release if a message has
    several.
    """
    values_to_send = values.copy()
    bits = None if compressed is None else compressed.bits.copy()
    all_rows: list[tuple[Release, Indices | slice]] = [(releases[0], slice(None))]
    for release, part_rows in parts or all_rows:
        mechanism = release.mechanism
        passage = watcher(
            Passage(
                release=release,
                noise_scale=mechanism.drawn_scale(inside, release.sensitivity),
                inside=Sensitive(mechanism.prepared(Sensitive(inside[part_rows]))),
                noisy=Released(noisy[part_rows]),
                values=Released(values[part_rows]),
                bits=None if compressed is None else compressed.bits[part_rows],
                rows=rows,
            )
        )
        values_to_send[part_rows] = passage.values
        if bits is not None:
            bits[part_rows] = passage.bits
    if compressed is None or bits is None:
        return Released(values_to_send), None
    return Released(values_to_send), replace(compressed, bits=bits)
