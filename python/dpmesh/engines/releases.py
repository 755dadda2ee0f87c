"""The releases of a round, assembled from what each rank recorded of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from dpmesh.privacy.releases import Release


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
    """Return the first release that is `whole`, or that of some of the nodes that it names."""
    for piece in releases:
        is_part = piece.nodes and whole.nodes and set(piece.nodes) <= set(whole.nodes)
        if piece == whole or (is_part and replace(piece, nodes=whole.nodes) == whole):
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
            found = [piece.nodes for piece in pieces if piece]
            named = [nodes for nodes in found if nodes is not None]
            unnamed = len(named) < len(found)
            merged.append(replace(kind, nodes=None if unnamed else tuple(sorted(chain(*named)))))
    return sorted(merged, key=lambda release: min(release.nodes or (-1,)))
