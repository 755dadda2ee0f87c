"""Deferral of Ctrl-C and SIGTERM to the end of the current round, if the round ends soon."""

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

PAUSE = 0.1
"""Seconds between two checks whether it has ended."""

_BY_DEFAULT = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Python's default handlers, which stand if the program has none of its own."""


class Interrupt:
    """Context in which Ctrl-C and SIGTERM set `requested`, so that a loop stops after a round.

    If the round is not over after `PATIENCE` seconds, or Ctrl-C comes again, `KeyboardInterrupt` is
    raised at once. Outside the main thread, and where the program has its own handler, signals keep
    their effect. (Launchers and batch systems end processes by SIGTERM, some by several.)

    Parameters
    ----------
    deferred
        False to let signals act at once.
    patient
        True to wait for the end of the round without a limit of time.
    """

    def __init__(self, *, deferred: bool, patient: bool = False) -> None:
        self._deferred = deferred
        self._patient = patient
        self._noted: set[int] = set()
        self.requested = False
        """True if the loop is to stop."""
        self._late = False
        self._answered = False
        self._over = False
        self._asking = threading.Lock()
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
        with self._asking:  # none of our signals may reach the previous handlers
            self._answered = True
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """Mark work between two rounds, which may take longer than `PATIENCE`."""
        was_patient = self._patient
        self._patient = True
        try:
            yield
        finally:
            self._patient = was_patient

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: request the end, or raise `KeyboardInterrupt`."""
        if self._is_enough(number):
            self._answered = True
            raise KeyboardInterrupt
        is_first = not self._noted
        self._noted.add(number)
        self.requested = True
        if is_first:  # not by `threading`: the main thread may hold its lock right now
            _thread.start_new_thread(self._insist, (number,))

    def _is_enough(self, number: int) -> bool:
        """Return True to stop at once: the round is late and still runs, or Ctrl-C came again."""
        is_late = self._late
        self._late = False
        if is_late:
            return not (self._patient or self._over)
        return number == signal.SIGINT and number in self._noted and not self._over

    def _insist(self, number: int) -> None:
        """Send the signal again until the round ends.

        Without it, a signal just before a long blocking call would act only after the call.
        """
        for _ in range(round(PATIENCE / PAUSE)):  # a suspended process gets the rest of them
            time.sleep(PAUSE)
        while not self._answered:
            with self._asking:
                if not (self._patient or self._answered):
                    self._late = True
                    self._ask(number)
            time.sleep(PAUSE)

    def _ask(self, number: int) -> None:
        """Send a signal to the main thread."""
        if hasattr(signal, "pthread_kill"):  # this also ends a blocking system call
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            _thread.interrupt_main(signal.Signals(number))
