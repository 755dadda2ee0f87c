"""The releases of a round, assembled from what each rank recorded of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from dpmesh.privacy.events import Release


def assembled(
    of_ranks: Sequence[Sequence[Release]], planned: Sequence[Release]
) -> tuple[Release, ...]:
    """Return the releases of a round as one process would have recorded them.

    Pieces become the planned releases that they make up. Of unplanned ones, the first pieces of the
    same kind on all ranks become one release, the second ones another.

    Parameters
    ----------
    of_ranks
        What each rank released, with the nodes' indices in the whole network. A planned release
        that names no nodes is on every rank.
    planned
        The releases that are planned for the round, in their order.
    """
    left = [list(releases) for releases in of_ranks]
    together = []
    for release in planned:
        found = [_piece(releases, release) for releases in left]
        pieces = [piece for piece in found if piece is not None]
        names = [node for piece in pieces for node in piece.nodes or ()]
        if pieces and set(names) == set(release.nodes or ()):
            together.append(release)
            for releases, piece in zip(left, found, strict=True):
                if piece is not None:
                    releases.remove(piece)
    return (*together, *_merged(left))


def _piece(releases: list[Release], whole: Release) -> Release | None:
    """Return the first release that equals `whole` except for its nodes."""
    for piece in releases:
        nodes = whole.nodes if piece.nodes is None or whole.nodes is None else piece.nodes
        if replace(piece, nodes=nodes) == replace(whole, nodes=nodes) and (
            piece.nodes is None or set(piece.nodes) <= set(whole.nodes or ())
        ):
            return piece
    return None


def _merged(left: list[list[Release]]) -> list[Release]:
    """Return the rest of all ranks, merged by kind, those of the lowest nodes first."""
    kinds: dict[Release, list[list[Release]]] = {}
    for rank, releases in enumerate(left):
        for release in releases:
            kind = replace(release, nodes=None)
            kinds.setdefault(kind, [[] for _ in left])[rank].append(release)
    merged = []
    for kind, by_rank in kinds.items():
        for pieces in zip_longest(*by_rank):
            nodes = sorted(node for piece in pieces if piece for node in piece.nodes or ())
            merged.append(replace(kind, nodes=tuple(nodes) or None))
    return sorted(merged, key=lambda release: min(release.nodes or (-1,)))
