"""Ctrl-C between two rounds instead of inside one, as long as that does not take long."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

PATIENCE = 0.7
"""Seconds that a round may take to end after Ctrl-C."""


class Interrupt:
    """Within its block, Ctrl-C sets `requested`, so that the loop can stop where it is whole.

    A round that is not over after `PATIENCE` seconds, or a second Ctrl-C, stops at once with
    `KeyboardInterrupt`. Outside the main thread, and where the program has a handler of its own,
    Ctrl-C does what it did before.

    Parameters
    ----------
    deferred
        Whether to do so at all.
    patient
        Whether to wait for the end of the round however long it takes, and to take SIGTERM, by
        which launchers and batch systems end processes, for Ctrl-C.
    """

    def __init__(self, *, deferred: bool, patient: bool = False) -> None:
        self.requested = False
        self._deferred, self._patient = deferred, patient
        self._settled = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if self._deferred and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
            if self._patient and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.settle()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def settle(self) -> None:
        """Stop the clock: the round has ended, and what is still to do may take its time."""
        self._settled = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._settled = True
            raise KeyboardInterrupt
        self.requested = True
        if not self._patient:
            threading.Thread(target=self._insist, daemon=True).start()

    def _insist(self) -> None:
        """Ask again until the round ends: a signal just before a long wait is noticed after it."""
        time.sleep(PATIENCE)
        while not self._settled:
            if hasattr(signal, "pthread_kill"):  # ends a system call that waits, too
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _thread.interrupt_main()
            time.sleep(0.1)
