"""SIGTERM, which a preempted machine gets: finish the step, save, leave."""

import signal
import threading
from typing import Self


class PreemptionGuard:
    """While entered, remembers that the process was asked to stop.

    SIGTERM is what Cloud TPU, Kubernetes and Slurm send; SIGINT (Ctrl-C) is taken
    the same way once, and a second one ends the process at once.
    """

    def __init__(self):
        self.signal_name = ""
        self._previous: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return bool(self.signal_name)

    def __enter__(self) -> Self:
        # Python allows handlers in the main thread only; a notebook's or a
        # test's worker thread trains without one.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self.signal_name = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(number, self._previous[number])
