"""Models as rows, in place of Flower's named arrays, and how far clients moved one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.privacy.types import Floats

with needed_by("the engine 'flower'"):
    from flwr.app import Array, ArrayRecord, Message


def flat(arrays: ArrayRecord) -> Floats:
    """Return all arrays as one row, shape (1, dim), in their order.

    Raises
    ------
    ValueError
        If they are not all float32 or all float64.
    """
    parts = arrays.to_numpy_ndarrays()
    types = {part.dtype for part in parts}
    if types not in ({np.dtype(np.float32)}, {np.dtype(np.float64)}):
        fail("arrays", "arrays all of float32 or all of float64", sorted(map(str, types)))
    return np.concatenate([part.ravel() for part in parts])[np.newaxis]


def unflat(row: Floats, like: ArrayRecord) -> ArrayRecord:
    """Return a row as arrays of the names and shapes of `like`."""
    record, first = ArrayRecord(), 0
    for name, part in zip(like, like.to_numpy_ndarrays(), strict=True):
        record[name] = Array(row[0, first : first + part.size].reshape(part.shape))
        first += part.size
    return record


def clipped(rows: Floats, clipping_norm: float) -> Floats:
    """Clip finite rows, also where the square of an entry is beyond the type's range."""
    if not len(rows):
        return rows
    largest = np.abs(rows).max(axis=1, keepdims=True)
    shorter = rows * (2 * clipping_norm / np.maximum(largest, 2 * clipping_norm)).astype(rows.dtype)
    return kernels.clip_rows(shorter, clipping_norm, out=shorter)


def moves_in(replies: Iterable[Message], asked: Mapping[str, int], w: Floats) -> Floats:
    """Return how far clients moved the model `w`, each once, in the order of their numbers.

    Parameters
    ----------
    replies
        What came. Answers for a dead node come from the SuperLink, under an id of its own, so that
        who sent a message proves nothing.
    asked
        The number of the client that each message went to, by the message's id.
    w
        Shape (1, dim).

    Returns
    -------
    Finite rows, of shape (usable answers, dim).
    """
    by_client = {}
    for reply in replies:
        client = asked.get(reply.metadata.reply_to_message_id)
        if client is not None:
            by_client[client] = reply
    moves = [_move(by_client[client], w) for client in sorted(by_client)]
    return np.vstack([np.empty((0, w.shape[1]), w.dtype), *(m for m in moves if m is not None)])


def _move(answer: Message, w: Floats) -> Floats | None:
    """Return how far a client moved the model; None, as if it were missing, if it sent none."""
    if answer.has_error() or len(answer.content.array_records) != 1:
        return None
    try:
        model = flat(next(iter(answer.content.array_records.values())))
    except Exception:  # reading anything but arrays can fail in many ways
        return None
    if model.shape != w.shape:
        return None
    with np.errstate(over="ignore"):
        move: Floats = model.astype(w.dtype) - w
    return move if np.isfinite(move).all() else None
