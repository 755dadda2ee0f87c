"""The clients' answers of a round, as rows that nothing but a usable answer gets into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dpmesh._extras import needed_by
from dpmesh.deploy.flower.arrays import flat
from dpmesh.privacy.types import Floats

with needed_by("the engine 'flower'"):
    from flwr.app import Message


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
    answers = [by_client[client] for client in sorted(by_client)]
    usable = [move for answer in answers if (move := _move(answer, w)) is not None]
    return np.vstack([np.empty((0, w.shape[1]), w.dtype), *usable])


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
