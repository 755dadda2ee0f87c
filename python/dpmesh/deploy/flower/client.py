"""The client's part: what it sends is bounded before it leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import fail, positive
from dpmesh.deploy.flower.arrays import clipped, flat, unflat
from dpmesh.deploy.flower.parties import asks_for_name, introduction
from dpmesh.privacy.types import Floats, Sensitive

with needed_by("the engine 'flower'"):
    from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable

Mod = Callable[[Message, Context, ClientAppCallable], Message]
"""A mod, which a ClientApp wraps around its functions; Flower's own type has no fixed module."""


class TrainingFailed(RuntimeError):  # noqa: N818
    """A client could not train; the reason may reveal its data and stays with the client."""


def private_update(clipping_norm: float) -> Mod:
    """Return a mod for Flower's ClientApp that bounds what a client sends.

    Make it the first mod, and give it to the ClientApp itself: what other mods do before it is not
    covered.

    Parameters
    ----------
    clipping_norm
        The model that training returns is pulled into the ball of this radius around the global
        one.

    Guarantee
    ---------
    The server is trusted: it adds the noise, and sees clipped updates, whether training failed, and
    the app's unchanged answers to messages of other kinds, such as those to evaluate. The reason
    why training failed stays in the client's own log, and the metrics that come with a model are
    removed. To a server that asks for the party's name, the mod sends that of the node's
    configuration (``dpmesh-party``, else ``partition-id``, else the node's id). Parties that trust
    no server run a contract, see `route` and `answers`.

    Raises
    ------
    ValueError
        If the clipping norm is not positive.
    """
    positive("clipping_norm", clipping_norm)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if asks_for_name(message):
            return introduction(message, context)
        if not _is_to_train(message):
            return call_next(message, context)
        name, start = _model_in(message)
        w = flat(start)
        try:
            move = _clipped_move(w, call_next(message, context), clipping_norm)
        except (Exception, SystemExit) as error:  # Flower sends its text to the server
            raise TrainingFailed("the client's log states why") from error
        return _answer(message, name, start, w, move)

    return mod


def _is_to_train(message: Message) -> bool:
    category, _, _ = message.metadata.message_type.partition(".")  # "train.default" is "train"
    return bool(category == MessageType.TRAIN)


def _model_in(message: Message) -> tuple[str, ArrayRecord]:
    """Return the only model of a message, and its name, before the app can change it."""
    records = dict(message.content.array_records)
    if len(records) != 1:
        fail("message", "one with one ArrayRecord", f"{len(records)} of them")
    ((name, model),) = records.items()
    return name, ArrayRecord(dict(model))


def _clipped_move(w: Floats, reply: Message, clipping_norm: float) -> Sensitive:
    """Return how far training moved the model, shape (1, dim), at most `clipping_norm`."""
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    (trained,) = reply.content.array_records.values()
    row = flat(trained)
    if row.shape != w.shape:
        fail("arrays", f"{w.size} numbers, as the model has", row.size)
    return Sensitive(clipped(row - w, clipping_norm))


def _answer(message: Message, name: str, start: ArrayRecord, w: Floats, move: Sensitive) -> Message:
    """Return `start` plus the update, with its names, shapes and type, and nothing else."""
    with np.errstate(over="ignore"):
        model = (w + move).astype(w.dtype)
    return Message(RecordDict({name: unflat(model, start)}), reply_to=message)
