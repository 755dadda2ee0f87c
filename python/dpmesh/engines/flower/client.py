"""The client's part: what it sends is bounded, and may be hidden, before it leaves."""

from __future__ import annotations

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._validate import positive
from dpmesh.engines.flower.arrays import flat, unflat
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.events import Sensitivity
from dpmesh.privacy.mechanisms import Gaussian
from dpmesh.privacy.types import Sensitive

with needed_by("the engine 'flower'"):
    from flwr.app import Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable, Mod


class TrainingFailed(RuntimeError):  # noqa: N818
    """A client could not train; what went wrong may tell of its data and stays with it."""


def private_update(clipping_norm: float, noise_multiplier: float | None = None) -> Mod:
    """Return a mod for Flower's ClientApp that bounds, and may hide, what a client sends.

    Parameters
    ----------
    clipping_norm
        The model that training returns is pulled into the ball of this radius around the global
        one.
    noise_multiplier
        None if the server adds the noise. A number adds Gaussian noise here, of this number times
        2 `clipping_norm`, from the client's own operating system.

    Guarantee
    ---------
    With a noise multiplier z, each answer of the client to a message to train, whatever its action,
    is 1/z-Gaussian-DP for replacing all its data, whoever sees it, but for whether and when it
    answers: why training failed stays in the client's own log. It answers as often as it is asked,
    each time with new noise; answers compose. The metrics that its app returns with the model are
    removed: nothing protects them, nor what the app answers to messages of other kinds, such as
    those to evaluate, which pass as they are.

    Raises
    ------
    ValueError
        If an argument is not positive.
    """
    positive("clipping_norm", clipping_norm)
    mechanism = None if noise_multiplier is None else Gaussian(noise_multiplier)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        category, _, _ = message.metadata.message_type.partition(".")  # "train.default" is "train"
        if category != MessageType.TRAIN:
            return call_next(message, context)
        try:
            return bounded(message, call_next(message, context))
        except Exception as error:  # Flower sends its text to the server
            raise TrainingFailed("the client's log says why") from error

    def bounded(message: Message, reply: Message) -> Message:
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        (start,) = message.content.array_records.values()
        ((name, trained),) = reply.content.array_records.items()
        w = flat(start)
        move = kernels.clip_rows(flat(trained) - w, clipping_norm)
        if mechanism is not None:
            move, _, _ = mechanism.release(
                Sensitive(move),
                client_sensitivity(clipping_norm),
                Key.generate().stream(Purpose.NOISE),
                round=0,
            )
        reply.content = RecordDict({name: unflat(w + move, start)})
        return reply

    return mod


def client_sensitivity(clipping_norm: float) -> Sensitivity:
    """Return how far one client's own message moves when all its data is replaced."""
    return Sensitivity(2 * clipping_norm, "l2", "a clipped move replaced, seen by itself")
