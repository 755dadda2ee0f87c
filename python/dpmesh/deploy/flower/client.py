"""The client's part of federated learning on Flower: it clips an update before it leaves.

Models are rows here, of shape (1, dim): all arrays of a Flower record, one after another. The
server converts and clips by the same functions, as a client may be malicious.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._validate import fail, positive
from dpmesh.deploy.flower.supernode import asks_for_name, introduction

with needed_by("the engine 'flower'"):
    from flwr.app import Array, ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable

Mod = Callable[[Message, Context, ClientAppCallable], Message]
"""A mod, which a ClientApp wraps around its functions; Flower's own type has no fixed module."""


class TrainingFailed(RuntimeError):  # noqa: N818
    """A client could not train. The reason may reveal its data, and is in its own log alone."""


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
            update = _clipped_update(w, call_next(message, context), clipping_norm)
        except (Exception, SystemExit) as error:  # Flower sends its text to the server
            raise TrainingFailed("the client's log states why") from error
        return _answer(message, name, start, w, update)

    return mod


def _is_to_train(message: Message) -> bool:
    """Return True if a message asks the client to train."""
    category, _, _ = message.metadata.message_type.partition(".")  # "train.default" is "train"
    return bool(category == MessageType.TRAIN)


def _model_in(message: Message) -> tuple[str, ArrayRecord]:
    """Return the name and a copy of the only model of a message, before the app can change it."""
    records = dict(message.content.array_records)
    if len(records) != 1:
        fail("message", "one with one ArrayRecord", f"{len(records)} of them")
    ((name, model),) = records.items()
    return name, ArrayRecord(dict(model))


def _clipped_update(w: Floats, reply: Message, clipping_norm: float) -> Sensitive:
    """Return the trained model less the model `w`, shape (1, dim), clipped to `clipping_norm`.

    Raises
    ------
    RuntimeError
        If the app answers with an error.
    ValueError
        If its answer is no finite model of the shape of `w`.
    """
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    (trained,) = reply.content.array_records.values()
    row = flat(trained)
    if row.shape != w.shape:
        fail("arrays", f"{w.size} numbers, as the model has", row.size)
    return Sensitive(clipped(row - w, clipping_norm))


def _answer(
    message: Message, name: str, start: ArrayRecord, w: Floats, update: Sensitive
) -> Message:
    """Return `start` plus the update, with its names, shapes and type, and nothing else."""
    with np.errstate(over="ignore"):
        model = (w + update).astype(w.dtype)
    return Message(RecordDict({name: unflat(model, start)}), reply_to=message)


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


def unflat(row: Floats, example: ArrayRecord) -> ArrayRecord:
    """Return a row, shape (1, dim), as arrays with the names and shapes of an example."""
    record = ArrayRecord()
    first = 0
    for name, part in zip(example, example.to_numpy_ndarrays(), strict=True):
        record[name] = Array(row[0, first : first + part.size].reshape(part.shape))
        first += part.size
    return record


def clipped(rows: Floats, clipping_norm: float) -> Floats:
    """Return rows, shape (rows, dim), each clipped to an L2 norm.

    Rows are first scaled down, so that no square of an entry exceeds the type's range.

    Raises
    ------
    ValueError
        If an entry is not finite.
    """
    if not len(rows):
        return rows
    largest = np.abs(rows).max(axis=1, keepdims=True)
    factors = 2 * clipping_norm / np.maximum(largest, 2 * clipping_norm)
    scaled = rows * factors.astype(rows.dtype)
    return kernels.clip_rows(scaled, clipping_norm, out=scaled)


def updates_in(
    replies: Iterable[Message], client_of_message: Mapping[str, int], w: Floats
) -> Floats:
    """Return the usable updates of clients, one of each, in the order of their numbers.

    Parameters
    ----------
    replies
        Messages that arrived. Their sender proves nothing: the SuperLink answers for a dead node.
    client_of_message
        The number of the client that each question went to, by the id of the question.
    w
        The model that the clients were sent, shape (1, dim).

    Returns
    -------
    Updates with finite entries, shape (usable answers, dim), not clipped.
    """
    reply_of_client = {}
    for reply in replies:
        client = client_of_message.get(reply.metadata.reply_to_message_id)
        if client is not None:
            reply_of_client[client] = reply
    updates = [np.empty((0, w.shape[1]), w.dtype)]
    for client in sorted(reply_of_client):
        update = _update_in(reply_of_client[client], w)
        if update is not None:
            updates.append(update)
    return np.vstack(updates)


def _update_in(answer: Message, w: Floats) -> Floats | None:
    """Return a client's model less `w`; None if the answer is unusable, as if it were missing."""
    if answer.has_error() or len(answer.content.array_records) != 1:
        return None
    try:
        model = flat(next(iter(answer.content.array_records.values())))
    except Exception:  # reading anything but arrays can fail in many ways
        return None
    if model.shape != w.shape:
        return None
    with np.errstate(over="ignore"):
        update: Floats = model.astype(w.dtype) - w
    if np.isfinite(update).all():
        return update
    return None
