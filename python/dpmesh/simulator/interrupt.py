"""Ctrl-C and SIGTERM between two rounds instead of inside one, as long as that is not long."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

PATIENCE = 0.7
"""Seconds that a round may take to end after a signal."""

_BY_DEFAULT = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What Python does at a signal for which the program has no handler of its own."""


class Interrupt:
    """Within its block, Ctrl-C sets `requested`, so that the loop can stop where it is whole.

    So does SIGTERM, by which launchers and batch systems end processes. A round that is not over
    after `PATIENCE` seconds, or the same signal again, stops at once with `KeyboardInterrupt`.
    Outside the main thread, and where the program has a handler of its own, a signal does what it
    did before.

    Parameters
    ----------
    deferred
        Whether to do so at all.
    patient
        Whether to wait for the end of the round however long it takes.
    """

    def __init__(self, *, deferred: bool, patient: bool = False) -> None:
        self._deferred, self._patient = deferred, patient
        self._noted: list[int] = []
        self._over = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if self._deferred and threading.current_thread() is threading.main_thread():
            for number, handler in _BY_DEFAULT.items():
                if signal.getsignal(number) is handler:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over = True
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        """Whether the loop is to stop."""
        return bool(self._noted)

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Between two rounds: what is done in the block may take its time."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._noted:
            self._over = True
            raise KeyboardInterrupt
        self._noted.append(number)
        if len(self._noted) == 1:
            threading.Thread(target=self._insist, args=(number,), daemon=True).start()

    def _insist(self, number: int) -> None:
        """Ask again until the round ends: a signal just before a long wait is noticed after it."""
        time.sleep(PATIENCE)
        while not self._over:
            if self._patient:
                pass
            elif hasattr(signal, "pthread_kill"):  # ends a system call that waits, too
                signal.pthread_kill(threading.main_thread().ident or 0, number)
            else:
                _thread.interrupt_main(signal.Signals(number))
            time.sleep(0.1)
