"""The client's part: what it sends is bounded, and may get noise, before it leaves."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from types import NoneType

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import fail, instance, positive
from dpmesh.deploy.flower.arrays import clipped, flat, unflat
from dpmesh.deploy.flower.ledger import admit, write_down
from dpmesh.deploy.flower.parties import asks_for_name, introduction
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.mechanisms import Gaussian
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Released, Sensitive

with needed_by("the engine 'flower'"):
    from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
    from flwr.clientapp.typing import ClientAppCallable

log = getLogger("flwr")

Mod = Callable[[Message, Context, ClientAppCallable], Message]
"""A mod, which a ClientApp wraps around its functions; Flower's own type has no fixed module."""


class TrainingFailed(RuntimeError):  # noqa: N818
    """A client could not train; the reason may reveal its data and stays with the client."""


class OnlyTrains(RuntimeError):  # noqa: N818
    """A client was asked for something that no noise would protect."""


def private_update(
    clipping_norm: float,
    noise_multiplier: float | None = None,
    *,
    grid: float | None = None,
    budget: Budget | None = None,
    simulation: bool = False,
) -> Mod:
    """Return a mod for Flower's ClientApp that bounds, and may add noise to, what a client sends.

    Make it the first mod, and give it to the ClientApp itself: what other mods do before it is not
    covered.

    Parameters
    ----------
    clipping_norm
        The model that training returns is pulled into the ball of this radius around the global
        one.
    noise_multiplier
        None if the server adds the noise. A number adds Gaussian noise here, of this number times
        2 `clipping_norm`, from the client's own operating system.
    grid
        Grid of that noise, as in `dpmesh.privacy.mechanisms.Mechanism`: a power of 2, small beside
        `clipping_norm` / sqrt(dim). None for real-valued noise.
    budget
        The most that the client spends in all, whoever asks: it refuses an answer beyond that with
        `OverBudget`. None for no limit. Needs a noise multiplier, and a ledger in a file.
    simulation
        Whether the budget may rely on Flower's memory instead, as in a simulation, where nobody
        else starts runs.

    Guarantee
    ---------
    Without a noise multiplier the server is trusted: it sees clipped updates, whether training
    failed, and the app's unchanged answers to messages of other kinds, such as those to evaluate.
    The reason why training failed stays in the client's own log, and the metrics that come with a
    model are removed.

    With a noise multiplier z, each answer has the guarantee of `Gaussian` for replacing all the
    client's data: 1/z-Gaussian-DP except for the last bits, or with a `grid` ``1 / (2 z**2)``-zCDP,
    whoever sees it and whatever the server sent. Where training fails, the answer is noise alone,
    and the client's log states why. Only messages to train, whatever their action, are answered.
    Not covered are the time that an answer takes, which Flower reports to the server, a process
    that is killed, and what the app does outside of the functions that it registers, such as in a
    ``lifespan``. Flower takes the app from the server: if you do not trust the server, admit signed
    apps only (``flower-supernode --trusted-entities``).

    Answers compose, each with new noise. They are recorded before training begins, in one ledger
    for all such mods of an app, and `dpmesh.privacy` checks the budget against all of them. To a
    server that asks for the party's name, the mod sends that of the node's configuration
    (``dpmesh-party``, else ``partition-id``, else the node's id). How much the budget covers
    depends on where the ledger is:

    - In a file, if the SuperNode names one: ``--node-config 'dpmesh-ledger="/path"'``, one for each
      set of data. It covers all runs and apps, also after restarts, and simultaneous messages: it
      is an SQLite database with one writer at a time, on disk before training begins.
    - Else in Flower's ``context.state``, which a SuperNode keeps in memory for a run, or a series
      of runs. It starts empty in another run, which a server can start at will, after a restart of
      the SuperNode, and if the app empties it. Flower stores it once the answer is out: answers
      until then, or by a process that is killed just then, go uncounted, as do all but one of the
      simultaneous messages that a simulation gives to one client. Since that restrains nobody who
      may start runs, a client with a budget then answers in a `simulation` only.

    Raises
    ------
    ValueError
        If an argument is not positive or of the wrong type, there is a grid or a budget without
        noise, or the budget is too small for one answer.
    """
    positive("clipping_norm", clipping_norm)
    if noise_multiplier is None:
        for name, given in (("grid", grid), ("budget", budget)):
            if given is not None:
                fail("noise_multiplier", f"a number where there is a {name}", None)
    instance("budget", budget, "a dpmesh.privacy.Budget or None", Budget, NoneType)
    mechanism = None if noise_multiplier is None else Gaussian(noise_multiplier, grid=grid)
    return _mod(clipping_norm, mechanism, budget, simulation)


def _mod(
    clipping_norm: float, mechanism: Gaussian | None, budget: Budget | None, simulation: bool
) -> Mod:
    release = None
    if mechanism is not None:
        release = Release(0, mechanism, client_sensitivity(clipping_norm))
        admit(release, (), budget)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if asks_for_name(message):
            return introduction(message, context)
        if not _is_to_train(message):
            if release is None:
                return call_next(message, context)
            raise OnlyTrains("this client answers messages to train, to which it adds noise")
        name, start = _model_in(message)
        w = flat(start)
        if release is not None:
            write_down(release, context, budget, simulation=simulation)
        try:
            move = _clipped_move(w, call_next(message, context), clipping_norm)
        except (Exception, SystemExit) as error:  # even that it failed may reveal something
            if release is None:  # Flower sends its text to the server
                raise TrainingFailed("the client's log states why") from error
            log.exception("Training failed: the answer is noise alone")
            move = Sensitive(np.zeros_like(w))
        if release is None:
            return _answer(message, name, start, w, move)
        stream = Key.generate().stream(Purpose.NOISE)
        noisy = release.mechanism.release(move, release.sensitivity, stream)
        return _answer(message, name, start, w, noisy)

    return mod


def client_sensitivity(clipping_norm: float) -> Sensitivity:
    """Return how far one client's own message moves when all its data is replaced."""
    return Sensitivity(2 * clipping_norm, "l2", "a clipped update replaced, seen by itself")


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


def _answer(
    message: Message, name: str, start: ArrayRecord, w: Floats, move: Released | Sensitive
) -> Message:
    """Return `start` plus the update, with its names, shapes and type, and nothing else."""
    with np.errstate(over="ignore"):
        model = (w + move).astype(w.dtype)
    return Message(RecordDict({name: unflat(model, start)}), reply_to=message)
