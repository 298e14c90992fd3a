"""SIGTERM, which a preempted machine gets: finish the step, save, leave."""

import signal
import threading
from typing import Self

import jax

from bert_jax.parallel import multihost


class PreemptionGuard:
    """While entered, remembers that the run was asked to stop.

    SIGTERM is what Cloud TPU, Kubernetes and Slurm send; SIGINT (Ctrl-C) is taken
    the same way once, and a second one ends the process at once.

    A signal that any one of several processes gets stops all of them, at the same step.
    """

    def __init__(self):
        self._noted = 0
        self._agreed = 0
        self._vote: jax.Array | None = None
        self._previous: dict[int, object] = {}

    @property
    def signal_name(self) -> str:
        """The signal's, or empty."""
        number = self._agreed if jax.process_count() > 1 else self._noted
        return signal.Signals(number).name if number else ""

    @property
    def requested(self) -> bool:
        """What the last `poll` said; in a run of one process whether there was a signal."""
        return bool(self.signal_name)

    def poll(self) -> bool:
        """Whether the run was asked to stop.

        Several processes call this equally often, between the same steps, and hear the
        same: what they had noted at the call before, so that no step waits for the answer.
        """
        if jax.process_count() > 1 and not self._agreed:
            before, self._vote = self._vote, multihost.vote(self._noted)
            self._agreed = 0 if before is None else int(before)
        return self.requested

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
        self._noted = number
        if number == signal.SIGINT:
            signal.signal(number, self._previous[number])
