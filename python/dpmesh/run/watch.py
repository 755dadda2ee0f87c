"""What an audit sees of the releases of a run."""

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

    `values` are those that travel, after their compression if there is one, `bits` the lengths of
    compressed rows, shape (rows,), and `rows` their numbers, if the message names some.
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
    out = values.copy()
    bits = None if compressed is None else compressed.bits.copy()
    whole: list[tuple[Release, Indices | slice]] = [(releases[0], slice(None))]
    for release, some in parts or whole:
        mechanism, sensitivity = release.mechanism, release.sensitivity
        scale = mechanism.drawn_scale(inside, sensitivity)
        before = Sensitive(mechanism.prepared(Sensitive(inside[some])))
        length = None if compressed is None else compressed.bits[some]
        after = Released(noisy[some]), Released(values[some]), length
        shown = watcher(Passage(release, scale, before, *after, rows))
        out[some] = shown.values
        if bits is not None:
            bits[some] = shown.bits
    sent = None if compressed is None or bits is None else replace(compressed, bits=bits)
    return Released(out), sent
