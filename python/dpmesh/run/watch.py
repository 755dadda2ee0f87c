"""The view that an audit has of the releases of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from dpmesh._privacy_types import Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh.noise.compression import Compressed
from dpmesh.privacy.releases import Release


class Passage(NamedTuple):
    """One release as an audit sees it, in units of its message: before and after the noise.

    `values` are those that travel, after their compression if there is one. `bits` are the lengths
    of compressed rows, shape (rows,). `rows` are indices of rows, if the message names them.
    """

    release: Release
    noise_scale: float
    inside: Sensitive
    noisy: Released
    values: Released
    bits: Indices | None = None
    rows: Indices | None = None


Watcher: TypeAlias = Callable[[Passage], Passage]
"""Sees every release of a run that is audited; what it returns travels instead."""


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
    """Show the releases of a message to its watcher; return what travels instead."""
    travelling = values.copy()
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
        travelling[part_rows] = passage.values
        if bits is not None:
            bits[part_rows] = passage.bits
    if compressed is None or bits is None:
        return Released(travelling), None
    return Released(travelling), replace(compressed, bits=bits)
