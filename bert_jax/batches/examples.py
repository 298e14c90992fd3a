"""The endless stream of a stage's examples: window after window, epoch after epoch.

Examples are numbered across windows and epochs. Example i is a pure function of (spec, store, i).
"""

import bisect
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bert_jax.batches.rows.windows import WindowedRows, concatenate_rows, select_rows


@dataclasses.dataclass(frozen=True, order=True)
class Window:
    """A window of a row builder, and the number of its first example."""

    first_example: int
    epoch: int
    window: int


class Examples:
    """Numbers the rows of a builder, and plans any range of consecutive rows."""

    def __init__(self, rows: WindowedRows):
        self.rows = rows
        # The windows whose first example is known, in order, and the window after each.
        self._lock = threading.Lock()
        self._known: list[Window] = [Window(0, 0, 0)]
        self._after: dict[Window, Window] = {}

    def add_known(self, window: Window) -> None:
        """Records where a window begins; later searches may start from it."""
        with self._lock:
            at = bisect.bisect_left(self._known, window)
            if at == len(self._known) or self._known[at] != window:
                self._known.insert(at, window)

    def plan(self, window: Window) -> tuple[Any, Window]:
        """Returns the plan of the window, and the window after it."""
        plan = self.rows.plan(window.epoch, window.window)
        return plan, self._remember(window, len(plan[0]))

    def after(self, window: Window) -> Window:
        """Returns the next window; counts the examples of this one if its size is unknown."""
        with self._lock:
            after = self._after.get(window)
        return after or self._remember(window, self.rows.count(window.epoch, window.window))

    def find(self, example: int) -> Window:
        """Returns the window that holds the example, counting forward from a known window."""
        with self._lock:
            at = bisect.bisect_right(self._known, example, key=lambda w: w.first_example)
            window = self._known[at - 1]
        while (after := self.after(window)).first_example <= example:
            window = after
        return window

    def spans(
        self, start: Window, first_row: int, num_rows: int, stride: int, num_batches: int
    ) -> Iterator[tuple[int, Any]]:
        """Plans runs of `num_rows` rows, the first at example `first_row`, one every `stride`.

        The next window is planned while the current one is consumed.

        Args:
          start: The window of the first row, or an earlier one.

        Yields:
          The number of the run's first example, and the plan of its rows.
        """
        stop = first_row + (num_batches - 1) * stride + num_rows
        with ThreadPoolExecutor(1, thread_name_prefix="plan") as ahead:
            pending = ahead.submit(self.plan, start)
            upcoming, end = start, start.first_example
            for batch in range(num_batches):
                at = first = first_row + batch * stride
                parts = []
                while at < first + num_rows:
                    while at >= end:  # Repeats if windows are small.
                        window = upcoming
                        plan, upcoming = pending.result()
                        end = upcoming.first_example
                        if end < stop:
                            pending = ahead.submit(self.plan, upcoming)
                    until = min(end, first + num_rows)
                    origin = window.first_example
                    parts.append(select_rows(plan, slice(at - origin, until - origin)))
                    at = until
                yield first, concatenate_rows(parts)

    def _remember(self, window: Window, size: int) -> Window:
        """Records the size of a window; returns the next one."""
        if window.window + 1 < len(self.rows.windows(window.epoch)):
            epoch, number = window.epoch, window.window + 1
        else:
            epoch, number = window.epoch + 1, 0
        after = Window(window.first_example + size, epoch, number)
        with self._lock:
            self._after[window] = after
        self.add_known(window)
        self.add_known(after)
        return after
