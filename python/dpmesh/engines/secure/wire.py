"""Questions of the server and answers of the sites, as bytes that any transport can carry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from dpmesh.engines.secure.messages import Header, Hello, Ready, RefusedError
from dpmesh.engines.secure.site import Site
from dpmesh.engines.signing import pack, unpack
from dpmesh.privacy.types import Floats

Carry: TypeAlias = Callable[[Mapping[int, bytes]], Mapping[int, bytes]]
"""Delivers a question to each site, by its number, and returns the answers.

A site without an answer is lost for the rest of the run, so ask again before giving it up: the same
question gets the same answer, at no cost.
"""

JOIN, READY, SUM, LEAVE = b"join", b"ready", b"sum", b"leave"
_ANSWER, _REFUSED = b"answer", b"refused"
_STOPPED = "the site has stopped"

_log = logging.getLogger("dpmesh")


def in_process(sites: Iterable[Site]) -> Carry:
    """Return what carries questions to sites of this process."""
    by_number = {site.own: site for site in sites}
    return lambda questions: {
        own: serve(by_number[own], question) for own, question in questions.items()
    }


def serve(site: Site, question: bytes) -> bytes:
    """Return a site's answer to a question of the server.

    It depends on private data through the vector under masks alone. A refusal states why, from
    public numbers; what else went wrong is in the site's own log.
    """
    try:
        kind, run, *fields = _fields(question)
        if kind == JOIN:
            hello = site.join(run)
            return pack(_ANSWER, hello.key, hello.signature)
        if kind == READY:
            ready = site.ready(run)
            known = _number(ready.last_attempt), _number(ready.spent)
            return pack(_ANSWER, *known, ready.signature)
        if kind == SUM:
            return pack(_ANSWER, site.answer(*_header(run, fields)))
        if kind == LEAVE:
            site.leave(run, *fields)
            return pack(_ANSWER)
        raise RefusedError("the question is none of this protocol")
    except RefusedError as reason:
        return pack(_REFUSED, str(reason).encode())
    except Exception:
        _log.exception("site %d does not answer", site.own)
        return pack(_REFUSED, _STOPPED.encode())


def question(kind: bytes, run: bytes, *fields: bytes) -> bytes:
    """Return a question about a run."""
    return pack(kind, run, *fields)


def question_for_sum(header: Header, w: Floats) -> bytes:
    """Return the question for a site's vector at the model `w`, shape (1, dim)."""
    hellos = [part for hello in header.hellos for part in (hello.key, hello.signature)]
    readies = [
        part
        for ready in header.readies
        for part in (_number(ready.last_attempt), _number(ready.spent), ready.signature)
    ]
    model = w.astype(w.dtype.newbyteorder("<"))
    sites = pack(*map(_number, header.cohort))
    numbers = _number(header.step), _number(header.attempt)
    words = str(w.dtype).encode(), model.tobytes()
    return question(SUM, header.run, *numbers, sites, pack(*hellos), pack(*readies), *words)


def answer_in(message: bytes) -> tuple[bytes, ...]:
    """Return the fields of a site's answer.

    Raises
    ------
    RefusedError
        If it is a refusal, with the site's reason, or no answer.
    """
    try:
        kind, *fields = unpack(message)
    except ValueError:
        kind, fields = b"", []
    if kind != _ANSWER:
        raise RefusedError(fields[0].decode() if kind == _REFUSED else "the answer is none")
    return tuple(fields)


def hello_in(message: bytes, site: int, run: bytes) -> Hello:
    """Return the answer to `JOIN`."""
    key, signature = answer_in(message)
    return Hello(site, run, key, signature)


def ready_in(message: bytes, site: int, run: bytes) -> Ready:
    """Return the answer to `READY`."""
    last, spent, signature = answer_in(message)
    return Ready(site, run, _integer(last), _integer(spent), signature)


def _fields(question: bytes) -> tuple[bytes, ...]:
    """Return at least two fields; refuse what has not as many."""
    with suppress(ValueError):
        if len(fields := unpack(question)) >= 2:
            return fields
    raise RefusedError("the question cannot be read")


def _header(run: bytes, fields: list[bytes]) -> tuple[Header, Floats]:
    """Return a header and a model; refuse what cannot be read."""
    try:
        step, attempt, sites, hellos, readies, dtype, model = fields
        cohort = tuple(map(_integer, unpack(sites)))
        said, ready = unpack(hellos), unpack(readies)
        header = Header(
            run,
            _integer(step),
            _integer(attempt),
            cohort,
            tuple(
                Hello(site, run, *parts)
                for site, *parts in zip(cohort, said[::2], said[1::2], strict=True)
            ),
            tuple(
                Ready(site, run, _integer(last), _integer(spent), signature)
                for site, last, spent, signature in zip(
                    cohort, ready[::3], ready[1::3], ready[2::3], strict=True
                )
            ),
        )
        kind = {b"float32": np.float32, b"float64": np.float64}[dtype]
        w = np.frombuffer(model, np.dtype(kind).newbyteorder("<")).astype(kind)
    except (ValueError, KeyError):
        raise RefusedError("the question cannot be read") from None
    return header, w[np.newaxis]


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _integer(field: bytes) -> int:
    if len(field) != 8:
        raise ValueError("no integer")
    return int.from_bytes(field, "big", signed=True)
