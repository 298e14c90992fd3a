"""Ends a run cleanly on SIGTERM, which a preempted machine receives."""

import signal
import threading
from typing import Self

import jax

from bert_jax.parallel import multihost


class PreemptionGuard:
    """A context manager under which SIGTERM stops the run at the next step.

    Cloud TPU, Kubernetes and Slurm send SIGTERM. A first SIGINT (Ctrl-C) has the same effect;
    a second one ends the process at once. A signal to any one of several processes stops all of
    them at the same step.
    """

    def __init__(self):
        self._noted = 0
        self._agreed = 0
        self._vote: jax.Array | None = None
        self._previous: dict[int, object] = {}

    @property
    def signal_name(self) -> str:
        """The name of the signal; empty if there was none."""
        number = self._agreed if jax.process_count() > 1 else self._noted
        return signal.Signals(number).name if number else ""

    @property
    def requested(self) -> bool:
        """Whether the run must stop. With several processes, `poll` updates this."""
        return bool(self.signal_name)

    def poll(self) -> bool:
        """Returns whether a stop was requested.

        All processes must call this between the same steps, and all get the same answer. It is
        the result of the previous call's vote, so no step has to wait for it.
        """
        if jax.process_count() > 1 and not self._agreed:
            before, self._vote = self._vote, multihost.vote(self._noted)
            self._agreed = 0 if before is None else int(before)
        return self.requested

    def __enter__(self) -> Self:
        # Python allows handlers only in the main thread; a worker thread of a notebook trains
        # without them.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self._noted = number
        if number == signal.SIGINT:
            signal.signal(number, self._previous[number])
