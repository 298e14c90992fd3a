"""Shows progress: a bar on a terminal, occasional plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.segment import Segment
from rich.table import Column, Table

from bert_jax.base.errors import printable

LINE_EVERY_SECONDS = 10.0
# Seconds before the remaining time is estimated, for `advice`.
_ADVICE_SECONDS = 20.0
_DAY = timedelta(days=1)


class Progress:
    """Shows the fraction of a task that is done, its rate and the remaining time.

    On a terminal this is a bar. Otherwise a line is printed at most every `LINE_EVERY_SECONDS`,
    and one at the end.

    Args:
      name: The name of the task in a word or two.
      total: The number of units of work; None if it is unknown.
      unit: The name of a unit ("sequences"), for the rate.
      done: Units that were finished in an earlier run.
      enabled: False shows nothing, for processes other than the first.
      cost: Maps a number of units to their cost in any measure, if units differ in length. The
        fraction and the remaining time are computed from the cost.
      advice: What the user can change if the task takes more than a day. It is printed once, soon
        after the start.
      may_stop: Whether the task may be stopped without an error before its end. Otherwise its last
        line or bar shows 100 %.
    """

    def __init__(
        self,
        name: str,
        total: float | None,
        unit: str,
        *,
        done: float = 0,
        enabled: bool = True,
        cost: Callable[[float], float] = float,
        advice: str = "",
        may_stop: bool = False,
    ):
        self._name, self._total, self._unit = name, total, unit
        self._cost, self._advice, self._may_stop = cost, advice, may_stop
        self._is_complete = False
        self._first = self._done = done
        self._enabled = enabled
        self._advanced = False
        self._note = ""
        self._line_done: float | None = None
        self._console = terminal()
        self._started = self._last_line = time.monotonic()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20 if self._console.width >= 100 else 10),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
                # A narrow terminal may cut this column.
                TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
                console=self._console,
            )
            total = None if self._total is None else self._cost(self._total)
            self._task = self._bar.add_task(
                self._name, total=total, completed=self._cost(self._done), note=""
            )
            self._bar.start()
        return self

    def __exit__(self, exception_type, *_):
        # A total that was an estimate, or the last units, may not have been counted.
        self._is_complete = exception_type is None and not self._may_stop
        if self._bar:
            if self._is_complete and self._total is not None:
                self._bar.update(self._task, completed=self._cost(self._total))
            self._bar.stop()
        elif self._enabled and exception_type is None:
            end = self._total if self._is_complete and self._total else self._done
            if self._line_done != end:
                self._print_line()

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Counts `amount` more units as done.

        `note` replaces the text at the end. It is shown instead of the rate, so it should contain
        the rate.
        """
        self._done += amount
        if not self._advanced:
            # The rate does not include the time before the first unit, such as compilation.
            self._first, self._started, self._advanced = self._done, time.monotonic(), True
        if note is not None:
            self._note = note
        if self._bar:
            completed, note = self._cost(self._done), self._note or self._rate_text()
            self._bar.update(self._task, completed=completed, note=note)
        elif self._enabled and time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._print_line()
        if self._advice and self.seconds() >= _ADVICE_SECONDS:
            if (left := timedelta(seconds=self.seconds_left() or 0)) > _DAY:
                self.message(
                    f"warning: at this speed, the rest takes about {left / _DAY:.1f} days; "
                    f"{self._advice}"
                )
            self._advice = ""

    def message(self, text: str) -> None:
        """Prints a line, above the bar on a terminal."""
        if self._enabled:
            say(text, self._console)

    def seconds_left(self) -> float | None:
        """Estimates the time to the end; None before the second unit or without a total."""
        if self._total is None or self._done == self._first:
            return None
        first, done, total = map(self._cost, (self._first, self._done, self._total))
        return (total - done) / (done - first) * self.seconds()

    def seconds(self) -> float:
        """Returns the time since the first unit was done."""
        return time.monotonic() - self._started

    def _rate(self) -> float:
        return (self._done - self._first) / max(self.seconds(), 1e-9)

    def _rate_text(self) -> str:
        return f"{_short(self._rate())} {self._unit}/s"

    def _print_line(self) -> None:
        self._last_line, self._line_done = time.monotonic(), self._done
        parts = [self._rate_text()] if self._rate() and not self._note else []
        if self._total:
            done, left = self._done, round(self.seconds_left() or 0)
            if self._is_complete:
                done, left = self._total, 0
            parts.insert(0, f"{100 * self._cost(done) / self._cost(self._total):.0f} %")
            if left:
                parts.append(f"{timedelta(seconds=left)} left")
        if self._note:
            parts.append(self._note)
        # There is no rate if all the work was done in one step.
        if parts:
            print(f"{self._name}: " + ", ".join(parts), flush=True)


def say(text: str, console: Console | None = None) -> None:
    """Prints a sentence: wrapped between words on a terminal, one line elsewhere."""
    console = console or terminal()
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def say_next(commands: Mapping[str, str]) -> None:
    """Prints what to do next: a `python -m bert_jax.COMMAND` for each purpose."""
    heading = "what next"
    for purpose, command in commands.items():
        print(f"{heading:13}{purpose}:\n{'':13}python -m bert_jax.{command}")
        heading = ""


def terminal(**options: Any) -> Console:
    """Makes a console for standard output; rich.console.Console takes the `options`.

    It shows text as it is. A path or a token such as [MASK] is not markup.
    """
    return _Console(markup=False, emoji=False, **options)


class _Console(Console):
    """A console that escapes the control characters of texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def empty_table(title: str, *columns: str) -> Table:
    """Makes a table without rows; all columns but the first are for numbers."""
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _short(value: float) -> str:
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{suffix}"
    return f"{value:.1f}"
